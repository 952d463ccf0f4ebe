"""The broker without its sockets: data directory, topics, partitions, groups, transactions, and threads."""

import errno
import gc
import logging
from collections.abc import Iterator, Sequence, Set
from contextlib import contextmanager
from functools import cached_property, partial
from typing import TYPE_CHECKING

from onceflow.broker.config import BrokerConfig as BrokerConfig
from onceflow.broker.coordinators import Coordinators
from onceflow.broker.groups.requests import Settled
from onceflow.broker.loop.background import run_in_thread
from onceflow.broker.loop.deferred import DeferredCalls
from onceflow.broker.loop.sliced_thread import SlicedThread
from onceflow.broker.loop.work_thread import WorkThread
from onceflow.broker.network.request import Request
from onceflow.broker.network.response_cache import ResponseCache
from onceflow.broker.network.throttling import Throttling
from onceflow.broker.security.acls import Acls
from onceflow.broker.security.authorizer import FULL_ACCESS, Access, Authorizer
from onceflow.broker.security.credentials import Credentials
from onceflow.broker.storage.group_commit import GroupCommit
from onceflow.broker.storage.housekeeping import Housekeeping
from onceflow.broker.storage.parked_fetches import ParkedFetches
from onceflow.broker.storage.partitions import Partitions, close_all
from onceflow.broker.storage.record_checks import RecordChecks
from onceflow.broker.topics.internal import new_internal_topic
from onceflow.broker.topics.logs import TopicLogs
from onceflow.broker.topics.metadata_entries import MetadataEntries
from onceflow.broker.topics.metadata_log import MetadataLog, MetadataStore
from onceflow.broker.topics.operations import Created, TopicOperations
from onceflow.broker.topics.security_state import SecurityState
from onceflow.broker.topics.topics import Topics
from onceflow.broker.transactions.participants import LocalParticipants
from onceflow.errors import OnceflowError
from onceflow.log.clock import Clock, SystemClock
from onceflow.log.directory import DataDirectory
from onceflow.log.disk import Disk, RealDisk
from onceflow.log.reserve import ReservedDisk
from onceflow.remedies import Remedy
from onceflow.wire.errors import ErrorCode
from onceflow.wire.known_produce import KnownRequests

if TYPE_CHECKING:
    from onceflow.broker.cluster.joining import Cluster, Joining
    from onceflow.broker.cluster.participants import ClusterParticipants
    from onceflow.broker.cluster.registry import Registry
    from onceflow.zookeeper.session import Session

logger = logging.getLogger(__name__)


