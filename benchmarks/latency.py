"""From the event to Redis: how long after an event was handed to its producer is it counted where readers look?

Whoever counts says in Redis how many events are in the counts: ours in its marker, once a batch is complete, the peer
in a total that is the last command of its pipeline. It is asked every millisecond. Of a rate that is kept up, the n-th
event is visible as soon as n are counted.
"""

import json
import sys
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import redis

from benchmarks import clicks_topic
from benchmarks.child import Child
from benchmarks.stage import Stage

SECONDS = 60
WARM_SECONDS = 15
BEHIND_SECONDS_MAX = 120
POLL_S = 0.001


class Latency(NamedTuple):
    """Milliseconds, and processor seconds of the contender."""

    p50_ms: float
    p99_ms: float
    cpu_seconds: float


MEASURES = {"p50": "p50_ms", "p99": "p99_ms", "CPU": "cpu_seconds"}
"""Names in the table → fields."""


def measured(stage: Stage, contender: str, pipeline: str, rate: int) -> Latency:
    """One run: the warming, then the seconds that count."""
    topic = stage.fresh("steady")
    clicks_topic.create(stage.bootstrap, topic)
    work = stage.counting(pipeline, topic)
    driver = stage.driver(contender)
    seconds = SECONDS + WARM_SECONDS
    before = driver.cpu_seconds()
    driver.ask("start", **work)
    try:
        with Child([sys.executable, "-m", "benchmarks.steady_clicks"], stage.directory / "steady.log") as producer:
            producer.tell("produce", bootstrap=stage.bootstrap, topic=topic, rate=rate, seconds=seconds)
            seen = watch(stage.redis, work, rate * seconds, seconds + BEHIND_SECONDS_MAX)
            sent = producer.respond()
    finally:
        driver.ask("stop")
    cpu_seconds = driver.cpu_seconds() - before
    require_equal(stage, work, sent)
    milliseconds = latencies_ms(sent["ticks"], seen)[rate * WARM_SECONDS :]
    p50, p99 = np.percentile(milliseconds, [50, 99])
    return Latency(float(p50), float(p99), cpu_seconds)


def watch(client: redis.Redis, work: Mapping[str, Any], count: int, timeout_s: float) -> list[tuple[int, float]]:
    """How many events were counted, and when that was first seen. Raises SystemExit where it does not come to all."""
    seen = [(0, time.monotonic())]
    deadline = time.monotonic() + timeout_s
    while seen[-1][0] < count:
        counted, now = events_counted(client, work), time.monotonic()
        if counted > seen[-1][0]:
            seen.append((counted, now))
        if now > deadline:
            raise SystemExit(f"{work['pipeline']} counted {seen[-1][0]} of {count} events in {timeout_s:g} s")
        time.sleep(POLL_S)
    return seen


def events_counted(client: redis.Redis, work: Mapping[str, Any]) -> int:
    """As the contender tells it; 0 where a batch is being written, which hides what was before."""
    if work["pipeline"] == "jvm":
        return int(client.hget(f"{{{work['hash_key']}}}:total", "events") or 0)  # type: ignore[arg-type]
    complete, offsets = client.hmget(f"{{{work['hash_key']}}}:onceflow", "complete", "offsets")  # type: ignore[misc]
    if complete != b"1":
        return 0
    return sum(json.loads(offsets).get(work["topic"], {}).values())


def latencies_ms(ticks: list[tuple[int, float]], seen: list[tuple[int, float]]) -> Any:
    """Of each event, in the order in which they were sent."""
    sent_until, sent_at = np.array([tick[0] for tick in ticks]), np.array([tick[1] for tick in ticks])
    numbers = np.arange(1, int(sent_until[-1]) + 1)
    counted, counted_at = np.array([each[0] for each in seen]), np.array([each[1] for each in seen])
    sent = sent_at[np.searchsorted(sent_until, numbers)]
    return (counted_at[np.searchsorted(counted, numbers)] - sent) * 1000


def require_equal(stage: Stage, work: Mapping[str, Any], sent: Mapping[str, Any]) -> None:
    """All clicks are counted, once. Raises SystemExit."""
    counted = sum(map(int, stage.redis.hvals(f"{{{work['hash_key']}}}:count")))  # type: ignore[arg-type]
    if counted != sent["clicks"]:
        raise SystemExit(f"{work['pipeline']} counted {counted} clicks of {sent['clicks']}")
