"""Three ZooKeepers, of which one, their leader or a majority is killed: the brokers lose no acknowledged record."""

import contextlib
import random
import socket
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic
from kazoo.exceptions import KazooException

from onceflow import services
from tests.broker.cluster.conftest import Tree
from tests.broker.cluster.processes import crash
from tests.broker.cluster.test_replication_kills import BROKERS, PARTITIONS, Load, await_equal_logs, brokers_of, read
from tests.broker.cluster.zookeeper_process import ZooKeeperProcess
from tests.campaigns import RecordProperty

MEMBERS = 3
KILLS = 30
SEED = 20261130
AWAY_S_MAX = 4.0
"""Twice the brokers' session timeout."""
BROKER_CHANCE = 0.3
CREATED_WITHIN_S = 120.0
NOT_YET = {
    KafkaError.NOT_CONTROLLER,
    KafkaError.INVALID_REPLICATION_FACTOR,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError._TIMED_OUT,
}
LIMITS = "initLimit=200\nsyncLimit=100\n"


class Ensemble:
    """ZooKeepers that elect a leader. A majority must run before one of them serves."""

    def __init__(self, directory: Path, classpath: Path) -> None:
        ports = [(services.free_port(), services.free_port()) for _ in range(MEMBERS)]
        servers = [f"server.{number}=127.0.0.1:{peer}:{election}\n" for number, (peer, election) in enumerate(ports, 1)]
        self.members: list[ZooKeeperProcess] = []
        for number in range(1, MEMBERS + 1):
            own = directory / f"zookeeper-{number}"
            (own / "data").mkdir(parents=True)
            (own / "data" / "myid").write_text(f"{number}\n")
            self.members.append(ZooKeeperProcess(own, classpath, LIMITS + "".join(servers)))

    @property
    def address(self) -> str:
        return ",".join(member.address for member in self.members)

    def start(self, members: Sequence[ZooKeeperProcess]) -> None:
        """Start members together, and wait until each serves."""
        with ThreadPoolExecutor(MEMBERS) as pool:
            list(pool.map(ZooKeeperProcess.__enter__, members))

    def leader(self) -> ZooKeeperProcess:
        (leading,) = [member for member in self.members if b"Mode: leader" in described(member)]
        return leading


def described(member: ZooKeeperProcess) -> bytes:
    """Return ZooKeeper's response to `srvr`."""
    with socket.create_connection(("127.0.0.1", member.port), timeout=10) as connection:
        connection.sendall(b"srvr")
        return b"".join(iter(lambda: connection.recv(4096), b""))


@contextmanager
def ensemble_of(directory: Path, classpath: Path) -> Iterator[Ensemble]:
    ensemble = Ensemble(directory, classpath)
    with ExitStack() as stack:
        ensemble.start(ensemble.members)
        for member in ensemble.members:
            stack.callback(member.__exit__, None, None, None)
        yield ensemble


def victims_of(ensemble: Ensemble, chance: random.Random) -> Sequence[ZooKeeperProcess]:
    """Return a member, the leader, or a majority."""
    return chance.choice(
        ([chance.choice(ensemble.members)], [ensemble.leader()], chance.sample(ensemble.members, MEMBERS // 2 + 1))
    )


@pytest.mark.campaign
def test_many_killed_zookeepers(zookeeper_classpath: Path, tmp_path: Path, record_property: RecordProperty) -> None:
    """Acknowledged records are there once and in order, and topics are created, after kills of one ZooKeeper of three,
    of their leader, of two at once, and of brokers meanwhile; the logs of all replicas are equal byte for byte."""
    chance, majorities, broker_kills = random.Random(SEED), 0, 0
    with ExitStack() as stack:
        ensemble = stack.enter_context(ensemble_of(tmp_path, zookeeper_classpath))
        tree = Tree(ensemble.address, "/cluster/kafka")
        stack.callback(tree.close)
        brokers = stack.enter_context(brokers_of(tree, tmp_path))
        bootstrap = ",".join(broker.bootstrap for broker in brokers.values())
        admin = AdminClient({"bootstrap.servers": bootstrap})

        def create(topic: str, partitions: int) -> None:
            """Create a topic; again while there is no controller, or not all brokers are registered."""
            deadline = time.monotonic() + CREATED_WITHIN_S
            while True:
                new = NewTopic(topic, partitions, len(BROKERS))
                (created,) = admin.create_topics([new], request_timeout=30).values()
                try:
                    created.result(60)
                except KafkaException as error:
                    if error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
                        return  # By a request before, whose response said otherwise.
                    if error.args[0].code() not in NOT_YET or time.monotonic() > deadline:
                        raise
                    # librdkafka asks the same broker again until its next metadata, some minutes later.
                    with contextlib.suppress(KafkaException):
                        admin.list_topics(timeout=5)
                    time.sleep(0.2)
                else:
                    return

        def replicas(topic: str, partition: int) -> int:
            """Return the number of in-sync replicas; 0 while this client's session is interrupted."""
            try:
                state: Any = tree.json(f"/brokers/topics/{topic}/partitions/{partition}/state")
            except KazooException:
                return 0
            return len(state["isr"])

        def await_replicas(topic: str, partitions: int) -> None:
            for partition in range(partitions):
                tree.await_that(lambda at=partition: replicas(topic, at) == len(BROKERS))  # type: ignore[misc]

        create("t", PARTITIONS)
        load = Load(bootstrap)
        for round_number in range(KILLS):
            load.await_more(tree)
            victims = victims_of(ensemble, chance)
            majorities += len(victims) > 1
            for member in victims:
                member.__exit__(None, None, None)
            broker = brokers[chance.choice(BROKERS)] if chance.random() < BROKER_CHANCE else None
            if broker is not None:
                broker_kills += 1
                crash(broker, chance)
            time.sleep(chance.random() * AWAY_S_MAX)
            ensemble.start(victims)
            if broker is not None:
                broker.start()
            load.await_more(tree)
            create(f"round-{round_number}", 1)
            await_replicas("t", PARTITIONS)
        load.stop()
        assert not load.failures
        for partition, acknowledged in enumerate(load.acknowledged):
            assert read(bootstrap, partition, len(acknowledged)) == acknowledged
            await_equal_logs(tree, tmp_path, partition)
        for round_number in range(KILLS):
            await_replicas(f"round-{round_number}", 1)
    record_property("records", load.count)
    record_property("kills of ZooKeeper", KILLS)
    record_property("of a majority", majorities)
    record_property("kills of brokers", broker_kills)
