"""`ConsumerConnector`: a group's messages as streams, one for each thread of the program, on librdkafka.

One thread of the connector polls librdkafka for messages and puts each into the stream that owns its partition. If a
stream is not read, its queue fills and its partitions are paused, while the other streams continue.
"""

import logging
import queue
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Self

from confluent_kafka import Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as Position

from onceflow.client.addresses import parse_bootstrap
from onceflow.client.classic.encoders import Decoder, DefaultDecoder
from onceflow.client.classic.settings import (
    FIRST_CONTACT_S_MAX,
    Config,
    InvalidSetting,
    Setting,
    choice,
    flag,
    number,
    read_settings,
    refuse_given,
    require,
    security_settings,
    text,
)
from onceflow.client.classic.streams import ConsumerTimeout, MessageStream, partition_of
from onceflow.client.classic.topic_filter import TopicFilter
from onceflow.client.errors import BrokerUnreachable, ClientError
from onceflow.client.librdkafka import error_text
from onceflow.wire import TopicPartition

__all__ = ["ConsumerConnector", "ConsumerFailed", "ConsumerTimeout"]

INT_MAX = 2**31 - 1
OFFSET_RESETS = {
    "smallest": "earliest",
    "largest": "latest",
    "earliest": "earliest",
    "latest": "latest",
    "fail": "error",
}

SETTINGS = (
    Setting("metadata.broker.list", None, text, ("bootstrap.servers",)),
    Setting("group.id", "default", text),
    Setting("client.id", "onceflow", text, ("consumer.id",)),
    Setting("auto.offset.reset", "latest", choice(**OFFSET_RESETS), ("autooffset.reset",)),
    Setting("auto.commit.enable", True, flag, ("autocommit.enable", "enable.auto.commit")),
    Setting("auto.commit.interval.ms", 60_000, number(1, INT_MAX), ("autocommit.interval.ms",)),
    Setting("consumer.timeout.ms", -1, number(-1, INT_MAX)),
    Setting("queued.max.messages", 10_000, number(1, INT_MAX)),
    Setting("fetch.message.max.bytes", 1024 * 1024, number(1, 1_000_000_000), ("fetch.size",)),
    Setting("fetch.min.bytes", 1, number(1, 100_000_000)),
    Setting("fetch.wait.max.ms", 100, number(0, 300_000)),
    Setting("session.timeout.ms", 10_000, number(1, 3_600_000)),
    Setting("partition.assignment.strategy", "range", choice(range="range", roundrobin="roundrobin")),
    Setting("topic.metadata.refresh.interval.ms", 10_000, number(10, 3_600_000)),
    Setting("socket.timeout.ms", 30_000, number(10, 300_000)),
)
"""Every setting with its default; times in ms. A consumer without a group name is in the group `default`."""

_POLL_S = 0.05
_POLL_S_WHILE_HOLDING = 0.005
"""Messages that wait for space in a stream's queue are checked more often."""
_MESSAGES_AT_ONCE = 1000

_log = logging.getLogger(__name__)
_log.addHandler(logging.NullHandler())


class ConsumerFailed(ClientError):
    """The consumer ended with an error of librdkafka, in its own words."""


