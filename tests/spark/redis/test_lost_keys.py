"""Lost keys whose marker remains, and settings of Redis that change during a query; on a real Valkey."""

import json
import re
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.sql import DataFrame

from onceflow.cli import onceflow
from onceflow.remedies import Remedy
from onceflow.spark.errors import MarkerRefused
from onceflow.spark.exactly_once.batch import AcceptedLoss
from onceflow.spark.offsets import LossKind, OffsetRange
from onceflow.spark.reader.data_loss import DataLost
from onceflow.spark.redis.repair import Step
from onceflow.spark.redis.scripts import MarkerMoved
from onceflow.spark.redis.target import RedisTarget
from onceflow.spark.redis_sink import MissingRanges, RepairFailed, UnsuitableRedis
from tests import remedies
from tests.conftest import RedisProcess
from tests.spark.exactly_once.test_checkpoint import SparkFiles
from tests.spark.redis.test_repair import checkpoint, marker, planned
from tests.spark.redis_steps import Driver, batch_of, every_write, new_keys, rows_of
from tests.spark.test_redis_sink import (
    Sinks,
    assert_counted,
    files,
    marker_of,
    redis_client,
    sinks,
    small_chunks,
)

__all__ = ["checkpoint", "files", "redis_client", "sinks", "small_chunks"]

KEYS = ["counts", "{counts}:top", "{counts}:os", "{counts}:dead"]
LOSSES: dict[str, Callable[[Any, str], Any]] = {
    "unlink": lambda client, key: client.unlink(key),
    "expire": lambda client, key: client.pexpire(key, -1),
    "rename": lambda client, key: client.rename(key, f"{key}-elsewhere"),
}


@pytest.mark.parametrize("place", range(4))
def test_every_script_refuses_a_lost_key(redis_server: RedisProcess, place: int) -> None:
    keys = new_keys()
    driver = Driver(redis_server.url, keys)
    for number in (0, 1, 2):
        list(driver.steps(batch_of(number)))
    driver.begin(batch_of(3))
    driver.client.unlink(keys.data[place])
    before = {key: driver.client.dump(key) for key in keys.all}
    for write in every_write(driver, 3):
        with pytest.raises(MarkerMoved, match=re.escape(f"has written {keys.data[place]}, and that key no")):
            write()
    assert {key: driver.client.dump(key) for key in keys.all} == before


def test_unwritten_key_may_be_absent(redis_server: RedisProcess) -> None:
    driver = Driver(redis_server.url, new_keys())
    driver.acquire(batch_of(0))
    driver.whole(batch_of(0), [("os", b"iOS", 1)])
    driver.whole(batch_of(1), [("os", b"iOS", 1)])
    assert not driver.client.exists(driver.keys.data[0])


def test_upgraded_marker_records_written_keys(redis_server: RedisProcess) -> None:
    keys = new_keys()
    list(Driver(redis_server.url, keys).steps(batch_of(0)))
    driver = Driver(redis_server.url, keys)
    driver.client.hdel(keys.marker, *(f"written:{key}" for key in keys.data))
    driver.client.hset(keys.marker, "format", "1")
    list(driver.steps(batch_of(1)))
    assert driver.client.hget(keys.marker, "format") == b"4"
    driver.client.unlink(keys.data[0])
    with pytest.raises(MarkerMoved, match="no longer exists"):
        driver.whole(batch_of(2), rows_of(2))


def test_key_no_longer_configured_may_vanish(redis_server: RedisProcess) -> None:
    keys = new_keys()
    list(Driver(redis_server.url, keys).steps(batch_of(0)))
    fewer = replace(keys, appends=())
    driver = Driver(redis_server.url, fewer)
    driver.acquire(batch_of(1))
    driver.client.unlink(keys.appends[0].key)
    driver.owner = Driver(redis_server.url, fewer).acquire(batch_of(1))
    driver.settle(batch_of(0))


