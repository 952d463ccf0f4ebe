"""Real click logs through the whole pipeline while its processes are killed: every number is the known one."""

import json
import random
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.click_logs import ClickLog, globo, numbers_of, oracle, taobao
from tests.end_to_end.pipeline import ONCEFLOW, TOPIC, Pipeline
from tests.end_to_end.test_kills import counted

KILLS = 20
VICTIMS = ("driver", "broker", "redis")
NO_BROKER = ("no Kafka broker responds", "does not respond like a Kafka broker")
LOGS = {"globo": globo, "taobao": taobao}


class Replays:
    """A log that is replayed in parts, each in a process of its own."""

    def __init__(self, pipeline: Pipeline, log: ClickLog, order: str, parts: int, seed: int) -> None:
        self._pipeline, self._log, self._order = pipeline, log, order
        events = sorted(log.events) if order == "time" else log.events
        size = -(-len(events) // parts)
        self.parts = [events[first : first + size] for first in range(0, len(events), size)]
        if order == "time":  # The replay sorts them again.
            for part in self.parts:
                random.Random(seed).shuffle(part)

    def start(self, number: int) -> "subprocess.Popen[str]":
        """Start to replay one part."""
        path = self._log.write(self._pipeline.directory / f"part-{number}", self.parts[number])
        command = [*ONCEFLOW, "replay", str(path), *self._log.options, "--order", self._order]
        rejects = ["--rejects", str(path.with_suffix(".rejects"))]
        replay = [*command, *self._pipeline.topic_options, *rejects, "--quiet"]
        return subprocess.Popen(replay, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

    def finish(self, number: int, replay: "subprocess.Popen[str]") -> None:
        """Wait for a part. A replay that finds no broker at its start, or a dying one, has sent nothing: once more."""
        for _ in range(3):
            _, printed = replay.communicate(timeout=240)
            if replay.returncode == 0:
                return
            assert any(words in printed for words in NO_BROKER), printed
            replay = self.start(number)
        raise AssertionError(printed)


class KilledPipeline:
    """A pipeline whose driver is kept running with these options."""

    def __init__(self, pipeline: Pipeline, options: list[str], seed: int) -> None:
        self.pipeline, self.options = pipeline, options
        self.chance = random.Random(seed)
        self.kills = Counter[str]()

    def kill_next(self) -> None:
        """Kill the next process at a random moment, and start it again unless it is the driver."""
        victim = VICTIMS[self.kills.total() % len(VICTIMS)]
        time.sleep(self.chance.uniform(0, 4))
        if victim == "driver":
            self.pipeline.kill_driver()
        else:
            server = self.pipeline.broker if victim == "broker" else self.pipeline.redis
            server.kill()
            server.start()
        self.kills[victim] += 1

    def stop_between_batches(self) -> None:
        """Kill the driver until it has left no half written micro-batch, which a new reader cannot add to."""
        self.pipeline.kill_driver()
        for _ in range(10):
            if self._is_complete:
                return
            self._wait_until(lambda: self._is_complete)
            self.pipeline.kill_driver()
        raise AssertionError("ten drivers were killed within a micro-batch")

    @property
    def _is_complete(self) -> bool:
        return self.pipeline.marker()["complete"] == "1"

    def wait_until_counted(self, events: int) -> None:
        self._wait_until(lambda: counted(self.pipeline) >= events)

    def _wait_until(self, done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 480
        while not done():
            assert time.monotonic() < deadline, self.pipeline.log.read_text()[-4000:]
            self.pipeline.keep_driver(*self.options)
            time.sleep(0.05)


def rows_of(pipeline: Pipeline, *arguments: str) -> Any:
    return json.loads(pipeline.onceflow(*arguments, "--redis", pipeline.redis.url, "--json").stdout)


def totals(pipeline: Pipeline, *arguments: str) -> dict[str, Any]:
    """Return the numbers of `onceflow clicks`, by the names of oracle.json."""
    # Of users with as many clicks, Redis selects the last ones.
    result = rows_of(pipeline, "clicks", "--top", "1000", *arguments)
    return {
        "rows": result["events"],
        "users": result["users"],
        "top10_users": [[entry["uid"], entry["clicks"]] for entry in result["top"][:10]],
        "per_os": result["by_os"],
    }


def numbers(pipeline: Pipeline, log: ClickLog) -> dict[str, Any]:
    """Return all numbers in Redis, by the names of oracle.json."""
    times = [event.time_ms for event in log.events]
    between = ["--from", str(min(times)), "--to", str(max(times) + 1)]
    windows = rows_of(pipeline, "windows", "--length", "1h", *between)
    (sessions,) = rows_of(pipeline, "sessions", "--summary", *between)
    assert all(window["users_exact"] for window in windows)
    return totals(pipeline) | {
        "hourly_windows": [[window["start_ms"], window["events"], window["users"]] for window in windows],
        "sessions_gap_30min": sessions["sessions"],
    }


@pytest.mark.campaign
@pytest.mark.timeout(2_400)
@pytest.mark.parametrize("order", ["file", "time"])
@pytest.mark.parametrize("name", LOGS)
def test_numbers_are_known_after_kills(tmp_path: Path, java_home: str, name: str, order: str) -> None:
    """Two click logs, replayed in two orders with 20 kills: counted, live and rebuilt numbers are the known ones."""
    log = LOGS[name]()
    expected = numbers_of(log.events)
    if log.is_real:
        known = oracle(name)
        assert expected == {key: known[key] for key in expected}
    measures = tmp_path / "measures.toml"
    measures.write_text("over_time = true\nsessions = true\n")
    options, seed = ["--measures", str(measures)], len(name + order)
    with Pipeline(tmp_path, java_home) as pipeline:
        pipeline.onceflow("topic", "create", TOPIC, "--partitions", "4", "--bootstrap", pipeline.broker.bootstrap)
        replays = Replays(pipeline, log, order, KILLS + 1, seed)
        killed = KilledPipeline(pipeline, options, seed)
        for number in range(KILLS):
            replay = replays.start(number)
            # Events of this part are counted while the next process is killed.
            killed.wait_until_counted(sum(map(len, replays.parts[:number])))
            killed.kill_next()
            replays.finish(number, replay)
        killed.stop_between_batches()
        replays.finish(KILLS, replays.start(KILLS))
        live = totals(pipeline, "--now", "--bootstrap", pipeline.broker.bootstrap)
        pipeline.drain(*options)
        in_redis, verified = numbers(pipeline, log), pipeline.verify()
        pipeline.onceflow("rebuild", "--bootstrap", pipeline.broker.bootstrap, "--redis", pipeline.redis.url)
        rebuilt, batches = numbers(pipeline, log), pipeline.batch() + 1
    print(
        f"{name}{'' if log.is_real else ' (twin)'} in {order} order: {len(log.events):,} events in {batches} "
        f"micro-batches, {', '.join(f'{count} kills of {victim}' for victim, count in killed.kills.items())}; "
        f"{expected['users']:,} users, {len(expected['hourly_windows'])} hours and {expected['sessions_gap_30min']:,} "
        "sessions, live, counted and rebuilt as known",
        flush=True,
    )
    assert live == {key: expected[key] for key in live}
    assert in_redis == expected
    assert rebuilt == expected
    assert (verified["events"], verified["differences"]) == (len(log.events), [])
