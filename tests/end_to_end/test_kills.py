"""Broker, Spark driver and Redis killed at random moments while events are counted: the difference stays zero."""

import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from onceflow.client.producer import EventWriter
from tests.end_to_end.pipeline import TOPIC, Pipeline

VICTIMS = (("broker",), ("redis",), ("driver",), ("driver's python",), ("redis", "driver"), ("broker", "redis"))


class Writer(threading.Thread):
    """Writer of seeded events until it is stopped; a killed broker only delays it."""

    def __init__(self, bootstrap: str, seed: int) -> None:
        super().__init__(daemon=True)
        self.bootstrap = bootstrap
        self.random = random.Random(seed)
        self.stopping = threading.Event()
        self.clicks: dict[str, int] = {}
        self.events = 0

    def run(self) -> None:
        with EventWriter(self.bootstrap, TOPIC) as writer:
            while not self.stopping.is_set():
                user, count = f"user-{self.random.randrange(300)}", self.random.randrange(10)
                event = f'{{"uid":"{user}","event_time":"{time.time_ns() // 1_000_000}","click_count":{count}}}'
                writer.write(user.encode(), event.encode())
                self.clicks[user] = self.clicks.get(user, 0) + count
                self.events += 1
                time.sleep(0.005)
            writer.flush(60)


def kill_and_restart(pipeline: Pipeline, victims: Sequence[str], pause_s: float) -> None:
    """Kill all of `victims` at once, wait, start them again."""
    for victim in victims:
        if victim == "broker":
            pipeline.broker.kill()
        elif victim == "redis":
            pipeline.redis.kill()
        else:
            pipeline.kill_driver(only_python=victim == "driver's python")
    time.sleep(pause_s)
    if "broker" in victims:
        pipeline.broker.start()
    if "redis" in victims:
        pipeline.redis.start()


def wait_until(done: Callable[[], bool], pipeline: Pipeline, within_s: float = 240) -> None:
    deadline = time.monotonic() + within_s
    while not done():
        assert time.monotonic() < deadline, pipeline.log.read_text()[-4000:]
        pipeline.keep_driver()
        time.sleep(0.05)


def counted(pipeline: Pipeline) -> int:
    return sum(json.loads(pipeline.marker().get("offsets", "{}")).get(TOPIC, {}).values())


def count_through_kills(directory: Path, java_home: str, rounds: Sequence[tuple[str, ...]], seed: int) -> None:
    chance, started = random.Random(seed), time.monotonic()
    with Pipeline(directory, java_home) as pipeline:
        pipeline.onceflow("topic", "create", TOPIC, "--partitions", "4", "--bootstrap", pipeline.broker.bootstrap)
        writer = Writer(pipeline.broker.bootstrap, seed)
        writer.start()
        for victims in rounds:
            target = max(pipeline.batch(), 0) + 1 + chance.randrange(3)
            wait_until(lambda target=target: pipeline.batch() >= target, pipeline)  # type: ignore[misc]
            time.sleep(chance.random() * 0.3)
            kill_and_restart(pipeline, victims, chance.random() * 0.2)
        writer.stopping.set()
        writer.join(timeout=90)
        assert not writer.is_alive()
        wait_until(lambda: counted(pipeline) == writer.events and pipeline.batch() > 0, pipeline)
        verified, batches = pipeline.verify(), pipeline.batch() + 1
    kills = ", ".join(f"{count} of {victim}" for victim, count in Counter(sum(rounds, ())).items())
    print(
        f"seed {seed}: {len(rounds)} rounds of kills ({kills}), {batches} micro-batches, {writer.events} events, "
        f"{len(verified['differences'])} differences, {time.monotonic() - started:.0f} s",
        flush=True,
    )
    assert verified["events"] == writer.events, f"seed {seed}"
    assert verified["clicks"] == sum(writer.clicks.values()), f"seed {seed}"


@pytest.mark.campaign
@pytest.mark.parametrize("seed", range(3))
def test_the_difference_is_zero_after_ten_kills(tmp_path: Path, java_home: str, seed: int) -> None:
    rounds = random.Random(seed).sample(VICTIMS * 2, 10)  # Each part is killed at least twice.
    count_through_kills(tmp_path, java_home, rounds, seed)
