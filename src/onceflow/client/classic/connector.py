"""`ConsumerConnector`: a group's messages as streams, one for each thread of the program, fetched by librdkafka.

One thread of the connector polls librdkafka for messages and puts each into the stream that owns its partition. How the
members of the group share the partitions is the connector's membership: by a broker that coordinates the group, or
through ZooKeeper.
"""

import logging
import queue
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Self

from confluent_kafka import Consumer, KafkaException

from onceflow.client.classic.delivery import Delivery
from onceflow.client.classic.encoders import Decoder, DefaultDecoder
from onceflow.client.classic.membership import BrokerGroup, Membership, Subscription
from onceflow.client.classic.streams import ConsumerFailed, ConsumerTimeout, MessageStream
from onceflow.client.errors import ClientError
from onceflow.client.librdkafka import error_text
from onceflow.client.registry.settings import SESSION_SETTINGS, session_settings
from onceflow.client.settings import (
    FIRST_CONTACT_S_MAX,
    Config,
    InvalidSetting,
    Setting,
    choice,
    flag,
    number,
    read_settings,
    refuse_given,
    security_settings,
    text,
)
from onceflow.client.topic_filter import TopicFilter
from onceflow.errors import missing_package

if TYPE_CHECKING:
    from onceflow.zookeeper.session import Session

__all__ = ["ConsumerConnector", "ConsumerFailed", "ConsumerTimeout"]

INT_MAX = 2**31 - 1
OFFSET_RESETS = {
    "smallest": "earliest",
    "largest": "latest",
    "earliest": "earliest",
    "latest": "latest",
    "fail": "error",
}

_SETTINGS = (
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
    Setting("partition.assignment.strategy", "range", choice(range="range", roundrobin="roundrobin")),
    Setting("topic.metadata.refresh.interval.ms", 10_000, number(10, 3_600_000)),
    Setting("socket.timeout.ms", 30_000, number(10, 300_000)),
)
SETTINGS = (
    Setting("metadata.broker.list", None, text, ("bootstrap.servers",)),
    *_SETTINGS,
    Setting("session.timeout.ms", 10_000, number(1, 3_600_000)),
)
"""Every setting with its default; times in ms. A consumer without a group name is in the group `default`."""
ZOOKEEPER_SETTINGS = (
    Setting("zookeeper.connect", None, text, ("zk.connect",)),
    *_SETTINGS,
    *SESSION_SETTINGS,
    Setting("rebalance.max.retries", 4, number(1, INT_MAX)),
    Setting("rebalance.backoff.ms", 2_000, number(1, INT_MAX)),
    Setting("offsets.storage", "zookeeper", choice(zookeeper="zookeeper", kafka="kafka")),
    Setting("dual.commit.enabled", None, flag),
    Setting("offsets.channel.backoff.ms", 1_000, number(1, INT_MAX)),
    Setting("offsets.commit.max.retries", 5, number(0, INT_MAX)),
)
"""Every setting of a consumer through ZooKeeper."""

_POLL_S = 0.05
_POLL_S_WHILE_HOLDING = 0.005
"""Messages that wait for space in a stream's queue are checked more often."""
_MESSAGES_AT_ONCE = 1000

logging.getLogger("onceflow.client.classic").addHandler(logging.NullHandler())


