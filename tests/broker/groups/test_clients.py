"""Groups of clients that others wrote: who gets what while members come, go, restart and are fenced."""

import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from onceflow.testing import BrokerProcess
from tests.broker.groups.raw_group import RawGroup
from tests.broker.groups.workers import HEARTBEAT_MS, SESSION_MS, Worker

pytestmark = pytest.mark.filterwarnings("ignore:.* is deprecated. Use files:DeprecationWarning")
"""kafka-python's imports."""

WAIT_SECONDS = 15
PARTITIONS = 6


def create(bootstrap: str, topic: str, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(WAIT_SECONDS)


def wait_until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.01)


class Handed:
    """Counts how often each value was handed out to a member of one group."""

    def __init__(self) -> None:
        self.times: Counter[bytes] = Counter()
        self._lock = threading.Lock()

    def take(self, value: bytes, _key: bytes | None) -> None:
        with self._lock:
            self.times[value] += 1

    def wait_for(self, count: int) -> None:
        wait_until(lambda: len(self.times) >= count, f"{count} records, {len(self.times)} came")


class Flow:
    """Records 0, 1, … are produced in turn to all partitions, about one in two milliseconds, until the block ends."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.count = 0
        self._topic = topic
        self._errors: list[Any] = []
        self._stopping = threading.Event()
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
        self._thread = threading.Thread(target=self._produce)

    def _produce(self) -> None:
        while not self._stopping.wait(0.002):
            value, partition = b"%d" % self.count, self.count % PARTITIONS
            self._producer.produce(self._topic, value, partition=partition, callback=self._acknowledged)
            self._producer.poll(0)
            self.count += 1
        self._producer.flush(WAIT_SECONDS)

    def _acknowledged(self, error: Any, _message: Any) -> None:
        self._errors.append(error)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_exception: object) -> None:
        self._stopping.set()
        self._thread.join()
        assert self._errors == [None] * self.count


CLIENTS = [
    ("librdkafka", "range"),
    ("librdkafka", "roundrobin"),
    ("librdkafka", "cooperative-sticky"),
    ("kafka-python", "range"),
    ("kafka-python", "roundrobin"),
    ("kafka-python", "sticky"),
    ("kafka-python", "cooperative-sticky"),
    ("aiokafka", "range"),
    ("aiokafka", "roundrobin"),
    ("aiokafka", "sticky"),
]


@pytest.mark.parametrize(("client", "assignor"), CLIENTS, ids=lambda name: name)
def test_each_record_reaches_one_member(bootstrap: str, topic: str, client: str, assignor: str) -> None:
    create(bootstrap, topic, PARTITIONS)
    handed, flow = Handed(), Flow(bootstrap, topic)
    workers: list[Worker] = []

    def begin() -> None:
        workers.append(Worker(client, bootstrap, topic, f"{topic} group", assignor, handed.take))

    try:
        with flow:
            begin()
            wait_until(lambda: workers[0].has_records, "the first record")
            begin()
            wait_until(lambda: workers[1].has_records, "the second member's first record")
            workers[0].stop()
            begin()
            wait_until(lambda: workers[2].has_records, "the third member's first record")
        handed.wait_for(flow.count)
    finally:
        for worker in workers:
            worker.stop()
    assert handed.times == Counter({b"%d" % number: 1 for number in range(flow.count)})


def test_each_record_reaches_every_group_once(bootstrap: str, topic: str) -> None:
    """The article's test: group1 has one consumer, group2 three, of three libraries; keys 1, 2 and 3."""
    create(bootstrap, topic, 3)
    groups = {"group1": Handed(), "group2": Handed()}
    members = [("group1", "librdkafka"), ("group2", "librdkafka"), ("group2", "kafka-python"), ("group2", "aiokafka")]
    workers = [
        Worker(client, bootstrap, topic, f"{topic} {group}", "roundrobin", groups[group].take)
        for group, client in members
    ]
    try:
        with RawGroup(bootstrap, f"{topic} group2") as group2:
            wait_until(
                lambda: len(group2.describe().members) == 3 and group2.describe().group_state == "Stable",
                "three members in group2",
            )
        producer = Producer({"bootstrap.servers": bootstrap})
        for key in (1, 2, 3):
            producer.produce(topic, b"message %d" % key, key=b"%d" % key, partition=key - 1)
        assert producer.flush(WAIT_SECONDS) == 0
        for handed in groups.values():
            handed.wait_for(3)
    finally:
        for worker in workers:
            worker.stop()
    alone, *shared = (worker.keys for worker in workers)
    assert sorted(key or b"" for key in alone) == [b"1", b"2", b"3"]
    assert sorted(map(len, shared)) == [1, 1, 1]