class ConsumerConnector:
    """One member of a consumer group.

        connector = ConsumerConnector({"metadata.broker.list": "127.0.0.1:9092", "group.id": "counting"})
        for message in connector.create_message_streams({"clicks": 1})["clicks"][0]:
            ...

    Raises InvalidSetting here; the streams raise ConsumerFailed where the group or the broker refuses the consumer.
    """

    def __init__(self, config: Config) -> None:
        settings = read_settings(SETTINGS, config)
        if not settings["auto.commit.enable"]:
            refuse_given(SETTINGS, config, ("auto.commit.interval.ms",), "with auto.commit.enable=false; remove it")
        self._bootstrap: str = require(settings, "metadata.broker.list")
        self._timeout_s = settings["socket.timeout.ms"] / 1000
        self._stream_messages_max = settings["queued.max.messages"]
        self._stream_timeout_ms = settings["consumer.timeout.ms"]
        self._commits_by_itself = settings["auto.commit.enable"]
        self._commit_interval_s = settings["auto.commit.interval.ms"] / 1000
        self._refresh_interval_s = settings["topic.metadata.refresh.interval.ms"] / 1000
        try:
            self._consumer = Consumer({**security_settings(config), **_librdkafka(settings)}, logger=_log)
        except KafkaException as error:
            raise InvalidSetting(f"librdkafka refused the consumer's settings: {error.args[0].str()}") from error
        self._streams: list[MessageStream] = []
        self._streams_by_topic: dict[str, list[MessageStream]] | None = None
        self._filter: TopicFilter | None = None
        self._subscribed: frozenset[str] = frozenset()
        self._kept: dict[TopicPartition, int] = {}
        self._held: dict[MessageStream, list[Message]] = {}
        self._committed: dict[TopicPartition, int] = {}
        self._commit_requests: queue.SimpleQueue[Future[None]] = queue.SimpleQueue()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    def create_message_streams(
        self,
        topic_count: Mapping[str, int],
        key_decoder: Decoder | None = None,
        value_decoder: Decoder | None = None,
    ) -> dict[str, list[MessageStream]]:
        """Create that many streams for each topic; a topic's partitions are distributed over its streams."""
        if any(count < 1 for count in topic_count.values()) or not topic_count:
            raise InvalidSetting(f"streams {dict(topic_count)!r}: at least one topic with one stream is required")
        by_topic = {
            topic: self._create_streams(topic, count, key_decoder, value_decoder)
            for topic, count in topic_count.items()
        }
        self._streams_by_topic = by_topic
        self._start(frozenset(topic_count))
        return by_topic

    def create_message_streams_by_filter(
        self,
        topic_filter: TopicFilter,
        count: int = 1,
        key_decoder: Decoder | None = None,
        value_decoder: Decoder | None = None,
    ) -> list[MessageStream]:
        """Create `count` streams over all topics that the filter allows, including those created later."""
        if count < 1:
            raise InvalidSetting(f"{count} streams: at least one is required")
        streams = self._create_streams(f"topics by {type(topic_filter).__name__}", count, key_decoder, value_decoder)
        self._filter = topic_filter
        self._start(frozenset())
        return streams

    def _create_streams(
        self, topics: str, count: int, key_decoder: Decoder | None, value_decoder: Decoder | None
    ) -> list[MessageStream]:
        if self._thread is not None or self._stop.is_set():
            raise InvalidSetting("this connector already has its streams, or was shut down; create a new one")
        self._require_broker()
        streams = [
            MessageStream(
                topics,
                self._stream_messages_max,
                self._stream_timeout_ms,
                key_decoder or DefaultDecoder(),
                value_decoder or DefaultDecoder(),
            )
            for _ in range(count)
        ]
        self._streams += streams
        return streams

    def _require_broker(self) -> None:
        """Report a wrong address at once, where librdkafka would wait indefinitely."""
        try:
            self._consumer.list_topics("__consumer_offsets", timeout=min(self._timeout_s, FIRST_CONTACT_S_MAX))
        except KafkaException as error:
            raise BrokerUnreachable(
                f"no Kafka broker responds at {self._bootstrap}: {error.args[0].str()}; is it up?",
                parse_bootstrap(self._bootstrap)[0],
            ) from error

    def commit_offsets(self) -> None:
        """Commit what the streams have returned, and wait for the coordinator. Raises ConsumerFailed."""
        if self._thread is None or not self._thread.is_alive():
            raise ConsumerFailed("the consumer has ended; it can no longer commit")
        request: Future[None] = Future()
        self._commit_requests.put(request)
        try:
            # librdkafka reports a commit to the thread that polls, so the polling thread commits.
            request.result(self._timeout_s + FIRST_CONTACT_S_MAX)
        except TimeoutError as error:
            raise ConsumerFailed(
                f"the offsets were not committed within {self._timeout_s:g} s; is the broker up?"
            ) from error

    def shutdown(self) -> None:
        """End the streams, commit what was consumed if that is on, leave the group. A second call has no effect."""
        if self._stop.is_set():
            return
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._refuse_commit_requests()
        else:
            self._consumer.close()

    def _refuse_commit_requests(self) -> None:
        while not self._commit_requests.empty():
            self._commit_requests.get().set_exception(ConsumerFailed("the consumer was shut down before it committed"))

    # The connector's thread

    def _start(self, topics: frozenset[str]) -> None:
        self._thread = threading.Thread(target=self._run, args=(topics,), name="onceflow-consumer", daemon=True)
        self._thread.start()

    def _run(self, topics: frozenset[str]) -> None:
        error: Exception | None = None
        try:
            self._subscribe(topics)
            self._serve()
        except KafkaException as failure:
            error = ConsumerFailed(f"the consumer ended: {error_text(failure.args[0])}")
        except Exception as failure:  # noqa: BLE001 - each stream raises it in its own thread
            error = failure
        for stream in self._streams:
            stream.end(error)
        try:
            self._commit_consumed(while_working=False)
        except ClientError as failure:
            for stream in self._streams:
                stream.end(error or failure)
        self._consumer.close()

    def _serve(self) -> None:
        next_commit = time.monotonic() + self._commit_interval_s
        next_refresh = 0.0
        while not self._stop.is_set():
            now = time.monotonic()
            if self._filter is not None and now >= next_refresh:
                self._follow(self._filter)
                next_refresh = now + self._refresh_interval_s
            self._serve_commit_requests()
            if now >= next_commit:
                self._commit_consumed(while_working=True)
                next_commit = now + self._commit_interval_s
            self._give_held()
            first = self._consumer.poll(_POLL_S_WHILE_HOLDING if self._held else _POLL_S)
            if first is not None:
                # Before the next poll, since that may rebalance and the message would be out of order.
                self._give(first)
                for message in self._consumer.consume(_MESSAGES_AT_ONCE, 0):
                    self._give(message)

    def _serve_commit_requests(self) -> None:
        while not self._commit_requests.empty():
            request = self._commit_requests.get()
            try:
                self._commit({place: end for stream in self._streams for place, end in _consumed(stream, False)})
            except ConsumerFailed as error:
                request.set_exception(error)
            else:
                request.set_result(None)

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
        self._commit_consumed(while_working=not self._stop.is_set())
        self._kept = {place: end for stream in self._streams for place, end in _consumed(stream, False)}
        self._own(frozenset(), {})

    def _on_lost(self, _consumer: Consumer, _positions: list[Position]) -> None:
        """Drop everything: the group continued without this member, so commits are forbidden and others read the
        partitions."""
        self._own(frozenset(), {})

    def _own(self, places: frozenset[TopicPartition], handed_out: Mapping[TopicPartition, int]) -> None:
        self._held.clear()
        self._committed.clear()
        for stream, own in self._distribute(places).items():
            stream.own(own, handed_out)

    def _distribute(self, places: frozenset[TopicPartition]) -> dict[MessageStream, frozenset[TopicPartition]]:
        """Return the partitions of each stream."""
        assignment: dict[MessageStream, set[TopicPartition]] = {stream: set() for stream in self._streams}
        if self._streams_by_topic is None:
            _assign_range(sorted(places), self._streams, assignment)
        else:
            for topic, streams in self._streams_by_topic.items():
                _assign_range(sorted(place for place in places if place[0] == topic), streams, assignment)
        return {stream: frozenset(own) for stream, own in assignment.items()}

    def _give(self, message: Message) -> None:
        error = message.error()
        if error is not None and error.code() != KafkaError._PARTITION_EOF:
            if error.name() == "UNKNOWN_TOPIC_OR_PART":
                _log.warning("%s; its streams stay empty until it is created", error_text(error))
            elif error.fatal() or not error.retriable():
                raise KafkaException(error)
            return
        place = partition_of(message)
        stream = next((stream for stream in self._streams if place in stream.owned), None)
        if stream is None:
            return
        held = self._held.get(stream)
        if held is not None:
            held.append(message)
        elif not stream.offer(message):
            self._consumer.pause([Position(*owned) for owned in stream.owned])
            self._held[stream] = [message]

    def _give_held(self) -> None:
        """Put held messages into streams whose queue has space again."""
        for stream in [stream for stream in self._held if stream.has_space]:
            held = self._held[stream]
            while held and stream.offer(held[0]):
                del held[0]
            if not held:
                del self._held[stream]
                self._consumer.resume([Position(*owned) for owned in stream.owned])

    def _commit_consumed(self, *, while_working: bool) -> None:
        if self._commits_by_itself:
            self._commit({place: end for stream in self._streams for place, end in _consumed(stream, while_working)})

    def _commit(self, ends: Mapping[TopicPartition, int]) -> None:
        new = {place: end for place, end in ends.items() if self._committed.get(place) != end}
        if not new:
            return
        positions = [Position(topic, partition, end) for (topic, partition), end in new.items()]
        try:
            for committed in self._consumer.commit(offsets=positions, asynchronous=False) or ():
                if committed.error is not None:
                    raise KafkaException(committed.error)
        except KafkaException as error:
            raise ConsumerFailed(f"the offsets {new} were not committed: {error_text(error.args[0])}") from error
        self._committed.update(new)


