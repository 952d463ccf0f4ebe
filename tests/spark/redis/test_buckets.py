"""Time buckets in Redis: what they hold follows from the rows alone; retention, late rows, lost buckets, resets."""

import itertools
import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any
from zlib import crc32

import pytest
import redis

from onceflow.redis import pool as redis_pool
from onceflow.spark.errors import IncompatibleData, MarkerRefused, WrongOption
from onceflow.spark.exactly_once.batch import Batch
from onceflow.spark.redis import marker as markers
from onceflow.spark.redis import scripts as redis_scripts
from onceflow.spark.redis.marker import same_slot
from onceflow.spark.redis.scripts import BucketLost, Forbidden, Keys, MarkerMoved
from onceflow.spark.redis.sink_state import forget_redis_keys, read_redis_sink, redis_keys
from onceflow.spark.redis.targets import (
    Append,
    BucketDistinct,
    BucketIncrement,
    BucketRanking,
    Increment,
    IntervalBuckets,
    Intervals,
)
from onceflow.spark.redis_sink import RedisSink
from tests.spark.redis.test_access import WITH_BUCKETS, WRITER, user
from tests.spark.redis_steps import Driver, batch_of

__all__ = ["user"]

Row = tuple[str, bytes, int, bytes | None]
WIDTH, KEPT = 10, 100
SETS_MAX = 5
CHUNKS = 3
_names = itertools.count()


@pytest.fixture
def url(redis_server: Any) -> Iterator[str]:
    yield redis_server.url
    redis_pool.close(redis_server.url)


def new_keys(retention_ms: int | None = KEPT) -> Keys:
    """Return the keys of a sink that no other test uses."""
    name = f"times-{next(_names)}"
    return Keys(
        marker=same_slot(name, "onceflow"),
        history=same_slot(name, "history"),
        increments=(Increment("total", same_slot(name, "totals")),),
        appends=(),
        buckets=(
            BucketIncrement("sum", same_slot(name, "sum"), WIDTH, retention_ms, same_slot(name, "totals"), "a"),
            BucketIncrement("ever", same_slot(name, "ever"), 2 * WIDTH),
            BucketRanking("top", same_slot(name, "top"), WIDTH, retention_ms),
            BucketDistinct("users", same_slot(name, "users"), WIDTH, retention_ms, SETS_MAX),
        ),
    )


class Writer(Driver):
    """A start of the query that writes given rows, whole or in chunks, each script twice."""

    def lists(self, batch: Batch) -> list[Any]:
        return redis_scripts.list_arguments(self.keys, Append("history", self.keys.history, 5), "{}", {})

    def write(self, number: int, rows: Sequence[Row], *, chunks: random.Random | None = None) -> None:
        batch = batch_of(number)
        if self.owner is None:
            self.acquire(batch)
        rows = reduced(rows)
        if chunks is None:
            assert [self.whole(batch, rows), self.whole(batch, rows)] == ["done", "already"]
            return
        assert [self.begin(batch), self.begin(batch)] == ["done", "already"]
        placed = [(chunk_of(row), row) for row in rows]
        for chunk in chunks.sample(range(CHUNKS), CHUNKS):
            part = [row for place, row in placed if place == chunk]
            if chunks.random() < 0.3:  # Another start continues.
                self.acquire(batch)
            assert [self.chunk(batch, chunk, part), self.chunk(batch, chunk, part)] == ["done", "already"]
        assert [self.complete(batch), self.complete(batch)] == ["done", "already"]


def chunk_of(row: Row) -> int:
    target, field, _, value = row
    return crc32(repr((target, field, value if target == "users" else None)).encode()) % CHUNKS


def reduced(rows: Sequence[Row]) -> list[Row]:
    """Return sums by target and field, members of sets once, and intervals as they are, as the sink gives them."""
    sums: Counter[tuple[str, bytes]] = Counter()
    others: list[Row] = []
    for row in rows:
        if row[3] is None:
            sums[row[0], row[1]] += row[2]
        elif row[0] != "users" or row not in others:
            others.append(row)
    return [*((target, field, amount, None) for (target, field), amount in sums.items()), *others]


