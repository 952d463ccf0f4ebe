"""Repairs after lost batches: their plan, and a real Valkey that is rolled back, repaired and killed meanwhile."""

import os
import random
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import redis

from onceflow.client.admin import Admin
from onceflow.client.cluster import Cluster
from onceflow.errors import OnceflowError
from onceflow.redis import pool as redis_pool
from onceflow.spark.errors import MarkerRefused, WrongOption
from onceflow.spark.exactly_once.batch import Batch
from onceflow.spark.exactly_once.checkpoint import LocalCheckpoint
from onceflow.spark.exactly_once.decision import Refuse
from onceflow.spark.offsets import OffsetRange
from onceflow.spark.read_again import InputCompacted, read_again
from onceflow.spark.reader.data_loss import DataLost
from onceflow.spark.reader.options import read_options
from onceflow.spark.redis.marker import Marker, begun_fields, completed_fields, first_fields, parse, wording
from onceflow.spark.redis.repair import MissingRanges, Step, next_step, refusal_of_state
from onceflow.spark.source import BatchReader
from tests.conftest import RedisProcess
from tests.spark.exactly_once.test_checkpoint import SparkFiles
from tests.spark.redis_servers import append_only_file, wait_until
from tests.spark.redis_steps import Driver, assert_counts, batch_of, new_keys

BATCHES = 8


@pytest.fixture
def files(tmp_path: Path) -> SparkFiles:
    """Return a checkpoint with every batch of `batch_of` committed; batch 0 has no offsets."""
    made = SparkFiles(tmp_path / "checkpoint")
    for number in range(BATCHES):
        made.plan(number, {"clicks": {"0": 10 * number}})
        made.commit(number)
    return made


@pytest.fixture
def checkpoint(files: SparkFiles) -> LocalCheckpoint:
    return LocalCheckpoint(files.directory)


def marker(of: Batch, *, chunks: int = 0, done: tuple[int, ...] = (), complete: bool = True) -> Marker:
    fields = first_fields(of) | begun_fields(None, of, chunks=chunks, started_ms=1)
    fields |= completed_fields(started_ms=1, finished_ms=2) if complete else {}
    parsed = parse("m", fields | {f"chunk:{number}": "1" for number in done})
    assert parsed is not None
    return parsed


def planned(held: Marker | None, checkpoint: LocalCheckpoint, number: int = 6) -> Step | Refuse | None:
    assert held is not None
    target = checkpoint.batch(number, plan="p", plan_version=1)
    return next_step(held, target, checkpoint, wording("m", "reset"))


def test_steps_of_a_repair(checkpoint: LocalCheckpoint) -> None:
    partial = batch_of(3)
    assert planned(marker(partial, chunks=4, done=(1,), complete=False), checkpoint) == Step(partial)
    bridge = replace(batch_of(5), ranges=(OffsetRange("clicks", 0, 30, 50),))
    assert planned(marker(partial), checkpoint) == Step(bridge)
    assert planned(marker(bridge, chunks=2, complete=False), checkpoint) == Step(bridge)
    assert planned(marker(bridge), checkpoint) == Step(batch_of(6))
    assert planned(marker(batch_of(6), chunks=1, complete=False), checkpoint) == Step(batch_of(6))
    assert planned(marker(batch_of(6)), checkpoint) is None


def test_bridge_is_finished_without_the_last_commit(checkpoint: LocalCheckpoint) -> None:
    bridge = replace(batch_of(5), ranges=(OffsetRange("clicks", 0, 30, 50),))
    assert planned(marker(bridge, chunks=2, complete=False), checkpoint, 5) == Step(bridge)
    assert planned(marker(bridge), checkpoint, 5) is None
    longer = replace(batch_of(5), ranges=(OffsetRange("clicks", 0, 30, 51),))
    assert_refused(planned(marker(longer, chunks=2, complete=False), checkpoint, 5), "a part of batch 5 as")
    shorter = replace(batch_of(5), ranges=(OffsetRange("clicks", 0, 45, 50),))
    assert_refused(planned(marker(shorter, chunks=2, complete=False), checkpoint, 5), "a part of batch 5 as")


def test_rewound_marker_is_repaired(checkpoint: LocalCheckpoint) -> None:
    acquired = parse("m", first_fields(batch_of(0)))
    step = planned(acquired, checkpoint)
    assert isinstance(step, Step)
    assert step.missing == MissingRanges((OffsetRange("clicks", 0, 0, 50),), {})
    first = planned(acquired, checkpoint, 0)
    assert isinstance(first, Step)
    assert first.missing is None


