"""Values set if newer, and stream entries: written, checked and fenced in the same scripts as the counts."""

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from onceflow.redis import pool as redis_pool
from onceflow.remedies import Remedy
from onceflow.spark.errors import IncompatibleData
from onceflow.spark.exactly_once.batch import Batch
from onceflow.spark.redis import marker as markers
from onceflow.spark.redis import scripts as redis_scripts
from onceflow.spark.redis.scripts import Forbidden, Keys, OwnerLost
from onceflow.spark.redis.targets import Append, Increment, SetIfNewer, StreamAppend
from onceflow.spark.redis_sink import MissingRanges, RedisSink
from tests import remedies
from tests.spark.exactly_once.test_checkpoint import SparkFiles
from tests.spark.redis.chunking import DRIVER, TASKS, WHOLE, write_in
from tests.spark.redis_steps import CHUNKS, Driver, batch_of
from tests.spark.test_redis_sink import Killed, kill_before

Row = tuple[str, bytes, int, bytes | None]
BATCHES = 6
STREAM_LENGTH = 5


@pytest.fixture
def url(redis_server: Any) -> Iterator[str]:
    redis_pool.client(redis_server.url).flushall()
    yield redis_server.url
    redis_pool.close(redis_server.url)


def keys_of(name: str) -> Keys:
    return Keys(
        marker=markers.same_slot(name, "onceflow"),
        history=markers.same_slot(name, "history"),
        increments=(Increment("count", name),),
        appends=(),
        sets=(SetIfNewer("latest", f"{{{name}}}:latest", f"{{{name}}}:latest:versions"),),
        streams=(StreamAppend("events", f"{{{name}}}:events", STREAM_LENGTH),),
    )


KEYS = keys_of("sums")
VALUES, VERSIONS, STREAM = KEYS.sets[0].key, KEYS.sets[0].versions_key, KEYS.streams[0].key


def rows_of(number: int) -> list[Row]:
    """Return one count, and values whose versions rise, fall and stay."""
    versions = {b"up": number, b"down": -number, b"same": 5, b"to and fro": (7 * number) % 4}
    sets: list[Row] = [("latest", field, version, b"%d" % number) for field, version in versions.items()]
    return [("count", b"a", 1, None), *sets]


def entries_of(number: int) -> list[bytes]:
    return [b"%d:%d" % (number, index) for index in range(2)]


class Writer(Driver):
    """A start of the query whose batches also have stream entries."""

    def lists(self, batch: Batch) -> list[Any]:
        history = Append("history", self.keys.history, 5)
        return redis_scripts.list_arguments(self.keys, history, "{}", {"events": entries_of(batch.number)})

    def chunk_rows(self, batch: Batch, chunk: int) -> list[Row]:
        return [row for row in rows_of(batch.number) if sum(row[1]) % CHUNKS == chunk]


def state(client: Any) -> dict[str, Any]:
    return {
        "count": client.hgetall("sums"),
        "values": client.hgetall(VALUES),
        "versions": {field: int(version) for field, version in client.hgetall(VERSIONS).items()},
        "stream": client.xrange(STREAM),
    }


def expected(batches: int) -> dict[str, Any]:
    newest: dict[bytes, tuple[int, bytes]] = {}
    for number in range(batches):
        for target, field, version, value in rows_of(number):
            if target == "latest" and value is not None and (version, value) > newest.get(field, (version, b"")):
                newest[field] = (version, value)
    entries = [
        (b"%d-%d" % (number, index + 1), {b"value": value})
        for number in range(batches)
        for index, value in enumerate(entries_of(number))
    ]
    return {
        "count": {b"a": b"%d" % batches},
        "values": {field: value for field, (_, value) in newest.items()},
        "versions": {field: version for field, (version, _) in newest.items()},
        "stream": entries[-STREAM_LENGTH:],
    }


def test_every_script_sent_again_changes_nothing(url: str) -> None:
    driver = Writer(url, KEYS)
    driver.acquire(batch_of(0))
    for number in range(BATCHES):
        batch = batch_of(number)
        sent = [lambda batch=batch: driver.whole(batch, rows_of(batch.number))]
        if number % 2:
            sent = [
                lambda batch=batch: driver.begin(batch),
                *(
                    lambda batch=batch, chunk=chunk: driver.chunk(batch, chunk, driver.chunk_rows(batch, chunk))
                    for chunk in range(CHUNKS)
                ),
                lambda batch=batch: driver.complete(batch),
            ]
        for send in sent:
            assert send() == "done"
            before = state(driver.client)
            assert send() == "already"
            assert state(driver.client) == before
        assert state(driver.client) == expected(number + 1)


