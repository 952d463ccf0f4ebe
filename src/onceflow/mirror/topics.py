"""Topics of a mirror: which are mirrored, and their creation and enlargement in the target."""

import re
import time
from collections.abc import Mapping
from typing import NamedTuple

from onceflow.client.admin import MIN_INSYNC_REPLICAS, Admin
from onceflow.client.admin_responses import ConfigEntry
from onceflow.client.cluster import Cluster
from onceflow.client.errors import RequestTimedOut, TopicExists
from onceflow.client.metadata import NO_LEADER, TopicMetadata
from onceflow.mirror.errors import MirrorStopped
from onceflow.mirror.offset_map import Ids
from onceflow.mirror.positions import PREFIX
from onceflow.remedies import Remedy

COPIED_CONFIGS = (
    "cleanup.policy",
    "compression.type",
    "delete.retention.ms",
    "max.compaction.lag.ms",
    "max.message.bytes",
    "message.timestamp.after.max.ms",
    "message.timestamp.before.max.ms",
    "min.cleanable.dirty.ratio",
    "min.compaction.lag.ms",
    "retention.bytes",
    "retention.ms",
    "segment.bytes",
    "segment.ms",
)
"""Configs that a topic is created with if they are set on the source's topic."""
MESSAGE_BYTES = "max.message.bytes"
TIMESTAMP_TYPE = "message.timestamp.type"
CREATE_TIME = "CreateTime"
TOPIC_SOURCE = "DYNAMIC_TOPIC_CONFIG"
DEFAULT_SOURCE = "DEFAULT_CONFIG"
_POLL_S = 0.05


class Pair(NamedTuple):
    """A topic in the source and in the target."""

    source: TopicMetadata
    target: TopicMetadata

    @property
    def ids(self) -> Ids:
        """Its ids in both."""
        return Ids(id_of(self.source), id_of(self.target))


def id_of(topic: TopicMetadata) -> str | None:
    """Return the topic's id as text."""
    return None if topic.topic_id is None else str(topic.topic_id)


def is_mirrored(topic: TopicMetadata, pattern: re.Pattern[str]) -> bool:
    """Return whether a topic of the source is mirrored: its whole name matches, and it holds no state of brokers or
    mirrors."""
    is_state = topic.internal or topic.name.startswith(("__", PREFIX))
    return not is_state and pattern.fullmatch(topic.name) is not None


class Topics:
    """The mirrored topics. `replication_factor` None is the source's, at most the number of the target's brokers."""

    def __init__(
        self, source: Cluster, target: Cluster, pattern: re.Pattern[str], replication_factor: int | None
    ) -> None:
        self._source = source
        self._target = target
        self._pattern = pattern
        self._replication_factor = replication_factor

    def pairs(self) -> dict[str, Pair]:
        """Return the current mirrored topics by name; create what the target lacks. Raises MirrorStopped."""
        sources = {name: topic for name, topic in self._source.topics().items() if is_mirrored(topic, self._pattern)}
        targets = self._target.topics(*sources) if sources else {}
        pairs = {}
        for name, topic in sorted(sources.items()):
            if not topic.partitions:
                continue
            existing = targets.get(name)
            if existing is None:
                existing = self._create(topic)
            elif len(existing.partitions) < len(topic.partitions):
                Admin(self._target).create_partitions(name, len(topic.partitions))
                existing = self._with_partitions(name, len(topic.partitions))
            pairs[name] = Pair(topic, existing)
        return pairs

    def require_create_time(self, name: str) -> None:
        """Check that the target keeps the records' timestamps. Raises MirrorStopped."""
        configs = Admin(self._target).describe_topic_configs(name)
        kept = configs[TIMESTAMP_TYPE].value if TIMESTAMP_TYPE in configs else CREATE_TIME
        if kept != CREATE_TIME:
            raise MirrorStopped(
                f"topic '{name}' at {self._target.bootstrap} has {TIMESTAMP_TYPE}={kept}, which replaces the records' "
                f"timestamps; {Remedy.KEEP_TIMESTAMPS.format(topic=name)}"
            )

    def replicas(self, source_replicas: int) -> int:
        """Return the replication factor of a topic in the target."""
        if self._replication_factor is not None:
            return self._replication_factor
        return max(1, min(source_replicas, len(self._target.router.brokers())))

    def _create(self, topic: TopicMetadata) -> TopicMetadata:
        configs = Admin(self._source).describe_topic_configs(topic.name)
        replicas = self.replicas(max((len(nodes) for nodes in topic.replicas.values()), default=1))
        try:
            return self._target.create_topic(
                topic.name,
                len(topic.partitions),
                replication_factor=replicas,
                configs=copied_configs(configs, replicas),
            )
        except TopicExists:
            return self._target.require_topic(topic.name)

    def _with_partitions(self, name: str, count: int) -> TopicMetadata:
        deadline = time.monotonic() + self._target.timeout_ms / 1000
        while True:
            topic = self._target.require_topic(name)
            if len(topic.partitions) >= count and NO_LEADER not in topic.partitions.values():
                return topic
            if time.monotonic() > deadline:
                raise RequestTimedOut(
                    f"{self._target.bootstrap}: waited {self._target.timeout_ms} ms for {count} partitions of {name}; "
                    f"{Remedy.LOOK_AT_BROKER_LOG}"
                )
            time.sleep(_POLL_S)


def copied_configs(configs: Mapping[str, ConfigEntry], replicas: int) -> dict[str, str]:
    """Return the configs of a new topic: those set on the source's topic, and timestamps as the records have them.

    The maximum batch size is copied from the source's broker too, since the target must accept all its batches.
    """
    copied = {TIMESTAMP_TYPE: CREATE_TIME}
    for name in COPIED_CONFIGS:
        entry = configs.get(name)
        if entry is None or entry.value is None:
            continue
        if entry.source == TOPIC_SOURCE or (name == MESSAGE_BYTES and entry.source != DEFAULT_SOURCE):
            copied[name] = entry.value
    in_sync = configs.get(MIN_INSYNC_REPLICAS)
    if in_sync is not None and in_sync.value is not None and in_sync.source == TOPIC_SOURCE:
        copied[MIN_INSYNC_REPLICAS] = str(min(int(in_sync.value), replicas))
    return copied
