"""The sink's steps on a real cluster: its nodes, moving slots, and nodes that die."""

import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import redis

from onceflow.clicks.results import Keys as ReadKeys
from onceflow.clicks.results import Results
from onceflow.clicks.verify import read_counts
from onceflow.errors import OnceflowError
from onceflow.redis import errors as redis_errors
from onceflow.redis import pool as redis_pool
from onceflow.redis import route as redis_route
from onceflow.redis.address import RedisAddressInvalid
from onceflow.redis.errors import code_of, failed
from onceflow.remedies import Remedy
from onceflow.spark.exactly_once.checkpoint import LocalCheckpoint
from onceflow.spark.redis.scripts import Keys, MarkerMoved
from onceflow.spark.redis.sink_state import forget_redis_keys, redis_keys
from onceflow.spark.redis.targets import Increment
from tests import remedies
from tests.conftest import RedisProcess
from tests.spark.exactly_once.test_checkpoint import SparkFiles
from tests.spark.redis.test_buckets import Row as IntervalRow
from tests.spark.redis.test_buckets import Writer, rows_at
from tests.spark.redis.test_buckets import new_keys as new_buckets
from tests.spark.redis.test_intervals import keys_with, stored
from tests.spark.redis.test_intervals import rows_of as intervals_of
from tests.spark.redis_servers import RedisCluster, losing_writes, servers_in, wait_until
from tests.spark.redis_steps import (
    CHUNKS,
    Driver,
    assert_counts,
    batch_of,
    chunk_of,
    expected_counts,
    new_keys,
    rows_of,
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisCluster]:
    """Start three masters for tests that kill none; each test uses its own keys."""
    with servers_in(lambda: tmp_path_factory.mktemp("node")) as make:
        yield RedisCluster(make)
        redis_pool.close()


@pytest.fixture
def own_cluster(new_redis: Callable[..., RedisProcess]) -> Iterator[RedisCluster]:
    """Start three masters, one with a replica, for tests that kill."""
    yield RedisCluster(new_redis, replicas=1)
    redis_pool.close()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr(redis_errors, "FAILOVER_WAIT_S", 0.0)
    monkeypatch.setattr(redis_errors, "TEMPORARY_WAIT_S", 0.0)
    return monkeypatch


def run(driver: Driver, *numbers: int) -> None:
    for number in numbers:
        list(driver.steps(batch_of(number)))


def keys_at(cluster: RedisCluster, node: RedisProcess) -> Keys:
    """Return keys whose slot this node owns."""
    while True:
        keys = new_keys()
        if cluster.owner_of(keys.marker) is node:
            return keys


def other_master(cluster: RedisCluster, node: RedisProcess) -> RedisProcess:
    return next(master for master in cluster.masters if master is not node)


def test_batches_on_every_master(cluster: RedisCluster) -> None:
    for node in cluster.masters:
        driver = Driver(cluster.url, keys_at(cluster, node))
        run(driver, 0, 1, 2)
        driver.settle(batch_of(2))
        assert_counts(driver.client, driver.keys, 3)
        assert cluster.admin(node).exists(driver.keys.marker)


def test_slot_has_one_pool(cluster: RedisCluster) -> None:
    keys = new_keys()
    pools: list[Any] = [redis_pool.client(cluster.url, key).connection_pool for key in (keys.marker, keys.data[0])]
    assert pools[0] is pools[1]
    assert (pools[0].max_connections, pools[0].timeout) == (10, 10)
    connection = pools[0].get_connection()
    assert connection.socket_timeout == 30
    pools[0].release(connection)


def test_moved_slot_is_followed(cluster: RedisCluster) -> None:
    keys = new_keys()
    driver = Driver(cluster.url, keys)
    run(driver, 0, 1)
    count = keys.increments[0].key
    with Results(cluster.url, count) as results:
        assert results.clicks_of("user 1") == 3
        target = other_master(cluster, cluster.owner_of(keys.marker))
        source = cluster.begin_move(keys.marker, target)
        cluster.move_keys(source, target, *keys.all)
        cluster.end_move(keys.marker, target)
        run(driver, 2)
        driver.settle(batch_of(2))
        assert cluster.owner_of(keys.marker) is target
        assert_counts(driver.client, keys, 3)
        assert results.clicks_of("user 1") == 6


