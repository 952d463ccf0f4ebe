"""The sink's steps while a Sentinel replaces a real master, and wrong addresses of Sentinels."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from onceflow.clicks.results import Results
from onceflow.redis import errors as redis_errors
from onceflow.redis import pool as redis_pool
from onceflow.redis.address import RedisAddressInvalid
from onceflow.redis.errors import code_of
from onceflow.remedies import Remedy
from onceflow.spark.redis.scripts import Keys, MarkerMoved
from tests import remedies
from tests.conftest import RedisProcess
from tests.spark.redis_servers import SERVICE, Sentinel, losing_writes, servers_in, wait_until, watched
from tests.spark.redis_steps import CHUNKS, Driver, assert_counts, batch_of, chunk_of, new_keys, rows_of


@pytest.fixture
def sentinel(tmp_path: Path, new_redis: Callable[..., RedisProcess]) -> Iterator[Sentinel]:
    with watched(tmp_path / "sentinel", new_redis) as made:
        yield made
        redis_pool.close()


@pytest.fixture(scope="module")
def resting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sentinel]:
    """Start servers and Sentinel for tests that do not change them."""
    with (
        servers_in(lambda: tmp_path_factory.mktemp("server")) as make,
        watched(tmp_path_factory.mktemp("sentinel"), make) as sentinel,
    ):
        yield sentinel
        redis_pool.close()


def run(driver: Driver, *numbers: int) -> None:
    for number in numbers:
        list(driver.steps(batch_of(number)))


def rows_of_chunk(number: int, chunk: int) -> list[tuple[str, bytes, int]]:
    return [row for row in rows_of(number) if chunk_of(row) == chunk]


def test_new_master_within_a_batch(sentinel: Sentinel) -> None:
    keys = new_keys()
    driver = Driver(sentinel.url, keys)
    count = keys.increments[0].key
    with Results(sentinel.url, count) as results:
        run(driver, 0)
        batch = batch_of(1)
        driver.begin(batch)
        driver.chunk(batch, 0, rows_of_chunk(1, 0))
        wait_until(lambda: driver.client.wait(1, 100) == 1, "a replica in step")
        sentinel.master.kill()
        sentinel.detect_failures()
        for chunk in range(1, CHUNKS):
            driver.chunk(batch, chunk, rows_of_chunk(1, chunk))
        driver.complete(batch)
        driver.settle(batch)
        run(driver, 2)
        assert_counts(sentinel.admin(sentinel.replica), keys, 3)
        assert results.clicks_of("user 1") == 6


@pytest.mark.parametrize("lost", ["chunk 1", "a complete batch and the begin of the next"])
def test_losses_of_failover_are_repaired(sentinel: Sentinel, lost: str) -> None:
    keys = new_keys()
    driver = Driver(sentinel.url, keys)
    run(driver, 0)
    if lost == "chunk 1":
        driver.begin(batch_of(1))
        driver.chunk(batch_of(1), 0, rows_of_chunk(1, 0))
    wait_until(lambda: driver.client.wait(1, 100) == 1, "a replica in step")
    with losing_writes(sentinel, sentinel.master, sentinel.replica):
        if lost == "chunk 1":
            driver.chunk(batch_of(1), 1, rows_of_chunk(1, 1))
        else:
            run(driver, 1)
            driver.begin(batch_of(2))
    if lost == "chunk 1":
        driver.chunk(batch_of(1), 2, rows_of_chunk(1, 2))
        with pytest.raises(MarkerMoved, match="lacks acknowledged chunk 1 of 3"):
            driver.complete(batch_of(1))
    else:
        with pytest.raises(MarkerMoved, match=r"moved to batch 0 .complete 1."):
            driver.chunk(batch_of(2), 0, rows_of_chunk(2, 0))
    run(driver, 1, 2)
    assert_counts(driver.client, keys, 3)


@pytest.mark.campaign  # A Sentinel makes a former master a replica after ten seconds.
def test_demoted_master_is_no_longer_used(sentinel: Sentinel) -> None:
    """The sink still writes a batch to a demoted master; the next batch notices the loss, and it is written again."""
    keys = new_keys()
    driver = Driver(sentinel.url, keys)
    run(driver, 0)
    asking: Any = redis.Redis("127.0.0.1", sentinel.port)
    asking.execute_command("SENTINEL", "FAILOVER", SERVICE)
    find: Any = redis_pool.client(sentinel.url).connection_pool.connection_kwargs["find"]
    wait_until(lambda: find() == ("127.0.0.1", sentinel.replica.port), "another master")
    run(driver, 1)  # Over a connection to the former master, which still considers itself master.
    assert_counts(sentinel.admin(sentinel.master), keys, 2)
    follows = sentinel.admin(sentinel.master)
    wait_until(lambda: follows.info("replication").get("master_link_status") == "up", "a master that follows")
    with pytest.raises(MarkerMoved, match=r"moved to batch 0 .complete 1."):
        driver.begin(batch_of(2))
    run(driver, 1, 2)
    assert_counts(sentinel.admin(sentinel.replica), keys, 3)
    print("a failover while the former master accepted another batch: detected at the next one, and written again")


def test_connection_to_a_replica_is_replaced(sentinel: Sentinel) -> None:
    """The Sentinel's information is out of date: the server is now a replica."""
    find: Any = redis_pool.client(sentinel.url).connection_pool.connection_kwargs["find"]
    outdated = iter([("127.0.0.1", sentinel.replica.port)])
    pool: Any = redis_pool.client(sentinel.url).connection_pool
    pool.disconnect()
    pool.reset()
    pool.connection_kwargs["find"] = lambda: next(outdated, None) or find()
    keys = new_keys()
    run(Driver(sentinel.url, keys), 0)
    assert_counts(sentinel.admin(sentinel.master), keys, 1)
    assert next(outdated, None) is None


