"""Hooks of the producer: `event.handler` replaces serialization and sending, `callback.handler` watches the queue."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from onceflow.client.classic.encoders import Encoder
from onceflow.client.classic.messages import KeyedMessage
from onceflow.client.classic.partitioners import Partitioner, any_partition
from onceflow.client.classic.sender import EncodedMessage, Sender
from onceflow.client.errors import ClientError

Messages = Sequence[KeyedMessage[Any, Any]]


class EventHandler(Protocol):
    """`kafka.producer.async.EventHandler`: receives each batch and decides what is sent, and where.

    A handler sends with `sender.send`; what it does not send is dropped.
    """

    def init(self, props: Mapping[str, Any]) -> None:
        """Initialize before the first batch, with `event.handler.props`."""

    def handle(self, events: Messages, sender: Sender, encoder: Encoder) -> None:
        """Handle one batch; `encoder` is that of `serializer.class`."""

    def close(self) -> None:
        """Close after the last batch."""


class CallbackHandler:
    """`kafka.producer.async.CallbackHandler`: called at each stage of an asynchronous producer's queue.

    The order is: `init`; for each message `before_enqueue` and `after_enqueue`, in the caller's thread; in the sending
    thread `after_dequeuing_existing_data` for each message from the queue (with None when `queue.time` passed without
    one), `before_sending_data` for each batch; at the end `last_batch_before_close` and `close`. The methods do nothing
    here: override the ones you need.
    """

    def init(self, props: Mapping[str, Any]) -> None:
        """Initialize once, with `callback.handler.props`."""

    def before_enqueue(self, message: KeyedMessage[Any, Any]) -> KeyedMessage[Any, Any]:
        """Return the message to queue instead of this one."""
        return message

    def after_enqueue(self, message: KeyedMessage[Any, Any], added: bool) -> None:
        """Called after queueing; `added` is false if the queue was full."""

    def after_dequeuing_existing_data(self, message: KeyedMessage[Any, Any] | None) -> Messages:
        """Return the messages to put into the batch instead of this one."""
        return [] if message is None else [message]

    def before_sending_data(self, messages: Messages) -> Messages:
        """Return the batch for the event handler instead of this one."""
        return messages

    def last_batch_before_close(self) -> Messages:
        """Return messages to send last."""
        return []

    def close(self) -> None:
        """Close after the last batch was sent."""


class PartitionOutOfRange(ClientError):
    """A partitioner returned an index that the topic does not have."""


class DefaultEventHandler:
    """Default handler: encode, choose the partition, send."""

    def __init__(self, partitioner: Partitioner, key_encoder: Encoder) -> None:
        self._partitioner = partitioner
        self._key_encoder = key_encoder

    def init(self, props: Mapping[str, Any]) -> None:
        """Do nothing: no preparation is necessary."""

    def handle(self, events: Messages, sender: Sender, encoder: Encoder) -> None:
        sender.send([self._encode(event, sender, encoder) for event in events])

    def close(self) -> None:
        """Do nothing: no cleanup is necessary."""

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
        if event.partitioning_key is None:
            return partitions[any_partition(count)]
        index = self._partitioner.partition(event.partitioning_key, count)
        if not 0 <= index < count:
            raise PartitionOutOfRange(
                f"{type(self._partitioner).__name__} returned partition {index} for key {event.partitioning_key!r} of "
                f"{event.topic}, which has {count}; return an index from 0 to {count - 1}"
            )
        return partitions[index]
