"""The executors' part of the Kafka sink: encodes rows of an Arrow table into record batches, in `mapInArrow`.

The output has one row per record batch, so that the driver has a summary before it fetches the bytes: `position` (task
number, then the batch's number in the task: the order in which to send), topic, partition, the topic's partition
count, records, bytes, CRC-32C of the bytes, and the bytes.
"""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext

from onceflow.client.admin import Admin
from onceflow.client.cluster import Cluster
from onceflow.client.errors import RequestRefused
from onceflow.client.security import PLAINTEXT, Security
from onceflow.spark.connections import connect
from onceflow.spark.errors import SinkStopped
from onceflow.wire.codecs import Codec
from onceflow.wire.column_batches import (
    BATCH_BYTES,
    RecordColumns,
    Unencodable,
    encode_columns,
    partitions_of_keys,
)
from onceflow.wire.columns import HEADERS_TYPE
from onceflow.wire.crc32c import crc32c

INPUT_BYTES = 16 * 1024 * 1024
"""Rows are encoded in groups of about this size: larger groups fill batches better, smaller ones need less memory."""
MESSAGE_BYTES_MAX = 1_048_588
"""Kafka's default of `max.message.bytes`, for users who may not read the topic's configs."""
POSITIONS_PER_TASK = 2**32
_ORIGIN_BYTES = 60

