"""Queries over an archive of generated events: `python -m benchmarks.archive_queries [EVENTS]`, 10 million by default.

The events cover a week and 100,000 users with Zipf-distributed activity; country and page are fields of their JSON.
The archive is on disk, in one file per hour as after its merges. Each query is the median of five, followed by minimum
and maximum, with its goal beside it; the first run of each is not counted. On a busy machine the CPU seconds say more.
"""

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa

from onceflow.clicks.archive import Archive, plan_of, write_hours
from onceflow.clicks.event_table import SCHEMA
from onceflow.clicks.queries import Events, Selection, open_events
from onceflow.clicks.single_event import ArchivedFields
from onceflow.spark.exactly_once.proof import Proof

EVENTS = 10_000_000
USERS = 100_000
HOURS = 7 * 24
HOUR_MS = 3_600_000
BEGIN_MS = 1_430_179_200_000
RUNS = 5
SYSTEMS = ("Android", "iOS", "Windows", "macOS", "Linux")
COUNTRIES = ("DE", "FR", "IT", "US", "JP")


def hour_of_events(hour: int, count: int, chance: np.random.Generator) -> pa.Table:
    """Return `count` events of one hour, in the order of their times."""
    times = np.sort(BEGIN_MS + hour * HOUR_MS + chance.integers(0, HOUR_MS, count))
    users = pa.array([f"{user:032x}" for user in range(USERS)])
    systems, countries = pa.array(SYSTEMS), chance.integers(0, len(COUNTRIES), count)
    pages = chance.integers(0, 50, count)
    texts = pa.array([f'{{"country":"{name}","page":"/page-{page}"}}' for name in COUNTRIES for page in range(50)])
    moment = pa.array(times).cast(pa.timestamp("ms", "UTC"))
    columns = {
        "uid": users.take(pa.array((chance.zipf(1.2, count) - 1) % USERS)),
        "clicks": pa.array(chance.integers(0, 10, count), pa.int32()),
        "os": systems.take(pa.array(chance.integers(0, len(SYSTEMS), count))),
        "event_time": moment,
        "no_time": pa.array(np.zeros(count, bool)),
        "future": pa.array(np.zeros(count, bool)),
        "partition": pa.array(np.zeros(count), pa.int32()),
        "offset": pa.array(np.arange(hour * count, (hour + 1) * count)),
        "timestamp": moment,
        "extra": texts.take(pa.array(countries * 50 + pages)),
    }
    return pa.table(columns).select(SCHEMA.names).cast(SCHEMA)


def generate(directory: Path, count: int) -> None:
    """Write an archive of about `count` events."""
    archive, chance = Archive(directory), np.random.default_rng(18)
    archive.create()
    files = [
        file for hour in range(HOURS) for file in write_hours(hour_of_events(hour, count // HOURS, chance), directory)
    ]
    ends = {"generated": {"0": count // HOURS * HOURS}}
    plan = plan_of("generated", ArchivedFields())
    proof = Proof(
        query="", sink="archive", batch=0, digest="", ranges="", plan=plan, plan_version=1, offsets=ends, since={}
    )
    archive.add(None, proof, files)


def queries(events: Events) -> dict[str, tuple[float, Callable[[], Any]]]:
    """Return each query by name, with its goal in seconds."""
    week = Selection(BEGIN_MS, BEGIN_MS + HOURS * HOUR_MS)
    day = Selection(BEGIN_MS, BEGIN_MS + 24 * HOUR_MS)
    two = Selection(where=[("os", "iOS"), ("country", "DE")])
    user = f"{1234:032x}"
    return {
        "counts per hour, all": (0.5, lambda: events.counts("hour", week)),
        "counts per minute of a day, os=iOS": (
            0.5,
            lambda: events.counts("minute", Selection(*_span(day), [("os", "iOS")])),
        ),
        "counts per hour, os=iOS": (0.5, lambda: events.counts("hour", Selection(where=[("os", "iOS")]))),
        "counts per hour, os=iOS and country=DE": (0.5, lambda: events.counts("hour", two)),
        "top 10 users": (0.5, lambda: events.top("uid")),
        "top 10 pages": (0.5, lambda: events.top("page")),
        "top 10 users, os=iOS": (0.5, lambda: events.top("uid", Selection(where=[("os", "iOS")]))),
        "timeline of a user": (0.5, lambda: events.timeline(user)),
        "distinct users": (3.0, events.totals),
        "distinct users per hour": (3.0, lambda: events.counts("hour", week, users=True)),
    }


def _span(selection: Selection) -> tuple[int | None, int | None]:
    return selection.begin_ms, selection.end_ms


def measure(query: Callable[[], Any]) -> tuple[list[float], list[float]]:
    """Return the seconds of each run but the first, and the CPU seconds of all threads."""
    seconds, cpu_seconds = [], []
    for _ in range(RUNS + 1):
        begin, cpu_begin = time.perf_counter(), time.process_time()
        query()
        seconds.append(time.perf_counter() - begin)
        cpu_seconds.append(time.process_time() - cpu_begin)
    return seconds[1:], cpu_seconds[1:]


def main(count: int) -> None:
    with tempfile.TemporaryDirectory(prefix="onceflow-archive-") as directory:
        generate(Path(directory), count)
        size_mb = sum(path.stat().st_size for path in Path(directory).rglob("*.parquet")) / 1e6
        with open_events(Path(directory)) as events:
            print(f"{events.totals()['events']:,} events, {size_mb:,.0f} MB\n")
            print("| query | seconds | CPU seconds | goal |\n|---|---|---|---|")
            for name, (goal_s, query) in queries(events).items():
                runs, cpu = measure(query)
                shown = f"{median(runs):.2f} ({min(runs):.2f} to {max(runs):.2f})"
                print(f"| {name} | {shown} | {median(cpu):.2f} | {goal_s} |", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else EVENTS)
