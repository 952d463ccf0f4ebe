"""A driver killed at random many times: each record is in exactly one batch, and a repeated batch is equal."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from onceflow.client.cluster import Cluster

KILLS = 8
RECORDS_PER_ROUND = 5_000
PARTITIONS = 3


class Driver:
    """Process of the script driver_that_keeps_batches.py, with its JVM in one process group."""

    def __init__(self, *arguments: str | Path) -> None:
        script = Path(__file__).parents[1] / "driver_that_keeps_batches.py"
        self._process = subprocess.Popen([sys.executable, script, *arguments], start_new_session=True)

    def kill(self) -> None:
        assert self._process.poll() is None, "the driver ended by itself"
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(timeout=30)


def kept(directory: Path) -> list[str]:
    """Return all rows of all batches, `partition offset value`."""
    return [line for path in directory.glob("batch-*[0-9]") for line in path.read_text().splitlines()]


def wait_until(what: Callable[[], bool], directory: Path, seconds: float = 180) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, (directory / "driver.log").read_text()[-3000:]
        time.sleep(0.2)


@pytest.mark.campaign
@pytest.mark.timeout(1800)
def test_killed_driver_reads_each_record_once(
    cluster: Cluster, bootstrap: str, topic: str, send: Callable[..., None], tmp_path: Path, java_home: str
) -> None:
    seed = random.SystemRandom().randrange(2**32)
    chance = random.Random(seed)
    print(f"seed {seed}")
    cluster.create_topic(topic, PARTITIONS)
    send(["before"], partition=1)
    arguments = (bootstrap, topic, tmp_path / "checkpoint", tmp_path, java_home)
    driver = Driver(*arguments)
    wait_until(lambda: (tmp_path / "batch-0").exists(), tmp_path)
    for round_number in range(KILLS):
        seen = len(kept(tmp_path))
        for partition in range(PARTITIONS):
            send([f"{round_number}-{number}" for number in range(RECORDS_PER_ROUND)], partition=partition)
        enough = seen + chance.randrange(1, PARTITIONS * RECORDS_PER_ROUND)
        wait_until(lambda enough=enough: len(kept(tmp_path)) >= enough, tmp_path)  # type: ignore[misc]
        time.sleep(chance.random() * 0.3)
        driver.kill()
        driver = Driver(*arguments)
    total = KILLS * RECORDS_PER_ROUND * PARTITIONS
    wait_until(lambda: len(kept(tmp_path)) >= total, tmp_path)
    driver.kill()
    assert not (tmp_path / "different").exists(), (tmp_path / "different").read_text()[:2000]
    assert sorted(kept(tmp_path)) == sorted(expected_rows())
    print(f"{KILLS} kills, {total} records in {len(list(tmp_path.glob('batch-*[0-9]')))} batches, each record once")


def expected_rows() -> list[str]:
    first = {0: 0, 1: 1, 2: 0}  # "before" is in partition 1, and the query started at latest.
    return [
        f"{partition} {first[partition] + round_number * RECORDS_PER_ROUND + number} {round_number}-{number}"
        for partition in range(PARTITIONS)
        for round_number in range(KILLS)
        for number in range(RECORDS_PER_ROUND)
    ]
