"""The Lua scripts against a real Valkey: crashes, replays, older owners and incompatible values."""

import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from onceflow.redis import pool as redis_pool
from onceflow.remedies import Remedy
from onceflow.spark.errors import IncompatibleData, MarkerRefused
from onceflow.spark.redis.scripts import Keys, MarkerMoved, OwnerLost
from tests import remedies
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

STEPS = ["acquire", "begin", *(f"chunk {number}" for number in range(CHUNKS)), "complete"]


@pytest.fixture
def url(redis_server: Any) -> Iterator[str]:
    redis_pool.client(redis_server.url).flushall()  # Tests compare all keys, and other tests leave thousands.
    yield redis_server.url
    redis_pool.close(redis_server.url)


@pytest.fixture
def keys() -> Keys:
    return new_keys()


def run(driver: Driver, *numbers: int) -> None:
    for number in numbers:
        for _ in driver.steps(batch_of(number)):
            pass


def dump(client: redis.Redis) -> dict[bytes, Any]:
    """Return all keys with their values in serialized form."""
    return {key: client.dump(key) for key in client.scan_iter("*")}


def test_successive_batches(url: str, keys: Keys) -> None:
    driver = Driver(url, keys)
    run(driver, 0, 1, 2, 3)
    assert_counts(driver.client, keys, 4)
    marker = driver.marker()
    assert marker is not None
    assert (marker.batch, marker.complete, marker.chunks_done) == (3, True, frozenset())
    assert marker.offsets == {"clicks": {"0": 30}}
    assert marker.since == {"clicks": {"0": 0}}


@pytest.mark.parametrize("killed_after", ["nothing", "acquire", "whole"])
def test_kill_in_a_small_batch(url: str, keys: Keys, killed_after: str) -> None:
    run(Driver(url, keys), 0, 1)
    for step in Driver(url, keys).steps(batch_of(2)):
        if step == killed_after:
            break
    successor = Driver(url, keys)
    run(successor, 2, 3)
    assert_counts(successor.client, keys, 4)


@pytest.mark.parametrize("killed_after", ["nothing", *STEPS])
def test_kill_in_a_batch_of_chunks(url: str, keys: Keys, killed_after: str) -> None:
    run(Driver(url, keys), 0)
    killed = Driver(url, keys).steps(batch_of(1))
    for step in killed if killed_after != "nothing" else ():
        if step == killed_after:
            break
    successor = Driver(url, keys)
    run(successor, 1, 2)
    assert_counts(successor.client, keys, 3)


@pytest.mark.parametrize("fenced_before", STEPS[1:])
def test_older_owner_is_refused(url: str, keys: Keys, fenced_before: str) -> None:
    run(Driver(url, keys), 0)
    older, newer = Driver(url, keys), Driver(url, keys)
    steps = older.steps(batch_of(1))
    for _ in range(STEPS.index(fenced_before)):
        next(steps)
    newer.acquire(batch_of(1))
    before = dump(newer.client)
    with pytest.raises(OwnerLost, match=r"taken over by a later start of this query .owner epoch 3."):
        next(steps)
    assert dump(newer.client) == before
    run(newer, 1, 2)
    assert_counts(newer.client, keys, 3)


def test_every_script_sent_again_changes_nothing(url: str, keys: Keys) -> None:
    driver = Driver(url, keys)
    first, second = batch_of(0), batch_of(1)
    driver.acquire(first)
    rows = [[row for row in rows_of(1) if chunk_of(row) == number] for number in range(CHUNKS)]
    sent: list[Callable[[], str]] = [
        lambda: driver.whole(first, rows_of(0)),
        lambda: driver.begin(second),
        *(lambda number=number: driver.chunk(second, number, rows[number]) for number in range(CHUNKS)),
        lambda: driver.complete(second),
    ]
    for send in sent:
        assert send() == "done"
        before = dump(driver.client)
        assert send() == "already"
        assert dump(driver.client) == before
    assert driver.chunk(second, 0, rows[0]) == "already"
    assert_counts(driver.client, keys, 2)


