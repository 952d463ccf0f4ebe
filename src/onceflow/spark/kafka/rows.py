"""A micro-batch as encoded blobs: what there is is known at once, and the driver holds no more of it than it may.

Where the batch before was small, one job encodes and brings all blobs: each of as many tasks as there were so far has a
share of what the driver may hold, and brings no bytes beyond it. Where one had more, and for a first batch, the rows
are encoded for Spark to keep: one job persists the blobs on the executors and returns a summary of them. They are
pulled in order, as many at a time as the driver may hold, and compared with the summary: Spark encodes a block anew
that it has lost, and then the rows may have come in another order.
"""

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from crc32c import crc32c
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 (Spark's own name for it)

from onceflow.client.cluster import Cluster
from onceflow.spark.exactly_once.sink_errors import AttemptEnded, SinkStopped
from onceflow.spark.kafka.encode import POSITIONS_PER_TASK, SCHEMA, Encoder, Share, Target, find_target
from onceflow.spark.kafka.sender import Blob, TopicPartition

DRIVER_BYTES = 64 * 1024 * 1024
"""Blobs that the driver holds at a time."""
SHARE_MARGIN = 1.25
"""What the largest task brought of the batch before must fit so many times into a task's share."""
_COLUMNS = {
    "key": ("string", "binary"),
    "value": ("string", "binary"),
    "topic": ("string",),
    "partition": ("int",),
    "headers": ("array<struct<key:string,value:binary>>",),
    "timestamp": ("timestamp",),
}


def record_columns(rows: DataFrame, topic: str | None, partitioner: Any) -> DataFrame:
    """The columns that make a record, as in Spark's own sink, with the partitioner's result as `partition`.

    Raises SinkStopped for a column of another type, without a value, and without any topic.
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
        raise SinkStopped(f"the rows have columns {', '.join(types)} and none is value: select what to write as value")
    if topic is None and "topic" not in types:
        raise SinkStopped("neither the sink nor the rows name a topic: give kafka_sink(topic=…) or a column topic")
    used = [name for name in _COLUMNS if name in types and not (name == "topic" and topic is not None)]
    return rows.select(*used)


class KafkaOutput:
    """Where rows go, and how the executors encode them: to the encoder's topic, or to those of the column."""

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
        """Raises UnknownTopic where the encoder's topic is not there."""
        self._targets()

    def encode(self, rows: DataFrame, turn: int) -> "EncodedFrame":
        """The rows of batch `turn`, encoded by the executors when they are first asked for."""
        columns = record_columns(rows, self.encoder.topic, self._partitioner)
        now_ms = time.time_ns() // 1_000_000
        encoder = replace(self.encoder, now_ms=now_ms, turn=turn, targets=self._targets())
        self._before = EncodedFrame(columns, encoder, self._driver_bytes, self._share())
        return self._before

    def _share(self) -> Share | None:
        """What tasks may bring of the next batch at once; None where nothing is known, or the last one had too much."""
        sizes = {} if self._before is None else self._before.task_sizes()
        if sizes:
            self._tasks = max(self._tasks, max(sizes) + 1)
            self._largest_bytes = max(sizes.values())
        if self._tasks == 0:
            return None
        share_bytes = self._driver_bytes // self._tasks
        return Share(self._tasks, share_bytes) if SHARE_MARGIN * self._largest_bytes <= share_bytes else None

    def _targets(self) -> dict[str, Target]:
        """The output topic as it is now, where one is given; its limit is asked for once."""
        topic = self.encoder.topic
        if topic is None:
            return {}
        if topic not in self._limits:
            self._limits[topic] = find_target(self._cluster, topic).message_bytes_max
        return {topic: Target(len(self._cluster.require_topic(topic).partitions), self._limits[topic])}


class EncodedFrame:
    """The encoded rows of one micro-batch; `close` lets the driver and Spark forget them.

    With `share` the tasks bring their blobs at once as far as that goes, and the driver keeps them if those are all.
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
        """Gives the driver's and the executors' memory back."""
        self._held = None
        if self._persisted is not None:
            self._persisted.unpersist()
            self._persisted = None

    def task_sizes(self) -> Mapping[int, int]:
        """The bytes of each task's blobs; nothing where there are none, or they are not known."""
        sizes: Counter[int] = Counter()
        for row in self._summary or ():
            sizes[row["position"] // POSITIONS_PER_TASK] += row["size_bytes"]
        return sizes

    def records(self) -> Mapping[TopicPartition, int]:
        """Records of each partition that has any."""
        found: dict[TopicPartition, int] = {}
        for row in self._rows():
            place = (row["topic"], row["partition"])
            found[place] = found.get(place, 0) + row["record_count"]
        return found

    def partition_counts(self) -> Mapping[str, int]:
        """How many partitions each topic had, for the driver or the tasks. Raises AttemptEnded if they do not agree."""
        found = dict(self._known)
        for row in self._rows():
            if found.setdefault(row["topic"], row["partition_count"]) != row["partition_count"]:
                self._summary = None
                raise AttemptEnded(f"topic {row['topic']} changed its partitions while rows were encoded")
        return found

    def blobs(self) -> Iterator[Sequence[Blob]]:
        """All blobs in order, up to the driver's budget at a time. Raises AttemptEnded where one is not as encoded."""
        for pull in self._pulls():
            found = self._held
            if found is None:
                assert self._persisted is not None
                positions = F.col("position").between(pull[0]["position"], pull[-1]["position"])
                found = _by_position(self._persisted.where(positions).select("position", "data").toArrow())
            yield [self._checked(row, found) for row in pull]

    def _checked(self, row: Mapping[str, Any], found: Mapping[int, memoryview]) -> Blob:
        data = found.get(row["position"])
        if data is None or len(data) != row["size_bytes"] or crc32c(data) != row["crc"]:
            self._summary = None
            raise AttemptEnded(
                f"an executor lost encoded rows of {row['topic']}-{row['partition']} and they were encoded again, "
                "not to the same bytes"
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
            table = self._given_at_once()
            if table is None:
                self._persisted = self._frame.mapInArrow(self._encoder, SCHEMA).persist()
                table = self._persisted.drop("data").toArrow()
            self._summary = sorted(table.to_pylist(), key=lambda row: int(row["position"]))
        return self._summary

    def _given_at_once(self) -> Any:
        """The table of all blobs but for their bytes, which are held now; None where a task had too many."""
        if self._share is None:
            return None
        table = self._frame.mapInArrow(replace(self._encoder, share=self._share), SCHEMA).toArrow()
        if table.column("data").null_count:
            return None
        self._held = _by_position(table)
        return table.drop_columns("data")


def _by_position(table: Any) -> dict[int, memoryview]:
    """The blobs by position, as views of Arrow's own memory."""
    found: dict[int, memoryview] = {}
    for batch in table.to_batches():
        for position, data in zip(batch["position"].to_pylist(), batch["data"], strict=True):
            found[position] = memoryview(data.as_buffer())
    return found
