"""`Producer`: sends one message or a list, at once or through a queue."""

import math
from collections.abc import Iterable
from typing import Any, Self

from onceflow.client.classic.encoders import DefaultEncoder, Encoder, StringEncoder
from onceflow.client.classic.handlers import CallbackHandler, DefaultEventHandler, EventHandler, Messages
from onceflow.client.classic.messages import KeyedMessage
from onceflow.client.classic.partitioners import DefaultPartitioner
from onceflow.client.classic.send_queue import SendQueue
from onceflow.client.classic.sender import Sender
from onceflow.client.errors import ProduceFailed
from onceflow.client.settings import (
    FIRST_CONTACT_S_MAX,
    Config,
    InvalidSetting,
    Setting,
    choice,
    flag,
    implementation,
    number,
    read_settings,
    refuse_given,
    require,
    security_settings,
    text,
)

INT_MAX = 2**31 - 1
ENCODERS = {"DefaultEncoder": DefaultEncoder, "StringEncoder": StringEncoder}

SETTINGS = (
    Setting("metadata.broker.list", None, text, ("bootstrap.servers", "broker.list")),
    Setting("producer.type", False, choice(sync=False, **{"async": True})),
    Setting("request.required.acks", "all", choice(**{"-1": "all", "all": "all", "1": "1", "0": "0"}), ("acks",)),
    Setting("request.timeout.ms", 10_000, number(1, INT_MAX)),
    Setting("delivery.timeout.ms", 120_000, number(1, INT_MAX)),
    Setting("message.send.max.retries", INT_MAX, number(0, INT_MAX), ("retries",)),
    Setting("retry.backoff.ms", 100, number(1, 300_000)),
    Setting("client.id", "onceflow", text),
    Setting("compression.codec", "none", choice(**{c: c for c in ("none", "gzip", "snappy", "lz4", "zstd")})),
    Setting("serializer.class", DefaultEncoder, implementation("to_message", ENCODERS)),
    Setting("key.serializer.class", None, implementation("to_message", ENCODERS)),
    Setting(
        "partitioner.class",
        DefaultPartitioner,
        implementation("partition", {"DefaultPartitioner": DefaultPartitioner}),
    ),
    Setting("event.handler", None, implementation("handle", {})),
    Setting("event.handler.props", dict, dict),
    Setting("callback.handler", CallbackHandler, implementation("before_enqueue", {})),
    Setting("callback.handler.props", dict, dict),
    Setting("queue.time", 5_000, number(0, INT_MAX), ("queue.buffering.max.ms",)),
    Setting("queue.size", 10_000, number(1, INT_MAX), ("queue.buffering.max.messages",)),
    Setting("queue.enqueue.timeout.ms", -1, number(-1, INT_MAX)),
    Setting("batch.size", 200, number(1, INT_MAX), ("batch.num.messages",)),
    Setting("enable.idempotence", None, flag),
)
"""Every setting with its default; times in ms. `queue.*`, `batch.size` and the callbacks apply to async producers."""

_ASYNC_ONLY = (
    "queue.time",
    "queue.size",
    "queue.enqueue.timeout.ms",
    "batch.size",
    "callback.handler",
    "callback.handler.props",
)


class Producer:
    """Sender of messages; one thread at a time.

        with Producer({"metadata.broker.list": "127.0.0.1:9092", "serializer.class": "StringEncoder"}) as producer:
            producer.send(KeyedMessage("clicks", "hello", key="user-1"))

    With `producer.type=sync` (the default) `send` returns when every message is acknowledged. With `async` it only
    queues; a thread sends after `batch.size` messages or `queue.time` ms, and `close` sends the rest. Raises
    InvalidSetting here, SendFailed, EncodingFailed, UnknownTopic, BrokerUnreachable from `send`; an asynchronous
    producer raises a batch's error at the next `send` or at `close`.
    """

    def __init__(self, config: Config) -> None:
        settings = read_settings(SETTINGS, config)
        is_async = settings["producer.type"]
        _refuse_settings_without_effect(config, is_async=is_async)
        self._encoder: Encoder = settings["serializer.class"]
        self._handler: EventHandler = settings["event.handler"] or DefaultEventHandler(
            settings["partitioner.class"], settings["key.serializer.class"] or self._encoder
        )
        try:
            self._sender = Sender(
                require(settings, "metadata.broker.list"),
                {**security_settings(config), **_librdkafka(settings)},
                timeout_ms=settings["delivery.timeout.ms"],
                # Queued messages may wait for a broker that is not started yet.
                first_contact_s=math.inf if is_async else FIRST_CONTACT_S_MAX,
            )
        except ProduceFailed as error:
            raise InvalidSetting(str(error)) from error
        self._handler.init(settings["event.handler.props"])
        self._queue = self._create_queue(settings) if is_async else None
        self._is_open = True

    def _create_queue(self, settings: dict[str, Any]) -> SendQueue:
        callback: CallbackHandler = settings["callback.handler"]
        callback.init(settings["callback.handler.props"])
        return SendQueue(
            self._handle,
            callback,
            size_messages_max=settings["queue.size"],
            batch_messages=settings["batch.size"],
            queue_time_ms=settings["queue.time"],
            enqueue_timeout_ms=settings["queue.enqueue.timeout.ms"],
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def send(self, messages: KeyedMessage[Any, Any] | Iterable[KeyedMessage[Any, Any]]) -> None:
        """Send one message or several, in order."""
        if not self._is_open:
            raise InvalidSetting("the producer is closed; create a new one")
        batch = [messages] if isinstance(messages, KeyedMessage) else list(messages)
        if self._queue is None:
            self._handle(batch)
            return
        for message in batch:
            self._queue.put(message)

    def _handle(self, batch: Messages) -> None:
        self._handler.handle(batch, self._sender, self._encoder)

    def close(self) -> None:
        """Send the queued messages and end. A second call has no effect."""
        if not self._is_open:
            return
        self._is_open = False
        try:
            if self._queue is not None:
                self._queue.close()
        finally:
            self._handler.close()
            self._sender.close()


def _refuse_settings_without_effect(config: Config, *, is_async: bool) -> None:
    if not is_async:
        refuse_given(SETTINGS, config, _ASYNC_ONLY, "with producer.type=sync; set that to async")
    if "event.handler" in config:
        names = ("partitioner.class", "key.serializer.class")
        refuse_given(SETTINGS, config, names, "with a custom event.handler, which does that itself")
    else:
        refuse_given(SETTINGS, config, ("event.handler.props",), "without event.handler")
    if "callback.handler" not in config:
        refuse_given(SETTINGS, config, ("callback.handler.props",), "without callback.handler")


def _librdkafka(settings: dict[str, Any]) -> dict[str, Any]:
    acks = settings["request.required.acks"]
    idempotent = settings["enable.idempotence"]
    return {
        "acks": acks,
        "enable.idempotence": acks == "all" if idempotent is None else idempotent,
        "request.timeout.ms": settings["request.timeout.ms"],
        "message.send.max.retries": settings["message.send.max.retries"],
        "retry.backoff.ms": settings["retry.backoff.ms"],
        "client.id": settings["client.id"],
        "compression.type": settings["compression.codec"],
        "linger.ms": 0,
    }
