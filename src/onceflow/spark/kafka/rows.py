"""A micro-batch as encoded blobs: their summary is known first, and the driver holds a bounded part of them.

If the previous batch was small, one job encodes and returns all blobs: each task has a share of the driver's budget
and returns no bytes beyond it. If a task had more, and for a first batch, one job persists the blobs on the executors
and returns their summary. The driver pulls them in order, up to its budget at a time, and compares them with the
summary: Spark encodes a lost block again, and its rows may then come in another order.
"""

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 (Spark's own name for it)

from onceflow.client.cluster import Cluster
from onceflow.spark.errors import AttemptEnded, SinkStopped
from onceflow.spark.kafka.encode import POSITIONS_PER_TASK, SCHEMA, Encoder, Share, Target, find_target
from onceflow.spark.kafka.sender import Blob
from onceflow.wire import TopicPartition
from onceflow.wire.crc32c import crc32c

DRIVER_BYTES = 64 * 1024 * 1024
"""Bytes of blobs that the driver holds at a time."""
SHARE_MARGIN = 1.25
"""A task's share must be this many times the bytes of the previous batch's largest task."""
_COLUMNS = {
    "key": ("string", "binary"),
    "value": ("string", "binary"),
    "topic": ("string",),
    "partition": ("int",),
    "headers": ("array<struct<key:string,value:binary>>",),
    "timestamp": ("timestamp",),
}


def record_columns(rows: DataFrame, topic: str | None, partitioner: Any) -> DataFrame:
    """Return the columns of a record, as in Spark's own sink, with the partitioner's result as `partition`.

    Raises SinkStopped for a column of another type, a missing value column, and a missing topic.
    """
    if partitioner is not None:
        chosen = F.expr(partitioner) if isinstance(partitioner, str) else partitioner
        rows = rows.withColumn("partition", chosen.cast("int"))
    types = dict(rows.dtypes)
    for name, allowed in _COLUMNS.items():
        if name in types and types[name] not in allowed:
            raise SinkStopped(
                f"column {name} is {types[name]} and must be {' or '.join(allowed)}: cast it before the sink"
            )
    if "value" not in types:
        raise SinkStopped(f"the rows have columns {', '.join(types)} but not value: select the data to write as value")
    if topic is None and "topic" not in types:
        raise SinkStopped("neither the sink nor the rows have a topic: give kafka_sink(topic=…) or a column topic")
    used = [name for name in _COLUMNS if name in types and not (name == "topic" and topic is not None)]
    return rows.select(*used)


class KafkaOutput:
    """Output of rows to the encoder's topic, or to the topics of the column, encoded by the executors."""

    def __init__(
        self, cluster: Cluster, encoder: Encoder, *, partitioner: Column | str | None, driver_bytes: int
    ) -> None:
        self.encoder = encoder
        self._cluster = cluster
        self._partitioner = partitioner
        self._driver_bytes = driver_bytes
        self._limits: dict[str, int] = {}
        self._before: EncodedFrame | None = None
        self._tasks = 0
        self._largest_bytes = 0

    def require(self) -> None:
        """Raise UnknownTopic if the encoder's topic does not exist."""
        self._targets()

    def encode(self, rows: DataFrame, turn: int) -> "EncodedFrame":
        """Return the rows of batch `turn`, which the executors encode at their first use."""
        columns = record_columns(rows, self.encoder.topic, self._partitioner)
        now_ms = time.time_ns() // 1_000_000
        encoder = replace(self.encoder, now_ms=now_ms, turn=turn, targets=self._targets())
        self._before = EncodedFrame(columns, encoder, self._driver_bytes, self._share())
        return self._before

    def _share(self) -> Share | None:
        """Return the tasks' shares for the next batch; None before a first batch, or if the last one was too large."""
        sizes = {} if self._before is None else self._before.task_sizes()
        if sizes:
            self._tasks = max(self._tasks, max(sizes) + 1)
            self._largest_bytes = max(sizes.values())
        if self._tasks == 0:
            return None
        share_bytes = self._driver_bytes // self._tasks
        return Share(self._tasks, share_bytes) if SHARE_MARGIN * self._largest_bytes <= share_bytes else None

    def _targets(self) -> dict[str, Target]:
        """Return the present state of the given output topic; its limit is read once."""
        topic = self.encoder.topic
        if topic is None:
            return {}
        if topic not in self._limits:
            self._limits[topic] = find_target(self._cluster, topic).message_bytes_max
        return {topic: Target(len(self._cluster.require_topic(topic).partitions), self._limits[topic])}


class EncodedFrame:
    """The encoded rows of one micro-batch; `close` releases them in the driver and in Spark.

    With `share` the tasks return their blobs at once up to their share; the driver keeps them if they are complete.
    """

    def __init__(self, rows: DataFrame, encoder: Encoder, driver_bytes: int, share: Share | None = None) -> None:
        self._frame = rows
        self._encoder = encoder
        self._driver_bytes = driver_bytes
        self._share = share
        self._known = {topic: target.partition_count for topic, target in encoder.targets.items()}
        self._summary: list[dict[str, Any]] | None = None
        self._held: dict[int, memoryview] | None = None
        self._persisted: DataFrame | None = None

    def close(self) -> None:
        """Release the memory of driver and executors."""
        self._held = None
        if self._persisted is not None:
            self._persisted.unpersist()
            self._persisted = None

    def task_sizes(self) -> Mapping[int, int]:
        """Return the bytes of each task's blobs; empty if there are none, or they are not known."""
        sizes: Counter[int] = Counter()
        for row in self._summary or ():
            sizes[row["position"] // POSITIONS_PER_TASK] += row["size_bytes"]
        return sizes

    def records(self) -> Mapping[TopicPartition, int]:
        """Return the record count of each partition that has records."""
        counts: Counter[TopicPartition] = Counter()
        for row in self._rows():
            counts[row["topic"], row["partition"]] += row["record_count"]
        return dict(counts)

    def partition_counts(self) -> Mapping[str, int]:
        """Return each topic's partition count. Raises AttemptEnded if the driver and the tasks do not agree."""
        counts = dict(self._known)
        for row in self._rows():
            if counts.setdefault(row["topic"], row["partition_count"]) != row["partition_count"]:
                self._summary = None
                raise AttemptEnded(f"the partition count of topic {row['topic']} changed while rows were encoded")
        return counts

    def blobs(self) -> Iterator[Sequence[Blob]]:
        """Yield all blobs in order, up to the driver's budget at a time. Raises AttemptEnded if one has changed."""
        for pull in self._pulls():
            blobs = self._held
            if blobs is None:
                assert self._persisted is not None
                positions = F.col("position").between(pull[0]["position"], pull[-1]["position"])
                blobs = _by_position(self._persisted.where(positions).select("position", "data").toArrow())
            yield [self._checked(row, blobs) for row in pull]

    def _checked(self, row: Mapping[str, Any], blobs: Mapping[int, memoryview]) -> Blob:
        data = blobs.get(row["position"])
        if data is None or len(data) != row["size_bytes"] or crc32c(data) != row["crc"]:
            self._summary = None
            raise AttemptEnded(
                f"an executor lost encoded rows of {row['topic']}-{row['partition']} and they were encoded again, "
                "with other bytes"
            )
        return Blob(row["topic"], row["partition"], row["record_count"], data)

    def _pulls(self) -> Iterator[list[dict[str, Any]]]:
        pull: list[dict[str, Any]] = []
        size_bytes = 0
        for row in self._rows():
            if pull and size_bytes + row["size_bytes"] > self._driver_bytes:
                yield pull
                pull, size_bytes = [], 0
            pull.append(row)
            size_bytes += row["size_bytes"]
        if pull:
            yield pull

    def _rows(self) -> list[dict[str, Any]]:
        if self._summary is None:
            table = self._encoded_at_once()
            if table is None:
                self._persisted = self._frame.mapInArrow(self._encoder, SCHEMA).persist()
                table = self._persisted.drop("data").toArrow()
            self._summary = sorted(table.to_pylist(), key=lambda row: int(row["position"]))
        return self._summary

    def _encoded_at_once(self) -> Any:
        """Return the table of all blobs without their bytes, which are now held; None if a task had too many."""
        if self._share is None:
            return None
        table = self._frame.mapInArrow(replace(self._encoder, share=self._share), SCHEMA).toArrow()
        if table.column("data").null_count:
            return None
        self._held = _by_position(table)
        return table.drop_columns("data")


def _by_position(table: Any) -> dict[int, memoryview]:
    """Return the blobs by position, as views of Arrow's own memory."""
    blobs: dict[int, memoryview] = {}
    for batch in table.to_batches():
        for position, data in zip(batch["position"].to_pylist(), batch["data"], strict=True):
            blobs[position] = memoryview(data.as_buffer())
    return blobs