def test_late_script_is_refused(url: str, keys: Keys) -> None:
    driver = Driver(url, keys)
    run(driver, 0, 1)
    before = dump(driver.client)
    for late in (
        lambda: driver.whole(batch_of(0), rows_of(0)),
        lambda: driver.chunk(batch_of(0), 0, rows_of(0)),
        lambda: driver.complete(batch_of(0)),
        lambda: driver.begin(batch_of(3)),
        lambda: driver.chunk(batch_of(2), 0, rows_of(2)),
    ):
        with pytest.raises(MarkerMoved, match=r"moved to batch 1 .complete 1."):
            late()
    assert dump(driver.client) == before


def test_digest_may_change_between_batches(url: str, keys: Keys) -> None:
    run(Driver(url, keys), 0)
    for step in Driver(url, keys).steps(batch_of(1)):
        if step == "chunk 0":
            break
    changed = Driver(url, keys)
    with pytest.raises(MarkerRefused, match="version 1 of 'p' and this job is version 2"):
        list(changed.steps(batch_of(1, plan_version=2)))
    with pytest.raises(MarkerMoved, match="moved"):
        changed.chunk(batch_of(1, plan_version=2), 1, rows_of(1))
    run(changed, 1)
    list(changed.steps(batch_of(1, plan_version=2)))
    list(changed.steps(batch_of(2, plan_version=2)))
    assert_counts(changed.client, keys, 3)


def test_batch_after_an_unfinished_one_is_refused(url: str, keys: Keys) -> None:
    driver = Driver(url, keys)
    run(driver, 0)
    driver.begin(batch_of(1))
    before = dump(driver.client)
    for write in (lambda: driver.whole(batch_of(2), rows_of(2)), lambda: driver.begin(batch_of(2))):
        with pytest.raises(MarkerMoved, match=r"moved to batch 1 .complete 0."):
            write()
    assert dump(driver.client) == before


@pytest.mark.parametrize("missing", range(CHUNKS))
def test_complete_needs_every_chunk(url: str, keys: Keys, missing: int) -> None:
    driver = Driver(url, keys)
    run(driver, 0)
    driver.begin(batch_of(1))
    for number in range(CHUNKS):
        if number != missing:
            driver.chunk(batch_of(1), number, [])
    before = dump(driver.client)
    with pytest.raises(MarkerMoved, match=f"lacks acknowledged chunk {missing} of {CHUNKS}"):
        driver.complete(batch_of(1))
    with pytest.raises(MarkerMoved, match="moved"):
        driver.chunk(batch_of(1), CHUNKS, [])
    assert dump(driver.client) == before


def test_another_query_is_refused(url: str, keys: Keys) -> None:
    run(Driver(url, keys), 0, 1)
    other = Driver(url, keys)
    with pytest.raises(MarkerRefused, match="belongs to query query-1"):
        other.acquire(batch_of(0, query="query-2"))


@pytest.mark.remedy(Remedy.STOP_ONE_QUERY)
def test_driver_from_before_a_reset_is_refused(url: str, keys: Keys) -> None:
    older, newer = Driver(url, keys), Driver(url, keys)
    run(older, 0)
    older.begin(batch_of(1))
    older.client.delete(*keys.all)
    list(newer.steps(batch_of(0, query="query-2")))
    assert older.owner == newer.owner
    before = dump(newer.client)
    for late in (
        lambda: older.whole(batch_of(1), rows_of(1)),
        lambda: older.begin(batch_of(1)),
        lambda: older.chunk(batch_of(1), 0, rows_of(1)),
        lambda: older.complete(batch_of(1)),
        lambda: older.settle(batch_of(1)),
    ):
        with pytest.raises(MarkerRefused, match="now belongs to query query-2") as raised:
            late()
        remedies.find(Remedy.STOP_ONE_QUERY, raised.value)
    assert dump(newer.client) == before
    for number in (1, 2):
        list(newer.steps(batch_of(number, query="query-2")))
    assert_counts(newer.client, keys, 3)


