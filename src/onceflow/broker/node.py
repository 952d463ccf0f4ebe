"""The broker without its sockets: data directory, topics, partitions, groups, and the threads that help the loop."""

import asyncio
import errno
import gc
import logging
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeVar

from onceflow.broker.config import BrokerConfig as BrokerConfig
from onceflow.broker.groups.coordinator import GroupCoordinator
from onceflow.broker.groups.requests import GroupRequests
from onceflow.broker.loop.turn import Turn
from onceflow.broker.loop.work_thread import WorkThread
from onceflow.broker.network.response_cache import ResponseCache
from onceflow.broker.storage.closing import close_all
from onceflow.broker.storage.group_commit import GroupCommit
from onceflow.broker.storage.housekeeping import Housekeeping
from onceflow.broker.storage.parked_fetches import ParkedFetches
from onceflow.broker.storage.partitions import Partition, Partitions, Synced
from onceflow.broker.storage.record_checks import RecordChecks
from onceflow.broker.storage.state_log import StateLog
from onceflow.broker.topics import records as metadata_records
from onceflow.broker.topics.configs import log_config
from onceflow.broker.topics.metadata_entries import MetadataEntries
from onceflow.broker.topics.operations import Created, TopicOperations
from onceflow.broker.topics.records import MetadataRecord
from onceflow.broker.topics.topics import (
    CLUSTER_METADATA_TOPIC,
    GROUP_OFFSETS_TOPIC,
    TRANSACTION_STATE_TOPIC,
    NewTopic,
    Topic,
    Topics,
)
from onceflow.broker.transactions.coordinator import TransactionCoordinator
from onceflow.broker.transactions.requests import Transactions
from onceflow.errors import OnceflowError
from onceflow.log.clock import Clock, SystemClock
from onceflow.log.config import LogConfig
from onceflow.log.directory import DataDirectory
from onceflow.log.disk import Disk, RealDisk
from onceflow.log.errors import LogError, NoRoomForNewLog
from onceflow.log.partition import PartitionLog
from onceflow.log.reserve import ReservedDisk
from onceflow.remedies import Remedy
from onceflow.wire.errors import ErrorCode
from onceflow.wire.known_produce import KnownRequests

logger = logging.getLogger(__name__)

METADATA_LOG_CONFIG = LogConfig(
    segment_bytes=100 * 1024 * 1024, message_bytes_max=16 * 1024 * 1024, cleanup_delete=False
)
"""For the log of the topics: a batch there may hold a topic of many partitions. Nothing in it is ever removed."""

STATE_LOG_CONFIG = replace(METADATA_LOG_CONFIG, cleanup_compact=True)
"""For the broker's compacted topics: a batch there may hold a whole group."""

Result = TypeVar("Result")


class UnfinishedDeletion(OnceflowError):
    """A deletion that a crash cut short cannot be finished at start-up."""


