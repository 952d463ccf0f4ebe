"""Power cuts at each step of a micro-batch: unsynced parts of the checkpoint are lost, Redis keeps its state.

Spark syncs nothing of its checkpoint; the sink syncs the files that a batch depends on before it writes. So after each
cut the run must resume from the remaining files, and the recount must show no difference.
"""

import fcntl
import itertools
import os
import random
import shutil
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import redis
from pyspark.sql import SparkSession

from onceflow.clicks.job import AVAILABLE_NOW
from onceflow.clicks.pipeline import ClickPipeline
from onceflow.clicks.verify import verify
from onceflow.client.cluster import Cluster
from onceflow.client.producer import EventWriter
from onceflow.errors import OnceflowError
from onceflow.spark.exactly_once.checkpoint import LocalCheckpoint
from onceflow.spark.redis import batch as redis_batch
from onceflow.spark.redis import scripts as redis_scripts
from tests.campaigns import RecordProperty, tell
from tests.conftest import RedisProcess
from tests.spark.slow_workers import restarted

EVENTS = 60
STEPS = [
    "before the syncs of batch 0",
    "after the syncs of batch 0",
    "after script acquire",
    "after script whole",
    "before the syncs of batch 1",
    "after the syncs of batch 1",
    "after script whole",
]
"""Moments at which the checkpoint or Redis had changed."""


class SyncedDirectory:
    """State of a directory after a power cut: files with their last synced content, under synced names.

    It believes the system call alone, not what the sink says of itself.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
        self.root = root
        self._contents: dict[Path, bytes] = {}
        self._names: dict[Path, set[str]] = {}
        fsync = os.fsync

        def watched_fsync(descriptor: int) -> None:
            fsync(descriptor)
            self._synced(path_of(descriptor))

        monkeypatch.setattr(os, "fsync", watched_fsync)

    def _synced(self, path: Path) -> None:
        if path.is_dir():
            self._names[path] = {entry.name for entry in path.iterdir()}
        else:
            self._contents[path] = path.read_bytes()

    def survivors(self) -> dict[str, bytes]:
        """Return relative path → content of all files that survive a power cut."""
        return {
            str(path.relative_to(self.root)): content
            for path, content in self._contents.items()
            if all(self._has_name(step) for step in [path, *path.parents] if self.root in [step, *step.parents])
        }

    def present(self) -> dict[str, bytes]:
        """Return relative path → content of all files except those being written."""
        files = [path for path in self.root.rglob("*") if path.is_file() and path.suffix not in (".tmp", ".lock")]
        return {str(path.relative_to(self.root)): path.read_bytes() for path in files}

    def _has_name(self, path: Path) -> bool:
        return path.name in self._names.get(path.parent, set())


@dataclass(frozen=True)
class Cut:
    """One power cut: the remaining checkpoint files, and Redis with `appendfsync always`."""

    step: str
    checkpoint: dict[str, bytes]
    unsynced: dict[str, bytes]
    keys: dict[bytes, bytes]

    def some_of_it(self, chance: random.Random) -> dict[str, bytes]:
        """Return the synced files and, of each other file independently, nothing, its empty name or all of it."""
        left = {name: content for name, content in self.unsynced.items() if chance.random() < 2 / 3}
        return self.checkpoint | {name: content if chance.random() < 0.5 else b"" for name, content in left.items()}


def path_of(descriptor: int) -> Path:
    """Return the path of an open descriptor."""
    if sys.platform == "darwin":
        return Path(fcntl.fcntl(descriptor, fcntl.F_GETPATH, bytes(1024)).rstrip(b"\0").decode())
    return Path(os.readlink(f"/proc/self/fd/{descriptor}"))


def dump(client: Any) -> dict[bytes, bytes]:
    return {key: client.dump(key) for key in client.scan_iter()}


class PowerCuts:
    """Recorder of a Cut before and after each step of the sink."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, checkpoint: Path, client: Any) -> None:
        self.cuts: list[Cut] = []
        self._disk = SyncedDirectory(monkeypatch, checkpoint)
        self._client = client
        prepare, run = LocalCheckpoint.prepare, redis_scripts.run

        def watched_prepare(local: LocalCheckpoint, number: int) -> None:
            self._take(f"before the syncs of batch {number}")
            prepare(local, number)
            self._take(f"after the syncs of batch {number}")

        def watched_run(client: Any, name: str, keys: Any, arguments: Any, touched: Any = ()) -> list[str]:
            self._take(f"before script {name}")
            reply = run(client, name, keys, arguments, touched)
            self._take(f"after script {name}")
            return reply

        monkeypatch.setattr(LocalCheckpoint, "prepare", watched_prepare)
        monkeypatch.setattr(redis_batch.redis_scripts, "run", watched_run)  # type: ignore[attr-defined]

    def _take(self, step: str) -> None:
        survivors = self._disk.survivors()
        unsynced = {name: content for name, content in self._disk.present().items() if survivors.get(name) != content}
        cut = Cut(step, survivors, unsynced, dump(self._client))
        if not self.cuts or (cut.checkpoint, cut.keys) != (self.cuts[-1].checkpoint, self.cuts[-1].keys):
            self.cuts.append(cut)


