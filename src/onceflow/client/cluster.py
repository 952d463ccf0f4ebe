"""A Kafka cluster as its readers and administrators see it: topics, offsets, fetches, group offsets."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

from onceflow.client import requests
from onceflow.client.addresses import Address, parse_bootstrap
from onceflow.client.connection import Connection
from onceflow.client.errors import (
    BrokerUnreachable,
    ConnectionLost,
    CoordinatorUnavailable,
    LeaderUnavailable,
    OffsetOutOfRange,
    RequestRefused,
    RequestTimedOut,
    ResponseTooLarge,
    TopicExists,
    UnknownTopic,
)
from onceflow.client.metadata import NO_LEADER, ClusterMetadata, TopicMetadata, read_metadata
from onceflow.client.security import PLAINTEXT, Security
from onceflow.remedies import Remedy
from onceflow.wire import apis
from onceflow.wire import fetch as wire_fetch
from onceflow.wire.errors import ErrorCode

EARLIEST = -2
LATEST = -1
MAX_TIMESTAMP = -3
"""`list_offsets` takes these in place of a timestamp: the log's start, its end, the record with the highest one."""

FETCH_BYTES = 8 * 1024 * 1024
BATCH_BYTES_MAX = 64 * 1024 * 1024
RESPONSE_HEADROOM_BYTES = 1024 * 1024
"""What an answer may hold beside the records of a fetch."""
PAUSE_MS_MIN = 50
PAUSE_MS_MAX = 1_000

_RETRIABLE = (BrokerUnreachable, ConnectionLost, LeaderUnavailable, CoordinatorUnavailable)
_COORDINATOR_CODES = frozenset(
    {
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.coordinator_not_available,
        ErrorCode.not_coordinator,
        ErrorCode.unstable_offset_commit,
    }
)
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class OffsetAt:
    """An offset and the timestamp of the record there; both -1 where no record is that late, timestamp -1 for
    EARLIEST and LATEST."""

    offset: int
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class Fetched:
    """One partition's answer to a fetch.

    `records` holds whole and perhaps one cut record batch, the first one containing the offset asked for (so
    records before it may come too); it is empty where nothing arrived in time. `aborted` has the
    (producer id, first offset) of each aborted transaction in it.
    """

    records: memoryview
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: tuple[tuple[int, int], ...]


