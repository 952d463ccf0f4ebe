"""Sender of encoded messages on librdkafka; they are acknowledged before `send` returns."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message

from onceflow.client.addresses import parse_bootstrap
from onceflow.client.errors import BrokerUnreachable, ClientError, UnknownTopic
from onceflow.client.librdkafka import error_text
from onceflow.client.producer import producer

METADATA_AGE_S_MAX = 60.0
"""Maximum age of a topic's known partitions, so that added ones are metadata."""
CREATION_S_MAX = 10.0
"""Maximum time until a topic exists that a metadata request creates."""
# Error codes of brokers meanwhile, by version. librdkafka treats neither as retriable.
_NOT_CREATED_YET = (KafkaError.LEADER_NOT_AVAILABLE, KafkaError.UNKNOWN_TOPIC_OR_PART)
_POLL_S = 0.1
_METADATA_PAUSE_S = 0.05


class SendFailed(ClientError):
    """Some messages were not acknowledged: `messages` has those, in order; the others were."""

    def __init__(self, message: str, messages: Sequence[Any]) -> None:
        super().__init__(message)
        self.messages = list(messages)


@dataclass(frozen=True, slots=True)
class EncodedMessage:
    """Content to send; `origin` is the user's message, for errors."""

    topic: str
    partition: int
    key: bytes | None
    message: bytes | None
    origin: Any = None


class Sender:
    """Sender to any partition of any topic. One thread at a time."""

    def __init__(
        self, bootstrap: str, librdkafka: Mapping[str, Any], *, timeout_ms: int, first_contact_s: float
    ) -> None:
        """Create a sender that waits `timeout_ms` for acknowledgements and `first_contact_s` for a broker's first
        response."""
        self._bootstrap = bootstrap
        self._timeout_ms = timeout_ms
        self._first_contact_s = first_contact_s
        self._producer = producer(bootstrap, **{**librdkafka, "delivery.timeout.ms": timeout_ms})
        self._partitions: dict[str, tuple[float, list[int]]] = {}

    def partitions_of(self, topic: str) -> list[int]:
        """Return the topic's partitions, sorted. Raises UnknownTopic, BrokerUnreachable."""
        known = self._partitions.get(topic)
        if known is None or time.monotonic() - known[0] > METADATA_AGE_S_MAX:
            known = self._partitions[topic] = (time.monotonic(), self._ask_partitions(topic))
        return known[1]

    def _ask_partitions(self, topic: str) -> list[int]:
        """Request the partitions; wait for a topic that the broker creates because of the request."""
        deadline: float | None = None
        timeout_s = self._timeout_ms / 1000
        if not self._partitions:
            timeout_s = min(timeout_s, self._first_contact_s)
        while True:
            try:
                metadata = self._producer.list_topics(topic, timeout=timeout_s).topics[topic]
            except KafkaException as error:
                address = parse_bootstrap(self._bootstrap)[0]
                raise BrokerUnreachable(
                    f"no Kafka broker responds at {self._bootstrap}: {error.args[0].str()}; is it up?", address
                ) from error
            if metadata.error is None and metadata.partitions:
                return sorted(metadata.partitions)
            deadline = deadline or time.monotonic() + min(self._timeout_ms / 1000, CREATION_S_MAX)
            if metadata.error is None or metadata.error.code() not in _NOT_CREATED_YET or time.monotonic() > deadline:
                raise UnknownTopic(
                    f"topic '{topic}' does not exist at {self._bootstrap} and was not created; "
                    f"create it with 'onceflow topic create {topic} --partitions N'"
                )
            time.sleep(_METADATA_PAUSE_S)

    def send(self, messages: Sequence[EncodedMessage]) -> None:
        """Send; return when every message is acknowledged by `request.required.acks`. Raises SendFailed."""
        outcomes: list[KafkaError | None] = [None] * len(messages)
        for number, message in enumerate(messages):
            self._enqueue(number, message, outcomes)
        # librdkafka ends every message by delivery.timeout.ms, so this wait ends too.
        pending = self._producer.flush(self._timeout_ms / 1000 + 1)
        failed = [number for number, error in enumerate(outcomes) if error is not None]
        if failed or pending:
            first = outcomes[failed[0]] if failed else None
            raise SendFailed(
                f"{len(failed) or pending} of {len(messages)} messages were not acknowledged by {self._bootstrap}: "
                f"{error_text(first) if first else 'no response in time'}",
                [messages[number].origin for number in failed] or [message.origin for message in messages],
            )

    def _enqueue(self, number: int, message: EncodedMessage, outcomes: list[KafkaError | None]) -> None:
        def delivered(error: KafkaError | None, _message: Message) -> None:
            outcomes[number] = error

        deadline = time.monotonic() + self._timeout_ms / 1000
        while True:
            try:
                self._producer.produce(
                    message.topic, message.message, message.key, message.partition, on_delivery=delivered
                )
                return
            except BufferError:
                self._producer.poll(_POLL_S)
                if time.monotonic() > deadline:
                    raise SendFailed(
                        f"{self._bootstrap} accepted no message for {message.topic} within {self._timeout_ms} ms; "
                        "is it up?",
                        [message.origin],
                    ) from None
            except KafkaException as error:
                outcomes[number] = error.args[0]
                return

    def close(self) -> None:
        """Wait for messages in flight, at most the timeout."""
        self._producer.flush(self._timeout_ms / 1000 + 1)
