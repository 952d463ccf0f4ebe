"""How a connector gets its partitions and keeps its offsets: here as a member of a group that a broker coordinates."""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from confluent_kafka import Consumer, KafkaException
from confluent_kafka import TopicPartition as Position

from onceflow.client.addresses import parse_bootstrap
from onceflow.client.classic.delivery import Delivery
from onceflow.client.classic.streams import ConsumerFailed, MessageStream
from onceflow.client.errors import BrokerUnreachable
from onceflow.client.librdkafka import error_text
from onceflow.client.settings import FIRST_CONTACT_S_MAX, InvalidSetting, require
from onceflow.client.topic_filter import TopicFilter
from onceflow.wire import TopicPartition

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Subscription:
    """The streams of a connector: for each topic, or for all topics that a filter allows."""

    streams: Sequence[MessageStream]
    by_topic: Mapping[str, Sequence[MessageStream]]
    topic_filter: TopicFilter | None = None

    def streams_of(self, topic: str) -> Sequence[MessageStream]:
        """Return the streams over which a topic's partitions are distributed."""
        return self.streams if self.topic_filter is not None else self.by_topic[topic]


class Membership(Protocol):
    """Calls of the connector's thread, after `connect`."""

    def connect(self) -> Consumer:
        """Return the consumer that fetches. Raises ClientError, above all for a wrong address."""

    def join(self, subscription: Subscription, delivery: Delivery) -> None:
        """Become a member."""

    def serve(self) -> None:
        """Follow changes of the group; does not block for long."""

    def commit(self, ends: Mapping[TopicPartition, int]) -> None:
        """Commit the next offset to read of each partition that has another one. Raises ConsumerFailed."""

    def commit_periodically(self, ends: Mapping[TopicPartition, int]) -> None:
        """Commit while more commits follow. Raises ConsumerFailed if this ends the consumer."""

    def leave(self, ends: Mapping[TopicPartition, int]) -> None:
        """Commit for the last time, and leave the group. Raises ConsumerFailed."""


class BrokerGroup:
    """Member of a group of Kafka's classic protocol, by librdkafka."""

    def __init__(self, settings: Mapping[str, Any], security: Mapping[str, Any], *, commits_by_itself: bool) -> None:
        """Check the settings. Raises InvalidSetting."""
        self._settings = settings
        self._bootstrap: str = require(settings, "metadata.broker.list")
        self._timeout_s = settings["socket.timeout.ms"] / 1000
        self._refresh_interval_s = settings["topic.metadata.refresh.interval.ms"] / 1000
        self._commits_by_itself = commits_by_itself
        self._consumer = new_consumer(
            {
                **security,
                **fetch_settings(settings, self._bootstrap),
                "auto.offset.reset": settings["auto.offset.reset"],
                "session.timeout.ms": settings["session.timeout.ms"],
                "partition.assignment.strategy": settings["partition.assignment.strategy"],
            }
        )
        self._subscribed: frozenset[str] = frozenset()
        self._next_refresh = 0.0
        self._kept: dict[TopicPartition, int] = {}
        self._committed: dict[TopicPartition, int] = {}
        self._is_leaving = False

    def connect(self) -> Consumer:
        require_broker(self._consumer, self._bootstrap, self._timeout_s)
        return self._consumer

    def join(self, subscription: Subscription, delivery: Delivery) -> None:
        self._subscription = subscription
        self._delivery = delivery
        self._subscribe(frozenset(subscription.by_topic))

    def serve(self) -> None:
        now = time.monotonic()
        if self._subscription.topic_filter is not None and now >= self._next_refresh:
            self._follow(self._subscription.topic_filter)
            self._next_refresh = now + self._refresh_interval_s

    def commit(self, ends: Mapping[TopicPartition, int]) -> None:
        new = {place: end for place, end in ends.items() if self._committed.get(place) != end}
        commit_to_coordinator(self._consumer, new)
        self._committed.update(new)

    def commit_periodically(self, ends: Mapping[TopicPartition, int]) -> None:
        self.commit(ends)

    def leave(self, ends: Mapping[TopicPartition, int]) -> None:
        self._is_leaving = True
        try:
            self.commit(ends)
        finally:
            self._consumer.close()

    def _follow(self, topic_filter: TopicFilter) -> None:
        try:
            names = self._consumer.list_topics(timeout=self._timeout_s).topics
        except KafkaException as error:
            # Retried after the interval; librdkafka waits for its brokers in the same way.
            _log.warning("the topics cannot be listed now: %s", error_text(error.args[0]))
            return
        allowed = frozenset(name for name in names if not name.startswith("__") and topic_filter.allows(name))
        if allowed != self._subscribed:
            self._subscribe(allowed)

    def _subscribe(self, topics: frozenset[str]) -> None:
        if topics:
            self._consumer.subscribe(
                sorted(topics), on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
            )
        elif self._subscribed:
            self._consumer.unsubscribe()
        self._subscribed = topics

    def _on_assign(self, consumer: Consumer, positions: list[Position]) -> None:
        # No other member had the partitions that stay here over one rebalance: continue after what was returned.
        for position in positions:
            position.offset = self._kept.get((position.topic, position.partition), position.offset)
        consumer.assign(positions)
        self._own(frozenset((position.topic, position.partition) for position in positions), self._kept)
        self._kept = {}

    def _on_revoke(self, _consumer: Consumer, _positions: list[Position]) -> None:
        if self._commits_by_itself:
            self.commit(self._delivery.consumed(while_working=not self._is_leaving))
        self._kept = self._delivery.consumed(while_working=False)
        self._own(frozenset(), {})

    def _on_lost(self, _consumer: Consumer, _positions: list[Position]) -> None:
        """Drop everything: the group continued without this member, so commits are forbidden and others read the
        partitions."""
        self._own(frozenset(), {})

    def _own(self, places: frozenset[TopicPartition], handed_out: Mapping[TopicPartition, int]) -> None:
        self._committed.clear()
        self._delivery.own(self._distribute(places), handed_out)

    def _distribute(self, places: frozenset[TopicPartition]) -> dict[MessageStream, frozenset[TopicPartition]]:
        """Return the partitions of each stream."""
        assignment: dict[MessageStream, frozenset[TopicPartition]] = {}
        if self._subscription.topic_filter is not None:
            return distribute_range(sorted(places), self._subscription.streams)
        for topic, streams in self._subscription.by_topic.items():
            assignment |= distribute_range(sorted(place for place in places if place[0] == topic), streams)
        return assignment