def test_lost_marker_is_not_created_again(url: str, keys: Keys) -> None:
    driver = Driver(url, keys)
    run(driver, 0, 1)
    driver.client.delete(keys.marker)
    with pytest.raises(MarkerRefused, match="no longer exists"):
        driver.whole(batch_of(2), rows_of(2), previous=1)
    with pytest.raises(MarkerRefused, match="exists before the first batch"):
        Driver(url, keys).acquire(batch_of(0))
    driver.client.delete(*keys.all)
    with pytest.raises(MarkerRefused, match="no longer exists"):
        Driver(url, keys).acquire(batch_of(2))


def test_data_before_the_first_batch_is_refused(url: str, keys: Keys) -> None:
    driver = Driver(url, keys)
    driver.acquire(batch_of(0))
    driver.client.hset(keys.increments[0].key, "a", 1)
    for write in (lambda: driver.whole(batch_of(0), rows_of(0)), lambda: driver.begin(batch_of(0))):
        with pytest.raises(MarkerRefused, match="exists before the first batch"):
            write()


NOT_COUNTS = ["6.0", "", " 6", "+6", "06", "-0", "--6", "1e3", "x", "9" * 19, "-" + "9" * 19, "9223372036854775807"]


@pytest.mark.parametrize("value", NOT_COUNTS)
def test_wrong_value_stops_the_chunk_before_writing(url: str, keys: Keys, value: str) -> None:
    run(Driver(url, keys), 0)
    client: Any = redis_pool.client(url)
    client.hset(keys.increments[0].key, "in the last place", value)
    rows = [*rows_of(1), ("count", b"in the last place", 1)]
    before = {key: client.dump(key) for key in keys.data}
    for _ in range(3):  # restarts
        driver = Driver(url, keys)
        driver.acquire(batch_of(1))
        driver.begin(batch_of(1))
        with pytest.raises(IncompatibleData, match=f"field 'in the last place' of {keys.increments[0].key}"):
            driver.chunk(batch_of(1), 2, rows)
        assert {key: client.dump(key) for key in keys.data} == before
    client.hset(keys.increments[0].key, "in the last place", "-999999999999999999")
    assert driver.chunk(batch_of(1), 2, rows) == "done"
    assert client.hget(keys.increments[0].key, "in the last place") == b"-999999999999999998"


@pytest.mark.parametrize("amount", [10**18, -(10**18), 2**63 - 1])
def test_amount_beyond_18_digits_is_refused(url: str, keys: Keys, amount: int) -> None:
    driver = Driver(url, keys)
    driver.acquire(batch_of(0))
    before = dump(driver.client)
    with pytest.raises(IncompatibleData, match=f"the batch has '{amount}' for field 'z'"):
        driver.whole(batch_of(0), [*rows_of(0), ("os", b"z", amount)])
    assert dump(driver.client) == before


def test_two_amounts_of_18_digits_fit(url: str, keys: Keys) -> None:
    driver = Driver(url, keys)
    driver.acquire(batch_of(0))
    largest = 10**18 - 1
    driver.whole(batch_of(0), [("count", b"a", largest), ("count", b"b", -largest)])
    driver.whole(batch_of(1), [("count", b"a", largest), ("count", b"b", -largest)])
    values = driver.client.hgetall(keys.increments[0].key)
    assert values == {b"a": str(2 * largest).encode(), b"b": str(-2 * largest).encode()}
    with pytest.raises(IncompatibleData):
        driver.whole(batch_of(2), [("count", b"a", 1)])


@pytest.mark.parametrize("place", ["count", "top", "os", "dead", "history"])
def test_wrong_type_stops_the_batch_before_writing(url: str, keys: Keys, place: str) -> None:
    count, os = keys.increments
    key = {
        "count": count.key,
        "top": count.ranking_key,
        "os": os.key,
        "dead": keys.appends[0].key,
        "history": keys.history,
    }[place]
    run(Driver(url, keys), 0, 1)
    client: Any = redis_pool.client(url)
    client.delete(key)
    client.set(key, "text")
    before = {name: client.dump(name) for name in [*keys.data, keys.history]}
    for _ in range(3):  # restarts
        with pytest.raises(IncompatibleData, match="is of type string"):
            list(Driver(url, keys).steps(batch_of(2)))
        assert {name: client.dump(name) for name in [*keys.data, keys.history]} == before