SCHEMA = (
    "position bigint, topic string, partition int, partition_count int, record_count bigint, size_bytes bigint, "
    "crc bigint, data binary"
)
_ARROW_SCHEMA = pa.schema(
    [
        ("position", pa.int64()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("partition_count", pa.int32()),
        ("record_count", pa.int64()),
        ("size_bytes", pa.int64()),
        ("crc", pa.int64()),
        ("data", pa.binary()),
    ]
)


@dataclass(frozen=True, slots=True)
class Target:
    """Properties of an output topic."""

    partition_count: int
    message_bytes_max: int


def find_target(cluster: Cluster, topic: str) -> Target:
    """Return the topic's present properties. Raises UnknownTopic."""
    count = len(cluster.require_topic(topic).partitions)
    try:
        limit = int(Admin(cluster).describe_topic_configs(topic)["max.message.bytes"].value or MESSAGE_BYTES_MAX)
    except RequestRefused:
        limit = MESSAGE_BYTES_MAX
    return Target(count, limit)


@dataclass(frozen=True, slots=True)
class Share:
    """Bytes that tasks may return at once: `bytes_max` each for the first `tasks` of them, none for others."""

    tasks: int
    bytes_max: int

    def of(self, task: int) -> int:
        """Return the bytes of the task with this number."""
        return self.bytes_max if task < self.tasks else 0


@dataclass(frozen=True)
class Encoder:
    """Function that `mapInArrow` calls for each task. Columns: any of key, value, topic, partition, headers, timestamp.

    `topic` replaces the column of that name; `targets` are the topics that the driver knows, others are looked up.
    Rows without key and partition go to one partition per task and batch, which `turn` advances. Rows without
    timestamp have `now_ms`. With `share`, a task omits the bytes beyond it. Raises SinkStopped for a row that cannot
    be a record, with the start of its key.
    """

    bootstrap: str
    topic: str | None
    codec: Codec
    now_ms: int
    turn: int
    targets: Mapping[str, Target] = field(default_factory=dict)
    security: Security = PLAINTEXT
    batch_bytes: int = BATCH_BYTES
    share: Share | None = None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        task = 0 if context is None else context.partitionId()
        position = task * POSITIONS_PER_TASK
        left_bytes = sys.maxsize if self.share is None else self.share.of(task)
        for table in _grouped(batches):
            batches_of_table = list(self.encoded(table, task))
            columns: list[list[Any]] = [[] for _ in _ARROW_SCHEMA]
            for topic, target, batch in batches_of_table:
                left_bytes -= len(batch.data)
                row = (
                    position,
                    topic,
                    batch.partition,
                    target.partition_count,
                    batch.record_count,
                    len(batch.data),
                    crc32c(batch.data),
                    bytes(batch.data) if left_bytes >= 0 else None,
                )
                position += 1
                for column, cell in zip(columns, row, strict=True):
                    column.append(cell)
            yield pa.RecordBatch.from_arrays(
                [pa.array(column, field.type) for column, field in zip(columns, _ARROW_SCHEMA, strict=True)],
                schema=_ARROW_SCHEMA,
            )

    def encoded(self, table: pa.Table, task: int) -> Iterator[tuple[str, Target, Any]]:
        """Yield (topic, target, batch) for a table's rows, by topic and partition."""
        for topic, rows in self._by_topic(table):
            target = self._target(topic)
            count = len(rows)
            key, value = _binary(rows, "key", count), _binary(rows, "value", count)
            columns = RecordColumns(key, value, self._timestamps(rows, count), _headers(rows))
            partitions = self._partitions(topic, rows, key, target, task)
            try:
                batches = encode_columns(
                    columns,
                    partitions,
                    codec=self.codec,
                    batch_bytes=self.batch_bytes,
                    batch_bytes_max=target.message_bytes_max,
                )
                for batch in batches:
                    yield topic, target, batch
            except Unencodable as error:
                raise SinkStopped(
                    f"a row for {topic}-{partitions[error.row]} {_origin(key, error.row)} cannot be written: "
                    f"{error.reason}; the batch was not written"
                ) from error

    def _by_topic(self, table: pa.Table) -> Iterator[tuple[str, pa.Table]]:
        if self.topic is not None:
            yield self.topic, table
            return
        column = table["topic"]
        if column.null_count:
            raise SinkStopped("a row has no topic: fill the column topic, or give the sink one topic for all rows")
        for topic in pc.unique(column).to_pylist():
            yield topic, table.filter(pc.equal(column, topic))

    def _target(self, topic: str) -> Target:
        known = self.targets.get(topic)
        return known if known is not None else find_target(connect(self.bootstrap, self.security), topic)

    def _partitions(self, topic: str, rows: pa.Table, key: Any, target: Target, task: int) -> Any:
        keyless = (self.turn + task) % target.partition_count
        if key.null_count == len(key):
            partitions = np.full(len(key), keyless, dtype=np.int64)
        else:
            by_key = partitions_of_keys(key, target.partition_count)
            partitions = np.where(by_key < 0, keyless, by_key)
        if "partition" not in rows.column_names:
            return partitions
        given = rows["partition"].combine_chunks()
        chosen = given.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
        is_given = ~given.is_null().to_numpy(zero_copy_only=False)
        wrong = is_given & ((chosen < 0) | (chosen >= target.partition_count))
        if wrong.any():
            row = int(np.argmax(wrong))
            raise SinkStopped(
                f"a row {_origin(key, row)} has partition {chosen[row]}, and topic {topic} has partitions 0 to "
                f"{target.partition_count - 1}: correct the partitioner or the column partition, or drop('partition') "
                "the column, which rows of a source have by default"
            )
        return np.where(is_given, chosen, partitions)

    def _timestamps(self, rows: pa.Table, count: int) -> Any:
        if "timestamp" not in rows.column_names:
            return np.full(count, self.now_ms, dtype=np.int64)
        given = rows["timestamp"].combine_chunks().cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
        milliseconds = given.fill_null(0).to_numpy(zero_copy_only=False) // 1000
        return np.where(given.is_null().to_numpy(zero_copy_only=False), self.now_ms, milliseconds)


def _grouped(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Yield the batches in groups of about INPUT_BYTES."""
    held: list[pa.RecordBatch] = []
    size_bytes = 0
    for batch in batches:
        held.append(batch)
        size_bytes += batch.nbytes
        if size_bytes >= INPUT_BYTES:
            yield pa.Table.from_batches(held)
            held, size_bytes = [], 0
    if held:
        yield pa.Table.from_batches(held)


def _binary(rows: pa.Table, name: str, count: int) -> Any:
    if name not in rows.column_names:
        return pa.nulls(count, pa.binary())
    return _whole(rows[name].cast(pa.binary()))


def _headers(rows: pa.Table) -> Any:
    return _whole(rows["headers"].cast(HEADERS_TYPE)) if "headers" in rows.column_names else None


def _whole(column: Any) -> Any:
    """Return a chunked array as one array."""
    combined = column.combine_chunks()
    return combined.chunk(0) if isinstance(combined, pa.ChunkedArray) else combined


def _origin(key: Any, row: int) -> str:
    value = key[row].as_py()
    return "without a key" if value is None else f"with key {value[:_ORIGIN_BYTES]!r}"
