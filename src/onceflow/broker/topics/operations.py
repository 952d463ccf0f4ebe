"""Changes of the topics: recorded, made durable, carried out on the files, and then answered.

They are decided one after the other, as by Kafka's controller: an operation looks for its topics and records what
becomes of them when the one before it has recorded all of its own. Many topics are created in slices; what arrives
meanwhile waits. Syncs and work on the files follow in the same order.

Every operation takes `answer`, called once with what became of each topic, and `failed`, called instead with a reason
where an error that nobody foresaw kept the answer from being made: whoever waits for it must not wait for ever.
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
from onceflow.broker.storage.partitions import Partitions
from onceflow.broker.topics.logs import TopicLogs
from onceflow.broker.topics.metadata_log import MetadataLog
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

Deleted = tuple[Topic, ErrorCode, str | None]
Wish = tuple[Topic, Mapping[str, str | None]]
"""A topic, and all configurations that it is to have."""
DeleteOffsets = Callable[[Set[str], Callable[[ErrorCode], None]], None]
"""Deletes all groups' offsets of the named topics, then calls back with the outcome."""


@dataclass(frozen=True, slots=True)
class Created:
    """What became of one topic that was to be created."""

    name: str
    error_code: ErrorCode = ErrorCode.none
    error_message: str | None = None
    topic_id: uuid.UUID | None = None
    partition_count: int = -1
    configs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Changed:
    """What became of one topic that was to be changed."""

    name: str
    error_code: ErrorCode = ErrorCode.none
    error_message: str | None = None


@dataclass(frozen=True, slots=True)
class _Opening:
    """Logs that a thread is to open: the partitions from `begin` on of a topic as it was when they were recorded."""

    topic: Topic
    begin: int
    end: int
    config: LogConfig


