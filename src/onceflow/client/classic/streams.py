"""`MessageStream`: an iterator over the messages of its partitions."""

import queue
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from confluent_kafka import Message

from onceflow.client.classic.encoders import Decoder
from onceflow.client.classic.messages import MessageAndMetadata
from onceflow.client.errors import ClientError
from onceflow.wire import TopicPartition

_LOOK_S = 0.1


class ConsumerTimeout(ClientError):
    """No message arrived within `consumer.timeout.ms`."""


class ConsumerFailed(ClientError):
    """The consumer ended with an error."""


def partition_of(message: Message) -> TopicPartition:
    """Return the partition of a message; one without an error always has one."""
    topic, partition = message.topic(), message.partition()
    assert topic is not None and partition is not None
    return topic, partition


def offset_of(message: Message) -> int:
    """Return the message's offset; for a partition's end, the next one."""
    offset = message.offset()
    assert offset is not None
    return offset


def _headers_of(message: Message) -> tuple[tuple[str, bytes | None], ...]:
    # librdkafka's consumers get a list of names and bytes; the type covers what producers may give.
    received: Any = message.headers()
    return tuple(received or ())


class MessageStream:
    """Iterator for one thread. It ends after `shutdown`, and raises the error that ended the consumer, if any.

    A message counts as consumed for `commit_offsets` once it was returned, and for the periodic commit once the next
    one is requested: a crash while a message is being processed must not lose it.
    """

    def __init__(self, topics: str, size_messages_max: int, timeout_ms: int, key: Decoder, value: Decoder) -> None:
        self.topics = topics
        self._messages: queue.Queue[Message] = queue.Queue(size_messages_max)
        self._timeout_ms = timeout_ms
        self._key = key
        self._value = value
        self._lock = threading.Lock()
        self._owned: frozenset[TopicPartition] = frozenset()
        self._handed_out: dict[TopicPartition, int] = {}
        self._asked_beyond: dict[TopicPartition, int] = {}
        self._last: tuple[TopicPartition, int] | None = None
        self._is_held = False
        self._ended = threading.Event()
        self._error: Exception | None = None

    def __iter__(self) -> Iterator[MessageAndMetadata[Any, Any]]:
        return self

    def __next__(self) -> MessageAndMetadata[Any, Any]:
        self._mark_done()
        deadline = time.monotonic() + self._timeout_ms / 1000 if self._timeout_ms >= 0 else float("inf")
        while not self._ended.is_set():
            try:
                message = self._messages.get(timeout=_LOOK_S)
            except queue.Empty:
                if time.monotonic() >= deadline:
                    raise ConsumerTimeout(f"{self.topics}: no message within {self._timeout_ms} ms") from None
                continue
            if message.error() is not None:
                self._pass_end(message)
            elif self._hand_out(message):
                return self._decode(message)
        if self._error is not None:
            raise self._error
        raise StopIteration

    def _mark_done(self) -> None:
        with self._lock:
            if self._last is not None and self._last[0] in self._owned:
                self._asked_beyond[self._last[0]] = self._last[1]
            self._last = None

    def _hand_out(self, message: Message) -> bool:
        """Return whether the message is still ours: its partition may have moved to another consumer."""
        place, end = partition_of(message), offset_of(message) + 1
        with self._lock:
            if self._is_held or place not in self._owned:
                return False
            self._handed_out[place] = end
            self._last = (place, end)
            return True

    def _pass_end(self, partition_end: Message) -> None:
        """Mark everything before the end as returned and processed, since the next message was requested."""
        place, end = partition_of(partition_end), offset_of(partition_end)
        with self._lock:
            if place in self._owned and not self._is_held:
                self._handed_out[place] = self._asked_beyond[place] = end

    def _decode(self, message: Message) -> MessageAndMetadata[Any, Any]:
        key, value = message.key(), message.value()
        return MessageAndMetadata(
            *partition_of(message),
            offset_of(message),
            None if key is None else self._key.from_bytes(key),
            None if value is None else self._value.from_bytes(value),
            message.timestamp()[1],
            _headers_of(message),
        )

    # Calls of the connector's thread

    @property
    def owned(self) -> frozenset[TopicPartition]:
        """The partitions whose messages this stream receives."""
        return self._owned

    @property
    def in_process(self) -> TopicPartition | None:
        """Partition of the message that was returned last, until the next one is requested."""
        with self._lock:
            return None if self._last is None else self._last[0]

    def hold(self) -> None:
        """Return no more messages until `own`. The queue is dropped. Any thread."""
        with self._lock:
            self._is_held = True
        self._drop()

    def own(
        self,
        places: frozenset[TopicPartition],
        handed_out: Mapping[TopicPartition, int],
        in_process: Collection[TopicPartition] = (),
    ) -> None:
        """Take over these partitions, whose messages below `handed_out` were returned. The queue is dropped.

        They are processed too, except in partitions with a message in process.
        """
        with self._lock:
            self._is_held = False
            self._owned = places
            self._handed_out = {place: end for place, end in handed_out.items() if place in places}
            self._asked_beyond = {place: end for place, end in self._handed_out.items() if place not in in_process}
        self._drop()

    def _drop(self) -> None:
        while True:
            try:
                self._messages.get_nowait()
            except queue.Empty:
                return

    def offer(self, message: Message) -> bool:
        """Queue a message, or a partition's end, which has an error and an offset; return False if the queue is
        full."""
        try:
            self._messages.put_nowait(message)
        except queue.Full:
            return False
        return True

    @property
    def has_space(self) -> bool:
        """Whether at least half of the queue is free."""
        return self._messages.qsize() <= self._messages.maxsize // 2

    def consumed(self, *, while_working: bool) -> dict[TopicPartition, int]:
        """Return the next offset to read by partition; `while_working` leaves out the last returned message."""
        with self._lock:
            return dict(self._asked_beyond if while_working else self._handed_out)

    def end(self, error: Exception | None) -> None:
        """End the stream: no more messages, also to a thread that is about to take one."""
        with self._lock:
            self._is_held = True
        self._error = error
        self._ended.set()