class Node:
    """State and services that handlers use. All methods belong to the event loop's thread."""

    def __init__(
        self,
        config: BrokerConfig,
        disk: ReservedDisk,
        clock: Clock,
        directory: DataDirectory,
        registry: "Registry | None" = None,
    ) -> None:
        self.config = config
        self.disk = disk
        self.clock = clock
        self.directory = directory
        self.node_id = directory.node_id
        self.cluster_id = directory.cluster_id
        self.is_lost = False
        """Whether the data directory was deleted, renamed or replaced, or another broker is the cluster's controller:
        nothing more can be stored."""
        self.deferred = DeferredCalls()
        self.group_commit = GroupCommit(self.deferred, directory.is_in_place, self._lose_directory)
        self.housekeeping_thread = WorkThread("housekeeping")
        self.search_thread = WorkThread("time-search")
        """Thread that reads old batches, apart from the loop and from the creation and deletion of topics."""
        self._record_check_thread = WorkThread("record-checks")
        self.partitions = Partitions()
        self.parked_fetches = ParkedFetches(config.parked_fetch_partitions_max)
        self.response_cache = ResponseCache()
        self.known_requests = KnownRequests()
        self.record_checks = RecordChecks(clock, partial(run_in_thread, self._record_check_thread))
        self.housekeeping = Housekeeping(
            config,
            self.partitions,
            directory,
            disk=disk,
            clock=clock,
            group_commit=self.group_commit,
            thread=self.housekeeping_thread,
        )
        self.topics = self._new_topics()
        self.metadata_entries = MetadataEntries(self.node_id)
        self.logs = TopicLogs(config, self.partitions, directory, disk=disk, clock=clock)
        self.acls = Acls()
        self.authorizer = self._new_authorizer()
        self.credentials = Credentials()
        self.throttling = Throttling(config, clock)
        state = SecurityState(self.acls, self.credentials, self.throttling.quotas)
        joining = None if registry is None else self._join(registry, state)
        self.metadata: MetadataStore = self.open_log(self.topics, state) if joining is None else joining.metadata
        self.logs.open_topics(self.topics, hosted_by=None if registry is None else self.node_id)
        coordinators = self._new_coordinators()
        self.group_shards = coordinators.open_groups()
        local = LocalParticipants(self.partitions, self.group_commit, self.group_shards.at, self.metadata.when_synced)
        self.participants: LocalParticipants | ClusterParticipants = local
        if joining is not None:
            self.participants = joining.add_participants(local)
        self.transactions = coordinators.open_transactions(self.participants)
        self.topic_operations = self._new_topic_operations()
        self.cluster: Cluster | None = None
        """The other brokers, if this one is on ZooKeeper."""
        if joining is not None:
            self.cluster = joining.join(self.group_shards.delete_offsets_of_topics)

    @classmethod
    def open(
        cls,
        config: BrokerConfig,
        *,
        disk: Disk | None = None,
        clock: Clock | None = None,
        session: "Session | None" = None,
    ) -> "Node":
        """Lock the data directory and recover its logs. Blocks.

        `session` is with another registry than that of `zookeeper.connect`.

        Raises DataDirectoryRefused, OSError, and for a broker on ZooKeeper ZooKeeperUnavailable, RegistrationRefused,
        SeveralBrokers, DamagedNode, ModuleNotFoundError.
        """
        registry, cluster_id = None, config.cluster_id
        if config.zookeeper_connect is not None:
            from onceflow.broker.cluster.joining import register

            # Before the data directory is touched: a refused broker must not leave one of this cluster.
            registry, cluster_id = register(config, clock or SystemClock(), disk or RealDisk(), session)
        try:
            reserved = ReservedDisk(disk or RealDisk(), config.data, config.reserve_bytes)
            directory = DataDirectory.open(config.data, disk=reserved, node_id=config.node_id, cluster_id=cluster_id)
            try:
                reserved.fill()
                with _without_collector():
                    return cls(config, reserved, clock or SystemClock(), directory, registry)
            except BaseException:
                directory.close(clean=False)
                raise
        except BaseException:
            if registry is not None:
                registry.close()
            raise

    def _join(self, registry: "Registry", state: SecurityState) -> "Joining":
        from onceflow.broker.cluster.joining import Joining

        return Joining(self, registry, state)

    def topic_has_partition(self, topic: str, index: int) -> bool:
        """Return whether a topic is known and has the partition, on whatever broker."""
        known = self.topics.by_name.get(topic)
        return known is not None and 0 <= index < known.partition_count

    def has_partition(self, topic: str, index: int) -> bool:
        """Return whether a partition exists, here or on another broker of the cluster."""
        return self.partitions.get(topic, index) is not None or self.partitions.is_elsewhere(topic, index)

    def create_state_topic(self, name: str) -> None:
        """Create an internal topic of the cluster; clients ask for their coordinator again until it is there."""
        new = new_internal_topic(name, self.config)
        if self.metadata.is_controller:
            self.topic_operations.create([new], _warn_of_failures)
        else:
            assert self.cluster is not None
            self.cluster.forwarder.create([new])

    def _delete_offsets(self, names: Set[str], settled: Settled) -> None:
        """Delete the groups' offsets of deleted topics. In a cluster every coordinator does when it learns of that."""
        if self.cluster is None:
            self.group_shards.at(0).delete_offsets_of_topics(names, settled)
        else:
            settled(ErrorCode.none)

    def open_log(self, topics: Topics, security: SecurityState) -> MetadataLog:
        """Read the metadata log of a broker without a cluster into `topics` and `security`."""
        log = self.logs.open_metadata()
        return MetadataLog(log, topics, security, clock=self.clock, group_commit=self.group_commit, disk=self.disk)

    def _new_authorizer(self) -> Authorizer | None:
        """Return the configured authorizer; without one every request is allowed."""
        config = self.config
        if not config.authorizer_class:
            return None
        return Authorizer(self.acls, config.super_users, allow_if_no_acl=config.allow_everyone_if_no_acl)

    @cached_property
    def conversions(self) -> SlicedThread:
        """Thread that converts records for old consumers."""
        return SlicedThread("down-conversion")

    def access(self, request: Request) -> Access:
        """Return what the client of a request may do."""
        if self.authorizer is None:
            return FULL_ACCESS
        return self.authorizer.access(request.principal, request.peer_host)

    def _new_topics(self) -> Topics:
        config = self.config
        return Topics(
            self.node_id,
            config.partition_count_default,
            config.partitions_max,
            replication_factor_default=config.replication_factor_default,
        )

    def _new_coordinators(self) -> Coordinators:
        return Coordinators(
            self.config,
            self.topics,
            self.partitions,
            metadata=self.metadata,
            logs=self.logs,
            clock=self.clock,
            group_commit=self.group_commit,
        )

    def _new_topic_operations(self) -> TopicOperations:
        operations = TopicOperations(
            self.topics,
            self.partitions,
            metadata=self.metadata,
            logs=self.logs,
            group_commit=self.group_commit,
            thread=self.housekeeping_thread,
            delete_offsets=self._delete_offsets,
            opens_partitions=self.config.zookeeper_connect is None,
        )
        self.metadata.follow_others(operations.follow, operations.delete)
        return operations

    # Timers and close

    def check_directory(self) -> None:
        """Fail every partition if the data directory is no longer at its path."""
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
        self._fail_partitions(FileNotFoundError(errno.ENOENT, "the data directory is not at its path", str(path)))

    def lose_registry(self, error: OnceflowError) -> None:
        """Serve nothing any more: another broker may lead this one's partitions."""
        if not self.is_lost:
            self.is_lost = True
            logger.critical("the broker left the cluster, and nothing more is stored or acknowledged: %s", error)
            self._fail_partitions(OSError(str(error)))

    def _fail_partitions(self, error: OSError) -> None:
        for partition in (*self.partitions, *self.metadata.partitions):
            partition.log.durability.fail(error)
            partition.fail(ErrorCode.kafka_storage_error)

    async def _store_high_watermarks(self) -> None:
        try:
            await self.housekeeping.store_high_watermarks()
        except OSError as error:
            logger.error("high watermarks could not be stored: %s", error)

    async def close(self) -> bool:
        """Sync and close every log, mark the directory clean, and return True; False if a log failed."""
        clean = False
        try:
            if self.cluster is not None:
                self.cluster.forwarder.close()
                await self.cluster.participants.close()
                await self.cluster.verifications.close()
                await self.cluster.replication.close()
                await self._store_high_watermarks()
            await self.housekeeping.close()
            await self.group_commit.close()
            self.housekeeping_thread.shutdown()
            self.search_thread.shutdown()
            self._record_check_thread.shutdown()
            self.conversions.close()
            are_whole = close_all((*self.partitions, *self.metadata.partitions))
            clean = are_whole and self.directory.is_in_place()
        finally:
            for partition in (*self.partitions, *self.metadata.partitions):
                partition.log.close_files()
            self.metadata.close()
            self.directory.close(clean=clean)
        return clean


def _warn_of_failures(results: Sequence[Created]) -> None:
    for created in results:
        if created.error_code not in (ErrorCode.none, ErrorCode.topic_already_exists):
            logger.warning("topic %s was not created: %s", created.name, created.error_message)


@contextmanager
def _without_collector() -> Iterator[None]:
    """Pause the garbage collector: with thousands of logs, none of them garbage, it takes a fifth of a start."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
