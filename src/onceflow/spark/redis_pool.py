"""One pool of Redis connections per process and address, made where it is first used.

A task on an executor is handed an address, never a connection: nothing that cannot be pickled is in its closure.
The first task of a worker process makes the pool, the later ones share it, and it is closed when the process ends
(a Spark worker leaves without running exit handlers; there the kernel closes the sockets).

The limits are the article's: at most 10 connections, all of which may stay open while idle, one open from the
start, 30 s for a socket, 10 s of waiting for a free connection. A connection is tested when it is borrowed: the
pool reconnects one that was closed or has unread bytes, and one that was idle for a second is asked PING first.
"""

import atexit
from typing import Any

import redis
from redis.backoff import ExponentialWithJitterBackoff
from redis.retry import Retry

from onceflow.spark import redis_answers
from onceflow.spark.redis_address import RedisAddressInvalid, require_address, shown

CONNECTIONS_MAX = 10
SOCKET_TIMEOUT_S = 30.0
WAIT_TIMEOUT_S = 10.0
PING_AFTER_IDLE_S = 1
# A lost answer makes redis-py send the command again. The sink's scripts are fenced by the marker, so that is
# harmless; the attempts are bounded (about 7 s) and outlast a restart of Redis.
RETRIES = 10
RETRY_WAIT_FIRST_S = 0.01
RETRY_WAIT_MAX_S = 1.0


_pools: dict[str, redis.BlockingConnectionPool] = {}


def client(url: str) -> redis.Redis:
    """A client of this process's pool for `url`, such as `redis://127.0.0.1:6379/1`. Raises RedisAddressInvalid."""
    if url not in _pools:
        _pools[url] = _open_pool(url)
    return redis.Redis(connection_pool=_pools[url])


def _open_pool(url: str) -> redis.BlockingConnectionPool:
    require_address(url)
    try:
        pool = redis.BlockingConnectionPool.from_url(
            url,
            max_connections=CONNECTIONS_MAX,
            timeout=WAIT_TIMEOUT_S,
            socket_timeout=SOCKET_TIMEOUT_S,
            socket_connect_timeout=SOCKET_TIMEOUT_S,
            health_check_interval=PING_AFTER_IDLE_S,
            retry=Retry(ExponentialWithJitterBackoff(base=RETRY_WAIT_FIRST_S, cap=RETRY_WAIT_MAX_S), RETRIES),
        )
    except ValueError as error:
        raise RedisAddressInvalid(
            f"Redis address '{shown(url)}' is not valid ({error}): write it as redis://HOST:PORT/DATABASE"
        ) from error
    # Saying hello is refused too by a server that is starting or held up.
    redis_answers.patiently(lambda: _borrow_once(pool), reconnect=pool.disconnect)
    return pool


def _borrow_once(pool: Any) -> None:
    pool.release(pool.get_connection())


def close(url: str | None = None) -> None:
    """Closes the connections of `url`, or of every address; a later `client` makes a pool anew."""
    for address in [url] if url is not None else list(_pools):
        pool = _pools.pop(address, None)
        if pool is not None:
            pool.disconnect()


atexit.register(close)
