"""Live counts on a real broker and a real Redis; a sink without Spark advances the marker by the real scripts."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
import redis as redis_clients

from onceflow.clicks import live as lives
from onceflow.clicks import now as nows
from onceflow.clicks.events import Click, Rules
from onceflow.clicks.live import Live, View
from onceflow.clicks.now import Counts
from onceflow.clicks.pipeline import ClickPipeline
from onceflow.clicks.plan import Plan
from onceflow.clicks.results import Keys, Results
from onceflow.client.admin import Admin
from onceflow.client.cluster import LATEST, Cluster
from onceflow.client.producer import EventWriter
from onceflow.client.records import read_records
from onceflow.redis import pool as redis_pool
from onceflow.spark.exactly_once.batch import Batch
from onceflow.spark.offsets import OffsetRange
from onceflow.spark.redis import scripts as redis_scripts
from onceflow.spark.redis.targets import Append, Increment
from onceflow.testing import BrokerProcess
from tests.clicks.counting_run import CountingRun
from tests.conftest import WITHIN_S, RedisProcess
from tests.spark.redis_steps import CHUNKS, Driver, chunk_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTITIONS = 3
PLAN = json.dumps({"counts": "clicks", "key_field": "uid", "value_field": "click_count"})


class StandInSink(Driver):
    """The pipeline's sink without Spark: it counts the log up to given offsets, with the sink's own scripts."""

    def __init__(self, url: str, hash_key: str, bootstrap: str, topic: str) -> None:
        names = Keys(hash_key)
        increments = (
            Increment("count", names.count, names.top),
            Increment("os", names.os),
            Increment("totals", names.totals),
            Increment("bad", names.bad),
        )
        super().__init__(url, redis_scripts.Keys(names.marker, names.history, increments, ()))
        self.bootstrap, self.topic = bootstrap, topic

    def lists(self, batch: Batch) -> list[Any]:
        ends = {str(part.partition): part.end for part in batch.ranges}
        entry = {"batch": batch.number, "finished_ms": 1, "events": batch.size_offsets, "offsets": ends}
        return redis_scripts.list_arguments(self.keys, Append("history", self.keys.history, 5), json.dumps(entry), {})

    def count(self, ends: dict[int, int], *, in_chunks: bool = False, begins: dict[int, int] | None = None) -> None:
        """Count the offsets after the marker's up to `ends`, all at once or with a pause after each script."""
        marker = self.marker()
        counted = (marker.offsets or {}).get(self.topic, {}) if marker else {}
        first = {number: counted.get(str(number), 0) for number in ends} | (begins or {})
        parts = tuple(OffsetRange(self.topic, number, first[number], end) for number, end in ends.items())
        batch = Batch("query-1", marker.batch + 1 if marker else 0, parts, PLAN, 1)
        self.acquire(batch)
        rows = self.rows_between(first, ends)
        if not in_chunks:
            self.whole(batch, rows)
            return
        self.begin(batch)
        for number in range(CHUNKS):
            time.sleep(0.1)
            self.chunk(batch, number, [row for row in rows if chunk_of(row) == number])
        time.sleep(0.1)
        self.complete(batch)

    def count_everything(self, *, in_chunks: bool = False) -> None:
        with Cluster(self.bootstrap) as cluster:
            ends = cluster.list_offsets(self.topic, dict.fromkeys(range(PARTITIONS), LATEST))
        self.count({number: at.offset for number, at in ends.items()}, in_chunks=in_chunks)

    def rows_between(self, begins: dict[int, int], ends: dict[int, int]) -> list[tuple[str, bytes, int]]:
        counts = Counts()
        with Cluster(self.bootstrap) as cluster:
            for number, end in ends.items():
                for record in read_records(cluster, self.topic, number, begins[number], end):
                    counts.add(Rules().judge(record.value))
        totals = {"events": counts.events, "clicks": counts.clicks, "bad": counts.bad}
        sums = {"count": counts.by_user, "os": counts.by_os, "totals": totals, "bad": counts.by_reason}
        return [(target, name.encode(), n) for target, part in sums.items() for name, n in part.items()]


