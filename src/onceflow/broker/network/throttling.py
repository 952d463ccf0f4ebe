"""Throttling of connections by quotas, as Kafka's RequestHandlerHelper and ClientQuotaManager do it.

A response is sent at once, with the time that its client should wait; the connection accepts no request meanwhile. The
size of a Produce request counts, the size of a Fetch response, and the time that the event loop spends on a request:
on decoding a large one, on handling it, and on its response, also in later turns of the loop. A
Fetch that exceeds its quota gets an empty response, and its size does not count. A Produce request counts and mutes
when it arrives, not when it is acknowledged: those behind it would be accepted meanwhile, which wait for the same sync.
"""

from collections.abc import Generator, Iterator, Sequence
from functools import cache
from time import perf_counter
from typing import TypeVar

from onceflow.broker.config import BrokerConfig
from onceflow.broker.network.connection import Connection, Handle
from onceflow.broker.network.reply import Piece, Reply
from onceflow.broker.security.client_quotas import (
    CONSUMER_BYTE_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    ClientQuotas,
)
from onceflow.broker.security.quota_usage import QuotaUsage
from onceflow.log.clock import Clock
from onceflow.wire import apis, fetch, old_fetch
from onceflow.wire.frames import REQUEST_HEADER, SIZE_AND_CORRELATION_ID
from onceflow.wire.primitives import INT32, SHORT_OF_BYTES, read_nullable_string

EXEMPT = frozenset((apis.WRITE_TXN_MARKERS, apis.SASL_HANDSHAKE, apis.SASL_AUTHENTICATE, *apis.INTER_BROKER_APIS))
"""APIs whose time does not count: those of brokers (ApiKeys.clusterAction), and logins."""
NO_THROTTLE_TIME_BEFORE = {
    apis.FETCH: 1,
    apis.LIST_OFFSETS: 2,
    apis.METADATA: 3,
    apis.OFFSET_COMMIT: 3,
    apis.OFFSET_FETCH: 3,
    apis.FIND_COORDINATOR: 1,
    apis.JOIN_GROUP: 2,
    apis.HEARTBEAT: 1,
    apis.LEAVE_GROUP: 1,
    apis.SYNC_GROUP: 1,
    apis.DESCRIBE_GROUPS: 1,
    apis.LIST_GROUPS: 1,
    apis.API_VERSIONS: 1,
    apis.SASL_HANDSHAKE: apis.NEVER,
    apis.SASL_AUTHENTICATE: apis.NEVER,
    apis.WRITE_TXN_MARKERS: apis.NEVER,
    apis.LEADER_AND_ISR: apis.NEVER,
    apis.STOP_REPLICA: apis.NEVER,
    apis.UPDATE_METADATA: apis.NEVER,
    apis.CONTROLLED_SHUTDOWN: apis.NEVER,
}
"""First versions of responses with a throttle time; those of other APIs have it in every version."""
LAST = frozenset((apis.PRODUCE, apis.API_VERSIONS))
"""APIs whose responses end with the throttle time. In others it comes first, in OffsetDelete after an error code."""


_Decoded = TypeVar("_Decoded")


@cache
def throttle_position(api_key: int, version: int) -> int | None:
    """Return the position of the throttle time in a whole response, from its end if negative; None without one."""
    if not NO_THROTTLE_TIME_BEFORE.get(api_key, 0) <= version <= apis.CLUSTER_APIS[api_key].version_max:
        return None
    is_flexible = version >= apis.CLUSTER_APIS[api_key].flexible_from
    if api_key in LAST:
        return -INT32.size - is_flexible
    return SIZE_AND_CORRELATION_ID.size + is_flexible + (2 if api_key == apis.OFFSET_DELETE else 0)


def timed_decoding(decoding: Generator[int, None, _Decoded]) -> Generator[int, None, tuple[_Decoded, float]]:
    """Decode in the same steps; return also the seconds that they took."""
    seconds = 0.0
    while True:
        began_s = perf_counter()
        try:
            work = next(decoding)
        except StopIteration as end:
            return end.value, seconds + perf_counter() - began_s
        seconds += perf_counter() - began_s
        yield work


