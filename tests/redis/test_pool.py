"""The pool of an executor process: opened once, bounded, tested on borrow, never part of a closure."""

import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
import redis
from pyspark.sql import SparkSession

from onceflow.redis import pool as redis_pool
from onceflow.redis.address import RedisAddressInvalid
from onceflow.spark.redis.chunks import ChunkWriter
from onceflow.spark.redis.scripts import Keys
from onceflow.spark.redis.target import RedisTarget
from onceflow.spark.redis.targets import Append, Increment
from tests.conftest import RedisProcess


@pytest.fixture
def url(redis_server: Any) -> Iterator[str]:
    yield redis_server.url
    redis_pool.close()


def test_one_pool_for_a_process(url: str) -> None:
    pool: Any = redis_pool.client(url).connection_pool
    assert redis_pool.client(url).connection_pool is pool
    assert pool.max_connections == 10
    assert pool.timeout == 10  # type: ignore[attr-defined]
    assert len(pool._connections) == 1  # type: ignore[attr-defined]
    connection = pool.get_connection()
    assert connection.socket_timeout == 30
    pool.release(connection)
    redis_pool.close(url)
    assert redis_pool.client(url).connection_pool is not pool


def test_tasks_of_a_worker_share_the_pool(new_redis: Callable[..., RedisProcess], spark: SparkSession) -> None:
    """Later tasks of a Spark worker find the pool and the connection that the first one opened."""
    url = new_redis().url
    before: Any = redis_pool.client(url).client_list()

    def ask(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            client: Any = redis_pool.client(url)
            row = {"pid": os.getpid(), "pool": id(client.connection_pool), "connection": client.client_id()}
            yield pa.RecordBatch.from_pylist([row])

    tasks = spark.range(0, 12, 1, 12)
    jobs = [tasks.mapInArrow(ask, "pid long, pool long, connection long").collect() for _ in range(2)]
    assert [len(rows) for rows in jobs] == [12, 12]
    together = {tuple(row) for rows in jobs for row in rows}
    pids = {pid for pid, _, _ in together}
    assert len(together) == len(pids) < 12, "one pool and one connection for each process"
    assert {row.pid for row in jobs[0]} & {row.pid for row in jobs[1]}, "workers outlive a job"
    after: Any = redis_pool.client(url).client_list()
    assert ids_of(after) - ids_of(before) == {connection for *_, connection in together}


def ids_of(clients: list[dict[str, str]]) -> set[int]:
    return {int(client["id"]) for client in clients}


def test_ten_connections_and_no_more(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_pool, "WAIT_TIMEOUT_S", 0.05)
    pool: Any = redis_pool.client(url).connection_pool
    borrowed = [pool.get_connection() for _ in range(10)]
    with pytest.raises(redis.ConnectionError, match="No connection available"):
        pool.get_connection()
    for connection in borrowed:
        pool.release(connection)
    assert {pool.get_connection() for _ in range(10)} == set(borrowed)
    for connection in borrowed:
        pool.release(connection)


def test_closed_connection_is_replaced_on_borrow(new_redis: Callable[..., Any]) -> None:
    server = new_redis()
    client: Any = redis_pool.client(server.url)
    assert client.ping()
    server.kill()
    server.start()
    assert client.set("key", "value")
    redis_pool.close(server.url)


def test_pool_stays_open_for_other_sinks(url: str) -> None:
    first, second, never_opened = (
        RedisTarget(url, Keys(f"{name}:m", f"{name}:h", (Increment("count", f"{name}:c"),), ()), name=name)
        for name in ("first", "second", "never opened")
    )
    first.open(None, None)
    second.open(None, None)
    pool = redis_pool.client(url).connection_pool
    first.close()
    first.close()
    never_opened.close()
    assert redis_pool.client(url).connection_pool is pool
    second.close()
    assert redis_pool.client(url).connection_pool is not pool


def test_pool_closed_during_lookup_is_returned(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Closing(dict[Any, Any]):
        """Simulates another thread that closes each pool right after its lookup."""

        def __contains__(self, place: object) -> bool:
            return self.pop(place, None) is not None

        def get(self, place: object, default: Any = None) -> Any:
            return self.pop(place, default)

    redis_pool.client(url)
    monkeypatch.setattr(redis_pool, "_pools", Closing(redis_pool._pools))
    client: Any = redis_pool.client(url)
    assert client.ping()


@pytest.mark.parametrize("url", ["localhost:6379", "http://127.0.0.1/1", "redis://127.0.0.1:x/1"])
def test_invalid_address(url: str) -> None:
    with pytest.raises(RedisAddressInvalid, match="redis://HOST:PORT/DATABASE"):
        redis_pool.client(url)


def test_chunk_writer_can_be_pickled(url: str) -> None:
    keys = Keys("m", "h", (Increment("count", "c", "t"),), (Append("dead", "d", 3),))
    assert keys.all == ["m", "h", "c", "t", "d", *(f"{{{key}}}:onceflow-claims" for key in "mhctd")]
    writer = ChunkWriter(url, keys, "query", "1", 3, "digest", 10)
    assert pickle.loads(pickle.dumps(writer)) == writer


def test_pool_is_closed_at_exit(url: str) -> None:
    program = f"from onceflow.redis import pool as redis_pool; print(redis_pool.client({url!r}).client_id())"
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-X", "dev", "-c", program], capture_output=True, text=True, env=os.environ
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    clients: Any = redis_pool.client(url).client_list()
    assert ended.stdout.strip() not in {client["id"] for client in clients}
