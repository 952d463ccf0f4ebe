"""The coordinators of groups and transactions, and the internal topics with their state."""

from functools import partial

from onceflow.broker.config import BrokerConfig
from onceflow.broker.groups.requests import GroupRequests
from onceflow.broker.groups.shards import GroupShards
from onceflow.broker.storage.group_commit import GroupCommit
from onceflow.broker.storage.partitions import Partition, Partitions
from onceflow.broker.storage.state_log import StateLog
from onceflow.broker.topics.internal import partition_count_of
from onceflow.broker.topics.logs import TopicLogs
from onceflow.broker.topics.metadata_log import MetadataStore
from onceflow.broker.topics.topics import GROUP_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC, NewTopic, Topics
from onceflow.broker.transactions.coordinator import TransactionCoordinator
from onceflow.broker.transactions.participants import Participants
from onceflow.broker.transactions.requests import Transactions
from onceflow.broker.transactions.shards import TransactionShards
from onceflow.errors import OnceflowError
from onceflow.log.clock import Clock
from onceflow.remedies import Remedy
from onceflow.wire.errors import ErrorCode


class UnfinishedDeletion(OnceflowError):
    """A topic deletion interrupted by a crash cannot be finished at start."""


class Coordinators:
    """Opens the coordinators of one broker: of all keys, or in a cluster of the partitions that it leads."""

    def __init__(
        self,
        config: BrokerConfig,
        topics: Topics,
        partitions: Partitions,
        *,
        metadata: MetadataStore,
        logs: TopicLogs,
        clock: Clock,
        group_commit: GroupCommit,
    ) -> None:
        self._config = config
        self._topics = topics
        self._partitions = partitions
        self._metadata = metadata
        self._logs = logs
        self._clock = clock
        self._group_commit = group_commit

    def _open_state_partition(self, name: str) -> Partition:
        """Open the internal topic of a broker alone: all state is here, and one file needs one sync."""
        if name not in self._topics.by_name:
            here = (0, (self._topics.node_id,))
            self._metadata.record(self._topics.decide_create(NewTopic(name, -1, -1, assignments=[here])))
            self._metadata.sync()
            topic = self._topics.by_name[name]
            self._partitions.install(name, self._logs.open(topic, (0,), self._logs.config_of(topic), clean=False))
        partition = self._partitions.get(name, 0)
        assert partition is not None
        return partition

    def open_groups(self) -> GroupShards:
        """Coordinate all groups, or in a cluster those of the partitions that this broker will lead."""
        count = partial(partition_count_of, GROUP_OFFSETS_TOPIC, self._topics, self._config)
        shards = GroupShards(self._config, self._clock, self._state_log, count)
        deleted = self._topics.deleted_names()
        self._topics.being_deleted |= deleted
        if self._config.zookeeper_connect is None:
            groups = shards.open(self._open_state_partition(GROUP_OFFSETS_TOPIC))
            groups.when_loaded(lambda: self._finish_deletions(groups, deleted))
        else:
            self._partitions.roles[GROUP_OFFSETS_TOPIC] = shards
            self._metadata.finish_deletions(deleted, self._topics.being_deleted.difference_update)
        return shards

    def open_transactions(self, participants: Participants) -> TransactionShards:
        """Load the coordinator of the one partition; in a cluster follow the partitions that this broker leads."""
        count = partial(partition_count_of, TRANSACTION_STATE_TOPIC, self._topics, self._config)
        shards = TransactionShards(partial(self._new_transactions, participants), self._state_log, count)
        if self._config.zookeeper_connect is None:
            shards.open(self._open_state_partition(TRANSACTION_STATE_TOPIC))
        else:
            self._partitions.roles[TRANSACTION_STATE_TOPIC] = shards
        return shards

    def _state_log(self, partition: Partition) -> StateLog:
        return StateLog(partition, self._clock, self._group_commit)

    def _new_transactions(self, participants: Participants, state_log: StateLog) -> Transactions:
        coordinator = TransactionCoordinator(
            self._clock,
            timeout_max_ms=self._config.transaction_timeout_max_ms,
            expiration_ms=self._config.transactional_id_expiration_ms,
        )
        return Transactions(
            coordinator,
            state_log,
            participants,
            self._metadata.next_producer_id,
            abort_interval_ms=self._config.transaction_abort_interval_ms,
            expiration_interval_ms=self._config.transactional_id_expiration_interval_ms,
        )

    def _finish_deletions(self, groups: GroupRequests, deleted: set[str]) -> None:
        """Delete the offsets of topics whose deletion was interrupted by a crash: a new topic must not inherit them.

        Until that is durable, no topic can be created with one of the names in `deleted`.
        """
        for orphans in groups.groups.decide_delete_topic_offsets(lambda topic: topic not in self._topics.by_name):
            if orphans and groups.append_in_batches(orphans, from_reserve=True):
                raise UnfinishedDeletion(
                    f"{GROUP_OFFSETS_TOPIC}: the offsets of deleted topics could not be deleted;"
                    f" {Remedy.LOOK_ABOVE}; {Remedy.FREE_DISK}, then {Remedy.START_BROKER_AGAIN}"
                )

        def synced(error_code: ErrorCode) -> None:
            if not error_code:
                self._metadata.finish_deletions(deleted, self._topics.being_deleted.difference_update)

        groups.when_synced(synced)