def buckets(client: Any, key: str) -> dict[bytes, Any]:
    """Return the content of all buckets of an index, which has exactly the existing ones."""
    members = client.zrange(key, 0, -1, withscores=True)
    contents = {}
    for member, score in members:
        assert not member[:1].isdigit() or score == int(member.partition(b":")[0])
        bucket = key.encode() + b":" + member
        match client.type(bucket):
            case b"hash":
                contents[member] = {name: int(value) for name, value in client.hgetall(bucket).items()}
            case b"zset":
                contents[member] = dict(client.zrange(bucket, 0, -1, withscores=True))
            case b"set":
                contents[member] = client.smembers(bucket)
            case b"string":
                contents[member] = client.pfcount(bucket)
    named = set(client.scan_iter(f"{redis_scripts.glob_escaped(key)}:*", count=10_000))
    assert {key.encode() + b":" + member for member, _ in members} == named
    return contents


def state(driver: Driver) -> dict[str, Any]:
    return {index.key.rpartition(":")[2]: buckets(driver.client, index.key) for index in driver.keys.indexes}


def rows_at(time: int, name: str, amount: int = 1) -> list[Row]:
    start, twice = time // WIDTH * WIDTH, time // (2 * WIDTH) * 2 * WIDTH
    return [
        ("sum", f"{start}:{name}".encode(), amount, None),
        ("ever", f"{twice}:{name}".encode(), amount, None),
        ("top", f"{start}:{name}".encode(), amount, None),
        ("users", f"{start}:".encode(), 0, name.encode()),
        ("users", f"{start}:{name}".encode(), 0, b"%d" % amount),
    ]


def expected(rows: Sequence[Row], newest: int, client: Any) -> dict[str, Any]:
    """Return the buckets of the rows that are still kept, by plain dictionaries."""
    contents: dict[str, Any] = {"sum": {}, "ever": {}, "top": {}, "users": {}}
    for target, field, amount, value in rows:
        start, _, name = field.partition(b":")
        if target != "ever" and int(start) < newest - KEPT:
            continue
        if target == "users":
            contents[target].setdefault(field, set()).add(value)
        else:
            bucket = contents[target].setdefault(start, defaultdict(int))
            bucket[name] += amount
    for field, members in contents["users"].items():
        if len(members) > SETS_MAX:
            client.delete("estimate")
            client.pfadd("estimate", *members)
            contents["users"][field] = client.pfcount("estimate")
    return contents


@pytest.mark.parametrize("seed", range(12))
def test_buckets_follow_from_the_rows(url: str, seed: int) -> None:
    """The kept buckets are the same in any order and any batches, whole, in chunks and repeated."""
    randomly = random.Random(seed)
    events = [
        rows_at(randomly.randrange(400), randomly.choice("abcdefgh"), randomly.randrange(9))
        for _ in range(randomly.choice([5, 60, 200]))
    ]
    rows = [row for event in events for row in event]
    results = []
    for order in range(3):
        if order:
            randomly.shuffle(events)
        driver = Writer(url, new_keys())
        newest, late, left, number = -1, 0, list(events), 0
        while left:
            size = randomly.randrange(1, 30)
            batch, left = [row for event in left[:size] for row in event], left[size:]
            driver.write(number, batch, chunks=randomly if randomly.random() < 0.5 else None)
            starts = {target: int(field.partition(b":")[0]) for target, field, *_ in batch}
            late += sum(
                amount for target, field, amount, _ in batch
                if target == "sum" and field.endswith(b":a") and 0 <= newest - KEPT > int(field.partition(b":")[0])
            )  # fmt: skip
            newest = max([newest, *(int(field.partition(b":")[0]) for _, field, *_ in batch)])
            assert starts
            number += 1
        marker = driver.marker()
        assert marker is not None
        assert marker.newest_ms == newest
        assert int(driver.client.hget(driver.keys.increments[0].key, "late") or 0) == late
        results.append(state(driver))
        assert results[-1] == expected(rows, newest, driver.client)
    assert results[0] == results[1] == results[2]


