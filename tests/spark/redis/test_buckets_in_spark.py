"""Buckets and intervals with real Spark: small and large batches, killed, repeated, repaired."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from onceflow.cli import onceflow
from onceflow.redis import pool as redis_pool
from onceflow.spark.errors import IncompatibleData
from onceflow.spark.redis import rows as redis_rows
from onceflow.spark.redis_sink import (
    BucketDistinct,
    BucketIncrement,
    BucketRanking,
    Increment,
    IntervalBuckets,
    Intervals,
    MissingRanges,
    RedisSink,
)
from tests.spark.exactly_once.test_checkpoint import SparkFiles
from tests.spark.redis.chunking import DRIVER, TASKS, WHOLE, let_write, write_in
from tests.spark.redis.test_buckets import Row
from tests.spark.redis.test_buckets import buckets as buckets_of
from tests.spark.redis.test_intervals import rows_of as intervals_of
from tests.spark.redis.test_intervals import sessions_of
from tests.spark.test_redis_sink import Killed, kill_before

WIDTH, KEPT, SETS_MAX = 10, 60, 4
INDEXES = ("sum", "top", "users", "visits", "hour")
COLUMNS = pa.schema([("target", pa.string()), ("field", pa.binary()), ("amount", pa.int64()), ("value", pa.binary())])


def events_of(number: int) -> list[tuple[str, int, int]]:
    """Return a batch's events: user, time, clicks. Batch 0 is empty; times overlap with those of other batches.

    The last two are equal, and of different tasks.
    """
    events = [(f"user {user}", 20 * number + 7 * user % 30, user % 3) for user in range(8)]
    return [*events, *[("twin", 20 * number, 0)] * 2] if number else []


def rows_of(number: int) -> list[Row]:
    events = events_of(number)
    rows: list[Row] = [("total", b"events", len(events), None)]
    for user, time, clicks in events:
        start = time // WIDTH * WIDTH
        rows += [
            ("sum", b"%d:events" % start, 1, None),
            ("sum", b"%d:clicks" % start, clicks, None),
            ("top", b"%d:%s" % (start, user.encode()), clicks, None),
            *[("users", b"%d:" % start, 0, user.encode())] * 2,
        ]
    return [*rows, *intervals_of(events[::2]), *intervals_of(events[1::2])]


class Query:
    """Successive starts of one query."""

    def __init__(self, url: str, spark: SparkSession, directory: Path) -> None:
        self.url, self.spark = url, spark
        self.files = SparkFiles(directory)
        self.sink: RedisSink | None = None

    @property
    def client(self) -> Any:
        return redis_pool.client(self.url)

    def start(self) -> RedisSink:
        self.close()
        self.sink = RedisSink(
            self.url,
            hash_key="{times}",
            increments=[Increment("total", "{times}")],
            buckets=[
                BucketIncrement("sum", "{times}:sum", WIDTH, KEPT, "{times}", "events"),
                BucketRanking("top", "{times}:top", WIDTH),
                BucketDistinct("users", "{times}:users", WIDTH, None, SETS_MAX),
                Intervals("visits", "{times}:visits", 30, None, (IntervalBuckets("{times}:hour", 60),)),
            ],
            checkpoint=str(self.files.directory),
            plan="times",
            rebuild=self.rebuild,
        )
        return self.sink

    def rebuild(self, missing: MissingRanges) -> Any:
        (part,) = missing.ranges
        return self.frame([row for end in range(part.begin + 10, part.end + 1, 10) for row in rows_of(end // 10)])

    def frame(self, rows: Sequence[Row]) -> Any:
        columns = list(zip(*rows, strict=True)) or [()] * 4
        arrays = [pa.array(column, field.type) for column, field in zip(columns, COLUMNS, strict=True)]
        return self.spark.createDataFrame(pa.table(arrays, schema=COLUMNS)).repartition(3)

    def batch(self, number: int) -> None:
        self.files.plan(number, {"clicks": {"0": 10 * number}})
        assert self.sink is not None
        self.sink(self.frame(rows_of(number) if number else []), number)
        self.files.commit(number)

    def close(self) -> None:
        if self.sink is not None:
            self.sink.close()

    def state(self) -> dict[str, Any]:
        return {name: buckets_of(self.client, f"{{times}}:{name}") for name in INDEXES}


@pytest.fixture
def query(redis_server: Any, spark: SparkSession, tmp_path: Path) -> Iterator[Query]:
    redis_pool.client(redis_server.url).flushall()
    made = Query(redis_server.url, spark, tmp_path / "checkpoint")
    yield made
    made.close()
    redis_pool.close(redis_server.url)


def assert_counted(query: Query, batches: int) -> None:
    """Assert that every bucket follows from the events of these batches."""
    events = [event for number in range(batches) for event in events_of(number)]
    starts = [time // WIDTH * WIDTH for _, time, _ in events]
    state = query.state()
    sums = {b"%d" % start: {b"events": 0, b"clicks": 0} for start in starts}
    top: dict[bytes, dict[bytes, float]] = {start: {} for start in sums}
    members: dict[bytes, set[bytes]] = {start + b":": set() for start in sums}
    for (user, _, clicks), start in zip(events, starts, strict=True):
        bucket, name = b"%d" % start, user.encode()
        sums[bucket][b"events"] += 1
        sums[bucket][b"clicks"] += clicks
        top[bucket][name] = top[bucket].get(name, 0) + clicks
        members[bucket + b":"].add(name)
    newest = max(time for _, time, _ in events)
    kept = {start: values for start, values in sums.items() if int(start) >= newest - KEPT}
    assert state["sum"] == kept
    assert state["top"] == top
    assert {start: len(users) if len(users) > SETS_MAX else users for start, users in members.items()} == state["users"]
    sessions = sessions_of(events)
    visits = {
        user.decode(): [tuple(map(int, member.split(b","))) for member in members]
        for user, members in state["visits"].items()
    }
    assert visits == sessions
    assert sum(bucket[b"intervals"] for bucket in state["hour"].values()) == sum(map(len, sessions.values()))
    assert query.client.hget("{times}", "events") == b"%d" % len(events)


@pytest.mark.parametrize("way", [WHOLE, DRIVER, TASKS])
def test_killed_repeated_and_repaired(query: Query, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    write_in(way, 20, monkeypatch)
    query.start()
    for number in range(3):
        query.batch(number)
    assert_counted(query, 3)
    past = {key: query.client.dump(key) for key in query.client.scan_iter("*")}
    with monkeypatch.context() as patch:
        kill_before(patch, "whole" if way == WHOLE else "complete")
        with pytest.raises(Killed):
            query.batch(3)
    query.start()
    for number in (3, 3, 4):
        query.batch(number)
    assert_counted(query, 5)
    query.client.flushall()
    for key, value in past.items():
        query.client.restore(key, 0, value)
    query.start()
    query.batch(5)
    assert_counted(query, 6)


@pytest.mark.parametrize("lost", ["{times}:top:20", "{times}:visits:user 1", "{times}:sum"])
def test_lost_bucket_is_counted_again(query: Query, lost: str) -> None:
    """A check finds it, and so does the next batch that touches it."""
    sink = query.start()
    for number in range(4):
        query.batch(number)
    query.client.unlink(lost)
    sink.check()
    assert_counted(query, 4)
    query.client.unlink(lost)
    query.batch(4)
    sink.check()
    assert_counted(query, 5)


def test_sink_show_and_reset(query: Query) -> None:
    query.start()
    for number in range(3):
        query.batch(number)
    query.close()
    where = ["--redis", query.url, "--hash-key", "{times}", "--checkpoint", str(query.files.directory)]
    shown = CliRunner().invoke(onceflow, ["sink", "show", "redis", *where])
    assert shown.exit_code == 0, shown.output
    assert (
        f"newest time in them: {max(time for number in range(3) for _, time, _ in events_of(number))}\n" in shown.output
    )
    done = CliRunner().invoke(onceflow, ["sink", "reset", "redis", *where, "--execute"])
    assert done.exit_code == 0, done.output
    assert "9 buckets of {times}:visits at " in done.output
    assert list(query.client.scan_iter("*")) == []


@pytest.mark.parametrize("way", [WHOLE, DRIVER, TASKS])
def test_row_of_no_bucket(query: Query, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if way != WHOLE:
        monkeypatch.setattr(redis_rows, "WHOLE_ROWS_MAX", 0)
        let_write(way, monkeypatch)
    sink = query.start()
    query.batch(0)
    query.files.plan(1, {"clicks": {"0": 10}})
    with pytest.raises(IncompatibleData, match=r"'15:x' for target 'sum', which does not begin .*offsets 0 to 10"):
        sink(query.frame([("sum", b"15:x", 1, None)]), 1)
    sink = query.start()
    with pytest.raises(IncompatibleData, match="1 of 1 rows lack a field, an amount or a value or have"):
        sink(query.frame([("users", b"10:", 0, None)]), 1)