class Checker(threading.Thread):
    """Writer of events, which knows what was sent; and a reader of the live counts, which checks each of them."""

    def __init__(self, live: Live, bootstrap: str, topic: str, seed: int = 0) -> None:
        super().__init__()
        self.live, self.bootstrap, self.topic = live, bootstrap, topic
        self.random = Random(seed)
        self.sent = Counts()
        self.acknowledged = [(0.0, 0)]
        """Times, and the number of events acknowledged until then."""
        self.failures: list[str] = []
        self.views: list[View] = []
        self.highest = 0
        self.is_over = threading.Event()

    def __enter__(self) -> "Checker":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.is_over.set()
        self.join()
        assert self.failures == []

    def write(self, number: int, users: int = 50) -> None:
        """Write events, and wait until all of them are acknowledged."""
        with EventWriter(self.bootstrap, self.topic) as writer:
            for _ in range(number):
                click = Click(f"user{self.random.randrange(users)}", self.random.randrange(9), self.random.choice("ab"))
                event = {"uid": click.uid, "click_count": click.clicks, "os_type": click.os_type}
                value = json.dumps(event).encode() if self.random.random() < 0.9 else b"nonsense"
                self.sent.add(Rules().judge(value))
                writer.write(None, value, partition=self.random.randrange(PARTITIONS))
        self.acknowledged.append((time.time_ns() / 1e6, self.sent.events))

    def run(self) -> None:
        while not self.is_over.is_set():
            view = self.live.view()
            if view.snapshot is not None:
                self.check(view, view.snapshot.events)
            time.sleep(0.002)

    def check(self, view: View, events: int) -> None:
        least = max(number for at_ms, number in self.acknowledged if at_ms < (view.as_of_ms or 1))
        if events < self.highest:
            self.failures.append(f"{events} events after {self.highest}")
        if not least <= events <= self.sent.events:
            self.failures.append(f"{events} events, {least} acknowledged, {self.sent.events} sent")
        self.highest = max(self.highest, events)

    def await_everything(self, *, not_counted: int | None = None) -> None:
        """Wait until all events sent are shown, and compare every number."""
        sent = self.sent
        view = await_view(
            self.live,
            lambda view: (
                view.snapshot is not None
                and view.snapshot.events == sent.events
                and not_counted in (None, view.not_counted)
            ),
        )
        shown = view.snapshot
        assert shown is not None
        assert (shown.clicks, shown.bad, shown.users) == (sent.clicks, sent.bad, len(sent.by_user))
        assert (shown.by_os, shown.bad_by_reason) == (sent.by_os, sent.by_reason)
        assert shown.top == sorted(sent.by_user.items(), key=lambda entry: (-entry[1], entry[0]))[: lives.TOP_USERS]
        for uid, clicks in sent.by_user.items():
            user = self.live.clicks_of(uid)
            assert (user.clicks, user.is_live) == (clicks, True)
        assert self.live.clicks_of("stranger").clicks is None


def await_view(live: Live, holds: Callable[[View], bool]) -> View:
    deadline = time.monotonic() + WITHIN_S
    while not holds(view := live.view()):
        assert time.monotonic() < deadline, view
        time.sleep(0.01)
    return view


def save(server: RedisProcess) -> None:
    """Let Redis return with this state after a kill."""
    with redis_clients.Redis.from_url(server.url) as client:
        client.save()


def kill(server: RedisProcess) -> None:
    server.kill()
    redis_pool.close(server.url)


@pytest.fixture
def hash_key(topic: str) -> str:
    return f"test::{topic}"


@pytest.fixture
def start_live() -> Iterator[Callable[..., Live]]:
    """A factory of started live counts; all are closed after the test."""
    started: list[Live] = []

    def start(url: str, hash_key: str, bootstrap: str, topic: str, **options: Any) -> Live:
        with Cluster(bootstrap) as cluster:
            if topic not in cluster.topics(topic):
                cluster.create_topic(topic, PARTITIONS)
        live = Live(Results(url, hash_key), bootstrap, topic, **options)
        started.append(live)
        live.start()
        return live

    yield start
    for live in started:
        live.close()


