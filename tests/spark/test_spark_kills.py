"""Redis and executors are killed -9 repeatedly while real Spark writes; the outputs must be exact."""

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from onceflow.client.cluster import Cluster
from onceflow.redis import pool as redis_pool
from onceflow.spark.exactly_once.checkpoint import LocalCheckpoint
from onceflow.spark.read_again import read_again
from onceflow.spark.redis import scripts as redis_scripts
from tests.campaigns import RecordProperty
from tests.conftest import RedisProcess
from tests.spark.driver_on_executors import STOP
from tests.spark.redis_servers import append_only_file
from tests.spark.slow_workers import is_too_slow
from tests.spark.test_kafka_sink import Copy, expected
from tests.spark.test_redis_sink_stream import Job, to_rows

EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
EXECUTORS = 2
EXECUTOR_KILLS = 50


class KilledRedis:
    """A query that counts values while its Redis is killed, and is restarted when it stops.

    `power_cuts` is the share of kills that also truncate the append-only file.
    """

    def __init__(self, job: Job, server: RedisProcess, seed: int, power_cuts: float = 0.0) -> None:
        self.job, self.server, self.chance = job, server, random.Random(seed)
        self.sent: Counter[bytes] = Counter()
        self.kills = self.losses = self.stops = 0
        self._power_cuts = power_cuts
        self._producer = Producer({"bootstrap.servers": job.bootstrap})

    def count(self, kills: int) -> None:
        while self.kills < kills:
            sink = self.job.sink(rebuild=self._rebuild)
            try:
                sink.open(self.job.spark)
                writer = self.job.counted().writeStream.foreachBatch(sink)
                query = writer.option("checkpointLocation", str(self.job.checkpoint)).start()
                while query.isActive and self.kills < kills:
                    if self.chance.random() < self._power_cuts:
                        self._send_and_cut_power(query)
                    else:
                        self._send_and_kill()
                query.stop()
                # A stopped query has an error of the sink; the next start continues.
                failure = query.exception()
                assert failure is None or sink.failure is not None or is_too_slow(failure), failure
                self.stops += sink.failure is not None
            finally:
                sink.close()
        self.job.run(self.job.counted(), self.job.sink(rebuild=self._rebuild))
        assert self.job.counts() == self.sent

    def _send(self) -> None:
        for _ in range(self.chance.randrange(1, 40)):
            value = b"value-%d" % self.chance.randrange(50)
            self._producer.produce(self.job.topic, value=value, partition=self.chance.randrange(2))
            self.sent[value] += 1
        assert self._producer.flush(30) == 0

    def _send_and_kill(self) -> None:
        self._send()
        time.sleep(self.chance.uniform(0, 0.4))
        self.server.kill()
        self.server.start()
        self.kills += 1

    def _send_and_cut_power(self, query: StreamingQuery) -> None:
        """Kill Redis and truncate its file, so that at least one committed batch and the current one are lost."""
        file, sizes = append_only_file(self.server), []
        for _ in range(3):
            self._send()
            if not self._all_committed(query):
                return
            sizes.append(file.stat().st_size)
        self._send()
        time.sleep(self.chance.uniform(0, 0.4))
        self.server.kill()
        os.truncate(file, self.chance.randrange(sizes[0], sizes[-1]))
        self.server.start()
        self.kills += 1
        self.losses += 1

    def _all_committed(self, query: StreamingQuery, within_s: float = 60) -> bool:
        """Wait until all sent values are counted and committed; return False if the query stops before."""
        files = LocalCheckpoint(self.job.checkpoint)
        deadline = time.monotonic() + within_s
        while query.isActive:
            if self.job.counts() == self.sent and files.newest_batch("commits") == files.newest_batch("offsets"):
                return True
            assert time.monotonic() < deadline, f"{self.sent.total()} values are not counted within {within_s} s"
            time.sleep(0.02)
        return False

    def _rebuild(self, missing: Any) -> Any:
        options = {"kafka.bootstrap.servers": self.job.bootstrap, "subscribe": self.job.topic}
        return to_rows(read_again(self.job.spark, options, missing))


@pytest.fixture
def new_killed(
    spark: SparkSession,
    bootstrap: str,
    cluster: Cluster,
    topic: str,
    checkpoint: Path,
    new_redis: Callable[..., RedisProcess],
) -> Iterator[Callable[..., KilledRedis]]:
    cluster.create_topic(topic, 2)

    def make(seed: int, *, power_cuts: float = 0.0, **settings: str) -> KilledRedis:
        server = new_redis(**settings)
        return KilledRedis(Job(spark, bootstrap, topic, server.url, checkpoint), server, seed, power_cuts)

    yield make
    redis_pool.close()


@pytest.fixture
def unsettled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the sink's wait for syncs of Redis."""
    monkeypatch.setattr(redis_scripts, "settle", lambda *_arguments, **_options: True)


def noticed(caplog: pytest.LogCaptureFixture) -> int:
    return sum("counting the missing offsets again from the log" in message for message in caplog.messages)


def repaired(caplog: pytest.LogCaptureFixture) -> int:
    return sum("is repaired up to batch" in message for message in caplog.messages)


def test_redis_is_killed_while_spark_writes(
    new_killed: Callable[..., KilledRedis], caplog: pytest.LogCaptureFixture
) -> None:
    new_killed(0).count(3)
    assert noticed(caplog) == repaired(caplog) == 0


