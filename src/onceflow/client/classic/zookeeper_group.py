"""Member of a group whose members share the partitions through ZooKeeper, as Kafka's clients did before 2.0.

The source of the rules is kafka.consumer.ZookeeperConsumerConnector of Kafka 1.1. Three of them are stricter here:

- A member owns a partition before it reads the partition's offset, so it sees the former owner's last commit.
- Before it releases its partitions it waits until the messages in process are finished, for `rebalance.backoff.ms`.
- A member whose session has ended commits nothing to ZooKeeper.
"""

import enum
import logging
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, KafkaException
from confluent_kafka import TopicPartition as Position

from onceflow.client.classic.delivery import Delivery
from onceflow.client.classic.membership import (
    Subscription,
    commit_to_coordinator,
    fetch_settings,
    new_consumer,
    require_broker,
)
from onceflow.client.classic.streams import ConsumerFailed, MessageStream
from onceflow.client.librdkafka import error_text
from onceflow.client.registry import nodes
from onceflow.client.registry.assignment import Assign, Assignment, assign_range, assign_round_robin
from onceflow.client.registry.member import Member, PartitionsOwned, Seen, SessionEnded
from onceflow.client.registry.nodes import Registration
from onceflow.client.registry.offsets import ZooKeeperOffsets
from onceflow.client.settings import InvalidSetting
from onceflow.client.topic_filter import Blacklist, Whitelist
from onceflow.errors import OnceflowError
from onceflow.remedies import Remedy
from onceflow.wire import TopicPartition
from onceflow.zookeeper.nodes import BROKER_IDS, TOPICS, BrokerNode, broker_path, decode
from onceflow.zookeeper.session import Conflict, OutcomeUnknown, Session

STRATEGIES: dict[str, Assign] = {"range": assign_range, "roundrobin": assign_round_robin}
RESET_SECONDS_MAX = 5.0
"""Maximum time for the offsets of partitions without a committed one; a partition may have no leader."""

_log = logging.getLogger(__name__)


class Phase(enum.Enum):
    """State of a member, in the order of a rebalance."""

    REGISTER = enum.auto()
    FINISH = enum.auto()
    """Messages in process are finished, then the partitions are released."""
    CLAIM = enum.auto()
    """The partitions are claimed until their former owners have released them."""
    READ_OFFSETS = enum.auto()
    CONSUME = enum.auto()


