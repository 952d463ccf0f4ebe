"""The Kafka sink's target: writes each batch in one transaction that includes both copies of its marker (`marker`).

The sink's steps are those of the transaction: `recover` takes a new epoch and reads the marker, `write` encodes, adds
the partitions and sends, `commit` writes both copies of the marker and ends the transaction.
"""

import contextlib
import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol

from pyspark.sql import DataFrame

from onceflow.client.cluster import Cluster
from onceflow.remedies import Remedy
from onceflow.spark.errors import AttemptEnded, SinkStopped
from onceflow.spark.exactly_once.batch import Batch
from onceflow.spark.exactly_once.decision import Wording
from onceflow.spark.exactly_once.proof import Proof
from onceflow.spark.kafka.marker import KafkaMarker, MarkerLocation, agreed, pinned
from onceflow.spark.kafka.sender import Blob
from onceflow.spark.kafka.siblings import refuse_written_output, wait_until_readable
from onceflow.spark.kafka.steps import Refused
from onceflow.spark.kafka.transaction import Settings, Transaction
from onceflow.spark.sink import Sink
from onceflow.wire import TopicPartition
from onceflow.wire.batch import Record, encode_batch


class EncodedRows(Protocol):
    """The rows of a batch as encoded record batches, wherever they are kept."""

    def records(self) -> Mapping[TopicPartition, int]:
        """Return the encoded records of each partition that has any."""

    def partition_counts(self) -> Mapping[str, int]:
        """Return the partition count of each output topic, as the encoders saw it."""

    def blobs(self) -> Iterator[Sequence[Blob]]:
        """Yield all blobs in order, up to the driver's budget at a time. Raises AttemptEnded for a lost one."""

    def close(self) -> None:
        """Release them in Spark."""


class Output(Protocol):
    """Encoder of rows into record batches."""

    def require(self) -> None:
        """Raise UnknownTopic if the output topic does not exist."""

    def encode(self, rows: DataFrame, turn: int) -> EncodedRows:
        """Return the encoded rows of batch `turn`."""


class KafkaTarget(Sink):
    """The target of one start of one query's sink.

    `marker_location` returns the location of a query's marker. `owner` is a random id of this start: a marker of
    another owner that appears while this start runs was written by another driver.
    """

    def __init__(
        self,
        cluster: Cluster,
        name: str,
        *,
        output: Output,
        marker_location: Callable[[str], MarkerLocation],
        owner: str,
        settings: Settings,
        accepted: Mapping[str, int] = MappingProxyType({}),
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self.name = name
        self.settings = settings
        self.output = output
        self.last: KafkaMarker | None = None
        """Marker that was read or committed last."""
        self._cluster = cluster
        self._marker_location = functools.cache(marker_location)
        self._owner = owner
        self._accepted = accepted
        self._now_ms = now_ms
        self._first_owner: str | None = None
        self._rows: EncodedRows | None = None

    def open(self, session: Any, query: str | None) -> None:
        """Raise UnknownTopic if the output topic does not exist."""
        self.output.require()

    def recover(self, query: str) -> KafkaMarker | None:
        """Do steps 1 to 3: take a new epoch, which ends open transactions, and read the marker."""
        self._location = self._marker_location(query)
        self._transaction = Transaction(self._cluster, self._location, self.settings)
        with self._classify_fencing():
            self._transaction.begin()
            self.last = self._read_marker()
        return self.last

    def prepare(self, batch: Batch, previous: Proof | None) -> None:
        """Send nothing: the transaction's time-out starts with its first partition."""
        self._batch = batch

    def write(self, rows: DataFrame) -> None:
        """Encode the rows, then do steps 4 to 6."""
        self._rows = self.output.encode(rows, self._batch.number)
        self._counts = pinned(self.last, self._rows.partition_counts(), self._accepted)
        new = self._counts.keys() - (self.last.partitions.keys() if self.last is not None else set())
        if new:
            refuse_written_output(self._cluster, self._location, self.settings, self.name, self._batch.query, new)
        expected = dict(self._rows.records())
        with self._classify_fencing():
            self._transaction.add([*expected, self._marker_partition])
            for blobs in self._rows.blobs():
                self._transaction.sender.send(blobs)
        acknowledged = self._transaction.sender.acknowledged
        # The coordinator commits an incomplete set of records, too.
        if acknowledged != expected:
            raise AttemptEnded(
                f"{sum(acknowledged.values())} records were acknowledged and {sum(expected.values())} encoded"
            )

    def commit(self, proof: Proof) -> None:
        """Do steps 6 to 8: write the marker as a record and as an offset, and end the transaction."""
        marker = KafkaMarker(**vars(proof), owner=self._owner, partitions=self._counts)
        record = encode_batch([Record(0, self._now_ms(), self._location.name.encode(), marker.value())])
        with self._classify_fencing():
            self._transaction.sender.send([Blob(*self._marker_partition, 1, record)])
            self._transaction.commit_marker(marker, self._transaction.sender.base_offsets[self._marker_partition])
            self._transaction.commit()
        self.last = marker
        self._release_rows()

    def abort(self) -> None:
        try:
            self._release_rows()
        finally:
            self._transaction.abort()

    def close(self) -> None:
        self._cluster.close()

    @property
    def wording(self) -> Wording:
        return self._location.wording

    @property
    def _marker_partition(self) -> TopicPartition:
        return self._location.topic, self._location.partition

    def _release_rows(self) -> None:
        rows, self._rows = self._rows, None
        if rows is not None:
            rows.close()

    @contextlib.contextmanager
    def _classify_fencing(self) -> Iterator[None]:
        """Tell a time-out, which ends the attempt, from another driver, which stops this one: both raise the epoch."""
        try:
            yield
        except Refused as refused:
            self._transaction.refuse_if_fenced(refused)
            raise

    def _read_marker(self) -> KafkaMarker | None:
        """Return the marker; the record is read unless the group's copy is what this driver wrote last."""
        in_group = self._transaction.group_marker()
        if in_group is not None and self.last is not None and in_group[0].shared == self.last.shared:
            return self.last
        in_record = self._record(None if in_group is None else in_group[1])
        if in_group is not None and in_record is not None and in_group[0].shared != in_record.shared:
            # Another driver, which has fenced this one, may have committed between the two reads.
            in_group = self._transaction.group_marker()
        marker = agreed(self._location, in_group[0] if in_group is not None else None, in_record)
        owner = "" if marker is None else marker.owner
        if self._first_owner is None:
            self._first_owner = owner
        if owner not in (self._first_owner, self._owner):
            raise SinkStopped(
                f"{self._location} was written by another driver (owner {owner}) while this one (owner {self._owner}) "
                f"was running; only one may run: {Remedy.END_OTHER_DRIVER}"
            )
        return marker

    def _record(self, proven: int | None) -> KafkaMarker | None:
        """Return the marker's record; `proven` is its offset in the group's copy.

        Without the group's copy, all records of the partition must be readable.
        """
        if proven is None:
            wait_until_readable(self._cluster, self._location, self.settings)
        return self._location.read_record(self._cluster, proven)
