"""One sink over several hash tags, with real Spark, on a single server and on a real cluster."""

import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest
from click.testing import CliRunner
from pyspark.sql import DataFrame, SparkSession

from onceflow.cli import onceflow
from onceflow.redis import pool as redis_pool
from onceflow.remedies import Remedy
from onceflow.spark.errors import WrongOption
from onceflow.spark.redis.marker import tag_of, tagged_key
from onceflow.spark.redis_sink import (
    Append,
    IncompatibleData,
    Increment,
    MarkerRefused,
    MissingRanges,
    RedisSink,
    UnsuitableRedis,
)
from onceflow.spark.redis_tags import TaggedRedisSink
from onceflow.spark.sink import sinks
from tests import remedies
from tests.conftest import RedisProcess
from tests.spark.exactly_once.test_checkpoint import SparkFiles
from tests.spark.redis.test_cluster import cluster
from tests.spark.redis_servers import RedisCluster
from tests.spark.redis_steps import recording_rows

__all__ = ["cluster"]

TAGS = 3
USERS = 30
_COLUMNS = "target string, field binary, amount long"
ROW = pa.schema([("target", pa.string()), ("field", pa.binary()), ("amount", pa.int64())])


class Counting:
    """A query whose batch `number` counts user u (u + number) times; `start` makes the sink of one start."""

    def __init__(self, url: str, hash_key: str, files: SparkFiles, spark: SparkSession) -> None:
        self.url, self.hash_key, self.files, self.spark = url, hash_key, files, spark
        self.sink: TaggedRedisSink | None = None

    def start(
        self, tags: int = TAGS, rebuild: Callable[..., DataFrame] | None = None, plan_version: int = 1
    ) -> TaggedRedisSink:
        self.close()
        self.sink = TaggedRedisSink(
            self.url,
            tags=tags,
            hash_key=self.hash_key,
            increments=[Increment("count", self.hash_key, f"{{{self.hash_key}}}:top")],
            appends=[Append("last", f"{{{self.hash_key}}}:last", 2)],
            checkpoint=str(self.files.directory),
            plan="users",
            plan_version=plan_version,
            rebuild=rebuild,
        )
        return self.sink

    def close(self) -> None:
        if self.sink is not None:
            self.sink.close()
            self.sink = None

    def rows(self, numbers: Sequence[int]) -> DataFrame:
        counts = [("count", b"user %d" % user, user + number) for number in numbers for user in range(USERS)]
        return self.rows_of([*counts, *(("last", b"batch %d" % number, number) for number in numbers)])

    def rows_of(self, rows: Sequence[tuple[str, bytes | None, int]]) -> DataFrame:
        return self.spark.createDataFrame(
            pa.Table.from_pylist([dict(zip(ROW.names, row, strict=True)) for row in rows], ROW)
        )

    def rebuild(self, missing: MissingRanges) -> DataFrame:
        (part,) = missing.ranges
        return self.rows(range(part.begin // 10 + 1, part.end // 10 + 1))

    def batch(self, number: int) -> None:
        assert self.sink is not None
        self.files.plan(number, {"clicks": {"0": number * 10}})
        self.sink(self.rows([number] if number else []), number)

    def run(self, *numbers: int) -> None:
        for number in numbers:
            self.batch(number)
            self.files.commit(number)

    def client(self, tag: int) -> Any:
        return redis_pool.client(self.url, self.key(tag))

    def key(self, tag: int) -> str:
        return tagged_key(self.hash_key, tag)

    def batches(self, tags: int = TAGS) -> list[int]:
        """Return the batch of each tag's marker."""
        return [int(self.client(tag).hget(f"{self.key(tag)}:onceflow", "batch")) for tag in range(tags)]

    def assert_counted(self, batches: int, tags: int = TAGS) -> None:
        """Assert that the batches below `batches` are counted, each field in its tag."""
        totals: dict[bytes, int] = {}
        for tag in range(tags):
            counts = {field: int(value) for field, value in self.client(tag).hgetall(self.key(tag)).items()}
            assert {tag_of(field, tags) for field in counts} <= {tag}
            totals |= counts
        numbers = range(1, batches)
        assert totals == {b"user %d" % user: sum(user + number for number in numbers) for user in range(USERS)}


@pytest.fixture
def counting(
    redis_server: RedisProcess, tmp_path: Path, spark: SparkSession, request: pytest.FixtureRequest
) -> Iterator[Counting]:
    made = Counting(redis_server.url, f"h{zlib.crc32(request.node.nodeid.encode())}", _files(tmp_path), spark)
    yield made
    made.close()
    redis_pool.close()


def _dies(_rows: DataFrame, _number: int) -> bool:
    raise KeyboardInterrupt


def _files(directory: Path) -> SparkFiles:
    files = SparkFiles(directory / "checkpoint")
    files.plan(0, {"clicks": {"0": 0}})
    return files


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("counts", "{counts/3}"),
        ("{counts}:top", "{counts/3}:top"),
        ("{shop}:counts", "{shop/3}:counts"),
        ("x{shop}{y}", "x{shop/3}{y}"),
    ],
)
def test_key_with_a_tag(key: str, name: str) -> None:
    assert tagged_key(key, 3) == name


