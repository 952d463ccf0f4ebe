"""The logs of the topics: opened, reconfigured, and deleted with their directories."""

import logging
import uuid
from collections.abc import Iterable, Sequence, Set
from dataclasses import replace

from onceflow.broker.config import BrokerConfig
from onceflow.broker.storage.partitions import Partitions, Place
from onceflow.broker.topics.configs import log_config
from onceflow.broker.topics.topics import CLUSTER_METADATA_TOPIC, GROUP_OFFSETS_TOPIC, Topic, Topics
from onceflow.log.checkpoint import LEADER_EPOCH
from onceflow.log.clock import Clock
from onceflow.log.config import LogConfig
from onceflow.log.directory import DataDirectory
from onceflow.log.disk import Disk
from onceflow.log.errors import NoSpaceForNewLog, OtherTopicThere
from onceflow.log.partition import PartitionLog
from onceflow.remedies import Remedy

logger = logging.getLogger(__name__)

METADATA_LOG_CONFIG = LogConfig(
    segment_bytes=100 * 1024 * 1024, message_bytes_max=16 * 1024 * 1024, cleanup_delete=False
)
"""Configuration of `__cluster_metadata-0`: a batch may hold a topic with many partitions, and nothing is deleted."""

STATE_LOG_CONFIG = replace(METADATA_LOG_CONFIG, cleanup_compact=True)
"""Configuration of the broker's compacted topics: a batch may hold a whole group."""


