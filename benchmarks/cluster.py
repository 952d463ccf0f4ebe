"""Three brokers beside three Apache Kafka 3.9 on ZooKeeper: replicated produce, failover, start, catch-up and memory.

Both clusters run on one ZooKeeper, with the same session timeout and otherwise their own defaults. A topic has three
replicas, of which two must be in sync.
"""

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks import java_tools, kafka, librdkafka
from benchmarks.comparison import Durability, Goal, in_turns, judged, ratios, spread
from benchmarks.figures import Line, Table, row
from benchmarks.memory import family, proportional_mb
from benchmarks.peers import OURS, Peer, touch_memory
from tests.broker.cluster.conftest import Tree
from tests.broker.cluster.zookeeper_process import ZooKeeperProcess
from tests.broker.cluster.zookeeper_process import jars as zookeeper_jars
from tests.compat.replication import KAFKA, ONCEFLOW, ReplicatedCluster, replicated_cluster, until

VERSION = "3.9.1"
RUNS = 3
SESSION_MS = "6000"
REPLICAS = 3
MANY_PARTITIONS = 2_000
CATCH_UP_RECORDS = 200_000
RECORD_BYTES = 1000
CLIENTS: Mapping[str, Callable[[Peer, str, int, int], tuple[float]]] = {
    "librdkafka": librdkafka.produce,
    "Java": java_tools.produce,
}
"""Functions that return the records per second of a peer, a topic, bytes and a count."""


@dataclass(frozen=True)
class Trio:
    """Three running brokers, and topic configs under which acks=all waits for fsync."""

    name: str
    tree: Tree
    cluster: ReplicatedCluster
    synced: Mapping[str, str] = field(default_factory=dict)

    @property
    def peer(self) -> Peer:
        """Return the cluster as librdkafka's benchmarks see it."""
        return Peer(self.name, self.cluster.bootstrap, 0)

    def states(self, topic: str) -> list[dict[str, object]]:
        """Return the state of each partition that has one."""
        place = f"/brokers/topics/{topic}/partitions"
        indexes = self.tree.children(place) if self.tree.exists(place) else []
        return [
            self.tree.json(f"{place}/{index}/state") for index in indexes if self.tree.exists(f"{place}/{index}/state")
        ]

    def await_replicas(self, topic: str, partitions: int = 1) -> None:
        """Wait until all replicas of a topic are in sync."""

        def are_in_sync() -> bool:
            states = self.states(topic)
            return len(states) == partitions and all(len(list_of(state["isr"])) == REPLICAS for state in states)

        until(are_in_sync, lambda: f"{topic} of {self.name}: {self.states(topic)[:3]}")

    def controller(self) -> int:
        """Return the id of the controller."""
        return int(self.tree.json("/controller")["brokerid"])

    @contextmanager
    def topic(
        self, name: str, config: Mapping[str, str] | None = None, assignment: list[list[int]] | None = None
    ) -> Iterator[str]:
        """Create a topic, with one partition unless it has an assignment; delete it after a run without an error."""
        admin = AdminClient({"bootstrap.servers": self.cluster.bootstrap})
        partitions = len(assignment) if assignment else 1
        where = {"replica_assignment": assignment} if assignment else {"replication_factor": REPLICAS}
        topic = NewTopic(name, partitions, config={"min.insync.replicas": "2", **(config or {})}, **where)
        admin.create_topics([topic], request_timeout=120)[name].result(120)
        self.await_replicas(name, partitions)
        yield name
        # The controller may be another one now.
        admin = AdminClient({"bootstrap.servers": self.cluster.bootstrap})
        admin.delete_topics([name], request_timeout=120)[name].result(120)
        until(lambda: not self.tree.exists(f"/brokers/topics/{name}"), lambda: f"{name} is not deleted")

    def end(self, broker_id: int, *, hard: bool) -> None:
        self.cluster.end([broker_id], hard=hard)


def list_of(value: object) -> list[object]:
    """Return a list of JSON as one."""
    assert isinstance(value, list)
    return value


# One value for each run


def produced(trio: Trio, number: int, *, client: str, size_bytes: int, count: int, durability: Durability) -> float:
    """Records per second with acks=all."""
    config = trio.synced if durability is Durability.SYNCED else {}
    with trio.topic(f"{client}-{size_bytes}-{durability.name.lower()}-{number + 1}".lower(), config) as topic:
        return CLIENTS[client](trio.peer, topic, size_bytes, count)[0]