StartLive = Callable[..., Live]


def test_counts_while_micro_batches_advance(
    start_live: StartLive, redis_server: RedisProcess, hash_key: str, bootstrap: str, topic: str
) -> None:
    """Micro-batches end anywhere; some are written in chunks, one of them is left half written for a while."""
    live = start_live(redis_server.url, hash_key, bootstrap, topic)
    sink = StandInSink(redis_server.url, hash_key, bootstrap, topic)
    assert live.wait_until_live(WITHIN_S).snapshot is not None
    with Checker(live, bootstrap, topic) as checker:
        counted = dict.fromkeys(range(PARTITIONS), 0)
        for number in range(8):
            checker.write(60)
            with Cluster(bootstrap) as cluster:
                ends = cluster.list_offsets(topic, dict.fromkeys(counted, LATEST))
            counted = {part: checker.random.randint(counted[part], at.offset) for part, at in ends.items()}
            counting = threading.Thread(target=sink.count, args=(counted,), kwargs={"in_chunks": number % 2 == 1})
            counting.start()
            checker.write(60)
            counting.join()
        checker.await_everything(not_counted=checker.sent.events - sum(counted.values()))
        sink.count_everything(in_chunks=True)
        checker.await_everything(not_counted=0)


def test_redis_loses_micro_batches(
    start_live: StartLive, new_redis: Callable[..., RedisProcess], hash_key: str, bootstrap: str, topic: str
) -> None:
    """Redis is killed and returns with an earlier state; the sink then counts the lost micro-batches again.

    One of these was the first to count a partition.
    """
    server = new_redis(appendonly=False)
    live = start_live(server.url, hash_key, bootstrap, topic)
    live.wait_until_live(WITHIN_S)
    with Checker(live, bootstrap, topic) as checker:
        sink = StandInSink(server.url, hash_key, bootstrap, topic)
        checker.write(200)
        with Cluster(bootstrap) as cluster:
            ends = cluster.list_offsets(topic, {0: LATEST, 1: LATEST})
        sink.count({number: at.offset for number, at in ends.items()})
        left = 200 - sum(at.offset for at in ends.values())
        save(server)
        checker.await_everything(not_counted=left)
        for _ in range(2):
            checker.write(100, users=80)
            sink.count_everything()
            checker.await_everything(not_counted=0)
        kill(server)
        assert live.view().snapshot is not None
        server.start()
        checker.await_everything(not_counted=200 + left)
        checker.write(50, users=120)
        checker.await_everything(not_counted=250 + left)
        StandInSink(server.url, hash_key, bootstrap, topic).count_everything()
        checker.await_everything(not_counted=0)
    redis_pool.close(server.url)


