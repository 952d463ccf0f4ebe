"""How much sooner does `onceflow load` end with more tasks? One topic of four partitions, loaded by 1, 2 and 4 tasks.

Each number of tasks has a Spark of its own, started before the clock and warmed up by one load. The loads take turns,
so each speed-up is a ratio within one round. More tasks than cores cannot help: the page has the machine's cores.

python -m benchmarks "Parallel load"
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median

from benchmarks.child import Child
from benchmarks.comparison import in_turns, ratios, spread
from benchmarks.figures import Line, Table, row
from benchmarks.pipeline import ONCEFLOW
from onceflow import services
from onceflow.client.cluster import Cluster
from onceflow.spark.load import load
from onceflow.spark.session import build_session
from onceflow.testing import BrokerProcess

EVENTS = 1_000_000
USERS = 100_000
PARTITIONS = 4
TASKS = (1, 2, 4)
RUNS = 5
TOPIC = "events"
SCHEMA = "uid STRING, event_time STRING, os_type STRING, click_count BIGINT"
FILL_S = 600
LOAD_S = 600.0
"""Limits of a step; a slower machine ends the benchmark with an error."""


def fill(bootstrap: str) -> None:
    """Create the topic with generated events."""
    where = ["--topic", TOPIC, "--bootstrap", bootstrap, "--partitions", str(PARTITIONS)]
    generate = ["generate", *where, "--users", str(USERS), "--count", str(EVENTS), "--interval-ms", "0", "--quiet"]
    subprocess.run([*ONCEFLOW, *generate], check=True, stdout=subprocess.DEVNULL, timeout=FILL_S)


def main(directory: Path, bootstrap: str, tasks: int) -> None:
    """Load the topic into a new directory for each line of standard input, as a `child.Child`."""
    java = services.find_java(directory / "java")
    spark = build_session("load", f"local[{tasks}]", java_home=str(java), log_file=directory / f"spark-{tasks}.log")
    options = {"kafka.bootstrap.servers": bootstrap, "decode": SCHEMA}
    with Cluster(bootstrap) as cluster:
        for line in sys.stdin:
            output = directory / f"{tasks}-{json.loads(line)['number']}"
            began = time.perf_counter()
            done = load(lambda: spark, cluster, TOPIC, output, tasks=tasks, options=options)
            seconds = time.perf_counter() - began
            print(json.dumps({"seconds": seconds, "records": 0 if done is None else done.records}), flush=True)
    spark.stop()


def loaded(child: Child, number: int) -> float:
    """Return the seconds of one load."""
    result = child.ask("load", timeout_s=LOAD_S, number=number)
    assert result["records"] == EVENTS, f"loaded {result['records']} of {EVENTS} events"
    return float(result["seconds"])


def lines(seconds: Mapping[int, Sequence[float]]) -> Iterator[Line]:
    """Yield a row for each number of tasks."""
    for tasks, runs in seconds.items():
        name = f"{tasks} task{'s' if tasks > 1 else ''}"
        yield row(name, spread(runs), f"{EVENTS / median(runs):,.0f}", spread(ratios(seconds[TASKS[0]], runs)))


def measure(_names: Sequence[str]) -> Iterator[Line]:
    """Load the topic with each number of tasks, in turns."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as running:
        directory = Path(name)
        bootstrap = running.enter_context(BrokerProcess(directory / "broker")).bootstrap
        fill(bootstrap)
        contenders = {}
        for tasks in TASKS:
            command = [sys.executable, "-m", "benchmarks.load", str(directory), bootstrap, str(tasks)]
            child = running.enter_context(Child(command, directory / f"{tasks}.log"))
            contenders[tasks] = partial(loaded, child)
        seconds = in_turns(contenders, RUNS, uncounted=1)
    yield from lines(seconds)


TABLE = Table(
    "Parallel load",
    ("`--tasks`", "seconds", "records/s", "speed-up"),
    ["all"],
    measure,
    says=f"`onceflow load` of {EVENTS:,} generated events in {PARTITIONS} partitions with `--decode`, without Spark's "
    f"start; median of {RUNS} runs (least to most).",
)

if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