def failed_over(trio: Trio, number: int) -> float:
    """Seconds from kill -9 of a leader to the acknowledgement of a record that is sent then."""
    settings = {"acks": "all", "linger.ms": 0, "retry.backoff.ms": 20, "reconnect.backoff.max.ms": 100}
    settings |= {"topic.metadata.refresh.fast.interval.ms": 50}
    producer = Producer({**trio.peer.settings, **settings})
    with trio.topic(f"failover-{number + 1}") as topic:
        producer.produce(topic, b"before", partition=0)
        assert producer.flush(60) == 0
        leader = int(str(trio.states(topic)[0]["leader"]))
        begin = time.perf_counter()
        trio.cluster.brokers[leader].kill()
        producer.produce(topic, b"after", partition=0)
        assert producer.flush(60) == 0
        seconds = time.perf_counter() - begin
        until(lambda: not trio.tree.exists(f"/brokers/ids/{leader}"), lambda: f"{leader} is registered")
        trio.cluster.start([leader])
        trio.await_replicas(topic)
    return seconds


def failed_over_many(trio: Trio, number: int) -> float:
    """Seconds from kill -9 of a broker that leads all partitions until another one describes their new leaders."""
    controller = trio.controller()
    victim, other = [broker_id for broker_id in trio.cluster.brokers if broker_id != controller]
    survivor = trio.cluster.brokers[controller].bootstrap
    with trio.topic(f"many-{number + 1}", assignment=[[victim, controller, other]] * MANY_PARTITIONS) as topic:
        admin = AdminClient({"bootstrap.servers": survivor})

        def are_led() -> bool:
            partitions = admin.list_topics(topic, timeout=60).topics[topic].partitions.values()
            return all(partition.leader not in (-1, victim) for partition in partitions)

        begin = time.perf_counter()
        trio.cluster.brokers[victim].kill()
        until(are_led, lambda: f"{trio.name}: partitions without a leader")
        seconds = time.perf_counter() - begin
        until(lambda: not trio.tree.exists(f"/brokers/ids/{victim}"), lambda: f"{victim} is registered")
        trio.cluster.start([victim])
        trio.await_replicas(topic, MANY_PARTITIONS)
    return seconds


def started(trio: Trio, number: int) -> float:
    """Seconds from the start of three stopped brokers until all replicas are in sync."""
    everyone = list(trio.cluster.brokers)
    with trio.topic(f"start-{number + 1}") as topic:
        librdkafka.produce(trio.peer, topic, RECORD_BYTES, 1_000)
        for broker_id in everyone:
            trio.end(broker_id, hard=False)
        begin = time.perf_counter()
        trio.cluster.start(everyone)
        trio.await_replicas(topic)
        return time.perf_counter() - begin


def caught_up(trio: Trio, number: int) -> float:
    """MB/s of a follower that was away, from the time when it listens until it is in sync."""
    with trio.topic(f"catch-up-{number + 1}") as topic:
        leader = int(str(trio.states(topic)[0]["leader"]))
        follower = next(broker_id for broker_id in trio.cluster.brokers if broker_id not in (leader, trio.controller()))
        trio.end(follower, hard=False)
        librdkafka.produce(trio.peer, topic, RECORD_BYTES, CATCH_UP_RECORDS)
        trio.cluster.start([follower])
        begin = time.perf_counter()
        trio.await_replicas(topic)
        return CATCH_UP_RECORDS * RECORD_BYTES / 1e6 / (time.perf_counter() - begin)


def memory(trio: Trio, _number: int) -> float:
    """Memory of the three brokers in MB, with the closers of their sessions; common pages count once."""
    return sum(proportional_mb(pid) for broker in trio.cluster.brokers.values() for pid in family(broker.pid))


@dataclass(frozen=True)
class Work:
    """One row."""

    what: str
    measure: Callable[[Trio, int], float]
    unit: str
    goal: Goal | None
    durability: str = ""
    runs: int = RUNS
    uncounted: int = 0

    @property
    def name(self) -> str:
        """Return the name, unique among the rows."""
        return f"{self.what}, {self.durability}" if self.durability else self.what