def test_spark_and_readers_find_the_same_tag(spark: SparkSession) -> None:
    fields = [b"", b"a", b"\xff\x00", b"user 7", "ü".encode() * 40]
    frame = spark.createDataFrame(pa.table({"field": pa.array(fields, pa.binary())}))
    tags = [row.tag for row in frame.selectExpr("crc32(field) % 7 AS tag").collect()]
    assert tags == [tag_of(field, 7) for field in fields]


def test_counts_are_on_all_masters(cluster: RedisCluster, tmp_path: Path, spark: SparkSession) -> None:
    counting = Counting(cluster.url, "spread", _files(tmp_path), spark)
    counting.start(tags=9).open(spark)
    counting.run(0, 1, 2)
    counting.assert_counted(3, 9)
    assert counting.batches(9) == [2] * 9, "also of tags without rows"
    assert {cluster.owner_of(counting.key(tag)).port for tag in range(9)} == {node.port for node in cluster.masters}
    counting.close()


def test_interrupted_batch_is_written_to_other_tags(counting: Counting, monkeypatch: pytest.MonkeyPatch) -> None:
    counting.start()
    counting.run(0, 1)

    assert counting.sink is not None
    monkeypatch.setattr(counting.sink.sinks[2], "process", _dies)
    with pytest.raises(KeyboardInterrupt):
        counting.batch(2)
    assert counting.batches() == [2, 2, 1]
    counting.start()
    counting.run(2, 3)
    counting.assert_counted(4)
    # The batch is complete but not committed, so all tags skip it.
    counting.start()
    counting.run(3, 4)
    counting.assert_counted(5)


@pytest.mark.parametrize("tags", [TAGS - 1, TAGS + 1])
def test_changed_number_of_tags_is_refused(counting: Counting, tags: int) -> None:
    counting.start()
    counting.run(0, 1)
    refused = f"is of plan 'users tag 0 of {TAGS}' and this job is 'users tag 0 of {tags}': start it with the previous"
    sink = counting.start(tags=tags)
    with pytest.raises(MarkerRefused, match=refused) as raised:
        sink.open(counting.spark)
    assert f"--hash-key {counting.hash_key} --tags --checkpoint" in str(raised.value)
    counting.start()
    counting.run(2)
    counting.assert_counted(3)