class Static:
    """A librdkafka consumer with an instance id that counts its rebalances."""

    def __init__(self, bootstrap: str, topic: str, instance: str | None, **config: Any) -> None:
        self.rebalances = 0
        self.fatal: KafkaError | None = None
        settings: dict[str, Any] = {
            "bootstrap.servers": bootstrap,
            "group.id": f"{topic} group",
            "auto.offset.reset": "earliest",
            "heartbeat.interval.ms": HEARTBEAT_MS,
            "session.timeout.ms": SESSION_MS,
            "enable.auto.commit": False,
            "reconnect.backoff.max.ms": 200,
            **config,
        }
        if instance is not None:
            settings["group.instance.id"] = instance
        self.consumer = Consumer(settings, logger=_Quiet())
        self.consumer.subscribe([topic], on_assign=self._rebalanced, on_revoke=self._rebalanced)

    def _rebalanced(self, _consumer: Consumer, _partitions: list[TopicPartition]) -> None:
        self.rebalances += 1

    def poll(self) -> bytes | None:
        message = self.consumer.poll(0.02)
        if message is None:
            return None
        if message.error() is not None:
            self.fatal = message.error()
            return None
        return message.value()

    @property
    def partitions(self) -> set[int]:
        return {item.partition for item in self.consumer.assignment()}


class _Quiet:
    """A logger: librdkafka logs lost connections and fencing."""

    def log(self, *_arguments: object) -> None:
        """Nothing."""


def poll_until(condition: Callable[[], object], what: str, *members: Static) -> None:
    def polled() -> object:
        for member in members:
            member.poll()
        return condition()

    wait_until(polled, what)


def test_a_static_member_restarts_without_a_rebalance(bootstrap: str, topic: str) -> None:
    create(bootstrap, topic, 2)
    first, second = Static(bootstrap, topic, "a"), Static(bootstrap, topic, "b")
    poll_until(lambda: len(first.partitions) == len(second.partitions) == 1, "one partition each", first, second)
    had, rebalances = second.partitions, first.rebalances
    second.consumer.close()
    second = Static(bootstrap, topic, "b")
    poll_until(lambda: second.partitions, "the second member's partition", first, second)
    assert (second.partitions, second.rebalances) == (had, 1), "what it had before"
    assert first.rebalances == rebalances, "the other has not noticed"
    first.consumer.close()
    second.consumer.close()


def test_successor_fences_static_member(bootstrap: str, topic: str) -> None:
    create(bootstrap, topic, 1)
    first = Static(bootstrap, topic, "a")
    poll_until(lambda: first.partitions, "an assignment", first)
    second = Static(bootstrap, topic, "a")
    poll_until(lambda: first.fatal is not None, "the first one's end", first, second)
    assert first.fatal is not None
    assert first.fatal.code() == KafkaError._FATAL or first.fatal.code() == KafkaError.FENCED_INSTANCE_ID
    poll_until(lambda: second.partitions == {0}, "the successor's assignment", second)
    first.consumer.close()
    second.consumer.close()


def test_members_and_offsets_survive_a_killed_broker(tmp_path: Path, topic: str) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        create(broker.bootstrap, topic, 1)
        producer = Producer({"bootstrap.servers": broker.bootstrap}, logger=_Quiet())
        # On a busy machine the broker's restart would outlast a short session.
        member = Static(broker.bootstrap, topic, None, **{"session.timeout.ms": 120_000})
        values: list[bytes] = []

        def exchange(count: int) -> None:
            for number in range(len(values), len(values) + count):
                producer.produce(topic, b"%d" % number)
            assert producer.flush(WAIT_SECONDS) == 0
            deadline = time.monotonic() + WAIT_SECONDS
            goal = len(values) + count
            while len(values) < goal and time.monotonic() < deadline:
                value = member.poll()
                values.extend([value] if value is not None else [])
            assert values == [b"%d" % number for number in range(goal)]

        exchange(50)
        member.consumer.commit(asynchronous=False)
        broker.kill()
        broker.start()
        (place,) = member.consumer.committed([TopicPartition(topic, 0)], timeout=WAIT_SECONDS)
        assert place.offset == 50
        exchange(50)
        assert member.rebalances == 1, "the group goes on as if nothing had happened"
        member.consumer.commit(asynchronous=False)
        member.consumer.close()
        successor = Static(broker.bootstrap, topic, None)
        producer.produce(topic, b"last")
        producer.flush(WAIT_SECONDS)
        values = []

        def find() -> bool:
            values.extend(filter(None, [successor.poll()]))
            return bool(values)

        wait_until(find, "the next record")
        assert values == [b"last"]
        successor.consumer.close()
