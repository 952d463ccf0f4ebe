"""Fetch versions 0 to 3: records converted for consumers before Kafka 0.11 (`log.message.downconversion.enable`).

Waiting and limits are those of later versions (`handlers.fetch`), in bytes of the log. Then a thread converts one batch
after the other, in slices, and batches of other requests in turn (KIP-283). As in Kafka, a partition's response has its
first batch whole, and no more bytes than the log otherwise; here no message is cut.

Messages are sent from memory, so a response has fewer of them than one of a later version. A fetch that finds control
batches only continues after them: the response without messages would not tell the reader where to continue.
"""

import logging
from collections.abc import Iterator, Sequence
from typing import TypeVar

from onceflow.broker.handlers import fetch
from onceflow.broker.handlers.fetch import PendingFetch, ReadResult, TopicResponse
from onceflow.broker.network.request import Request, close_unless_responded
from onceflow.broker.node import Node
from onceflow.log.segment import Slice
from onceflow.wire import apis, old_fetch
from onceflow.wire.batch import HEADER_BYTES, read_header
from onceflow.wire.down_conversion import InconvertibleCodec, down_convert
from onceflow.wire.errors import DecompressionTooLarge, ErrorCode, WireError
from onceflow.wire.fetch import FetchPartition, FetchRequest, PartitionResponse
from onceflow.wire.old_fetch import OldPartition

logger = logging.getLogger(__name__)

LOG_BYTES_MAX = 1024**2
"""Maximum size of the batches for one response, unless the first one is larger: messages are sent from memory."""

WORK_PER_RECORD = 6

Place = tuple[str, int]
Value = TypeVar("Value")


class PartitionConversion:
    """Conversion of one partition's slice; `messages` of the thread, the rest of both."""

    __slots__ = (
        "_begin",
        "_bytes_max",
        "_end",
        "_magic",
        "_size_bytes",
        "_slice",
        "error",
        "messages",
        "offset",
        "place",
    )

    def __init__(self, place: Place, offset: int, records: Slice, magic: int) -> None:
        self.place = place
        self.offset = offset
        """Offset after the last batch that was converted, or left out."""
        self.messages: list[bytes] = []
        self.error = ErrorCode.none
        self._slice = records
        self._begin = records.position
        self._end = records.position + records.size_bytes
        self._magic = magic
        self._size_bytes = 0
        self._bytes_max: int | None = None
        """Maximum size of the messages, once there is a first batch."""

    @property
    def is_over(self) -> bool:
        return self._begin >= self._end

    def convert_batch(self, unpacked_bytes_max: int) -> Iterator[int]:
        """Convert the next batch, in steps; yield the cost of each in units of about a microsecond."""
        try:
            yield from self._steps(unpacked_bytes_max)
        except (WireError, OSError) as error:
            # The messages before it are sent; the reader's next request starts at this batch.
            self._begin = self._end
            if not self.messages:
                self.error = _error_code(error)
                logger.error("%s-%d: offset %d could not be converted: %s", *self.place, self.offset, error)

    def _steps(self, unpacked_bytes_max: int) -> Iterator[int]:
        file, begin = self._slice.file, self._begin
        header = read_header(file.read(HEADER_BYTES, begin))
        batch = file.read(min(max(header.size_bytes, HEADER_BYTES), self._end - begin), begin)
        for message in down_convert(batch, self._magic, self.offset, size_bytes_max=unpacked_bytes_max):
            if message:
                if self._bytes_max is not None and self._size_bytes + len(message) > self._bytes_max:
                    self._begin = self._end
                    return
                self.messages.append(message)
                self._size_bytes += len(message)
            yield WORK_PER_RECORD
        self._begin += len(batch)
        self.offset = header.last_offset + 1
        if self.messages and self._bytes_max is None:
            self._bytes_max = max(self._slice.size_bytes, self._size_bytes)


def _error_code(error: WireError | OSError) -> ErrorCode:
    if isinstance(error, InconvertibleCodec):
        return ErrorCode.unsupported_compression_type
    if isinstance(error, DecompressionTooLarge):
        return ErrorCode.message_too_large
    return ErrorCode.corrupt_message if isinstance(error, WireError) else ErrorCode.kafka_storage_error