def test_new_partition_is_read_from_its_start(files: SparkFiles, checkpoint: LocalCheckpoint) -> None:
    for number, offset in ((4, 7), (5, 9), (6, 9)):
        files.plan(number, {"clicks": {"0": 10 * number, "1": offset}})
    step = planned(marker(batch_of(3)), checkpoint)
    assert isinstance(step, Step)
    assert step.batch.ranges == (OffsetRange("clicks", 0, 30, 50), OffsetRange("clicks", 1, 7, 9))
    (files.directory / "offsets" / "4").unlink()
    assert_refused(planned(marker(batch_of(3)), checkpoint), "no longer has the first offset of clicks-1")


def test_another_topic_id_is_refused(files: SparkFiles, checkpoint: LocalCheckpoint) -> None:
    for number in (4, 5, 6):
        files.plan(number, {"clicks": {"0": 10 * number}, "@ids": {"clicks": "id-2"}})
    step = planned(marker(batch_of(3, topic_ids={"clicks": "id-2"})), checkpoint)
    assert isinstance(step, Step)
    assert step.missing == MissingRanges((OffsetRange("clicks", 0, 30, 50),), {"clicks": "id-2"})
    held = marker(batch_of(3, topic_ids={"clicks": "id-1"}))
    assert_refused(planned(held, checkpoint), "clicks was deleted and created again since: id id-1 is now id-2")