def test_kept_until_newest_time_passes_retention(url: str) -> None:
    driver = Writer(url, new_keys())
    driver.write(0, rows_at(0, "a"))
    driver.write(1, rows_at(KEPT, "a"))
    driver.write(2, rows_at(0, "a"))
    assert state(driver)["sum"] == {b"0": {b"a": 2}, b"100": {b"a": 1}}
    driver.write(3, rows_at(KEPT + WIDTH, "a"))
    driver.write(4, [*rows_at(0, "a", 7), *rows_at(0, "b", 7)])
    assert state(driver)["sum"] == {b"100": {b"a": 1}, b"110": {b"a": 1}}
    assert driver.client.hgetall(driver.keys.increments[0].key) == {b"late": b"7"}
    assert state(driver)["ever"][b"0"] == {b"a": 9, b"b": 7}


def test_one_script_removes_at_most_10000(url: str) -> None:
    """The next start has a retention, so that 10,009 of 10,020 buckets are old."""
    keys = new_keys()
    index = keys.indexes[0].key
    forever = BucketIncrement("sum", index, WIDTH)
    driver = Writer(url, replace(keys, buckets=(forever,)))
    starts = range(0, 10_020 * WIDTH, WIDTH)
    driver.write(0, [("sum", f"{start}:a".encode(), 1, None) for start in starts])
    driver = Writer(url, replace(keys, buckets=(replace(forever, retention_ms=KEPT),)))
    for number, left in ((1, 20), (2, 11), (3, 11)):
        driver.write(number, [])
        assert driver.client.zcard(index) == left
    assert set(state(driver)["sum"]) == {b"%d" % start for start in starts[-11:]}


def test_emptied_index_is_not_lost(url: str) -> None:
    """Another index may have the newest time."""
    driver = Writer(url, new_keys())
    driver.write(0, [("sum", b"0:a", 1, None)])
    driver.write(1, [("ever", b"400:a", 1, None)])
    assert not driver.client.exists(driver.keys.indexes[0].key)
    driver.write(2, [("sum", b"400:a", 1, None)])
    assert state(driver)["sum"] == {b"400": {b"a": 1}}


def test_first_retention_measures_earlier_batches(url: str) -> None:
    """Rows of one batch never make each other late, so a replayed history is counted as it was live."""
    driver = Writer(url, new_keys())
    driver.write(0, [row for time in range(0, 400, WIDTH) for row in rows_at(time, "a")])
    assert driver.client.hget(driver.keys.increments[0].key, "late") is None
    assert min(map(int, state(driver)["sum"])) == 290


# Refusals


@pytest.mark.parametrize("number", range(4))
def test_lost_bucket_is_refused_and_recorded(url: str, number: int) -> None:
    """The next reader of the marker knows that everything must be counted again."""
    keys = new_keys()
    driver = Writer(url, keys)
    driver.write(0, rows_at(10, "a"))
    index = keys.indexes[number]
    member = driver.client.zrange(index.key, 0, 0)[0]
    lost = index.key.encode() + b":" + member
    driver.client.unlink(lost)
    before = {key: driver.client.dump(key) for key in keys.data}
    with pytest.raises(BucketLost, match=re.escape(f"has written {lost.decode()}, and that key no longer")) as raised:
        driver.whole(batch_of(1), reduced(rows_at(10, "a")))
    assert {key: driver.client.dump(key) for key in keys.data} == before
    assert lost_in_marker(driver) == ()
    redis_scripts.confirm_loss(driver.client, keys, "0", raised.value)
    assert lost_in_marker(driver) == (), "an older start changes nothing"
    redis_scripts.confirm_loss(driver.client, keys, str(driver.owner), raised.value)
    assert lost_in_marker(driver) == (lost.decode(),)
    with pytest.raises(MarkerMoved, match="no longer exists"):
        driver.whole(batch_of(1), [])


