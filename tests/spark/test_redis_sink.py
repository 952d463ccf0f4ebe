"""The Redis sink on a real Valkey, with real Spark where Spark's own part matters, else with simulated executors.

The tests write the checkpoint's files themselves, so that any batch can be repeated or end after any of its writes.
"""

import json
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 (Spark's own name for it)

from onceflow.cli import onceflow
from onceflow.redis import pool as redis_pool
from onceflow.redis.errors import RedisFailed
from onceflow.remedies import Remedy
from onceflow.spark.exactly_once import checkpoint_lock
from onceflow.spark.exactly_once.checkpoint import CheckpointNotSynced, LocalCheckpoint
from onceflow.spark.exactly_once.checkpoint_lock import CheckpointInUse
from onceflow.spark.reader.data_loss import DataLost
from onceflow.spark.redis import chunks as redis_chunks
from onceflow.spark.redis import rows as redis_rows
from onceflow.spark.redis import scripts as redis_scripts
from onceflow.spark.redis import settings as redis_settings
from onceflow.spark.redis_sink import (
    Append,
    IncompatibleData,
    Increment,
    MarkerRefused,
    MissingRanges,
    OwnerLost,
    RedisSink,
    RepairFailed,
    UnsuitableRedis,
)
from tests import remedies
from tests.spark import simulated_spark
from tests.spark.exactly_once.test_checkpoint import SparkFiles
from tests.spark.redis.chunking import DRIVER, TASKS, let_write

Rows = Sequence[tuple[str | None, bytes | None, int | None]]
NAMES, TYPES = ["target", "field", "amount"], [pa.string(), pa.binary(), pa.int64()]
CHUNKS = 4


@pytest.fixture
def files(tmp_path: Path) -> SparkFiles:
    made = SparkFiles(tmp_path / "checkpoint")
    made.plan(0, {"clicks": {"0": 0}})
    return made


@pytest.fixture
def redis_client(redis_server: Any) -> Iterator[Any]:
    client = redis_pool.client(redis_server.url)
    client.flushall()
    yield client
    # The last sink to close takes the pool from the process, and the client connects again.
    client.connection_pool.disconnect()
    redis_pool.close()


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut every batch into chunks of some ten rows."""
    monkeypatch.setattr(redis_rows, "WHOLE_ROWS_MAX", 0)
    monkeypatch.setattr(redis_chunks, "ROWS_PER_CHUNK", 44)


@pytest.fixture(params=[DRIVER, TASKS])
def written_chunks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, small_chunks: None) -> None:
    """Let the driver write the chunks, or Spark's tasks."""
    let_write(request.param, monkeypatch)


class Sinks:
    """Sinks of successive starts of one query."""

    def __init__(self, url: str, files: SparkFiles, spark: Any) -> None:
        self.url, self.files = url, files
        self.spark = spark
        """A session of Spark or of `simulated_spark`."""
        self.made: list[RedisSink] = []
        self.rebuilt: list[MissingRanges] = []

    def start(
        self,
        *,
        plan_version: int = 1,
        close_others: bool = True,
        rebuild: Callable[..., DataFrame] | None = None,
        name: str = "",
    ) -> RedisSink:
        if close_others:
            self.close()
        sink = RedisSink(
            self.url,
            hash_key="counts",
            increments=[Increment("count", "counts", "{counts}:top"), Increment("os", "{counts}:os")],
            appends=[Append("dead", "{counts}:dead", 3)],
            checkpoint=str(self.files.directory),
            plan="clicks",
            plan_version=plan_version,
            rebuild=rebuild,
            name=name,
        )
        self.made.append(sink)
        return sink

    def close(self) -> None:
        for sink in self.made:
            sink.close()
        self.made.clear()

    def rows(self, rows: Rows) -> Any:
        if isinstance(self.spark, simulated_spark.Session):
            return simulated_spark.Frame(self.spark, [(*row, None) for row in rows])
        columns = list(zip(*rows, strict=True)) if rows else [(), (), ()]
        table = pa.table([pa.array(column, kind) for column, kind in zip(columns, TYPES, strict=True)], NAMES)
        return self.spark.createDataFrame(table)

    def rebuild(self, missing: MissingRanges) -> Any:
        """Return the rows of the batches in these ranges, ten offsets each, as the log has them."""
        self.rebuilt.append(missing)
        (part,) = missing.ranges
        numbers = range(part.begin // 10 + 1, part.end // 10 + 1)
        return self.rows([row for number in numbers for row in added(number)])

    def batch(self, sink: RedisSink, number: int, rows: Rows | None = None) -> None:
        """Run a batch as Spark does, up to its commit; `rows` default to those of `added`."""
        self.files.plan(number, {"clicks": {"0": number * 10}})
        sink(self.rows(added(number) if rows is None else rows), number)

    def run(self, sink: RedisSink, *numbers: int) -> None:
        for number in numbers:
            self.batch(sink, number)
            self.files.commit(number)


@pytest.fixture
def sinks(
    request: pytest.FixtureRequest,
    redis_client: Any,
    redis_server: Any,
    files: SparkFiles,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Sinks]:
    """Sinks with real Spark in a test that uses the fixture `spark`, else with simulated executors."""
    if "spark" in request.fixturenames:
        session = request.getfixturevalue("spark")
    else:
        simulated_spark.stand_in(monkeypatch)
        executors = simulated_spark.Executors(random.Random(7), at=lambda _point: None)
        session = simulated_spark.Session(executors, query=lambda: None)
    made = Sinks(redis_server.url, files, session)
    yield made
    made.close()


def added(number: int) -> Rows:
    """Return the rows of a batch: 20 users in two rows each, 20 users of this batch alone, two bad events."""
    if number == 0:
        return []
    rows = [("count", f"user {user}".encode(), number) for user in range(20) for _ in range(2)]
    rows += [("count", f"batch {number} user {user}".encode(), user) for user in range(20)]
    return [
        *rows,
        ("os", b"Android", 3),
        ("dead", b"0:%d:old" % number, number),
        ("dead", b"0:%d:new" % number, number),
    ]


def assert_counted(client: Any, batches: int, *, repaired: bool = False) -> None:
    counts: dict[bytes, int] = {}
    for number in range(batches):
        for target, field, amount in added(number):
            if target == "count":
                assert field is not None
                assert amount is not None
                counts[field] = counts.get(field, 0) + amount
    assert {field: int(value) for field, value in client.hgetall("counts").items()} == counts
    assert {field: int(score) for field, score in client.zrange("{counts}:top", 0, -1, withscores=True)} == counts
    assert client.hget("{counts}:os", "Android") == (str(3 * (batches - 1)).encode() if batches > 1 else None)
    dead = [b"0:%d:%b" % (number, age) for number in range(1, batches) for age in (b"new", b"old")]
    assert client.lrange("{counts}:dead", 0, -1) == dead[::-1][:3]
    history = [json.loads(entry) for entry in client.lrange("{counts}:history", 0, -1)]
    numbers = [entry["batch"] for entry in history][::-1]
    assert numbers == (sorted(set(numbers)) if repaired else list(range(batches)))  # A repair has one or two entries.
    assert history[0]["events"] == (10 if batches > 1 else 0)
    assert history[0]["offsets"] == {"0": (batches - 1) * 10}


def marker_of(client: Any) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in client.hgetall("{counts}:onceflow").items()}


@pytest.mark.usefixtures("spark")
def test_small_batches(sinks: Sinks, redis_client: Any) -> None:
    sinks.run(sinks.start(), 0, 1, 2)
    assert_counted(redis_client, 3)
    marker = marker_of(redis_client)
    assert marker["chunks"] == "0"
    assert (marker["batch"], marker["complete"], marker["settled"]) == ("2", "1", "2")
    assert json.loads(marker["ranges"]) == {"clicks": {"0": [10, 20]}}
    assert json.loads(marker["since"]) == {"clicks": {"0": 0}}
    assert int(marker["finished_ms"]) - int(marker["started_ms"]) >= int(marker["duration_ms"]) >= 0


@pytest.mark.usefixtures("spark", "written_chunks")
def test_batches_of_chunks(sinks: Sinks, redis_client: Any) -> None:
    sinks.run(sinks.start(), 0, 1)
    assert_counted(redis_client, 2)
    marker = marker_of(redis_client)
    assert (marker["chunks"], marker["done"], marker["complete"]) == (str(CHUNKS), str(CHUNKS), "1")
    assert not [name for name in marker if name.startswith("chunk:")]


@pytest.mark.usefixtures("spark")
def test_repeated_batch_is_only_read(sinks: Sinks, redis_client: Any) -> None:
    sinks.run(sinks.start(), 0, 1)
    before = redis_client.dump("counts")
    sink = sinks.start(plan_version=2)
    sinks.batch(sink, 1)
    assert redis_client.dump("counts") == before
    reading = F.raise_error(F.lit("the rows are read")).cast("bigint").alias("amount")
    with pytest.raises(PySparkException, match="the rows are read"):
        sink(sinks.rows(added(1)).select("target", "field", reading), 1)
    sinks.run(sink, 2)
    assert_counted(redis_client, 3)


def test_checkpoint_is_synced_before_writing(sinks: Sinks, redis_client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: LocalCheckpoint, number: int) -> None:
        raise CheckpointNotSynced(f"batch {number}")

    with monkeypatch.context() as patch:
        patch.setattr(LocalCheckpoint, "prepare", broken)
        with pytest.raises(CheckpointNotSynced):
            sinks.batch(sinks.start(), 0)
    assert redis_client.keys() == []
    sinks.run(sinks.start(), 0)
    before = dict(marker_of(redis_client))
    with monkeypatch.context() as patch:
        patch.setattr(LocalCheckpoint, "prepare", broken)
        with pytest.raises(CheckpointNotSynced):
            sinks.batch(sinks.start(), 1)
    # The start has only increased the owner epoch.
    after = marker_of(redis_client)
    assert int(after.pop("owner")) > int(before.pop("owner")) and after == before


class Killed(Exception):
    """The end of the driver."""


def kill_before(monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    real = redis_scripts.run

    def run(client: Any, name: str, *arguments: Any) -> list[str]:
        if name == script:
            raise Killed
        return real(client, name, *arguments)

    monkeypatch.setattr(redis_scripts, "run", run)


def only_chunks(monkeypatch: pytest.MonkeyPatch, chunks: Sequence[int]) -> None:
    """End the driver after these chunks of the batch are written."""
    real = redis_chunks.write_chunks

    def write(sums: DataFrame, writer: Any, **options: Any) -> None:
        if chunks:
            real(sums, writer, chunks=options["chunks"], missing=chunks)
        raise Killed

    monkeypatch.setattr(redis_chunks, "write_chunks", write)


KILLS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "before acquire": lambda patch: kill_before(patch, "acquire"),
    "before begin": lambda patch: kill_before(patch, "begin"),
    "after begin": lambda patch: only_chunks(patch, []),
    "after some chunks": lambda patch: only_chunks(patch, [0, 1, 3]),
    "before complete": lambda patch: kill_before(patch, "complete"),
}


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("kill", KILLS)
def test_killed_batch_is_finished_once(
    sinks: Sinks, redis_client: Any, kill: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill_and_finish(sinks, redis_client, KILLS[kill], monkeypatch)


@pytest.mark.usefixtures("spark", "written_chunks")
@pytest.mark.parametrize("finisher", [DRIVER, TASKS])
def test_killed_spark_batch_is_finished_once(
    sinks: Sinks, redis_client: Any, finisher: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key's chunk is the same in the driver and in tasks."""
    kill_and_finish(sinks, redis_client, KILLS["after some chunks"], monkeypatch, finisher)


def kill_and_finish(
    sinks: Sinks,
    redis_client: Any,
    kill: Callable[[pytest.MonkeyPatch], None],
    monkeypatch: pytest.MonkeyPatch,
    finisher: str = DRIVER,
) -> None:
    sinks.run(sinks.start(), 0)
    sink = sinks.start()
    with monkeypatch.context() as patch:
        kill(patch)
        with pytest.raises(Killed):
            sinks.batch(sink, 1)
    # The rows have another order and layout, as Spark allows.
    let_write(finisher, monkeypatch)
    sink = sinks.start()
    sinks.batch(sink, 1, list(added(1))[::-1])
    assert_counted(redis_client, 2)
    assert not [name for name in marker_of(redis_client) if name.startswith("chunk:")]


@pytest.mark.usefixtures("spark", "written_chunks")
def test_empty_chunk_is_written_too(sinks: Sinks, redis_client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = sinks.start()
    sinks.run(sink, 0)
    monkeypatch.setattr(redis_chunks, "chunks_for", lambda rows, size: 12)
    sinks.run(sink, 1)
    assert marker_of(redis_client)["done"] == "12"
    assert_counted(redis_client, 2)


@pytest.mark.remedy(Remedy.SHOW_REDIS_SINK)
def test_older_start_stops_after_a_later_one(sinks: Sinks, redis_client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    older = sinks.start()
    sinks.run(older, 0)
    with monkeypatch.context() as patch:
        # As on storage without locks: the later start cannot detect that the older one runs.
        patch.setattr(checkpoint_lock, "_held", {})
        patch.setattr("onceflow.spark.sink.take_lock", lambda *_, **__: None)
        later = sinks.start(close_others=False)
        sinks.run(later, 1)
    with pytest.raises(OwnerLost, match="owner epoch") as raised:
        sinks.run(older, 2)
    assert isinstance(older.failure, OwnerLost)
    sinks.run(later, 2)
    assert_counted(redis_client, 3)
    remedies.find(Remedy.SHOW_REDIS_SINK, raised.value)
    shown = CliRunner().invoke(onceflow, ["sink", "show", "redis", "--redis", sinks.url, "--hash-key", "counts"])
    assert "batch 2   complete" in shown.output


@pytest.mark.usefixtures("small_chunks")
def test_wrong_value_stops_the_query(sinks: Sinks, redis_client: Any) -> None:
    value = "9223372036854775800"
    sinks.run(sinks.start(), 0, 1)
    redis_client.hset("counts", "user 7", value)
    after_first = None
    for _ in range(3):  # Restarts.
        sink = sinks.start()
        with pytest.raises(IncompatibleData, match=f"field 'user 7' of counts in Redis has reached {value}"):
            sinks.batch(sink, 2)
        assert isinstance(sink.failure, IncompatibleData)
        counts = redis_client.hgetall("counts")
        assert after_first in (None, counts)
        after_first = counts
    assert redis_client.hget("counts", "user 7") == value.encode()
    redis_client.hset("counts", "user 7", "2")
    sinks.run(sinks.start(), 2)
    assert_counted(redis_client, 3)


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize(
    "row", [(None, b"a", 1), ("count", None, 1), ("count", b"a", None), ("dead", None, 1), ("other", b"a", 1)]
)
def test_invalid_row_stops_the_batch(sinks: Sinks, redis_client: Any, row: Any) -> None:
    sink = sinks.start()
    sinks.run(sink, 0)
    with pytest.raises(
        IncompatibleData, match=r"1 of 64 rows lack a field or an amount or have a target other than count"
    ):
        sinks.batch(sink, 1, [*added(1), row])
    assert not redis_client.exists("counts")


@pytest.mark.usefixtures("spark", "written_chunks")
def test_amounts_that_overflow_stop_the_batch(sinks: Sinks) -> None:
    sink = sinks.start()
    sinks.run(sink, 0)
    with pytest.raises(IncompatibleData, match="field 'a' of target 'count' in batch 1 exceed 64 bits"):
        sinks.batch(sink, 1, [("count", b"a", 2**63 - 1), ("count", b"a", 1)])


@pytest.mark.usefixtures("small_chunks")
def test_chunk_over_byte_limit_stops_the_batch(
    sinks: Sinks, redis_client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = sinks.start()
    sinks.run(sink, 0)
    monkeypatch.setattr(redis_chunks, "CHUNK_BYTES_MAX", 5_000)
    with pytest.raises(IncompatibleData, match="chunk 0 of batch 1 has 10000 bytes of fields, and 5000 are allowed"):
        sinks.batch(sink, 1, [("count", b"x" * 10_000, 1)])
    assert not redis_client.exists("counts")


@pytest.mark.usefixtures("spark")
def test_field_over_byte_limit_stops_the_batch(sinks: Sinks, redis_client: Any) -> None:
    sink = sinks.start()
    sinks.run(sink, 0)
    with pytest.raises(IncompatibleData, match="batch 1 has a field of 1048577 bytes, and 1048576 are allowed"):
        sinks.batch(sink, 1, [("count", b"x" * (2**20 + 1), 1)])
    assert not redis_client.exists("counts")


@pytest.mark.usefixtures("spark")
def test_other_columns_are_refused(sinks: Sinks) -> None:
    sink = sinks.start()
    sinks.run(sink, 0)
    sinks.files.plan(1, {"clicks": {"0": 10}})
    with pytest.raises(IncompatibleData, match=r"the rows have columns.*'uid'"):
        sink(sinks.rows(added(1)).withColumnRenamed("field", "uid"), 1)


def test_rolled_back_redis_stops_the_query(sinks: Sinks, redis_client: Any) -> None:
    sink = sinks.start()
    sinks.run(sink, 0, 1)
    saved = {key: redis_client.dump(key) for key in redis_client.scan_iter("*")}
    sinks.run(sink, 2)
    sink.check()
    for key, value in saved.items():
        redis_client.restore(key, 0, value, replace=True)
    with pytest.raises(MarkerRefused, match=r"Redis lost batches: .* at batch 1 and Spark has committed batch 2"):
        sink.check()
    with pytest.raises(MarkerRefused, match="at batch 1 and Spark has committed batch 2"):
        sinks.batch(sink, 3)
    with pytest.raises(MarkerRefused, match="at batch 1 and Spark has committed batch 2"):
        sinks.start().open(sinks.spark)
    redis_client.flushall()
    with pytest.raises(MarkerRefused, match=r"there is no marker .* and Spark has committed batch 2"):
        sinks.start().open(sinks.spark)


class Past:
    """A copy of all keys, which can be restored."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._saved = {key: client.dump(key) for key in client.scan_iter("*")}

    def restore(self) -> None:
        self._client.flushall()
        for key, value in self._saved.items():
            self._client.restore(key, 0, value)


def test_rolled_back_redis_is_repaired(sinks: Sinks, redis_client: Any, caplog: pytest.LogCaptureFixture) -> None:
    sink = sinks.start(rebuild=sinks.rebuild)
    sinks.run(sink, 0, 1)
    past = Past(redis_client)
    sinks.run(sink, 2, 3, 4)
    past.restore()
    sink.check()
    assert_counted(redis_client, 5, repaired=True)
    assert [str(part) for missing in sinks.rebuilt for part in missing.ranges] == [
        "clicks-0 [10, 30)",
        "clicks-0 [30, 40)",
    ]
    assert "at batch 1 and Spark has committed batch 4" in caplog.text
    past.restore()
    sinks.run(sink, 5)
    assert_counted(redis_client, 6, repaired=True)
    past.restore()
    sink = sinks.start(rebuild=sinks.rebuild)
    sink.open(sinks.spark)
    assert_counted(redis_client, 6, repaired=True)
    past.restore()  # Before the first batch of this start.
    sink.check()
    (sinks.files.directory / "commits" / "5").unlink()  # Spark repeats the batch that was repaired last.
    sinks.run(sinks.start(rebuild=sinks.rebuild), 5, 6)
    assert_counted(redis_client, 7, repaired=True)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("kill", ["after some chunks", "before complete"])
def test_killed_repair_is_finished_once(
    sinks: Sinks, redis_client: Any, kill: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = sinks.start()
    sinks.run(sink, 0, 1)
    past = Past(redis_client)
    sinks.run(sink, 2, 3, 4)
    past.restore()
    with monkeypatch.context() as patch:
        KILLS[kill](patch)
        with pytest.raises(Killed):
            sinks.start(rebuild=sinks.rebuild).open(sinks.spark)
    sinks.run(sinks.start(rebuild=sinks.rebuild), 5)
    assert_counted(redis_client, 6, repaired=True)


def test_rollback_during_a_batch_is_repaired(sinks: Sinks, redis_client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sinks.run(sinks.start(), 0, 1)
    past = Past(redis_client)
    sink = sinks.start(rebuild=sinks.rebuild)
    sinks.run(sink, 2, 3)
    real, restored = redis_scripts.run, list[str]()

    def run(client: Any, name: str, *arguments: Any) -> list[str]:
        if name == "whole" and not restored:
            restored.append(name)
            past.restore()  # Also the previous owner.
        return real(client, name, *arguments)

    monkeypatch.setattr(redis_scripts, "run", run)
    sinks.run(sink, 4)
    assert_counted(redis_client, 5, repaired=True)


@pytest.mark.usefixtures("spark")
def test_impossible_repair_stops_the_query(sinks: Sinks, redis_client: Any) -> None:
    def trimmed(missing: MissingRanges) -> DataFrame:
        raise DataLost(f"{missing.ranges[0]} is missing from the log")

    sink = sinks.start()
    sinks.run(sink, 0, 1)
    past = Past(redis_client)
    sinks.run(sink, 2, 3)
    past.restore()
    before = redis_client.dump("counts")
    with pytest.raises(
        RepairFailed, match=r"lost batches: marker .* is at batch 1 .*cannot be counted again \(clicks-0 \[10, 20\)"
    ):
        sinks.start(rebuild=trimmed).open(sinks.spark)
    unreadable = F.raise_error(F.lit("no such record")).cast("bigint").alias("amount")
    failing = sinks.start(rebuild=lambda missing: sinks.rebuild(missing).select("target", "field", unreadable))
    with pytest.raises(RepairFailed, match="no such record"):
        failing.open(sinks.spark)
    (sinks.files.directory / "state" / "0").mkdir(parents=True)
    with pytest.raises(MarkerRefused, match="lost batches of a stateful query"):
        sinks.start(rebuild=sinks.rebuild).open(sinks.spark)
    assert redis_client.dump("counts") == before


def test_new_checkpoint_with_old_counts_is_refused(sinks: Sinks, tmp_path: Path) -> None:
    sinks.run(sinks.start(), 0, 1)
    fresh = Sinks(sinks.url, SparkFiles(tmp_path / "fresh"), sinks.spark)
    (fresh.files.directory / "metadata").unlink()
    with pytest.raises(
        MarkerRefused, match="belongs to query query-1, which has read clicks, and this query's checkpoint is new"
    ):
        fresh.start().open(sinks.spark)
    fresh.close()


def test_check_is_retried_and_keeps_its_failure(
    sinks: Sinks, redis_client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = sinks.start(rebuild=sinks.rebuild)
    sinks.run(sink, 0, 1)
    past = Past(redis_client)
    sinks.run(sink, 2)
    past.restore()
    repair = sink.target.repair

    def moved(*_arguments: Any) -> None:
        monkeypatch.setattr(sink.target, "repair", repair)
        raise redis_scripts.MarkerMoved("the marker was rolled back again")

    monkeypatch.setattr(sink.target, "repair", moved)
    sink.check()
    assert_counted(redis_client, 3, repaired=True)
    redis_client.flushall()
    with pytest.raises(MarkerRefused) as raised:
        sink.check()
    assert sink.failure is raised.value


def test_check_may_run_during_a_batch(sinks: Sinks, redis_client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = sinks.start()
    sinks.run(sink, 0)
    read = sink.target.read

    def read_slowly() -> Any:
        marker = read()
        monkeypatch.setattr(sink.target, "read", read)
        sinks.run(sink, 1)
        return marker

    monkeypatch.setattr(sink.target, "read", read_slowly)
    sink.check()
    assert_counted(redis_client, 2)


def test_unreachable_redis_has_one_message(
    sinks: Sinks, new_redis: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_pool, "RETRIES", 1)
    server = new_redis()
    sinks.url = server.url
    sink = sinks.start()
    sinks.run(sink, 0)
    server.kill()
    with pytest.raises(RedisFailed, match="failed after batch 0"):
        sink.check()
    with pytest.raises(RedisFailed, match="failed in batch 1"):
        sinks.batch(sink, 1)
    with pytest.raises(RedisFailed, match="failed before the first batch"):
        sinks.start().open(sinks.spark)
    server.start()
    sinks.run(sinks.start(), 1)
    assert_counted(redis_pool.client(server.url), 2)


def test_redis_that_evicts_keys_is_refused(sinks: Sinks, redis_client: Any) -> None:
    redis_client.config_set("maxmemory-policy", "allkeys-lru")
    sink = sinks.start()
    try:
        for _ in range(2):
            with pytest.raises(UnsuitableRedis, match="maxmemory-policy 'allkeys-lru'"):
                sink.open(sinks.spark)
    finally:
        redis_client.config_set("maxmemory-policy", "noeviction")


@pytest.mark.parametrize(
    ("setting", "value", "usual", "reason"),
    [
        ("appendonly", "no", "yes", "its append-only file is off"),
        ("appendfsync", "no", "always", "appendfsync is 'no'"),
    ],
)
def test_redis_without_sync_is_warned_about(
    sinks: Sinks, redis_client: Any, caplog: pytest.LogCaptureFixture, setting: str, value: str, usual: str, reason: str
) -> None:
    redis_client.config_set(setting, value)
    try:
        sinks.run(sinks.start(), 0, 1)
    finally:
        redis_client.config_set(setting, usual)
    assert_counted(redis_client, 2)
    assert f"cannot report when a write is on disk ({reason})" in caplog.text
    assert "settled" not in marker_of(redis_client)


@pytest.mark.parametrize(
    ("since", "setting", "is_warned"),
    [((99, 0, 0), "yes", True), ((99, 0, 0), "no", False), ((), "yes", False)],
    ids=["keeps a torn script", "does not start with one", "truncates it"],
)
def test_redis_keeping_torn_scripts_is_warned_about(
    sinks: Sinks,
    redis_client: Any,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    since: tuple[int, ...],
    setting: str,
    is_warned: bool,
) -> None:
    """Redis 7.0 and Valkey 9.1.1 keep them; tests/compat/test_redis_itself.py shows it."""
    monkeypatch.setattr(redis_settings, "WHOLE_TAILS_SINCE", since)
    redis_client.config_set("aof-load-truncated", setting)
    try:
        sinks.start().open(sinks.spark)
    finally:
        redis_client.config_set("aof-load-truncated", "yes")
    assert ("has aof-load-truncated 'yes': if a power cut tears a script" in caplog.text) is is_warned


@pytest.mark.usefixtures("spark")
def test_two_sinks_cannot_share_a_checkpoint(sinks: Sinks) -> None:
    first = sinks.start()
    first.open(sinks.spark)
    with pytest.raises(CheckpointInUse, match="another sink of this process"):
        sinks.start(close_others=False).open(sinks.spark)
    sinks.close()
    sinks.start().open(sinks.spark)


@pytest.mark.remedy(Remedy.FORMER_NAME)
def test_two_sinks_cannot_share_a_marker(sinks: Sinks, redis_client: Any) -> None:
    first = sinks.start()
    sinks.run(first, 0)
    second = sinks.start(close_others=False, name="other")
    refused = r"marker {counts}:onceflow belongs to sink '{counts}:onceflow' and this is sink 'other': give it its"
    with pytest.raises(MarkerRefused, match=refused):
        sinks.batch(second, 0)
    with pytest.raises(MarkerRefused, match=refused) as raised:
        sinks.start(name="other").open(sinks.spark)
    remedies.find(Remedy.FORMER_NAME, raised.value)
    sinks.start().open(sinks.spark)
    # Earlier markers do not name their sink.
    redis_client.hdel("{counts}:onceflow", "sink")
    sinks.run(sinks.start(), 1)
    assert_counted(redis_client, 2)


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("sums_max", [43, 42])
def test_sums_determine_the_number_of_scripts(
    sinks: Sinks, redis_client: Any, monkeypatch: pytest.MonkeyPatch, sums_max: int
) -> None:
    """A batch of 63 rows, summed only within tasks, has 43 sums to write."""
    monkeypatch.setattr(redis_rows, "WHOLE_ROWS_MAX", sums_max)
    sinks.run(sinks.start(), 0, 1)
    assert_counted(redis_client, 2)
    assert (marker_of(redis_client)["chunks"] == "0") == (sums_max == 43)
