"""Which server a connection goes to: the one named, the master that Sentinels know, or the owner of a cluster's slot.

The last two change while a query runs. So a connection to them asks anew each time that it connects, and one whose
server says that it is not the right one any more is closed, after which redis-py connects again. Clients are plain
ones, with one server at a time: all keys of a sink lie in one slot, so scripts, MULTI and WAITAOF need no more.
"""

import itertools
from collections.abc import Callable
from typing import Any, cast

import redis
from redis.backoff import ExponentialWithJitterBackoff, NoBackoff
from redis.connection import Connection, ConnectionPool, SSLConnection
from redis.crc import key_slot
from redis.retry import Retry

from onceflow.redis.address import RedisAddressInvalid, Several, require_address, several, shown
from onceflow.remedies import Remedy

ASK_TIMEOUT_S = 2.0
CONNECT_TIMEOUT_S = 5.0
"""Of a server that may be away because another one takes its place."""
RETRIES = 3
"""Of one command, unless the caller says otherwise: with the first the server's place is asked for anew."""

Server = tuple[str, int]
Find = Callable[[], Server]


class NoServer(redis.ConnectionError):
    """None of the servers that were asked says where the right one is."""


class _UnknownMaster(NoServer):
    """A Sentinel does not watch this master."""


class RefusalNotRepeated(Retry):
    """Tries again what may go better then: not a user who is refused, nor certificates that do not fit."""

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
    """Passes by redis-py's own retry, which looks for its own errors."""


def is_refused(error: redis.RedisError) -> bool:
    """Whether a connection was not lost but refused, so that another attempt would end like this one."""
    if isinstance(error, redis.exceptions.AuthenticationError | redis.exceptions.AuthorizationError):
        return True
    # OpenSSL's own names; an end in the middle of the handshake is a lost connection.
    return not isinstance(error, NoServer) and "[SSL:" in str(error) and "EOF" not in str(error)


class _RoutedConnection(Connection):
    """Goes where `find` says."""

    def __init__(self, *, find: Find, **settings: Any) -> None:
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
    """A pool of connections to the server that holds `key`. Raises RedisAddressInvalid; connects to nothing yet."""
    require_address(url)
    asked = several(url)
    if asked is not None:
        connect_timeout_s = min(CONNECT_TIMEOUT_S, settings.get("socket_connect_timeout", CONNECT_TIMEOUT_S))
        routed = {
            "connection_class": _RoutedTlsConnection if asked.tls else _RoutedConnection,
            "find": _finder(asked, url, key),
            "retry": RefusalNotRepeated(ExponentialWithJitterBackoff(), RETRIES),
            **asked.settings,
        }
        return pool_class(**(routed | settings | {"socket_connect_timeout": connect_timeout_s}))
    return pool_class.from_url(url, **settings)


def open_client(url: str, key: str | bytes, **settings: Any) -> redis.Redis:
    """A client with a pool of its own, for a reader: a context manager. Raises RedisAddressInvalid."""
    return redis.Redis.from_pool(open_pool(url, key, **settings))


def is_routed(pool: Any) -> bool:
    """Whether another server may take the place of the one that the pool's connections go to."""
    return "find" in pool.connection_kwargs


def slot_of(url: str, key: str | bytes) -> int:
    """The slot of `key` in a cluster; 0 for any other address."""
    return _slot(key) if url.partition("://")[0].endswith("+cluster") else 0


def _slot(key: str | bytes) -> int:
    return key_slot(key.encode() if isinstance(key, str) else key)


def _finder(asked: Several, url: str, key: str | bytes) -> Find:
    # Each time another server is asked first: one that is cut off from the others may tell what was.
    turns = itertools.cycle(range(len(asked.servers)))

    def find() -> Server:
        first = next(turns)
        errors: list[tuple[str, redis.RedisError]] = []
        for host, port in asked.servers[first:] + asked.servers[:first]:
            try:
                return _ask(asked, host, port, url, key)
            except redis.RedisError as error:
                errors.append((f"{host}:{port}", error))
        if all(isinstance(error, _UnknownMaster) for _, error in errors):
            raise RedisAddressInvalid(
                f"the Sentinels of {shown(url)} watch no master {asked.service!r}: {Remedy.WATCHED_MASTER}"
            )
        if all(is_refused(error) for _, error in errors):
            raise errors[-1][1]
        told = "; ".join(f"{server}: {error}" for server, error in errors)
        raise NoServer(f"nobody says where {_wanted(asked, key)} is: {told}")

    return find


def _wanted(asked: Several, key: str | bytes) -> str:
    return f"master {asked.service!r}" if asked.kind == "sentinel" else f"the owner of slot {_slot(key)}"


def _ask(asked: Several, host: str, port: int, url: str, key: str | bytes) -> Server:
    client: Any = redis.Redis(
        host=host,
        port=port,
        ssl=asked.tls,
        socket_timeout=ASK_TIMEOUT_S,
        socket_connect_timeout=ASK_TIMEOUT_S,
        retry=Retry(NoBackoff(), 0),
        **asked.asking,
    )
    with client:
        if asked.kind == "sentinel":
            return _master(client, asked.service)
        return _owner(client, host, _slot(key), url)


def _master(sentinel: Any, service: str) -> Server:
    answer = sentinel.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", service)
    if answer is None:
        raise _UnknownMaster(f"it watches no master {service!r}")
    return _text(answer[0]), int(answer[1])


def _owner(node: Any, asked_host: str, slot: int, url: str) -> Server:
    try:
        ranges = node.execute_command("CLUSTER", "SLOTS")
    except redis.ResponseError as error:
        if "cluster support disabled" in str(error):
            raise RedisAddressInvalid(f"Redis at {shown(url)} is no cluster: {Remedy.PLAIN_ADDRESS}") from error
        raise
    for begin, last, owner, *_ in ranges:
        if begin <= slot <= last:
            # A node that does not know its own address leaves it out: it is the one that was asked.
            return _text(owner[0]) or asked_host, int(owner[1])
    raise NoServer(f"CLUSTERDOWN no node serves slot {slot}")


def _text(value: bytes | str | None) -> str:
    text = value.decode() if isinstance(value, bytes) else value or ""
    return "" if text == "?" else text