class OldFetch(PendingFetch):
    """A Fetch request whose response is converted. While that is under way, it counts as waiting."""

    __slots__ = ("_parts", "_result")

    def __init__(self, node: Node, request: Request, body: FetchRequest, refused: Sequence[TopicResponse] = ()) -> None:
        super().__init__(node, request, body, refused)
        self._max_bytes = min(self._max_bytes, LOG_BYTES_MAX)
        self._wanted_bytes = min(self._wanted_bytes, self._max_bytes)
        self._result: ReadResult | None = None
        """Records in conversion."""
        self._parts: list[PartitionConversion] = []

    def respond_now(self) -> None:
        """Respond with what is converted, or else available."""
        if self._result is None:
            super().respond_now()
        else:
            self._send()

    def _read_and_respond(self) -> None:
        if self._result is None:
            super()._read_and_respond()

    def _respond(self, result: ReadResult) -> None:
        self._result = result
        self._parts = self._new_parts(result)
        if not self._parts:
            self._send()
            return
        if self._timer is None:
            self._park()
        self._is_reading = True
        self._convert()

    def _new_parts(self, result: ReadResult) -> list[PartitionConversion]:
        slices = iter(result.slices)
        magic = old_fetch.record_format(self._request.version)
        return [
            PartitionConversion((topic, wanted.partition), wanted.fetch_offset, next(slices), magic)
            for (topic, asked), (_topic, responses) in zip(self._body.topics, result.responses, strict=True)
            for wanted, response in zip(asked, responses, strict=True)
            if response.records_bytes
        ]

    def _convert(self) -> None:
        """Convert the next batch, or end the conversion."""
        part = next((part for part in self._parts if not part.is_over), None)
        if part is None:
            self._end()
            return
        result = self._result
        self._node.conversions.add(
            self._request.timed(part.convert_batch(self._node.config.log.batch_unpacked_bytes_max)),
            self._on_converted,
            failed=self._request.reply.close_connection,
            is_wanted=lambda: self._result is result and self._timer is not None,
        )

    def _on_converted(self) -> None:
        with close_unless_responded(self._request.reply):
            self._convert()

    def _end(self) -> None:
        """Respond, or continue after the control batches if there was nothing else."""
        result, self._result, self._is_reading = self._result, None, False
        assert result is not None
        if result.errors or any(part.messages or part.error for part in self._parts):
            self._result = result
            self._send()
            return
        self._skip({part.place: part.offset for part in self._parts})
        result = self._read_all()
        if result.slices:
            self._respond(result)
        else:
            self._respond_if_enough(result)

    def _skip(self, offsets: dict[Place, int]) -> None:
        """Read from these offsets on."""

        def moved(topic: str, wanted: FetchPartition) -> FetchPartition:
            return wanted._replace(fetch_offset=offsets.get((topic, wanted.partition), wanted.fetch_offset))

        topics = [(topic, [moved(topic, wanted) for wanted in asked]) for topic, asked in self._body.topics]
        self._body = self._body._replace(topics=topics)

    def _send(self) -> None:
        self._stop()
        result, self._result = self._result, None
        assert result is not None
        parts = {part.place: part for part in self._parts}
        topics = [
            (topic, [_old_partition(response, parts.get((topic, response.partition))) for response in responses])
            for topic, responses in (*result.responses, *self._refused)
        ]
        for _topic, partitions in topics[: len(result.responses)]:
            for converted in partitions:
                if converted.error_code:
                    self._request.reply.count_error(converted.error_code)
        header = self._request.header
        self._request.reply.send([old_fetch.encode_response(header.version, header.correlation_id, topics)])


def _old_partition(response: PartitionResponse, part: PartitionConversion | None) -> OldPartition:
    error_code = part.error if part is not None and part.error else response.error_code
    if error_code:
        # Clients of these versions do not know the other code, and retry after this one (KafkaApis).
        if error_code == ErrorCode.kafka_storage_error:
            error_code = ErrorCode.not_leader_or_follower
        return OldPartition(response.partition, error_code, -1, b"")
    # A copy: the thread may still append to the list.
    messages = () if part is None else list(part.messages)
    return OldPartition(response.partition, error_code, response.high_watermark, b"".join(messages))


def handle(node: Node, request: Request) -> None:
    """Serve one Fetch request of any version."""
    if request.version > old_fetch.VERSION_MAX:
        fetch.handle(node, request)
        return
    entries_max = node.config.request_partitions_max
    body = fetch.distinct(old_fetch.parse_request(request.frame, request.header, entries_max=entries_max))
    if request.version < old_fetch.ORDER_COUNTS_FROM:
        body = _turned(body, request.header.correlation_id)
    if body.replica_id >= 0:
        _refuse(request, body, ErrorCode.unsupported_version)
    elif node.authorizer is None:
        OldFetch(node, request, body).start()
    else:
        OldFetch(node, request, *fetch.split(node.access(request), request, body)).start()


def _turned(body: FetchRequest, number: int) -> FetchRequest:
    """Return a client's request of this number with another partition first than the one before.

    These clients repeat one order, and a response with the first partitions only would keep them from the others.
    """
    partition_number = number // max(len(body.topics), 1)
    topics = [(topic, _rotated(asked, partition_number)) for topic, asked in body.topics]
    return body._replace(topics=_rotated(topics, number))


def _rotated(values: list[Value], number: int) -> list[Value]:
    begin = number % len(values) if values else 0
    return values[begin:] + values[:begin]


def _refuse(request: Request, body: FetchRequest, error_code: ErrorCode) -> None:
    """Refuse a replica: its log would not be the leader's."""
    request.reply.count_error(error_code)
    topics = [
        (topic, [OldPartition(wanted.partition, error_code, -1, b"") for wanted in asked])
        for topic, asked in body.topics
    ]
    header = request.header
    request.reply.send([old_fetch.encode_response(header.version, header.correlation_id, topics)])


HANDLERS = {apis.FETCH: handle}