class ZooKeeperGroup:
    """Member of a group in ZooKeeper."""

    def __init__(
        self,
        settings: Mapping[str, Any],
        security: Mapping[str, Any],
        *,
        commits_by_itself: bool,
        session: Session,
    ) -> None:
        """Use a `session` that was not opened yet."""
        self._settings = settings
        self._security = security
        self._commits_by_itself = commits_by_itself
        self._session = session
        self._group: str = settings["group.id"]
        self._assign = STRATEGIES[settings["partition.assignment.strategy"]]
        self._backoff_s = settings["rebalance.backoff.ms"] / 1000
        self._offsets_backoff_s = settings["offsets.channel.backoff.ms"] / 1000
        self._timeout_s = settings["socket.timeout.ms"] / 1000
        self._in_kafka = settings["offsets.storage"] == "kafka"
        dual = settings["dual.commit.enabled"]
        self._in_zookeeper = not self._in_kafka or dual is None or dual
        self._offsets = ZooKeeperOffsets(session, self._group)
        self._session_ended = threading.Event()
        self._phase = Phase.REGISTER
        self._seen = Seen({}, {})
        self._assignment: Assignment = {}
        self._attempts = 0
        self._next_attempt = 0.0
        self._kept: dict[TopicPartition, int] = {}
        self._committed: dict[TopicPartition, int] = {}
        self._delivery: Delivery | None = None
        self._opened: Consumer | None = None

    def connect(self) -> Consumer:
        """Return a consumer for the brokers in ZooKeeper. Raises ClientError, ZooKeeperUnavailable."""
        self._session.on_new_session = self._on_new_session
        self._session.open()
        try:
            bootstrap = self._read_brokers()
            self._opened = new_consumer(
                {
                    **self._security,
                    **fetch_settings(self._settings, bootstrap),
                    # Without a committed offset the start is always given; this is for an offset that was deleted.
                    "auto.offset.reset": self._settings["auto.offset.reset"],
                }
            )
            require_broker(self._consumer, bootstrap, self._timeout_s)
        except BaseException:
            self._session.close()
            raise
        return self._consumer

    @property
    def _consumer(self) -> Consumer:
        assert self._opened is not None
        return self._opened

    def _read_brokers(self) -> str:
        where = f"ZooKeeper {self._settings['zookeeper.connect']}"
        ids, topics = self._session.children_of_all([BROKER_IDS, TOPICS])
        if ids is None or topics is None:
            raise ConsumerFailed(f"{where} has no {BROKER_IDS}: no cluster; {Remedy.OTHER_CHROOT}")
        protocol = str(self._security.get("security.protocol", "PLAINTEXT")).upper()
        paths = [broker_path(broker_id) for broker_id in ids]
        addresses: list[str] = []
        for path, node in zip(paths, self._session.read_all(paths), strict=True):
            if node is not None:
                addresses += nodes.addresses(decode(BrokerNode, path, node.value), protocol)
        if not addresses:
            raise ConsumerFailed(f"{where} has no broker with a listener for {protocol}; {Remedy.START_BROKER}")
        return ",".join(addresses)

    def _on_new_session(self) -> None:
        """Stop the streams at once: other members may own the partitions. In the session's thread."""
        self._session_ended.set()
        if self._delivery is not None:
            self._delivery.hold_streams()

    def join(self, subscription: Subscription, delivery: Delivery) -> None:
        """Register in `/consumers/G/ids`, as soon as ZooKeeper responds. Raises InvalidSetting."""
        self._subscription = subscription
        self._delivery = delivery
        registration = Registration({topic: len(streams) for topic, streams in subscription.by_topic.items()})
        topic_filter = subscription.topic_filter
        if topic_filter is not None:
            if not isinstance(topic_filter, Whitelist | Blacklist):
                raise InvalidSetting(f"{topic_filter!r} is not a Whitelist or Blacklist, which ZooKeeper can store")
            registration = Registration({}, topic_filter, len(subscription.streams))
        self._member = Member(self._session, self._group, registration, nodes.new_consumer_id(self._group))

    def serve(self) -> None:
        """Take the next step of a rebalance, if there is one. Raises ClientError when it cannot succeed."""
        if self._session_ended.is_set():
            self._start_over()
        if not self._session.is_connected:
            return
        try:
            self._step()
        except OutcomeUnknown as error:
            _log.info("%s: repeating after a failure: %s", self._member.consumer_id, error)
        except SessionEnded as error:
            _log.warning("%s; the consumer registers again", error)
            self._session_ended.set()

    def _start_over(self) -> None:
        self._session_ended.clear()
        self._give_up_partitions()
        self._phase = Phase.REGISTER

    def _step(self) -> None:
        now = time.monotonic()
        match self._phase:
            case Phase.REGISTER:
                self._member.register()
                self._phase, self._next_attempt = Phase.FINISH, now
            case Phase.CONSUME if self._member.has_changed.is_set():
                self._look()
            case Phase.FINISH if now >= self._next_attempt or not self._messages.in_process:
                self._release()
                self._phase, self._attempts, self._next_attempt = Phase.CLAIM, 0, now
            case Phase.CLAIM if now >= self._next_attempt or self._member.may_retry.is_set():
                self._claim(now)
            case Phase.READ_OFFSETS if self._member.has_changed.is_set():
                self._phase = Phase.FINISH
            case Phase.READ_OFFSETS if now >= self._next_attempt:
                self._start(now)

    @property
    def _messages(self) -> Delivery:
        assert self._delivery is not None
        return self._delivery

    def _look(self) -> None:
        """Begin a rebalance if the members or partitions are others."""
        seen = self._member.look()
        if seen != self._seen:
            self._seen = seen
            self._messages.hold()
            self._phase, self._next_attempt = Phase.FINISH, time.monotonic() + self._backoff_s

    def _release(self) -> None:
        if self._commits_by_itself and self._assignment:
            try:
                self._commit_with_retries(self._messages.consumed(while_working=True))
            except ConsumerFailed as error:
                _log.warning("%s; the next owners of the partitions repeat messages", error)
        self._give_up_partitions()
        self._member.release()

    def _give_up_partitions(self) -> None:
        """Continue after what was returned where no other member has read further."""
        for place, end in self._messages.consumed(while_working=False).items():
            self._kept[place] = max(end, self._kept.get(place, 0))
        self._messages.hold()
        self._consumer.unassign()
        self._messages.own({}, {})
        self._assignment = {}
        self._committed.clear()

    def _claim(self, now: float) -> None:
        if self._member.has_changed.is_set():
            seen = self._member.look()
            if seen != self._seen:
                self._seen, self._attempts, self._next_attempt = seen, 0, now
        if now >= self._next_attempt:
            self._attempts += 1
            self._next_attempt = now + self._backoff_s
        assignment = self._assign(self._seen.members, self._seen.partitions)
        own = {place: thread for place, thread in assignment.items() if thread.consumer == self._member.consumer_id}
        try:
            self._member.claim({place: str(thread) for place, thread in own.items()})
        except PartitionsOwned as error:
            if self._attempts > self._settings["rebalance.max.retries"]:
                raise ConsumerFailed(
                    f"group {self._group}: no rebalance within {self._settings['rebalance.max.retries']} attempts, one "
                    f"each {self._backoff_s:g} s: {error}; set rebalance.max.retries and rebalance.backoff.ms so that "
                    "together they are longer than the session of a consumer that was killed"
                ) from error
            return
        self._assignment = own
        self._phase, self._next_attempt = Phase.READ_OFFSETS, now

    def _start(self, now: float) -> None:
        """Read the offsets and let the streams begin; a coordinator that is away is asked again."""
        try:
            stored = self._read_offsets(sorted(self._assignment))
        except KafkaException as error:
            _log.warning("the offsets of group %s are not available: %s", self._group, error_text(error.args[0]))
            self._next_attempt = now + self._offsets_backoff_s
            return
        known = {place: max(self._kept.get(place, 0), offset) for place, offset in stored.items()}
        known |= {place: self._kept[place] for place in self._assignment if place not in stored and place in self._kept}
        starts = known | self._reset([place for place in sorted(self._assignment) if place not in known])
        streams: dict[MessageStream, set[TopicPartition]] = {}
        for place, thread in self._assignment.items():
            streams.setdefault(self._subscription.streams_of(place[0])[thread.number], set()).add(place)
        self._committed = stored
        self._kept = {}
        self._messages.own(
            {stream: frozenset(own) for stream, own in streams.items()},
            {place: start for place, start in starts.items() if start >= 0},
        )
        self._consumer.assign([Position(*place, start) for place, start in starts.items()])
        self._phase = Phase.CONSUME
        _log.info("%s owns %s", self._member.consumer_id, sorted(self._assignment))

    def _read_offsets(self, places: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the stored offsets; of two, the larger. Raises DamagedNode, OutcomeUnknown, KafkaException."""
        offsets = self._offsets.read(places) if self._in_zookeeper else {}
        if self._in_kafka and places:
            wanted = [Position(*place) for place in places]
            for position in self._consumer.committed(wanted, timeout=min(self._timeout_s, RESET_SECONDS_MAX)):
                if position.error is not None:
                    raise KafkaException(position.error)
                if position.offset >= 0:
                    place = position.topic, position.partition
                    offsets[place] = max(position.offset, offsets.get(place, 0))
        return offsets

    def _reset(self, places: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the first offsets to read where none is stored. Raises ConsumerFailed.

        An offset is committed with the others, so that a later owner does not start again at a later end.
        """
        reset = self._settings["auto.offset.reset"]
        if places and reset == "error":
            topic, partition = places[0]
            raise ConsumerFailed(
                f"{topic}-{partition}: group {self._group} has no offset, and auto.offset.reset is fail; set smallest "
                "or largest"
            )
        starts = {}
        deadline = time.monotonic() + RESET_SECONDS_MAX
        for place in places:
            # Resolved by librdkafka as soon as the partition has a leader.
            starts[place] = OFFSET_BEGINNING if reset == "earliest" else OFFSET_END
            try:
                ends = self._consumer.get_watermark_offsets(
                    Position(*place), timeout=max(deadline - time.monotonic(), 0.001)
                )
            except KafkaException as error:
                _log.warning("%s-%d: its offsets are not available: %s", *place, error_text(error.args[0]))
            else:
                starts[place] = ends[0 if reset == "earliest" else 1]
        return starts

    # Commits

    def commit(self, ends: Mapping[TopicPartition, int]) -> None:
        """Commit to Kafka or ZooKeeper, or both. Raises ConsumerFailed."""
        new = {place: end for place, end in ends.items() if self._committed.get(place) != end}
        if not new:
            return
        try:
            if self._in_kafka:
                if not self._member.is_registered():
                    raise SessionEnded("it is not registered any more")
                commit_to_coordinator(self._consumer, new)
            if self._in_zookeeper:
                self._offsets.commit(new, self._member.conditions)
        except (Conflict, SessionEnded) as error:
            self._session_ended.set()
            raise ConsumerFailed(f"the offsets {new} were not committed: the session has ended: {error}") from error
        except OnceflowError as error:
            raise ConsumerFailed(f"the offsets {new} were not committed: {error}") from error
        self._committed.update(new)

    def commit_periodically(self, ends: Mapping[TopicPartition, int]) -> None:
        """Commit; a failure is logged, since the next commit covers it."""
        try:
            self.commit(ends)
        except ConsumerFailed as error:
            _log.warning("%s; retrying with the next commit", error)

    def _commit_with_retries(self, ends: Mapping[TopicPartition, int]) -> None:
        for retries_left in range(self._settings["offsets.commit.max.retries"], -1, -1):
            try:
                self.commit(ends)
            except ConsumerFailed:
                if retries_left == 0 or self._session_ended.is_set() or not self._session.is_connected:
                    raise
                time.sleep(self._offsets_backoff_s)
            else:
                return

    def leave(self, ends: Mapping[TopicPartition, int]) -> None:
        """Commit, and end the session with the registration and the owners' nodes. Raises ConsumerFailed."""
        try:
            if ends:
                self._commit_with_retries(ends)
        finally:
            self._session.close()
            if self._opened is not None:
                self._opened.close()
