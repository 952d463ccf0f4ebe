"""Two of Onceflow's brokers and one Apache Kafka 3.9 in one cluster, whose connections are authenticated.

Each of them is in turn the controller, and leads and follows partitions.
"""

import subprocess
from pathlib import Path

import pytest

from onceflow.client.authentication import AuthenticationFailed
from onceflow.client.cluster import Cluster
from onceflow.client.credentials import remove_user, set_password
from onceflow.client.security import read_security
from onceflow.wire import apis
from tests.broker.cluster.conftest import Tree
from tests.broker.cluster.test_inter_broker import PASSWORD
from tests.broker.cluster.test_security import check_refusals
from tests.broker.cluster.zookeeper_process import ZooKeeperProcess
from tests.broker.raw_client import connected
from tests.compat.broker_certificates import Certificates
from tests.compat.conftest import kafka_jars
from tests.compat.java_programs import environment
from tests.compat.mixed_cluster import BROKERS, KAFKA, Mixed, let_control, mixed_cluster
from tests.compat.secured_cluster import (
    INSIDE,
    LISTENERS,
    Security,
    allow_acts,
    scram_client,
    with_certificates,
    with_scram,
)
from tests.compat.test_transactions_with_kafka import TRANSACTIONAL_IDS, check_transactions
from tests.compat.test_zookeeper_nodes import VERSION


def control_in_turn(mixed: Mixed, security: Security) -> None:
    """Let each broker be the controller, then each coordinate transactions.

    Strangers may not send the requests of brokers.
    """
    allow_acts(mixed, security)
    for bootstrap in mixed.bootstraps.values():
        with connected(bootstrap) as stranger:
            check_refusals(stranger)
    for controller in (KAFKA, 3, 1):
        let_control(mixed, controller)
    with connected(mixed.bootstraps[KAFKA]) as client:
        # It creates the topic of the coordinators itself, although it is not the controller.
        client.ask(apis.FIND_COORDINATOR, 3, key=TRANSACTIONAL_IDS[0], key_type=1)
    check_transactions(mixed.tree, mixed.bootstraps)


@pytest.mark.timeout(900)
def test_brokers_with_certificates(zookeeper: ZooKeeperProcess, certificates: Certificates, tmp_path: Path) -> None:
    tree = Tree(zookeeper.address, "/mixed")
    security = with_certificates(certificates)
    try:
        with mixed_cluster(tree, tmp_path, security.settings, LISTENERS) as mixed:
            control_in_turn(mixed, security)
    finally:
        tree.close()


def store_user(tree: Tree, certificates: Certificates, directory: Path) -> None:
    """Store the brokers' user with Kafka's tool, before their first start."""
    # The tool, unlike brokers, does not create the chroot.
    tree.client.ensure_path(tree.chroot)
    file = directory / "zookeeper.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in certificates.zookeeper_settings.items()))
    words = ["--zookeeper", tree.connect, "--zk-tls-config-file", str(file), "--alter", "--entity-type", "users"]
    words += ["--entity-name", "broker", "--add-config", f"SCRAM-SHA-512=[password={PASSWORD}]"]
    command = ["java", "-cp", f"{kafka_jars(VERSION)}/*", "kafka.admin.ConfigCommand", *words]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.timeout(900)
def test_brokers_with_scram(secured_tree: Tree, certificates: Certificates, tmp_path: Path) -> None:
    """ZooKeeper lets only the brokers change the nodes, of which each broker creates some."""
    store_user(secured_tree, certificates, tmp_path)
    security = with_scram(certificates)
    settings = {**security.settings, **certificates.zookeeper_settings, "zookeeper.set.acl": "true"}
    with mixed_cluster(secured_tree, tmp_path, settings, LISTENERS) as mixed:
        control_in_turn(mixed, security)
        for controller in (KAFKA, 1):
            mixed.elect_controller(controller)
            change_user(mixed, security, certificates)


def change_user(mixed: Mixed, security: Security, certificates: Certificates) -> None:
    """Add, change and remove a user at the controller; each broker knows it."""

    def logs_in(password: str) -> list[bool]:
        return [is_accepted(mixed.addresses[broker_id][INSIDE], password) for broker_id in BROKERS]

    def is_accepted(bootstrap: str, password: str) -> bool:
        try:
            with Cluster(bootstrap, security=read_security(scram_client(certificates, "ada", password))) as client:
                client.topics()
        except AuthenticationFailed:
            return False
        return True

    everywhere, nowhere = [True] * len(BROKERS), [False] * len(BROKERS)
    with security.connected(mixed) as cluster:
        for password in ("first", "second"):
            set_password(cluster, "ada", password, ["SCRAM-SHA-512"], 4096)
            mixed.tree.await_that(lambda password=password: logs_in(password) == everywhere)  # type: ignore[misc]
        assert logs_in("first") == nowhere
        remove_user(cluster, "ada", ["SCRAM-SHA-512"])
        mixed.tree.await_that(lambda: logs_in("second") == nowhere)