@pytest.mark.remedy(Remedy.WAIT_FOR_SLOT)
@pytest.mark.parametrize(
    ("moved", "code"),
    [("none", "ASK"), ("the marker", "TRYAGAIN"), ("all", "ASK")],
)
def test_slot_being_moved_is_waited_for(
    cluster: RedisCluster, impatient: pytest.MonkeyPatch, moved: str, code: str
) -> None:
    keys = new_keys()
    run(Driver(cluster.url, keys), 0)
    target = other_master(cluster, cluster.owner_of(keys.marker))
    source = cluster.begin_move(keys.marker, target)
    if moved != "none":
        cluster.move_keys(source, target, *([keys.marker] if moved == "the marker" else keys.all))
    with pytest.raises(redis.RedisError) as raised:
        Driver(cluster.url, keys).acquire(batch_of(1))
    assert code_of(raised.value) == code
    remedies.find(Remedy.WAIT_FOR_SLOT, failed(cluster.url, "in batch 1", raised.value))
    impatient.undo()

    def end() -> None:
        cluster.move_keys(source, target, *keys.all)  # MIGRATE skips keys that have already moved.
        cluster.end_move(keys.marker, target)

    ending = threading.Timer(0.3, end)
    ending.start()
    driver = Driver(cluster.url, keys)
    driver.acquire(batch_of(1))  # It waits; the read of the marker, the first step of a batch, does not.
    run(driver, 1)
    ending.join()
    assert cluster.owner_of(keys.marker) is target
    assert_counts(driver.client, keys, 2)


def test_bucket_at_other_node_is_waited_for(cluster: RedisCluster) -> None:
    """A script may change buckets that are not among its KEYS, which a moving slot may have at the other node."""
    keys = keys_with()
    name = keys.indexes[0].key.rpartition(":")[0]
    driver = Writer(cluster.url, keys)
    total: IntervalRow = ("total", b"a", 1, None)
    driver.write(0, [total, *intervals_of([("ada", 100, 1)])])
    target = other_master(cluster, cluster.owner_of(keys.marker))
    source = cluster.begin_move(keys.marker, target)
    cluster.move_keys(source, target, f"{name}:hour:60")

    def end() -> None:
        cluster.move_keys(source, target, *keys.all, f"{name}:visits:ada", f"{name}:hour:60", f"{name}:day:0")
        cluster.end_move(keys.marker, target)

    ending = threading.Timer(0.3, end)
    ending.start()
    driver.write(1, [total, *intervals_of([("ada", 120, 1)])])
    ending.join()
    assert stored(driver) == {"ada": [(100, 120, 2, 2)]}


def test_moved_bucket_is_removed_later(cluster: RedisCluster) -> None:
    """Retention must not fail after the script's first write."""
    keys = new_buckets()
    keys = replace(keys, buckets=keys.buckets[:2])
    driver = Writer(cluster.url, keys)
    total: IntervalRow = ("total", b"a", 1, None)
    driver.write(0, [total, *rows_at(0, "a")[:2]])
    target = other_master(cluster, cluster.owner_of(keys.marker))
    source = cluster.begin_move(keys.marker, target)
    old = f"{keys.indexes[0].key}:0"
    cluster.move_keys(source, target, old)
    driver.client.hset(keys.marker, "newest_ms", 1_000)
    driver.write(1, [total])
    assert driver.client.hget(keys.increments[0].key, "a") == b"2"
    cluster.move_keys(source, target, *keys.all, f"{keys.indexes[1].key}:0")
    cluster.end_move(keys.marker, target)
    assert redis_pool.client(cluster.url, keys.marker).zrange(keys.indexes[0].key, 0, -1) == [b"0"]
    driver.write(2, [total])
    assert not driver.client.exists(old, keys.indexes[0].key)
    assert driver.client.hget(keys.increments[0].key, "a") == b"3"


