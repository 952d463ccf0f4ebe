"""Stand-ins for the part of Spark that sinks use: a session, rows, and the work of executors.

The sinks are real. Simulated are `Session` and `Frame`, and the code that would run as Spark jobs: encoding rows for
Kafka, summing and writing chunks for Redis. The executors repeat tasks, return rows in random order, and lose blocks
when a test says so.
"""

import random
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from onceflow.spark.errors import AttemptEnded
from onceflow.spark.kafka import rows as kafka_rows
from onceflow.spark.kafka.sender import Blob
from onceflow.spark.redis import batch as redis_batch
from onceflow.spark.redis import chunks as redis_chunks
from onceflow.spark.redis import rows as redis_rows
from onceflow.spark.redis import scripts as redis_scripts
from onceflow.spark.redis.batch import BatchWriter
from onceflow.wire import TopicPartition
from onceflow.wire.codecs import Codec
from onceflow.wire.column_batches import RecordColumns, encode_columns

At = Callable[[str], None]


@dataclass
class Executors:
    """Executors; `lost` counts losses of their blocks."""

    chance: random.Random
    at: At
    lost: int = 0

    def shuffled(self, rows: Sequence[Any]) -> list[Any]:
        return self.chance.sample(list(rows), len(rows))


class Session:
    """A driver's session: its JVM holds the checkpoint's lock and resolves paths."""

    def __init__(self, executors: Executors, query: Callable[[], str | None]) -> None:
        self.executors = executors
        self.sparkContext = SimpleNamespace(getLocalProperty=lambda _name: query())
        self._jsc = SimpleNamespace(hadoopConfiguration=lambda: None)
        process = SimpleNamespace(pid=lambda: "of a test")
        classes = {
            "java.io.RandomAccessFile": _random_access_file,
            "java.lang.ProcessHandle": SimpleNamespace(current=lambda: process),
            "org.apache.hadoop.fs.Path": _hadoop_path,
        }
        self._jvm = SimpleNamespace(**classes)

    def createDataFrame(self, rows: Sequence[Any], _schema: Any = None) -> "Frame":  # noqa: N802 (Spark's name)
        return Frame(self, rows)


def _hadoop_path(location: str) -> Any:
    uri = SimpleNamespace(getScheme=lambda: "file", getPath=lambda: location.removeprefix("file://"))
    qualified = SimpleNamespace(toUri=lambda: uri)
    return SimpleNamespace(getFileSystem=lambda _conf: SimpleNamespace(makeQualified=lambda _path: qualified))


def _random_access_file(path: str, _mode: str) -> Any:
    Path(path).touch()
    return SimpleNamespace(
        getChannel=lambda: SimpleNamespace(tryLock=lambda: True),
        close=lambda: None,
        setLength=lambda _size: None,
        writeBytes=lambda text: Path(path).write_text(text),
    )


LONG_MAX = 2**63 - 1
"""Above it, a reduced sum is null."""
ROW_SCHEMA = pa.schema(
    [
        ("target", pa.string()),
        ("field", pa.binary()),
        ("amount", pa.int64()),
        ("value", pa.binary()),
        (redis_chunks.TIMES, pa.int64()),
    ]
)


@dataclass
class Frame:
    """A DataFrame whose rows are tuples in memory."""

    sparkSession: Session  # noqa: N815 (Spark's name)
    rows: Sequence[Any]
    times_read: int = 0
    is_cached: bool = False
    times_read_alone: int = 0
    """Number of reads by the format `noop`."""

    def persist(self) -> "Frame":
        return self

    def unpersist(self) -> "Frame":
        return self

    def selectExpr(self, *_columns: str) -> "Frame":  # noqa: N802 (Spark's name)
        return self

    def toArrow(self) -> pa.Table:  # noqa: N802 (Spark's name)
        self.times_read += 1
        return pa.Table.from_pylist(
            [
                dict(zip((*redis_chunks.ROW, redis_chunks.TIMES), (*row, 1), strict=True))
                for row in self.sparkSession.executors.shuffled(self.rows)
            ],
            ROW_SCHEMA,
        )

    @property
    def write(self) -> Any:
        """Return a writer that reads all rows and keeps none, as the format `noop` does."""
        writer = SimpleNamespace(save=self._read_alone)
        writer.mode = writer.format = lambda _word: writer
        return writer

    def _read_alone(self) -> None:
        self.sparkSession.executors.at("before reading the rows alone")
        self.times_read += 1
        self.times_read_alone += 1
        self.sparkSession.executors.at("after reading the rows alone")