def distribute_range(
    places: Sequence[TopicPartition], streams: Sequence[MessageStream]
) -> dict[MessageStream, frozenset[TopicPartition]]:
    """Distribute as in the article: stream i of n takes a run of partitions, the first (partitions mod n) one more."""
    assignment = {}
    count, more = divmod(len(places), len(streams))
    start = 0
    for index, stream in enumerate(streams):
        end = start + count + (index < more)
        assignment[stream] = frozenset(places[start:end])
        start = end
    return assignment


def fetch_settings(settings: Mapping[str, Any], bootstrap: str) -> dict[str, Any]:
    """Return the settings of librdkafka that do not depend on how the connector gets its partitions."""
    same = (
        "group.id",
        "client.id",
        "fetch.message.max.bytes",
        "fetch.min.bytes",
        "fetch.wait.max.ms",
        "topic.metadata.refresh.interval.ms",
        "socket.timeout.ms",
    )
    return {
        **{name: settings[name] for name in same},
        "bootstrap.servers": bootstrap,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        # Arrives after a partition's last message and knows the offset after a transaction's marker.
        "enable.partition.eof": True,
        "isolation.level": "read_committed",
        "allow.auto.create.topics": False,
    }


def new_consumer(settings: Mapping[str, Any]) -> Consumer:
    """Create a consumer of librdkafka. Raises InvalidSetting."""
    try:
        return Consumer(dict(settings), logger=_log)
    except KafkaException as error:
        raise InvalidSetting(f"librdkafka refused the consumer's settings: {error.args[0].str()}") from error


def require_broker(consumer: Consumer, bootstrap: str, timeout_s: float) -> None:
    """Report a wrong address at once, where librdkafka would wait indefinitely. Raises BrokerUnreachable."""
    try:
        consumer.list_topics("__consumer_offsets", timeout=min(timeout_s, FIRST_CONTACT_S_MAX))
    except KafkaException as error:
        raise BrokerUnreachable(
            f"no Kafka broker responds at {bootstrap}: {error.args[0].str()}; is it up?",
            parse_bootstrap(bootstrap)[0],
        ) from error


def commit_to_coordinator(consumer: Consumer, ends: Mapping[TopicPartition, int]) -> None:
    """Commit to the group's coordinator, and wait for it. Raises ConsumerFailed."""
    if not ends:
        return
    positions = [Position(topic, partition, end) for (topic, partition), end in ends.items()]
    try:
        for committed in consumer.commit(offsets=positions, asynchronous=False) or ():
            if committed.error is not None:
                raise KafkaException(committed.error)
    except KafkaException as error:
        raise ConsumerFailed(f"the offsets {dict(ends)} were not committed: {error_text(error.args[0])}") from error