def produce_work(client: str, label: str, size_bytes: int, count: int, durability: Durability) -> Work:
    """Return a row of producing."""
    goal = Goal(0.8, 1.5) if durability is Durability.SYNCED else Goal(0.5, 1.0)
    measure = partial(produced, client=client, size_bytes=size_bytes, count=count, durability=durability)
    what = f"produce, acks=all, {client}, {label}"
    return Work(what, measure, "records/s", goal, durability.value, uncounted=1)


SYNCED, OWN_DEFAULT = Durability.SYNCED, Durability.OWN_DEFAULT
ROWS = (
    produce_work("librdkafka", "1 kB", 1000, 30_000, SYNCED),
    produce_work("librdkafka", "100 B", 100, 100_000, SYNCED),
    produce_work("Java", "1 kB", 1000, 30_000, SYNCED),
    produce_work("Java", "100 B", 100, 100_000, SYNCED),
    produce_work("librdkafka", "1 kB", 1000, 50_000, OWN_DEFAULT),
    produce_work("librdkafka", "100 B", 100, 200_000, OWN_DEFAULT),
    produce_work("Java", "1 kB", 1000, 50_000, OWN_DEFAULT),
    produce_work("Java", "100 B", 100, 200_000, OWN_DEFAULT),
    Work("memory of three brokers", memory, "MB", Goal(0.14, 0.14, is_cost=True), runs=1),
    Work("catch-up of a follower", caught_up, "MB/s", None),
    Work(
        f"kill -9 of a leader to the first acknowledged record, sessions of {int(SESSION_MS) // 1000} s",
        failed_over,
        "s",
        Goal(1.0, 0.5, is_cost=True),
    ),
    Work("start of three brokers until all replicas are in sync", started, "s", Goal(0.25, 0.25, is_cost=True)),
    Work(
        f"failover of {MANY_PARTITIONS:,} partitions, sessions of {int(SESSION_MS) // 1000} s",
        failed_over_many,
        "s",
        Goal(1.0, 1.0, is_cost=True),
        runs=1,
    ),
)


@contextmanager
def trios(directory: Path) -> Iterator[list[Trio]]:
    """Run three of ours, and three Apache Kafkas if their jars are found."""
    classpath, registry = kafka.jars(VERSION), zookeeper_jars()
    if registry is None:
        raise SystemExit("no jars of ZooKeeper: install Maven, and let it reach Maven Central")
    more = {"zookeeper.session.timeout.ms": SESSION_MS}
    with ExitStack() as stack:
        (directory / "zookeeper").mkdir()
        zookeeper = stack.enter_context(ZooKeeperProcess(directory / "zookeeper", registry))
        running = []
        for name, kind, synced in ((OURS, ONCEFLOW, {}), ("Apache Kafka", KAFKA, {"flush.messages": "1"})):
            if kind == KAFKA and classpath is None:
                print("no Maven here, or it found no Kafka: ours alone")
                continue
            place = directory / kind.replace(" ", "-").lower()
            place.mkdir()
            tree = Tree(zookeeper.address, f"/{place.name}")
            stack.callback(tree.close)
            started = replicated_cluster(tree, place, classpath, (kind,) * REPLICAS, more)
            running.append(Trio(name, tree, stack.enter_context(started), synced))
        yield running


def line(work: Work, results: Mapping[str, Sequence[float]]) -> Line:
    """Return a row of the table."""
    ours, *others = results.values()
    beside = ["", "", "", ""]
    if others:
        (theirs,) = others
        beside = [f"{spread(theirs)} {work.unit}", *judged(ratios(ours, theirs), work.goal)]
    shown = row(work.what, work.durability, f"{spread(ours)} {work.unit}", *beside)
    return Line(work.name, shown.text)


def measured(names: Sequence[str]) -> Iterator[Line]:
    """Yield the rows of these names."""
    with tempfile.TemporaryDirectory() as directory, trios(Path(directory)) as both:
        touch_memory()
        for work in ROWS:
            if work.name in names:
                contenders = {trio.name: partial(work.measure, trio) for trio in both}
                yield line(work, in_turns(contenders, work.runs, uncounted=work.uncounted))


TABLE = Table(
    "Three brokers beside three Apache Kafka 3.9 on ZooKeeper",
    (
        "what",
        "before the response",
        "onceflow",
        "Apache Kafka",
        "ours / its",
        "at least (times: at most), aim",
        "reached",
    ),
    [work.name for work in ROWS],
    measured,
    says="Each topic has three replicas and `min.insync.replicas=2`; Kafka's heaps are limited to 512 MB each.",
)
