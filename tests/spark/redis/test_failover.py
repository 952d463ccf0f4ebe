"""The sink with real Spark while a replica replaces the master that it writes to."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from onceflow.redis import pool as redis_pool
from onceflow.spark.redis import batch as redis_batch
from onceflow.spark.redis import chunks as redis_chunks
from onceflow.spark.redis import rows as redis_rows
from tests.conftest import RedisProcess
from tests.spark.exactly_once.test_checkpoint import SparkFiles
from tests.spark.redis.chunking import TASKS, let_write
from tests.spark.redis_servers import RedisCluster, Sentinel, losing_writes, wait_until, watched
from tests.spark.test_redis_sink import CHUNKS, Sinks, assert_counted, marker_of


@pytest.fixture
def files(tmp_path: Path) -> SparkFiles:
    made = SparkFiles(tmp_path / "checkpoint")
    made.plan(0, {"clicks": {"0": 0}})
    return made


@pytest.fixture
def start(files: SparkFiles, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Sinks]]:
    """Return a function that makes the sinks of an address; every batch is cut into chunks of some ten rows."""
    monkeypatch.setattr(redis_rows, "WHOLE_ROWS_MAX", 0)
    monkeypatch.setattr(redis_chunks, "ROWS_PER_CHUNK", 44)
    let_write(TASKS, monkeypatch)
    made: list[Sinks] = []

    def make(url: str) -> Sinks:
        made.append(Sinks(url, files, spark))
        return made[-1]

    yield make
    for sinks in made:
        sinks.close()
    redis_pool.close()


@pytest.fixture
def sentinel(tmp_path: Path, new_redis: Callable[..., RedisProcess]) -> Iterator[Sentinel]:
    with watched(tmp_path / "sentinel", new_redis) as made:
        yield made


def test_master_dies_with_unreplicated_chunks(
    sentinel: Sentinel, start: Callable[[str], Sinks], monkeypatch: pytest.MonkeyPatch
) -> None:
    sinks = start(sentinel.url)
    sink = sinks.start()
    sinks.run(sink, 0)
    first_owner = marker_of(sentinel.admin(sentinel.master))["owner"]
    write_chunks = redis_chunks.write_chunks
    missing_each_time: list[tuple[int, ...]] = []

    def lose_two(sums: Any, writer: Any, *, chunks: int, missing: tuple[int, ...]) -> None:
        missing_each_time.append(tuple(missing))
        if len(missing_each_time) == 1:
            with losing_writes(sentinel, sentinel.master, sentinel.replica):
                write_chunks(sums, writer, chunks=chunks, missing=missing[:2])
            missing = missing[2:]
        write_chunks(sums, writer, chunks=chunks, missing=missing)

    monkeypatch.setattr(redis_chunks, "write_chunks", lose_two)
    monkeypatch.setattr(redis_batch.BatchWriter, "_run", replicated(redis_batch.BatchWriter._run, sentinel))
    sinks.run(sink, 1)
    assert missing_each_time == [tuple(range(CHUNKS)), (0, 1)]
    sinks.run(sink, 2)
    promoted = sentinel.admin(sentinel.replica)
    assert_counted(promoted, 3)
    assert int(marker_of(promoted)["owner"]) > int(first_owner)  # So that late writes of the first attempt are refused.


def replicated(run: Callable[..., None], sentinel: Sentinel) -> Callable[..., None]:
    """Wait after each of the driver's scripts until the replica has its writes, while the master runs."""
    client = redis_pool.client(sentinel.url)

    def run_and_wait(*arguments: Any) -> None:
        run(*arguments)
        if sentinel.master.is_running:
            wait_until(lambda: client.wait(1, 100) == 1, "a replica in step")

    return run_and_wait


@pytest.mark.campaign  # tests/spark/redis/test_cluster.py has the same without Spark.
def test_losses_of_cluster_failover_are_repaired(
    new_redis: Callable[..., RedisProcess], start: Callable[[str], Sinks]
) -> None:
    """A cluster's failover loses two committed batches; the sink counts them again from the log."""
    cluster = RedisCluster(new_redis, replicas=1)
    master = cluster.owner_of("counts")
    replica = cluster.nodes[-1]
    if master is not cluster.masters[0]:
        cluster.replicate(replica, master)
    sinks = start(cluster.url)
    sink = sinks.start(rebuild=sinks.rebuild)
    sinks.run(sink, 0, 1)
    assert redis_pool.client(cluster.url, "counts").wait(1, 2_000) == 1
    with losing_writes(cluster, master, replica):
        sinks.run(sink, 2, 3)
    sinks.run(sink, 4)
    assert [(part.begin, part.end) for missing in sinks.rebuilt for part in missing.ranges] == [(10, 20), (20, 30)]
    assert cluster.owner_of("counts") is replica
    assert_counted(cluster.admin(replica), 5, repaired=True)
    print("a failover that lost two committed batches: recounted, each event once")
