"""The broker without its sockets: data directory, topics, partitions, groups, and the threads that help the loop."""

import asyncio
import logging
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from onceflow.broker import metadata_records
from onceflow.broker.answer_cache import AnswerCache
from onceflow.broker.group_commit import GroupCommit
from onceflow.broker.groups.coordinator import GroupCoordinator
from onceflow.broker.groups.requests import GroupRequests
from onceflow.broker.metadata_records import MetadataRecord
from onceflow.broker.partitions import Partition, Partitions
from onceflow.broker.state_log import StateLog
from onceflow.broker.topic_configs import log_config
from onceflow.broker.topics import (
    CLUSTER_METADATA_TOPIC,
    GROUP_OFFSETS_TOPIC,
    NewTopic,
    Topic,
    TopicRefused,
    Topics,
)
from onceflow.errors import OnceflowError
from onceflow.log.clock import Clock, SystemClock
from onceflow.log.config import LogConfig
from onceflow.log.directory import DataDirectory
from onceflow.log.disk import Disk, RealDisk
from onceflow.log.errors import LogError
from onceflow.log.partition import PartitionLog
from onceflow.wire.errors import ErrorCode

logger = logging.getLogger(__name__)

STATE_LOG_CONFIG = LogConfig(segment_bytes=100 * 1024 * 1024, message_bytes_max=16 * 1024 * 1024)
"""For the broker's own logs: a batch there may hold a whole group or a topic of many partitions."""


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """What can be set for a broker."""

    data: Path
    host: str = "127.0.0.1"
    port: int = 9092
    advertised: tuple[str, int] | None = None
    auto_create_topics: bool = True
    partition_count_default: int = 1
    log: LogConfig = field(default_factory=LogConfig)


@dataclass(frozen=True, slots=True)
class Created:
    """What became of one topic that was to be created."""

    name: str
    error_code: ErrorCode = ErrorCode.none
    error_message: str | None = None
    topic_id: uuid.UUID | None = None
    partition_count: int = -1
    configs: Mapping[str, str | None] = field(default_factory=dict)


Result = TypeVar("Result")
Deleted = tuple[Topic, ErrorCode, str | None]


class UnfinishedDeletion(OnceflowError):
    """A deletion that a crash cut short cannot be finished at start-up."""


