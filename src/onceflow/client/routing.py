"""Routing of a client's requests: connections, metadata, leaders, coordinators and retries."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from onceflow.client import requests
from onceflow.client.addresses import Address, parse_bootstrap
from onceflow.client.connection import Connection
from onceflow.client.errors import (
    BrokerUnreachable,
    ClientError,
    ConnectionLost,
    CoordinatorUnavailable,
    LeaderUnavailable,
    RequestRefused,
    UnknownTopic,
)
from onceflow.client.metadata import NO_LEADER, ClusterMetadata, TopicMetadata, read_metadata
from onceflow.client.security import Security
from onceflow.remedies import Remedy
from onceflow.wire import apis
from onceflow.wire.errors import ErrorCode, error_name

RESPONSE_HEADROOM_BYTES = 1024 * 1024
"""Maximum size of a response beside the records of a fetch."""
PAUSE_MS_MIN = 50
PAUSE_MS_MAX = 1_000

FIRST_LOSSES_MS_MAX = 500
"""A broker that stops closes a new connection once; one whose listener needs another security protocol, each time."""
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


class Router:
    """One connection per broker in use, and metadata kept until a broker contradicts it.

    Creating one opens no connection; it raises InvalidAddress. Every request may raise BrokerUnreachable,
    ConnectionLost, RequestTimedOut, NotKafka and UnsupportedBroker. `ask_*` send a request once. Belongs to one thread.
    """

    def __init__(
        self,
        bootstrap: str,
        *,
        timeout_ms: int,
        client_id: str,
        first_contact_ms: int,
        batch_bytes_max: int,
        security: Security,
    ) -> None:
        self.bootstrap = bootstrap
        self.timeout_ms = timeout_ms
        self._client_id = client_id
        self._first_contact_ms = first_contact_ms
        self._response_bytes_max = batch_bytes_max + RESPONSE_HEADROOM_BYTES
        self._security = security
        self._bootstrap_addresses = parse_bootstrap(bootstrap)
        self._connections: dict[Address, Connection] = {}
        self._reached: set[Address] = set()
        self._has_served = False
        self._brokers: Mapping[int, Address] = {}
        self._controller_id = -1
        self._topics: dict[str, TopicMetadata] = {}
        self._coordinators: dict[tuple[int, str], Address] = {}

    def close(self) -> None:
        """Close every connection. A later call opens new ones."""
        for address in list(self._connections):
            self._drop(address)

    def retry(self, attempt: Callable[[], _T]) -> _T:
        """Return the result of `attempt`; repeat it while a leader or coordinator moves or loads.

        The pauses start at 50 ms and double up to 1 s. After `timeout_ms` the last error is raised. If no broker was
        reached yet, that is `first_contact_ms`; if each closed the connection at the first request, at least
        `FIRST_LOSSES_MS_MAX`.
        """
        start = time.monotonic()
        pause_ms = PAUSE_MS_MIN
        while True:
            try:
                return attempt()
            except _RETRIABLE as error:
                self._topics.clear()
                self._coordinators.clear()
                if (time.monotonic() - start) * 1000 + pause_ms > self._allowed_ms(error):
                    raise
            time.sleep(pause_ms / 1000)
            pause_ms = min(2 * pause_ms, PAUSE_MS_MAX)

    def _allowed_ms(self, error: ClientError) -> int:
        """Return how long to repeat an attempt that fails with this error."""
        if isinstance(error, BrokerUnreachable) and not self._reached:
            return self._first_contact_ms
        has_served = self._has_served or any(connection.has_served for connection in self._connections.values())
        if isinstance(error, ConnectionLost) and not has_served:
            return max(self._first_contact_ms, FIRST_LOSSES_MS_MAX)
        return self.timeout_ms

    # Metadata

    def metadata(self, names: Sequence[str] | None) -> ClusterMetadata:
        """Request the metadata of these topics, of all topics for None. Retried."""
        return self.retry(lambda: self._load_metadata(names))

    def brokers(self) -> dict[int, Address]:
        """Return every current broker of the cluster by its id. Retried."""
        return dict(self.metadata([]).brokers)

    def forget_topic(self, name: str) -> None:
        """Drop a topic's metadata."""
        self._topics.pop(name, None)

    def unknown_topic(self, name: str) -> UnknownTopic:
        """Return the error for a topic that does not exist."""
        return UnknownTopic(
            f"topic '{name}' does not exist at {self.bootstrap}; create it with 'onceflow topic create {name} "
            f"--partitions N', {Remedy.LIST_TOPICS}"
        )

    def by_leader(self, topic: str, values: Mapping[int, int]) -> dict[int, dict[int, int]]:
        """Group `values`, a number for each partition, by the id of the partition's leader."""
        grouped: dict[int, dict[int, int]] = {}
        for partition, value in values.items():
            grouped.setdefault(self.leader(topic, partition), {})[partition] = value
        return grouped

    def leader(self, topic: str, partition: int) -> int:
        """Return the broker id of the partition's leader. Raises UnknownTopic, LeaderUnavailable."""
        partitions = self._topic(topic).partitions
        if partition not in partitions:
            # It may have been added since the metadata was loaded.
            self._load_metadata([topic])
            partitions = self._topic(topic).partitions
        if partition not in partitions:
            raise UnknownTopic(
                f"topic {topic} at {self.bootstrap} has {len(partitions)} partitions, counted from 0; there is no "
                f"partition {partition}"
            )
        if partitions[partition] == NO_LEADER:
            raise LeaderUnavailable(f"{topic}-{partition} at {self.bootstrap} has no leader: are all brokers up?")
        return partitions[partition]

    def _topic(self, name: str) -> TopicMetadata:
        if name not in self._topics:
            self._load_metadata([name])
        if name not in self._topics:
            raise self.unknown_topic(name)
        return self._topics[name]

    def _load_metadata(self, names: Sequence[str] | None) -> ClusterMetadata:
        response = self.ask_any(apis.METADATA, requests.metadata(names), requests.METADATA_VERSION_MIN)
        loaded = read_metadata(response)
        self._brokers = loaded.brokers
        self._controller_id = loaded.controller_id
        for name in names or ():
            self._topics.pop(name, None)
        self._topics.update(loaded.topics)
        return loaded

    # Connections

    def connection_to(self, address: Address) -> Connection:
        """Return the open connection to a broker's address. Raises BrokerUnreachable."""
        connection = self._connections.get(address)
        if connection is not None and connection.is_open():
            return connection
        if connection is not None:
            self._drop(address)
        connection = Connection(
            *address,
            client_id=self._client_id,
            timeout_ms=self.timeout_ms,
            response_bytes_max=self._response_bytes_max,
            security=self._security,
        )
        self._connections[address] = connection
        self._reached.add(address)
        return connection

    def _drop(self, address: Address) -> None:
        connection = self._connections.pop(address)
        self._has_served = self._has_served or connection.has_served
        connection.close()

    def any_connection(self) -> Connection:
        """Return a connection to any broker that responds. Raises BrokerUnreachable."""
        # Those in use first; a dict keeps the order and drops duplicates.
        candidates = dict.fromkeys([*self._connections, *self._brokers.values(), *self._bootstrap_addresses])
        failures: list[BrokerUnreachable] = []
        for address in candidates:
            try:
                return self.connection_to(address)
            except BrokerUnreachable as error:
                failures.append(error)
        # A broker that was reached before is worth waiting for, so its error determines the retry.
        raise next((error for error in failures if error.address in self._reached), failures[-1])

    def leader_connection(self, topic: str, partition: int) -> Connection:
        """Return a connection to the partition's leader. Raises UnknownTopic, LeaderUnavailable, BrokerUnreachable."""
        return self.broker_connection(self.leader(topic, partition))

    def broker_connection(self, broker_id: int) -> Connection:
        """Return a connection to a broker by its id. Raises LeaderUnavailable for an unknown one, BrokerUnreachable."""
        address = self._brokers.get(broker_id)
        if address is None:
            raise LeaderUnavailable(f"broker {broker_id}, named as leader by {self.bootstrap}, is not in the cluster")
        return self.connection_to(address)

    def coordinator_address(self, key: str, key_type: int = requests.GROUP) -> Address:
        """Return the coordinator's address for a group or a transactional id. Raises CoordinatorUnavailable."""
        if (key_type, key) not in self._coordinators:
            response = self.ask_any(
                apis.FIND_COORDINATOR, requests.find_coordinator(key, key_type), requests.FIND_COORDINATOR_VERSION_MIN
            )
            coordinator = requests.coordinator(response)
            check_group(key, coordinator.error_code)
            self._coordinators[key_type, key] = Address(coordinator.host, coordinator.port)
        return self._coordinators[key_type, key]

    # Single requests

    def ask_any(self, api_key: int, build: requests.Build, version_min: int = 0) -> Any:
        """Send a request to any broker that responds."""
        return self.any_connection().request(api_key, build, version_min=version_min)

    def ask_broker(self, broker_id: int, api_key: int, build: requests.Build, version_min: int = 0) -> Any:
        """Send a request to that broker. Raises LeaderUnavailable if it is not in the cluster."""
        if broker_id not in self._brokers:
            self._load_metadata([])
        return self.broker_connection(broker_id).request(api_key, build, version_min=version_min)

    def ask_controller(self, api_key: int, build: requests.Build, version_min: int = 0) -> Any:
        """Send a request to the controller; finding it is retried."""

        def find() -> Connection:
            self._load_metadata([])
            address = self._brokers.get(self._controller_id)
            return self.any_connection() if address is None else self.connection_to(address)

        return self.retry(find).request(api_key, build, version_min=version_min)

    def ask_coordinator(
        self, key: str, api_key: int, build: requests.Build, version_min: int = 0, *, key_type: int = requests.GROUP
    ) -> Any:
        """Send a request to the coordinator of a group or a transactional id."""
        address = self.coordinator_address(key, key_type)
        return self.connection_to(address).request(api_key, build, version_min=version_min)


def check_group(group: str, code: ErrorCode) -> None:
    """Raise the error of a group's response code."""
    if code in _COORDINATOR_CODES:
        raise CoordinatorUnavailable(
            f"the offsets of group '{group}' are not available: {error_name(code)}; {Remedy.TRY_AGAIN}"
        )
    if code != ErrorCode.none:
        raise refused(f"the offsets of group '{group}' were refused", code)


def refused(failure: str, code: ErrorCode, message: str | None = None) -> RequestRefused:
    """Return the error of a response code without a class of its own; `failure` names what failed."""
    return RequestRefused(
        f"{failure}: the broker returned {error_name(code)}" + (f" ({message})" if message else ""), code
    )