class TopicOperations:
    """The operations of one node. All methods belong to the event loop's thread."""

    def __init__(
        self,
        topics: Topics,
        partitions: Partitions,
        *,
        metadata: MetadataLog,
        logs: TopicLogs,
        group_commit: GroupCommit,
        thread: Executor,
        delete_offsets: DeleteOffsets,
    ) -> None:
        self._topics = topics
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
        """Decide an operation now, or after those that came before it."""
        if self._is_deciding:
            self._undecided.append(reporting_failure(failed, decide))
        else:
            reporting_failure(failed, decide)()

    def _decided(self) -> None:
        """A creation is recorded: the next operation is decided in the loop's next turn."""
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
        answer: Callable[[list[Created]], None],
        *,
        failed: Failed = ignore_failure,
        validate_only: bool = False,
    ) -> None:
        """Create topics; answered when each is durable and open, or refused."""
        results: list[Created] = []
        openings: list[_Opening] = []

        def decide() -> Iterator[int]:
            try:
                for new in wanted:
                    created = self._create(new, validate_only=validate_only)
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
                self._respond_when_synced(lambda: answer(results), failed)

        def synced(error_code: ErrorCode) -> None:
            if error_code:
                answer([each if each.error_code else replace(each, error_code=error_code) for each in results])
            else:
                self._open(openings, opened, failed)

        def opened(failures: Mapping[str, tuple[ErrorCode, str]]) -> None:
            answer([_with_failure(each, failures.get(each.name)) for each in results])

        def begin() -> None:
            self._is_deciding = True
            run_in_slices(decide(), decided, failed=lambda error: failed(f"the topics could not be created: {error!r}"))

        self._in_turn(begin, ignore_failure)

    def _respond_when_synced(self, answer: Callable[[], None], failed: Failed) -> None:
        """A refusal tells of topics too, "exists already" above all: it waits until they are durable."""
        self._metadata.when_synced(reporting_failure(failed, lambda _error_code: answer()))

    def _create(self, new: NewTopic, *, validate_only: bool) -> Created:
        try:
            records = self._topics.decide_create(new)
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

        The thread removes the files of a topic that was deleted meanwhile after this.
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
            lambda: [self._open_or_say(each) for each in openings],
            reporting_failure(failed, install),
            failed,
        )

    def _open_or_say(self, opening: _Opening) -> list[PartitionLog] | str:
        topic = opening.topic
        try:
            return self._logs.open(topic, range(opening.begin, opening.end), opening.config, clean=False)
        except (OSError, OnceflowError) as error:
            logger.error("topic %s: partitions from %d on cannot be opened: %s", topic.name, opening.begin, error)
            return str(error)

    def _install(self, opening: _Opening, logs: list[PartitionLog] | str) -> tuple[ErrorCode, str] | None:
        topic = opening.topic
        if isinstance(logs, str):
            return ErrorCode.kafka_storage_error, logs
        if self._topics.by_id.get(topic.topic_id) is not topic:
            # Its files are on their way out: nothing may be acknowledged into them. They close when let go.
            return ErrorCode.unknown_topic_or_partition, f"topic {topic.name} was deleted at the same time"
        if self._partitions.count(topic.name) != opening.begin:
            message = (
                f"topic {topic.name}: partitions before {opening.begin} could not be opened; {Remedy.RESTART_BROKER}"
            )
            return ErrorCode.kafka_storage_error, message
        self._partitions.extend(topic.name, logs)
        if self._logs.config_of(topic) != opening.config:
            self._logs.reconfigure(topic)
        return None

    # Adding partitions

    def add_partitions(
        self,
        wanted: Sequence[MorePartitions],
        answer: Callable[[list[Changed]], None],
        *,
        failed: Failed = ignore_failure,
        validate_only: bool = False,
    ) -> None:
        """Add partitions to topics; answered when they are durable and open, or refused."""
        results: list[Changed] = []
        openings: list[_Opening] = []

        def decide() -> None:
            for each in wanted:
                try:
                    opening = self._add_partitions(each, validate_only=validate_only)
                except (TopicRefused, LogError) as error:
                    results.append(Changed(each.name, error.error_code, str(error)))
                else:
                    results.append(Changed(each.name))
                    openings.append(opening)
            if validate_only or not openings:
                self._respond_when_synced(lambda: answer(results), failed)
            else:
                self._metadata.when_synced(reporting_failure(failed, synced))

        def synced(error_code: ErrorCode) -> None:
            if error_code:
                answer(_unless_refused(results, error_code))
            else:
                self._open(openings, opened, failed)

        def opened(failures: Mapping[str, tuple[ErrorCode, str]]) -> None:
            answer([Changed(each.name, *failures[each.name]) if each.name in failures else each for each in results])

        self._in_turn(decide, failed)

    def _add_partitions(self, wanted: MorePartitions, *, validate_only: bool) -> _Opening:
        """Record a topic's further partitions. Raises TopicRefused, LogError."""
        records = self._topics.decide_more_partitions(wanted)
        topic = self._topics.by_name[wanted.name]
        opening = _Opening(topic, topic.partition_count, wanted.partition_count, self._logs.config_of(topic))
        if not validate_only:
            self._metadata.record(records)
        return opening

    # Configurations

    def alter_configs(
        self,
        find: Callable[[], Sequence[Wish]],
        answer: Callable[[list[Changed]], None],
        *,
        failed: Failed = ignore_failure,
        validate_only: bool = False,
    ) -> None:
        """Give each topic that `find` returns exactly its configurations.

        Answered when they are durable and its logs go by them. `find` is called when the operation is decided.
        """
        wanted: list[Wish] = []
        results: list[Changed] = []

        def decide() -> None:
            wanted.extend(find())
            results.extend(self._alter_configs(wish, validate_only=validate_only) for wish in wanted)
            if validate_only:
                self._respond_when_synced(lambda: answer(results), failed)
            else:
                self._metadata.when_synced(reporting_failure(failed, synced))

        def synced(error_code: ErrorCode) -> None:
            if not error_code:
                for (topic, _configs), each in zip(wanted, results, strict=True):
                    if not each.error_code:
                        self._logs.reconfigure(topic)
            answer(_unless_refused(results, error_code))

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
        answer: Callable[[list[Deleted]], None],
        *,
        failed: Failed = ignore_failure,
    ) -> None:
        """Delete the topics that `find` returns, with their records and groups' offsets; answered when they are gone.

        `find` is called when the operation is decided. If the offsets or the files cannot be taken away, the names stay
        refused until a start has finished the deletion: a new topic would inherit the offsets, and its id would not be
        that of the directories.
        """
        results: list[Deleted] = []
        gone: list[Topic] = []

        def decide() -> None:
            results.extend(self._delete(topic) for topic in find())
            gone.extend(topic for topic, error_code, _message in results if not error_code)
            self._metadata.when_synced(reporting_failure(failed, synced))

        def fail(failure: ErrorCode, reason: str | None) -> None:
            answer([(topic, code or failure, message if code else reason) for topic, code, message in results])

        def synced(error_code: ErrorCode) -> None:
            if error_code:
                fail(error_code, None)
            else:
                self._delete_offsets({topic.name for topic in gone}, reporting_failure(failed, forgotten))

        def forgotten(error_code: ErrorCode) -> None:
            if error_code:
                fail(
                    ErrorCode.kafka_storage_error, f"the groups' offsets could not be removed; {Remedy.RESTART_BROKER}"
                )
            else:
                run_in_thread(
                    self._thread, lambda: self._logs.delete_files(gone), reporting_failure(failed, removed), failed
                )

        def removed(left: set[str]) -> None:
            self._removed([topic for topic in gone if topic.name not in left])
            message = f"its files could not be removed; {Remedy.RESTART_BROKER}"
            kept = (ErrorCode.kafka_storage_error, message)
            answer([(topic, *kept) if topic.name in left else (topic, code, why) for topic, code, why in results])

        self._in_turn(decide, failed)

    def _delete(self, topic: Topic) -> Deleted:
        try:
            self._metadata.record(self._topics.decide_delete(topic), from_reserve=True)
        except (TopicRefused, LogError) as error:
            return topic, error.error_code, str(error)
        self._topics.being_deleted.add(topic.name)
        for partition in self._partitions.withdraw(topic.name):
            self._group_commit.forget(partition)
        return topic, ErrorCode.none, None

    def _removed(self, gone: Sequence[Topic]) -> None:
        """The names may be used again."""
        self._topics.being_deleted.difference_update(topic.name for topic in gone)


def _created(name: str, records: Sequence[MetadataRecord]) -> Created:
    (topic_id,) = (record.topic_id for record in records if isinstance(record, TopicRecord))
    count = sum(isinstance(record, PartitionRecord) for record in records)
    configs = {record.name: record.value or "" for record in records if isinstance(record, ConfigRecord)}
    return Created(name, topic_id=topic_id, partition_count=count, configs=configs)


def _with_failure(created: Created, failure: tuple[ErrorCode, str] | None) -> Created:
    if failure is None:
        return created
    return replace(created, error_code=failure[0], error_message=failure[1])


def _unless_refused(results: Sequence[Changed], error_code: ErrorCode) -> list[Changed]:
    return [each if each.error_code else replace(each, error_code=error_code) for each in results]
