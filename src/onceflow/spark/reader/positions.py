"""First and end offsets of the subscribed topics."""

import time
from collections.abc import Callable, Collection, Mapping

from onceflow.client.cluster import Cluster
from onceflow.client.errors import UnknownTopic
from onceflow.client.metadata import TopicMetadata
from onceflow.remedies import Remedy
from onceflow.spark.errors import WrongOption
from onceflow.spark.offsets import Loss, LossKind, Offsets
from onceflow.spark.reader import data_loss
from onceflow.spark.reader.offset_store import OffsetStore
from onceflow.spark.reader.options import SourceOptions
from onceflow.spark.reader.position_options import (
    EARLIEST,
    LATEST,
    NONE_COMMITTED,
    STARTING_STRATEGY,
    AtCommitted,
    AtTimestamp,
    Position,
)
from onceflow.spark.reader.subscription import SUBSCRIBE_PATTERN

TOPICS_AGE_MS_MAX = 1000
"""Maximum delay until new topics and partitions are noticed."""

_NO_OFFSET = -1

ByPartition = Mapping[str, Mapping[int, int]]
"""An offset for each partition of each topic."""


class LogPositions:
    """First and end offsets of the partitions that the options select, under their isolation level."""

    def __init__(
        self,
        cluster: Cluster,
        options: SourceOptions,
        monotonic: Callable[[], float] = time.monotonic,
        store: OffsetStore | None = None,
    ) -> None:
        """`store` has the offsets of groups; None: they are in the cluster."""
        self._cluster = cluster
        self._store = store or cluster
        self._options = options
        self._monotonic = monotonic
        self._topics: Mapping[str, TopicMetadata] = {}
        self._topics_until = monotonic()
        self._ends: Offsets | None = None

    def ends(self, *, fresh: bool = False) -> Offsets:
        """Request the end of every partition, without topics that do not exist; `fresh`: with those created just now.

        The ends are never cached: Spark's processAllAvailable waits for what was written before its call only if the
        source shows it at once.
        """
        self._ends = self._ask_ends(self._refresh_topics(fresh=fresh))
        return self._ends

    def known_ends(self) -> Offsets:
        """Return the ends that were requested last, for a report."""
        return self.ends() if self._ends is None else self._ends

    def begins(self, wanted: Mapping[str, Collection[int]]) -> dict[str, dict[int, int]]:
        """Return the first offset of each wanted partition."""
        return {topic: self._ask(topic, dict.fromkeys(wanted[topic], EARLIEST)) for topic in wanted}

    def resolve(self, name: str, position: Position, ends: Offsets | None = None) -> Offsets:
        """Return a position as offsets; `name` is its option, and `ends` defaults to the current ends.

        Raises WrongOption, UnknownTopic and DataLost.
        """
        if ends is None:
            ends = self.ends(fresh=True)
        self._require_there(ends)
        if position == "latest":
            return ends
        begins = self.begins(ends.by_topic)
        if position == "earliest":
            return Offsets(begins, ends.topic_ids)
        if isinstance(position, AtTimestamp):
            return self._resolve_times(position, ends)
        if isinstance(position, AtCommitted):
            return self._resolve_committed(position, begins, ends)
        return self._resolve_given(name, position, begins, ends)

    def _require_there(self, ends: Offsets) -> None:
        subscription = self._options.subscription
        for topic in subscription.topics:
            if topic not in ends.by_topic:
                self._cluster.require_topic(topic)
        missing = subscription.missing_from(self._topics)
        if missing is not None:
            raise WrongOption(f"option {subscription.option} names {missing}, which does not exist")
        if subscription.pattern is not None and not ends.by_topic:
            raise UnknownTopic(
                f"option {SUBSCRIBE_PATTERN}={subscription.pattern!r} matches no topic at {self._options.bootstrap}; "
                f"{Remedy.LIST_TOPICS}"
            )

    def _resolve_given(self, name: str, given: Offsets, begins: ByPartition, ends: Offsets) -> Offsets:
        _require_same_topics(name, given.by_topic, ends.by_topic)
        resolved: dict[str, dict[int, int]] = {}
        for topic, partitions in ends.by_topic.items():
            if not ends.same_topic(given, topic):
                raise WrongOption(
                    f"option {name} has offsets of topic {topic} with id {given.topic_ids[topic]}, which was deleted "
                    f"and recreated with id {ends.topic_ids[topic]}; give offsets of the current topic"
                )
            _require_same_partitions(name, topic, given.by_topic[topic], partitions)
            resolved[topic] = {
                partition: self._resolve_offset(
                    f"option {name}", topic, partition, offset, begins[topic][partition], partitions[partition]
                )
                for partition, offset in given.by_topic[topic].items()
            }
        return Offsets(resolved, ends.topic_ids)

    def _resolve_offset(self, who: str, topic: str, partition: int, offset: int, begin: int, end: int) -> int:
        if offset == EARLIEST:
            return begin
        if offset == LATEST:
            return end
        if offset > end:
            raise WrongOption(f"{who}: offset {offset} of {topic}-{partition} is after its end, {end}")
        if offset < begin:
            reason = f"the partition now starts at {begin}"
            lost = Loss(LossKind.TRIMMED, topic, partition, offset, begin, reason)
            data_loss.report([lost], fail=self._options.fail_on_data_loss)
        return max(offset, begin)

    def _resolve_times(self, position: AtTimestamp, ends: Offsets) -> Offsets:
        if position.everywhere_ms is None:
            _require_same_topics(position.option, position.by_partition_ms, ends.by_topic)
        resolved: dict[str, dict[int, int]] = {}
        for topic, partitions in ends.by_topic.items():
            if position.everywhere_ms is not None:
                asked = dict.fromkeys(partitions, position.everywhere_ms)
            else:
                asked = dict(position.by_partition_ms[topic])
                _require_same_partitions(position.option, topic, asked, partitions)
            offsets = self._ask(topic, asked)
            for partition, offset in offsets.items():
                if offset == _NO_OFFSET and position.fails_beyond:
                    raise WrongOption(
                        f"option {position.option}: no record of {topic}-{partition} is dated {asked[partition]} ms or "
                        f"later; {STARTING_STRATEGY}=latest starts at the end in that case"
                    )
            resolved[topic] = {
                partition: partitions[partition] if offset == _NO_OFFSET else min(offset, partitions[partition])
                for partition, offset in offsets.items()
            }
        return Offsets(resolved, ends.topic_ids)

    def _resolve_committed(self, position: AtCommitted, begins: ByPartition, ends: Offsets) -> Offsets:
        resolved: dict[str, dict[int, int]] = {}
        for topic, partitions in ends.by_topic.items():
            committed = self._store.committed_offsets(position.group, topic, partitions)
            resolved[topic] = {
                partition: self._resolve_offset(
                    f"group {position.group}",
                    topic,
                    partition,
                    committed[partition] if partition in committed else _otherwise(position, topic, partition),
                    begins[topic][partition],
                    end,
                )
                for partition, end in partitions.items()
            }
        return Offsets(resolved, ends.topic_ids)

    def _refresh_topics(self, *, fresh: bool) -> Mapping[str, TopicMetadata]:
        if fresh or self._monotonic() >= self._topics_until:
            self._topics = self._cluster.topics(*self._options.subscription.topics)
            self._topics_until = self._monotonic() + TOPICS_AGE_MS_MAX / 1000
        return self._topics

    def _ask_ends(self, topics: Mapping[str, TopicMetadata]) -> Offsets:
        wanted = self._options.subscription.select(topics)
        return Offsets(
            {name: self._ask(name, dict.fromkeys(wanted[name], LATEST)) for name in wanted},
            {name: str(topics[name].topic_id) for name in wanted if topics[name].topic_id is not None},
        )

    def _ask(self, topic: str, timestamps: Mapping[int, int]) -> dict[int, int]:
        offsets = self._cluster.list_offsets(topic, timestamps, read_committed=self._options.read_committed)
        return {partition: offsets[partition].offset for partition in sorted(offsets)}


def _otherwise(position: AtCommitted, topic: str, partition: int) -> int:
    if position.otherwise == "fail":
        raise WrongOption(
            f"group {position.group} has committed no offset of {topic}-{partition}; set option {NONE_COMMITTED} to "
            "earliest or latest"
        )
    return EARLIEST if position.otherwise == "earliest" else LATEST


def _require_same_topics(name: str, given: Collection[str], there: Collection[str]) -> None:
    for topic in sorted(set(given) ^ set(there)):
        what = "is not given" if topic in there else "is not read"
        raise WrongOption(f"option {name}: topic {topic} {what}; name each topic that is read")


def _require_same_partitions(name: str, topic: str, given: Collection[int], there: Collection[int]) -> None:
    for partition in sorted(set(given) ^ set(there)):
        what = "is not given" if partition in there else "does not exist"
        raise WrongOption(
            f"option {name}: {topic}-{partition} {what}; name each partition, {EARLIEST} is earliest, {LATEST} latest"
        )