class Cluster:
    """A connection to each broker that is needed, and metadata kept until a broker contradicts it.

    What only reads is tried again for up to `timeout_ms` when a leader moved, a connection broke or a coordinator
    loads, with pauses from 50 ms doubling to 1 s; then the last error is raised. Until a first broker was reached
    nothing is tried again beyond `first_contact_ms`, so that a wrong address is told at once. Creating and
    deleting topics is not repeated after a lost connection, since the first try may have worked.

    `batch_bytes_max` bounds the memory for one answer's records.

    Making one connects to nobody; it raises InvalidAddress. Every method that asks raises a ClientError:
    BrokerUnreachable, ConnectionLost, RequestTimedOut, NotKafka, UnsupportedBroker, and what its own docstring names.

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
        self.timeout_ms = timeout_ms
        self.client_id = client_id
        self.batch_bytes_max = batch_bytes_max
        self._first_contact_ms = first_contact_ms
        self._bootstrap_addresses = parse_bootstrap(bootstrap)
        self._connections: dict[Address, Connection] = {}
        self._reached: set[Address] = set()
        self._brokers: Mapping[int, Address] = {}
        self._controller_id = -1
        self._topics: dict[str, TopicMetadata] = {}
        self._coordinators: dict[tuple[int, str], Address] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close every connection. A later call opens new ones."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    # Topics

    def topics(self, *names: str) -> dict[str, TopicMetadata]:
        """These topics as they are now, all where none is named; an unknown one is not in the answer."""
        return dict(self.retried(lambda: self._load_metadata(names or None)).topics)

    def require_topic(self, name: str) -> TopicMetadata:
        """The topic as it is now; raises UnknownTopic."""
        found = self.topics(name).get(name)
        if found is None:
            raise self._unknown_topic(name)
        return found

    def create_topic(
        self,
        name: str,
        partitions: int,
        *,
        replication_factor: int = -1,
        configs: Mapping[str, str] | None = None,
    ) -> TopicMetadata:
        """Create a topic and wait until every partition has a leader; -1 asks for the broker's own default.

        Raises TopicExists, RequestRefused (name, counts or a config that the broker does not take).
        """
        build = requests.create_topic(name, partitions, replication_factor, configs or {}, self.timeout_ms)
        answer = self.ask_controller(apis.CREATE_TOPICS, build, requests.CREATE_TOPICS_VERSION_MIN)
        code, message = answer.topics[0].error_code, answer.topics[0].error_message
        if code == ErrorCode.topic_already_exists:
            raise TopicExists(
                f"topic {name} exists already at {self.bootstrap}: {Remedy.DELETE_TOPIC}, or {Remedy.OTHER_TOPIC_NAME}"
            )
        if code != ErrorCode.none:
            raise _refused(f"topic '{name}' was not created", code, message)
        return self._wait_for(f"topic {name} to have its leaders", lambda: self._with_leaders(name))

    def delete_topic(self, name: str) -> None:
        """Delete a topic and wait until the cluster no longer shows it; raises UnknownTopic, RequestRefused."""
        answer = self.ask_controller(apis.DELETE_TOPICS, requests.delete_topic(name, self.timeout_ms), 0)
        self._topics.pop(name, None)
        code = answer.responses[0].error_code
        if code == ErrorCode.unknown_topic_or_partition:
            raise self._unknown_topic(name)
        if code != ErrorCode.none:
            message = getattr(answer.responses[0], "error_message", None)
            raise _refused(f"topic '{name}' was not deleted", code, message)
        self._wait_for(f"topic {name} to be gone", lambda: name not in self.topics(name) or None)

    # Offsets

    def list_offsets(
        self, topic: str, timestamp_by_partition: Mapping[int, int], *, read_committed: bool = True
    ) -> dict[int, OffsetAt]:
        """For each partition the first record at or after a timestamp in ms, or EARLIEST, LATEST, MAX_TIMESTAMP.

        With `read_committed` LATEST is the last stable offset. Raises UnknownTopic, LeaderUnavailable.
        """

        def attempt() -> dict[int, OffsetAt]:
            found: dict[int, OffsetAt] = {}
            for leader, asked in self.by_leader(topic, timestamp_by_partition).items():
                found.update(self._list_offsets_at(leader, topic, asked, read_committed))
            return {partition: found[partition] for partition in timestamp_by_partition}

        return self.retried(attempt)

    def committed_offsets(self, group: str, topic: str) -> dict[int, int]:
        """The group's committed offset of each partition that has one: that of the next record to read.

        Offsets of an open transaction are waited for. Raises UnknownTopic, CoordinatorUnavailable, RequestRefused.
        """
        partitions = list(self.require_topic(topic).partitions)

        def attempt() -> dict[int, int]:
            build = requests.offset_fetch(group, topic, partitions)
            answer = self.ask_coordinator(group, apis.OFFSET_FETCH, build, requests.OFFSET_FETCH_VERSION_MIN)
            reply = requests.fetched_group(answer)
            _check_group(group, reply.error_code)
            committed: dict[int, int] = {}
            for entry in (each for found in reply.topics for each in found.partitions):
                _check_group(group, entry.error_code)
                if entry.committed_offset >= 0:
                    committed[entry.partition_index] = entry.committed_offset
            return committed

        return self.retried(attempt)

    def commit_offsets(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """Commit the next offset to read of each partition, from outside the group's membership.

        Raises RequestRefused with `unknown_member_id` while the group has members of its own.
        """

        def attempt() -> None:
            build = requests.offset_commit(group, topic, offsets)
            answer = self.ask_coordinator(group, apis.OFFSET_COMMIT, build, 0)
            for entry in (each for found in answer.topics for each in found.partitions):
                _check_group(group, entry.error_code)

        self.retried(attempt)

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
        """Record batches from the one that contains `offset` on, not copied; waits up to `wait_ms` for the first.

        Where a broker cuts the first batch at `size_bytes_max`, the size is doubled until it fits or the cluster's
        `batch_bytes_max` is reached. Raises OffsetOutOfRange, ResponseTooLarge, UnknownTopic, LeaderUnavailable.
        """
        while True:
            asked = wire_fetch.FetchPartition(partition, -1, offset, -1, size_bytes_max)
            fetched = self.retried(partial(self._fetch_once, topic, asked, wait_ms, read_committed))
            if not fetched.records or _holds_whole_batch(fetched.records):
                return fetched
            if size_bytes_max >= self.batch_bytes_max:
                raise ResponseTooLarge(
                    f"the record batch at offset {offset} of {topic}-{partition} is larger than "
                    f"{self.batch_bytes_max} bytes: {Remedy.LARGER_BATCHES}"
                )
            size_bytes_max = min(2 * size_bytes_max, self.batch_bytes_max)

    # Who answers, and what an error code means

    def _fetch_once(self, topic: str, asked: wire_fetch.FetchPartition, wait_ms: int, read_committed: bool) -> Fetched:
        connection = self._broker(self._leader(topic, asked.partition))
        version = connection.version_of(apis.FETCH)

        request = wire_fetch.FetchRequest(
            replica_id=-1,
            max_wait_ms=wait_ms,
            min_bytes=1,
            max_bytes=asked.max_bytes,
            isolation_level=wire_fetch.READ_COMMITTED if read_committed else wire_fetch.READ_UNCOMMITTED,
            session_id=0,
            session_epoch=-1,
            topics=[(topic, [asked])],
        )
        response = connection.exchange(
            lambda correlation_id: wire_fetch.encode_request(version, correlation_id, self.client_id, request),
            partial(wire_fetch.parse_response, version),
            extra_wait_ms=wait_ms,
        )
        _check_partition(topic, asked.partition, response.error_code)
        answer = response.partitions[0]
        if answer.error_code == ErrorCode.offset_out_of_range:
            raise self._out_of_range(topic, asked, read_committed)
        _check_partition(topic, asked.partition, answer.error_code)
        return Fetched(
            records=answer.records,
            high_watermark=answer.high_watermark,
            last_stable_offset=answer.last_stable_offset,
            log_start_offset=answer.log_start_offset,
            aborted=tuple(answer.aborted),
        )

    def _out_of_range(self, topic: str, asked: wire_fetch.FetchPartition, read_committed: bool) -> OffsetOutOfRange:
        leader, partition = self._leader(topic, asked.partition), asked.partition
        (start,) = self._list_offsets_at(leader, topic, {partition: EARLIEST}, read_committed).values()
        (end,) = self._list_offsets_at(leader, topic, {partition: LATEST}, read_committed).values()
        return OffsetOutOfRange(topic, partition, asked.fetch_offset, start.offset, end.offset)

    def _list_offsets_at(
        self, leader: int, topic: str, asked: Mapping[int, int], read_committed: bool
    ) -> dict[int, OffsetAt]:
        newest = MAX_TIMESTAMP in asked.values()
        answer = self._broker(leader).request(
            apis.LIST_OFFSETS,
            requests.list_offsets(topic, asked, int(read_committed)),
            version_min=requests.MAX_TIMESTAMP_VERSION_MIN if newest else requests.LIST_OFFSETS_VERSION_MIN,
        )
        found: dict[int, OffsetAt] = {}
        for entry in answer.topics[0].partitions:
            _check_partition(topic, entry.partition_index, entry.error_code)
            found[entry.partition_index] = OffsetAt(entry.offset, entry.timestamp)
        return found

    def retried(self, attempt: Callable[[], _T]) -> _T:
        """What `attempt` returns, tried again while a leader or coordinator moves, as the class says."""
        begun = time.monotonic()
        pause_ms = PAUSE_MS_MIN
        while True:
            try:
                return attempt()
            except _RETRIABLE as error:
                self._topics.clear()
                self._coordinators.clear()
                new = isinstance(error, BrokerUnreachable) and not self._reached
                allowed_ms = self._first_contact_ms if new else self.timeout_ms
                if (time.monotonic() - begun) * 1000 + pause_ms > allowed_ms:
                    raise
            time.sleep(pause_ms / 1000)
            pause_ms = min(2 * pause_ms, PAUSE_MS_MAX)

    def _wait_for(self, what: str, probe: Callable[[], _T | None]) -> _T:
        deadline = time.monotonic() + self.timeout_ms / 1000
        pause_ms = 5
        while (found := probe()) is None:
            if time.monotonic() > deadline:
                raise RequestTimedOut(
                    f"{self.bootstrap}: waited {self.timeout_ms} ms for {what}: {Remedy.LOOK_AT_BROKER_LOG}"
                )
            time.sleep(pause_ms / 1000)
            pause_ms = min(2 * pause_ms, PAUSE_MS_MAX)
        return found

    def _with_leaders(self, name: str) -> TopicMetadata | None:
        topic = self.topics(name).get(name)
        return topic if topic and NO_LEADER not in topic.partitions.values() else None

    def _load_metadata(self, names: Sequence[str] | None) -> ClusterMetadata:
        answer = self._any_connection().request(
            apis.METADATA, requests.metadata(names), version_min=requests.METADATA_VERSION_MIN
        )
        loaded = read_metadata(answer)
        self._brokers = loaded.brokers
        self._controller_id = loaded.controller_id
        for name in names or ():
            self._topics.pop(name, None)
        self._topics.update(loaded.topics)
        return loaded

    def _topic(self, name: str) -> TopicMetadata:
        if name not in self._topics:
            self._load_metadata([name])
        if name not in self._topics:
            raise self._unknown_topic(name)
        return self._topics[name]

    def _leader(self, topic: str, partition: int) -> int:
        partitions = self._topic(topic).partitions
        if partition not in partitions:
            raise UnknownTopic(
                f"topic {topic} at {self.bootstrap} has no partition {partition}: it has {len(partitions)}, "
                "counted from 0"
            )
        if partitions[partition] == NO_LEADER:
            raise LeaderUnavailable(f"{topic}-{partition} at {self.bootstrap} has no leader: are all brokers up?")
        return partitions[partition]

    def by_leader(self, topic: str, asked: Mapping[int, int]) -> dict[int, dict[int, int]]:
        """`asked`, a number for each partition, by the broker that leads the partition."""
        grouped: dict[int, dict[int, int]] = {}
        for partition, timestamp in asked.items():
            grouped.setdefault(self._leader(topic, partition), {})[partition] = timestamp
        return grouped

    def _broker(self, broker_id: int) -> Connection:
        address = self._brokers.get(broker_id)
        if address is None:
            raise LeaderUnavailable(f"broker {broker_id}, named as a leader by {self.bootstrap}, is not in the cluster")
        return self._connection(address)

    def _connection(self, address: Address) -> Connection:
        connection = self._connections.get(address)
        if connection is not None and connection.is_open():
            return connection
        if connection is not None:
            connection.close()
            del self._connections[address]
        connection = Connection(
            *address,
            client_id=self.client_id,
            timeout_ms=self.timeout_ms,
            response_bytes_max=self.batch_bytes_max + RESPONSE_HEADROOM_BYTES,
            security=self.security,
        )
        self._connections[address] = connection
        self._reached.add(address)
        return connection

    def _any_connection(self) -> Connection:
        # Those in use first; a dict keeps the order and drops what is named twice.
        candidates = dict.fromkeys([*self._connections, *self._brokers.values(), *self._bootstrap_addresses])
        failures: list[BrokerUnreachable] = []
        for address in candidates:
            try:
                return self._connection(address)
            except BrokerUnreachable as error:
                failures.append(error)
        # A broker that was there before is worth waiting for, so its error decides about trying again.
        raise next((error for error in failures if error.address in self._reached), failures[-1])

    def ask_controller(self, api_key: int, build: requests.Build, version_min: int = 0) -> Any:
        """One request to the controller, sent once."""

        def find() -> Connection:
            self._load_metadata([])
            address = self._brokers.get(self._controller_id)
            return self._any_connection() if address is None else self._connection(address)

        return self.retried(find).request(api_key, build, version_min=version_min)

    def ask_coordinator(
        self, key: str, api_key: int, build: requests.Build, version_min: int = 0, *, key_type: int = requests.GROUP
    ) -> Any:
        """One request to the broker that coordinates a group or a transactional id, sent once."""
        address = self.coordinator_address(key, key_type)
        return self._connection(address).request(api_key, build, version_min=version_min)

    def coordinator_address(self, key: str, key_type: int = requests.GROUP) -> Address:
        """Where the coordinator of a group or a transactional id listens. Raises CoordinatorUnavailable."""
        if (key_type, key) not in self._coordinators:
            answer = self._any_connection().request(
                apis.FIND_COORDINATOR,
                requests.find_coordinator(key, key_type),
                version_min=requests.FIND_COORDINATOR_VERSION_MIN,
            )
            found = requests.coordinator(answer)
            _check_group(key, found.error_code)
            self._coordinators[key_type, key] = Address(found.host, found.port)
        return self._coordinators[key_type, key]

    def any_connection(self) -> Connection:
        """A connection to whichever broker answers. Raises BrokerUnreachable."""
        return self._any_connection()

    def connection_to(self, address: Address) -> Connection:
        """The connection to a broker that a coordinator's address names. Raises BrokerUnreachable."""
        return self._connection(address)

    def leader_connection(self, topic: str, partition: int) -> Connection:
        """A connection to the partition's leader. Raises UnknownTopic, LeaderUnavailable, BrokerUnreachable."""
        return self._broker(self._leader(topic, partition))

    def ask_broker(self, broker_id: int, api_key: int, build: requests.Build, version_min: int = 0) -> Any:
        """One request to that broker, sent once; raises LeaderUnavailable where it is not in the cluster."""
        if broker_id not in self._brokers:
            self._load_metadata([])
        return self._broker(broker_id).request(api_key, build, version_min=version_min)

    def ask_any(self, api_key: int, build: requests.Build, version_min: int = 0) -> Any:
        """One request to whichever broker answers, sent once."""
        return self._any_connection().request(api_key, build, version_min=version_min)

    def brokers(self) -> dict[int, Address]:
        """Every broker of the cluster as it is now, by its id."""
        return dict(self.retried(lambda: self._load_metadata([])).brokers)

    def _unknown_topic(self, name: str) -> UnknownTopic:
        return UnknownTopic(
            f"topic '{name}' does not exist at {self.bootstrap}: 'onceflow topic create {name} --partitions N' "
            f"makes it, {Remedy.LIST_TOPICS}"
        )


def _holds_whole_batch(records: memoryview) -> bool:
    """Whether the first batch is all there; its length stands at byte 8 and counts from byte 12."""
    return len(records) >= 12 and len(records) >= 12 + int.from_bytes(records[8:12], "big")


def _check_partition(topic: str, partition: int, number: int) -> None:
    if number == ErrorCode.none:
        return
    code = ErrorCode(number)
    if code.retriable:
        raise LeaderUnavailable(f"{topic}-{partition} cannot be read now: {code.name}; {Remedy.TRY_AGAIN}")
    raise _refused(f"{topic}-{partition} cannot be read", code, None)


def _check_group(group: str, code: ErrorCode) -> None:
    if code in _COORDINATOR_CODES:
        raise CoordinatorUnavailable(
            f"the offsets of group '{group}' cannot be had now: {code.name}; {Remedy.TRY_AGAIN}"
        )
    if code != ErrorCode.none:
        raise _refused(f"the offsets of group '{group}' were refused", code, None)


def _refused(what: str, code: ErrorCode, message: str | None) -> RequestRefused:
    return RequestRefused(f"{what}: the broker says {code.name}" + (f" ({message})" if message else ""), code)
