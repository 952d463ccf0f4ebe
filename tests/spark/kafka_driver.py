"""A driver of the Kafka sink without Spark, which can die at any named point, and a reader of its output."""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from onceflow.client.cluster import LATEST, Cluster
from onceflow.client.records import read_records
from onceflow.spark.exactly_once.batch import Batch
from onceflow.spark.exactly_once.checkpoint import LocalCheckpoint
from onceflow.spark.kafka.marker import MarkerLocation
from onceflow.spark.kafka.sender import Blob
from onceflow.spark.kafka.target import KafkaTarget
from onceflow.spark.kafka.transaction import Settings
from onceflow.spark.offsets import OffsetRange
from onceflow.spark.sink import write_batch
from onceflow.wire import TopicPartition
from onceflow.wire.codecs import Codec
from onceflow.wire.column_batches import RecordColumns, encode_columns

MARKER_TOPIC = "onceflow-markers-of-tests"
QUERY = "5f3c2a10-0000-4000-8000-000000000001"
ROWS = 30
PARTITIONS = 3

Values = Mapping[int, Sequence[bytes]]
"""Values by partition, in order."""


class Killed(BaseException):
    """The end of the driver's process: nothing is cleaned up."""


@dataclass
class Rows:
    """Encoded rows in memory, pulled `blobs_per_pull` blobs at a time.

    `between` is called with the number of each pull before it, except the first.
    """

    topic: str
    values: Values
    codec: Codec = Codec.LZ4
    blobs_per_pull: int = 4
    partition_count: int = PARTITIONS
    batch_bytes: int = 200
    """Small, so that a partition has several batches."""
    between: Callable[[int], None] = lambda _number: None
    pulls: int = 0

    def records(self) -> Mapping[TopicPartition, int]:
        return {(self.topic, partition): len(held) for partition, held in self.values.items() if held}

    def partition_counts(self) -> Mapping[str, int]:
        return {self.topic: self.partition_count}

    def blobs(self) -> Iterator[Sequence[Blob]]:
        turns = zip_longest(*(self._encoded(partition, held) for partition, held in self.values.items()))
        blobs = [blob for turn in turns for blob in turn if blob is not None]
        for number, begin in enumerate(range(0, len(blobs), self.blobs_per_pull)):
            self.pulls += 1
            if number:
                self.between(number)
            yield blobs[begin : begin + self.blobs_per_pull]

    def close(self) -> None:
        """Do nothing: the rows are in memory."""

    def _encoded(self, partition: int, held: Sequence[bytes]) -> list[Blob]:
        if not held:
            return []
        column = pa.array(held, pa.binary())
        rows = RecordColumns(column, column, np.full(len(held), time.time_ns() // 1_000_000))
        partitions = np.full(len(held), partition)
        batches = encode_columns(
            rows, partitions, codec=self.codec, batch_bytes=self.batch_bytes, batch_bytes_max=4_000_000
        )
        return [Blob(self.topic, batch.partition, batch.record_count, batch.data) for batch in batches]


def batch(number: int, *, plan: str = "plan", version: int = 1, begin: int | None = None) -> Batch:
    """Return micro-batch `number`: ROWS offsets, or none in batch 0."""
    end = ROWS * number
    first = max(end - ROWS, 0) if begin is None else begin
    return Batch(QUERY, number, (OffsetRange("in", 0, first, end),), plan, version)


def values_of(number: int) -> Values:
    """Return the values that batch `number` writes; the last partition gets none."""
    spread: dict[int, list[bytes]] = {partition: [] for partition in range(PARTITIONS)}
    if number > 0:
        for row in range(ROWS):
            spread[row % (PARTITIONS - 1)].append(b"%d of batch %d" % (row, number))
    return spread


@dataclass
class Driver:
    """One start of the query, killed at the point and visit of `dies_at`."""

    bootstrap: str
    topic: str
    owner: str = "owner-1"
    dies_at: tuple[str, int] | None = None
    accepted: Mapping[str, int] = field(default_factory=dict)
    settings: Mapping[str, object] = field(default_factory=dict)
    visits: Counter[str] = field(default_factory=Counter)
    timeout_ms: int = 10_000
    marker_topic: str = MARKER_TOPIC

    def __post_init__(self) -> None:
        self.cluster = Cluster(self.bootstrap, timeout_ms=self.timeout_ms)
        self.location = MarkerLocation(f"onceflow-{self.topic}", self.marker_topic, 0)
        settings = Settings(**{"retry_timeout_ms": 10_000, "sleep": quick_sleep, "at": self._at, **self.settings})  # type: ignore[arg-type]
        self.target = KafkaTarget(
            self.cluster,
            "kafka",
            output=self,
            marker_location=lambda _query: self.location,
            owner=self.owner,
            settings=settings,
            accepted=self.accepted,
        )
        self.encoded = 0

    def write(self, number: int, rows: Rows | None = None, of: Batch | None = None) -> bool:
        handed: Any = rows or Rows(self.topic, values_of(number))
        return write_batch(self.target, handed, of or batch(number), Planned())

    def require(self) -> None:
        """Do nothing: the test has created the topic."""

    def encode(self, rows: Any, _turn: int) -> Rows:
        """Return the rows, which are already encoded, and count the call."""
        self.encoded += 1
        return rows

    def close(self) -> None:
        self.cluster.close()

    def _at(self, point: str) -> None:
        self.visits[point] += 1
        if self.dies_at == (point, self.visits[point]):
            raise Killed(point)


class Planned(LocalCheckpoint):
    """A checkpoint without files that knows each batch."""

    def __init__(self) -> None:
        super().__init__(Path("nowhere"))

    def batch(self, number: int, *, plan: str, plan_version: int) -> Batch:
        return batch(number, plan=plan, version=plan_version)


def quick_sleep(seconds: float) -> None:
    time.sleep(min(seconds, 0.02))


def make_topics(bootstrap: str, topic: str) -> None:
    with Cluster(bootstrap) as cluster:
        if MARKER_TOPIC not in cluster.topics(MARKER_TOPIC):
            cluster.create_topic(MARKER_TOPIC, 1, configs={"cleanup.policy": "compact"})
        cluster.create_topic(topic, PARTITIONS)


def visible(bootstrap: str, topic: str, partitions: int = PARTITIONS) -> dict[int, list[bytes | None]]:
    """Return the values that a read_committed consumer sees, by partition and in order."""
    values = {}
    with Cluster(bootstrap) as cluster:
        ends = cluster.list_offsets(topic, dict.fromkeys(range(partitions), LATEST))
        for partition, end in ends.items():
            values[partition] = [record.value for record in read_records(cluster, topic, partition, 0, end.offset)]
    return values


def expect(bootstrap: str, topic: str, batches: int) -> None:
    """Wait for the records of batches 0 to `batches` - 1, and assert that each is there once and in order.

    Kafka writes a transaction's markers a moment after its commit.
    """
    wanted = {partition: [] for partition in range(PARTITIONS)}  # type: dict[int, list[bytes | None]]
    for number in range(batches):
        for partition, held in values_of(number).items():
            wanted[partition] += held
    eventually(lambda: sum(map(len, visible(bootstrap, topic).values())) >= sum(map(len, wanted.values())))
    assert visible(bootstrap, topic) == wanted


def eventually(done: Callable[[], bool], within_s: float = 60) -> None:
    deadline = time.monotonic() + within_s
    while not done() and time.monotonic() < deadline:
        time.sleep(0.02)
