"""How many events per second does the whole pipeline count: log → Spark → Redis, exactly once, on local[2]?

One available-now run over events that are already in the log, so that nothing waits for new ones. Its own peer is the
same log recounted by `onceflow verify`, a plain loop over librdkafka and the standard library's json.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.figures import Line, Table, row
from onceflow import services
from onceflow.testing import BrokerProcess

EVENTS = 1_000_000
USERS = 100_000
ONCEFLOW = [sys.executable, "-m", "onceflow"]


def timed(arguments: list[str], environment: dict[str, str]) -> float:
    started = time.perf_counter()
    subprocess.run([*ONCEFLOW, *arguments], check=True, stdout=subprocess.DEVNULL, env=environment)
    return time.perf_counter() - started


def measure(directory: Path) -> dict[str, float]:
    """Seconds of each step."""
    environment = {**os.environ, "JAVA_HOME": str(services.find_java(directory / "java"))}
    port = services.free_port()
    (directory / "redis").mkdir()
    server = subprocess.Popen(
        services.redis_arguments(services.find_redis_server(), directory / "redis", port), stdout=subprocess.DEVNULL
    )
    try:
        with BrokerProcess(directory / "broker") as broker:
            url = f"redis://127.0.0.1:{port}/1"
            topic = ["--bootstrap", broker.bootstrap, "--topic", "user_events"]
            subprocess.run([*ONCEFLOW, "topic", "create", "user_events", "--partitions", "4", *topic[:2]], check=True)
            generate = ["generate", *topic, "--users", str(USERS), "--seed", "1", "--count", str(EVENTS)]
            steps = {"generate": timed([*generate, "--interval-ms", "0"], environment)}
            counted = [*topic, "--redis", url]
            checkpoint = str(directory / "checkpoint")
            run = ["run", *counted, "--checkpoint", checkpoint, "--trigger", "available-now"]
            steps["run, start of Spark included"] = timed(run, environment)
            steps["verify"] = timed(["verify", *counted], environment)
    finally:
        server.terminate()
        server.wait(timeout=20)
    return steps


def measured(_names: Sequence[str]) -> Iterator[Line]:
    """One run of all steps."""
    with tempfile.TemporaryDirectory() as directory:
        for step, seconds in measure(Path(directory)).items():
            yield row(step, f"{seconds:.1f}", f"{EVENTS / seconds:,.0f}")


TABLE = Table(
    "The pipeline",
    ("step", "seconds", "events/s"),
    ["all"],
    measured,
    says=f"{EVENTS:,} events, {USERS:,} users, 4 partitions; one run.",
)
