"""Broker, Spark driver and Redis are killed at random moments while events are counted: the difference stays zero."""

import random
import threading
import time
from pathlib import Path

import pytest

from onceflow.client.producer import EventWriter
from tests.end_to_end.pipeline import TOPIC, Pipeline

VICTIMS = ("broker", "redis", "driver", "driver's python", "driver")


class Writer(threading.Thread):
    """Writes seeded events until it is told to stop; a killed broker only delays it."""

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
                time.sleep(0.0005)
            writer.flush(60)


def kill_and_restart(pipeline: Pipeline, victim: str, pause_s: float) -> None:
    if victim == "broker":
        pipeline.broker.kill()
        time.sleep(pause_s)
        pipeline.broker.start()
    elif victim == "redis":
        pipeline.redis.kill()
        time.sleep(pause_s)
        pipeline.redis.start()
    else:
        pipeline.kill_driver(only_python=victim == "driver's python")
    # A driver that lost its broker or Redis may have stopped with its sentence: it goes on from its checkpoint.
    if pipeline.driver is None or pipeline.driver.poll() is not None:
        pipeline.kill_driver()
        pipeline.start_driver()


def count_through_kills(directory: Path, java_home: str, victims: list[str], seed: int) -> None:
    chance = random.Random(seed)
    with Pipeline(directory, java_home) as pipeline:
        pipeline.onceflow("topic", "create", TOPIC, "--partitions", "4", "--bootstrap", pipeline.broker.bootstrap)
        writer = Writer(pipeline.broker.bootstrap, seed)
        writer.start()
        pipeline.start_driver()
        for victim in victims:
            pipeline.wait_for_batch(pipeline.batch() + 1 + chance.randrange(3))
            time.sleep(chance.random() * 0.3)
            kill_and_restart(pipeline, victim, chance.random() * 0.2)
        writer.stopping.set()
        writer.join(timeout=90)
        assert not writer.is_alive()
        pipeline.kill_driver()
        pipeline.drain()
        verified = pipeline.verify()
    assert verified["events"] == writer.events, f"seed {seed}"
    assert verified["clicks"] == sum(writer.clicks.values()), f"seed {seed}"


def test_the_difference_is_zero_after_each_part_was_killed(tmp_path: Path, java_home: str) -> None:
    count_through_kills(tmp_path, java_home, ["driver's python", "redis", "broker"], seed=7)


@pytest.mark.campaign
@pytest.mark.parametrize("seed", range(3))
def test_the_difference_is_zero_after_ten_kills(tmp_path: Path, java_home: str, seed: int) -> None:
    chance = random.Random(seed)
    count_through_kills(tmp_path, java_home, [chance.choice(VICTIMS) for _ in range(10)], seed)