def test_counts_lost_while_they_are_taken_over(
    start_live: StartLive,
    new_redis: Callable[..., RedisProcess],
    hash_key: str,
    bootstrap: str,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Redis returns with exactly the state from which its counts were taken over: nothing is counted any more."""
    server = new_redis(appendonly=False)
    live = start_live(server.url, hash_key, bootstrap, topic)
    live.wait_until_live(WITHIN_S)
    with Checker(live, bootstrap, topic) as checker:
        sink = StandInSink(server.url, hash_key, bootstrap, topic)
        checker.write(100)
        sink.count_everything()
        save(server)
        checker.await_everything(not_counted=0)
        with monkeypatch.context() as patch:
            patch.setattr(nows.Now, "replace_base", lambda *_, **__: False)
            checker.write(100)
            sink.count_everything()
            checker.await_everything(not_counted=0)
            kill(server)
            await_view(live, lambda view: view.reason is not None)
        server.start()
        checker.await_everything(not_counted=100)
    redis_pool.close(server.url)


def test_memory_for_lost_counts_is_bounded(
    start_live: StartLive, new_redis: Callable[..., RedisProcess], hash_key: str, bootstrap: str, topic: str
) -> None:
    """The records of each partition would fit, those of all do not."""
    server = new_redis(appendonly=False)
    live = start_live(server.url, hash_key, bootstrap, topic, bytes_max=1_000_000)
    live.wait_until_live(WITHIN_S)
    with Checker(live, bootstrap, topic) as checker:
        sink = StandInSink(server.url, hash_key, bootstrap, topic)
        checker.write(30)
        sink.count_everything()
        save(server)
        for _ in range(4):
            checker.write(1_000, users=1_000_000)
            sink.count_everything()
            checker.await_everything(not_counted=0)
        kill(server)
        server.start()
        view = await_view(live, lambda view: view.snapshot is None)
        assert view.reason == "the records that are not counted yet need more than 1,000,000 bytes"
    redis_pool.close(server.url)


def test_broker_restarts(
    start_live: StartLive, redis_server: RedisProcess, hash_key: str, tmp_path: Path, topic: str
) -> None:
    """The counts are kept, and become older, while the broker is away."""
    with BrokerProcess(tmp_path / "broker") as broker:
        live = start_live(redis_server.url, hash_key, broker.bootstrap, topic)
        live.wait_until_live(WITHIN_S)
        with Checker(live, broker.bootstrap, topic) as checker:
            sink = StandInSink(redis_server.url, hash_key, broker.bootstrap, topic)
            checker.write(100)
            sink.count_everything()
            checker.write(100)
            checker.await_everything(not_counted=100)
            broker.kill()
            killed_ms = time.time_ns() // 1_000_000
            view = await_view(live, lambda view: view.reason is not None)
            assert view.snapshot is not None
            assert view.snapshot.events == 200
            assert view.as_of_ms is not None
            assert view.as_of_ms <= killed_ms
            assert view.reason is not None
            assert broker.bootstrap in view.reason
            broker.start()
            checker.write(100)
            checker.await_everything(not_counted=200)
            sink.count_everything()
            checker.await_everything(not_counted=0)
            assert live.view().reason is None


def test_topic_is_trimmed_beneath(
    start_live: StartLive, redis_server: RedisProcess, hash_key: str, bootstrap: str, topic: str
) -> None:
    """Records that were not counted are lost: there are only counted numbers until the marker is beyond them."""
    live = start_live(redis_server.url, hash_key, bootstrap, topic)
    live.wait_until_live(WITHIN_S)
    sink = StandInSink(redis_server.url, hash_key, bootstrap, topic)
    with EventWriter(bootstrap, topic) as writer:
        for number in range(30):
            writer.write(None, b'{"uid":"ann","click_count":1}', partition=number % PARTITIONS)
    sink.count({0: 5, 1: 5, 2: 5})
    await_view(live, lambda view: view.not_counted == 15)
    with Cluster(bootstrap) as cluster:
        Admin(cluster).delete_records(topic, {0: 3})
    time.sleep(3 * lives.WAIT_MS / 1000)
    assert live.view().not_counted == 15, "counted records were deleted, which is no loss"
    with Cluster(bootstrap) as cluster:
        Admin(cluster).delete_records(topic, {1: 8})
    view = await_view(live, lambda view: view.snapshot is None)
    assert view.reason == f"the log of {topic}-1 starts at 8, but is counted only up to 5"
    assert (live.clicks_of("ann").clicks, live.clicks_of("ann").is_live) == (15, False)
    sink.count({0: 10, 1: 9, 2: 5}, begins={1: 8})
    view = await_view(live, lambda view: view.snapshot is not None)
    assert view.snapshot is not None
    assert (view.snapshot.events, view.not_counted) == (15 + 5 + 1 + 6, 6)


def test_memory_is_bounded(
    start_live: StartLive, redis_server: RedisProcess, hash_key: str, bootstrap: str, topic: str
) -> None:
    """Few users need little memory, however many events they have; too many are only counted numbers until later."""
    live = start_live(redis_server.url, hash_key, bootstrap, topic, bytes_max=1_000_000)
    live.wait_until_live(WITHIN_S)
    with Checker(live, bootstrap, topic) as checker:
        checker.write(8_000, users=10)
        checker.await_everything(not_counted=8_000)
        checker.write(3_000, users=3_000)
        view = await_view(live, lambda view: view.snapshot is None)
        assert view.reason == "the records that are not counted yet need more than 1,000,000 bytes"
        StandInSink(redis_server.url, hash_key, bootstrap, topic).count_everything()
        checker.await_everything(not_counted=0)


def test_only_counted_numbers_while_half_written(
    start_live: StartLive, redis_server: RedisProcess, hash_key: str, bootstrap: str, topic: str
) -> None:
    """A start while a micro-batch is half written has no complete state to begin with."""
    with Cluster(bootstrap) as cluster:
        cluster.create_topic(topic, PARTITIONS)
    sink = StandInSink(redis_server.url, hash_key, bootstrap, topic)
    with EventWriter(bootstrap, topic) as writer:
        writer.write(None, b'{"uid":"ann","click_count":4}', partition=0)
    batch = Batch("query-1", 0, (OffsetRange(topic, 0, 0, 1),), PLAN, 1)
    sink.acquire(batch)
    sink.begin(batch)
    live = start_live(redis_server.url, hash_key, bootstrap, topic)
    view = await_view(live, lambda view: view.reason == "micro-batch 0 is being written")
    assert view.snapshot is None
    for number in range(CHUNKS):
        rows = sink.rows_between({0: 0}, {0: 1})
        sink.chunk(batch, number, [row for row in rows if chunk_of(row) == number])
    sink.complete(batch)
    view = await_view(live, lambda view: view.snapshot is not None)
    assert view.snapshot is not None
    assert view.snapshot.top == [("ann", 4)]


def test_counts_of_another_job_are_refused(
    start_live: StartLive, redis_server: RedisProcess, hash_key: str, bootstrap: str, topic: str
) -> None:
    with redis_clients.Redis.from_url(redis_server.url) as client:
        client.hset(Keys(hash_key).marker, mapping={"query": "q", "batch": "1", "complete": "1", "plan": "sums"})
    live = start_live(redis_server.url, hash_key, bootstrap, topic)
    view = await_view(live, lambda view: "another job" in (view.reason or ""))
    assert view.snapshot is None


def test_a_started_job_says_what_counts(
    start_live: StartLive, redis_server: RedisProcess, hash_key: str, bootstrap: str, topic: str
) -> None:
    """The plan of a job is beside the counts before the first micro-batch."""
    live = start_live(redis_server.url, hash_key, bootstrap, topic)
    assert live.wait_until_live(WITHIN_S).snapshot is not None
    with EventWriter(bootstrap, topic) as writer:
        for _ in range(2):
            writer.write(None, b'{"uid":"ann","player":"bob","click_count":4,"points":7}')
    await_view(live, lambda view: view.snapshot is not None and view.snapshot.top == [("ann", 8)])
    job = ClickPipeline(bootstrap, topic, "unused", redis_server.url, hash_key, "player", "points")
    job.announce()
    await_view(live, lambda view: view.snapshot is not None and view.snapshot.top == [("bob", 14)])
    replace(job, event_ids_ms=60_000).announce()
    view = await_view(live, lambda view: "event id" in (view.reason or ""))
    assert view.snapshot is None, "one of the two may be a duplicate"


def test_a_started_job_says_which_topic(
    start_live: StartLive, redis_server: RedisProcess, hash_key: str, bootstrap: str, topic: str
) -> None:
    live = start_live(redis_server.url, hash_key, bootstrap, topic)
    counted = f"{topic}-counted"
    with Cluster(bootstrap) as cluster:
        cluster.create_topic(counted, 1)
    for name, uid in ((topic, b"ann"), (counted, b"bob")):
        with EventWriter(bootstrap, name) as writer:
            writer.write(None, b'{"uid":"%s","click_count":4}' % uid, partition=0)
    await_view(live, lambda view: view.snapshot is not None and view.snapshot.top == [("ann", 4)])
    ClickPipeline(bootstrap, counted, "unused", redis_server.url, hash_key).announce()
    await_view(live, lambda view: view.snapshot is not None and view.snapshot.top == [("bob", 4)])


def test_counts_without_a_marker_are_refused(
    start_live: StartLive, redis_server: RedisProcess, hash_key: str, bootstrap: str, topic: str
) -> None:
    """The marker alone is lost: without its offsets, events would be counted again."""
    live = start_live(redis_server.url, hash_key, bootstrap, topic)
    with EventWriter(bootstrap, topic) as writer:
        writer.write(None, b'{"uid":"ann","click_count":4}', partition=0)
    StandInSink(redis_server.url, hash_key, bootstrap, topic).count({0: 1})
    await_view(live, lambda view: view.snapshot is not None and view.snapshot.marker is not None)
    with redis_clients.Redis.from_url(redis_server.url) as client:
        client.delete(Keys(hash_key).marker)
    for reader in (live, start_live(redis_server.url, hash_key, bootstrap, topic)):
        view = await_view(reader, lambda view: view.reason == "there are counts without a marker")
        assert view.snapshot is None


def test_other_fields_outlive_the_marker(
    start_live: StartLive, redis_server: RedisProcess, hash_key: str, bootstrap: str, topic: str
) -> None:
    """Redis loses everything: until the job has counted again, nothing says which fields it counts."""
    live = start_live(redis_server.url, hash_key, bootstrap, topic)
    with EventWriter(bootstrap, topic) as writer:
        writer.write(None, b'{"uid":"ann","player":"bob","click_count":4,"points":7}', partition=0)
    keys = Keys(hash_key)
    plan = Plan(hash_key, "player", "points").text
    marker = {"query": "q", "batch": "0", "complete": "1", "plan": plan, "offsets": json.dumps({topic: {"0": 0}})}
    with redis_clients.Redis.from_url(redis_server.url) as client:
        client.hset(keys.marker, mapping=marker)
        await_view(live, lambda view: view.snapshot is not None and view.snapshot.top == [("bob", 7)])
        client.delete(keys.marker)
        view = await_view(live, lambda view: view.snapshot is not None and view.snapshot.marker is None)
    assert view.snapshot is not None
    assert view.snapshot.top == [("bob", 7)]


def test_new_partitions_are_read(
    start_live: StartLive, redis_server: RedisProcess, hash_key: str, bootstrap: str, topic: str
) -> None:
    live = start_live(redis_server.url, hash_key, bootstrap, topic)
    live.wait_until_live(WITHIN_S)
    with Cluster(bootstrap) as cluster:
        Admin(cluster).create_partitions(topic, PARTITIONS + 1)
    with EventWriter(bootstrap, topic) as writer:
        writer.write(None, b'{"uid":"ann","click_count":4}', partition=PARTITIONS)
    view = await_view(live, lambda view: view.not_counted == 1)
    assert view.snapshot is not None
    assert view.snapshot.clicks == 4


def test_counts_while_spark_counts(
    start_live: StartLive, spark: "SparkSession", redis_server: RedisProcess, bootstrap: str, topic: str, tmp_path: Path
) -> None:
    """Events are written before, between and during the micro-batches of the real pipeline."""
    counting = CountingRun(bootstrap, topic, redis_server, tmp_path)
    live = start_live(counting.url, counting.hash_key, bootstrap, topic)
    live.wait_until_live(WITHIN_S)
    with Checker(live, bootstrap, topic) as checker:
        checker.write(300)
        checker.await_everything(not_counted=300)
        writing = threading.Thread(target=checker.write, args=(300,))
        writing.start()
        counting.count(spark)
        writing.join()
        checker.await_everything()
        counting.count(spark)
        checker.await_everything(not_counted=0)
    counting.verify()