def test_fields_are_bytes(url: str, keys: Keys) -> None:
    driver = Driver(url, keys)
    driver.acquire(batch_of(0))
    names = [b"", b"\x00\r\n", b"\xff\xfe", "é".encode(), b"x" * 100_000]
    driver.whole(batch_of(0), [("count", name, 1) for name in names])
    assert set(driver.client.hkeys(keys.increments[0].key)) == set(names)


def test_scripts_survive_a_flushed_script_cache(url: str, keys: Keys) -> None:
    driver = Driver(url, keys)
    run(driver, 0)
    driver.client.script_flush()
    run(driver, 1, 2)
    assert_counts(driver.client, keys, 3)


def test_full_redis_refuses_the_whole_script(url: str, keys: Keys) -> None:
    driver = Driver(url, keys)
    run(driver, 0)
    before = {name: driver.client.dump(name) for name in keys.all}
    driver.client.config_set("maxmemory", "1mb")
    try:
        with pytest.raises(redis.ResponseError, match=r"OOM|maxmemory"):
            driver.whole(batch_of(1), rows_of(1))
        assert {name: driver.client.dump(name) for name in keys.all} == before
    finally:
        driver.client.config_set("maxmemory", "0")
    run(driver, 1)
    assert_counts(driver.client, keys, 2)


def test_random_kills_and_takeovers(url: str) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    for round_number in range(5):
        chance = random.Random(seed + round_number)
        keys = new_keys()
        driver, batch = Driver(url, keys), 0
        while batch < 12:
            try:
                for _ in driver.steps(batch_of(batch)):
                    if chance.random() < 0.25:
                        raise InterruptedError
                if chance.random() < 0.7:  # Spark's commit; without it, Spark repeats the batch.
                    batch += 1
            except InterruptedError:
                driver = Driver(url, keys)
        assert_counts(driver.client, keys, 12)


@pytest.mark.campaign
@pytest.mark.parametrize(("appendfsync", "settled"), [("always", False), ("everysec", False), ("everysec", True)])
def test_redis_killed_at_random_moments(new_redis: Callable[..., Any], appendfsync: str, settled: bool) -> None:
    """Redis with `always`, or with `everysec` and a wait for the sync, loses no acknowledged batch when it is killed.

    `everysec` alone may lose the newest batches, never a part of one, and the marker shows it.
    """
    server, keys = new_redis(appendfsync=appendfsync), new_keys()
    kills, lost, batch = 0, 0, 0
    chance = random.Random(4)
    deadline = time.monotonic() + 60

    def kill() -> None:
        time.sleep(chance.uniform(0.02, 0.3 if appendfsync == "always" else 1.5))
        server.kill()
        server.start()

    while time.monotonic() < deadline:
        killer = threading.Thread(target=kill)
        killer.start()
        driver = Driver(server.url, keys)
        while killer.is_alive():
            try:
                run(driver, batch)
                if settled:
                    driver.settle(batch_of(batch))
                batch += 1
            except (redis.RedisError, MarkerMoved, MarkerRefused):
                driver = Driver(server.url, keys)
                marker = _marker_when_up(driver)
                resumed = 0 if marker is None else marker.batch_done + 1
                lost += max(0, batch - resumed)
                batch = min(batch, resumed)
        killer.join()
        kills += 1
    driver = Driver(server.url, keys)
    run(driver, batch)
    print(f"\nappendfsync {appendfsync}, settled {settled}: {kills} kills, {batch} batches, {lost} acknowledged lost")
    assert_counts(driver.client, keys, batch + 1)
    assert lost == 0 or (appendfsync, settled) == ("everysec", False)
    redis_pool.close(server.url)


def _marker_when_up(driver: Driver) -> Any:
    for _ in range(100):
        try:
            return driver.marker()
        except redis.RedisError:
            time.sleep(0.05)
    raise AssertionError("Redis did not restart")


def test_expected_counts_add_up() -> None:
    assert expected_counts(2)["count"][b"user 3"] == 3 + 4