@pytest.mark.remedy(Remedy.CLUSTER_ADDRESS)
def test_address_of_one_node_is_refused(cluster: RedisCluster) -> None:
    keys = new_keys()
    wrong = other_master(cluster, cluster.owner_of(keys.marker))
    url = f"redis://127.0.0.1:{wrong.port}"
    with pytest.raises(redis.ResponseError) as raised:
        Driver(url, keys).acquire(batch_of(0))
    remedies.find(Remedy.CLUSTER_ADDRESS, failed(url, "in batch 0", raised.value))
    address = "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in cluster.masters[:2])
    driver = Driver(address, keys)
    run(driver, 0, 1)
    assert_counts(driver.client, keys, 2)


@pytest.mark.remedy(Remedy.HASH_KEY_IN_BRACES)
def test_keys_of_several_slots_are_refused(cluster: RedisCluster) -> None:
    keys = replace(new_keys(), increments=(Increment("count", "one"), Increment("os", "another")))
    with pytest.raises(redis.ResponseError) as raised:
        Driver(cluster.url, keys).acquire(batch_of(0))
    remedies.find(Remedy.HASH_KEY_IN_BRACES, failed(cluster.url, "in batch 0", raised.value))
    hash_key = keys.marker.partition("}")[0] + "}"
    driver = Driver(
        cluster.url, replace(keys, increments=(Increment("count", hash_key), Increment("os", f"{hash_key}:os")))
    )
    run(driver, 0, 1)
    assert driver.client.hget(f"{hash_key}:os", "Android") == b"12"


@pytest.mark.remedy(Remedy.PLAIN_ADDRESS)
def test_cluster_address_of_a_single_server(redis_server: RedisProcess) -> None:
    with pytest.raises(RedisAddressInvalid, match="is not a cluster") as raised:
        redis_pool.client(f"redis+cluster://127.0.0.1:{redis_server.port}", "key")
    remedies.find(Remedy.PLAIN_ADDRESS, raised.value)
    assert redis_pool.client(f"redis://127.0.0.1:{redis_server.port}/1", "key").ping()


def test_some_given_nodes_may_be_down(cluster: RedisCluster) -> None:
    client: Any = redis_pool.client(cluster.url.replace("://", "://127.0.0.1:1,"), new_keys().marker)
    assert client.ping()


def test_unreachable_cluster_is_reported(impatient: pytest.MonkeyPatch) -> None:
    impatient.setattr(redis_pool, "RETRIES", 0)
    with pytest.raises(redis.ConnectionError, match=r"the owner of slot \d+ was not found: 127.0.0.1:1"):
        redis_pool.client("redis+cluster://127.0.0.1:1", "key")


def test_readers_and_reset_on_a_cluster(cluster: RedisCluster) -> None:
    keys = new_keys()
    driver = Driver(cluster.url, keys)
    run(driver, 0, 1)
    count = keys.increments[0].key
    wanted = expected_counts(2)["count"]
    with Results(cluster.url, count) as results:
        marker, users = results.users()
    assert (marker.batch, users) == (1, {uid.decode(): clicks for uid, clicks in wanted.items()})
    counts = read_counts(cluster.url, ReadKeys(count))
    assert {uid: int(clicks) for uid, clicks in counts.hashes[count].items()} == wanted
    sink_keys = redis_keys(cluster.url, count, [])
    assert set(sink_keys.own) == set(keys.own)
    forget_redis_keys(cluster.url, sink_keys)
    assert not driver.client.exists(*keys.all)


@pytest.mark.remedy(Remedy.START_NODE)
def test_cluster_without_a_node_is_waited_for(own_cluster: RedisCluster, impatient: pytest.MonkeyPatch) -> None:
    dead, alive = own_cluster.masters[1:]
    keys = keys_at(own_cluster, alive)
    run(Driver(own_cluster.url, keys), 0)
    dead.kill()
    own_cluster.detect_failures()

    def is_down() -> bool:
        try:
            Driver(own_cluster.url, keys).acquire(batch_of(1))
        except redis.RedisError as error:
            return code_of(error) == "CLUSTERDOWN"
        return False

    wait_until(is_down, "CLUSTERDOWN")
    with pytest.raises(redis.RedisError) as raised:
        Driver(own_cluster.url, keys).acquire(batch_of(1))
    remedies.find(Remedy.START_NODE, failed(own_cluster.url, "in batch 1", raised.value))
    impatient.undo()
    starting = threading.Timer(0.3, dead.start)
    starting.start()
    driver = Driver(own_cluster.url, keys)
    driver.acquire(batch_of(1))
    run(driver, 1)
    starting.join()
    assert_counts(driver.client, keys, 2)


