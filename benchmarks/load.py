"""How much sooner does `onceflow load` end with more tasks? One topic of four partitions, loaded by 1, 2 and 4 tasks.

The start of Spark takes the same seconds for any number of tasks. It is measured with a topic of one record per
partition, and left out of the last speed-up. More tasks than cores cannot help: the page has the machine's cores.

python -m benchmarks "Parallel load"
"""

import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median

from benchmarks.comparison import in_turns, spread
from benchmarks.figures import Line, Table, row
from benchmarks.pipeline import ONCEFLOW, timed
from onceflow import services
from onceflow.testing import BrokerProcess

EVENTS = 4_000_000
USERS = 100_000
PARTITIONS = 4
TASKS = (1, 2, 4)
RUNS = 3
SCHEMA = "uid STRING, event_time STRING, os_type STRING, click_count BIGINT"


def fill(bootstrap: str, topic: str, events: int) -> None:
    """Create the topic with this number of generated events."""
    subprocess.run(
        [*ONCEFLOW, "topic", "create", topic, "--partitions", str(PARTITIONS), "--bootstrap", bootstrap],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    where = ["--topic", topic, "--bootstrap", bootstrap]
    generate = ["generate", *where, "--users", str(USERS), "--count", str(events), "--interval-ms", "0"]
    subprocess.run([*ONCEFLOW, *generate], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def load(directory: Path, bootstrap: str, java: str, topic: str, tasks: int, number: int) -> float:
    """Return the seconds of one load into a new directory."""
    output = directory / f"{topic}-{tasks}-{number}"
    arguments = ["load", topic, str(output), "--tasks", str(tasks), "--decode", SCHEMA, "--bootstrap", bootstrap]
    return timed(arguments, {**os.environ, "JAVA_HOME": java})


def speedups(seconds: Mapping[int, Sequence[float]], tasks: int) -> list[float]:
    """Return how many times as fast as one task each run was, by pairs of the same round."""
    return [one / more for one, more in zip(seconds[1], seconds[tasks], strict=True)]


def lines(events: int, whole: Mapping[int, Sequence[float]], starts: Mapping[int, Sequence[float]]) -> Iterator[Line]:
    """Return a row for each number of tasks: seconds of the command, and speed-ups with and without Spark's start."""
    reading = {tasks: [run - median(starts[tasks]) for run in runs] for tasks, runs in whole.items()}
    for tasks in whole:
        yield row(
            f"{tasks} task{'s' if tasks > 1 else ''}",
            spread(whole[tasks]),
            spread(starts[tasks]),
            f"{events / median(reading[tasks]):,.0f}",
            spread(speedups(whole, tasks)),
            spread(speedups(reading, tasks)),
        )


def measure(_names: Sequence[str]) -> Iterator[Line]:
    """Load both topics with each number of tasks, in turns."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        java = str(services.find_java(directory / "java"))
        with BrokerProcess(directory / "broker") as broker:
            fill(broker.bootstrap, "events", EVENTS)
            fill(broker.bootstrap, "few", PARTITIONS)
            runs = {
                topic: {tasks: partial(load, directory, broker.bootstrap, java, topic, tasks) for tasks in TASKS}
                for topic in ("few", "events")
            }
            starts = in_turns(runs["few"], RUNS)
            whole = in_turns(runs["events"], RUNS)
    yield from lines(EVENTS, whole, starts)


TABLE = Table(
    "Parallel load",
    ("`--tasks`", "seconds", "of these Spark's start", "records/s after it", "speed-up", "without the start"),
    ["all"],
    measure,
    says=f"`onceflow load` of {EVENTS:,} generated events in {PARTITIONS} partitions, with `--decode`.",
)
