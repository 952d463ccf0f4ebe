"""As much of Spark as the sinks see of it, without Spark: a session, rows, and the work of executors.

The sinks are the real ones. What stands in is the outermost edge, `Session` and `Frame`, and the code that would run as
Spark jobs: encoding rows for Kafka, summing and writing chunks for Redis. Executors here repeat tasks, change the order
of rows each time they are asked, and lose blocks when they are told to.
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

from onceflow.spark.exactly_once.sink_errors import AttemptEnded
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
    """Whoever computes: `lost` counts how often their blocks were lost."""

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
        hadoop = SimpleNamespace(fs=SimpleNamespace(Path=_hadoop_path))
        self._jvm = SimpleNamespace(
            org=SimpleNamespace(apache=SimpleNamespace(hadoop=hadoop)),
            java=SimpleNamespace(
                io=SimpleNamespace(RandomAccessFile=_random_access_file),
                lang=SimpleNamespace(
                    ProcessHandle=SimpleNamespace(current=lambda: SimpleNamespace(pid=lambda: "of a test"))
                ),
            ),
        )

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


ROW_SCHEMA = pa.schema(
    [("target", pa.string()), ("field", pa.binary()), ("amount", pa.int64()), ("value", pa.binary())]
)


@dataclass
class Frame:
    """A DataFrame whose rows are tuples in memory."""

    sparkSession: Session  # noqa: N815 (Spark's name)
    rows: Sequence[Any]
    times_read: int = 0
    is_cached: bool = False
    times_read_alone: int = 0
    """Of these, by the format `noop`."""

    def persist(self) -> "Frame":
        return self

    def unpersist(self) -> "Frame":
        return self

    def selectExpr(self, *_columns: str) -> "Frame":  # noqa: N802 (Spark's name)
        return self

    def toArrow(self) -> pa.Table:  # noqa: N802 (Spark's name)
        self.times_read += 1
        return pa.Table.from_pylist(
            [dict(zip(redis_chunks.ROW, row, strict=True)) for row in self.sparkSession.executors.shuffled(self.rows)],
            ROW_SCHEMA,
        )

    def agg(self, *_columns: Any) -> "Frame":
        """Number of rows and bytes of their fields, the one thing that is asked of sums."""
        size_bytes = sum(len(each[1]) + len(each[3] or b"") for each in self.rows)
        return Frame(self.sparkSession, [(len(self.rows), size_bytes)])

    def head(self) -> Any:
        return self.rows[0]

    @property
    def write(self) -> Any:
        """Reads all rows and keeps none, as the format `noop` does."""
        writer = SimpleNamespace(save=self._read_alone)
        writer.mode = writer.format = lambda _word: writer
        return writer

    def _read_alone(self) -> None:
        self.sparkSession.executors.at("before reading the rows alone")
        self.times_read += 1
        self.times_read_alone += 1
        self.sparkSession.executors.at("after reading the rows alone")


class Encoded:
    """Stands in for EncodedFrame: blobs that executors keep, encoded anew, in another layout, where they are lost.

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
        """Nothing is kept outside this process."""

    def task_sizes(self) -> Mapping[int, int]:
        """Not known, so whatever there is comes in parts."""
        return {}

    def records(self) -> Mapping[TopicPartition, int]:
        found: dict[TopicPartition, int] = {}
        for partition, _, _ in self._rows.rows:
            found[self._topic, partition] = found.get((self._topic, partition), 0) + 1
        return found

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
            found = encode_columns(
                columns, np.full(len(held), partition), codec=Codec.NONE, batch_bytes=batch_bytes, batch_bytes_max=10**6
            )
            self._made += [Blob(self._topic, each.partition, each.record_count, each.data) for each in found]


class Anything:
    """Stands in for Spark's functions, whose columns nobody evaluates here."""

    def __getattr__(self, _name: str) -> Any:
        return lambda *_arguments: self

    def __add__(self, _other: Any) -> "Anything":
        return self


def _measured(rows: Frame, _keys: Any, _batch: int) -> redis_rows.Measured:
    rows.times_read += 1
    return redis_rows.Measured(len(rows.rows), sum(len(each[1]) for each in rows.rows))


def _collected_unmeasured(rows: Frame, keys: redis_scripts.Keys) -> redis_rows.Collected | None:
    """Now and then there is a row that has to be measured."""
    found = redis_rows.collected(rows, keys)  # type: ignore[arg-type]
    return None if rows.sparkSession.executors.chance.random() < 0.2 else found


def _sums(writer: BatchWriter, rows: Frame) -> Frame:
    """One row for each target and field, as `redis_chunks.reduced`."""
    versions = {each.target for each in writer.keys.sets}
    found: dict[tuple[str, bytes], tuple[int, bytes | None]] = {}
    for target, name, amount, value in rows.rows:
        known = found.get((target, name))
        if known is None:
            found[target, name] = (amount, value)
        elif target in versions:
            found[target, name] = max(known, (amount, value))
        else:
            found[target, name] = (known[0] + amount, None)
    return Frame(rows.sparkSession, [(*key, *held) for key, held in found.items()])


def _newest(_writer: BatchWriter, rows: Frame, append: Any) -> list[tuple[int, bytes]]:
    wanted = sorted(((amount, name) for target, name, amount, _ in rows.rows if target == append.target), reverse=True)
    return wanted[: append.length_max]


def _write_chunks(sums: Frame, writer: Any, *, chunks: int, missing: Sequence[int]) -> None:
    """As `redis_chunks.write_chunks`: a task for each chunk, in any order, once more where its executor is lost."""
    executors = sums.sparkSession.executors
    reports = {}
    for chunk in executors.shuffled(missing):
        rows = [row for row in sums.rows if zlib.crc32(row[1]) % chunks == chunk]
        lost = -1
        while lost != executors.lost:
            lost = executors.lost
            reports[chunk] = [chunk, *writer.write(chunk, executors.shuffled(rows))]
    redis_chunks._check(list(reports.values()), writer, missing)


def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until the test ends, the sinks' jobs run here."""
    monkeypatch.setattr(kafka_rows, "EncodedFrame", Encoded)
    monkeypatch.setattr(kafka_rows, "record_columns", lambda rows, *_options: rows)
    monkeypatch.setattr(redis_batch, "F", Anything())
    monkeypatch.setattr(redis_rows, "require_columns", lambda _rows, _keys: None)
    monkeypatch.setattr(redis_rows, "measured", _measured)
    monkeypatch.setattr(redis_rows, "collected_unmeasured", _collected_unmeasured)
    monkeypatch.setattr(BatchWriter, "_sums", _sums)
    monkeypatch.setattr(BatchWriter, "_newest", _newest)
    monkeypatch.setattr(redis_chunks, "write_chunks", _write_chunks)