def test_bucket_that_exists_is_not_lost(url: str) -> None:
    keys = new_keys()
    driver = Writer(url, keys)
    driver.write(0, rows_at(10, "a"))
    lost = BucketLost("", keys.indexes[0].key, b"10")
    redis_scripts.confirm_loss(driver.client, keys, str(driver.owner), lost)
    assert lost_in_marker(driver) == ()


def lost_in_marker(driver: Driver) -> tuple[str, ...]:
    marker = driver.marker()
    assert marker is not None
    return marker.lost


def test_look_finds_a_lost_bucket(url: str) -> None:
    keys = new_keys()
    driver = Writer(url, keys)
    driver.write(0, [row for time in range(0, 3_000 * WIDTH, 2 * WIDTH) for row in rows_at(time, "a")])
    ever = keys.indexes[1]
    assert driver.owner is not None

    def looks() -> int:
        cursor = redis_scripts.look(driver.client, keys, str(driver.owner), ever, 0)
        steps = 1
        while cursor:
            cursor = redis_scripts.look(driver.client, keys, str(driver.owner), ever, cursor)
            steps += 1
        return steps

    assert looks() > 1
    driver.client.unlink(f"{ever.key}:200")
    with pytest.raises(BucketLost, match="no longer exists"):
        looks()
    assert redis_scripts.look(driver.client, keys, "0", ever, 0) == 0, "an older start changes nothing"


def test_rewind_deletes_all_buckets(url: str) -> None:
    """Killed in between it continues, since the marker still names the loss."""
    keys = new_keys()
    driver = Writer(url, keys)
    rows = [row for time in range(0, 200, WIDTH) for row in rows_at(time, "a")]
    driver.write(0, rows)
    expected_state = state(driver)
    driver.client.unlink(keys.indexes[2].key)
    steps = list(redis_scripts.buckets_in(driver.client, keys.indexes, besides=keys.all))
    assert driver.call("rewind", "query-1", driver.owner, touched=steps[0]) == "done"
    with pytest.raises(MarkerMoved):
        driver.whole(batch_of(1), [])
    successor = Writer(url, keys)
    successor.acquire(batch_of(1))
    for touched in (*redis_scripts.buckets_in(driver.client, keys.indexes, besides=keys.all), []):
        assert successor.call("rewind", "query-1", successor.owner, touched=touched) == "done"
    assert not list(driver.client.scan_iter(f"{redis_scripts.glob_escaped(keys.indexes[0].key)}*"))
    marker = successor.marker()
    assert marker is not None
    assert (marker.lost, marker.newest_ms, marker.batch) == ((), None, -1)
    successor.write(0, rows)
    assert state(successor) == expected_state


def test_strange_bucket_is_refused(url: str) -> None:
    keys = new_keys()
    driver = Writer(url, keys)
    driver.write(0, rows_at(10, "a"))
    strange = f"{keys.indexes[0].key}:50"
    driver.client.hset(strange, "a", 1)
    with pytest.raises(MarkerRefused, match=re.escape(f"key {strange} exists, and no sink claims it")):
        driver.whole(batch_of(1), reduced(rows_at(50, "a")))
    driver.client.unlink(strange)
    driver.write(1, rows_at(50, "a"))


@pytest.mark.parametrize(
    ("number", "change"),
    [
        (0, lambda client, key: client.hset(key, "a", "x")),
        (0, lambda client, key: (client.delete(key), client.set(key, "x"))),
        (2, lambda client, key: client.zadd(key, {"a": 2**53})),
        (2, lambda client, key: (client.delete(key), client.hset(key, "a", 1))),
        (3, lambda client, key: (client.delete(key), client.set(key, "x"))),
        (3, lambda client, key: (client.delete(key), client.rpush(key, "x"))),
    ],
)
def test_incompatible_bucket_stops_the_batch(url: str, number: int, change: Any) -> None:
    keys = new_keys()
    driver = Writer(url, keys)
    driver.write(0, rows_at(10, "a"))
    index = keys.indexes[number]
    change(driver.client, index.key.encode() + b":" + driver.client.zrange(index.key, 0, 0)[0])
    before = {key: driver.client.dump(key) for key in keys.all}
    with pytest.raises(IncompatibleData):
        driver.whole(batch_of(1), [("total", b"x", 1), *reduced(rows_at(10, "a"))])
    assert {key: driver.client.dump(key) for key in keys.all} == before