REFUSED: Mapping[str, tuple[Marker, str]] = {
    "another plan": (marker(batch_of(3, plan="by ip")), "of plan 'by ip' and this job is 'p'"),
    "another version in a batch": (marker(batch_of(3, plan_version=2), chunks=1, complete=False), "by version 2"),
    "a damaged part": (
        replace(marker(batch_of(3), chunks=1, complete=False), ranges_json='{"clicks":{"0":[20,31]}}'),
        "does not match its digest",
    ),
    "a partition that is not read": (
        replace(marker(batch_of(3)), offsets={"clicks": {"0": 30, "1": 5}}),
        "no longer reads clicks-1",
    ),
    "offsets beyond": (replace(marker(batch_of(3)), offsets={"clicks": {"0": 51}}), "up to 51, Spark only up to 50"),
    "a gap before the last batch": (
        replace(marker(batch_of(5)), offsets={"clicks": {"0": 49}}),
        "at offset 49 and the checkpoint begins batch 6 at 50",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_impossible_repair_is_refused(checkpoint: LocalCheckpoint, case: str) -> None:
    held, message = REFUSED[case]
    assert_refused(planned(held, checkpoint), message)


def test_repair_of_stateful_query_is_refused(checkpoint: LocalCheckpoint) -> None:
    assert refusal_of_state(checkpoint, wording("m", "reset")) is None
    (checkpoint.directory / "state" / "0").mkdir(parents=True)
    assert_refused(refusal_of_state(checkpoint, wording("m", "reset")), "of a stateful query .*/state.*restore Redis")


def assert_refused(step: Step | Refuse | None, message: str) -> None:
    assert isinstance(step, Refuse)
    with pytest.raises(AssertionError, match=message):
        raise AssertionError(step.reason)


def test_compacted_topic_is_not_read_again(cluster: Cluster, bootstrap: str, topic: str) -> None:
    cluster.create_topic(topic, 1, configs={"cleanup.policy": "delete,compact"})
    no_session: Any = None
    with pytest.raises(InputCompacted, match=f"topic {topic} has cleanup.policy '.*compact.*'"):
        read_again(
            no_session,
            {"kafka.bootstrap.servers": bootstrap, "SUBSCRIBE": "x", "maxOffsetsPerTrigger": "5"},
            MissingRanges((OffsetRange(topic, 0, 3, 4),), {}),
        )


class Loaded:
    """A stand-in for a session that plans the ranges that Spark would read with the given options."""

    read = property(lambda self: self)

    def format(self, name: str) -> "Loaded":
        assert name == "onceflow"
        return self

    def options(self, **values: str) -> "Loaded":
        self._reader = BatchReader(read_options(values, "batch"))
        return self

    def load(self) -> "Loaded":
        return self

    def ranges(self) -> list[OffsetRange]:
        return sorted(part for task in self._reader.partitions() for part in task.ranges)


def test_exactly_the_missing_ranges_are_read(cluster: Cluster, bootstrap: str, topic: str, send: Any) -> None:
    cluster.create_topic(topic, 3)
    for partition in range(3):
        send(["a", "b", "c", "d"], partition=partition)
    wanted = (OffsetRange(topic, 0, 1, 3), OffsetRange(topic, 2, 0, 4))
    options = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, "failOnDataLoss": "false", "groupId": "g"}

    def planned_of(topic_id: str, *ranges: OffsetRange) -> list[OffsetRange]:
        loaded: Any = read_again(Loaded(), options, MissingRanges(ranges, {topic: topic_id}))  # type: ignore[arg-type]
        planned_ranges: list[OffsetRange] = loaded.ranges()
        return planned_ranges

    same = str(cluster.require_topic(topic).topic_id)
    assert planned_of(same, *wanted) == list(wanted)
    with pytest.raises(WrongOption, match="deleted and recreated"):
        planned_of(str(uuid.uuid4()), *wanted)
    with pytest.raises(WrongOption, match=r"offset 5 of .*-0 is after its end, 4"):
        planned_of(same, OffsetRange(topic, 0, 1, 5))
    Admin(cluster).delete_records(topic, {0: 2})
    with pytest.raises(DataLost, match=r"-0 \[1, 2\) is missing from the log"):
        planned_of(same, *wanted)


class PastRedis:
    """A Redis that can be rolled back: a copy of its files is restored after a kill."""

    def __init__(self, server: RedisProcess, *, appendonly: bool) -> None:
        self.server = server
        self._appendonly = appendonly
        self._copy = server.directory.with_name(f"{server.directory.name}-copy")

    def keep(self) -> None:
        if not self._appendonly:
            redis_pool.client(self.server.url).save()
        shutil.rmtree(self._copy, ignore_errors=True)
        shutil.copytree(self.server.directory, self._copy)

    def go_back(self) -> None:
        self.server.kill()
        shutil.rmtree(self.server.directory)
        shutil.copytree(self._copy, self.server.directory)
        self.server.start()


@pytest.fixture(params=[True, False], ids=["append-only file", "snapshot"])
def past(request: pytest.FixtureRequest, new_redis: Callable[..., RedisProcess]) -> Iterator[PastRedis]:
    server = new_redis(appendonly=request.param)
    yield PastRedis(server, appendonly=request.param)
    redis_pool.close(server.url)


@pytest.mark.parametrize("kept", ["complete 2", "chunk 1 of 3", "begin of 3"])
def test_killed_repairs_are_finished(past: PastRedis, checkpoint: LocalCheckpoint, kept: str) -> None:
    url, keys = past.server.url, new_keys()
    driver = Driver(url, keys)
    for number in range(3):
        list(driver.steps(batch_of(number)))
    begun = driver.steps(batch_of(3))
    if kept != "complete 2":
        assert next(begun) == "begin"
    if kept == "chunk 1 of 3":
        assert [next(begun), next(begun)] == ["chunk 0", "chunk 1"]
    past.keep()
    list(begun)
    for number in range(4, 7):
        list(driver.steps(batch_of(number)))
    assert_counts(driver.client, keys, 7)

    past.go_back()
    with pytest.raises(MarkerRefused, match="Redis lost batches"):
        list(Driver(url, keys).steps(batch_of(7)))
    names = list(Driver(url, keys, checkpoint=checkpoint).steps(batch_of(7)))
    assert "repair: batch 5: begin" in names
    assert names[-1] == "complete"
    assert_counts(driver.client, keys, 8, repaired=True)

    for steps in range(1, len(names)):
        past.go_back()
        for killed_at in (steps, steps // 2):  # Twice, the second time in the repair after the first kill.
            killed = Driver(url, keys, checkpoint=checkpoint).steps(batch_of(7))
            for _ in range(killed_at):
                next(killed, None)
        list(Driver(url, keys, checkpoint=checkpoint).steps(batch_of(7)))
        assert_counts(driver.client, keys, 8, repaired=True)


def test_redis_loses_writes_during_its_repair(past: PastRedis, checkpoint: LocalCheckpoint) -> None:
    url, keys = past.server.url, new_keys()
    driver = Driver(url, keys)
    for number in range(7):
        list(driver.steps(batch_of(number)))
        if number == 2:
            past.keep()
    for steps in range(2, 10):
        past.go_back()
        repairing = Driver(url, keys, checkpoint=checkpoint)
        begun = repairing.steps(batch_of(7))
        for _ in range(steps):
            next(begun)
        past.go_back()
        with pytest.raises(OnceflowError, match=r"moved to batch|taken over"):
            list(begun)
        list(Driver(url, keys, checkpoint=checkpoint).steps(batch_of(7)))
        assert_counts(driver.client, keys, 8, repaired=True)


class Writer:
    """A writer of batches to a Redis that is killed; it counts the losses again by the sink's own steps."""

    def __init__(self, server: RedisProcess, directory: Path) -> None:
        self.server, self.keys = server, new_keys()
        self.number = self.repairs = self.repair_steps = 0
        self._files = SparkFiles(directory)
        self.start()

    def start(self) -> None:
        checkpoint = LocalCheckpoint(self._files.directory)
        self._driver = Driver(self.server.url, self.keys, checkpoint=checkpoint)

    def write_next(self) -> None:
        self._files.plan(self.number, {"clicks": {"0": 10 * self.number}})
        steps = [step for step in self._driver.steps(batch_of(self.number)) if step.startswith("repair: batch")]
        self.repairs += bool(steps)
        self.repair_steps += sum(step.endswith("complete") for step in steps)
        self.number += 1

    def write_while(self, is_running: Callable[[], bool]) -> None:
        while is_running():
            try:
                self.write_next()
            except (redis.RedisError, OnceflowError):
                self.start()

    def check(self) -> None:
        assert_counts(self._driver.client, self.keys, self.number, repaired=True)


class Killer:
    """A killer of the server of a running `Writer`."""

    def __init__(self, writer: Writer, chance: random.Random) -> None:
        self._writer, self._server, self._chance = writer, writer.server, chance
        self.losses = 0

    def kill(self) -> None:
        time.sleep(self._chance.uniform(0.02, 1.5))
        self._server.kill()
        self._server.start()

    def cut_power(self) -> None:
        """Kill the server and truncate its file, with at least one acknowledged batch."""
        files, sizes = [], []
        for _ in range(2):
            time.sleep(self._chance.uniform(0.01, 0.5))
            files.append(append_only_file(self._server))
            sizes.append(files[-1].stat().st_size)
            self._wait_for_a_whole_batch()
        self._server.kill()
        if {*files} == {append_only_file(self._server)}:  # Redis did not rewrite the file meanwhile.
            os.truncate(files[0], self._chance.randint(*sizes))
            self.losses += 1
        self._server.start()

    def _wait_for_a_whole_batch(self) -> None:
        current = self._writer.number
        wait_until(lambda: self._writer.number > current + 1, f"batch {current + 1}")


def write_while_redis_is_killed(writer: Writer, kill: Callable[[], None]) -> None:
    thread = threading.Thread(target=kill)
    thread.start()
    writer.write_while(thread.is_alive)
    thread.join()
    writer.start()
    writer.write_next()
    writer.check()


@pytest.fixture
def unsynced(new_redis: Callable[..., RedisProcess], tmp_path: Path) -> Iterator[Writer]:
    """Return a writer whose Redis acknowledges batches before they are on disk; the first batch is written."""
    server = new_redis(appendfsync="everysec")
    writer = Writer(server, tmp_path / "long")
    writer.write_next()
    yield writer
    redis_pool.close(server.url)


def test_losses_of_power_cuts_are_recounted(unsynced: Writer) -> None:
    killer = Killer(unsynced, random.Random(6))
    for cuts in (1, 2, 3):
        write_while_redis_is_killed(unsynced, killer.cut_power)
        assert unsynced.repairs == killer.losses == cuts


@pytest.mark.campaign
def test_redis_with_everysec_is_killed_and_repaired(
    unsynced: Writer, record_property: Callable[[str, object], None]
) -> None:
    """Redis with appendfsync everysec is killed and loses power for two minutes; the sink repairs every loss."""
    chance = random.Random(6)
    killer, kills = Killer(unsynced, chance), 0
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        losses, repairs = killer.losses, unsynced.repairs
        write_while_redis_is_killed(unsynced, chance.choice((killer.kill, killer.cut_power)))
        kills += 1
        assert unsynced.repairs - repairs >= killer.losses - losses
    assert killer.losses > 0
    record_property("Redis kills", kills)
    record_property("kills that lost acknowledged batches", killer.losses)
    record_property("losses repaired", unsynced.repairs)
    record_property("repair steps", unsynced.repair_steps)
    record_property("batches", unsynced.number)
