"""Encoded messages to the brokers, acknowledged before `send` returns. Stands on librdkafka."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message

from onceflow.client.addresses import parse_bootstrap
from onceflow.client.errors import BrokerUnreachable, ClientError, UnknownTopic
from onceflow.client.producer import producer

METADATA_AGE_S_MAX = 60.0
"""How long a topic's partitions are believed, so that added ones are found."""
CREATION_S_MAX = 10.0
"""How long a topic may take to be there that is created because it was asked for."""
# What a broker answers meanwhile, by its version. librdkafka calls neither retriable.
_NOT_THERE_YET = (KafkaError.LEADER_NOT_AVAILABLE, KafkaError.UNKNOWN_TOPIC_OR_PART)
_POLL_S = 0.1
_METADATA_PAUSE_S = 0.05


class SendFailed(ClientError):
    """Messages that were not acknowledged. `messages` are those, in their order; the others were."""

    def __init__(self, sentence: str, messages: Sequence[Any]) -> None:
        super().__init__(sentence)
        self.messages = list(messages)


@dataclass(frozen=True, slots=True)
class EncodedMessage:
    """What goes to the wire; `origin` is what the user gave, for errors."""

    topic: str
    partition: int
    key: bytes | None
    message: bytes | None
    origin: Any = None


class Sender:
    """Sends to any partition of any topic. One thread at a time."""

    def __init__(
        self, bootstrap: str, librdkafka: Mapping[str, Any], *, timeout_ms: int, first_contact_s: float
    ) -> None:
        """Waits `timeout_ms` for an acknowledgement, but `first_contact_s` at most for a broker's first answer."""
        self._bootstrap = bootstrap
        self._timeout_ms = timeout_ms
        self._first_contact_s = first_contact_s
        self._producer = producer(bootstrap, **{**librdkafka, "delivery.timeout.ms": timeout_ms})
        self._partitions: dict[str, tuple[float, list[int]]] = {}

    def partitions_of(self, topic: str) -> list[int]:
        """The topic's partitions, sorted. Raises UnknownTopic, BrokerUnreachable."""
        known = self._partitions.get(topic)
        if known is None or time.monotonic() - known[0] > METADATA_AGE_S_MAX:
            known = self._partitions[topic] = (time.monotonic(), self._ask_partitions(topic))
        return known[1]

    def _ask_partitions(self, topic: str) -> list[int]:
        """Waits for a topic that the broker is creating because it was asked for."""
        deadline: float | None = None
        timeout_s = self._timeout_ms / 1000
        if not self._partitions:
            timeout_s = min(timeout_s, self._first_contact_s)
        while True:
            try:
                found = self._producer.list_topics(topic, timeout=timeout_s).topics[topic]
            except KafkaException as error:
                address = parse_bootstrap(self._bootstrap)[0]
                raise BrokerUnreachable(
                    f"no Kafka broker answers at {self._bootstrap}: {error.args[0].str()}; is it up?", address
                ) from error
            if found.error is None and found.partitions:
                return sorted(found.partitions)
            deadline = deadline or time.monotonic() + min(self._timeout_ms / 1000, CREATION_S_MAX)
            if found.error is None or found.error.code() not in _NOT_THERE_YET or time.monotonic() > deadline:
                raise UnknownTopic(
                    f"topic '{topic}' does not exist at {self._bootstrap} and was not created: "
                    f"'onceflow topic create {topic} --partitions N' makes it"
                )
            time.sleep(_METADATA_PAUSE_S)

    def send(self, messages: Sequence[EncodedMessage]) -> None:
        """Returns when every message is acknowledged as `request.required.acks` asks. Raises SendFailed."""
        outcomes: list[KafkaError | None] = [None] * len(messages)
        for number, message in enumerate(messages):
            self._enqueue(number, message, outcomes)
        # librdkafka ends every message by delivery.timeout.ms, so this wait ends too.
        unanswered = self._producer.flush(self._timeout_ms / 1000 + 1)
        failed = [number for number, error in enumerate(outcomes) if error is not None]
        if failed or unanswered:
            first = outcomes[failed[0]] if failed else None
            raise SendFailed(
                f"{len(failed) or unanswered} of {len(messages)} messages were not acknowledged by {self._bootstrap}: "
                f"{first.str() if first else 'no answer in time'}",
                [messages[number].origin for number in failed] or [each.origin for each in messages],
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
                        f"{self._bootstrap} took no message for {message.topic} within {self._timeout_ms} ms: is it up",
                        [message.origin],
                    ) from None
            except KafkaException as error:
                outcomes[number] = error.args[0]
                return

    def close(self) -> None:
        """Wait for what is under way, at most the time-out."""
        self._producer.flush(self._timeout_ms / 1000 + 1)