@pytest.mark.parametrize("amount", [10**18, -(10**18), 2**53])
def test_amount_beyond_a_score_is_refused(url: str, amount: int) -> None:
    driver = Writer(url, new_keys())
    driver.write(0, rows_at(10, "a"))
    with pytest.raises(IncompatibleData, match=f"the batch has '{amount}' for field 'b'"):
        driver.whole(batch_of(1), [("top", b"10:b", amount)])


@pytest.mark.parametrize(
    ("target", "field"),
    [("sum", b"10"), ("sum", b"x:a"), ("sum", b"15:a"), ("sum", b"010:a"), ("sum", b"-10:a"), ("users", b"1"),
     ("top", b"9999999999999990:a"), ("sum", b":a")],
)  # fmt: skip
def test_field_without_a_bucket_is_refused(url: str, target: str, field: bytes) -> None:
    driver = Writer(url, new_keys())
    driver.write(0, [])
    shown = re.escape(f"{field.decode()!r} for target '{target}', which does not begin with a bucket's start")
    with pytest.raises(IncompatibleData, match=shown):
        driver.whole(batch_of(1), [(target, field, 1, b"x")])


# Users, upgrades, resets


@pytest.mark.parametrize("missing", [None, *sorted({*WITH_BUCKETS} - {"+scan", "+zcard"})])
def test_user_needs_the_documented_commands(url: str, user: Any, missing: str | None) -> None:
    keys = new_keys()
    narrow = user(keys.marker[1:].partition("}")[0], [c for c in [*WRITER, *WITH_BUCKETS] if c != missing])
    driver = Writer(narrow, keys)
    if missing is None:
        driver.write(0, [row for time in range(0, 400, WIDTH) for name in "abcdefgh" for row in rows_at(time, name)])
        driver.write(1, rows_at(400, "a"))
        assert redis_scripts.look(driver.client, keys, str(driver.owner), keys.indexes[0], 0) == 0
    else:
        with pytest.raises(Forbidden, match=f"may not call {missing[1:].upper()} on"):
            driver.acquire(batch_of(0))
    assert not redis.Redis.from_url(url).keys(f"{keys.marker}:probe*")


def test_user_with_the_index_alone_is_refused(url: str) -> None:
    """A bucket is written in the middle of a script, so a missing right must be known before."""
    keys = new_keys()
    admin: Any = redis.Redis.from_url(url)
    own = [f"~{key}" for key in (*keys.all, f"{keys.marker}:probe:*")]
    admin.execute_command("ACL", "SETUSER", "index-only", "on", "nopass", *own, "+@all")
    narrow = url.replace("redis://", "redis://index-only:any@")
    try:
        with pytest.raises(Forbidden, match="may not call HDEL on"):
            Writer(narrow, keys).acquire(batch_of(0))
    finally:
        redis_pool.close(narrow)
        admin.execute_command("ACL", "DELUSER", "index-only")


def test_marker_of_format_3_gets_indexes(url: str) -> None:
    keys = new_keys()
    before = replace(keys, buckets=())
    driver = Writer(url, before)
    driver.write(0, [("total", b"a", 1, None)])
    driver.client.hset(keys.marker, "format", "3")
    upgraded = Writer(url, keys)
    upgraded.write(1, rows_at(10, "a"))
    fields = redis_scripts.marker_fields(driver.client, keys.marker, [])[0]
    assert fields["format"] == "4"
    assert {index.key: index.kind for index in markers.indexes(fields)} == {
        index.key: index.kind for index in keys.indexes
    }