@pytest.mark.parametrize("loss", LOSSES)
def test_lost_keys_are_counted_again(
    sinks: Sinks, redis_client: Any, loss: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A check, a batch and a start notice the loss; no other key is counted twice."""
    sink = sinks.start(rebuild=sinks.rebuild)
    sinks.run(sink, 0, 1, 2)
    LOSSES[loss](redis_client, "counts")
    sink.check()
    assert_counted(redis_client, 3, repaired=True)
    assert "has written counts, which no longer exists" in caplog.text
    for number, key in enumerate(KEYS, start=3):
        LOSSES[loss](redis_client, key)
        sinks.run(sink, number)
        assert_counted(redis_client, number + 1, repaired=True)
    LOSSES[loss](redis_client, "{counts}:top")
    sink = sinks.start(rebuild=sinks.rebuild)
    sink.open(sinks.spark)
    assert_counted(redis_client, 7, repaired=True)


@pytest.mark.usefixtures("small_chunks")
def test_key_lost_between_chunks(sinks: Sinks, redis_client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = sinks.start(rebuild=sinks.rebuild)
    sinks.run(sink, 0, 1, 2)
    acquire = RedisTarget.prepare

    def lose(target: RedisTarget, *arguments: Any) -> None:
        acquire(target, *arguments)
        monkeypatch.setattr(RedisTarget, "prepare", acquire)
        redis_client.unlink("{counts}:os")

    monkeypatch.setattr(RedisTarget, "prepare", lose)
    sinks.run(sink, 3)
    assert_counted(redis_client, 4, repaired=True)


def test_key_lost_in_batch_0(sinks: Sinks, redis_client: Any) -> None:
    """Spark repeats the batch's rows, so no rebuild is needed."""
    rows = [("os", b"Android", 3)]
    sinks.batch(sinks.start(), 0, rows)
    redis_client.unlink("{counts}:os")
    sinks.batch(sinks.start(), 0, rows)
    assert redis_client.hgetall("{counts}:os") == {b"Android": b"3"}


@pytest.mark.remedy(Remedy.COUNT_AGAIN)
def test_lost_key_without_rebuild(sinks: Sinks, redis_client: Any) -> None:
    sink = sinks.start()
    sinks.run(sink, 0, 1)
    redis_client.unlink("{counts}:os")
    with pytest.raises(MarkerRefused, match=r"has written \{counts\}:os, which no longer exists") as raised:
        sinks.batch(sink, 2)
    sinks.close()
    where = ["--redis", sinks.url, "--hash-key", "counts", "--checkpoint", str(sinks.files.directory)]
    shown = CliRunner().invoke(onceflow, ["sink", "show", "redis", *where])
    assert (shown.exit_code, "written and lost: {counts}:os\n" in shown.output) == (1, True)
    assert "does not fit: Redis lost batches: marker {counts}:onceflow has written {counts}:os" in shown.output
    words = remedies.command(Remedy.COUNT_AGAIN, raised.value, "reset")
    done = CliRunner().invoke(onceflow, words[1:])
    assert done.exit_code == 0, done.output
    sinks.files = SparkFiles(sinks.files.directory)
    sinks.files.plan(0, {"clicks": {"0": 0}})
    sinks.run(sinks.start(), 0, 1, 2)
    assert_counted(redis_client, 3)


def test_nothing_is_deleted_if_records_are_missing(sinks: Sinks, redis_client: Any) -> None:
    def trimmed(missing: MissingRanges) -> DataFrame:
        raise DataLost(f"{missing.ranges[0]} is missing from the log")

    sinks.run(sinks.start(), 0, 1, 2)
    redis_client.unlink("{counts}:os")
    before = {key: redis_client.dump(key) for key in ("counts", "{counts}:top", "{counts}:dead")}
    with pytest.raises(
        RepairFailed, match=r"has written \{counts\}:os, .*cannot be counted again \(clicks-0 \[0, 10\)"
    ):
        sinks.start(rebuild=trimmed).open(sinks.spark)
    assert {key: redis_client.dump(key) for key in before} == before
    sinks.start(rebuild=sinks.rebuild).open(sinks.spark)
    assert_counted(redis_client, 3, repaired=True)
    assert marker_of(redis_client)["since"] == '{"clicks":{"0":0}}'


@pytest.mark.parametrize("kind", [LossKind.RECREATED, LossKind.TRUNCATED])
def test_nothing_is_deleted_after_accepted_losses(sinks: Sinks, redis_client: Any, kind: LossKind) -> None:
    """An accepted loss means that the log no longer has the counted records."""
    sinks.run(sinks.start(), 0, 1, 2)
    loss = AcceptedLoss(kind, "clicks", 0, 20, None, batch=1, at_ms=17, option="accept_data_loss")
    redis_client.hset("{counts}:onceflow", "losses", json.dumps([asdict(loss)]))
    redis_client.unlink("{counts}:os")
    before = {key: redis_client.dump(key) for key in ("counts", "{counts}:top", "{counts}:dead")}
    with pytest.raises(
        MarkerRefused, match=rf"the log no longer has what was counted before an accepted loss \(clicks-0 .* {kind}"
    ):
        sinks.start(rebuild=sinks.rebuild).open(sinks.spark)
    assert {key: redis_client.dump(key) for key in before} == before


def test_partition_may_enter_with_last_batch(files: SparkFiles, checkpoint: Any) -> None:
    """The rewound marker has the partition; the repair up to the previous batch does not read it."""
    files.plan(5, {"clicks": {"0": 50}})
    files.plan(6, {"clicks": {"0": 60, "1": 7}})
    rewound = replace(marker(batch_of(6)), since={"clicks": {"0": 0, "1": 7}}).rewound()
    step = planned(rewound, checkpoint)
    assert isinstance(step, Step)
    assert step.batch.ranges == (OffsetRange("clicks", 0, 0, 50),)


@pytest.mark.remedy(Remedy.CONFIG_SET, Remedy.START_AGAIN)
@pytest.mark.parametrize(
    ("setting", "wrong", "right"),
    [("maxmemory-policy", "allkeys-lru", "noeviction"), ("appendonly", "no", "yes"), ("appendfsync", "no", "everysec")],
)
def test_changed_setting_stops_the_query(sinks: Sinks, redis_client: Any, setting: str, wrong: str, right: str) -> None:
    """The query stops before its next write; the message's remedy lets it continue."""
    usual = redis_client.config_get(setting)[setting]
    sink = sinks.start()
    sinks.run(sink, 0, 1)
    before = redis_client.dump("counts")
    try:
        redis_client.config_set(setting, wrong)
        with pytest.raises(UnsuitableRedis, match=f"{setting} is '{wrong}'"):
            sink.check()
        with pytest.raises(UnsuitableRedis, match=f"{setting} is '{wrong}'") as raised:
            sinks.batch(sink, 2)
        assert redis_client.dump("counts") == before
        remedies.find(Remedy.START_AGAIN, raised.value)
        setting_of_remedy = remedies.find(Remedy.CONFIG_SET, raised.value)
        assert setting_of_remedy == {"name": setting, "value": right}
        redis_client.execute_command("CONFIG", "SET", *setting_of_remedy.values())
        sinks.run(sinks.start(), 2)
        assert_counted(redis_client, 3)
    finally:
        redis_client.config_set(setting, usual)