@pytest.mark.parametrize("killed_after", range(CHUNKS + 2))
def test_kill_in_a_batch_of_chunks(url: str, killed_after: int) -> None:
    driver = Writer(url, KEYS)
    driver.acquire(batch_of(0))
    driver.whole(batch_of(0), rows_of(0))
    batch = batch_of(1)
    for start in (Writer(url, KEYS), Writer(url, KEYS)):
        start.acquire(batch)
        left = killed_after if start.owner == "2" else CHUNKS + 2
        steps = [
            lambda start=start: start.begin(batch),
            *(
                lambda start=start, chunk=chunk: start.chunk(batch, chunk, start.chunk_rows(batch, chunk))
                for chunk in range(CHUNKS)
            ),
            lambda start=start: start.complete(batch),
        ]
        marker = start.marker()
        assert marker is not None
        for step in steps[: 0 if marker.batch_done == 1 else left]:
            step()
    assert state(driver.client) == expected(2)
    with pytest.raises(OwnerLost):
        driver.whole(batch_of(2), rows_of(2))
    assert state(driver.client) == expected(2)


NEXT_TO_EACH_OTHER = [
    (low, low + 1)
    for low in (0, -1, 9, -10, 99, -100, 2**53, -(2**53) - 1, 10**17, -(10**17) - 1, 10**18 - 2, 1 - 10**18)
]


def test_versions_are_compared_exactly(url: str) -> None:
    driver = Writer(url, KEYS)
    driver.acquire(batch_of(0))
    pairs = {f"{low}".encode(): versions for versions in NEXT_TO_EACH_OTHER for low in versions[:1]}
    for number, index in enumerate((0, 1, 0)):
        rows: list[Row] = [("latest", field, pair[index], b"%d" % index) for field, pair in pairs.items()]
        driver.whole(batch_of(number), rows)
        highest = 0 if number == 0 else 1
        assert driver.client.hgetall(VALUES) == dict.fromkeys(pairs, b"%d" % highest)
        versions = {field: b"%d" % pair[highest] for field, pair in pairs.items()}
        assert driver.client.hgetall(VERSIONS) == versions


def test_greatest_value_of_one_version_wins(url: str) -> None:
    values = [b"", b"\x00", b"a", b"a\x00", b"B", b"\xff", b"\xfe\xff", "é".encode(), b"x" * 1000]
    for seed in range(5):
        keys = keys_of(f"order-{seed}")
        driver = Writer(url, keys)
        driver.acquire(batch_of(0))
        for number, value in enumerate(random.Random(seed).sample(values, len(values))):
            driver.whole(batch_of(number), [("latest", b"x", 7, value)])
        assert driver.client.hget(keys.sets[0].key, "x") == max(values)


MISFITS = {
    "values of another type": lambda client: (client.delete(VALUES), client.set(VALUES, "x")),
    "versions of another type": lambda client: (client.delete(VERSIONS), client.rpush(VERSIONS, "x")),
    "a version that is not an integer": lambda client: client.hset(VERSIONS, "to and fro", "5.0"),
    "a stream of another type": lambda client: (client.delete(STREAM), client.hset(STREAM, "x", "1")),
    "an entry of another program": lambda client: client.xadd(STREAM, {"x": "1"}),
    "a deleted entry": lambda client: client.xdel(STREAM, client.xadd(STREAM, {"x": "1"}, id="2-1")),
}
"""Changes in Redis that stop batch 2 before its first write."""


@pytest.mark.parametrize("misfit", MISFITS)
def test_incompatible_data_stops_the_batch(url: str, misfit: str) -> None:
    driver = Writer(url, KEYS)
    driver.acquire(batch_of(0))
    for number in range(2):
        driver.whole(batch_of(number), rows_of(number))
    MISFITS[misfit](driver.client)
    before = {key: driver.client.dump(key) for key in KEYS.all}
    with pytest.raises(IncompatibleData):
        driver.whole(batch_of(2), rows_of(2))
    assert {key: driver.client.dump(key) for key in KEYS.all} == before


@pytest.mark.parametrize("forbidden", ["xadd", "xinfo"])
def test_user_without_stream_rights_is_refused(url: str, forbidden: str) -> None:
    admin: Any = redis_pool.client(url)
    commands = [f"-{forbidden}"]
    admin.acl_setuser("narrow", enabled=True, nopass=True, keys=["*"], categories=["+@all"], commands=commands)
    narrow_url = url.replace("redis://", "redis://narrow:any@")
    try:
        with pytest.raises(Forbidden, match=f"may not call {forbidden.upper()} on"):
            Writer(narrow_url, KEYS).acquire(batch_of(0))
        assert admin.keys("*") == []
        Driver(narrow_url, Keys("{n}:m", "{n}:h", (Increment("count", "n"),), ())).acquire(batch_of(0))
    finally:
        redis_pool.close(narrow_url)
        admin.acl_deluser("narrow")


