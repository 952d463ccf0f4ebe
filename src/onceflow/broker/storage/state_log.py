"""A partition that holds a coordinator's state: appended record by record, replayed as a whole.

Without a cluster it is replayed at start. In a cluster it is replayed when the broker becomes the partition's leader,
up to the log's end: what a former leader appended there is this leader's, and gets to the other replicas (Kafka's
GroupMetadataManager.doLoadGroupsAndOffsets). A change is acted on in memory when it is appended, and shown to clients
when all in-sync replicas have it (`when_synced`).
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from onceflow.broker.storage.group_commit import GroupCommit
from onceflow.broker.storage.partitions import Partition, Synced
from onceflow.log.clock import Clock
from onceflow.log.errors import LogError
from onceflow.wire.batch import BatchHeader, Record, batches, decode_batch
from onceflow.wire.batch_encoder import BatchEncoder
from onceflow.wire.errors import ErrorCode
from onceflow.wire.markers import Marker, decode_marker

READ_BYTES = 1024 * 1024
NO_PRODUCER = -1

KeyValue = tuple[bytes | None, bytes | None]


class TooFewReplicas(LogError):
    """Fewer replicas are in sync than `min.insync.replicas`; nothing was appended."""

    error_code = ErrorCode.not_enough_replicas


class NotLeading(LogError):
    """Another broker leads the partition now, or will; nothing was appended."""

    error_code = ErrorCode.not_leader_or_follower


class StateBatch(NamedTuple):
    """One batch of the log; a control batch has no records, and a marker if it ends a transaction."""

    header: BatchHeader
    records: Sequence[Record]
    marker: Marker | None


class StateLog:
    """Writes and reads the records of one partition of this broker."""

    is_elsewhere = False
    """Whether another broker of the cluster has the log."""

    def __init__(self, partition: Partition, clock: Clock, group_commit: GroupCommit) -> None:
        self.partition = partition
        self._clock = clock
        self._group_commit = group_commit
        self._is_closed = False

    def close(self) -> None:
        """Append nothing more: this broker leads the partition no longer."""
        self._is_closed = True

    @property
    def size_bytes(self) -> int:
        return self.partition.log.segments.size_bytes

    def append(
        self,
        entries: Sequence[KeyValue] | BatchEncoder,
        *,
        producer_id: int = NO_PRODUCER,
        producer_epoch: int = NO_PRODUCER,
        from_reserve: bool = False,
        is_awaited: bool = True,
    ) -> int:
        """Append `entries` in one batch, so that a crash keeps all or none; return the first one's offset.

        They may be encoded already, with an earlier timestamp: those of a large request are, over several turns.
        With a producer id the batch belongs to that producer's transaction and has no sequence, as Kafka's own
        coordinators write it. `from_reserve` is for records that delete or end something: on a full disk no others are
        appended. Unless a response `is_awaited`, the sync may wait for the next append. Raises LogError, among them
        TooFewReplicas and NotLeading.
        """
        self._require_replicas()
        if not isinstance(entries, BatchEncoder):
            encoder = BatchEncoder(self._clock.now_ms())
            for key, value in entries:
                encoder.append(key, value)
            entries = encoder
        batch = entries.encode(
            producer_id=producer_id, producer_epoch=producer_epoch, transactional=producer_id != NO_PRODUCER
        )
        appended = self.partition.log.append(batch, by_coordinator=True, from_reserve=from_reserve)
        if is_awaited:
            self._group_commit.request(self.partition)
        else:
            self._group_commit.request_soon(self.partition)
        return appended.base_offset

    def append_marker(
        self, producer_id: int, producer_epoch: int, *, commit: bool, coordinator_epoch: int | None = None
    ) -> None:
        """End the producer's transaction in this log; without `coordinator_epoch`, as this broker's own coordinator.

        Raises LogError, as `append` does.
        """
        self._require_replicas()
        self.partition.log.append_marker(
            producer_id, producer_epoch, commit=commit, coordinator_epoch=coordinator_epoch
        )
        self._group_commit.request(self.partition)

    def _require_replicas(self) -> None:
        if self._is_closed:
            raise NotLeading(f"another broker leads {self.partition}")
        replica = self.partition.replica
        if replica is not None and replica.refusal():
            raise TooFewReplicas(f"{self.partition}: fewer replicas are in sync than min.insync.replicas")

    def when_synced(self, synced: Synced) -> None:
        """Call `synced` once everything in the log now is durable, on all in-sync replicas.

        Or with an error: NOT_LEADER_OR_FOLLOWER when another broker becomes the leader before that.
        """
        self.partition.when_synced(self.partition.log.log_end_offset, synced)

    def records(self) -> Iterator[Record]:
        """Yield every record of the log, those of transactions included, whatever their outcome."""
        for batch in self.batches():
            yield from batch.records

    def batches(self, read_bytes: int = READ_BYTES) -> Iterator[StateBatch]:
        """Yield every batch up to the log's end, in order; about `read_bytes` are read at a time."""
        log = self.partition.log
        offset = log.log_start_offset
        while offset < log.log_end_offset:
            piece = log.visible.read_beyond(offset, read_bytes, at_least_one_batch=True)
            if piece is None:
                return
            data = piece.read()
            for position, header in batches(data):
                if header.is_control:
                    yield StateBatch(header, (), decode_marker(data, position))
                else:
                    yield StateBatch(header, decode_batch(data, position), None)
                offset = header.last_offset + 1


class StateLogElsewhere(StateLog):
    """The log of another broker of the cluster: here it has no records, and nothing can be appended.

    Callers ask `is_elsewhere` before they append.
    """

    is_elsewhere = True
    size_bytes = 0

    def __init__(self) -> None:
        """There is no partition."""

    def when_synced(self, synced: Synced) -> None:
        """Call `synced` at once: there is nothing to sync."""
        synced(ErrorCode.none)

    def batches(self, read_bytes: int = READ_BYTES) -> Iterator[StateBatch]:
        """Yield nothing."""
        return iter(())
