"""Keys that two sinks share, and keys written by other programs; on a real Valkey and a real cluster."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from onceflow.cli import onceflow
from onceflow.redis import pool as redis_pool
from onceflow.remedies import Remedy
from onceflow.spark.errors import MarkerRefused, WrongOption
from onceflow.spark.redis import scripts as redis_scripts
from onceflow.spark.redis.marker import claims_key, same_slot
from onceflow.spark.redis.scripts import Keys, MarkerMoved
from onceflow.spark.redis.targets import Append, Increment
from onceflow.spark.redis_sink import RedisSink
from onceflow.spark.redis_tags import TaggedRedisSink
from tests import remedies
from tests.conftest import RedisProcess
from tests.spark.exactly_once.test_checkpoint import SparkFiles
from tests.spark.redis.test_cluster import cluster
from tests.spark.redis_servers import RedisCluster
from tests.spark.redis_steps import Driver, assert_counts, batch_of, every_write, new_keys
from tests.spark.test_redis_sink import Sinks, added, assert_counted, files, redis_client, sinks
from tests.spark.test_redis_tags import Counting, counting

__all__ = ["cluster", "counting", "files", "redis_client", "sinks"]


@pytest.fixture
def url(redis_server: RedisProcess) -> Iterator[str]:
    yield redis_server.url
    redis_pool.close(redis_server.url)


def beside(keys: Keys, name: str) -> Keys:
    """Return the keys of another sink, which shares its first hash with this one."""
    marker = same_slot(keys.data[0], f"{name}:onceflow")
    count = Increment("count", keys.data[0], same_slot(keys.data[0], f"{name}:top"))
    others = (Increment("os", same_slot(keys.data[0], f"{name}:os")),)
    dead = Append("dead", same_slot(keys.data[0], f"{name}:dead"), 3)
    history = same_slot(keys.data[0], f"{name}:history")
    return Keys(marker, history, (count, *others), (dead,))


def alone(keys: Keys, name: str) -> Keys:
    """Return `beside` with its own first hash."""
    other = beside(keys, name)
    count = replace(other.increments[0], key=same_slot(keys.data[0], name))
    return replace(other, increments=(count, *other.increments[1:]))


def run(driver: Driver, *numbers: int) -> None:
    for number in numbers:
        list(driver.steps(batch_of(number, query=driver.query)))


def dump(client: Any, keys: Keys) -> dict[str, Any]:
    return {key: client.dump(key) for key in keys.own}


def refused_by_name(keys: Keys, owner: Keys) -> Any:
    named = f"key {keys.data[0]} belongs to marker {owner.marker}, so the sink with marker {keys.marker} cannot"
    return pytest.raises(MarkerRefused, match=re.escape(named))


def make_earlier(client: Any, keys: Keys, version: str) -> None:
    """Change the marker to the format of an earlier version."""
    client.unlink(*keys.claims)
    client.hset(keys.marker, "format", version)


@pytest.mark.parametrize("batches", [0, 1, 3])
def test_second_sink_is_refused_at_batch_0(url: str, batches: int) -> None:
    """The first sink may already have data."""
    keys = new_keys()
    other = beside(keys, "other")
    first, second = Driver(url, keys), Driver(url, other, query="query-2")
    first.acquire(batch_of(0))
    run(first, *range(batches))
    before = dump(first.client, keys)
    with refused_by_name(other, keys):
        second.acquire(batch_of(0, query="query-2"))
    assert dump(first.client, keys) == before
    assert not first.client.exists(other.marker, other.history, *other.data[1:])
    run(first, batches)
    assert_counts(first.client, keys, batches + 1)


def test_second_sink_after_batch_0_is_refused(url: str) -> None:
    """Both have their own counts; then the configuration of one names the other's key."""
    keys = new_keys()
    apart, other = alone(keys, "other"), beside(keys, "other")
    first, second = Driver(url, keys), Driver(url, apart, query="query-2")
    run(first, 0, 1)
    run(second, 0, 1)
    before = dump(first.client, keys) | dump(first.client, apart)
    wrong = Driver(url, other, query="query-2")
    with refused_by_name(other, keys):
        run(wrong, 2)
    assert dump(first.client, keys) | dump(first.client, apart) == before
    run(first, 2)
    run(Driver(url, apart, query="query-2"), 2)
    assert_counts(first.client, keys, 3)
    assert_counts(first.client, apart, 3)