def _consumed(stream: MessageStream, while_working: bool) -> Iterable[tuple[TopicPartition, int]]:
    return stream.consumed(while_working=while_working).items()


def _assign_range(
    places: Sequence[TopicPartition],
    streams: Sequence[MessageStream],
    assignment: Mapping[MessageStream, set[TopicPartition]],
) -> None:
    """Distribute as in the article: stream i of n takes a run of partitions, the first (partitions mod n) one more."""
    count, more = divmod(len(places), len(streams))
    begin = 0
    for index, stream in enumerate(streams):
        end = begin + count + (index < more)
        assignment[stream].update(places[begin:end])
        begin = end


def _librdkafka(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "bootstrap.servers": require(settings, "metadata.broker.list"),
        "group.id": settings["group.id"],
        "client.id": settings["client.id"],
        "auto.offset.reset": settings["auto.offset.reset"],
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        # Arrives after a partition's last message and knows the offset after a transaction's marker.
        "enable.partition.eof": True,
        "isolation.level": "read_committed",
        "fetch.message.max.bytes": settings["fetch.message.max.bytes"],
        "fetch.min.bytes": settings["fetch.min.bytes"],
        "fetch.wait.max.ms": settings["fetch.wait.max.ms"],
        "session.timeout.ms": settings["session.timeout.ms"],
        "partition.assignment.strategy": settings["partition.assignment.strategy"],
        "topic.metadata.refresh.interval.ms": settings["topic.metadata.refresh.interval.ms"],
        "socket.timeout.ms": settings["socket.timeout.ms"],
        "allow.auto.create.topics": False,
    }
