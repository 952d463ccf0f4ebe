"""Offsets without a row: aborted and open transactions, markers, and records removed by compaction."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from onceflow.client.cluster import LATEST, Cluster
from onceflow.client.transactional import TransactionalProducer
from onceflow.log.config import LogConfig
from onceflow.spark.offsets import OffsetRange
from onceflow.spark.reader import read_task
from onceflow.spark.reader.options import SourceOptions, read_options
from onceflow.spark.reader.read_task import ReadTask
from onceflow.spark.reader.stream import StreamReader
from onceflow.spark.reader.subscription import subscribed
from onceflow.spark.source import BatchReader
from tests.broker.driven_broker import DrivenBroker, eventually
from tests.broker.raw_client import connected
from tests.log.compactions import keyed, offsets

Send = Callable[..., None]
Rows = list[tuple[int, bytes]]
CLEANER_MS = 15_000


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_task, "STALL_SECONDS_MAX", 10)


@pytest.fixture
def still_open(bootstrap: str, cluster: Cluster, topic: str, send: Send) -> Iterator[TransactionalProducer]:
    """Offset 0 has no transaction, 1 is committed by 2, 3 aborted by 4, 5 in this open one, 6 committed by 7."""
    cluster.create_topic(topic, 1)
    send(["plain"])
    with (
        TransactionalProducer(bootstrap, f"done-{topic}") as done,
        TransactionalProducer(bootstrap, f"open-{topic}") as own,
    ):
        begin_and_send(done, topic, b"committed")
        done.commit()
        begin_and_send(done, topic, b"aborted")
        done.abort()
        # Kafka responds before it has written the marker.
        wait_for_end(cluster, topic, 5)
        begin_and_send(own, topic, b"open")
        begin_and_send(done, topic, b"behind it")
        done.commit()
        wait_for_end(cluster, topic, 8)
        yield own


def wait_for_end(cluster: Cluster, topic: str, end: int) -> None:
    def is_reached() -> bool:
        return cluster.list_offsets(topic, {0: LATEST}, read_committed=False)[0].offset == end

    eventually(is_reached, f"the log ends at {end}")


def begin_and_send(producer: TransactionalProducer, topic: str, value: bytes) -> None:
    producer.begin()
    producer.send(topic, value, partition=0)
    producer.flush()


def options_of(bootstrap: str, topic: str, **more: str) -> dict[str, str]:
    return {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, "startingOffsets": "earliest", **more}


def rows_in(batches: Iterator[Any]) -> Rows:
    return [
        row for batch in batches for row in zip(batch["offset"].to_pylist(), batch["value"].to_pylist(), strict=True)
    ]


def next_batch(reader: StreamReader, start: dict[str, Any], topic: str) -> tuple[dict[str, Any], Rows]:
    end = reader.latestOffset(start, ReadAllAvailable())
    return end, [row for task in reader.partitions(start, end) for row in rows_in(reader.read(task))]


def begun(options: SourceOptions) -> tuple[StreamReader, dict[str, Any]]:
    reader = StreamReader(options)
    start = reader.initialOffset()
    assert reader.partitions(start, start) == []
    return reader, start


BEFORE_THE_OPEN_ONE: Rows = [(0, b"plain"), (1, b"committed")]
ALL: Rows = [*BEFORE_THE_OPEN_ONE, (3, b"aborted"), (5, b"open"), (6, b"behind it")]


LEVELS = pytest.mark.parametrize(
    ("given", "end", "rows"),
    [({}, 5, BEFORE_THE_OPEN_ONE), ({"isolation.level": "read_uncommitted"}, 8, ALL)],
    ids=["by default", "uncommitted"],
)


@LEVELS
@pytest.mark.usefixtures("still_open")
def test_visible_records_of_transactions(
    bootstrap: str, topic: str, given: dict[str, str], end: int, rows: Rows
) -> None:
    stream_options = read_options(options_of(bootstrap, topic, **given), "stream")
    reached, seen = next_batch(*begun(stream_options), topic)
    assert (reached[topic], seen) == ({"0": end}, rows)
    reader = BatchReader(read_options(options_of(bootstrap, topic, **given), "batch"))
    (task,) = reader.partitions()
    assert task.ranges == (OffsetRange(topic, 0, 0, end),)
    assert rows_in(reader.read(task)) == rows


def test_next_batch_continues_at_ended_transaction(
    bootstrap: str, cluster: Cluster, topic: str, still_open: TransactionalProducer
) -> None:
    reader, start = begun(read_options(options_of(bootstrap, topic), "stream"))
    end, _ = next_batch(reader, start, topic)
    assert next_batch(reader, end, topic) == (end, [])
    still_open.commit()
    wait_for_end(cluster, topic, 9)
    later, rows = next_batch(reader, end, topic)
    assert (later[topic], rows) == ({"0": 9}, [(5, b"open"), (6, b"behind it")])
    assert next_batch(reader, later, topic) == (later, [])


@LEVELS
@pytest.mark.usefixtures("still_open")
def test_range_with_markers_is_read_completely(
    bootstrap: str, topic: str, monkeypatch: pytest.MonkeyPatch, given: dict[str, str], end: int, rows: Rows
) -> None:
    options = read_options(options_of(bootstrap, topic, **given), "stream")
    for least_bytes, (begin, last) in itertools.product((1, 65_536), itertools.combinations(range(end + 1), 2)):
        monkeypatch.setattr(read_task, "FETCH_BYTES_MIN", least_bytes)
        monkeypatch.setattr(read_task, "FETCH_BYTES_PER_OFFSET", 1)
        task = ReadTask((OffsetRange(topic, 0, begin, last),), {})
        expected = [row for row in rows if begin <= row[0] < last]
        assert rows_in(read_task.read(options, task)) == expected, (least_bytes, begin, last)


def test_compacted_log_is_read_across_gaps(tmp_path: Path) -> None:
    with (
        DrivenBroker(tmp_path / "data", log=LogConfig(segment_bytes=400)) as broker,
        connected(broker.bootstrap) as client,
        Cluster(broker.bootstrap) as cluster,
    ):
        client.create_topic("table", cleanup_policy="compact")
        for number in range(30):
            kept = f"kept {number}" if number % 4 == 0 else "k"
            pairs = keyed(("k", "first"), (kept, "second"), ("k", f"third, {'x' * 60}"))
            assert not client.produce("table", 0, pairs).error_code
        log = broker.log("table")
        end = log.log_end_offset
        assert offsets(log) == list(range(end))

        def is_compacted() -> bool:
            broker.clock.advance_ms(CLEANER_MS)
            return len(offsets(log)) < end // 2

        eventually(is_compacted, "the log is compacted")
        eventually(lambda: broker.call(lambda node: node.housekeeping.cleaner.compacting is None), "the pass is over")
        assert cluster.list_offsets("table", {0: LATEST})[0].offset == end
        options = SourceOptions(broker.bootstrap, subscribed("table"), "earliest")
        left = offsets(log)
        reader, start = begun(options)
        reached, rows = next_batch(reader, start, "table")
        assert (reached["table"], [offset for offset, _ in rows]) == ({"0": end}, left)
        for begin in range(end):
            task = ReadTask((OffsetRange("table", 0, begin, begin + 1),), {})
            seen = [offset for offset, _ in rows_in(read_task.read(options, task))]
            assert seen == [begin] * (begin in left)
        tasks = StreamReader(replace(options, offsets_per_task_max=7)).partitions(start, reached)
        assert len(tasks) > 3
        assert [row for task in tasks for row in rows_in(reader.read(task))] == rows
