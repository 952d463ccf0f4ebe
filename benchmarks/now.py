"""Time from an event's acknowledgement to its place in the live counts.

`python -m benchmarks.now [--driver] [RATE...]`

A producer in a process of its own notes the time of each acknowledgement; this process reads the live counts as the
dashboard does. Without --driver nothing counts the events, as after the driver was killed; with it `onceflow run` does.
"""

import contextlib
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import confluent_kafka

from onceflow import services
from onceflow.clicks.live import Live
from onceflow.clicks.results import Results
from onceflow.client.cluster import Cluster
from onceflow.client.producer import EventWriter
from onceflow.testing import BrokerProcess

RATES = (1_000, 20_000)
SECONDS = 20
USERS = 100_000
PARTITIONS = 4
QUEUE_MAX = 50_000
TOPIC, HASH_KEY = "now", "benchmark::now"
START_S = 180.0


def produce(bootstrap: str, rate: int) -> None:
    """Send events at this rate, and print the time of each acknowledgement."""
    acknowledged: list[float] = []
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "linger.ms": 1, "acks": "all"})
    begin, sent = time.perf_counter(), 0
    while sent < rate * SECONDS:
        due = min(rate * SECONDS, int((time.perf_counter() - begin) * rate))
        for _ in range(min(due - sent, QUEUE_MAX - len(producer))):
            event = {"uid": f"{random.randrange(USERS):032x}", "os_type": "Android", "click_count": 6}
            producer.produce(
                TOPIC, json.dumps(event).encode(), on_delivery=lambda *_: acknowledged.append(time.perf_counter())
            )
            sent += 1
        producer.poll(0.001)
    producer.flush(START_S)
    print(json.dumps(acknowledged))


def seconds_until_seen(live: Live, bootstrap: str, rate: int) -> list[float]:
    """Return the time of each event from its acknowledgement until the counts include as many, in order."""
    first = _events(live)
    seen: list[tuple[float, int]] = []
    command = [sys.executable, "-m", "benchmarks.now", "--produce", bootstrap, str(rate)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as producer:
        version = 0
        while not seen or seen[-1][1] < rate * SECONDS:
            version = live.wait(version, 1.0)
            seen.append((time.perf_counter(), _events(live) - first))
            if producer.poll() not in (None, 0):
                raise SystemExit("the producer failed")
        assert producer.stdout is not None
        acknowledged = sorted(json.loads(producer.stdout.read()))
    seconds, position = [], 0
    for number, at in enumerate(acknowledged, 1):
        while seen[position][1] < number:
            position += 1
        seconds.append(max(0.0, seen[position][0] - at))
    return sorted(seconds)


def _events(live: Live) -> int:
    view = live.view()
    return 0 if view.snapshot is None else view.snapshot.events


def measure(directory: Path, rates: Sequence[int], *, driver: bool) -> None:
    """Print p50 and p99 for each rate."""
    with counted_topic(directory, driver=driver) as (bootstrap, url):
        live = Live(Results(url, HASH_KEY), bootstrap, TOPIC)
        live.start()
        assert live.wait_until_live(START_S).snapshot is not None
        for rate in rates:
            seconds = seconds_until_seen(live, bootstrap, rate)
            p50, p99 = (1_000 * seconds[int(len(seconds) * part)] for part in (0.5, 0.99))
            print(f"{rate:,} events/s: p50 {p50:.1f} ms, p99 {p99:.1f} ms, longest {1_000 * seconds[-1]:.0f} ms")
        live.close()


@contextlib.contextmanager
def counted_topic(directory: Path, *, driver: bool) -> Iterator[tuple[str, str]]:
    """Start a broker with the topic, Redis and perhaps `onceflow run`; return the addresses of broker and Redis."""
    port = services.free_port()
    redis_server = subprocess.Popen(
        services.redis_arguments(services.find_redis_server(), directory, port, appendfsync="everysec"),
        stdout=subprocess.DEVNULL,
    )
    url, running = f"redis://127.0.0.1:{port}/1", None
    try:
        with BrokerProcess(directory / "broker") as broker, Cluster(broker.bootstrap) as cluster:
            while not services.redis_is_ready(port):
                time.sleep(0.05)
            cluster.create_topic(TOPIC, PARTITIONS)
            if driver:
                running = _start_driver(broker.bootstrap, url, directory)
            yield broker.bootstrap, url
            if running is not None:
                running.terminate()
                running.wait()
    finally:
        if running is not None:
            running.kill()
        redis_server.terminate()
        redis_server.wait()


def _start_driver(bootstrap: str, url: str, directory: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "onceflow", "run", "--bootstrap", bootstrap, "--topic", TOPIC, "--redis", url]
    command += ["--hash-key", HASH_KEY, "--checkpoint", str(directory / "checkpoint")]
    running = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    with EventWriter(bootstrap, TOPIC) as writer:
        writer.write(None, b'{"uid":"first","click_count":1}')
    with Results(url, HASH_KEY) as results:
        deadline = time.monotonic() + START_S
        while results.marker() is None and time.monotonic() < deadline:
            time.sleep(0.5)
    return running


def main(words: Sequence[str]) -> None:
    """Measure, or produce for a measurement."""
    if words[:1] == ["--produce"]:
        produce(words[1], int(words[2]))
        return
    rates = [int(word) for word in words if word != "--driver"] or RATES
    with tempfile.TemporaryDirectory() as directory:
        measure(Path(directory), rates, driver="--driver" in words)


if __name__ == "__main__":
    main(sys.argv[1:])
