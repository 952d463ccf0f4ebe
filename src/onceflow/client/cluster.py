"""A Kafka cluster for readers and administrators: topics, offsets, fetches, group offsets."""

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Self, TypeVar

from onceflow.client import requests
from onceflow.client.connection import Connection
from onceflow.client.errors import (
    BrokerUnreachable,
    ClientError,
    ConnectionLost,
    CoordinatorUnavailable,
    LeaderUnavailable,
    OffsetOutOfRange,
    RequestTimedOut,
    ResponseTooLarge,
    TopicExists,
)
from onceflow.client.metadata import NO_LEADER, TopicMetadata
from onceflow.client.routing import PAUSE_MS_MAX, Router, check_group, refused
from onceflow.client.security import PLAINTEXT, Security
from onceflow.remedies import Remedy
from onceflow.wire import TopicPartition, apis
from onceflow.wire import fetch as wire_fetch
from onceflow.wire.errors import ErrorCode, error_name

EARLIEST = -2
LATEST = -1
MAX_TIMESTAMP = -3
"""`list_offsets` accepts these instead of a timestamp: the log's start, its end, the record with the latest one."""

FETCH_BYTES = 8 * 1024 * 1024
BATCH_BYTES_MAX = 64 * 1024 * 1024

UNAVAILABLE = (BrokerUnreachable, ConnectionLost, CoordinatorUnavailable, LeaderUnavailable, RequestTimedOut)
"""Errors while brokers restart or leaders change."""

_T = TypeVar("_T")
_Wanted = list[tuple[str, list[wire_fetch.FetchPartition]]]


@dataclass(frozen=True, slots=True)
class OffsetAt:
    """An offset and its record's timestamp; both -1 if no record is that late, timestamp -1 for EARLIEST and LATEST."""

    offset: int
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class Fetched:
    """Result of a fetch from one partition.

    `records` holds complete record batches, perhaps followed by a cut one. The first one contains the requested
    offset, so records before it may be included; it is empty if nothing arrived in time. `aborted` has the
    (producer id, first offset) of each aborted transaction in it.
    """

    records: memoryview
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: tuple[tuple[int, int], ...]


