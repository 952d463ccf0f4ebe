"""A cluster of two of Onceflow's brokers and one Apache Kafka 3.9, and acts of its controller on all three."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from onceflow import services
from onceflow.wire import apis
from onceflow.wire.errors import ErrorCode
from tests.broker.cluster.configured_broker import ConfiguredBroker
from tests.broker.cluster.conftest import Tree
from tests.broker.raw_client import connected, milliseconds
from tests.compat.conftest import kafka_jars
from tests.compat.test_replicas_of_kafka import KafkaReplica
from tests.compat.test_zookeeper_nodes import VERSION

PLAINTEXT = "PLAINTEXT"
"""Listener of the clients."""
BROKERS = (1, 2, 3)
KAFKA = 2
ASSIGNMENTS = [[1, 2, 3], [2, 3, 1], [3, 1, 2]]
RECORDS = 200

Settings = Mapping[str, str]


class Mixed:
    """The brokers, their directories, and the nodes in ZooKeeper."""

    def __init__(self, tree: Tree, directories: Mapping[int, Path], addresses: Mapping[int, Mapping[str, str]]) -> None:
        """`addresses` are HOST:PORT by the broker's id and the listener's name."""
        self.tree = tree
        self.directories = directories
        self.addresses = addresses
        self.bootstraps = {broker_id: of_broker[PLAINTEXT] for broker_id, of_broker in addresses.items()}

    @property
    def admin(self) -> AdminClient:
        """A client that asks for the controller of now."""
        return AdminClient({"bootstrap.servers": self.bootstrap})

    @property
    def bootstrap(self) -> str:
        return ",".join(self.bootstraps.values())

    def state(self, topic: str, index: int) -> Any:
        return self.tree.json(f"/brokers/topics/{topic}/partitions/{index}/state")

    def replicas(self, topic: str) -> dict[str, list[int]]:
        replicas: dict[str, list[int]] = self.tree.json(f"/brokers/topics/{topic}")["partitions"]
        return replicas

    def controller(self) -> int:
        exists = self.tree.exists("/controller")
        return int(self.tree.json("/controller")["brokerid"]) if exists else -1

    def elect_controller(self, broker_id: int) -> None:
        """Delete the node of the controller until the wanted broker creates it."""
        self.await_controller()
        while self.controller() != broker_id:
            epoch = self.tree.text("/controller_epoch")
            self.tree.delete("/controller")
            self.tree.await_that(lambda: self.tree.text("/controller_epoch") != epoch)  # noqa: B023
            self.await_controller()

    def await_controller(self) -> None:
        """Wait until all brokers know who the controller is."""
        self.tree.await_that(lambda: {self.named_controller(by) for by in BROKERS} == {self.controller()})

    def named_controller(self, by: int) -> int:
        with connected(self.bootstraps[by]) as client:
            response = client.ask(apis.METADATA, 4, topics=[], allow_auto_topic_creation=False)
            controller_id: int = response.controller_id
            return controller_id

    def leaders(self, topic: str, by: int) -> list[int]:
        """Return the leader of each partition, as a broker shows them."""
        with connected(self.bootstraps[by]) as client:
            response = client.ask(apis.METADATA, 4, topics=[{"name": topic}], allow_auto_topic_creation=False)
            partitions = response.topics[0].partitions
        return [partition.leader_id for partition in sorted(partitions, key=lambda one: one.partition_index)]

    def ask_controller(self, api_key: int, version: int, **fields: Any) -> Any:
        with connected(self.bootstraps[self.controller()]) as client:
            return client.ask(api_key, version, timeout=milliseconds(30_000), **fields)

    def are_in_sync(self, topic: str, replicas: Sequence[Sequence[int]]) -> bool:
        states = [self.state(topic, index) for index in range(len(replicas))]
        return all(
            (state["leader"], sorted(state["isr"])) == (brokers[0], sorted(brokers))
            for state, brokers in zip(states, replicas, strict=True)
        )

    def logs(self, topic: str, index: int, brokers: Sequence[int]) -> list[bytes]:
        """Return the log of each replica."""
        paths = [self.directories[broker_id] / f"{topic}-{index}" for broker_id in brokers]
        return [b"".join(path.read_bytes() for path in sorted(directory.glob("*.log"))) for directory in paths]

    def await_equal_logs(self, topic: str, replicas: Sequence[Sequence[int]]) -> None:
        def are_equal() -> bool:
            logs = [self.logs(topic, index, brokers) for index, brokers in enumerate(replicas)]
            return all(of_one[0] and len(set(of_one)) == 1 for of_one in logs)

        self.tree.await_that(are_equal)

    def has_files(self, broker_id: int, place: str) -> bool:
        return (self.directories[broker_id] / place).exists()

    def send(self, topic: str, partitions: int) -> None:
        failures: list[Any] = []
        producer = Producer({"bootstrap.servers": self.bootstrap, "acks": "all", "enable.idempotence": True})
        for number in range(RECORDS):
            producer.produce(
                topic,
                b"%05d" % number,
                partition=number % partitions,
                on_delivery=lambda error, _message: failures.append(error) if error is not None else None,
            )
        assert producer.flush(60) == 0
        assert not failures

    def configured(self, topic: str, name: str) -> set[str]:
        """Return the values of a configuration on the brokers."""
        values = set()
        for bootstrap in self.bootstraps.values():
            resource = ConfigResource(ResourceType.TOPIC, topic)
            admin = AdminClient({"bootstrap.servers": bootstrap})
            (described,) = admin.describe_configs([resource]).values()
            values.add(described.result(30)[name].value)
        return values


@contextmanager
def mixed_cluster(
    tree: Tree, directory: Path, settings: Settings, listeners: Sequence[str] = (PLAINTEXT,)
) -> Iterator[Mixed]:
    """Run the brokers, all with these settings and listeners."""
    directories = {broker_id: directory / str(broker_id) for broker_id in BROKERS}
    addresses: dict[int, Mapping[str, str]] = {}
    with ExitStack() as stack:
        for broker_id in BROKERS:
            if broker_id == KAFKA:
                ports = {name: services.free_port() for name in listeners if name != PLAINTEXT}
                kafka = KafkaReplica(
                    directories[KAFKA], kafka_jars(VERSION), tree.connect, settings=settings, listeners=ports
                )
                stack.enter_context(kafka)
                addresses[KAFKA] = {name: f"127.0.0.1:{port}" for name, port in kafka.listeners.items()}
                continue
            own = {
                "zookeeper.connect": tree.connect,
                "broker.id": str(broker_id),
                "listeners": ",".join(f"{name}://127.0.0.1:0" for name in listeners),
                "controlled.shutdown.max.retries": "0",
            }
            broker = stack.enter_context(ConfiguredBroker(directories[broker_id], {**own, **settings}))
            addresses[broker_id] = broker.addresses
        tree.await_that(lambda: tree.children("/brokers/ids") == ["1", "2", "3"])
        yield Mixed(tree, {**directories, KAFKA: directories[KAFKA] / "data"}, addresses)


def results(admin: AdminClient, ask: Callable[[AdminClient], Mapping[Any, Any]]) -> list[Any]:
    return [future.result(60) for future in ask(admin).values()]


def create(mixed: Mixed, topic: str) -> None:
    results(
        mixed.admin,
        lambda admin: admin.create_topics([NewTopic(topic, len(ASSIGNMENTS), replica_assignment=ASSIGNMENTS)]),
    )
    await_that = mixed.tree.await_that
    await_that(lambda: mixed.tree.exists(f"/brokers/topics/{topic}/partitions/{len(ASSIGNMENTS) - 1}/state"))
    await_that(lambda: mixed.are_in_sync(topic, ASSIGNMENTS))
    mixed.send(topic, len(ASSIGNMENTS))
    mixed.await_equal_logs(topic, ASSIGNMENTS)


def enlarge(mixed: Mixed, topic: str) -> None:
    more = [[2, 1, 3], [1, 3, 2]]
    results(
        mixed.admin, lambda admin: admin.create_partitions([NewPartitions(topic, len(ASSIGNMENTS) + len(more), more)])
    )
    replicas = ASSIGNMENTS + more
    mixed.tree.await_that(lambda: mixed.tree.exists(f"/brokers/topics/{topic}/partitions/{len(replicas) - 1}/state"))
    mixed.tree.await_that(lambda: all(mixed.leaders(topic, by) == [of[0] for of in replicas] for by in BROKERS))
    mixed.send(topic, len(replicas))
    mixed.await_equal_logs(topic, replicas)


def configure(mixed: Mixed, topic: str) -> None:
    entry = ConfigEntry("retention.ms", "123456789", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    results(mixed.admin, lambda admin: admin.incremental_alter_configs([resource]))
    mixed.tree.await_that(lambda: mixed.configured(topic, "retention.ms") == {"123456789"})


def reassign(mixed: Mixed, topic: str) -> None:
    """Move a partition from each broker to the two others, and back with another leader."""
    for replicas in ([[2, 3], [3, 1], [1, 2]], [[2, 1, 3], [3, 2, 1], [1, 3, 2]]):
        partitions = [{"partition_index": index, "replicas": brokers} for index, brokers in enumerate(replicas)]
        response = mixed.ask_controller(
            apis.ALTER_PARTITION_REASSIGNMENTS, 0, topics=[{"name": topic, "partitions": partitions}]
        )
        assert [partition.error_code for partition in response.responses[0].partitions] == [0, 0, 0]
        await_reassigned(mixed, topic, replicas)


def await_reassigned(mixed: Mixed, topic: str, replicas: Sequence[Sequence[int]]) -> None:
    def is_done() -> bool:
        node = mixed.tree.json(f"/brokers/topics/{topic}")
        return (
            not node["adding_replicas"]
            and not node["removing_replicas"]
            and all(node["partitions"][str(index)] == brokers for index, brokers in enumerate(replicas))
        )

    mixed.tree.await_that(is_done)
    for index, brokers in enumerate(replicas):
        for broker_id in set(BROKERS) - set(brokers):
            mixed.tree.await_that(lambda at=broker_id, index=index: not mixed.has_files(at, f"{topic}-{index}"))  # type: ignore[misc]
    mixed.send(topic, len(replicas))
    mixed.await_equal_logs(topic, replicas)


def elect(mixed: Mixed, topic: str) -> None:
    """Give each partition to its preferred leader."""
    replicas = mixed.replicas(topic)
    asked = [{"topic": topic, "partitions": sorted(map(int, replicas))}]
    response = mixed.ask_controller(apis.ELECT_LEADERS, 2, election_type=0, topic_partitions=asked)
    errors = {partition.error_code for partition in response.replica_election_results[0].partition_result}
    assert errors <= {ErrorCode.none, ErrorCode.election_not_needed}
    mixed.tree.await_that(lambda: all(mixed.state(topic, int(at))["leader"] == of[0] for at, of in replicas.items()))
    mixed.send(topic, len(replicas))


def delete(mixed: Mixed, topic: str) -> None:
    """Delete the first records of one partition, then the topic on all brokers."""
    results(mixed.admin, lambda admin: admin.delete_records([TopicPartition(topic, 0, 5)]))
    results(mixed.admin, lambda admin: admin.delete_topics([topic]))
    mixed.tree.await_that(lambda: not mixed.tree.exists(f"/brokers/topics/{topic}"))
    for broker_id in BROKERS:
        mixed.tree.await_that(lambda at=broker_id: not mixed.has_files(at, f"{topic}-0"))  # type: ignore[misc]


def create_by_name(mixed: Mixed, topic: str) -> None:
    """Let each broker create a topic that a client asks for."""

    def is_led(bootstrap: str, name: str) -> bool:
        with connected(bootstrap) as client:
            asked = {"topics": [{"name": name}], "allow_auto_topic_creation": True}
            (described,) = client.ask(apis.METADATA, 4, **asked).topics
            return bool(described.partitions) and described.partitions[0].leader_id in BROKERS

    for broker_id, bootstrap in mixed.bootstraps.items():
        name = f"{topic}-at-{broker_id}"
        mixed.tree.await_that(lambda at=bootstrap, name=name: is_led(at, name))  # type: ignore[misc]
        mixed.send(name, 1)


ACTS: Sequence[Callable[[Mixed, str], None]] = (create, enlarge, configure, reassign, elect, delete, create_by_name)


def let_control(mixed: Mixed, controller: int) -> None:
    """Do everything with one of the brokers as the controller."""
    mixed.elect_controller(controller)
    for act in ACTS:
        act(mixed, f"by-{controller}")
