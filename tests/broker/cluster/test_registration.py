"""Registration of a broker in ZooKeeper: taken ids, lost connections, expired sessions, another controller."""

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from onceflow.broker.cluster.registry import RegistrationRefused, Registry, Superseded
from onceflow.broker.config import PROTOCOL_OF_NAME, Endpoint
from onceflow.log.clock import SystemClock
from onceflow.log.errors import DataDirectoryRefused
from onceflow.remedies import Remedy
from onceflow.testing import Broker, BrokerProcess
from onceflow.wire import apis
from onceflow.wire.errors import ErrorCode
from onceflow.zookeeper.kazoo_session import ZooKeeper, ZooKeeperUnavailable
from onceflow.zookeeper.session import Create, Operation, OutcomeUnknown
from tests import remedies
from tests.broker.cluster.conftest import NewBroker, Tree
from tests.broker.cluster.link import Link
from tests.broker.cluster.processes import lose_machine
from tests.broker.raw_client import RawClient, batch_of, connected, milliseconds

OTHER = '{"version":5,"host":"127.0.0.1","port":9,"endpoints":[],"timestamp":"1"}'


def through(link: Link, tree: Tree) -> str:
    return f"{link.address}{tree.chroot}"


def send_creation(client: RawClient, topic: str) -> None:
    wanted = {"name": topic, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
    client.send(apis.CREATE_TOPICS, 4, topics=[wanted], timeout=milliseconds(60_000), validate_only=False)


def create(client: RawClient, topic: str) -> int:
    send_creation(client, topic)
    error_code: int = client.receive(apis.CREATE_TOPICS, 4).topics[0].error_code
    return error_code


def metadata(client: RawClient) -> Any:
    return client.ask(apis.METADATA, 4, topics=[], allow_auto_topic_creation=False)


def is_listening(bootstrap: str) -> bool:
    try:
        RawClient(bootstrap).close()
    except ConnectionRefusedError:
        return False
    return True


@pytest.mark.remedy(Remedy.STOP_BROKER, Remedy.OTHER_BROKER_ID, Remedy.OTHER_CHROOT)
def test_taken_id_is_refused(new_broker: NewBroker, tree: Tree, tmp_path: Path) -> None:
    with new_broker(tmp_path / "first") as first:
        address = first.bootstrap_servers
        with pytest.raises(RegistrationRefused, match=r"broker\.id 1 is registered in ZooKeeper by") as why:
            new_broker(tmp_path / "second").start()
        assert address in str(why.value)
        remedies.find(Remedy.STOP_BROKER, str(why.value))
        remedies.find(Remedy.OTHER_BROKER_ID, str(why.value))
        remedies.find(Remedy.OTHER_CHROOT, str(why.value))
        with new_broker(tmp_path / "other-id", broker_id=2):
            assert tree.exists("/brokers/ids/2")
        with new_broker(tmp_path / "second", zookeeper_connect=f"{tree.connect}/other"):
            assert tree.exists("/other/brokers/ids/1")
        assert tree.exists("/brokers/ids/1")
    with new_broker(tmp_path / "third"):
        assert tree.exists("/brokers/ids/1")


def test_killed_broker_gets_its_id_back(tree: Tree, tmp_path: Path) -> None:
    """The session of a process that was lost with its machine lasts until its timeout; the next process waits for that.

    Before, it handles no request: a controller could mean the former process by it.
    """
    options = ("--zookeeper-connect", tree.connect, "--zookeeper-session-timeout-ms", "2000")
    broker = BrokerProcess(tmp_path / "data", 0, *options).start()
    with connected(broker.bootstrap) as client:
        client.create_topic("visits")
        assert client.produce("visits", 0, batch_of(b"ann")).error_code == 0
    lose_machine(broker)
    former = tree.text("/brokers/ids/1")
    with ExitStack() as running, ThreadPoolExecutor(1) as thread:
        starting = thread.submit(running.enter_context, broker)
        tree.await_that(lambda: is_listening(broker.bootstrap))
        with connected(broker.bootstrap) as client:
            client.ask(apis.API_VERSIONS, 0)
            assert tree.text("/brokers/ids/1") != former
            starting.result()
            assert client.produce("visits", 0, batch_of(b"ben")).base_offset == 1
            assert tree.text("/controller_epoch") == "2"


@pytest.mark.remedy(Remedy.START_ZOOKEEPER)
def test_start_without_zookeeper_is_refused(new_broker: NewBroker, tree: Tree, link: Link) -> None:
    link.cut()
    settings = {"zookeeper_connect": through(link, tree), "zookeeper_connection_timeout_ms": 200}
    with pytest.raises(
        ZooKeeperUnavailable, match=f"zookeeper.connect {link.address}/.*: no session within 0.2 s"
    ) as why:
        new_broker(**settings).start()
    remedies.find(Remedy.START_ZOOKEEPER, str(why.value))
    link.open()
    with new_broker(**settings | {"zookeeper_connection_timeout_ms": 10_000}) as broker:
        broker.create_topic("visits")


def test_attempts_to_connect_are_logged_once(tree: Tree, link: Link, caplog: pytest.LogCaptureFixture) -> None:
    """kazoo tries again after 0.1 s and longer; its lines about one attempt would fill the log."""
    caplog.set_level("INFO")

    def refused() -> int:
        return sum("Connection refused" in record.getMessage() for record in caplog.records)

    session = ZooKeeper(through(link, tree), session_timeout_ms=10_000, connection_timeout_ms=10_000)
    attempts: list[int] = []

    def lose() -> None:
        link.cut()
        tree.await_that(lambda: refused() > len(attempts))
        time.sleep(1.0)  # for further attempts
        attempts.append(refused())
        link.open()
        tree.await_that(lambda: session.is_connected)

    with ThreadPoolExecutor(1) as thread:
        link.cut()
        opening = thread.submit(session.open)
        lose()
        opening.result()
    lose()
    session.close()
    assert attempts == [1, 2], "once for each lost connection"


def test_records_are_served_while_zookeeper_is_away(new_broker: NewBroker, tree: Tree, link: Link) -> None:
    with new_broker(zookeeper_connect=through(link, tree)) as broker, connected(broker.bootstrap_servers) as admin:
        broker.create_topic("visits")
        session = tree.client.get(f"{tree.chroot}/controller")[1].ephemeralOwner
        assert broker._run is not None and broker._run._server is not None
        metadata = broker._run._server.node.metadata
        assert not metadata.is_disconnected
        link.cut()
        tree.await_that(lambda: metadata.is_disconnected)
        send_creation(admin, "clicks")
        with connected(broker.bootstrap_servers) as client:
            assert client.produce("visits", 0, batch_of(b"ann")).error_code == 0
            response = client.ask(apis.METADATA, 4, topics=[{"name": "visits"}], allow_auto_topic_creation=False)
            assert response.topics[0].partitions[0].leader_id == 1
        assert not tree.exists("/brokers/topics/clicks")
        link.open()
        assert [topic.error_code for topic in admin.receive(apis.CREATE_TOPICS, 4).topics] == [0]
        assert tree.exists("/brokers/topics/clicks")
        # The session has survived.
        assert tree.client.get(f"{tree.chroot}/controller")[1].ephemeralOwner == session


def test_expired_session_is_replaced(new_broker: NewBroker, tree: Tree, link: Link) -> None:
    settings = {"zookeeper_connect": through(link, tree), "zookeeper_session_timeout_ms": 500}
    with new_broker(**settings) as broker, connected(broker.bootstrap_servers) as admin:
        link.cut()
        tree.await_that(lambda: not tree.exists("/brokers/ids/1"))
        send_creation(admin, "visits")
        link.open()
        assert [topic.error_code for topic in admin.receive(apis.CREATE_TOPICS, 4).topics] == [0]
        assert tree.json("/brokers/topics/visits/partitions/0/state")["leader"] == 1
        assert tree.exists("/brokers/ids/1")
        assert tree.text("/controller_epoch") == "2"
        # Without a change to write too.
        link.cut()
        tree.await_that(lambda: not tree.exists("/controller"))
        link.open()
        tree.await_that(lambda: tree.exists("/controller"))
        assert tree.text("/controller_epoch") == "3"


def test_superseded_controller_is_elected_again(new_broker: NewBroker, tree: Tree, link: Link) -> None:
    """Another controller was elected and left meanwhile: its topics are read before another term begins."""
    settings = {"zookeeper_connect": through(link, tree), "zookeeper_session_timeout_ms": 500}
    with new_broker(**settings) as broker, connected(broker.bootstrap_servers) as client:
        broker.create_topic("visits")
        assert client.produce("visits", 0, batch_of(b"ann")).error_code == 0
        link.cut()
        tree.await_that(lambda: not tree.exists("/controller"))
        tree.write("/controller_epoch", "2")
        send_creation(client, "clicks")
        link.open()
        response = client.receive(apis.CREATE_TOPICS, 4)
        assert [topic.error_code for topic in response.topics] == [ErrorCode.not_controller]
        while (error_code := create(client, "clicks")) == ErrorCode.not_controller:
            continue
        assert error_code == ErrorCode.none
        assert tree.json("/controller")["brokerid"] == 1
        assert client.produce("visits", 0, batch_of(b"ben")).error_code == ErrorCode.none


def test_deleted_controller_is_elected_again(new_broker: NewBroker, tree: Tree) -> None:
    """Operators delete the node to move the controller; topics are changed before and after."""
    with new_broker() as broker, connected(broker.bootstrap_servers) as client:
        for epoch, topic in ((2, "visits"), (3, "clicks")):
            tree.delete("/controller")
            tree.await_that(lambda: tree.exists("/controller"))
            assert tree.text("/controller_epoch") == str(epoch)
            while (error_code := create(client, topic)) == ErrorCode.not_controller:
                continue
            assert error_code == ErrorCode.none


def test_replaced_controller_serves_on(new_broker: NewBroker, tree: Tree) -> None:
    """The former controller has nothing to write when another broker is elected."""
    with new_broker() as first, new_broker(broker_id=2) as second:
        clients = [RawClient(broker.bootstrap_servers) for broker in (first, second)]
        tree.await_that(lambda: len(metadata(clients[0]).brokers) == 2)
        while tree.json("/controller")["brokerid"] == 1:
            tree.delete("/controller")
            tree.await_that(lambda: tree.exists("/controller"))
        tree.await_that(lambda: all(metadata(client).controller_id == 2 for client in clients))
        assert create(clients[1], "visits") == ErrorCode.none
        tree.await_that(lambda: tree.exists("/brokers/topics/visits/partitions/0/state"))
        leader = tree.json("/brokers/topics/visits/partitions/0/state")["leader"]
        tree.await_that(lambda: clients[leader - 1].produce("visits", 0, batch_of(b"ann")).error_code == 0)
        with_id = clients[0].ask(
            apis.INIT_PRODUCER_ID, 1, transactional_id=None, transaction_timeout=milliseconds(60_000)
        )
        assert with_id.error_code == 0
        for client in clients:
            client.close()


def test_winner_of_an_election_is_watched(new_broker: NewBroker, tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another controller that comes between the look and the election is followed by this broker."""
    rivals = iter(['{"version":2,"brokerid":9,"timestamp":"1","kraftControllerEpoch":-1}'])
    elect = Registry.elect

    def overtaken(registry: Registry) -> bool:
        for rival in rivals:
            tree.write("/controller", rival, ephemeral=True)
        return elect(registry)

    def is_controller(broker_id: int) -> bool:
        return tree.exists("/controller") and tree.json("/controller")["brokerid"] == broker_id

    with new_broker():
        monkeypatch.setattr(Registry, "elect", overtaken)
        tree.delete("/controller")
        tree.await_that(lambda: is_controller(9))
        tree.delete("/controller")
        tree.await_that(lambda: is_controller(1))


def test_topic_of_another_program_is_not_overwritten(new_broker: NewBroker, tree: Tree, tmp_path: Path) -> None:
    """The broker has noticed it before the request, or its write is refused."""
    with new_broker(tmp_path / "data") as broker, connected(broker.bootstrap_servers) as client:
        broker.create_topic("visits")
        theirs = tree.text("/brokers/topics/visits")
        tree.write("/brokers/topics/clicks", theirs)
        send_creation(client, "clicks")
        refused = client.receive(apis.CREATE_TOPICS, 4).topics[0].error_code
        assert refused in (ErrorCode.not_controller, ErrorCode.topic_already_exists)
        assert tree.text("/brokers/topics/clicks") == theirs


def test_cluster_id_is_that_of_zookeeper(new_broker: NewBroker, tree: Tree, tmp_path: Path) -> None:
    with new_broker(tmp_path / "data", cluster_id="visits-cluster") as broker:
        with connected(broker.bootstrap_servers) as client:
            assert (
                client.ask(apis.METADATA, 4, topics=[], allow_auto_topic_creation=False).cluster_id == "visits-cluster"
            )
        assert tree.text("/cluster/id") == '{"version":"1","id":"visits-cluster"}'
    with pytest.raises(RegistrationRefused, match=r"cluster\.id other: the cluster in ZooKeeper is visits-cluster"):
        new_broker(tmp_path / "data", cluster_id="other").start()
    with Broker(tmp_path / "elsewhere"):
        pass
    with pytest.raises(DataDirectoryRefused, match="belongs to cluster"):
        new_broker(tmp_path / "elsewhere").start()


class Forgetful(ZooKeeper):
    """Loses the connection after each write, before the response."""

    losses = 0

    def ensure(self, path: str) -> None:
        super().ensure(path)
        self._lose()

    def commit(self, operations: "list[Operation]") -> None:  # type: ignore[override]
        super().commit(operations)
        self._lose()

    def _lose(self) -> None:
        if self.losses:
            self.losses -= 1
            raise OutcomeUnknown("the connection is lost")


def opened(tree: Tree, kind: type[ZooKeeper] = ZooKeeper) -> Registry:
    zookeeper = kind(tree.connect, session_timeout_ms=10_000, connection_timeout_ms=10_000)
    return Registry.open(zookeeper, 1, SystemClock())


def test_connection_may_be_lost_at_start(tree: Tree) -> None:
    """None of the first requests ends the start."""

    class LostAtFirst(Forgetful):
        losses = 3

    registry = opened(tree, LostAtFirst)
    try:
        assert tree.exists("/brokers/ids")
    finally:
        registry.close()


def test_write_with_unknown_outcome_is_repeated(tree: Tree) -> None:
    registry = opened(tree, Forgetful)
    try:
        assert isinstance(registry.zookeeper, Forgetful)
        registry.zookeeper.losses = 2
        registry.join([Endpoint(port=9)], PROTOCOL_OF_NAME)
        assert tree.text("/controller_epoch") == "1"
        registry.zookeeper.losses = 1
        registry.write([Create("/brokers/topics/visits")])
        assert tree.exists("/brokers/topics/visits")
        with pytest.raises(Superseded, match="ZooKeeper was changed by another program: /brokers/topics/visits"):
            registry.write([Create("/brokers/topics/visits")])
    finally:
        registry.close()


def test_fenced_controller_cannot_write(tree: Tree) -> None:
    registry = opened(tree)
    try:
        registry.join([Endpoint(port=9)], PROTOCOL_OF_NAME)
        tree.write("/controller_epoch", "2")
        with pytest.raises(Superseded, match="not the controller of epoch 1 any more"):
            registry.write([Create("/brokers/topics/visits")])
        assert not tree.exists("/brokers/topics/visits")
    finally:
        registry.close()