class Node:
    """Everything a handler needs. All methods belong to the event loop's thread."""

    def __init__(self, config: BrokerConfig, disk: ReservedDisk, clock: Clock, directory: DataDirectory) -> None:
        self.config = config
        self.clock = clock
        self.directory = directory
        self.node_id = directory.node_id
        self.cluster_id = directory.cluster_id
        self.advertised_host, self.advertised_port = config.advertised or (config.host, config.port)
        self.topics = Topics(self.node_id, config.partition_count_default, config.partitions_max)
        self.partitions = Partitions()
        self.parked_fetches = ParkedFetches(config.parked_fetch_partitions_max)
        self.groups = GroupCoordinator(clock, config)
        self.turn = Turn()
        self.group_commit = GroupCommit(self.turn, directory.is_in_place, self._lose_directory)
        self.is_lost = False
        """Whether the data directory was deleted, renamed or replaced: nothing more can be stored."""
        self.answer_cache = ResponseCache()
        self.known_requests = KnownRequests()
        self.record_checks = RecordChecks(clock, self._in_record_check_thread)
        self.metadata_entries = MetadataEntries(self.node_id)
        self.topic_operations = TopicOperations(self)
        self._disk = disk
        self._housekeeping_thread = WorkThread("housekeeping")
        self._searches = WorkThread("time-search")
        self._record_checks_thread = WorkThread("record-checks")
        self.housekeeping = Housekeeping(
            config,
            self.partitions,
            directory,
            disk=disk,
            clock=clock,
            group_commit=self.group_commit,
            thread=self._housekeeping_thread,
        )
        self._metadata = self._open_metadata()
        self._open_topics()
        self.group_requests = GroupRequests(self.groups, self._open_state_topic(GROUP_OFFSETS_TOPIC))
        gone = self._gone_topics()
        self.topics.being_deleted |= gone
        self.group_requests.when_loaded(lambda: self._finish_deletions(gone))
        self._producer_ids = iter(range(0))
        self.transactions = self._open_transactions()

    @classmethod
    def open(cls, config: BrokerConfig, *, disk: Disk | None = None, clock: Clock | None = None) -> "Node":
        """Lock the data directory, recover what is in it. Blocks; raises DataDirectoryRefused, OSError."""
        reserved = ReservedDisk(disk or RealDisk(), config.data, config.reserve_bytes)
        directory = DataDirectory.open(config.data, disk=reserved, node_id=config.node_id, cluster_id=config.cluster_id)
        try:
            reserved.fill()
            with _without_collector():
                return cls(config, reserved, clock or SystemClock(), directory)
        except BaseException:
            directory.close(clean=False)
            raise

    def _open_log(
        self, topic: str, index: int, config: LogConfig, topic_id: uuid.UUID | None, *, clean: bool
    ) -> PartitionLog:
        path = self.directory.partition_path(topic, index)
        log = PartitionLog.open(
            path,
            config,
            disk=self._disk,
            clock=self.clock,
            clean=clean,
            topic_id=topic_id,
            log_start_offset=self.directory.log_start_offsets.get(topic, index),
        )
        if log.recovery_removed_bytes:
            logger.warning("%s: recovery cut off %d bytes that were no whole batch", path, log.recovery_removed_bytes)
        return log

    def _open_metadata(self) -> StateLog:
        log = self._open_log(CLUSTER_METADATA_TOPIC, 0, METADATA_LOG_CONFIG, None, clean=self.directory.clean)
        metadata = StateLog(Partition(CLUSTER_METADATA_TOPIC, 0, log), self.clock, self.group_commit)
        for record in metadata.records():
            assert record.value is not None
            self.topics.replay(metadata_records.decode(record.value))
        return metadata

    def _open_topics(self) -> None:
        for topic in self.topics.by_name.values():
            self._open_topic(topic)
        removed = self._gone_topics()
        for name, index in list(self.directory.partitions()):
            if name in removed:
                self.directory.delete_partition(name, index)
            elif name != CLUSTER_METADATA_TOPIC and self.partitions.get(name, index) is None:
                logger.warning("%s belongs to no topic; it is left alone", self.directory.partition_path(name, index))

    def _open_topic(self, topic: Topic) -> None:
        """Open its logs. Without room for those that were recorded last, the ones before them are served."""
        config = self.log_config_of(topic)
        logs: list[PartitionLog] = []
        try:
            for index in range(topic.partition_count):
                logs += self.open_logs(topic, (index,), config, clean=self.directory.clean)
        except NoRoomForNewLog as error:
            if topic.is_internal:
                raise
            logger.error(
                "topic %s: partitions from %d on are not served: %s; %s, then %s",
                topic.name,
                len(logs),
                error,
                Remedy.FREE_DISK,
                Remedy.RESTART_BROKER,
            )
        if logs:
            self.partitions.install(topic.name, logs)

    def _open_logs(self, topic: Topic, *, clean: bool) -> list[PartitionLog]:
        return self.open_logs(topic, range(topic.partition_count), self.log_config_of(topic), clean=clean)

    def open_logs(self, topic: Topic, indexes: Iterable[int], config: LogConfig, *, clean: bool) -> list[PartitionLog]:
        """Open or create the logs of these partitions. Blocks; raises LogError, DataDirectoryRefused, OSError."""
        return [self._open_log(topic.name, index, config, topic.topic_id, clean=clean) for index in indexes]

    def _open_state_topic(self, name: str) -> StateLog:
        """One partition is enough: all groups and transactions are on this broker, and one file is one sync."""
        if name not in self.topics.by_name:
            self.record(self.topics.decide_create(NewTopic(name, 1)))
            _sync_now(self._metadata.partition.log)
            self.partitions.install(name, self._open_logs(self.topics.by_name[name], clean=False))
        partition = self.partitions.get(name, 0)
        assert partition is not None
        return StateLog(partition, self.clock, self.group_commit)

    def _open_transactions(self) -> Transactions:
        coordinator = TransactionCoordinator(
            self.clock,
            timeout_max_ms=self.config.transaction_timeout_max_ms,
            expiration_ms=self.config.transactional_id_expiration_ms,
        )
        return Transactions(
            coordinator,
            self._open_state_topic(TRANSACTION_STATE_TOPIC),
            self.partitions,
            self.group_commit,
            self.group_requests,
            self.next_producer_id,
            self.when_metadata_synced,
            abort_interval_ms=self.config.transaction_abort_interval_ms,
            expiration_interval_ms=self.config.transactional_id_expiration_interval_ms,
        )

    def load_groups(self) -> None:
        """Go on with replaying the groups' log, a slice in each turn of the loop, while the broker serves others."""
        try:
            if self.group_requests.load_slice():
                asyncio.get_running_loop().call_soon(self.load_groups)
        except Exception:
            logger.exception("the groups' log cannot be replayed; nothing about groups is served until a restart")
            self.group_requests.fail_loading()

    def _gone_topics(self) -> set[str]:
        """Names of topics that were deleted and not made again."""
        return set(self.topics.removed.values()) - self.topics.by_name.keys()

    def _finish_deletions(self, gone: set[str]) -> None:
        """Where a crash came between a topic's removal and that of its offsets: a new topic must not inherit them.

        Until that is durable, nobody can make a topic with one of the names in `gone`.
        """
        for orphans in self.groups.decide_forget(lambda topic: topic not in self.topics.by_name):
            if orphans and self.group_requests.append_in_batches(orphans, from_reserve=True):
                raise UnfinishedDeletion(
                    f"{GROUP_OFFSETS_TOPIC}: the offsets of deleted topics could not be removed;"
                    f" {Remedy.LOOK_ABOVE}; {Remedy.FREE_DISK}, then {Remedy.START_BROKER_AGAIN}"
                )

        def synced(error_code: ErrorCode) -> None:
            if not error_code:
                self.topics.being_deleted -= gone

        self.group_requests.when_synced(synced)

    # Topics

    def create_topics(self, wanted: Sequence[NewTopic], answer: Callable[[list[Created]], None]) -> None:
        """Create topics; `answer` is called when each is durable and open, or refused."""
        self.topic_operations.create(wanted, answer)

    def record(self, records: Sequence[MetadataRecord], *, from_reserve: bool = False) -> None:
        """Append and replay a change of the topics. Raises LogError."""
        entries = [(None, metadata_records.encode(record)) for record in records]
        self._metadata.append(entries, from_reserve=from_reserve)
        for record in records:
            self.topics.replay(record)

    def record_config(self, records: Sequence[MetadataRecord]) -> None:
        """Record a topic's configurations. Raises LogError.

        Retention is lowered so: it must be possible when the disk is full. Half of the reserve is left to deletions.
        """
        self.record(records, from_reserve=self._disk.leaves_half())

    def when_metadata_synced(self, synced: Synced) -> None:
        """Call back once what the topics are now is durable: at once if nothing changed, or with the error."""
        self._metadata.when_synced(synced)

    def log_config_of(self, topic: Topic) -> LogConfig:
        """What the topic's logs go by."""
        if topic.name == GROUP_OFFSETS_TOPIC:
            return replace(STATE_LOG_CONFIG, segment_bytes=self.config.offsets_topic_segment_bytes)
        if topic.is_internal:
            return replace(STATE_LOG_CONFIG, segment_bytes=self.config.transaction_log_segment_bytes)
        return log_config(self.config.log, topic.configs)

    def reconfigure_topic(self, topic: Topic) -> None:
        """Let the topic's open logs go by its configuration of now."""
        config = self.log_config_of(topic)
        for partition in self.partitions.of_topic(topic.name):
            partition.log.reconfigure(config)

    def forget_offsets(self, names: set[str], forgotten: Callable[[ErrorCode], None]) -> None:
        """Take away every group's offsets of these topics, durably."""
        self.group_requests.when_loaded(lambda: self.group_requests.forget(names.__contains__, forgotten))

    def in_background(
        self, work: Callable[[], Result], done: Callable[[Result], None], failed: Callable[[str], None]
    ) -> None:
        """Run `work` in the housekeeping thread, then `done` on the loop; `failed` is told of what `work` raises."""
        future = asyncio.get_running_loop().run_in_executor(self._housekeeping_thread, work)

        def finish(finished: asyncio.Future[Result]) -> None:
            error = finished.exception()
            if error is not None:
                failed(f"its work on the disk failed: {error!r}")
                raise error
            done(finished.result())

        future.add_done_callback(finish)

    def in_search_thread(self, work: Callable[[], Result], done: Callable[[Result], None]) -> None:
        """Run what reads old batches apart from the loop, and from the topics' creation and removal."""
        _run_in(self._searches, work, done)

    def _in_record_check_thread(self, work: Callable[[], Result], done: Callable[[Result], None]) -> None:
        _run_in(self._record_checks_thread, work, done)

    # Producer ids

    def next_producer_id(self, answer: Callable[[ErrorCode, int], None]) -> None:
        """A producer id that nobody ever had, once the record that reserves it is durable."""
        producer_id = next(self._producer_ids, None)
        if producer_id is None:
            first = self.topics.next_producer_id
            try:
                self.record(self.topics.decide_producer_ids())
            except LogError as error:
                answer(error.error_code, -1)
                return
            self._producer_ids = iter(range(first, self.topics.next_producer_id))
            producer_id = next(self._producer_ids)
        self._metadata.when_synced(lambda code: answer(code, -1 if code else producer_id))

    # Time and end

    def check_directory(self) -> None:
        """Fail every partition once the data directory is not at its path any more."""
        if not self.directory.is_in_place():
            self._lose_directory()

    def _lose_directory(self) -> None:
        if self.is_lost:
            return
        self.is_lost = True
        path = self.directory.path
        logger.critical(
            "data directory %s was deleted, renamed or replaced while the broker ran: nothing more is stored or"
            " acknowledged; %s, then %s",
            path,
            Remedy.RESTORE_DIRECTORY,
            Remedy.START_BROKER_AGAIN,
        )
        error = FileNotFoundError(errno.ENOENT, "the data directory is not at its path", str(path))
        for partition in (*self.partitions, self._metadata.partition):
            partition.log.fail(error)
            partition.fail(ErrorCode.kafka_storage_error)

    def expire_groups(self) -> None:
        """Act on the groups' time-outs that are over."""
        self.group_requests.expire()

    async def close(self) -> bool:
        """Sync and close every log, and mark the directory clean if that went well; whether it did."""
        await self.housekeeping.close()
        await self.group_commit.close()
        self._housekeeping_thread.shutdown()
        self._searches.shutdown()
        self._record_checks_thread.shutdown()
        clean = False
        try:
            are_whole = close_all((*self.partitions, self._metadata.partition))
            clean = are_whole and self.directory.is_in_place()
        finally:
            for partition in (*self.partitions, self._metadata.partition):
                partition.log.close_files()
            self.directory.close(clean=clean)
        return clean


def _run_in(thread: WorkThread, work: Callable[[], Result], done: Callable[[Result], None]) -> None:
    future = asyncio.get_running_loop().run_in_executor(thread, work)
    future.add_done_callback(lambda finished: done(finished.result()))


@contextmanager
def _without_collector() -> Iterator[None]:
    """Thousands of logs are opened and none is garbage: to look for some again and again takes a fifth of a start."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _sync_now(log: PartitionLog) -> None:
    """At start-up, before anybody waits: blocks until the log is durable. Raises OSError."""
    point = log.begin_sync()
    assert point is not None
    point.run()
    log.end_sync(point)
