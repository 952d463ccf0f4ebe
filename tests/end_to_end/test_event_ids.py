"""Web clients that send again, and kill -9 of every process in turn: each event id is counted once."""

import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
import redis

from tests.clicks.ingest.test_server import Client, ServerProcess, ids_in, running
from tests.conftest import WITHIN_S
from tests.end_to_end.pipeline import HASH_KEY, TOPIC, Pipeline

VICTIMS = ("broker", "redis", "serve", "driver", "driver's python")
KILLING_S = 600
CLIENTS = 3
WINDOW = ("--event-ids", "1h")


class RepeatingClient(Client):
    """A client behind a proxy that sends some requests twice, and an earlier one now and then."""

    def __init__(self, url: str, number: int, stop: threading.Event) -> None:
        super().__init__(url, number, stop)
        self.repetitions = 0
        self._chance = random.Random(number)
        self._earlier: list[Sequence[str]] = []

    def _send(self, ids: Sequence[str]) -> bool:
        is_sent = super()._send(ids)
        if is_sent:
            self._earlier.append(ids)
        for again in (ids, self._chance.choice(self._earlier or [ids])):
            if self._chance.random() < 0.2:
                self.repetitions += super()._send(again)
        time.sleep(0.02)
        return is_sent


def kill(pipeline: Pipeline, server: ServerProcess, victim: str) -> None:
    """Kill one process, and start it again; the driver is started by `wait_for_batches`."""
    if victim == "broker":
        pipeline.broker.kill()
        pipeline.broker.start()
    elif victim == "redis":
        pipeline.redis.kill()
        pipeline.redis.start()
    elif victim == "serve":
        server.end(signal.SIGKILL)
        server.start()
    else:
        pipeline.kill_driver(only_python=victim == "driver's python")


def wait_for_batches(pipeline: Pipeline, more: int) -> None:
    """Wait until the driver has completed more micro-batches."""
    target, deadline = pipeline.batch() + more, time.monotonic() + 240
    while pipeline.batch() < target:
        assert time.monotonic() < deadline, pipeline.log.read_text()[-4000:]
        pipeline.keep_driver(*WINDOW)
        time.sleep(0.05)


@pytest.mark.campaign
@pytest.mark.timeout(1_500)
@pytest.mark.parametrize("appendfsync", ["always", "everysec"])
def test_each_id_is_counted_once(tmp_path: Path, java_home: str, appendfsync: str) -> None:
    """Ingestion with ids and clients that send again, while broker, Redis, server and driver are killed in turn."""
    chance, stop, kills = random.Random(1), threading.Event(), Counter[str]()
    with Pipeline(tmp_path, java_home, appendfsync=appendfsync) as pipeline:
        pipeline.onceflow("topic", "create", TOPIC, "--partitions", "4", "--bootstrap", pipeline.broker.bootstrap)
        with running(pipeline.broker.bootstrap, TOPIC) as server:
            clients = [RepeatingClient(server.url, number, stop) for number in range(CLIENTS)]
            for client in clients:
                client.start()
            try:
                deadline = time.monotonic() + KILLING_S
                while time.monotonic() < deadline or set(kills) != set(VICTIMS):
                    wait_for_batches(pipeline, 1)
                    time.sleep(chance.random() * 0.3)
                    victim = VICTIMS[kills.total() % len(VICTIMS)]
                    kill(pipeline, server, victim)
                    kills[victim] += 1
            finally:
                stop.set()
                for client in clients:
                    client.join(WITHIN_S)
        pipeline.kill_driver()
        pipeline.drain(*WINDOW)
        verified = pipeline.verify()
        with redis.Redis.from_url(pipeline.redis.url, decode_responses=True) as client_of_redis:
            clicks = client_of_redis.hgetall(HASH_KEY)
        assert isinstance(clicks, dict)
        in_log = ids_in(pipeline.broker.bootstrap, TOPIC)
    print(
        f"appendfsync {appendfsync}: {', '.join(f'{count} kills of {name}' for name, count in kills.items())}; "
        f"{len(clicks)} ids counted, {verified['duplicates']} duplicates, "
        f"{sum(client.retries for client in clients)} requests sent again after a failure and "
        f"{sum(client.repetitions for client in clients)} after a response",
        flush=True,
    )
    assert set(clicks.values()) == {"1"}
    assert clicks.keys() == in_log >= set().union(*(client.acknowledged for client in clients))
    assert (verified["events"], verified["differences"]) == (len(in_log), [])
    assert verified["duplicates"] > 0
