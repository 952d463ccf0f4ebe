"""Hooks of the producer: `event.handler` replaces serialise-and-send, `callback.handler` watches the queue."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from onceflow.client.classic.encoders import Encoder
from onceflow.client.classic.messages import KeyedMessage
from onceflow.client.classic.partitioners import Partitioner, any_partition
from onceflow.client.classic.sender import EncodedMessage, Sender
from onceflow.client.errors import ClientError

Messages = Sequence[KeyedMessage[Any, Any]]


class EventHandler(Protocol):
    """`kafka.producer.async.EventHandler`: gets each batch and decides what is sent, and where.

    A handler that sends calls `sender.send`; what it does not send is dropped.
    """

    def init(self, props: Mapping[str, Any]) -> None:
        """Once, before the first batch, with `event.handler.props`."""

    def handle(self, events: Messages, sender: Sender, encoder: Encoder) -> None:
        """One batch; `encoder` is that of `serializer.class`."""

    def close(self) -> None:
        """Once, after the last batch."""


class CallbackHandler:
    """`kafka.producer.async.CallbackHandler`: called at each stage of an asynchronous producer's queue.

    In this order: `init`; for each message `before_enqueue` and `after_enqueue`, in the caller's thread; in the
    sending thread `after_dequeuing_existing_data` for each message taken from the queue (with None when
    `queue.time` was over with no message), `before_sending_data` for each batch; at the end
    `last_batch_before_close` and `close`. The methods do nothing here: override the ones you need.
    """

    def init(self, props: Mapping[str, Any]) -> None:
        """Once, with `callback.handler.props`."""

    def before_enqueue(self, message: KeyedMessage[Any, Any]) -> KeyedMessage[Any, Any]:
        """The message to put into the queue in place of this one."""
        return message

    def after_enqueue(self, message: KeyedMessage[Any, Any], added: bool) -> None:
        """`added` is false where the queue was full."""

    def after_dequeuing_existing_data(self, message: KeyedMessage[Any, Any] | None) -> Messages:
        """The messages that go into the batch in place of this one."""
        return [] if message is None else [message]

    def before_sending_data(self, messages: Messages) -> Messages:
        """The batch that goes to the event handler in place of this one."""
        return messages

    def last_batch_before_close(self) -> Messages:
        """Messages to send last."""
        return []

    def close(self) -> None:
        """Once, after the last batch was sent."""


class PartitionOutOfRange(ClientError):
    """A partitioner returned an index that the topic does not have."""


class DefaultEventHandler:
    """Encode, find the partition, send."""

    def __init__(self, partitioner: Partitioner, key_encoder: Encoder) -> None:
        self._partitioner = partitioner
        self._key_encoder = key_encoder

    def init(self, props: Mapping[str, Any]) -> None:
        """Nothing to prepare."""

    def handle(self, events: Messages, sender: Sender, encoder: Encoder) -> None:
        sender.send([self._encode(event, sender, encoder) for event in events])

    def close(self) -> None:
        """Nothing to end."""

    def _encode(self, event: KeyedMessage[Any, Any], sender: Sender, encoder: Encoder) -> EncodedMessage:
        return EncodedMessage(
            event.topic,
            self._partition(event, sender.partitions_of(event.topic)),
            None if event.key is None else self._key_encoder.to_message(event.key),
            None if event.message is None else encoder.to_message(event.message),
            event,
        )

    def _partition(self, event: KeyedMessage[Any, Any], partitions: Sequence[int]) -> int:
        count = len(partitions)
        if event.deciding_key is None:
            return partitions[any_partition(count)]
        index = self._partitioner.partition(event.deciding_key, count)
        if not 0 <= index < count:
            raise PartitionOutOfRange(
                f"{type(self._partitioner).__name__} put key {event.deciding_key!r} into partition {index} of "
                f"{event.topic}, which has {count}: return an index from 0 to {count - 1}"
            )
        return partitions[index]
