"""`SimpleConsumer`: reads one broker's partitions at offsets that the caller chooses, with its own requests, no
group."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Self, TypeVar

from onceflow.client import requests
from onceflow.client.addresses import Address
from onceflow.client.classic.messages import MessageAndOffset
from onceflow.client.cluster import EARLIEST, LATEST, Cluster, Fetched
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
from onceflow.wire import TopicPartition, apis
from onceflow.wire import fetch as wire_fetch
from onceflow.wire.batch import batches
from onceflow.wire.errors import ErrorCode, error_name

FETCH_BYTES_MAX = 64 * 1024 * 1024

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class FetchRequest:
    """Partition, start offset and approximate size of a read."""

    topic: str
    partition: int
    offset: int
    max_size: int = 1024 * 1024

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class MessageSet:
    """Messages of one fetch, decoded during iteration; an incomplete last batch is left out.

    `next_offset` is the next one to read: it is also after offsets without a message, such as transaction markers.
    """

    def __init__(self, wanted: FetchRequest, fetched: Fetched) -> None:
        self.topic = wanted.topic
        self.partition = wanted.partition
        self.high_watermark = fetched.high_watermark
        self.last_stable_offset = fetched.last_stable_offset
        self.log_start_offset = fetched.log_start_offset
        self.size_bytes = len(fetched.records)
        self.next_offset = next_offset(fetched, wanted.offset)
        self._offset = wanted.offset
        self._fetched = fetched

    def __iter__(self) -> Iterator[MessageAndOffset]:
        for record in committed_records(self._fetched, self._offset, self.next_offset):
            yield MessageAndOffset(record.offset, record.key, record.value, record.timestamp_ms)


class SimpleConsumer:
    """Consumer on a connection to one broker, which must lead or follow the requested partitions (KIP-392).

        with SimpleConsumer("127.0.0.1", 9092) as consumer:
            messages = consumer.fetch(FetchRequest("clicks", 0, offset=0))

    A message larger than `max_size` is read by doubling the size up to `fetch_bytes_max`, beyond which it raises
    ResponseTooLarge. With `on_out_of_range` "fail" an offset that the log does not have raises OffsetOutOfRange;
    "earliest" and "latest" continue at the log's start or end. Records of aborted transactions are left out, those of
    open ones not yet visible. A broken connection is reopened, once per request. Committed offsets are those of the
    group's coordinator, found through the same broker. Raises BrokerUnreachable, ConnectionLost,
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
            raise ValueError(f"on_out_of_range={on_out_of_range!r} is not valid; expected fail, earliest or latest")
        self._connect = partial(Connection, host, port, timeout_ms=timeout_ms, client_id=client_id)
        self._connection = self._connect()
        self._cluster = Cluster(str(Address(host, port)), timeout_ms=timeout_ms, client_id=client_id)
        self._is_closed = False
        self._client_id = client_id
        self._wait_ms = wait_ms
        self._min_bytes = min_bytes
        self._fetch_bytes_max = fetch_bytes_max
        self._on_out_of_range = on_out_of_range

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; later requests raise ConnectionLost."""
        self._is_closed = True
        self._connection.close()
        self._cluster.close()

    def _request(self, send: Callable[[Connection], _T]) -> _T:
        """Return the response; retry once over a new connection if the old one was closed, since reads are idempotent.

        Kafka's class did the same (SimpleConsumer.sendRequest).
        """
        self._require_open()
        try:
            return send(self._connection)
        except ConnectionLost:
            self._connection = self._connect()
            return send(self._connection)

    def _require_open(self) -> None:
        if self._is_closed:
            raise ConnectionLost(f"the consumer of {self._connection.address} was closed; create a new one")

    def fetch(self, request: FetchRequest) -> MessageSet:
        """Return the messages from `request.offset`; none if the log ends there."""
        return self.multifetch([request])[0]

    def multifetch(self, requests_: Sequence[FetchRequest]) -> list[MessageSet]:
        """Send several fetches in one request; return the results in order.

        A partition that is requested repeatedly needs a further request each time, since Kafka returns it once.
        """
        results: dict[int, MessageSet] = {}
        waiting = dict(enumerate(requests_))
        while waiting:
            round_: dict[TopicPartition, int] = {}
            for number, request in waiting.items():
                round_.setdefault((request.topic, request.partition), number)
            batch = {number: waiting.pop(number) for number in round_.values()}
            for number, fetched in zip(batch, self._fetch(list(batch.values())), strict=True):
                results[number] = self._settle(batch[number], fetched)
        return [results[number] for number in range(len(requests_))]

    def get_offsets_before(self, topic: str, partition: int, time: int, max_number: int) -> list[int]:
        """Return up to `max_number` offsets to start reading at, the latest first.

        `time` LATEST: the log's end, then the starts of its segments; EARLIEST: the log's start; a timestamp in ms: the
        starts of the segments without later records. Apache Kafka 4 returns only the end and the start: raises
        UnsupportedBroker for more.
        """
        if not self._connection.serves(apis.LIST_OFFSETS, 0):
            if max_number == 1 and time in (EARLIEST, LATEST):
                return [self._offset_at(topic, partition, time)]
            raise UnsupportedBroker(
                f"{self._connection.address} does not return the starts of the segments of {topic}-{partition}, like "
                "Apache Kafka from 4.0 on; request one offset at LATEST or EARLIEST"
            )
        build = requests.offsets_before(topic, partition, time, max_number)
        response = self._request(lambda connection: connection.request_version(apis.LIST_OFFSETS, 0, build))
        entry = response.topics[0].partitions[0]
        self._check_offsets(topic, partition, entry.error_code)
        return [int(offset) for offset in entry.old_style_offsets]

    def commit_offsets(self, group_id: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit the next offset to read of each (topic, partition) for a group without members.

        One request for each topic: after an error, offsets of other partitions may be committed. Raises
        CoordinatorUnavailable, and RequestRefused, with `UNKNOWN_MEMBER_ID` while the group has members.
        """
        self._require_open()
        for topic in dict.fromkeys(topic for topic, _ in offsets):
            wanted = {partition: offset for (name, partition), offset in offsets.items() if name == topic}
            self._cluster.commit_offsets(group_id, topic, wanted)

    def fetch_offsets(self, group_id: str, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the group's committed offset of each of the partitions that has one.

        Waits for the end of an open transaction with an offset of them. Raises UnknownTopic, CoordinatorUnavailable.
        """
        self._require_open()
        wanted: dict[str, list[int]] = {}
        for topic, partition in partitions:
            wanted.setdefault(topic, []).append(partition)
        return {
            (topic, partition): offset
            for topic, numbers in wanted.items()
            for partition, offset in self._cluster.committed_offsets(group_id, topic, numbers).items()
        }

    def _check_offsets(self, topic: str, partition: int, code: ErrorCode) -> None:
        if code == ErrorCode.unknown_topic_or_partition:
            raise self._unknown(topic, partition)
        if code != ErrorCode.none:
            raise RequestRefused(f"{topic}-{partition}: its offsets are not available: {error_name(code)}", code)

    def _unknown(self, topic: str, partition: int) -> UnknownTopic:
        return UnknownTopic(
            f"there is no partition {partition} of a topic '{topic}' at {self._connection.address}; 'onceflow topic "
            "list' shows all topics with their number of partitions, counted from 0"
        )

    def _fetch(self, wanted: Sequence[FetchRequest]) -> list[wire_fetch.FetchedPartition]:
        topics: dict[str, list[wire_fetch.FetchPartition]] = {}
        for part in wanted:
            partition = wire_fetch.FetchPartition(part.partition, -1, part.offset, -1, part.max_size)
            topics.setdefault(part.topic, []).append(partition)
        request = wire_fetch.FetchRequest(
            replica_id=-1,
            max_wait_ms=self._wait_ms,
            min_bytes=self._min_bytes,
            max_bytes=sum(part.max_size for part in wanted),
            isolation_level=wire_fetch.READ_COMMITTED,
            session_id=0,
            session_epoch=-1,
            topics=list(topics.items()),
        )
        response = self._request(partial(self._fetch_over, request))
        fetched = {(partition.topic, partition.partition): partition for partition in response.partitions}
        return [fetched[(part.topic, part.partition)] for part in wanted]

    def _fetch_over(self, request: wire_fetch.FetchRequest, connection: Connection) -> wire_fetch.FetchResponse:
        version = connection.version_of(apis.FETCH)
        return connection.exchange(
            lambda correlation_id: wire_fetch.encode_request(version, correlation_id, self._client_id, request),
            partial(wire_fetch.parse_response, version),
            extra_wait_ms=self._wait_ms,
        )

    def _settle(self, wanted: FetchRequest, result: wire_fetch.FetchedPartition) -> MessageSet:
        """Return the messages of one result; fetch again from another offset or with more bytes if necessary."""
        code = ErrorCode(result.error_code)
        if code == ErrorCode.offset_out_of_range:
            return self.fetch(FetchRequest(wanted.topic, wanted.partition, self._reset(wanted), wanted.max_size))
        if code == ErrorCode.unknown_topic_or_partition:
            raise self._unknown(wanted.topic, wanted.partition)
        if code != ErrorCode.none:
            raise RequestRefused(f"{wanted} cannot be read at {self._connection.address}: {error_name(code)}", code)
        if result.records and not any(True for _ in batches(result.records)):
            return self.fetch(self._doubled(wanted))
        fetched = Fetched(
            result.records,
            result.high_watermark,
            result.last_stable_offset,
            result.log_start_offset,
            tuple(result.aborted),
        )
        return MessageSet(wanted, fetched)

    def _doubled(self, wanted: FetchRequest) -> FetchRequest:
        if wanted.max_size >= self._fetch_bytes_max:
            raise ResponseTooLarge(
                f"the message at offset {wanted.offset} of {wanted} is larger than {self._fetch_bytes_max} bytes;"
                f" {Remedy.LARGER_FETCHES}"
            )
        size = min(2 * max(wanted.max_size, 1), self._fetch_bytes_max)
        return FetchRequest(wanted.topic, wanted.partition, wanted.offset, size)

    def _reset(self, wanted: FetchRequest) -> int:
        start, end = (self._offset_at(wanted.topic, wanted.partition, time) for time in (EARLIEST, LATEST))
        if self._on_out_of_range == "fail":
            raise OffsetOutOfRange(wanted.topic, wanted.partition, wanted.offset, start, end)
        return start if self._on_out_of_range == "earliest" else end

    def _offset_at(self, topic: str, partition: int, time: int) -> int:
        build = requests.list_offsets(topic, {partition: time}, wire_fetch.READ_COMMITTED)
        response = self._request(
            lambda connection: connection.request(
                apis.LIST_OFFSETS, build, version_min=requests.LIST_OFFSETS_VERSION_MIN
            )
        )
        entry = response.topics[0].partitions[0]
        self._check_offsets(topic, partition, entry.error_code)
        return int(entry.offset)
