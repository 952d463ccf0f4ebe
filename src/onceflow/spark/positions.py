"""Where the subscribed topics begin and end, asked from the cluster no more often than is useful."""

import time
from collections.abc import Callable, Collection, Mapping

from onceflow.client.cluster import Cluster
from onceflow.client.metadata import TopicMetadata
from onceflow.spark import data_loss
from onceflow.spark.offsets import Loss, Offsets
from onceflow.spark.options import EARLIEST, LATEST, Position, SourceOptions, WrongOption

ENDS_AGE_MS_MAX = 25
"""An idle query asks every 12 ms; a batch takes longer, so what follows a batch is always asked anew."""
TOPICS_AGE_MS_MAX = 1000
"""How late new partitions are seen."""


class LogPositions:
    """Begins and ends of the topics that the options name, under the isolation level that they name."""

    def __init__(
        self,
        cluster: Cluster,
        options: SourceOptions,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._options = options
        self._monotonic = monotonic
        self._topics: Mapping[str, TopicMetadata] = {}
        self._topics_until = self._ends_until = monotonic()
        self._ends = Offsets({})

    def ends(self, *, fresh: bool = False) -> Offsets:
        """The end of every partition; a topic that does not exist is left out."""
        if fresh or self._monotonic() >= self._ends_until:
            self._ends = self._ask_ends(self._refresh_topics(fresh=fresh))
            self._ends_until = self._monotonic() + ENDS_AGE_MS_MAX / 1000
        return self._ends

    def begins(self, wanted: Mapping[str, Collection[int]]) -> dict[str, dict[int, int]]:
        """First offset of each wanted partition."""
        return {topic: self._ask(topic, partitions, EARLIEST) for topic, partitions in wanted.items()}

    def resolve(self, name: str, position: Position, ends: Offsets | None = None) -> Offsets:
        """A position as offsets; `name` is the option that asked for it, `ends` are now's unless given.

        Raises WrongOption, UnknownTopic and DataLost.
        """
        if ends is None:
            ends = self.ends(fresh=True)
        for topic in self._options.topics:
            if topic not in ends.by_topic:
                self._cluster.require_topic(topic)
        if position == "latest":
            return ends
        begins = self.begins(ends.by_topic)
        if position == "earliest":
            return Offsets(begins, ends.topic_ids)
        return self._resolve_given(name, position, begins, ends)

    def _resolve_given(
        self, name: str, given: Offsets, begins: Mapping[str, Mapping[int, int]], ends: Offsets
    ) -> Offsets:
        resolved: dict[str, dict[int, int]] = {}
        for topic, partitions in ends.by_topic.items():
            if not ends.same_topic(given, topic):
                raise WrongOption(
                    f"option {name} is of topic {topic} with id {given.topic_ids[topic]}, which was deleted and made "
                    f"again with id {ends.topic_ids[topic]}; give offsets of the topic that is there"
                )
            _require_same_partitions(name, topic, given.by_topic[topic], partitions)
            resolved[topic] = {
                partition: self._resolve_offset(
                    name, topic, partition, offset, begins[topic][partition], partitions[partition]
                )
                for partition, offset in given.by_topic[topic].items()
            }
        return Offsets(resolved, ends.topic_ids)

    def _resolve_offset(self, name: str, topic: str, partition: int, offset: int, begin: int, end: int) -> int:
        if offset == EARLIEST:
            return begin
        if offset == LATEST:
            return end
        if offset > end:
            raise WrongOption(f"option {name}: offset {offset} of {topic}-{partition} lies beyond its end, {end}")
        if offset < begin:
            lost = Loss(f"{topic}-{partition} [{offset}, {begin})", f"the partition now begins at {begin}")
            data_loss.report([lost], fail=self._options.fail_on_data_loss)
        return max(offset, begin)

    def _refresh_topics(self, *, fresh: bool) -> Mapping[str, TopicMetadata]:
        if fresh or self._monotonic() >= self._topics_until:
            self._topics = self._cluster.topics(*self._options.topics)
            self._topics_until = self._monotonic() + TOPICS_AGE_MS_MAX / 1000
        return self._topics

    def _ask_ends(self, topics: Mapping[str, TopicMetadata]) -> Offsets:
        return Offsets(
            {name: self._ask(name, topic.partitions, LATEST) for name, topic in sorted(topics.items())},
            {name: str(topic.topic_id) for name, topic in sorted(topics.items()) if topic.topic_id is not None},
        )

    def _ask(self, topic: str, partitions: Collection[int], timestamp: int) -> dict[int, int]:
        found = self._cluster.list_offsets(
            topic, dict.fromkeys(partitions, timestamp), read_committed=self._options.read_committed
        )
        return {partition: found[partition].offset for partition in sorted(found)}


def _require_same_partitions(name: str, topic: str, given: Collection[int], there: Collection[int]) -> None:
    for partition in sorted(set(given) ^ set(there)):
        what = "is not given" if partition in there else "does not exist"
        raise WrongOption(
            f"option {name}: {topic}-{partition} {what}; name each partition, {EARLIEST} is earliest, {LATEST} latest"
        )