@pytest.mark.parametrize("version", ["1", "2"])
def test_earlier_markers_that_share_a_key(url: str, version: str) -> None:
    """Both are past batch 0; the sink that starts first keeps the key."""
    keys = new_keys()
    apart, other = alone(keys, "other"), beside(keys, "other")
    first = Driver(url, keys)
    run(first, 0, 1)
    run(Driver(url, apart, query="query-2"), 0, 1)
    make_earlier(first.client, keys, version)
    make_earlier(first.client, other, version)
    for written in other.data:
        first.client.hset(other.marker, f"written:{written}", "1")
    run(Driver(url, keys), 2)
    before = dump(first.client, keys) | dump(first.client, other)
    with refused_by_name(other, keys):
        run(Driver(url, other, query="query-2"), 2)
    assert dump(first.client, keys) | dump(first.client, other) == before
    assert first.client.hget(keys.marker, "format") == b"4"
    assert_counts(first.client, keys, 3)


@pytest.mark.parametrize("place", range(6))
@pytest.mark.parametrize("is_foreign", [True, False], ids=["foreign", "lost"])
def test_every_script_checks_every_claim(url: str, place: int, is_foreign: bool) -> None:
    keys = new_keys()
    driver = Driver(url, keys)
    run(driver, 0, 1, 2)
    driver.begin(batch_of(3))
    key = keys.own[place]
    if is_foreign:
        driver.client.hset(claims_key(key), key, "{another}:onceflow")
    else:
        driver.client.hdel(claims_key(key), key)
    before = dump(driver.client, keys)
    error, reason = (
        (MarkerRefused, "belongs to marker {another}") if is_foreign else (MarkerMoved, "is no longer claimed for")
    )
    for write in (*every_write(driver, 3), lambda: driver.call("rewind", "query-1", driver.owner)):
        with pytest.raises(error, match=re.escape(f"key {key} {reason}")):
            write()
    assert dump(driver.client, keys) == before
    if is_foreign:
        with pytest.raises(error, match=re.escape(reason)):
            driver.acquire(batch_of(3))
        assert dump(driver.client, keys) == before
    else:
        run(Driver(url, keys), 3)
        assert driver.client.hget(claims_key(key), key) == keys.marker.encode()
        assert_counts(driver.client, keys, 4)


def test_claims_of_keys_in_several_tags(url: str) -> None:
    """Without a cluster, a sink's keys need not be in one slot."""
    keys = new_keys()
    count = replace(keys.increments[0], key=f"{keys.data[0]}-elsewhere")
    apart = replace(keys, increments=(count, keys.increments[1]))
    run(Driver(url, apart), 0, 1)
    other = replace(new_keys(), increments=(replace(new_keys().increments[0], key=count.key),))
    with refused_by_name(other, apart):
        Driver(url, other, query="query-2").acquire(batch_of(0, query="query-2"))


def test_key_added_later_already_exists(url: str) -> None:
    keys = new_keys()
    apart = alone(keys, "other")
    run(Driver(url, apart), 0, 1)
    driver = Driver(url, replace(apart, increments=(*apart.increments, Increment("more", keys.data[0]))))
    driver.client.hset(keys.data[0], "user 1", 5)
    with pytest.raises(MarkerRefused, match=f"key {keys.data[0]} exists, and no sink claims it") as raised:
        driver.acquire(batch_of(2))
    follow(driver.client, raised.value)
    run(driver, 2)
    assert_counts(driver.client, apart, 3)


@pytest.mark.remedy(Remedy.DELETE_CLAIM, Remedy.DELETE_KEY)
def test_key_released_by_another_sink(url: str) -> None:
    """The remedies of both messages work; a sink that still needs the key claims it again."""
    keys = new_keys()
    other = beside(keys, "other")
    run(Driver(url, keys), 0, 1)
    second = Driver(url, other, query="query-2")
    with refused_by_name(other, keys) as raised:
        second.acquire(batch_of(0, query="query-2"))
    follow(second.client, raised.value)
    with pytest.raises(MarkerRefused, match="exists, and no sink claims it"):
        second.acquire(batch_of(0, query="query-2"))
    run(Driver(url, keys), 2)
    assert_counts(second.client, keys, 3)
    Driver(url, replace(keys, increments=keys.increments[1:])).acquire(batch_of(3))
    with refused_by_name(other, keys) as raised:
        second.acquire(batch_of(0, query="query-2"))
    follow(second.client, raised.value)
    with pytest.raises(MarkerRefused) as unclaimed:
        second.acquire(batch_of(0, query="query-2"))
    follow(second.client, unclaimed.value)
    run(second, 0, 1)
    assert_counts(second.client, other, 2)


