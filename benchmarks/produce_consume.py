"""How fast does librdkafka (confluent-kafka) produce to and consume from our broker, beside Apache Kafka?

Durability is named in each row: our broker syncs before it answers acks=all. Kafka does so with `flush.messages=1`,
which is the fair pair; Kafka's own default, which answers from the page cache, is printed too.

Memory of a virtual machine is dearer at its first touch than later, so it is touched before anything is measured;
the order of the brokers alternates; topics are deleted after each run; Kafka's JVM is warmed up.
"""

import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks import kafka
from onceflow.testing import BrokerProcess

RUNS = 5
SIZES = {100: 600_000, 1000: 150_000}
"""Value bytes → records of one run."""
KINDS = ("produce", "consume", "consume, no pause")
NO_PAUSE = MappingProxyType({"fetch.queue.backoff.ms": 1})
"""librdkafka asks for nothing for a second once its queue holds 100,000 records, however empty it is by then."""


@dataclass(frozen=True)
class Peer:
    """One column: a broker, and the topic settings that give it the durability named."""

    name: str
    bootstrap: str
    topic_config: Mapping[str, str]


@contextmanager
def peers(directory: Path) -> Iterator[list[Peer]]:
    with ExitStack() as exits:
        ours = exits.enter_context(BrokerProcess(directory / "onceflow"))
        found = [Peer("onceflow, fsync", ours.bootstrap, {})]
        classpath = kafka.jars()
        if classpath is None:
            print("no Maven here, or it found no Kafka: ours alone")
        else:
            theirs = exits.enter_context(kafka.KafkaProcess(directory / "kafka", classpath))
            found.append(Peer("Kafka, fsync (flush.messages=1)", theirs.bootstrap, {"flush.messages": "1"}))
            found.append(Peer("Kafka, its default (no fsync)", theirs.bootstrap, {}))
        yield found


def touch_memory(size_bytes: int = 1 << 30) -> None:
    """Write and free page-cache-like memory once, so that no peer pays for the machine's first touch."""
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as file:
        block = bytes(1 << 20)
        for _ in range(size_bytes >> 20):
            file.write(block)


def produce(peer: Peer, topic: str, size_bytes: int, count: int) -> float:
    """Records per second until the last acknowledgement."""
    producer = Producer(
        {"bootstrap.servers": peer.bootstrap, "acks": "all", "linger.ms": 5, "queue.buffering.max.messages": 2_000_000}
    )
    value = bytes(range(256)) * (size_bytes // 256 + 1)
    value = value[:size_bytes]
    started = time.perf_counter()
    for number in range(count):
        producer.produce(topic, value, partition=0)
        if number % 1000 == 0:
            producer.poll(0)
    left = producer.flush(120)
    assert left == 0, f"{left} records were not acknowledged"
    return count / (time.perf_counter() - started)


def consume(peer: Peer, topic: str, count: int, settings: Mapping[str, int] = MappingProxyType({})) -> float:
    """Records per second until the last record is in the program."""
    consumer = Consumer(
        {"bootstrap.servers": peer.bootstrap, "group.id": "benchmark", "enable.auto.commit": False, **settings}
    )
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    seen = 0
    started = time.perf_counter()
    while seen < count:
        messages = consumer.consume(10_000, timeout=30)
        assert messages, f"only {seen} of {count} records came"
        seen += sum(1 for message in messages if message.error() is None)
    rate = count / (time.perf_counter() - started)
    consumer.close()
    return rate


def one_run(peer: Peer, number: int, size_bytes: int, count: int) -> dict[str, float]:
    """Records per second of each kind of work."""
    topic = f"bench-{size_bytes}-{number}-{len(peer.topic_config)}"
    admin = AdminClient({"bootstrap.servers": peer.bootstrap})
    admin.create_topics([NewTopic(topic, 1, 1, config=dict(peer.topic_config))])[topic].result(30)
    try:
        return {
            "produce": produce(peer, topic, size_bytes, count),
            "consume": consume(peer, topic, count),
            "consume, no pause": consume(peer, topic, count, NO_PAUSE),
        }
    finally:
        admin.delete_topics([topic])[topic].result(30)


def table() -> str:
    """Measure and give the table as Markdown."""
    rates: dict[tuple[int, str, str], list[float]] = {}
    with tempfile.TemporaryDirectory() as directory, peers(Path(directory)) as columns:
        touch_memory()
        for peer in columns:
            one_run(peer, -1, 1000, 50_000)
        for size_bytes, count in SIZES.items():
            for number in range(RUNS):
                for peer in columns if number % 2 == 0 else reversed(columns):
                    for what, rate in one_run(peer, number, size_bytes, count).items():
                        rates.setdefault((size_bytes, what, peer.name), []).append(rate)
    lines = ["| what | broker | records/s, median | min to max | ours / it |", "|---|---|---|---|---|"]
    for (size_bytes, what, name), values in sorted(
        rates.items(), key=lambda item: (item[0][0], KINDS.index(item[0][1]))
    ):
        ours = rates[size_bytes, what, "onceflow, fsync"]
        ratio = statistics.median(mine / its for mine, its in zip(ours, values, strict=True))
        lines.append(
            f"| {what} {size_bytes} B | {name} | {statistics.median(values):,.0f} "
            f"| {min(values):,.0f} to {max(values):,.0f} | {ratio:.2f} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
