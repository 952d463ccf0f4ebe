"""Where the Kafka sink writes: each batch in one transaction that has its own marker in it, twice (`kafka_marker`).

The base's steps are those of the transaction: `recover` takes a new epoch and reads the marker, `write` encodes, adds
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
from onceflow.spark.exactly_once.batch import Batch
from onceflow.spark.exactly_once.decision import Wording
from onceflow.spark.exactly_once.proof import Proof
from onceflow.spark.exactly_once.sink_errors import AttemptEnded, SinkStopped
from onceflow.spark.kafka.marker import KafkaMarker, Place, agreed, pinned
from onceflow.spark.kafka.sender import Blob, TopicPartition
from onceflow.spark.kafka.siblings import refuse_written_output, wait_until_readable
from onceflow.spark.kafka.steps import Refused
from onceflow.spark.kafka.transaction import Settings, Transaction
from onceflow.spark.sink import Sink
from onceflow.wire.batch import Record, encode_batch


class EncodedRows(Protocol):
    """The rows of a batch as finished record batches, wherever they are kept."""

    def records(self) -> Mapping[TopicPartition, int]:
        """How many were encoded for each partition that has any."""

    def partition_counts(self) -> Mapping[str, int]:
        """How many partitions each output topic had for the encoders."""

    def blobs(self) -> Iterator[Sequence[Blob]]:
        """All of them in order, as many at a time as the driver may hold. Raises AttemptEnded for a lost one."""

    def close(self) -> None:
        """Lets Spark forget them."""


class Output(Protocol):
    """Makes rows record batches."""

    def require(self) -> None:
        """Raises UnknownTopic where there is nothing to write to."""

    def encode(self, rows: DataFrame, turn: int) -> EncodedRows:
        """The rows of batch `turn`, encoded."""


class KafkaTarget(Sink):
    """One start of one query's sink.

    `place_of` tells where the marker of a query is. `owner` is a random id of this start: a marker of another owner
    that appears while this start lives was written by another driver.
    """

    def __init__(
        self,
        cluster: Cluster,
        name: str,
        *,
        output: Output,
        place_of: Callable[[str], Place],
        owner: str,
        settings: Settings,
        accepted: Mapping[str, int] = MappingProxyType({}),
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self.name = name
        self.settings = settings
        self.output = output
        self.last: KafkaMarker | None = None
        """What was found or committed last."""
        self._cluster = cluster
        self._place_of = functools.cache(place_of)
        self._owner = owner
        self._accepted = accepted
        self._now_ms = now_ms
        self._first_owner: str | None = None
        self._rows: EncodedRows | None = None

    def open(self, session: Any, query: str | None) -> None:
        """Raises UnknownTopic where the output is not there."""
        self.output.require()

    def recover(self, query: str) -> KafkaMarker | None:
        """Steps 1 to 3: a new epoch, which ends what is open, and then the marker."""
        self._place = self._place_of(query)
        self._transaction = Transaction(self._cluster, self._place, self.settings)
        with self._told_apart():
            self._transaction.begin()
            self.last = self._found()
        return self.last

    def prepare(self, batch: Batch, found: Proof | None) -> None:
        """Nothing is sent: a transaction's time begins with its first partition."""
        self._batch = batch

    def write(self, rows: DataFrame) -> None:
        """Steps 4 to 6, after the rows have been encoded."""
        self._rows = self.output.encode(rows, self._batch.number)
        self._counts = pinned(self.last, self._rows.partition_counts(), self._accepted)
        new = self._counts.keys() - (self.last.partitions.keys() if self.last is not None else set())
        if new:
            refuse_written_output(self._cluster, self._place, self.settings, self.name, self._batch.query, new)
        expected = dict(self._rows.records())
        with self._told_apart():
            self._transaction.add([*expected, self._home])
            for blobs in self._rows.blobs():
                self._transaction.sender.send(blobs)
        acknowledged = self._transaction.sender.acknowledged
        # The coordinator commits whatever there is, so nobody else would notice.
        if acknowledged != expected:
            raise AttemptEnded(
                f"{sum(acknowledged.values())} records were acknowledged and {sum(expected.values())} encoded"
            )

    def commit(self, proof: Proof) -> None:
        """Steps 6 to 8: the marker as a record and as an offset, and the end of the transaction."""
        marker = KafkaMarker(**vars(proof), owner=self._owner, partitions=self._counts)
        record = encode_batch([Record(0, self._now_ms(), self._place.name.encode(), marker.value())])
        with self._told_apart():
            self._transaction.sender.send([Blob(*self._home, 1, record)])
            self._transaction.commit_marker(marker, self._transaction.sender.base_offsets[self._home])
            self._transaction.commit()
        self.last = marker
        self._forget_rows()

    def abort(self) -> None:
        try:
            self._forget_rows()
        finally:
            self._transaction.abort()

    def close(self) -> None:
        self._cluster.close()

    @property
    def wording(self) -> Wording:
        return self._place.wording

    @property
    def _home(self) -> TopicPartition:
        return self._place.topic, self._place.partition

    def _forget_rows(self) -> None:
        rows, self._rows = self._rows, None
        if rows is not None:
            rows.close()

    @contextlib.contextmanager
    def _told_apart(self) -> Iterator[None]:
        """A newer epoch is a time-out, which ends the attempt, or another driver, which stops this one."""
        try:
            yield
        except Refused as refused:
            self._transaction.refuse_if_fenced(refused)
            raise

    def _found(self) -> KafkaMarker | None:
        """The marker as both copies have it; the record is read unless the group has what this driver wrote last."""
        in_group = self._transaction.group_marker()
        if in_group is not None and self.last is not None and in_group[0].shared == self.last.shared:
            return self.last
        in_record = self._record(None if in_group is None else in_group[1])
        if in_group is not None and in_record is not None and in_group[0].shared != in_record.shared:
            # Another driver may have committed between the two questions; it has fenced this one by that.
            in_group = self._transaction.group_marker()
        found = agreed(self._place, in_group[0] if in_group is not None else None, in_record)
        owner = "" if found is None else found.owner
        if self._first_owner is None:
            self._first_owner = owner
        if owner not in (self._first_owner, self._owner):
            raise SinkStopped(
                f"{self._place} was written by another driver (owner {owner}) while this one (owner {self._owner}) "
                f"was running: one query must run once, {Remedy.END_OTHER_DRIVER}"
            )
        return found

    def _record(self, proven: int | None) -> KafkaMarker | None:
        """The marker's record; `proven` is where the group says that it is.

        Without a group to name the record, all that is there must be readable.
        """
        if proven is None:
            wait_until_readable(self._cluster, self._place, self.settings)
        return self._place.read_record(self._cluster, proven)
