"""Operations on topics: recorded, synced, applied to the files, and then responded to.

They are decided one after another, as by Kafka's controller. An operation finds its topics and records its changes
after the one before it has recorded all of its own. Many topics are created in slices; other operations wait meanwhile.
Syncs and work on the files follow in the same order.

Every operation takes `respond`, called once with the result of each topic, and `failed`, called instead with a reason
if an unexpected error prevents the response, so the client is not left waiting.
"""

import asyncio
import logging
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace

from onceflow.broker.loop.background import Failed, ignore_failure, reporting_failure, run_in_thread
from onceflow.broker.loop.slices import run_in_slices
from onceflow.broker.storage.group_commit import GroupCommit
from onceflow.broker.storage.partitions import Partitions, Place
from onceflow.broker.topics.logs import TopicLogs
from onceflow.broker.topics.metadata_log import MetadataStore
from onceflow.broker.topics.records import ConfigRecord, MetadataRecord, PartitionRecord, TopicRecord
from onceflow.broker.topics.topics import MorePartitions, NewTopic, Topic, TopicRefused, Topics
from onceflow.errors import OnceflowError
from onceflow.log.config import LogConfig
from onceflow.log.errors import LogError
from onceflow.log.partition import PartitionLog
from onceflow.remedies import Remedy
from onceflow.wire.errors import ErrorCode

logger = logging.getLogger(__name__)

WORK_PER_CREATION = 25

Charge = Callable[[int], bool]
"""Takes this number of partitions from the client's quota; returns whether that allows them."""
QUOTA_EXCEEDED = "The throttling quota has been exceeded."
Deleted = tuple[Topic, ErrorCode, str | None]
Wish = tuple[Topic, Mapping[str, str | None]]
"""A topic, and all configurations that it should have."""
DeleteOffsets = Callable[[Set[str], Callable[[ErrorCode], None]], None]
"""Deletes all groups' offsets of the named topics, then calls back with the outcome."""


@dataclass(frozen=True, slots=True)
class Created:
    """Result of the creation of one topic."""

    name: str
    error_code: ErrorCode = ErrorCode.none
    error_message: str | None = None
    topic_id: uuid.UUID | None = None
    partition_count: int = -1
    replication_factor: int = -1
    configs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Changed:
    """Result of the change of one topic."""

    name: str
    error_code: ErrorCode = ErrorCode.none
    error_message: str | None = None


@dataclass(frozen=True, slots=True)
class _Opening:
    """Logs for a thread to open: partitions `start` to `end` (exclusive), with the config at the time of the record."""

    topic: Topic
    start: int
    end: int
    config: LogConfig


