"""The broker beside Apache Kafka: every kind of work, at equal durability, with what is asked of each ratio."""

import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from benchmarks import java_tools, librdkafka, raw_connection
from benchmarks.comparison import HEAD, RUNS, Figure, Row, compared, lines
from benchmarks.peers import peers

RECORDS = "records/s"


def rate(name: str, at_least: float, aim: float, unit: str = RECORDS) -> tuple[Figure]:
    """Higher is better."""
    return (Figure(name, unit, at_least, aim),)


def times(name: str, at_least: float, aim: float) -> tuple[Figure, Figure]:
    """Median and 99th percentile in ms; lower is better."""
    p50 = Figure(f"{name}, p50", "ms", at_least, aim, is_time=True)
    return p50, Figure(f"{name}, p99", "ms", at_least, aim, is_time=True)


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
            is_synced=True,
        ),
        Row(
            partial(raw.produced, records=10, value_bytes=100, count=6_000),
            rate("produce, raw, 10 x 100 B", 1.5, 2.5),
            is_synced=True,
        ),
        Row(partial(java.produce, size_bytes=1000, count=100_000), rate("produce, Java, 1 kB", 1.3, 2), is_synced=True),
        Row(
            partial(rdk.produce, size_bytes=1000, count=150_000),
            rate("produce, librdkafka, 1 kB", 0.9, 1.1),
            is_synced=True,
        ),
        Row(partial(raw.one_at_a_time, count=3_000), times("one record at a time", 1.1, 0.9), is_synced=True),
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
        Row(partial(java.consume, size_bytes=1000, count=300_000), rate("consume, Java, 1 kB", 1.0, 1.3)),
        Row(
            partial(raw.fetched, answer_bytes=1 << 20, total_bytes=4 << 30), rate("fetch, raw, 1 MB", 0.8, 1.3, "MB/s")
        ),
        Row(
            partial(raw.fetched, answer_bytes=8 << 20, total_bytes=4 << 30), rate("fetch, raw, 8 MB", 0.6, 1.0, "MB/s")
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
            is_synced=True,
        ),
    ]


def table(wanted: Sequence[str] = (), runs: int = RUNS) -> str:
    """Measure the rows in whose names one of `wanted` occurs, or all, and give the table as Markdown."""
    found = HEAD.splitlines()
    print(HEAD, flush=True)
    with tempfile.TemporaryDirectory() as directory, peers(Path(directory)) as both:
        for number, row in enumerate(rows()):
            if wanted and not any(word in row.figures[0].name for word in wanted):
                continue
            for line in lines(row, compared(row, both, number, runs)):
                print(line, flush=True)
                found.append(line)
    return "\n".join(found)


if __name__ == "__main__":
    table(sys.argv[1:])
