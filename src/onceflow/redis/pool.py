"""One pool of Redis connections per process and address, opened at its first use.

A task on an executor is given an address, never a connection, so its closure can be pickled. The first task of a
worker process opens the pool, and later tasks share it. It is closed when the process ends (a Spark worker exits
without running exit handlers; there the kernel closes the sockets).

The limits are the article's: at most 10 connections, all of which may stay open while idle, one opened at the start,
30 s for a socket, 10 s of waiting for a free connection. A borrowed connection is tested: the pool reconnects one
that was closed or has unread bytes, and sends PING first on one that was idle for a second.
"""

import atexit
import weakref
from typing import Any

import redis
from redis.backoff import ExponentialWithJitterBackoff

from onceflow.redis import errors as redis_errors
from onceflow.redis import route as redis_route

CONNECTIONS_MAX = 10
SOCKET_TIMEOUT_S = 30.0
WAIT_TIMEOUT_S = 10.0
PING_AFTER_IDLE_S = 1
# redis-py sends a command again if its reply is lost. The marker fences the sink's scripts, so that is harmless;
# the attempts are bounded (about 7 s) and outlast a restart of Redis.
RETRIES = 10
RETRY_WAIT_FIRST_S = 0.01
RETRY_WAIT_MAX_S = 1.0

_pools: dict[tuple[str, int], redis.BlockingConnectionPool] = {}
_users: dict[str, weakref.WeakSet[Any]] = {}


def client(url: str, key: str | bytes = "") -> redis.Redis:
    """Return a client of this process's pool for `url`, such as `redis://127.0.0.1:6379/1`. Raises RedisAddressInvalid.

    In a cluster the client's node is the owner of `key`; each slot in use has its own pool.
    """
    place = url, redis_route.slot_of(url, key)
    # Read once: another thread may close it at any time.
    pool = _pools.get(place)
    if pool is None:
        pool = _pools[place] = _open_pool(url, key)
    return redis.Redis(connection_pool=pool)


def _open_pool(url: str, key: str | bytes) -> redis.BlockingConnectionPool:
    pool: redis.BlockingConnectionPool = redis_route.open_pool(
        url,
        key,
        pool_class=redis.BlockingConnectionPool,
        max_connections=CONNECTIONS_MAX,
        timeout=WAIT_TIMEOUT_S,
        socket_timeout=SOCKET_TIMEOUT_S,
        socket_connect_timeout=SOCKET_TIMEOUT_S,
        health_check_interval=PING_AFTER_IDLE_S,
        retry=redis_route.RefusalNotRepeated(
            ExponentialWithJitterBackoff(base=RETRY_WAIT_FIRST_S, cap=RETRY_WAIT_MAX_S), RETRIES
        ),
    )
    # A server that is starting or blocked refuses HELLO, too.
    redis_errors.patiently(lambda: _borrow_once(pool), pool=pool)
    return pool


def _borrow_once(pool: Any) -> None:
    pool.release(pool.get_connection())


def enter(url: str, user: object) -> None:
    """Register `user` as a user of the connections of `url`."""
    _users.setdefault(url, weakref.WeakSet()).add(user)


def leave(url: str, user: object) -> None:
    """Close the connections of `url` if `user` is the last one in this process that needs them."""
    others = _users.get(url, weakref.WeakSet())
    others.discard(user)
    if not others:
        close(url)


def close(url: str | None = None) -> None:
    """Close the connections of `url`, or of every address; a later `client` opens a new pool."""
    for place in [place for place in list(_pools) if url in (None, place[0])]:
        pool = _pools.pop(place, None)
        if pool is not None:
            pool.disconnect()


atexit.register(close)
