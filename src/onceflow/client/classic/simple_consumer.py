"""`SimpleConsumer`: reads one broker's partitions at offsets that the caller chooses. Our own requests, no group."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Self, TypeVar

from onceflow.client import requests
from onceflow.client.classic.messages import MessageAndOffset
from onceflow.client.cluster import EARLIEST, LATEST, Fetched
from onceflow.client.connection import Connection
from onceflow.client.errors import (
    ConnectionLost,
    OffsetOutOfRange,
    RequestRefused,
    ResponseTooLarge,
    UnknownTopic,
    UnsupportedBroker,
)
from onceflow.client.records import committed_records, next_offset
from onceflow.remedies import Remedy
from onceflow.wire import apis
from onceflow.wire import fetch as wire_fetch
from onceflow.wire.batch import batches
from onceflow.wire.errors import ErrorCode

FETCH_BYTES_MAX = 64 * 1024 * 1024

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class FetchRequest:
    """From which offset of a partition to read, and roughly how many bytes."""

    topic: str
    partition: int
    offset: int
    max_size: int = 1024 * 1024

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class MessageSet:
    """The messages of one fetch, decoded while they are iterated; an incomplete last batch is left out.

    `next_offset` is where to read on: it moves past what holds no message, such as markers of transactions.
    """

    def __init__(self, asked: FetchRequest, fetched: Fetched) -> None:
        self.topic = asked.topic
        self.partition = asked.partition
        self.high_watermark = fetched.high_watermark
        self.last_stable_offset = fetched.last_stable_offset
        self.log_start_offset = fetched.log_start_offset
        self.size_bytes = len(fetched.records)
        self.next_offset = next_offset(fetched, asked.offset)
        self._offset = asked.offset
        self._fetched = fetched

    def __iter__(self) -> Iterator[MessageAndOffset]:
        for record in committed_records(self._fetched, self._offset, self.next_offset):
            yield MessageAndOffset(record.offset, record.key, record.value, record.timestamp_ms)


class SimpleConsumer:
    """A connection to one broker, which must lead the partitions that are asked for, or follow them (KIP-392).

        with SimpleConsumer("127.0.0.1", 9092) as consumer:
            messages = consumer.fetch(FetchRequest("clicks", 0, offset=0))

    A message larger than `max_size` is read by doubling the size up to `fetch_bytes_max`; then ResponseTooLarge says
    so. With `on_out_of_range` "fail" an offset that the log does not have raises OffsetOutOfRange; "earliest" and
    "latest" read on from the log's start or end. Transactions that were aborted are not seen, open ones not yet.
    A connection that broke is made again, once for each request. Raises BrokerUnreachable, ConnectionLost,
    RequestTimedOut, UnknownTopic, RequestRefused.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        timeout_ms: int = 30_000,
        client_id: str = "onceflow",
        wait_ms: int = 100,
        min_bytes: int = 1,
        fetch_bytes_max: int = FETCH_BYTES_MAX,
        on_out_of_range: str = "fail",
    ) -> None:
        if on_out_of_range not in ("fail", "earliest", "latest"):
            raise ValueError(f"on_out_of_range={on_out_of_range!r}: one of fail, earliest, latest is needed")
        self._connect = partial(Connection, host, port, timeout_ms=timeout_ms, client_id=client_id)
        self._connection = self._connect()
        self._is_closed = False
        self._client_id = client_id
        self._wait_ms = wait_ms
        self._min_bytes = min_bytes
        self._fetch_bytes_max = fetch_bytes_max
        self._on_out_of_range = on_out_of_range

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; what is asked afterwards raises ConnectionLost."""
        self._is_closed = True
        self._connection.close()

    def _asked(self, ask: Callable[[Connection], _T]) -> _T:
        """The answer; asks once more, over a new connection, where the old one is gone: reading twice changes nothing.

        That is what Kafka's class did (SimpleConsumer.sendRequest).
        """
        if self._is_closed:
            raise ConnectionLost(f"the consumer of {self._connection.address} was closed: make a new one")
        try:
            return ask(self._connection)
        except ConnectionLost:
            self._connection = self._connect()
            return ask(self._connection)

    def fetch(self, request: FetchRequest) -> MessageSet:
        """Messages from `request.offset` on; none where the log ends there."""
        return self.multifetch([request])[0]

    def multifetch(self, requests_: Sequence[FetchRequest]) -> list[MessageSet]:
        """Several fetches in one request, answered in their order.

        A partition that is asked for more than once takes a request more each time, for Kafka answers it once.
        """
        found: dict[int, MessageSet] = {}
        waiting = dict(enumerate(requests_))
        while waiting:
            round_: dict[tuple[str, int], int] = {}
            for number, request in waiting.items():
                round_.setdefault((request.topic, request.partition), number)
            asked = {number: waiting.pop(number) for number in round_.values()}
            for number, answer in zip(asked, self._ask(list(asked.values())), strict=True):
                found[number] = self._settle(asked[number], answer)
        return [found[number] for number in range(len(requests_))]

    def get_offsets_before(self, topic: str, partition: int, time: int, max_number: int) -> list[int]:
        """Up to `max_number` offsets to begin reading at, the latest first.

        `time` LATEST: the log's end, then where its segments begin; EARLIEST: the log's start; a timestamp in ms: where
        those segments begin that hold nothing later. Apache Kafka 4 tells the end and the start alone: raises
        UnsupportedBroker for more.
        """
        if not self._connection.serves(apis.LIST_OFFSETS, 0):
            if max_number == 1 and time in (EARLIEST, LATEST):
                return [self._offset_at(topic, partition, time)]
            raise UnsupportedBroker(
                f"{self._connection.address} does not tell where the segments of {topic}-{partition} begin, as Apache "
                "Kafka does not from 4.0 on: ask for one offset at LATEST or EARLIEST"
            )
        build = requests.offsets_before(topic, partition, time, max_number)
        answer = self._asked(lambda connection: connection.request_version(apis.LIST_OFFSETS, 0, build))
        entry = answer.topics[0].partitions[0]
        self._check_offsets(topic, partition, entry.error_code)
        return [int(offset) for offset in entry.old_style_offsets]

    def _check_offsets(self, topic: str, partition: int, code: ErrorCode) -> None:
        if code == ErrorCode.unknown_topic_or_partition:
            raise self._unknown(topic, partition)
        if code != ErrorCode.none:
            raise RequestRefused(f"{topic}-{partition}: its offsets cannot be had: {code.name}", code)

    def _unknown(self, topic: str, partition: int) -> UnknownTopic:
        return UnknownTopic(
            f"there is no partition {partition} of a topic '{topic}' at {self._connection.address}: 'onceflow topic "
            "list' shows all topics and how many partitions each has, counted from 0"
        )

    def _ask(self, asked: Sequence[FetchRequest]) -> list[wire_fetch.FetchedPartition]:
        topics: dict[str, list[wire_fetch.FetchPartition]] = {}
        for each in asked:
            partition = wire_fetch.FetchPartition(each.partition, -1, each.offset, -1, each.max_size)
            topics.setdefault(each.topic, []).append(partition)
        request = wire_fetch.FetchRequest(
            replica_id=-1,
            max_wait_ms=self._wait_ms,
            min_bytes=self._min_bytes,
            max_bytes=sum(each.max_size for each in asked),
            isolation_level=wire_fetch.READ_COMMITTED,
            session_id=0,
            session_epoch=-1,
            topics=list(topics.items()),
        )
        response = self._asked(partial(self._fetch_over, request))
        answers = {(each.topic, each.partition): each for each in response.partitions}
        return [answers[(each.topic, each.partition)] for each in asked]

    def _fetch_over(self, request: wire_fetch.FetchRequest, connection: Connection) -> wire_fetch.FetchResponse:
        version = connection.version_of(apis.FETCH)
        return connection.exchange(
            lambda correlation_id: wire_fetch.encode_request(version, correlation_id, self._client_id, request),
            partial(wire_fetch.parse_response, version),
            extra_wait_ms=self._wait_ms,
        )

    def _settle(self, asked: FetchRequest, answer: wire_fetch.FetchedPartition) -> MessageSet:
        """The messages of one answer; asks again from another offset or for more bytes where that is called for."""
        code = ErrorCode(answer.error_code)
        if code == ErrorCode.offset_out_of_range:
            return self.fetch(FetchRequest(asked.topic, asked.partition, self._reset(asked), asked.max_size))
        if code == ErrorCode.unknown_topic_or_partition:
            raise self._unknown(asked.topic, asked.partition)
        if code != ErrorCode.none:
            raise RequestRefused(f"{asked} cannot be read at {self._connection.address}: {code.name}", code)
        if answer.records and not any(True for _ in batches(answer.records)):
            return self.fetch(self._doubled(asked))
        fetched = Fetched(
            answer.records,
            answer.high_watermark,
            answer.last_stable_offset,
            answer.log_start_offset,
            tuple(answer.aborted),
        )
        return MessageSet(asked, fetched)

    def _doubled(self, asked: FetchRequest) -> FetchRequest:
        if asked.max_size >= self._fetch_bytes_max:
            raise ResponseTooLarge(
                f"the message at offset {asked.offset} of {asked} is larger than {self._fetch_bytes_max} bytes:"
                f" {Remedy.LARGER_FETCHES}"
            )
        size = min(2 * max(asked.max_size, 1), self._fetch_bytes_max)
        return FetchRequest(asked.topic, asked.partition, asked.offset, size)

    def _reset(self, asked: FetchRequest) -> int:
        start, end = (self._offset_at(asked.topic, asked.partition, time) for time in (EARLIEST, LATEST))
        if self._on_out_of_range == "fail":
            raise OffsetOutOfRange(asked.topic, asked.partition, asked.offset, start, end)
        return start if self._on_out_of_range == "earliest" else end

    def _offset_at(self, topic: str, partition: int, time: int) -> int:
        build = requests.list_offsets(topic, {partition: time}, wire_fetch.READ_COMMITTED)
        answer = self._asked(
            lambda connection: connection.request(
                apis.LIST_OFFSETS, build, version_min=requests.LIST_OFFSETS_VERSION_MIN
            )
        )
        entry = answer.topics[0].partitions[0]
        self._check_offsets(topic, partition, entry.error_code)
        return int(entry.offset)
