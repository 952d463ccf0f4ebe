"""A broker joins its cluster: the parts of it that know ZooKeeper and the other brokers, in the order of a start."""

import logging
from collections.abc import Callable, Set
from typing import NamedTuple, Protocol

from onceflow.broker.cluster.controller_client import ControllerClient
from onceflow.broker.cluster.fetcher import Fetchers, FetchLimits
from onceflow.broker.cluster.forwarding import TopicForwarder
from onceflow.broker.cluster.inter_broker import InterBroker
from onceflow.broker.cluster.leaving import Attempts, Leaving
from onceflow.broker.cluster.member import Member
from onceflow.broker.cluster.metadata import RegistryMetadata
from onceflow.broker.cluster.moving import check_move, move
from onceflow.broker.cluster.participants import ClusterParticipants, LocalPartitions
from onceflow.broker.cluster.registry import Registry
from onceflow.broker.cluster.replicas import Lag
from onceflow.broker.cluster.replication import Replication
from onceflow.broker.cluster.security import RegistrySecurity
from onceflow.broker.cluster.to_controller import ToController
from onceflow.broker.cluster.verification import Verifications
from onceflow.broker.cluster.view import ClusterView
from onceflow.broker.config import BrokerConfig
from onceflow.broker.loop.deferred import DeferredCalls
from onceflow.broker.loop.work_thread import WorkThread
from onceflow.broker.security.acls import Acls
from onceflow.broker.security.authorizer import Authorizer
from onceflow.broker.security.client_quotas import ClientQuotas
from onceflow.broker.security.credentials import Credentials
from onceflow.broker.storage.group_commit import GroupCommit
from onceflow.broker.storage.housekeeping import Housekeeping
from onceflow.broker.storage.partitions import Partitions
from onceflow.broker.topics.internal import partition_count_of, partition_of
from onceflow.broker.topics.logs import TopicLogs
from onceflow.broker.topics.metadata_log import MetadataLog
from onceflow.broker.topics.operations import TopicOperations
from onceflow.broker.topics.security_state import SecurityState
from onceflow.broker.topics.topics import TRANSACTION_STATE_TOPIC, Topics
from onceflow.errors import OnceflowError
from onceflow.log.clock import Clock
from onceflow.log.directory import DataDirectory, new_id
from onceflow.log.disk import Disk
from onceflow.zookeeper.session import Session

logger = logging.getLogger(__name__)


class Cluster(NamedTuple):
    """The parts of a broker on ZooKeeper that know the other brokers."""

    view: ClusterView
    member: Member
    metadata: RegistryMetadata
    forwarder: TopicForwarder
    leaving: Leaving
    replication: Replication
    participants: ClusterParticipants
    verifications: Verifications

    def forget_dead(self) -> None:
        """End the requests to brokers that are not alive any more; called often."""
        self.participants.forget_dead()
        self.verifications.forget_dead()


class Host(Protocol):
    """Interface of the broker that joins (`node.Node`)."""

    config: BrokerConfig
    clock: Clock
    directory: DataDirectory
    node_id: int
    deferred: DeferredCalls
    group_commit: GroupCommit
    housekeeping: Housekeeping
    housekeeping_thread: WorkThread
    topics: Topics
    partitions: Partitions
    logs: TopicLogs
    authorizer: Authorizer | None
    topic_operations: TopicOperations

    def topic_has_partition(self, topic: str, index: int) -> bool:
        """Return whether a topic is known and has the partition."""

    def open_log(self, topics: Topics, security: SecurityState) -> MetadataLog:
        """Read the metadata log of a broker without a cluster."""

    def lose_registry(self, error: OnceflowError) -> None:
        """Serve nothing any more."""


def register(config: BrokerConfig, clock: Clock, disk: Disk, session: Session | None) -> tuple[Registry, str]:
    """Register this broker in ZooKeeper; return the registry and the cluster's id. Blocks.

    Raises ZooKeeperUnavailable, RegistrationRefused, InvalidTls, OSError, and ModuleNotFoundError without the packages
    for a cluster.
    """
    registry = _open_registry(config, clock, session)
    try:
        own_id = DataDirectory.cluster_id_in(config.data, disk)
        cluster_id = registry.cluster_id(config.cluster_id, lambda: own_id or new_id())
        advertised = [config.advertised_for(own) for own in config.listeners]
        registry.join(advertised, config.listener_protocols, config.rack)
    except BaseException:
        registry.close()
        raise
    return registry, cluster_id


def _open_registry(config: BrokerConfig, clock: Clock, session: Session | None) -> Registry:
    # Certificates that cannot be used stop the start before the broker is registered.
    InterBroker(config)
    if session is None:
        # Here, so that the clusters of onceflow.testing need no kazoo.
        from onceflow.broker.cluster.zookeeper_security import zookeeper_session

        session = zookeeper_session(config)
    return Registry.open(session, config.node_id, clock)