def follow(client: Any, error: MarkerRefused) -> None:
    """Call the command in the message."""
    remedy = Remedy.DELETE_CLAIM if "HDEL" in str(error) else Remedy.DELETE_KEY
    assert client.execute_command(*remedies.command(remedy, error, "command")) == 1


def test_forget_leaves_foreign_keys(url: str) -> None:
    """A claim can change after the reset has read it."""
    keys = new_keys()
    driver = Driver(url, keys)
    run(driver, 0, 1)
    driver.client.hset(claims_key(keys.data[0]), keys.data[0], "{another}:onceflow")
    driver.client.hdel(claims_key(keys.data[1]), keys.data[1])
    redis_scripts.forget(driver.client, keys.marker, keys.own)
    assert [key for key in keys.own if driver.client.exists(key)] == keys.data[:2]
    assert driver.client.hgetall(keys.claims[0]) == {keys.data[0].encode(): b"{another}:onceflow"}


def other_sink(sinks: Sinks, directory: Path, *, key: str = "counts") -> RedisSink:
    SparkFiles(directory).plan(0, {"clicks": {"0": 0}})
    made = RedisSink(
        sinks.url,
        hash_key="others",
        increments=[Increment("count", key, "{others}:top"), Increment("os", "{others}:os")],
        appends=[Append("dead", "{others}:dead", 3)],
        checkpoint=str(directory),
    )
    sinks.made.append(made)
    return made


@pytest.mark.remedy(Remedy.OTHER_KEY)
def test_wrong_key_and_its_remedies(sinks: Sinks, redis_client: Any, tmp_path: Path) -> None:
    """The start is refused with the key's name; a reset of the sink with the wrong key keeps the other's counts."""
    right = sinks.start()
    sinks.run(right, 0, 1)
    wrong = other_sink(sinks, tmp_path / "other")
    with pytest.raises(MarkerRefused, match=r"key counts belongs to marker \{counts\}:onceflow") as raised:
        wrong.open(sinks.spark)
    remedies.find(Remedy.OTHER_KEY, raised.value)
    other = other_sink(sinks, tmp_path / "third", key="others")
    other.open(sinks.spark)
    other(sinks.rows([("count", b"user 1", 1)]), 0)
    assert redis_client.hgetall("others") == {b"user 1": b"1"}
    other.close()
    words = ["--redis", sinks.url, "--hash-key", "others", "--key", "counts", "--missing-ok", "--execute"]
    done = CliRunner().invoke(onceflow, ["sink", "reset", "redis", *words])
    assert done.exit_code == 0, done.output
    assert "kept: counts: belongs to marker {counts}:onceflow\n" in done.output
    sinks.run(right, 2)
    assert_counted(redis_client, 3)


def test_reset_of_one_sink_keeps_other(sinks: Sinks, redis_client: Any, tmp_path: Path) -> None:
    """An earlier version let both count on one key past batch 0."""
    right = sinks.start()
    sinks.run(right, 0, 1)
    wrong = other_sink(sinks, tmp_path / "other")
    redis_client.copy("{counts}:onceflow", "{others}:onceflow")
    redis_client.hset("{others}:onceflow", mapping={"format": "2", "written:counts": "1", "query": "another"})
    before = redis_client.dump("counts")
    with pytest.raises(MarkerRefused) as raised:
        wrong.open(sinks.spark)
    wrong.close()
    remedy = re.search("'onceflow (sink reset redis .* --key counts .*?)'", str(raised.value))
    assert remedy is not None
    done = CliRunner().invoke(onceflow, shlex.split(remedy[1]))
    assert done.exit_code == 0, done.output
    assert redis_client.dump("counts") == before
    assert "kept: counts: belongs to marker {counts}:onceflow\n" in done.output
    assert "kept: {others}:onceflow: not claimed by a sink" in done.output
    sinks.run(right, 2)
    assert_counted(redis_client, 3)