@pytest.mark.usefixtures("unsettled")
def test_losses_of_redis_power_cuts_are_repaired(
    new_killed: Callable[..., KilledRedis], caplog: pytest.LogCaptureFixture
) -> None:
    killed = new_killed(11, power_cuts=1.0, appendfsync="everysec")
    killed.count(2)
    assert killed.losses == 2
    assert noticed(caplog) >= 2
    assert repaired(caplog) >= 2


@pytest.mark.campaign
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", range(5))
def test_redis_with_always_is_killed_under_spark(
    new_killed: Callable[..., KilledRedis], caplog: pytest.LogCaptureFixture, record_property: RecordProperty, seed: int
) -> None:
    """Redis with appendfsync always is killed -9 under real Spark: no batch is lost, and no repair is needed."""
    killed = new_killed(seed)
    killed.count(100)
    assert noticed(caplog) == repaired(caplog) == 0
    record_property("seeds", str(seed))
    record_property("Redis kills", killed.kills)
    record_property("values, each counted once", killed.sent.total())
    record_property("restarts", killed.stops)


@pytest.mark.campaign
@pytest.mark.timeout(1200)
@pytest.mark.usefixtures("unsettled")
@pytest.mark.parametrize("seed", range(10, 15))
def test_redis_with_everysec_is_killed_under_spark(
    new_killed: Callable[..., KilledRedis], caplog: pytest.LogCaptureFixture, record_property: RecordProperty, seed: int
) -> None:
    """Redis with appendfsync everysec is killed -9 under real Spark and loses its file's end; the loss is repaired."""
    killed = new_killed(seed, power_cuts=0.25, appendfsync="everysec")
    killed.count(100)
    assert killed.losses > 0
    assert noticed(caplog) >= killed.losses
    assert repaired(caplog) >= killed.losses
    record_property("seeds", str(seed))
    record_property("Redis kills", killed.kills)
    record_property("kills that lost committed batches", killed.losses)
    record_property("losses noticed", noticed(caplog))
    record_property("losses repaired", repaired(caplog))
    record_property("values, each counted once", killed.sent.total())
    record_property("restarts", killed.stops)


class Executors:
    """Executors of the driver that leads the process group `leader`."""

    def __init__(self, leader: int) -> None:
        self.leader = leader

    def pids(self) -> list[int]:
        shown = subprocess.run(["ps", "-axwwo", "pid=,pgid=,args="], capture_output=True, text=True, check=True).stdout
        lines = [line.split(maxsplit=2) for line in shown.splitlines() if EXECUTOR in line]
        return [int(pid) for pid, group, _ in lines if int(group) == self.leader]

    def kill_one(self, chance: random.Random, within_s: float = 300) -> None:
        deadline = time.monotonic() + within_s
        while not (pids := self.pids()):
            assert time.monotonic() < deadline, "no executor was restarted"
            time.sleep(0.1)
        os.kill(chance.choice(pids), signal.SIGKILL)


def newest_batch(checkpoint: Path) -> int:
    return LocalCheckpoint(checkpoint).newest_batch("commits")


def wait_for_batch(number: int, driver: "subprocess.Popen[bytes]", checkpoint: Path, within_s: float = 300) -> None:
    deadline = time.monotonic() + within_s
    while newest_batch(checkpoint) < number:
        assert driver.poll() is None, "the driver has ended; its error is above"
        assert time.monotonic() < deadline, f"batch {number} was not committed within {within_s} s"
        time.sleep(0.05)


@pytest.fixture
def copy(bootstrap: str, cluster: Cluster, topic: str, checkpoint: Path) -> Copy:
    """Return a query whose driver is another process."""
    no_session: Any = None
    copy = Copy(no_session, bootstrap, topic, checkpoint)
    cluster.create_topic(topic, 2)
    cluster.create_topic(copy.target, 3)
    return copy


def copy_while_executors_are_killed(copy: Copy, directory: Path, java_home: str, *, seed: int) -> int:
    """Copy records while executors are killed, one after each round of new records; return the number of records."""
    chance, count = random.Random(seed), 0
    words = (copy.bootstrap, copy.source, copy.target, copy.checkpoint, directory, java_home, EXECUTORS)
    command = [sys.executable, "-m", "tests.spark.driver_on_executors", *map(str, words)]
    driver = subprocess.Popen(command, start_new_session=True)
    try:
        running = Executors(driver.pid)
        wait_for_batch(0, driver, copy.checkpoint)
        for _ in range(EXECUTOR_KILLS):
            seen = newest_batch(copy.checkpoint)
            copy.produce(count, count + 400)
            count += 400
            time.sleep(chance.uniform(0, 1))
            running.kill_one(chance)
            wait_for_batch(seen + 1, driver, copy.checkpoint)
        copy.produce(count, count + 400)
        count += 400
        (directory / STOP).touch()
        assert driver.wait(timeout=600) == 0
    finally:
        if driver.poll() is None:
            os.killpg(driver.pid, signal.SIGKILL)
            driver.wait(timeout=30)
    return count


@pytest.mark.campaign
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("seed", range(6))
def test_executors_are_killed_while_spark_writes(
    copy: Copy, tmp_path: Path, java_home: str, record_property: RecordProperty, seed: int
) -> None:
    """Executor processes are killed -9 while they encode for Kafka; each record is written once and in order."""
    count = copy_while_executors_are_killed(copy, tmp_path, java_home, seed=seed)
    assert copy.by_key() == expected(count)
    record_property("seeds", str(seed))
    record_property("executor kills", EXECUTOR_KILLS)
    record_property("records, each written once and in order", count)
