"""Messages from librdkafka to the streams that own their partitions.

If a stream is not read, its queue fills and its partitions are paused, while the other streams continue.
"""

import logging
from collections.abc import Mapping, Sequence

from confluent_kafka import Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as Position

from onceflow.client.classic.streams import MessageStream, partition_of
from onceflow.client.librdkafka import error_text
from onceflow.wire import TopicPartition

_log = logging.getLogger(__name__)


class Delivery:
    """The streams of one connector. Its calls belong to the connector's thread."""

    def __init__(self, consumer: Consumer, streams: Sequence[MessageStream]) -> None:
        self._consumer = consumer
        self._streams = streams
        self._waiting: dict[MessageStream, list[Message]] = {}

    @property
    def has_waiting(self) -> bool:
        """Whether messages wait for space in a stream's queue."""
        return bool(self._waiting)

    @property
    def in_process(self) -> set[TopicPartition]:
        """The partitions of the messages that the program processes."""
        return {place for stream in self._streams if (place := stream.in_process) is not None}

    def consumed(self, *, while_working: bool) -> dict[TopicPartition, int]:
        """Return the next offset to read by partition; `while_working` leaves out messages in process."""
        consumed: dict[TopicPartition, int] = {}
        for stream in self._streams:
            consumed.update(stream.consumed(while_working=while_working))
        return consumed

    def hold(self) -> None:
        """Let the streams return no more messages until `own`."""
        self._waiting.clear()
        self.hold_streams()

    def hold_streams(self) -> None:
        """Let the streams return no more messages until `own`. Any thread."""
        for stream in self._streams:
            stream.hold()

    def own(
        self, places: Mapping[MessageStream, frozenset[TopicPartition]], handed_out: Mapping[TopicPartition, int]
    ) -> None:
        """Let each stream own these partitions, whose messages below `handed_out` were returned."""
        self._waiting.clear()
        in_process = self.in_process
        for stream in self._streams:
            stream.own(places.get(stream, frozenset()), handed_out, in_process)

    def give(self, message: Message) -> None:
        """Put a message into its stream. Raises KafkaException for an error that a repetition does not change."""
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
        waiting = self._waiting.get(stream)
        if waiting is not None:
            waiting.append(message)
        elif not stream.offer(message):
            self._consumer.pause([Position(*owned) for owned in stream.owned])
            self._waiting[stream] = [message]

    def give_waiting(self) -> None:
        """Put waiting messages into streams whose queue has space again."""
        for stream in [stream for stream in self._waiting if stream.has_space]:
            waiting = self._waiting[stream]
            while waiting and stream.offer(waiting[0]):
                del waiting[0]
            if not waiting:
                del self._waiting[stream]
                self._consumer.resume([Position(*owned) for owned in stream.owned])
