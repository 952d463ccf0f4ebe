"""Producer on librdkafka: idempotent, acks=all, with keys on the partitions where Java's client puts them."""

import logging
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException, Message

from onceflow.client.cluster import Cluster
from onceflow.client.errors import ProduceFailed
from onceflow.client.librdkafka import error_text, librdkafka_settings
from onceflow.client.security import PLAINTEXT, Security

Config = str | int | float | bool

DELIVERY_TIMEOUT_MS = 120_000
"""Java's delivery.timeout.ms: an event not acknowledged by then has failed."""
MESSAGE_BYTES_MAX = 1_040_000
"""Size of an event of 1,000,000 bytes and its batch, within a broker's default of 1,048,588."""
QUEUE_EVENTS_MAX = 100_000
QUEUE_KBYTES_MAX = 65_536
_POLL_S = 0.1
NOTIFIED_AFTER_S = 2.0

_log = logging.getLogger(__name__)
# librdkafka reports its retries as warnings; a program that wants them configures logging.
_log.addHandler(logging.NullHandler())


def producer(bootstrap: str, **config: Config) -> confluent_kafka.Producer:
    """Create a librdkafka producer; `config` has librdkafka's own names, as in `producer(b, **{"linger.ms": 5})`.

    librdkafka's default partitioner places keys by CRC-32; `murmur2_random` is that of every Java client, so a key
    stays on its partition whatever client produces it. Raises ProduceFailed for a setting that librdkafka refuses.
    """
    settings: dict[str, Config] = {
        "bootstrap.servers": bootstrap,
        "client.id": "onceflow",
        "partitioner": "murmur2_random",
        "message.max.bytes": MESSAGE_BYTES_MAX,
        "acks": "all",
        "enable.idempotence": True,
        "delivery.timeout.ms": DELIVERY_TIMEOUT_MS,
        "queue.buffering.max.messages": QUEUE_EVENTS_MAX,
        "queue.buffering.max.kbytes": QUEUE_KBYTES_MAX,
        **config,
    }
    try:
        return confluent_kafka.Producer(settings, logger=_log)
    except KafkaException as error:
        raise ProduceFailed(f"librdkafka refused the producer's settings: {error.args[0].str()}") from error


class EventWriter:
    """Context manager that writes events to one topic; the first failure raises ProduceFailed.

    `write` puts an event into librdkafka's bounded queue and waits while it is full; `delivered` counts the
    acknowledged ones. Leaving the context flushes, unless an exception is being raised. The topic must exist:
    UnknownTopic and BrokerUnreachable are raised before anything is written.
    """

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        *,
        linger_ms: float = 5,
        security: Security = PLAINTEXT,
        notify: Callable[[str], None] | None = None,
        **config: Config,
    ) -> None:
        """Check that the topic exists; `notify` takes a message when events have to wait."""
        with Cluster(bootstrap, security=security) as cluster:
            cluster.require_topic(topic)
        self.bootstrap = bootstrap
        self.topic = topic
        self.delivered = 0
        self._failed = 0
        self._first_error: KafkaError | None = None
        self._delivery_timeout_ms = int(config.get("delivery.timeout.ms", DELIVERY_TIMEOUT_MS))
        self._notify = notify or _ignore
        self._is_away = False
        """Whether a message said that no broker responds, and nothing has been acknowledged since."""
        settings: dict[str, Any] = {"linger.ms": linger_ms, "error_cb": self._on_error}
        self._producer = producer(bootstrap, **{**settings, **librdkafka_settings(security), **config})

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.flush()
        else:
            # Queued events were accepted before the error or interrupt: they are sent, but not waited for long.
            self._producer.flush(min(self._delivery_timeout_ms / 1000, 5))

    def write(
        self,
        key: bytes | None,
        value: bytes | None,
        timestamp_ms: int | None = None,
        partition: int | None = None,
        headers: Sequence[tuple[str, bytes | None]] = (),
    ) -> None:
        """Queue one event; `timestamp_ms` defaults to now, and without `partition` the key decides.

        Raises ProduceFailed if this or an earlier event was refused.
        """
        self._raise_failure()
        optional: dict[str, Any] = {}
        if timestamp_ms is not None:
            optional["timestamp"] = timestamp_ms
        if partition is not None:
            optional["partition"] = partition
        if headers:
            optional["headers"] = list(headers)
        deadline = time.monotonic() + self._delivery_timeout_ms / 1000 + 1
        while True:
            try:
                self._producer.produce(self.topic, value, key, on_delivery=self._on_delivery, **optional)
                break
            except BufferError:
                self._wait_for_space(deadline)
            except KafkaException as error:
                raise self._failure(error.args[0]) from error
        self._producer.poll(0)

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until every event is acknowledged. Raises ProduceFailed if one was refused or the time is over."""
        allowed_s = self._delivery_timeout_ms / 1000 + 1 if timeout_s is None else timeout_s
        waiting = self._wait(min(allowed_s, NOTIFIED_AFTER_S))
        remaining_s = allowed_s - NOTIFIED_AFTER_S
        if waiting and remaining_s > 0:
            self._notify(f"waiting until {self.bootstrap} acknowledges {_events(waiting)}, up to {remaining_s:g} s")
            waiting = self._wait(remaining_s)
        if waiting:
            raise ProduceFailed(
                f"{_events(waiting)} for {self.topic} not acknowledged by {self.bootstrap} within {allowed_s:g} s, "
                f"{self.delivered} acknowledged; is the broker up?"
            )

    def _wait(self, timeout_s: float) -> int:
        """Wait until every event is acknowledged or the time is over; return how many are not."""
        waiting = self._producer.flush(timeout_s)
        self._raise_failure()
        return waiting

    def _wait_for_space(self, deadline: float) -> None:
        self._producer.poll(_POLL_S)
        self._raise_failure()
        if time.monotonic() > deadline:
            raise ProduceFailed(
                f"{self.bootstrap} accepted no event for {self.topic} within {self._delivery_timeout_ms} ms; "
                "is the broker up?"
            )

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self.delivered += 1
            if self._is_away:
                self._is_away = False
                self._notify(f"{self.bootstrap} acknowledges events again")
        else:
            self._failed += 1
            self._first_error = self._first_error or error

    def _on_error(self, error: KafkaError) -> None:
        """Notify once that no broker responds: librdkafka tries again. Other errors are those of each event."""
        if error.code() == KafkaError._ALL_BROKERS_DOWN and not self._is_away:
            self._is_away = True
            seconds = self._delivery_timeout_ms / 1000
            self._notify(f"no broker responds at {self.bootstrap}; each event waits for one, up to {seconds:g} s")

    def _raise_failure(self) -> None:
        if self._first_error is not None:
            raise self._failure(self._first_error)

    def _failure(self, error: KafkaError) -> ProduceFailed:
        return ProduceFailed(
            f"{_events(self._failed or 1)} for {self.topic} at {self.bootstrap} not acknowledged, "
            f"{self.delivered} acknowledged: {error_text(error)}"
        )


def _ignore(message: str) -> None:
    """Show nothing."""


def _events(count: int) -> str:
    return "1 event" if count == 1 else f"{count} events"