class TopicOperations:
    """The topic operations of one broker. All methods belong to the event loop's thread."""

    def __init__(
        self,
        topics: Topics,
        partitions: Partitions,
        *,
        metadata: MetadataStore,
        logs: TopicLogs,
        group_commit: GroupCommit,
        thread: Executor,
        delete_offsets: DeleteOffsets,
        opens_partitions: bool = True,
    ) -> None:
        """Without `opens_partitions`, `host` opens the logs of partitions, when a cluster's controller says so."""
        self._topics = topics
        self._opens_partitions = opens_partitions
        self._partitions = partitions
        self._metadata = metadata
        self._logs = logs
        self._group_commit = group_commit
        self._thread = thread
        self._delete_offsets = delete_offsets
        self._is_deciding = False
        self._undecided: deque[Callable[[], None]] = deque()

    # Order

    def _in_turn(self, decide: Callable[[], None], failed: Failed) -> None:
        """Decide an operation now, or after the operations before it."""
        if self._is_deciding:
            self._undecided.append(reporting_failure(failed, decide))
        else:
            reporting_failure(failed, decide)()

    def _decided(self) -> None:
        """Decide the next operation in the loop's next turn, after a creation has been recorded."""
        self._is_deciding = bool(self._undecided)
        if self._is_deciding:
            asyncio.get_running_loop().call_soon(self._decide_next)

    def _decide_next(self) -> None:
        decide = self._undecided.popleft()
        self._is_deciding = False
        try:
            decide()
        finally:
            if not self._is_deciding:
                self._decided()

    # Creating

    def create(
        self,
        wanted: Sequence[NewTopic],
        respond: Callable[[list[Created]], None],
        *,
        failed: Failed = ignore_failure,
        validate_only: bool = False,
        charge: Charge | None = None,
    ) -> None:
        """Create topics; respond when each is durable and open, or refused."""
        results: list[Created] = []
        openings: list[_Opening] = []

        def decide() -> Iterator[int]:
            try:
                for new in wanted:
                    created = self._create(new, validate_only=validate_only, charge=charge)
                    results.append(created)
                    if not created.error_code and not validate_only:
                        topic = self._topics.by_name[new.name]
                        openings.append(_Opening(topic, 0, topic.partition_count, self._logs.config_of(topic)))
                    yield WORK_PER_CREATION
            finally:
                self._decided()

        def decided() -> None:
            if openings:
                self._metadata.when_synced(reporting_failure(failed, synced))
            else:
                self._respond_when_synced(lambda: respond(results), failed)

        def synced(error_code: ErrorCode) -> None:
            if error_code:
                respond([result if result.error_code else replace(result, error_code=error_code) for result in results])
            else:
                self._open(openings, opened, failed)

        def opened(failures: Mapping[str, tuple[ErrorCode, str]]) -> None:
            respond([_with_failure(result, failures.get(result.name)) for result in results])

        def start() -> None:
            self._is_deciding = True
            run_in_slices(decide(), decided, failed=lambda error: failed(f"the topics could not be created: {error!r}"))

        self._in_turn(start, ignore_failure)

    def _respond_when_synced(self, respond: Callable[[], None], failed: Failed) -> None:
        """Respond once the topics are durable: even a refusal ("already exists") reveals them."""
        self._metadata.when_synced(reporting_failure(failed, lambda _error_code: respond()))

    def _create(self, new: NewTopic, *, validate_only: bool, charge: Charge | None) -> Created:
        try:
            self._metadata.require_controller()
            records = self._topics.decide_create(new)
            _take(charge, sum(isinstance(record, PartitionRecord) for record in records))
            if not validate_only:
                self._metadata.record(records)
        except (TopicRefused, LogError) as error:
            return Created(new.name, error.error_code, str(error))
        return _created(new.name, records)

    def _open(
        self,
        openings: Sequence[_Opening],
        opened: Callable[[Mapping[str, tuple[ErrorCode, str]]], None],
        failed: Failed,
    ) -> None:
        """Open logs in the housekeeping thread and serve them; `opened` gets the failures by topic.

        If a topic is deleted meanwhile, the same thread deletes its files afterwards.
        """

        def install(logs_or_errors: list[list[PartitionLog] | str]) -> None:
            failures = {}
            for opening, logs in zip(openings, logs_or_errors, strict=True):
                failure = self._install(opening, logs)
                if failure is not None:
                    failures[opening.topic.name] = failure
            opened(failures)

        run_in_thread(
            self._thread,
            lambda: [self._try_open(opening) if self._opens_partitions else [] for opening in openings],
            reporting_failure(failed, install),
            failed,
        )

    def _try_open(self, opening: _Opening) -> list[PartitionLog] | str:
        topic = opening.topic
        try:
            return self._logs.open(topic, range(opening.start, opening.end), opening.config, clean=False)
        except (OSError, OnceflowError) as error:
            logger.error("topic %s: partitions from %d on cannot be opened: %s", topic.name, opening.start, error)
            return str(error)

    def _install(self, opening: _Opening, logs: list[PartitionLog] | str) -> tuple[ErrorCode, str] | None:
        topic = opening.topic
        if isinstance(logs, str):
            return ErrorCode.kafka_storage_error, logs
        if self._topics.by_id.get(topic.topic_id) is not topic:
            # Its files are about to be deleted, so no record may be acknowledged there. Dropping the logs closes them.
            return ErrorCode.unknown_topic_or_partition, f"topic {topic.name} was deleted at the same time"
        if not self._opens_partitions:
            return None
        if self._partitions.count(topic.name) != opening.start:
            message = (
                f"topic {topic.name}: partitions before {opening.start} could not be opened; {Remedy.RESTART_BROKER}"
            )
            return ErrorCode.kafka_storage_error, message
        self._partitions.extend(topic.name, logs)
        if self._logs.config_of(topic) != opening.config:
            self._logs.reconfigure(topic)
        return None

    # Changes by other programs

    def follow(self, replay: Callable[[], Sequence[tuple[Topic, int]]]) -> None:
        """Open the partitions, and apply the configurations, that another program has stored.

        `replay` is called when the operation is decided. It returns the changed topics, with their number of partitions
        before the change.
        """
        openings: list[_Opening] = []

        def decide() -> None:
            for topic, start in replay():
                if start < topic.partition_count:
                    openings.append(_Opening(topic, start, topic.partition_count, self._logs.config_of(topic)))
                self._logs.reconfigure(topic)
            if openings:
                self._metadata.when_synced(synced)

        def synced(error_code: ErrorCode) -> None:
            if not error_code:
                self._open(openings, opened, ignore_failure)

        def opened(failures: Mapping[str, tuple[ErrorCode, str]]) -> None:
            for name, (_error_code, message) in failures.items():
                logger.error("topic %s of another program is not served: %s", name, message)

        self._in_turn(decide, ignore_failure)

    # Partitions of a broker in a cluster

    def host(self, wanted: Sequence[tuple[Topic, int]], hosted: Callable[[Mapping[Place, str]], None]) -> None:
        """Open the logs of partitions that this broker is to lead; `hosted` gets the reasons against some.

        The caller waits for `hosted` before it asks again.
        """
        missing = [(topic, index) for topic, index in wanted if self._partitions.hosted(topic.name, index) is None]
        if not missing:
            hosted({})
            return
        openings = [_Opening(topic, index, index + 1, self._logs.config_of(topic)) for topic, index in missing]

        def opened(results: list[PartitionLog | str]) -> None:
            failures: dict[Place, str] = {}
            for opening, result in zip(openings, results, strict=True):
                topic = opening.topic
                if isinstance(result, str):
                    failures[topic.name, opening.start] = result
                elif self._topics.by_id.get(topic.topic_id) is not topic:
                    failures[topic.name, opening.start] = f"topic {topic.name} was deleted at the same time"
                else:
                    self._partitions.host(topic.name, opening.start, result)
                    if self._logs.config_of(topic) != opening.config:
                        self._logs.reconfigure(topic)
            hosted(failures)

        def failed(reason: str) -> None:
            hosted({(topic.name, index): reason for topic, index in missing})

        run_in_thread(
            self._thread,
            lambda: [self._try_open_replica(opening) for opening in openings],
            reporting_failure(failed, opened),
            failed,
        )

    def _try_open_replica(self, opening: _Opening) -> PartitionLog | str:
        try:
            return self._logs.open_replica(opening.topic, opening.start, opening.config, clean=False)
        except (OSError, OnceflowError) as error:
            logger.error("%s-%d cannot be opened: %s", opening.topic.name, opening.start, error)
            return str(error)

    def forget(self, name: str) -> None:
        """Close the partitions of a topic that another broker has deleted."""
        for partition in self._partitions.withdraw(name):
            self._group_commit.forget(partition)

    def delete_replicas(self, places: Sequence[Place], deleted: Callable[[Set[Place]], None]) -> None:
        """Delete partitions of this broker; `deleted` gets those with files left."""
        for topic, index in places:
            partition = self._partitions.withdraw_one(topic, index)
            if partition is not None:
                self._group_commit.forget(partition)

        def failed(reason: str) -> None:
            logger.error("partitions could not be deleted: %s", reason)
            deleted(set(places))

        run_in_thread(
            self._thread,
            lambda: self._logs.delete_partitions(places),
            reporting_failure(failed, deleted),
            failed,
        )

    # Adding partitions

    def add_partitions(
        self,
        wanted: Sequence[MorePartitions],
        respond: Callable[[list[Changed]], None],
        *,
        failed: Failed = ignore_failure,
        validate_only: bool = False,
        charge: Charge | None = None,
    ) -> None:
        """Add partitions to topics; respond when they are durable and open, or refused."""
        results: list[Changed] = []
        openings: list[_Opening] = []

        def decide() -> None:
            for more in wanted:
                try:
                    opening = self._add_partitions(more, validate_only=validate_only, charge=charge)
                except (TopicRefused, LogError) as error:
                    results.append(Changed(more.name, error.error_code, str(error)))
                else:
                    results.append(Changed(more.name))
                    openings.append(opening)
            if validate_only or not openings:
                self._respond_when_synced(lambda: respond(results), failed)
            else:
                self._metadata.when_synced(reporting_failure(failed, synced))

        def synced(error_code: ErrorCode) -> None:
            if error_code:
                respond(_unless_refused(results, error_code))
            else:
                self._open(openings, opened, failed)

        def opened(failures: Mapping[str, tuple[ErrorCode, str]]) -> None:
            respond(
                [
                    Changed(result.name, *failures[result.name]) if result.name in failures else result
                    for result in results
                ]
            )

        self._in_turn(decide, failed)

    def _add_partitions(self, wanted: MorePartitions, *, validate_only: bool, charge: Charge | None) -> _Opening:
        """Record additional partitions of a topic. Raises TopicRefused, LogError."""
        self._metadata.require_controller()
        records = self._topics.decide_more_partitions(wanted)
        _take(charge, len(records))
        topic = self._topics.by_name[wanted.name]
        opening = _Opening(topic, topic.partition_count, wanted.partition_count, self._logs.config_of(topic))
        if not validate_only:
            self._metadata.record(records)
        return opening

    # Configurations

    def alter_configs(
        self,
        find: Callable[[], Sequence[Wish]],
        respond: Callable[[list[Changed]], None],
        *,
        failed: Failed = ignore_failure,
        validate_only: bool = False,
    ) -> None:
        """Replace the configurations of the topics that `find` returns; it is called when the operation is decided.

        Respond when the configurations are durable and applied to the logs.
        """
        wanted: list[Wish] = []
        results: list[Changed] = []

        def decide() -> None:
            wanted.extend(find())
            results.extend(self._alter_configs(wish, validate_only=validate_only) for wish in wanted)
            if validate_only:
                self._respond_when_synced(lambda: respond(results), failed)
            else:
                self._metadata.when_synced(reporting_failure(failed, synced))

        def synced(error_code: ErrorCode) -> None:
            if not error_code:
                for (topic, _configs), result in zip(wanted, results, strict=True):
                    if not result.error_code:
                        self._logs.reconfigure(topic)
            respond(_unless_refused(results, error_code))

        self._in_turn(decide, failed)

    def _alter_configs(self, wish: Wish, *, validate_only: bool) -> Changed:
        topic, configs = wish
        try:
            records = self._topics.decide_configs(topic, configs)
            if records and not validate_only:
                self._metadata.record_config(records)
        except (TopicRefused, LogError) as error:
            return Changed(topic.name, error.error_code, str(error))
        return Changed(topic.name)

    # Deleting

    def delete(
        self,
        find: Callable[[], Sequence[Topic]],
        respond: Callable[[list[Deleted]], None],
        *,
        failed: Failed = ignore_failure,
        charge: Charge | None = None,
    ) -> None:
        """Delete the topics that `find` returns, with their records and groups' offsets; respond when that is done.

        `find` is called when the operation is decided. If the offsets or the files cannot be deleted, the names stay
        refused until a restart has finished the deletion. A new topic would inherit the offsets, and its id would not
        match that of the directories.
        """
        results: list[Deleted] = []
        deleted: list[Topic] = []

        def decide() -> None:
            # Otherwise the next start could write markers of ended transactions to new topics of these names.
            self._group_commit.flush_put_off()
            results.extend(self._delete(topic, charge) for topic in find())
            deleted.extend(topic for topic, error_code, _message in results if not error_code)
            self._metadata.when_synced(reporting_failure(failed, synced))

        def fail(failure: ErrorCode, reason: str | None) -> None:
            respond([(topic, code or failure, message if code else reason) for topic, code, message in results])

        def synced(error_code: ErrorCode) -> None:
            if error_code:
                fail(error_code, None)
            else:
                self._delete_offsets({topic.name for topic in deleted}, reporting_failure(failed, offsets_deleted))

        def offsets_deleted(error_code: ErrorCode) -> None:
            if error_code:
                fail(
                    ErrorCode.kafka_storage_error, f"the groups' offsets could not be deleted; {Remedy.RESTART_BROKER}"
                )
            else:
                run_in_thread(
                    self._thread,
                    lambda: self._logs.delete_files(deleted),
                    reporting_failure(failed, files_deleted),
                    failed,
                )

        def files_deleted(left: set[str]) -> None:
            self._release_names([topic.name for topic in deleted if topic.name not in left])
            message = f"its files could not be deleted; {Remedy.RESTART_BROKER}"
            kept = (ErrorCode.kafka_storage_error, message)
            respond([(topic, *kept) if topic.name in left else (topic, code, why) for topic, code, why in results])

        self._in_turn(decide, failed)

    def _delete(self, topic: Topic, charge: Charge | None) -> Deleted:
        try:
            self._metadata.require_controller()
            records = self._topics.decide_delete(topic)
            _take(charge, topic.partition_count)
            self._metadata.record(records, from_reserve=True)
        except (TopicRefused, LogError) as error:
            return topic, error.error_code, str(error)
        self._topics.being_deleted.add(topic.name)
        self.forget(topic.name)
        return topic, ErrorCode.none, None

    def _release_names(self, deleted: Sequence[str]) -> None:
        """Allow the names of deleted topics to be used again."""
        self._metadata.finish_deletions(deleted, self._topics.being_deleted.difference_update)


def _take(charge: Charge | None, partitions: int) -> None:
    """Take partitions from the client's quota. Raises TopicRefused."""
    if charge is not None and not charge(partitions):
        raise TopicRefused(ErrorCode.throttling_quota_exceeded, QUOTA_EXCEEDED)


def _created(name: str, records: Sequence[MetadataRecord]) -> Created:
    (topic_id,) = (record.topic_id for record in records if isinstance(record, TopicRecord))
    partitions = [record for record in records if isinstance(record, PartitionRecord)]
    configs = {record.name: record.value or "" for record in records if isinstance(record, ConfigRecord)}
    return Created(
        name,
        topic_id=topic_id,
        partition_count=len(partitions),
        replication_factor=len(partitions[0].replicas),
        configs=configs,
    )


def _with_failure(created: Created, failure: tuple[ErrorCode, str] | None) -> Created:
    if failure is None:
        return created
    return replace(created, error_code=failure[0], error_message=failure[1])


def _unless_refused(results: Sequence[Changed], error_code: ErrorCode) -> list[Changed]:
    return [result if result.error_code else replace(result, error_code=error_code) for result in results]