def test_format_3_does_not_own_unclaimed_keys(url: str) -> None:
    keys = new_keys()
    driver = Writer(url, replace(keys, buckets=()))
    driver.write(0, [("total", b"a", 1, None)])
    driver.client.hset(keys.marker, "format", "3")
    driver.client.zadd(keys.indexes[0].key, {"x": 1})
    with pytest.raises(MarkerRefused, match="exists, and no sink claims it"):
        Writer(url, keys).acquire(batch_of(1))


def test_reset_deletes_buckets_and_no_others(url: str) -> None:
    keys = new_keys()
    name = keys.marker[1:].partition("}")[0]
    driver = Writer(url, keys)
    driver.write(0, [row for time in range(0, 3_000, WIDTH) for row in rows_at(time, "a")])
    strange = f"{keys.indexes[0].key}:strange"
    driver.client.set(strange, "x")
    shown = read_redis_sink(url, name, "reset")
    assert shown.buckets == {index.key: driver.client.zcard(index.key) for index in keys.indexes}
    sink = redis_keys(url, name, [])
    assert sink.unclaimed == [strange]
    assert {key: len(names) for key, names in sink.buckets.items()} == shown.buckets
    forget_redis_keys(url, sink)
    assert list(driver.client.scan_iter(f"{{{name}}}:*")) == [strange.encode()]


def test_killed_reset_is_a_loss(url: str) -> None:
    keys = new_keys()
    driver = Writer(url, keys)
    driver.write(0, [row for time in range(0, 3_000, WIDTH) for row in rows_at(time, "a")])
    sink = redis_keys(url, keys.marker[1:].partition("}")[0], [])
    own = redis_scripts.with_claims(keys.own)
    redis_scripts._run(driver.client, "forget", own, [], sink.buckets[keys.indexes[0].key][:2])
    with pytest.raises(MarkerMoved, match="no longer exists"):
        driver.whole(batch_of(1), [])


# Options


def sink_with(*buckets: Any, **options: Any) -> RedisSink:
    return RedisSink("redis://h", hash_key="k", checkpoint="c", buckets=buckets, **options)


WRONG: dict[str, Any] = {
    "width_ms 0": lambda: BucketIncrement("a", "{k}:a", 0),
    "retention_ms 5 .* at least width_ms 10": lambda: BucketRanking("a", "{k}:a", 10, 5),
    "exact_max 0": lambda: BucketDistinct("a", "{k}:a", 10, exact_max=0),
    "gap_ms -1": lambda: Intervals("a", "{k}:a", -1),
    "at least gap_ms 10": lambda: Intervals("a", "{k}:a", 10, 9),
    "no hash tag in braces": lambda: sink_with(BucketIncrement("a", "k", 10)),
    "named like a bucket of": lambda: sink_with(
        Intervals("a", "{k}:a", 10), BucketIncrement("b", "{k}:a:b", 10)
    ),
    "key '{k}:a' for more than one": lambda: sink_with(
        Intervals("a", "{k}:b", 10, buckets=(IntervalBuckets("{k}:a", 10),)), BucketIncrement("b", "{k}:a", 10)
    ),
    "target 'a' for more than one": lambda: sink_with(
        BucketIncrement("a", "{k}:a", 10), BucketRanking("a", "{k}:b", 10)
    ),
    "late_key 'k'": lambda: sink_with(BucketIncrement("a", "{k}:a", 10, 10, "k"), increments=[
        Increment("b", "k", "{k}:top")]),
}  # fmt: skip
"""Messages and the options that cause them."""


@pytest.mark.parametrize("message", WRONG)
def test_wrong_options_are_refused(message: str) -> None:
    with pytest.raises(WrongOption, match=message):
        WRONG[message]()


def test_buckets_of_days_beside_their_dimensions() -> None:
    sink_with(BucketIncrement("a", "{k}:day", 10), BucketIncrement("b", "{k}:day:os", 10))