def test_lost_claims_are_claimed_again(sinks: Sinks, redis_client: Any) -> None:
    sink = sinks.start()
    sinks.run(sink, 0, 1)
    redis_client.unlink("{counts}:onceflow-claims")
    sinks.run(sink, 2)
    redis_client.unlink("{counts}:onceflow-claims")
    sinks.run(sinks.start(), 3)
    assert_counted(redis_client, 4)
    assert redis_client.hlen("{counts}:onceflow-claims") == 6


@pytest.mark.remedy(Remedy.DELETE_KEY, Remedy.RENAME_KEY)
def test_key_written_by_another_program(sinks: Sinks, redis_client: Any) -> None:
    """The first batch of a job that replaces one with HINCRBY; a reset deletes only a sink's own keys."""
    redis_client.hincrby("counts", "user 1", 7)
    sink = sinks.start()
    with pytest.raises(MarkerRefused, match="key counts exists, and no sink claims it: rename it") as raised:
        sinks.batch(sink, 0, added(0))
    assert redis_client.keys() == [b"counts"]
    remedies.find(Remedy.RENAME_KEY, raised.value)
    redis_client.copy("counts", "copy")
    follow(redis_client, raised.value)
    sinks.run(sinks.start(), 0)
    redis_client.unlink(*{*redis_client.keys()} - {b"copy"})
    redis_client.rename("copy", "counts")
    sinks.files.directory.joinpath("commits", "0").unlink()
    sink = sinks.start()
    with pytest.raises(MarkerRefused, match="key counts exists, and no sink claims it: rename it"):
        sinks.batch(sink, 0, added(0))
    redis_client.rename("counts", "before")
    sinks.run(sinks.start(), 0, 1)
    assert redis_client.hgetall("before") == {b"user 1": b"7"}
    redis_client.unlink("before")
    assert_counted(redis_client, 2)


def test_two_sinks_in_one_cluster_slot(cluster: RedisCluster) -> None:
    keys = new_keys()
    other = beside(keys, "other")
    assert other.claims == keys.claims == [claims_key(keys.data[0])]
    first, second = Driver(cluster.url, keys), Driver(cluster.url, alone(keys, "other"), query="query-2")
    run(first, 0, 1)
    run(second, 0, 1)
    with refused_by_name(other, keys):
        run(Driver(cluster.url, other, query="query-2"), 2)
    hash_key = other.marker.removesuffix(":onceflow")
    words = ["--redis", cluster.url, "--hash-key", hash_key, "--execute"]
    done = CliRunner().invoke(onceflow, ["sink", "reset", "redis", *words])
    assert done.exit_code == 0, done.output
    assert not first.client.exists(*second.keys.own)
    run(first, 2)
    assert_counts(first.client, keys, 3)
    assert set(first.client.hvals(claims_key(keys.data[0]))) == {keys.marker.encode()}


def test_tagged_sinks_that_share_a_key(counting: Counting, tmp_path: Path) -> None:
    """Each tag has its own claims."""
    counting.start()
    counting.run(0, 1)
    hash_key = f"{{{counting.hash_key}}}:other"
    other = TaggedRedisSink(
        counting.url,
        tags=3,
        hash_key=hash_key,
        increments=[Increment("count", f"{{{counting.hash_key}}}:top")],
        checkpoint=str(tmp_path / "other"),
    )
    with pytest.raises(MarkerRefused, match=r"/0\}:top belongs to marker \{.*/0\}:onceflow"):
        other.open(counting.spark)
    words = ["--redis", counting.url, "--hash-key", hash_key, "--tags", "--missing-ok", "--execute"]
    done = CliRunner().invoke(onceflow, ["sink", "reset", "redis", *words])
    assert done.exit_code == 0, done.output
    counting.run(2)
    counting.assert_counted(3)
    for tag in range(3):
        claims = counting.client(tag).hgetall(claims_key(counting.key(tag)))
        assert set(claims.values()) == {f"{counting.key(tag)}:onceflow".encode()}
        assert len(claims) == 5


def test_claims_hash_is_not_a_data_key(redis_server: RedisProcess) -> None:
    with pytest.raises(WrongOption, match=r"key '\{counts\}:onceflow-claims' for more than one purpose"):
        RedisSink(
            redis_server.url,
            hash_key="counts",
            increments=[Increment("count", "{counts}:onceflow-claims")],
            checkpoint="c",
        )
