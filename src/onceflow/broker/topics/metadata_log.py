"""The log `__cluster_metadata-0`: topics and their configurations, producer ids, credentials, ACLs and quotas."""

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from onceflow.broker.storage.group_commit import GroupCommit
from onceflow.broker.storage.partitions import Partition, Synced
from onceflow.broker.storage.state_log import StateLog
from onceflow.broker.topics import records as metadata_records
from onceflow.broker.topics.records import (
    MetadataRecord,
)
from onceflow.broker.topics.security_state import SecurityState
from onceflow.broker.topics.topics import CLUSTER_METADATA_TOPIC, Topic, TopicRefused, Topics
from onceflow.log.clock import Clock
from onceflow.log.errors import LogError
from onceflow.log.partition import PartitionLog
from onceflow.log.reserve import ReservedDisk
from onceflow.wire.errors import ErrorCode

NO_PRODUCER_ID = -1


Follow = Callable[[Callable[[], Sequence[tuple[Topic, int]]]], None]
"""Opens what was added to topics: takes a function that replays it, and returns the topics with their number of
partitions before."""
DeleteTopics = Callable[
    [Callable[[], Sequence[Topic]], Callable[[Sequence[tuple[Topic, ErrorCode, str | None]]], None]], None
]
"""Deletes topics: takes a function that finds them, and one that gets the results."""


class MetadataStore(Protocol):
    """Where topics, ACLs, users and quotas are stored: in a log of this broker, or in ZooKeeper."""

    @property
    def partitions(self) -> Sequence[Partition]:
        """The partitions of its own log."""

    @property
    def is_disconnected(self) -> bool:
        """Whether ZooKeeper cannot be reached at present."""

    @property
    def is_controller(self) -> bool:
        """Whether this broker decides about topics."""

    def record(self, records: Sequence[MetadataRecord], *, from_reserve: bool = False) -> None:
        """Store and replay a change. Raises LogError, TopicRefused."""

    def can_store_acls_of(self, name: str) -> bool:
        """Return whether a pattern of this name can have ACLs."""

    def can_store_entity(self, name: str) -> bool:
        """Return whether a user or client id of this name can be stored."""

    def record_config(self, records: Sequence[MetadataRecord]) -> None:
        """Store and replay a topic's configurations. Raises LogError, TopicRefused."""

    def require_controller(self) -> None:
        """Raise TopicRefused unless this broker may create, extend and delete topics."""

    def finish_deletions(self, names: Iterable[str], released: Callable[[Iterable[str]], None]) -> None:
        """Forget deleted topics, now that their files and offsets are deleted here; `released` gets their names."""

    def follow_others(self, follow: Follow, delete: DeleteTopics) -> None:
        """Apply what other programs store, from now on."""

    def when_synced(self, synced: Synced) -> None:
        """Call `synced` once the current state of the topics is durable (at once if it is), or with the error."""

    def when_shown(self, shown: Callable[[], None]) -> None:
        """Call `shown` once clients may see the current state of the topics."""

    def sync(self) -> None:
        """Block until all changes are durable; for the start, before any client is served."""

    def next_producer_id(self, respond: Callable[[ErrorCode, int], None]) -> None:
        """Respond with a producer id that was never used before."""

    def close(self) -> None:
        """End after the logs are closed."""


def record_changes(metadata: MetadataStore, records: Sequence[MetadataRecord]) -> ErrorCode:
    """Record the changes of one request, if it has any; return the error of the log."""
    if records:
        try:
            metadata.record(records)
        except (LogError, TopicRefused) as error:
            return error.error_code
    return ErrorCode.none


class MetadataLog:
    """Stores every change of the cluster's metadata and replays it, at run time and at start."""

    is_disconnected = False
    """It needs no ZooKeeper."""
    is_controller = True

    def __init__(
        self,
        log: PartitionLog,
        topics: Topics,
        security: SecurityState,
        *,
        clock: Clock,
        group_commit: GroupCommit,
        disk: ReservedDisk,
    ) -> None:
        """Replay the log into the states. Raises UnknownRecord, LogError, WireError."""
        partition = Partition(CLUSTER_METADATA_TOPIC, 0, log)
        self.partitions = (partition,)
        self._topics = topics
        self._security = security
        self._disk = disk
        self._log = StateLog(partition, clock, group_commit)
        self._producer_ids = iter(range(0))
        for record in self._log.records():
            assert record.value is not None
            self._replay(metadata_records.decode(record.value))

    def record(self, records: Sequence[MetadataRecord], *, from_reserve: bool = False) -> None:
        """Append and replay a change, in one batch. Raises LogError."""
        entries = [(None, metadata_records.encode(record)) for record in records]
        self._log.append(entries, from_reserve=from_reserve)
        for record in records:
            self._replay(record)

    def can_store_acls_of(self, name: str) -> bool:
        """Return that a record can have any name."""
        return True

    can_store_entity = can_store_acls_of

    def _replay(self, record: MetadataRecord) -> None:
        if not self._security.replay(record):
            self._topics.replay(record)

    def record_config(self, records: Sequence[MetadataRecord]) -> None:
        """Append and replay a topic's configurations. Raises LogError.

        They may use the reserve, since a full disk is freed by lowering retention. Half of it is left to deletions.
        """
        self.record(records, from_reserve=self._disk.leaves_half())

    def require_controller(self) -> None:
        """Do nothing: there is no other broker."""

    def finish_deletions(self, names: Iterable[str], released: Callable[[Iterable[str]], None]) -> None:
        """Release the names at once: a topic's removal is one record."""
        released(names)

    def follow_others(self, _follow: Follow, _delete: DeleteTopics) -> None:
        """Do nothing: no other program writes the log."""

    def when_shown(self, shown: Callable[[], None]) -> None:
        """Call `shown` when the topics are durable, and also if that failed: clients cannot use them then."""
        self._log.when_synced(lambda _error_code: shown())

    def close(self) -> None:
        """Do nothing: the broker closes the log with the others."""

    def when_synced(self, synced: Synced) -> None:
        """Call `synced` once the current state is durable (at once if it is), or with the error."""
        self._log.when_synced(synced)

    def sync(self) -> None:
        """Block until the log is durable; for the start, before any client is served. Raises OSError."""
        log = self._log.partition.log
        point = log.durability.begin_sync()
        assert point is not None
        point.run()
        log.durability.end_sync(point)
        if point.problem is not None and not point.is_durable:
            raise point.problem

    def next_producer_id(self, respond: Callable[[ErrorCode, int], None]) -> None:
        """Respond with a producer id that was never used before, once the record that reserves it is durable."""
        producer_id = next(self._producer_ids, None)
        if producer_id is None:
            first = self._topics.next_producer_id
            try:
                self.record(self._topics.decide_producer_ids())
            except LogError as error:
                respond(error.error_code, NO_PRODUCER_ID)
                return
            self._producer_ids = iter(range(first, self._topics.next_producer_id))
            producer_id = next(self._producer_ids)
        self.when_synced(lambda code: respond(code, NO_PRODUCER_ID if code else producer_id))