class Joining:
    """The parts that are created while the broker opens its logs."""

    def __init__(self, host: Host, registry: Registry, state: SecurityState) -> None:
        """Read the topics, ACLs, users and quotas, after those of this broker alone have been moved there. Blocks."""
        self._host = host
        self.metadata = RegistryMetadata(
            registry,
            host.topics,
            RegistrySecurity(registry, state, has_acls=host.authorizer is not None),
            InterBroker(host.config),
            clock=host.clock,
            delete_topics=host.config.delete_topics,
            unclean_default=host.config.log.unclean_leader_election,
            on_lost=host.lose_registry,
            on_removed=lambda name: host.topic_operations.forget(name),
        )
        self.metadata.sync()
        if host.logs.has_metadata:
            self._move(state)
        self._view = ClusterView(self.metadata.others)

    def _move(self, state: SecurityState) -> None:
        """Move what the data directory has of a broker alone to ZooKeeper."""
        host = self._host
        own = Topics(host.node_id, host.topics.partition_count_default, host.topics.partitions_max)
        security = SecurityState(Acls(), Credentials(), ClientQuotas())
        (partition,) = host.open_log(own, security).partitions
        check_move(host.directory.path, own, security, host.topics, self.metadata)
        move(host.node_id, own, security, host.topics, state, self.metadata)
        partition.log.close()
        host.logs.delete_metadata(own.deleted_names())
        logger.info("%d topics of this broker are in ZooKeeper now", len(own.by_name))

    def add_participants(self, local: LocalPartitions) -> ClusterParticipants:
        """Return the participants of transactions: the partitions of this broker and of the others."""
        host = self._host
        self._participants = ClusterParticipants(
            host.node_id, local, host.partitions, self._view, self.metadata, host.topic_has_partition
        )
        return self._participants

    def join(self, delete_offsets: Callable[[Set[str]], None]) -> Cluster:
        """Obey the controller, or be the controller, from now on; `add_participants` must have been called."""
        host, view = self._host, self._view
        replication = self._new_replication()
        member = Member(
            host.node_id,
            view,
            host.topics,
            host.partitions,
            host.topic_operations,
            self.metadata,
            replication,
            delete_offsets,
        )
        attempts = Attempts(host.config.controlled_shutdown_retries, host.config.controlled_shutdown_pause_ms / 1000)
        leaving = Leaving(host.node_id, view, ToController(view, str(host.node_id)), self.metadata, attempts)
        forwarder = TopicForwarder(ToController(view, str(host.node_id)))
        verifications = Verifications(host.node_id, view, self._transaction_coordinator)
        host.partitions.is_elsewhere = host.topic_has_partition
        self.metadata.connect(member.deliver, member.when_idle)
        return Cluster(view, member, self.metadata, forwarder, leaving, replication, self._participants, verifications)

    def _transaction_coordinator(self, transactional_id: str) -> int:
        """Return the broker that coordinates a transactional id, -1 if it is unknown."""
        count = partition_count_of(TRANSACTION_STATE_TOPIC, self._host.topics, self._host.config)
        index = partition_of(transactional_id, count)
        state = self._view.state(TRANSACTION_STATE_TOPIC, index)
        return -1 if state is None else state.leader

    def _new_replication(self) -> Replication:
        host, view, config = self._host, self._view, self._host.config
        fetchers = Fetchers(
            host.node_id,
            FetchLimits(
                config.replica_fetchers,
                config.replica_fetch_wait_max_ms,
                config.replica_fetch_bytes_min,
                config.replica_fetch_bytes_max,
                config.replica_fetch_response_bytes_max,
                config.replica_fetch_backoff_ms,
                config.replica_socket_timeout_ms,
            ),
            group_commit=host.group_commit,
            thread=host.housekeeping_thread,
            address_of=view.inter_broker_address,
            connect=view.connect,
            advance_start=host.housekeeping.delete_records,
            lower_offsets=host.directory.lower_offsets,
            is_busy=lambda partition: host.housekeeping.cleaner.compacting is partition,
        )
        return Replication(
            host.node_id,
            fetchers,
            lag=Lag(config.replica_lag_time_max_ms, config.replica_lag_messages_max),
            clock=host.clock,
            deferred=host.deferred,
            is_alive=lambda broker_id: broker_id in view.brokers,
            stored_high_watermark=host.directory.high_watermarks.get,
            controller=ControllerClient(host.node_id, ToController(view, f"broker-{host.node_id}"), self.metadata),
        )
