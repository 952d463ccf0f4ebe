"""The broker beside Apache Kafka: every kind of work, at equal durability, with what is asked of each ratio."""

import logging
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from confluent_kafka import KafkaException

from benchmarks import java_tools, librdkafka, raw_connection
from benchmarks.comparison import Durability, Figure, Goal, Row, columns, compared, lines
from benchmarks.figures import Line, Table
from benchmarks.peers import peers

RECORDS = "records/s"
SYNCED, OWN_DEFAULT = Durability.SYNCED, Durability.OWN_DEFAULT
FAILURES = (AssertionError, KafkaException, OSError, RuntimeError, subprocess.SubprocessError)
logger = logging.getLogger("benchmarks")


def rate(name: str, at_least: float, aim: float, unit: str = RECORDS) -> tuple[Figure]:
    """Higher is better."""
    return (Figure(name, unit, Goal(at_least, aim)),)


def times(name: str, at_least: float, aim: float) -> tuple[Figure, Figure]:
    """Median and 99th percentile in ms; lower is better."""
    goal = Goal(at_least, aim, is_cost=True)
    return Figure(f"{name}, p50", "ms", goal), Figure(f"{name}, p99", "ms", goal)


def unjudged(name: str) -> tuple[Figure]:
    """Printed only."""
    return (Figure(name, RECORDS, None),)


def rows() -> list[Row]:
    """The work, from what the broker limits to what the client limits."""
    raw, rdk, java = raw_connection, librdkafka, java_tools
    return [
        Row(
            partial(raw.produced, records=16, value_bytes=1000, count=12_000),
            rate("produce, raw, 16 KB batches", 1.3, 2),
        ),
        Row(
            partial(raw.produced, records=10, value_bytes=100, count=20_000), rate("produce, raw, 10 x 100 B", 1.5, 2.5)
        ),
        Row(
            partial(raw.produced_by_two, records=16, value_bytes=1000, count=8_000),
            rate("produce, two raw connections, 16 KB batches", 0.8, 1.2),
        ),
        Row(
            partial(raw.produced, records=16, value_bytes=1000, count=4_000),
            rate("produce, raw, 16 KB batches", 1.5, 2.5),
            SYNCED,
        ),
        Row(
            partial(raw.produced, records=10, value_bytes=100, count=6_000),
            rate("produce, raw, 10 x 100 B", 1.5, 2.5),
            SYNCED,
        ),
        Row(partial(java.produce, size_bytes=1000, count=100_000), rate("produce, Java, 1 kB", 1.3, 2), SYNCED),
        Row(
            partial(rdk.produce, size_bytes=1000, count=150_000),
            rate("produce, librdkafka, 1 kB", 0.9, 1.1),
            SYNCED,
        ),
        Row(partial(raw.one_at_a_time, count=3_000), times("one record at a time", 1.1, 0.9), SYNCED),
        Row(partial(raw.one_at_a_time, count=5_000), times("one record at a time", 1.0, 0.75)),
        Row(partial(java.produce, size_bytes=1000, count=300_000), rate("produce, Java, 1 kB", 1.0, 1.2)),
        Row(partial(java.produce, size_bytes=100, count=1_500_000), rate("produce, Java, 100 B", 1.0, 1.2)),
        *(
            Row(
                partial(rdk.produce, size_bytes=size_bytes, count=count, codec=codec),
                rate(f"produce, librdkafka, {label}, {codec}", 0.9, 1.1),
            )
            for size_bytes, label, count in ((100, "100 B", 600_000), (1000, "1 kB", 200_000))
            for codec in ("none", "lz4")
        ),
        Row(
            partial(rdk.produce_and_consume, size_bytes=100, count=600_000),
            rate("consume, librdkafka, 100 B", 0.9, 1.1),
        ),
        Row(
            partial(rdk.produce_and_consume, size_bytes=1000, count=200_000),
            rate("consume, librdkafka, 1 kB", 0.9, 1.1),
        ),
        # A client that pauses for a second whenever its queue is full measures its pauses: printed, not judged.
        Row(
            partial(rdk.produce_and_consume, size_bytes=100, count=600_000, settings=rdk.OWN_PAUSE),
            unjudged("consume, librdkafka, 100 B, with the client's pauses of 1 s"),
        ),
        Row(partial(java.consume, size_bytes=1000, count=300_000), rate("consume, Java, 1 kB", 1.0, 1.3)),
        Row(
            partial(raw.fetched, response_bytes=1 << 20, total_bytes=4 << 30),
            rate("fetch, raw, 1 MB", 0.8, 1.3, "MB/s"),
        ),
        Row(
            partial(raw.fetched, response_bytes=8 << 20, total_bytes=4 << 30),
            rate("fetch, raw, 8 MB", 0.6, 1.0, "MB/s"),
        ),
        Row(
            partial(rdk.three_and_three, size_bytes=1000, count=50_000),
            rate("3 producers, 3 consumers, 1 kB", 0.8, 1.1),
        ),
        Row(
            partial(rdk.three_and_three, size_bytes=100, count=150_000),
            rate("3 producers, 3 consumers, 100 B", 0.8, 1.1),
        ),
        Row(partial(rdk.end_to_end, rate=1000, seconds=5), times("end to end at 1,000 records/s", 1.0, 0.5)),
        Row(
            partial(rdk.transactions, count=300),
            rate("transactions of 100 records", 0.9, 1.5, "a second"),
            SYNCED,
        ),
        Row(
            partial(raw.produced, records=16, value_bytes=1000, count=4_000),
            unjudged("produce, raw, 16 KB batches"),
            OWN_DEFAULT,
        ),
        Row(partial(java.produce, size_bytes=1000, count=100_000), unjudged("produce, Java, 1 kB"), OWN_DEFAULT),
        Row(partial(rdk.produce, size_bytes=1000, count=150_000), unjudged("produce, librdkafka, 1 kB"), OWN_DEFAULT),
    ]


def measure(names: Sequence[str]) -> Iterator[Line]:
    """The rows of these names. Raises RuntimeError at the end where some could not be measured."""
    failed = []
    with tempfile.TemporaryDirectory() as directory, peers(Path(directory)) as both:
        for number, row in enumerate(rows()):
            if row.name in names:
                try:
                    yield from lines(row, compared(row, both, number))
                except FAILURES:
                    logger.exception("not measured: %s", row.name)
                    failed.append(row.name)
    if failed:
        raise RuntimeError(f"not measured: {', '.join(failed)}")


TABLE = Table("The broker beside Apache Kafka", columns(), [row.name for row in rows()], measure)