class Sinks:
    """Successive starts of one query with values and a stream, in real Spark."""

    def __init__(self, url: str, spark: SparkSession, directory: Path) -> None:
        self.url, self.spark = url, spark
        self.files = SparkFiles(directory)
        self.sink: RedisSink | None = None

    def start(self) -> RedisSink:
        self.close()
        self.sink = RedisSink(
            self.url,
            hash_key="sums",
            increments=KEYS.increments,
            sets=KEYS.sets,
            streams=KEYS.streams,
            checkpoint=str(self.files.directory),
            plan="sums",
            plan_version=1,
            rebuild=self.rebuild,
        )
        return self.sink

    def rebuild(self, missing: MissingRanges) -> Any:
        (part,) = missing.ranges
        numbers = range(part.begin // 10 + 1, part.end // 10 + 1)
        return self.frame([row for number in numbers for row in self.rows(number)])

    def rows(self, number: int) -> list[Row]:
        """Return the batch's rows, with older values among them, and entries in descending order of their amounts."""
        entries: list[Row] = [
            ("events", entry, 10 * number + index, None) for index, entry in enumerate(entries_of(number))
        ]
        older: list[Row] = [("latest", b"up", number - 1, b"older"), ("latest", b"same", 5, b"")]
        return [*entries[::-1], *rows_of(number), *older] if number else []

    def frame(self, rows: Sequence[Row]) -> Any:
        columns = list(zip(*rows, strict=True)) or [()] * 4
        names, types = ["target", "field", "amount", "value"], [pa.string(), pa.binary(), pa.int64(), pa.binary()]
        table = pa.table([pa.array(column, kind) for column, kind in zip(columns, types, strict=True)], names)
        return self.spark.createDataFrame(table)

    def batch(self, number: int) -> None:
        self.files.plan(number, {"clicks": {"0": 10 * number}})
        assert self.sink is not None
        self.sink(self.frame(self.rows(number)), number)
        self.files.commit(number)

    def close(self) -> None:
        if self.sink is not None:
            self.sink.close()


@pytest.fixture
def sinks(url: str, spark: SparkSession, tmp_path: Path) -> Iterator[Sinks]:
    made = Sinks(url, spark, tmp_path / "checkpoint")
    yield made
    made.close()


def expected_without_batch_0(batches: int) -> dict[str, Any]:
    """Return `expected` without batch 0, which is empty in Spark; only its value for `down` was the newest."""
    values = expected(batches)
    values["count"] = {b"a": b"%d" % (batches - 1)}
    values["versions"][b"down"], values["values"][b"down"] = -1, b"1"
    return values


@pytest.mark.parametrize("way", [WHOLE, DRIVER, TASKS])
def test_real_spark_killed_repeated_and_repaired(sinks: Sinks, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    write_in(way, 2, monkeypatch)
    client: Any = redis_pool.client(sinks.url)
    sinks.start()
    for number in range(3):
        sinks.batch(number)
    past = {key: client.dump(key) for key in client.scan_iter("*")}
    with monkeypatch.context() as patch:
        kill_before(patch, "whole" if way == WHOLE else "complete")
        with pytest.raises(Killed):
            sinks.batch(3)
    sinks.start()
    for number in (3, 3, 4):
        sinks.batch(number)
    client = redis_pool.client(sinks.url)
    assert state(client) == expected_without_batch_0(5)

    client.flushall()
    for key, value in past.items():
        client.restore(key, 0, value)
    sinks.start()
    sinks.batch(5)
    client = redis_pool.client(sinks.url)
    repaired = state(client)
    assert [entry for _, entry in repaired["stream"]] == [entry for _, entry in expected(6)["stream"]]
    assert {**repaired, "stream": None} == {**expected_without_batch_0(6), "stream": None}


@pytest.mark.remedy(Remedy.RENAME_KEY)
def test_stream_with_foreign_entries(sinks: Sinks) -> None:
    client: Any = redis_pool.client(sinks.url)
    sinks.start()
    for number in range(3):
        sinks.batch(number)
    client.xadd(STREAM, {"x": "1"})
    with pytest.raises(IncompatibleData, match="has had an entry") as raised:
        sinks.batch(3)
    remedies.find(Remedy.RENAME_KEY, raised.value)
    client.rename(STREAM, f"{STREAM}:of others")
    sinks.start()
    sinks.batch(3)
    assert [entry for _, entry in state(client)["stream"]] == [entry for _, entry in expected(4)["stream"]]


def test_missing_value_is_refused(sinks: Sinks) -> None:
    sinks.start()
    sinks.batch(0)
    assert sinks.sink is not None
    sinks.files.plan(1, {"clicks": {"0": 10}})
    with pytest.raises(IncompatibleData, match="1 of 1 rows lack a field, an amount or a value or have"):
        sinks.sink(sinks.frame([("latest", b"x", 1, None)]), 1)
    with pytest.raises(IncompatibleData, match=r"needs .*'value': 'binary'"):
        sinks.sink(sinks.frame([]).drop("value"), 1)