def test_wait_for_a_master_ends(sentinel: Sentinel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_errors, "FAILOVER_WAIT_S", 0.1)
    monkeypatch.setattr(redis_pool, "RETRIES", 1)
    driver = Driver(sentinel.url, new_keys())
    run(driver, 0)
    for server in (sentinel.replica, sentinel.master):
        server.kill()
    with pytest.raises(redis.ConnectionError) as raised:
        driver.acquire(batch_of(1))
    assert code_of(raised.value) is None
    message = str(redis_errors.failed(sentinel.url, "in batch 1", raised.value))
    assert message.startswith(f"Redis at {sentinel.url} failed in batch 1")


@pytest.mark.remedy(Remedy.WATCHED_MASTER)
def test_unwatched_master(resting: Sentinel) -> None:
    with pytest.raises(RedisAddressInvalid, match="do not monitor a master 'other'") as raised:
        redis_pool.client(resting.url.replace(SERVICE, "other"))
    remedies.find(Remedy.WATCHED_MASTER, raised.value)
    client: Any = redis.Redis("127.0.0.1", resting.port)
    (name,) = client.sentinel_masters()
    assert redis_pool.client(resting.url.replace(SERVICE, name)).ping()


def test_unreachable_sentinels(resting: Sentinel, monkeypatch: pytest.MonkeyPatch) -> None:
    away = "127.0.0.1:1"
    client: Any = redis_pool.client(resting.url.replace("://", f"://{away},"))
    assert client.ping()
    monkeypatch.setattr(redis_errors, "FAILOVER_WAIT_S", 0.0)
    monkeypatch.setattr(redis_pool, "RETRIES", 0)
    with pytest.raises(redis.ConnectionError, match=f"master '{SERVICE}' was not found: {away}"):
        redis_pool.client(f"redis+sentinel://{away}/{SERVICE}")


def test_keys_are_in_the_given_database(resting: Sentinel) -> None:
    keys: Keys = new_keys()
    run(Driver(resting.url.removesuffix("1") + "3", keys), 0)
    assert redis.Redis("127.0.0.1", resting.master.port, db=3).exists(keys.marker)