def test_partial_batch_is_finished_by_its_version(counting: Counting, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another version might write an event to a field of another tag."""
    sink = counting.start()
    counting.run(0, 1)
    with monkeypatch.context() as broken:
        broken.setattr(sink.sinks[1], "process", _dies)
        with pytest.raises(KeyboardInterrupt):
            counting.batch(2)
    counting.start(plan_version=2)
    with pytest.raises(MarkerRefused, match=r"batch 2 written by version 1 of .* and this job is version 2: let the"):
        counting.batch(2)
    assert counting.batches() == [2, 1, 1]
    counting.start()
    counting.run(2)
    # After a complete batch, another version is accepted; it skips that batch.
    counting.start(plan_version=2)
    counting.run(2, 3)
    counting.assert_counted(4)


def test_tag_that_cannot_be_opened_stops_all(counting: Counting) -> None:
    counting.client(2).hset(counting.key(2), "left", 1)
    sink = counting.start()
    with pytest.raises(MarkerRefused, match=r"key \{.*/2\} exists, and no sink claims it"):
        counting.batch(0)
    assert not any(counting.client(tag).exists(f"{counting.key(tag)}:onceflow") for tag in range(TAGS))
    assert sink.failure is not None
    counting.client(2).delete(counting.key(2))
    with pytest.raises(IncompatibleData, match="the rows have columns"):
        sink(counting.spark.sql("SELECT 'count' AS target, 1L AS amount"), 0)


def test_failed_open_releases_the_checkpoint(counting: Counting, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = counting.start()
    monkeypatch.setattr(sink.sinks[2], "open", Mock(side_effect=UnsuitableRedis("Redis forgets keys")))
    with pytest.raises(UnsuitableRedis, match="forgets keys"):
        counting.batch(0)
    counting.sink = None  # The failed sink is not closed.
    counting.start()
    counting.run(0, 1)
    counting.assert_counted(2)


def test_losses_of_one_tag_are_repaired(counting: Counting) -> None:
    counting.start(rebuild=counting.rebuild)
    counting.run(0, 1)
    client, key = counting.client(2), counting.key(2)
    before = {name: client.dump(name) for name in client.keys(f"{key}*")}
    counting.run(2, 3)
    for name in client.keys(f"{key}*"):
        client.delete(name)
    for name, value in before.items():
        client.restore(name, 0, value)
    counting.start(rebuild=counting.rebuild).open(counting.spark)
    assert counting.batches() == [3] * TAGS
    counting.run(4)
    before = {name: client.dump(name) for name in client.keys(f"{key}*")}
    counting.run(5)
    for name, value in before.items():
        client.restore(name, 0, value, replace=True)
    # While the query runs, a check notices the loss.
    assert counting.sink is not None
    counting.sink.check()
    assert counting.batches() == [5] * TAGS
    counting.assert_counted(6)


def test_row_without_a_field_is_refused(counting: Counting) -> None:
    sink = counting.start()
    counting.run(0, 1)
    counting.files.plan(2, {"clicks": {"0": 20}})
    with pytest.raises(IncompatibleData, match="1 of 1 rows lack a field or an amount"):
        sink(counting.rows_of([("count", None, 1)]), 2)
    counting.assert_counted(2)


def test_tagged_sink_beside_another(counting: Counting, spark: SparkSession, tmp_path: Path) -> None:
    other = RedisSink(
        counting.url,
        hash_key=f"{counting.hash_key}-all",
        increments=[Increment("count", f"{counting.hash_key}-all"), Increment("last", f"{counting.hash_key}-last")],
        checkpoint=str(counting.files.directory),
    )
    tagged = counting.start()
    read = tmp_path / "read"

    try:
        for number in (0, 1, 1, 2):
            counting.files.plan(number, {"clicks": {"0": number * 10}})
            sinks(
                counting.rows([number] if number else []).mapInArrow(recording_rows(read), _COLUMNS),
                number,
                tagged,
                other,
            )
            counting.files.commit(number)
    finally:
        other.close()
    counting.assert_counted(3)
    assert sum(map(int, read.read_text().split())) == 3 * (USERS + 1), "each batch is computed once for both"
    assert sum(map(int, counting.client(0).hvals(f"{counting.hash_key}-all"))) == sum(
        user + number for user in range(USERS) for number in (1, 2)
    )


@pytest.mark.remedy(Remedy.ADD_TAGS, Remedy.NAME_TAG)
def test_reset_forgets_every_tag(counting: Counting) -> None:
    counting.start()
    counting.run(0, 1)
    counting.close()
    words = ["sink", "reset", "redis", "--redis", counting.url, "--hash-key", counting.hash_key, "--tags"]
    checkpoint = ["--checkpoint", str(counting.files.directory)]
    for command in ([*words[:-1], *checkpoint, "--execute"], ["sink", "show", *words[2:-1], *checkpoint]):
        refused = CliRunner().invoke(onceflow, command)
        assert f"{counting.hash_key} has" in str(refused.exception) and "of a TaggedRedisSink" in str(refused.exception)
        if command[1] == "reset":
            remedies.find(Remedy.ADD_TAGS, refused.exception)
        else:
            (key,) = remedies.command(Remedy.NAME_TAG, refused.exception, "key")
            shown = CliRunner().invoke(onceflow, ["sink", "show", *words[2:5], "--hash-key", key, *checkpoint])
            assert shown.exit_code == 0, shown.output
    done = CliRunner().invoke(onceflow, [*words, *checkpoint, "--execute"])
    assert done.exit_code == 0, done.output
    assert done.stdout.count("deleted: {") == 4 * TAGS + 1, "hash, ranking, marker and history, and one list of entries"
    assert not counting.client(0).keys(f"*{counting.hash_key}*")
    assert not (counting.files.directory / "metadata").exists()


def test_invalid_tag_options_are_refused(redis_server: RedisProcess) -> None:
    for tags in (0, 1, 257):
        with pytest.raises(WrongOption, match=f"tags {tags}: must be 2 to 256"):
            TaggedRedisSink(redis_server.url, tags=tags, hash_key="h", checkpoint="c")
    with pytest.raises(WrongOption, match=r"key 'top' is not named after hash key 'h': name it '{h}:top'"):
        TaggedRedisSink(
            redis_server.url, tags=2, hash_key="h", increments=[Increment("count", "h", "top")], checkpoint="c"
        )