class Throttling:
    """Quotas, and their application to the requests of all connections."""

    def __init__(self, config: BrokerConfig, clock: Clock) -> None:
        self.quotas = ClientQuotas()
        window_ms = config.quota_window_seconds * 1000
        self.usage = QuotaUsage(self.quotas, clock, samples=config.quota_samples, window_ms=window_ms)

    def handle(
        self, handle: Handle, frame: memoryview, reply: Reply, connection: Connection, *, decoding_seconds: float = 0.0
    ) -> None:
        """Handle a request, and throttle its connection if a quota is exceeded."""
        try:
            api_key, version, correlation_id = REQUEST_HEADER.unpack_from(frame, 0)
            client_id, _end = read_nullable_string(frame, REQUEST_HEADER.size, flexible=False)
            is_served = api_key in apis.CLUSTER_APIS
        except SHORT_OF_BYTES:
            is_served = False
        if not is_served:
            # The handler closes the connection.
            handle(frame, reply, connection)
            return
        limited = _Limited(self.usage, connection, api_key, version, correlation_id, client_id or "", len(frame))
        reply.limit = limited
        limited.begin(decoding_seconds)
        handle(frame, reply, connection)
        limited.end()


class _Limited:
    """One request under quotas, until its response."""

    __slots__ = (
        "_api_key",
        "_began_s",
        "_bytes_ms",
        "_client_id",
        "_connection",
        "_correlation_id",
        "_is_handling",
        "_seconds",
        "_size_bytes",
        "_usage",
        "_version",
        "throttle_ms",
    )

    def __init__(
        self,
        usage: QuotaUsage,
        connection: Connection,
        api_key: int,
        version: int,
        correlation_id: int,
        client_id: str,
        size_bytes: int,
    ) -> None:
        self._usage = usage
        self._connection = connection
        self._api_key = api_key
        self._version = version
        self._correlation_id = correlation_id
        self._client_id = client_id
        self._size_bytes = size_bytes
        self.throttle_ms = 0
        self._bytes_ms = 0
        self._seconds = 0.0
        self._is_handling = True
        self._began_s = perf_counter()

    def begin(self, decoding_seconds: float) -> None:
        """Count the size of a Produce request, and the time of a decoded one."""
        self._seconds = decoding_seconds
        if self._api_key == apis.PRODUCE:
            user = self._connection.principal.name
            self._bytes_ms = self._usage.record(PRODUCER_BYTE_RATE, user, self._client_id, self._size_bytes)

    def end(self) -> None:
        """Take the time of the handler, which may respond later; mute the connection of a Produce until then, too."""
        self._is_handling = False
        self._seconds += perf_counter() - self._began_s
        if self._bytes_ms:
            self._connection.mute(self._bytes_ms / 1000)

    def timed(self, work: Iterator[int]) -> Iterator[int]:
        """Do the work in the same steps, and take their time; `end` does not take it again."""
        while True:
            began_s = perf_counter()
            units = next(work, None)
            seconds = perf_counter() - began_s
            self._seconds += seconds
            self._began_s += seconds
            if units is None:
                return
            yield units

    def throttled(self, pieces: Sequence[Piece]) -> Sequence[Piece]:
        """Return the response with its throttle time, and mute the connection for it."""
        usage, user, client_id = self._usage, self._connection.principal.name, self._client_id
        size_bytes = 0
        bytes_ms = self._bytes_ms
        if self._api_key == apis.FETCH:
            size_bytes = sum(len(piece) if isinstance(piece, bytes) else piece.size_bytes for piece in pieces)
            bytes_ms = usage.record(CONSUMER_BYTE_RATE, user, client_id, size_bytes)
        request_ms = 0
        if pieces and self._api_key not in EXEMPT:
            seconds = self._seconds + (perf_counter() - self._began_s if self._is_handling else 0.0)
            request_ms = usage.record(REQUEST_PERCENTAGE, user, client_id, 100 * seconds)
        throttle_ms = max(bytes_ms, request_ms, self.throttle_ms)
        if not throttle_ms:
            return pieces
        self._connection.mute(throttle_ms / 1000)
        if self._api_key == apis.FETCH:
            usage.take_back(CONSUMER_BYTE_RATE, user, client_id, size_bytes)
            if self._version > old_fetch.VERSION_MAX:
                pieces = fetch.encode_response(self._version, self._correlation_id, [])
            else:
                pieces = [old_fetch.encode_response(self._version, self._correlation_id, [])]
        return self._with_throttle_time(pieces, throttle_ms)

    def _with_throttle_time(self, pieces: Sequence[Piece], throttle_ms: int) -> Sequence[Piece]:
        position = throttle_position(self._api_key, self._version)
        if position is None or not pieces:
            return pieces
        at = -1 if position < 0 else 0
        changed = bytearray(pieces[at])  # type: ignore[arg-type]
        begin = position % len(changed)
        changed[begin : begin + INT32.size] = INT32.pack(throttle_ms)
        return [bytes(changed), *pieces[1:]] if at == 0 else [*pieces[:-1], bytes(changed)]