@pytest.fixture
def database(redis_server: RedisProcess) -> Any:
    """Database 2 of the shared Redis, empty."""
    url = redis_server.url.removesuffix("/1") + "/2"
    with redis.Redis.from_url(url) as client:
        client.flushdb()
        yield url, client
        client.flushdb()


Survivors = Callable[[Cut], dict[str, bytes]]
CutAtEachStep = Callable[[Survivors], int]


@pytest.fixture
def cut_at_each_step(
    spark: SparkSession, bootstrap: str, topic: str, database: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> CutAtEachStep:
    """Count with a power cut at each step, resume from each cut and recount; return the number of cuts."""

    def check(survivors: Survivors) -> int:
        return watched_run(spark, bootstrap, topic, database, tmp_path, monkeypatch, survivors)

    return check


def test_run_resumes_after_power_cuts(cut_at_each_step: CutAtEachStep) -> None:
    cut_at_each_step(lambda cut: cut.checkpoint)


@pytest.mark.campaign
@pytest.mark.parametrize("seed", range(20))
def test_run_resumes_with_any_unsynced_files(
    cut_at_each_step: CutAtEachStep, seed: int, record_property: RecordProperty
) -> None:
    """No event is lost after power cuts at each step, whichever unsynced files survive."""
    chance = random.Random(seed)
    cuts = cut_at_each_step(lambda cut: cut.some_of_it(chance))
    tell(record_property, range(seed, seed + 1), {"power cuts, 0 differences after each": cuts})


def watched_run(
    spark: SparkSession,
    bootstrap: str,
    topic: str,
    database: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    survivors: Survivors,
) -> int:
    url, client = database
    with Cluster(bootstrap) as cluster:
        cluster.create_topic(topic, 2)
    with EventWriter(bootstrap, topic) as writer:
        for number in range(EVENTS):
            writer.write(
                None, f'{{"uid":"user-{number % 7}","click_count":{number % 10}}}'.encode(), partition=number % 2
            )

    def count(checkpoint: Path) -> None:
        job = ClickPipeline(bootstrap, topic, str(checkpoint), redis_url=url, trigger=AVAILABLE_NOW)
        restarted(lambda: job.stream(spark, threading.Event()))

    def differences() -> list[Any]:
        verdict = verify(bootstrap, topic, url, "app::users::click")
        assert verdict.recount.events == EVENTS
        return list(verdict.differences)

    with monkeypatch.context() as watching:
        cuts = PowerCuts(watching, tmp_path / "checkpoint", client).cuts
        count(tmp_path / "checkpoint")
    assert differences() == []
    # A query that was started again has acquired its marker again.
    assert [step for step, _ in itertools.groupby(cut.step for cut in cuts)] == STEPS

    for number, cut in enumerate(cuts):
        client.flushdb()
        for key, value in cut.keys.items():
            client.restore(key, 0, value)
        checkpoint = tmp_path / f"after-cut-{number}"
        left = survivors(cut)
        for name, content in left.items():
            (checkpoint / name).parent.mkdir(parents=True, exist_ok=True)
            (checkpoint / name).write_bytes(content)
        try:
            count(checkpoint)
        except OnceflowError as error:
            sizes = {name: len(content) for name, content in left.items()}
            raise AssertionError(f"{cut.step}, left: {sizes}") from error
        assert differences() == [], f"{cut.step}, left: {sorted(left)}"
        shutil.rmtree(checkpoint)
    return len(cuts)
