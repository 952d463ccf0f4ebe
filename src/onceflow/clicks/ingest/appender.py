"""Producer whose acknowledgements an event loop can await."""

import asyncio
import threading
from collections.abc import Sequence
from enum import StrEnum
from functools import partial

from confluent_kafka import KafkaError, KafkaException, Message

from onceflow.client.librdkafka import error_text, librdkafka_settings
from onceflow.client.producer import Config, producer
from onceflow.client.security import PLAINTEXT, Security

DELIVERY_TIMEOUT_MS = 10_000
LINGER_MS = 2
_POLL_S = 0.1
_TOO_LARGE = {KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE}
_QUEUE_FULL = KafkaError(KafkaError._QUEUE_FULL)


class Unwritten(StrEnum):
    """Reason why an event is not known to be in the topic."""

    NOT_ACKNOWLEDGED = "not-acknowledged"
    """Not acknowledged in time; it may be in the topic."""
    TOO_LARGE = "event-too-large"
    """Refused for its size, by librdkafka or by the broker."""


Results = list[Unwritten | None]
"""Result of each event; None is an acknowledgement."""


class _Waiting:
    """Events of one call, until the last of them has its result."""

    def __init__(self, future: "asyncio.Future[Results]", count: int) -> None:
        self.future = future
        self.left = count
        self.results: Results = [None] * count


class Appender:
    """Idempotent producer with acks=all to one topic. `append` may be called by many tasks of one event loop.

    A thread of its own serves librdkafka's callbacks. An event that is not acknowledged within the delivery timeout
    is `not-acknowledged`: whether the broker has it is unknown. `failure` is an error after which librdkafka's producer
    cannot continue.
    """

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        security: Security = PLAINTEXT,
        delivery_timeout_ms: int = DELIVERY_TIMEOUT_MS,
    ) -> None:
        self._topic = topic
        self._loop = asyncio.get_running_loop()
        self.failure: str | None = None
        settings: dict[str, Config] = {
            "linger.ms": LINGER_MS,
            "delivery.timeout.ms": delivery_timeout_ms,
            # The requests' memory is limited; this queue never fills before that limit is reached.
            "queue.buffering.max.messages": 10_000_000,
            "queue.buffering.max.kbytes": 2_000_000,
            **librdkafka_settings(security),
        }
        self._producer = producer(bootstrap, **settings)
        self._lock = threading.Lock()
        self._finished: list[_Waiting] = []
        self._closed = False
        self._thread = threading.Thread(target=self._poll, name="acknowledgements", daemon=True)
        self._thread.start()

    async def append(self, records: Sequence[tuple[bytes, bytes]], timestamp_ms: int) -> Results:
        """Write records of (key, value) and return the result of each, when all have one."""
        if not records:
            return []
        waiting = _Waiting(self._loop.create_future(), len(records))
        for index, (key, value) in enumerate(records):
            on_delivery = partial(self._on_delivery, waiting, index)
            try:
                self._producer.produce(self._topic, value, key, on_delivery=on_delivery, timestamp=timestamp_ms)
            except (KafkaException, BufferError) as error:
                on_delivery(error.args[0] if isinstance(error, KafkaException) else _QUEUE_FULL, None)
        if not waiting.left:
            self._report()
        return await waiting.future

    async def topic_exists(self, timeout_s: float) -> bool:
        """Return whether the cluster responds in time and has the topic."""
        try:
            metadata = await asyncio.to_thread(self._producer.list_topics, self._topic, timeout_s)
        except KafkaException:
            return False
        return metadata.topics[self._topic].error is None

    async def close(self) -> None:
        """Stop the producer. Nothing may be waiting."""
        self._closed = True
        await asyncio.to_thread(self._thread.join)

    def _on_delivery(self, waiting: _Waiting, index: int, error: KafkaError | None, _message: Message | None) -> None:
        """Note one result, in the thread of the callbacks or of the caller."""
        if error is not None:
            too_large = error.code() in _TOO_LARGE
            waiting.results[index] = Unwritten.TOO_LARGE if too_large else Unwritten.NOT_ACKNOWLEDGED
            if error.fatal() or error.code() == KafkaError._FATAL:
                self.failure = error_text(error)
        with self._lock:
            waiting.left -= 1
            if not waiting.left:
                self._finished.append(waiting)

    def _poll(self) -> None:
        while not self._closed:
            # It returns when it has served all callbacks that were due.
            if self._producer.poll(_POLL_S) and self._finished:
                self._loop.call_soon_threadsafe(self._report)

    def _report(self) -> None:
        """Wake the callers whose events all have results."""
        with self._lock:
            finished, self._finished = self._finished, []
        for waiting in finished:
            if not waiting.future.done():  # The caller may have been cancelled.
                waiting.future.set_result(waiting.results)