class TopicLogs:
    """The logs of one data directory."""

    def __init__(
        self, config: BrokerConfig, partitions: Partitions, directory: DataDirectory, *, disk: Disk, clock: Clock
    ) -> None:
        self._config = config
        self._partitions = partitions
        self._directory = directory
        self._disk = disk
        self._clock = clock

    def open_metadata(self) -> PartitionLog:
        """Open the log of the topics. Blocks; raises LogError, OSError."""
        return self._open(CLUSTER_METADATA_TOPIC, 0, METADATA_LOG_CONFIG, None, clean=self._directory.clean)

    @property
    def has_metadata(self) -> bool:
        """Whether the directory has topics that are not in ZooKeeper."""
        return self._disk.exists(self._directory.partition_path(CLUSTER_METADATA_TOPIC, 0))

    def delete_metadata(self, deleted: Set[str]) -> None:
        """Delete the log of the topics, and the directories of `deleted` topics that a crash has left. Blocks."""
        for name, index in list(self._directory.partitions()):
            if name in deleted:
                self._directory.delete_partition(name, index)
        self._directory.delete_partition(CLUSTER_METADATA_TOPIC, 0)

    def open(self, topic: Topic, indexes: Iterable[int], config: LogConfig, *, clean: bool) -> list[PartitionLog]:
        """Open or create the logs of these partitions. Blocks; raises LogError, DataDirectoryRefused, OSError."""
        return [self._open(topic.name, index, config, topic.topic_id, clean=clean) for index in indexes]

    def open_replica(self, topic: Topic, index: int, config: LogConfig, *, clean: bool) -> PartitionLog:
        """Open or create the log of a partition of a cluster, as `open` does.

        Until this broker leads it in a later epoch, it continues the last one: a coordinator appends to its own topic.
        """
        log = self._open(topic.name, index, config, topic.topic_id, clean=clean, is_replica=True)
        log.begin_epoch(max(log.epochs.latest, LEADER_EPOCH))
        return log

    def _open(
        self,
        topic: str,
        index: int,
        config: LogConfig,
        topic_id: uuid.UUID | None,
        *,
        clean: bool,
        is_replica: bool = False,
    ) -> PartitionLog:
        path = self._directory.partition_path(topic, index)
        log = PartitionLog.open(
            path,
            config,
            disk=self._disk,
            clock=self._clock,
            clean=clean,
            topic_id=topic_id,
            log_start_offset=self._directory.log_start_offsets.get(topic, index),
            is_replica=is_replica,
        )
        if log.recovery_removed_bytes:
            logger.warning("%s: recovery truncated %d bytes of an incomplete batch", path, log.recovery_removed_bytes)
        return log

    def open_topics(self, topics: Topics, *, hosted_by: int | None = None) -> None:
        """Open the logs of all topics at start, and delete the directories of deleted topics.

        `hosted_by` is the id of a broker in a cluster: it opens the partitions that are assigned to it, and leads none
        until the controller says so.
        """
        for topic in topics.by_name.values():
            if hosted_by is None:
                self._open_topic(topic)
            else:
                self._open_hosted(topic, hosted_by)
        deleted = topics.deleted_names()
        for name, index in list(self._directory.partitions()):
            if name in deleted:
                self._directory.delete_partition(name, index)
            elif name != CLUSTER_METADATA_TOPIC and self._partitions.hosted(name, index) is None:
                logger.warning("%s belongs to no topic; it is left alone", self._directory.partition_path(name, index))

    def _open_topic(self, topic: Topic) -> None:
        """Open the logs of a topic. On a full disk, serve only the partitions before the first that has no log yet."""
        config = self.config_of(topic)
        logs: list[PartitionLog] = []
        try:
            for index in range(topic.partition_count):
                logs += self.open(topic, (index,), config, clean=self._directory.clean)
        except NoSpaceForNewLog as error:
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
            self._partitions.install(topic.name, logs)

    def _open_hosted(self, topic: Topic, broker_id: int) -> None:
        """Open the logs of a topic's partitions on this broker of a cluster; on a full disk, those that exist.

        One that another topic of this name has left is not served: this broker may have been away at its deletion, or
        the id in ZooKeeper may be wrong.
        """
        config = self.config_of(topic)
        for index in (index for index, replicas in enumerate(topic.replicas) if broker_id in replicas):
            try:
                log = self.open_replica(topic, index, config, clean=self._directory.clean)
            except NoSpaceForNewLog as error:
                if topic.is_internal:
                    raise
                remedy = f"{Remedy.FREE_DISK}, then {Remedy.RESTART_BROKER}"
                logger.error("%s-%d is not served: %s; %s", topic.name, index, error, remedy)
            except OtherTopicThere as error:
                logger.error("%s-%d is not served: %s", topic.name, index, error)
            else:
                self._partitions.host(topic.name, index, log)

    def config_of(self, topic: Topic) -> LogConfig:
        """Return the configuration of the topic's logs."""
        if topic.is_internal:
            of_groups = topic.name == GROUP_OFFSETS_TOPIC
            return replace(
                STATE_LOG_CONFIG,
                segment_bytes=self._config.offsets_topic_segment_bytes
                if of_groups
                else self._config.transaction_log_segment_bytes,
                min_insync_replicas=self._config.log.min_insync_replicas
                if of_groups
                else self._config.transaction_log_min_isr,
            )
        return log_config(self._config.log, topic.configs)

    def reconfigure(self, topic: Topic) -> None:
        """Apply the topic's current configuration to its open logs."""
        config = self.config_of(topic)
        for partition in self._partitions.of_topic(topic.name):
            partition.log.reconfigure(config)

    def delete_files(self, topics: Sequence[Topic]) -> set[str]:
        """Delete the directories of topics; return the names of those that have files left. Blocks."""
        places = [(topic.name, index) for topic in topics for index in range(topic.partition_count)]
        return {name for name, _index in self.delete_partitions(places)}

    def delete_partitions(self, places: Iterable[Place]) -> set[Place]:
        """Delete the directories of partitions; return those that have files left. Blocks."""
        left: set[Place] = set()
        for name, index in places:
            try:
                self._directory.delete_partition(name, index)
            except OSError as error:
                logger.error("%s-%d could not be deleted: %s", name, index, error)
                left.add((name, index))
        return left