class ConsumerConnector:
    """One member of a consumer group.

        connector = ConsumerConnector({"metadata.broker.list": "127.0.0.1:9092", "group.id": "counting"})
        for message in connector.create_message_streams({"clicks": 1})["clicks"][0]:
            ...

    Raises InvalidSetting here; the streams raise ConsumerFailed where the group or the broker refuses the consumer.
    """

    def __init__(self, config: Config, *, session: "Session | None" = None) -> None:
        """Read the settings. With `zookeeper.connect`, `session` replaces the one with ZooKeeper, for tests."""
        is_through_zookeeper = any(name in config for name in ("zookeeper.connect", "zk.connect"))
        table = ZOOKEEPER_SETTINGS if is_through_zookeeper else SETTINGS
        settings = read_settings(table, config)
        if not settings["auto.commit.enable"]:
            refuse_given(table, config, ("auto.commit.interval.ms",), "with auto.commit.enable=false; remove it")
        self._timeout_s = settings["socket.timeout.ms"] / 1000
        self._stream_messages_max = settings["queued.max.messages"]
        self._stream_timeout_ms = settings["consumer.timeout.ms"]
        self._commits_by_itself = settings["auto.commit.enable"]
        self._commit_interval_s = settings["auto.commit.interval.ms"] / 1000
        if is_through_zookeeper:
            self._membership = _through_zookeeper(settings, config, session)
        else:
            self._membership = BrokerGroup(
                settings, security_settings(config), commits_by_itself=self._commits_by_itself
            )
        self._consumer: Consumer | None = None
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
        self._start(Subscription([stream for streams in by_topic.values() for stream in streams], by_topic))
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
        self._start(Subscription(streams, {}, topic_filter))
        return streams

    def _create_streams(
        self, topics: str, count: int, key_decoder: Decoder | None, value_decoder: Decoder | None
    ) -> list[MessageStream]:
        if self._thread is not None or self._stop.is_set():
            raise InvalidSetting("this connector already has its streams, or was shut down; create a new one")
        if self._consumer is None:
            self._consumer = self._membership.connect()
        return [
            MessageStream(
                topics,
                self._stream_messages_max,
                self._stream_timeout_ms,
                key_decoder or DefaultDecoder(),
                value_decoder or DefaultDecoder(),
            )
            for _ in range(count)
        ]

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
            self._membership.leave({})

    def _refuse_commit_requests(self) -> None:
        while not self._commit_requests.empty():
            self._commit_requests.get().set_exception(ConsumerFailed("the consumer was shut down before it committed"))

    # The connector's thread

    def _start(self, subscription: Subscription) -> None:
        assert self._consumer is not None
        self._thread = threading.Thread(
            target=self._run, args=(self._consumer, subscription), name="onceflow-consumer", daemon=True
        )
        self._thread.start()

    def _run(self, consumer: Consumer, subscription: Subscription) -> None:
        error: Exception | None = None
        delivery = Delivery(consumer, subscription.streams)
        try:
            self._membership.join(subscription, delivery)
            self._serve(consumer, delivery)
        except KafkaException as failure:
            error = ConsumerFailed(f"the consumer ended: {error_text(failure.args[0])}")
        except Exception as failure:  # noqa: BLE001 - each stream raises it in its own thread
            error = failure
        for stream in subscription.streams:
            stream.end(error)
        try:
            self._membership.leave(delivery.consumed(while_working=False) if self._commits_by_itself else {})
        except ClientError as failure:
            for stream in subscription.streams:
                stream.end(error or failure)

    def _serve(self, consumer: Consumer, delivery: Delivery) -> None:
        next_commit = time.monotonic() + self._commit_interval_s
        while not self._stop.is_set():
            self._membership.serve()
            self._serve_commit_requests(delivery)
            now = time.monotonic()
            if self._commits_by_itself and now >= next_commit:
                self._membership.commit_periodically(delivery.consumed(while_working=True))
                next_commit = now + self._commit_interval_s
            delivery.give_waiting()
            first = consumer.poll(_POLL_S_WHILE_HOLDING if delivery.has_waiting else _POLL_S)
            if first is not None:
                # Before the next poll, since that may rebalance and the message would be out of order.
                delivery.give(first)
                for message in consumer.consume(_MESSAGES_AT_ONCE, 0):
                    delivery.give(message)

    def _serve_commit_requests(self, delivery: Delivery) -> None:
        while not self._commit_requests.empty():
            request = self._commit_requests.get()
            try:
                self._membership.commit(delivery.consumed(while_working=False))
            except ConsumerFailed as error:
                request.set_exception(error)
            else:
                request.set_result(None)


def _through_zookeeper(settings: Mapping[str, Any], config: Config, session: "Session | None") -> Membership:
    if settings["offsets.storage"] == "zookeeper":
        refuse_given(ZOOKEEPER_SETTINGS, config, ("dual.commit.enabled",), "with offsets.storage=zookeeper; remove it")
    of_session = session_settings(settings["zookeeper.connect"], settings, config)
    try:
        from onceflow.client.classic.zookeeper_group import ZooKeeperGroup
    except ModuleNotFoundError as error:
        if error.name != "kazoo":
            raise
        message = missing_package("a consumer with zookeeper.connect", "kazoo", "cluster")
        raise ModuleNotFoundError(message, name="kazoo") from error
    return ZooKeeperGroup(
        settings,
        security_settings(config),
        commits_by_itself=settings["auto.commit.enable"],
        session=session or of_session.new_session(),
    )