class Cluster:
    """Client of one Kafka cluster; `router` sends its requests to the right broker.

    Reads are retried for up to `timeout_ms` when a leader moved, a connection broke or a coordinator loads, with
    pauses from 50 ms doubling to 1 s; then the last error is raised. Until a first broker was reached nothing is
    retried beyond `first_contact_ms`, so that a wrong address is reported at once. Creating and deleting topics is
    not retried after a lost connection, since the first attempt may have succeeded.

    `batch_bytes_max` bounds the memory for the records of one response.

    Creating a `Cluster` opens no connection; it raises InvalidAddress. Every request may raise a ClientError:
    BrokerUnreachable, ConnectionLost, RequestTimedOut, NotKafka, UnsupportedBroker, and those of its own docstring.

    Belongs to one thread and does not survive a fork.
    """

    def __init__(
        self,
        bootstrap: str,
        *,
        timeout_ms: int = 30_000,
        client_id: str = "onceflow",
        first_contact_ms: int = 0,
        batch_bytes_max: int = BATCH_BYTES_MAX,
        security: Security = PLAINTEXT,
    ) -> None:
        self.bootstrap = bootstrap
        self.security = security
        self.client_id = client_id
        self.batch_bytes_max = batch_bytes_max
        self.router = Router(
            bootstrap,
            timeout_ms=timeout_ms,
            client_id=client_id,
            first_contact_ms=first_contact_ms,
            batch_bytes_max=batch_bytes_max,
            security=security,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close every connection. A later call opens new ones."""
        self.router.close()

    @property
    def timeout_ms(self) -> int:
        """Maximum time of a request and of its retries."""
        return self.router.timeout_ms

    # Topics

    def topics(self, *names: str) -> dict[str, TopicMetadata]:
        """Return the current metadata of these topics, of all without names; unknown topics are left out."""
        return dict(self.router.metadata(names or None).topics)

    def require_topic(self, name: str) -> TopicMetadata:
        """Return the topic's current metadata. Raises UnknownTopic."""
        topic = self.topics(name).get(name)
        if topic is None:
            raise self.router.unknown_topic(name)
        return topic

    def create_topic(
        self,
        name: str,
        partitions: int,
        *,
        replication_factor: int = -1,
        configs: Mapping[str, str] | None = None,
    ) -> TopicMetadata:
        """Create a topic and wait until every partition has a leader; -1 uses the broker's default.

        Raises TopicExists, RequestRefused (name, counts or a config that the broker does not accept).
        """
        build = requests.create_topic(name, partitions, replication_factor, configs or {}, self.timeout_ms)
        response = self.router.ask_controller(apis.CREATE_TOPICS, build, requests.CREATE_TOPICS_VERSION_MIN)
        code, message = response.topics[0].error_code, response.topics[0].error_message
        if code == ErrorCode.topic_already_exists:
            raise TopicExists(
                f"topic {name} already exists at {self.bootstrap}; {Remedy.DELETE_TOPIC}, or {Remedy.OTHER_TOPIC_NAME}"
            )
        if code != ErrorCode.none:
            raise refused(f"topic '{name}' was not created", code, message)
        return self._wait_for(f"topic {name} to have its leaders", lambda: self._with_leaders(name))

    def delete_topic(self, name: str) -> None:
        """Delete a topic and wait until the cluster no longer lists it. Raises UnknownTopic, RequestRefused."""
        response = self.router.ask_controller(apis.DELETE_TOPICS, requests.delete_topic(name, self.timeout_ms), 0)
        self.router.forget_topic(name)
        code = response.responses[0].error_code
        if code == ErrorCode.unknown_topic_or_partition:
            raise self.router.unknown_topic(name)
        if code != ErrorCode.none:
            message = getattr(response.responses[0], "error_message", None)
            raise refused(f"topic '{name}' was not deleted", code, message)
        self._wait_for(f"the deletion of topic {name}", lambda: name not in self.topics(name) or None)

    def _wait_for(self, condition: str, probe: Callable[[], _T | None]) -> _T:
        deadline = time.monotonic() + self.timeout_ms / 1000
        pause_ms = 5
        while (result := probe()) is None:
            if time.monotonic() > deadline:
                raise RequestTimedOut(
                    f"{self.bootstrap}: waited {self.timeout_ms} ms for {condition}; {Remedy.LOOK_AT_BROKER_LOG}"
                )
            time.sleep(pause_ms / 1000)
            pause_ms = min(2 * pause_ms, PAUSE_MS_MAX)
        return result

    def _with_leaders(self, name: str) -> TopicMetadata | None:
        topic = self.topics(name).get(name)
        return topic if topic and NO_LEADER not in topic.partitions.values() else None

    # Offsets

    def list_offsets(
        self, topic: str, timestamp_by_partition: Mapping[int, int], *, read_committed: bool = True
    ) -> dict[int, OffsetAt]:
        """Return each partition's first record at or after a timestamp in ms, or EARLIEST, LATEST, MAX_TIMESTAMP.

        With `read_committed` LATEST is the last stable offset. Raises UnknownTopic, LeaderUnavailable.
        """

        def attempt() -> dict[int, OffsetAt]:
            offsets: dict[int, OffsetAt] = {}
            for leader, timestamps in self.router.by_leader(topic, timestamp_by_partition).items():
                offsets.update(self._list_offsets_at(leader, topic, timestamps, read_committed))
            return {partition: offsets[partition] for partition in timestamp_by_partition}

        return self.router.retry(attempt)

    def _list_offsets_at(
        self, leader: int, topic: str, timestamps: Mapping[int, int], read_committed: bool
    ) -> dict[int, OffsetAt]:
        has_max = MAX_TIMESTAMP in timestamps.values()
        response = self.router.broker_connection(leader).request(
            apis.LIST_OFFSETS,
            requests.list_offsets(topic, timestamps, int(read_committed)),
            version_min=requests.MAX_TIMESTAMP_VERSION_MIN if has_max else requests.LIST_OFFSETS_VERSION_MIN,
        )
        offsets: dict[int, OffsetAt] = {}
        for entry in response.topics[0].partitions:
            _check_partition(topic, entry.partition_index, entry.error_code)
            offsets[entry.partition_index] = OffsetAt(entry.offset, entry.timestamp)
        return offsets

    def committed_offsets(self, group: str, topic: str, partitions: Iterable[int] | None = None) -> dict[int, int]:
        """Return the group's committed offset of each partition that has one: that of the next record to read.

        Waits for the end of an open transaction with an offset of these partitions; None: of all. Raises UnknownTopic,
        CoordinatorUnavailable, RequestRefused.
        """
        every = self.require_topic(topic).partitions
        wanted = list(every if partitions is None else partitions)

        def attempt() -> dict[int, int]:
            build = requests.offset_fetch(group, topic, wanted)
            response = self.router.ask_coordinator(group, apis.OFFSET_FETCH, build, requests.OFFSET_FETCH_VERSION_MIN)
            result = requests.fetched_group(response)
            check_group(group, result.error_code)
            committed: dict[int, int] = {}
            for entry in (partition for topic in result.topics for partition in topic.partitions):
                check_group(group, entry.error_code)
                if entry.committed_offset >= 0:
                    committed[entry.partition_index] = entry.committed_offset
            return committed

        return self.router.retry(attempt)

    def commit_offsets(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """Commit the next offset to read of each partition, without being a member of the group.

        Raises RequestRefused with `UNKNOWN_MEMBER_ID` while the group has members.
        """

        def attempt() -> None:
            build = requests.offset_commit(group, topic, offsets)
            response = self.router.ask_coordinator(group, apis.OFFSET_COMMIT, build, 0)
            for code in requests.offset_codes(response):
                check_group(group, code)

        self.router.retry(attempt)

    # Records

    def fetch(
        self,
        topic: str,
        partition: int,
        offset: int,
        *,
        size_bytes_max: int = FETCH_BYTES,
        wait_ms: int = 500,
        read_committed: bool = True,
    ) -> Fetched:
        """Return record batches from the one that contains `offset`, not copied; waits up to `wait_ms` for the first.

        If a broker cuts the first batch at `size_bytes_max`, the size is doubled until the batch fits or the cluster's
        `batch_bytes_max` is reached. Raises OffsetOutOfRange, ResponseTooLarge, UnknownTopic, LeaderUnavailable.
        """
        while True:
            wanted = wire_fetch.FetchPartition(partition, -1, offset, -1, size_bytes_max)
            attempt = partial(self._fetch_once, topic, [wanted], wait_ms, read_committed)
            fetched = self.router.retry(attempt)[partition]
            if not fetched.records or _has_whole_batch(fetched.records):
                return fetched
            if size_bytes_max >= self.batch_bytes_max:
                raise ResponseTooLarge(
                    f"the record batch at offset {offset} of {topic}-{partition} is larger than "
                    f"{self.batch_bytes_max} bytes; {Remedy.LARGER_BATCHES}"
                )
            size_bytes_max = min(2 * size_bytes_max, self.batch_bytes_max)

    def fetch_partitions(
        self,
        topic: str,
        offsets: Mapping[int, int],
        *,
        size_bytes_max: int = FETCH_BYTES,
        wait_ms: int = 500,
        read_committed: bool = True,
    ) -> dict[int, Fetched]:
        """Return what `fetch` does for several partitions with the same leader, from one request.

        It waits up to `wait_ms` until one of them has records. `size_bytes_max` is for all of them, and the first ones
        get it first. Raises the same errors as `fetch`.
        """
        wanted = [
            wire_fetch.FetchPartition(partition, -1, offset, -1, size_bytes_max)
            for partition, offset in offsets.items()
        ]
        fetched = self.router.retry(partial(self._fetch_once, topic, wanted, wait_ms, read_committed))
        for partition, part in fetched.items():
            if part.records and not _has_whole_batch(part.records):
                fetched[partition] = self.fetch(topic, partition, offsets[partition], read_committed=read_committed)
        return fetched

    def fetch_topics(
        self,
        offsets: Mapping[TopicPartition, int],
        *,
        size_bytes_max: int = FETCH_BYTES,
        wait_ms: int = 500,
        read_committed: bool = True,
    ) -> dict[TopicPartition, Fetched]:
        """Return what `fetch` does for partitions of any topics and leaders, from one request to each leader at once.

        `size_bytes_max` is for each leader, and the first partitions get it first. Partitions that cannot be read now
        are left out; if that is all of them, it is retried. Raises OffsetOutOfRange, UnknownTopic, LeaderUnavailable.
        """
        return self.router.retry(partial(self._fetch_topics, offsets, size_bytes_max, wait_ms, read_committed))

    def _fetch_topics(
        self, offsets: Mapping[TopicPartition, int], size_bytes_max: int, wait_ms: int, read_committed: bool
    ) -> dict[TopicPartition, Fetched]:
        flights = []
        fetched: dict[TopicPartition, Fetched] = {}
        unavailable = _Unavailable(self.router)
        try:
            for leader, topics in self._by_leader(offsets, size_bytes_max, unavailable).items():
                with unavailable.collecting(topics):
                    connection = self.router.broker_connection(leader)
                    request = _fetch_request(topics, size_bytes_max, wait_ms, read_committed)
                    flights.append((connection, topics, connection.send(self._fetch_encoder(connection, request))))
            while flights:
                connection, topics, correlation_id = flights.pop(0)
                with unavailable.collecting(topics):
                    parse = partial(wire_fetch.parse_response, connection.version_of(apis.FETCH))
                    response = connection.receive(correlation_id, parse)
                    _check_partition(topics[0][0], topics[0][1][0].partition, response.error_code)
                    for result in response.partitions:
                        with unavailable.collecting([(result.topic, [])]):
                            part = (result.topic, result.partition)
                            fetched[part] = self._fetched(result, offsets[part], read_committed)
        finally:
            # A response that is no longer awaited would be taken for that of the next request.
            for connection, _, _ in flights:
                connection.close()
        if unavailable.errors and not fetched:
            raise unavailable.errors[0]
        return fetched

    def _by_leader(
        self, offsets: Mapping[TopicPartition, int], size_bytes_max: int, unavailable: "_Unavailable"
    ) -> dict[int, _Wanted]:
        topics: dict[int, dict[str, list[wire_fetch.FetchPartition]]] = {}
        for (topic, partition), offset in offsets.items():
            with unavailable.collecting([(topic, [])]):
                of_leader = topics.setdefault(self.router.leader(topic, partition), {})
                wanted = wire_fetch.FetchPartition(partition, -1, offset, -1, size_bytes_max)
                of_leader.setdefault(topic, []).append(wanted)
        return {leader: list(wanted.items()) for leader, wanted in topics.items()}

    def _fetch_once(
        self, topic: str, wanted: Sequence[wire_fetch.FetchPartition], wait_ms: int, read_committed: bool
    ) -> dict[int, Fetched]:
        connection = self.router.leader_connection(topic, wanted[0].partition)
        request = _fetch_request([(topic, list(wanted))], wanted[0].max_bytes, wait_ms, read_committed)
        response = connection.exchange(
            self._fetch_encoder(connection, request),
            partial(wire_fetch.parse_response, connection.version_of(apis.FETCH)),
            extra_wait_ms=wait_ms,
        )
        _check_partition(topic, wanted[0].partition, response.error_code)
        offsets = {part.partition: part.fetch_offset for part in wanted}
        return {
            result.partition: self._fetched(result, offsets[result.partition], read_committed)
            for result in response.partitions
        }

    def _fetch_encoder(self, connection: Connection, request: wire_fetch.FetchRequest) -> Callable[[int], bytes]:
        version = connection.version_of(apis.FETCH)
        return lambda correlation_id: wire_fetch.encode_request(version, correlation_id, self.client_id, request)

    def _fetched(self, result: wire_fetch.FetchedPartition, offset: int, read_committed: bool) -> Fetched:
        if result.error_code == ErrorCode.offset_out_of_range:
            raise self._out_of_range(result.topic, result.partition, offset, read_committed)
        _check_partition(result.topic, result.partition, result.error_code)
        return Fetched(
            records=result.records,
            high_watermark=result.high_watermark,
            last_stable_offset=result.last_stable_offset,
            log_start_offset=result.log_start_offset,
            aborted=tuple(result.aborted),
        )

    def _out_of_range(self, topic: str, partition: int, offset: int, read_committed: bool) -> OffsetOutOfRange:
        leader = self.router.leader(topic, partition)
        (start,) = self._list_offsets_at(leader, topic, {partition: EARLIEST}, read_committed).values()
        (end,) = self._list_offsets_at(leader, topic, {partition: LATEST}, read_committed).values()
        return OffsetOutOfRange(topic, partition, offset, start.offset, end.offset)


class _Unavailable:
    """Errors of the topics that cannot be read now, whose leaders are looked up again."""

    def __init__(self, router: Router) -> None:
        self.errors: list[ClientError] = []
        self._router = router

    @contextlib.contextmanager
    def collecting(self, topics: _Wanted) -> Iterator[None]:
        try:
            yield
        except UNAVAILABLE as error:
            self.errors.append(error)
            for topic, _ in topics:
                self._router.forget_topic(topic)


def _fetch_request(topics: _Wanted, size_bytes_max: int, wait_ms: int, read_committed: bool) -> wire_fetch.FetchRequest:
    return wire_fetch.FetchRequest(
        replica_id=-1,
        max_wait_ms=wait_ms,
        min_bytes=1,
        max_bytes=size_bytes_max,
        isolation_level=wire_fetch.READ_COMMITTED if read_committed else wire_fetch.READ_UNCOMMITTED,
        session_id=0,
        session_epoch=-1,
        topics=topics,
    )


def _has_whole_batch(records: memoryview) -> bool:
    """Return whether the first batch is complete; its length is at byte 8 and counts from byte 12."""
    return len(records) >= 12 and len(records) >= 12 + int.from_bytes(records[8:12], "big")


def _check_partition(topic: str, partition: int, number: int) -> None:
    if number == ErrorCode.none:
        return
    code = ErrorCode(number)
    if code.retriable:
        raise LeaderUnavailable(f"{topic}-{partition} cannot be read now: {error_name(code)}; {Remedy.TRY_AGAIN}")
    raise refused(f"{topic}-{partition} cannot be read", code)
