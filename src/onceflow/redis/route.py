"""The server of a connection: the given one, the master that Sentinels know, or the owner of a cluster's slot.

The last two change while a query runs. So a connection looks its server up each time that it connects. It is closed
when its server turns out to be the wrong one, and redis-py connects again. Clients are plain ones with one server at
a time: all keys of a sink are in one slot, so scripts, MULTI and WAITAOF need no more.
"""

import itertools
from collections.abc import Callable
from typing import Any, cast

import redis
from redis.backoff import ExponentialWithJitterBackoff, NoBackoff
from redis.connection import Connection, ConnectionPool, SSLConnection
from redis.crc import key_slot
from redis.retry import Retry

from onceflow.redis.address import RedisAddressInvalid, RoutedAddress, require_address, routed_address, shown
from onceflow.remedies import Remedy

LOOKUP_TIMEOUT_S = 2.0
CONNECT_TIMEOUT_S = 5.0
"""Timeout for a server that may be down while another one takes its place."""
RETRIES = 3
"""Retries of a command by default; the first of them looks the server up again."""

Server = tuple[str, int]
FindServer = Callable[[], Server]


class NoServer(redis.ConnectionError):
    """None of the servers knows where the right one is."""


class _UnknownMaster(NoServer):
    """A Sentinel does not monitor this master."""


class RefusalNotRepeated(Retry):
    """Retry policy for lost connections; a refused user or a wrong certificate is not retried."""

    def call_with_retry(self, do: Callable[[], Any], *arguments: Any, **options: Any) -> Any:
        def call() -> Any:
            try:
                return do()
            except redis.ConnectionError as error:
                if is_refused(error):
                    raise _Refused from error
                raise

        try:
            return super().call_with_retry(call, *arguments, **options)
        except _Refused as refused:
            raise cast(redis.ConnectionError, refused.__cause__) from None


class _Refused(Exception):
    """Not an error of redis-py, so its own retry does not catch it."""


def is_refused(error: redis.RedisError) -> bool:
    """Return whether a connection was refused rather than lost, so that another attempt would fail, too."""
    if isinstance(error, redis.exceptions.AuthenticationError | redis.exceptions.AuthorizationError):
        return True
    # OpenSSL's own names; an EOF in the handshake is a lost connection.
    return not isinstance(error, NoServer) and "[SSL:" in str(error) and "EOF" not in str(error)


class _RoutedConnection(Connection):
    """A connection to the server that `find` returns."""

    def __init__(self, *, find: FindServer, **settings: Any) -> None:
        super().__init__(**settings)  # type: ignore[no-untyped-call]
        self._find = find

    def _connect(self) -> Any:
        self.host, self.port = self._find()
        return super()._connect()  # type: ignore[no-untyped-call]

    def read_response(self, *arguments: Any, **options: Any) -> Any:
        try:
            return super().read_response(*arguments, **options)
        except (redis.exceptions.MovedError, redis.exceptions.ReadOnlyError) as error:
            self.disconnect()  # type: ignore[no-untyped-call]
            code = "MOVED" if isinstance(error, redis.exceptions.MovedError) else "READONLY"
            raise redis.ConnectionError(f"{code} {error}") from error


class _RoutedTlsConnection(_RoutedConnection, SSLConnection):
    pass


def open_pool(url: str, key: str | bytes, *, pool_class: type[ConnectionPool] = ConnectionPool, **settings: Any) -> Any:
    """Return a pool of connections to the server of `key`, none open yet. Raises RedisAddressInvalid."""
    require_address(url)
    address = routed_address(url)
    if address is not None:
        connect_timeout_s = min(CONNECT_TIMEOUT_S, settings.get("socket_connect_timeout", CONNECT_TIMEOUT_S))
        routed = {
            "connection_class": _RoutedTlsConnection if address.tls else _RoutedConnection,
            "find": _finder(address, url, key),
            "retry": RefusalNotRepeated(ExponentialWithJitterBackoff(), RETRIES),
            **address.settings,
        }
        return pool_class(**(routed | settings | {"socket_connect_timeout": connect_timeout_s}))
    return pool_class.from_url(url, **settings)


def open_client(url: str, key: str | bytes, **settings: Any) -> redis.Redis:
    """Return a client with its own pool, as a context manager. Raises RedisAddressInvalid."""
    return redis.Redis.from_pool(open_pool(url, key, **settings))


def is_routed(pool: Any) -> bool:
    """Return whether another server may take the place of the pool's server."""
    return "find" in pool.connection_kwargs


def slot_of(url: str, key: str | bytes) -> int:
    """Return the slot of `key` in a cluster; 0 for any other address."""
    return _slot(key) if url.partition("://")[0].endswith("+cluster") else 0


def _slot(key: str | bytes) -> int:
    return key_slot(key.encode() if isinstance(key, str) else key)


def _finder(address: RoutedAddress, url: str, key: str | bytes) -> FindServer:
    # Each lookup starts at another server: one that is partitioned from the others may know an old master.
    turns = itertools.cycle(range(len(address.servers)))

    def find() -> Server:
        first = next(turns)
        errors: list[tuple[str, redis.RedisError]] = []
        for host, port in address.servers[first:] + address.servers[:first]:
            try:
                return _find_at(address, host, port, url, key)
            except redis.RedisError as error:
                errors.append((f"{host}:{port}", error))
        if all(isinstance(error, _UnknownMaster) for _, error in errors):
            raise RedisAddressInvalid(
                f"the Sentinels of {shown(url)} do not monitor a master {address.service!r}: {Remedy.WATCHED_MASTER}"
            )
        if all(is_refused(error) for _, error in errors):
            raise errors[-1][1]
        reasons = "; ".join(f"{server}: {error}" for server, error in errors)
        raise NoServer(f"{_describe(address, key)} was not found: {reasons}")

    return find


def _describe(address: RoutedAddress, key: str | bytes) -> str:
    return f"master {address.service!r}" if address.kind == "sentinel" else f"the owner of slot {_slot(key)}"


def _find_at(address: RoutedAddress, host: str, port: int, url: str, key: str | bytes) -> Server:
    client: Any = redis.Redis(
        host=host,
        port=port,
        ssl=address.tls,
        socket_timeout=LOOKUP_TIMEOUT_S,
        socket_connect_timeout=LOOKUP_TIMEOUT_S,
        retry=Retry(NoBackoff(), 0),
        **address.lookup_settings,
    )
    with client:
        if address.kind == "sentinel":
            return _master(client, address.service)
        return _owner(client, host, _slot(key), url)


def _master(sentinel: Any, service: str) -> Server:
    reply = sentinel.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", service)
    if reply is None:
        raise _UnknownMaster(f"it does not monitor a master {service!r}")
    return _text(reply[0]), int(reply[1])


def _owner(node: Any, asked_host: str, slot: int, url: str) -> Server:
    try:
        ranges = node.execute_command("CLUSTER", "SLOTS")
    except redis.ResponseError as error:
        if "cluster support disabled" in str(error):
            raise RedisAddressInvalid(f"Redis at {shown(url)} is not a cluster: {Remedy.PLAIN_ADDRESS}") from error
        raise
    for first, last, owner, *_ in ranges:
        if first <= slot <= last:
            # A node that does not know its own address leaves it out: it is the one that was address.
            return _text(owner[0]) or asked_host, int(owner[1])
    raise NoServer(f"CLUSTERDOWN no node serves slot {slot}")


def _text(value: bytes | str | None) -> str:
    text = value.decode() if isinstance(value, bytes) else value or ""
    return "" if text == "?" else text