def test_replica_that_lacks_a_chunk_takes_over(own_cluster: RedisCluster) -> None:
    master, replica = own_cluster.masters[0], own_cluster.nodes[-1]
    keys = keys_at(own_cluster, master)
    driver = Driver(own_cluster.url, keys)
    run(driver, 0)
    batch = batch_of(1)
    driver.begin(batch)
    rows = [[row for row in rows_of(1) if chunk_of(row) == number] for number in range(CHUNKS)]
    driver.chunk(batch, 0, rows[0])
    wait_until(lambda: driver.client.wait(1, 100) == 1, "a replica that has chunk 0")
    with losing_writes(own_cluster, master, replica):
        driver.chunk(batch, 1, rows[1])
    driver.chunk(batch, 2, rows[2])
    assert own_cluster.owner_of(keys.marker) is replica
    with pytest.raises(MarkerMoved, match="lacks acknowledged chunk 1 of 3"):
        driver.complete(batch)
    run(driver, 1, 2)
    assert_counts(driver.client, keys, 3)
    master.start()
    wait_until(lambda: own_cluster.admin(master).info("replication")["role"] == "slave", "a master that follows")
    run(driver, 3)
    assert_counts(driver.client, keys, 4)


def test_pool_of_one_server_is_not_routed(redis_server: RedisProcess) -> None:
    pool: Any = redis_pool.client(redis_server.url).connection_pool
    assert not redis_route.is_routed(pool)
    redis_pool.close(redis_server.url)


@pytest.mark.campaign
@pytest.mark.timeout(900)
def test_repeated_failovers_while_writing(new_redis: Callable[..., RedisProcess], tmp_path: Path) -> None:
    """A cluster's node dies ten times under the sink, five times with unreplicated writes; the sums stay exact."""
    cluster = RedisCluster(new_redis, replicas=1)
    cluster.detect_failures()
    owner, replica = cluster.masters[0], cluster.nodes[-1]
    keys, chance = keys_at(cluster, owner), random.Random(11)
    files = SparkFiles(tmp_path / "long")
    driver = Driver(cluster.url, keys, checkpoint=LocalCheckpoint(files.directory))
    number, repaired = 0, 0

    def write_next() -> None:
        nonlocal driver, number, repaired
        files.plan(number, {"clicks": {"0": 10 * number}})
        for _ in range(3):
            try:
                steps = list(driver.steps(batch_of(number)))
            except (redis.RedisError, OnceflowError):
                driver = Driver(cluster.url, keys, checkpoint=driver.checkpoint)
                continue
            repaired += sum(step.startswith("repair: batch") and step.endswith("complete") for step in steps)
            number += 1
            return
        raise AssertionError(f"batch {number} is not written after three attempts")

    for failover in range(10):
        for _ in range(chance.randrange(3, 30)):
            write_next()
        if failover % 2:
            with losing_writes(cluster, owner, replica):
                for _ in range(chance.randrange(1, 10)):
                    write_next()
        else:
            dying = threading.Timer(chance.uniform(0, 0.05), owner.kill)
            dying.start()
            for _ in range(5):
                write_next()
            dying.join()
        write_next()
        assert cluster.owner_of(keys.marker) is replica
        assert_counts(driver.client, keys, number, repaired=True)
        owner.start()
        follows = cluster.admin(owner)
        wait_until(lambda node=follows: node.info("replication").get("master_link_status") == "up", "a replica")  # type: ignore[misc]
        owner, replica = replica, owner
    print(f"\nten failovers of a cluster's node over {number} batches: {repaired} repair steps, 0 wrong sums")
    redis_pool.close()