class Node:
    """Everything a handler needs. All methods belong to the event loop's thread."""

    def __init__(self, config: BrokerConfig, disk: Disk, clock: Clock, directory: DataDirectory) -> None:
        self.config = config
        self.clock = clock
        self.directory = directory
        self.node_id = directory.node_id
        self.cluster_id = directory.cluster_id
        self.advertised_host, self.advertised_port = config.advertised or (config.host, config.port)
        self.topics = Topics(self.node_id, config.partition_count_default)
        self.partitions = Partitions()
        self.groups = GroupCoordinator(clock)
        self.group_commit = GroupCommit()
        self.answer_cache = AnswerCache()
        self._disk = disk
        self._housekeeping = ThreadPoolExecutor(1, thread_name_prefix="housekeeping")
        self._metadata = self._open_metadata()
        self._open_topics()
        self.group_requests = GroupRequests(self.groups, self._open_group_offsets())
        self._finish_deletions()
        self._producer_ids = iter(range(0))

    @classmethod
    def open(cls, config: BrokerConfig, *, disk: Disk | None = None, clock: Clock | None = None) -> "Node":
        """Lock the data directory, recover what is in it. Blocks; raises DataDirectoryRefused, OSError."""
        disk = disk or RealDisk()
        directory = DataDirectory.open(config.data, disk=disk)
        try:
            return cls(config, disk, clock or SystemClock(), directory)
        except BaseException:
            directory.close(clean=False)
            raise

    def _open_log(
        self, topic: str, index: int, config: LogConfig, topic_id: uuid.UUID | None, *, clean: bool
    ) -> PartitionLog:
        path = self.directory.partition_path(topic, index)
        log = PartitionLog.open(path, config, disk=self._disk, clock=self.clock, clean=clean, topic_id=topic_id)
        if log.recovery_removed_bytes:
            logger.warning("%s: recovery cut off %d bytes that were no whole batch", path, log.recovery_removed_bytes)
        return log

    def _open_metadata(self) -> StateLog:
        log = self._open_log(CLUSTER_METADATA_TOPIC, 0, STATE_LOG_CONFIG, None, clean=self.directory.clean)
        metadata = StateLog(Partition(CLUSTER_METADATA_TOPIC, 0, log), self.clock, self.group_commit)
        for record in metadata.records():
            assert record.value is not None
            self.topics.replay(metadata_records.decode(record.value))
        return metadata

    def _open_topics(self) -> None:
        for topic in self.topics.by_name.values():
            self.partitions.install(topic.name, self._open_logs(topic, clean=self.directory.clean))
        removed = set(self.topics.removed.values()) - self.topics.by_name.keys()
        for name, index in list(self.directory.partitions()):
            if name in removed:
                self.directory.delete_partition(name, index)
            elif name != CLUSTER_METADATA_TOPIC and self.partitions.get(name, index) is None:
                logger.warning("%s belongs to no topic; it is left alone", self.directory.partition_path(name, index))

    def _open_logs(self, topic: Topic, *, clean: bool) -> list[PartitionLog]:
        if topic.is_internal:
            config = STATE_LOG_CONFIG
        else:
            config = log_config(self.config.log, topic.configs)
        return [
            self._open_log(topic.name, index, config, topic.topic_id, clean=clean)
            for index in range(topic.partition_count)
        ]

    def _open_group_offsets(self) -> StateLog:
        """One partition is enough: all groups are on this broker, and one file is one sync."""
        if GROUP_OFFSETS_TOPIC not in self.topics.by_name:
            self._record(self.topics.decide_create(NewTopic(GROUP_OFFSETS_TOPIC, 1)))
            _sync_now(self._metadata.partition.log)
            topic = self.topics.by_name[GROUP_OFFSETS_TOPIC]
            self.partitions.install(GROUP_OFFSETS_TOPIC, self._open_logs(topic, clean=False))
        partition = self.partitions.get(GROUP_OFFSETS_TOPIC, 0)
        assert partition is not None
        return StateLog(partition, self.clock, self.group_commit)

    def _finish_deletions(self) -> None:
        """Where a crash came between a topic's removal and that of its offsets: a new topic must not inherit them."""
        orphans = self.groups.decide_forget(lambda topic: topic not in self.topics.by_name)
        if not orphans:
            return
        partition = self.partitions.get(GROUP_OFFSETS_TOPIC, 0)
        assert partition is not None
        if self.group_requests.append_in_batches(orphans):
            raise UnfinishedDeletion(
                f"{partition}: the offsets of deleted topics could not be taken away from {len(orphans)} partitions;"
                " look for the reason above, free the disk and start the broker again"
            )
        _sync_now(partition.log)

    def _record(self, records: Sequence[MetadataRecord]) -> None:
        """Append and replay a change of the topics. Raises LogError."""
        self._metadata.append([(None, metadata_records.encode(record)) for record in records])
        for record in records:
            self.topics.replay(record)
        self.answer_cache.clear()

    # Topics

    def create_topics(
        self, wanted: Sequence[NewTopic], answer: Callable[[list[Created]], None], *, validate_only: bool = False
    ) -> None:
        """Create topics; `answer` is called when each is durable and open, or refused."""
        results = [self._create(new, validate_only=validate_only) for new in wanted]
        topics = [self.topics.by_name[each.name] for each in results if not each.error_code]
        if validate_only or not topics:
            answer(results)
            return

        def synced(error_code: ErrorCode) -> None:
            if error_code:
                answer([each if each.error_code else replace(each, error_code=error_code) for each in results])
            else:
                self._in_background(lambda: self._open_each(topics), opened)

        def opened(logs_or_errors: list[list[PartitionLog] | str]) -> None:
            failures = {}
            for topic, logs in zip(topics, logs_or_errors, strict=True):
                if isinstance(logs, str):
                    failures[topic.name] = (ErrorCode.kafka_storage_error, logs)
                elif self.topics.by_id.get(topic.topic_id) is not topic:
                    # Its files are on their way out: nothing may be acknowledged into them. They close when let go.
                    message = f"topic {topic.name} was deleted while it was being created"
                    failures[topic.name] = (ErrorCode.unknown_topic_or_partition, message)
                else:
                    self.partitions.install(topic.name, logs)
            self.answer_cache.clear()
            answer([self._with_failure(each, failures.get(each.name)) for each in results])

        self._metadata.when_synced(synced)

    def _create(self, new: NewTopic, *, validate_only: bool) -> Created:
        try:
            records = self.topics.decide_create(new)
            if not validate_only:
                self._record(records)
        except (TopicRefused, LogError) as error:
            return Created(new.name, error.error_code, str(error))
        count = sum(isinstance(record, metadata_records.PartitionRecord) for record in records)
        topic = self.topics.by_name.get(new.name)
        topic_id = topic.topic_id if topic is not None else None
        return Created(new.name, topic_id=topic_id, partition_count=count, configs=new.configs)

    def _open_each(self, topics: Sequence[Topic]) -> list[list[PartitionLog] | str]:
        return [self._open_or_say(topic) for topic in topics]

    def _open_or_say(self, topic: Topic) -> list[PartitionLog] | str:
        try:
            return self._open_logs(topic, clean=False)
        except (OSError, OnceflowError) as error:
            logger.error("topic %s was created but cannot be opened: %s", topic.name, error)
            return str(error)

    @staticmethod
    def _with_failure(created: Created, failure: tuple[ErrorCode, str] | None) -> Created:
        if failure is None:
            return created
        return replace(created, error_code=failure[0], error_message=failure[1])

    def delete_topics(self, topics: Sequence[Topic], answer: Callable[[list[Deleted]], None]) -> None:
        """Delete topics with their records and groups' offsets; `answer` is called when they are gone.

        If the offsets cannot be taken away, the names stay refused until a start has finished the deletion: a new
        topic would inherit the offsets.
        """
        results = [self._delete(topic) for topic in topics]
        gone = [topic for topic, error_code, _message in results if not error_code]

        def fail(failure: ErrorCode, reason: str | None) -> None:
            answer([(topic, code or failure, message if code else reason) for topic, code, message in results])

        def synced(error_code: ErrorCode) -> None:
            if error_code:
                fail(error_code, None)
            else:
                self._forget_offsets({topic.name for topic in gone}, forgotten)

        def forgotten(error_code: ErrorCode) -> None:
            if error_code:
                fail(ErrorCode.kafka_storage_error, "the groups' offsets could not be removed; restart the broker")
            else:
                self._in_background(lambda: self._remove_files(gone), removed)

        def removed(_nothing: None) -> None:
            self.topics.being_deleted.difference_update(topic.name for topic in gone)
            answer(results)

        self._metadata.when_synced(synced)

    def _delete(self, topic: Topic) -> Deleted:
        try:
            self._record(self.topics.decide_delete(topic))
        except (TopicRefused, LogError) as error:
            return topic, error.error_code, str(error)
        self.topics.being_deleted.add(topic.name)
        for partition in self.partitions.withdraw(topic.name):
            self.group_commit.forget(partition)
        return topic, ErrorCode.none, None

    def _forget_offsets(self, names: set[str], forgotten: Callable[[ErrorCode], None]) -> None:
        records = self.groups.decide_forget(names.__contains__)
        error_code = self.group_requests.append_in_batches(records)
        if error_code or not records:
            forgotten(error_code)
        else:
            self.group_requests.when_synced(forgotten)

    def _remove_files(self, topics: Sequence[Topic]) -> None:
        for topic in topics:
            for index in range(topic.partition_count):
                try:
                    self.directory.delete_partition(topic.name, index)
                except OSError as error:
                    logger.error("%s-%d could not be removed: %s", topic.name, index, error)

    def _in_background(self, work: Callable[[], Result], done: Callable[[Result], None]) -> None:
        future = asyncio.get_running_loop().run_in_executor(self._housekeeping, work)
        future.add_done_callback(lambda finished: done(finished.result()))

    # Producer ids

    def next_producer_id(self, answer: Callable[[ErrorCode, int], None]) -> None:
        """A producer id that nobody ever had, once the record that reserves it is durable."""
        producer_id = next(self._producer_ids, None)
        if producer_id is None:
            first = self.topics.next_producer_id
            try:
                self._record(self.topics.decide_producer_ids())
            except LogError as error:
                answer(error.error_code, -1)
                return
            self._producer_ids = iter(range(first, self.topics.next_producer_id))
            producer_id = next(self._producer_ids)
        self._metadata.when_synced(lambda code: answer(code, -1 if code else producer_id))

    # Time and end

    def expire_groups(self) -> None:
        """Act on the groups' time-outs that are over."""
        for outcome in self.groups.expire():
            try:
                self.group_requests.carry_out(outcome)
            except Exception:
                logger.exception("a group's time-out could not be carried out")

    async def close(self) -> None:
        """Sync and close every log, and mark the directory clean if that went well."""
        await self.group_commit.close()
        self._housekeeping.shutdown()
        clean = False
        try:
            were_whole = [self._close_log(each) for each in (*self.partitions, self._metadata.partition)]
            clean = all(were_whole)
        finally:
            self.directory.close(clean=clean)

    @staticmethod
    def _close_log(partition: Partition) -> bool:
        was_whole = partition.log.failure is None
        try:
            partition.log.close()
        except LogError as error:
            logger.error("%s", error)
            return False
        return was_whole


def _sync_now(log: PartitionLog) -> None:
    """At start-up, before anybody waits: blocks until the log is durable. Raises OSError."""
    point = log.begin_sync()
    assert point is not None
    point.run()
    log.end_sync(point)