class Encoded:
    """A stand-in for EncodedFrame: blobs kept by executors; lost ones are encoded again, in another layout.

    Rows for Kafka are (partition, key, value).
    """

    def __init__(self, rows: Frame, encoder: Any, _driver_bytes: int, _share: Any) -> None:
        self._rows = rows
        self._topic = encoder.topic
        self._targets = {topic: target.partition_count for topic, target in encoder.targets.items()}
        self._executors = rows.sparkSession.executors
        self._summary: list[tuple[int, int]] | None = None
        self._executors.at("before encode")
        self._encode()
        self._executors.at("after encode")

    def close(self) -> None:
        """Do nothing: the blobs are in memory."""

    def task_sizes(self) -> Mapping[int, int]:
        """Return no sizes, so that all blobs are pulled in parts."""
        return {}

    def records(self) -> Mapping[TopicPartition, int]:
        counts: dict[TopicPartition, int] = {}
        for partition, _, _ in self._rows.rows:
            counts[self._topic, partition] = counts.get((self._topic, partition), 0) + 1
        return counts

    def partition_counts(self) -> Mapping[str, int]:
        return self._targets

    def blobs(self) -> Iterator[Sequence[Blob]]:
        self._summary = self._summary or [(blob.partition, zlib.crc32(blob.data)) for blob in self._made]
        for position in range(len(self._summary)):
            self._executors.at("before pull")
            if self._executors.lost != self._lost:
                self._encode()
            if [(blob.partition, zlib.crc32(blob.data)) for blob in self._made] != self._summary:
                self._summary = None
                raise AttemptEnded("an executor lost encoded rows and they were encoded again, with other bytes")
            yield [self._made[position]]
            self._executors.at("after pull")

    def _encode(self) -> None:
        self._rows.times_read += 1
        self._lost = self._executors.lost
        batch_bytes = self._executors.chance.randrange(80, 400)
        self._made = []
        for partition in sorted({partition for partition, _, _ in self._rows.rows}):
            held = [(key, value) for place, key, value in self._rows.rows if place == partition]
            keys, values = (pa.array(column, pa.binary()) for column in zip(*held, strict=True))
            columns = RecordColumns(keys, values, np.full(len(held), time.time_ns() // 1_000_000))
            batches = encode_columns(
                columns, np.full(len(held), partition), codec=Codec.NONE, batch_bytes=batch_bytes, batch_bytes_max=10**6
            )
            self._made += [Blob(self._topic, batch.partition, batch.record_count, batch.data) for batch in batches]


class Anything:
    """A stand-in for Spark's functions; their columns are never evaluated."""

    def __getattr__(self, _name: str) -> Any:
        return lambda *_arguments: self

    def __add__(self, _other: Any) -> "Anything":
        return self


def _measured(sums: Frame, keys: redis_scripts.Keys, _batch: int) -> redis_rows.Measured:
    entries = [row for row in sums.rows if row[0] in keys.entry_targets]
    written = [row for row in sums.rows if row[0] not in keys.entry_targets]
    size_bytes, entries_bytes = (sum(len(row[1]) + len(row[3] or b"") for row in rows) for rows in (written, entries))
    return redis_rows.Measured(len(sums.rows), len(written), size_bytes, len(entries), entries_bytes)


def _collected_unmeasured(rows: Frame, keys: redis_scripts.Keys) -> redis_rows.Collected | None:
    """Return the collected rows, or, at random, None as for a row that must be measured."""
    collected = redis_rows._summed(rows.toArrow(), keys)
    return None if rows.sparkSession.executors.chance.random() < 0.2 else collected


def _sums(writer: BatchWriter, rows: Frame) -> Frame:
    """Return one row for each target and field, and all entries, as `redis_chunks.reduced` does."""
    rows.times_read += 1
    entries = [row for row in rows.rows if row[0] in writer.keys.entry_targets]
    versions = {entry.target for entry in writer.keys.sets}
    sums: dict[tuple[str, bytes], tuple[Any, bytes | None]] = {}
    for target, name, amount, value in rows.rows:
        known = sums.get((target, name))
        if target in writer.keys.entry_targets:
            continue
        if known is None:
            sums[target, name] = (amount, value)
        elif target in versions:
            sums[target, name] = max(known, (amount, value))
        else:
            sums[target, name] = (known[0] + amount, None)
    sums = {key: (None if amount > LONG_MAX else amount, value) for key, (amount, value) in sums.items()}
    return Frame(rows.sparkSession, [*((*key, *held) for key, held in sums.items()), *entries])


def _newest(_writer: BatchWriter, rows: Frame, append: Any) -> list[tuple[int, bytes]]:
    wanted = sorted(((amount, name) for target, name, amount, _ in rows.rows if target == append.target), reverse=True)
    return wanted[: append.length_max]


def _write_chunks(sums: Frame, writer: Any, *, chunks: int, missing: Sequence[int]) -> None:
    """Write the chunks in random order, each again if its executor is lost, as `redis_chunks.write_chunks` does."""
    executors = sums.sparkSession.executors
    reports = {}
    for chunk in executors.shuffled(missing):
        written = [row for row in sums.rows if row[0] not in writer.keys.entry_targets]
        rows = [row for row in written if zlib.crc32(row[1]) % chunks == chunk]
        lost = -1
        while lost != executors.lost:
            lost = executors.lost
            reports[chunk] = [chunk, *writer.write(chunk, executors.shuffled(rows))]
    redis_chunks._check(list(reports.values()), writer, missing)


def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the sinks' jobs on these executors until the test ends."""
    monkeypatch.setattr(kafka_rows, "EncodedFrame", Encoded)
    monkeypatch.setattr(kafka_rows, "record_columns", lambda rows, *_options: rows)
    monkeypatch.setattr(redis_batch, "F", Anything())
    monkeypatch.setattr(redis_rows, "require_columns", lambda _rows, _keys: None)
    monkeypatch.setattr(redis_rows, "measured", _measured)
    monkeypatch.setattr(redis_rows, "collected_unmeasured", _collected_unmeasured)
    monkeypatch.setattr(BatchWriter, "_sums", _sums)
    monkeypatch.setattr(BatchWriter, "_newest", _newest)
    monkeypatch.setattr(redis_chunks, "write_chunks", _write_chunks)
