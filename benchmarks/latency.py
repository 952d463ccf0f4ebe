"""Latency from an event to Redis: the time from the call of the producer until the event is counted for readers.

Each contender stores the number of counted events in Redis: ours in its marker, when a batch is complete, the peer in a
total, the last command of its pipeline. The number is read every millisecond. At a sustained rate, the n-th event is
visible when n events are counted.
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
    """Latencies in ms, and processor seconds of the contender."""

    p50_ms: float
    p99_ms: float
    cpu_seconds: float


MEASURES = {"p50": "p50_ms", "p99": "p99_ms", "CPU": "cpu_seconds"}
"""Names in the table → fields."""


def measured(stage: Stage, contender: str, pipeline: str, rate: int) -> Latency:
    """Return the result of one run, without its warm-up."""
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
    """Return numbers of counted events, and when each was first seen. Raises SystemExit if some are not counted."""
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
    """Return the contender's number of counted events; 0 while a batch is being written, which hides the number."""
    if work["pipeline"] == "jvm":
        return int(client.hget(f"{{{work['hash_key']}}}:total", "events") or 0)
    complete, offsets = client.hmget(f"{{{work['hash_key']}}}:onceflow", "complete", "offsets")
    if complete != b"1":
        return 0
    return sum(json.loads(offsets or "{}").get(work["topic"], {}).values())


def latencies_ms(ticks: list[tuple[int, float]], seen: list[tuple[int, float]]) -> Any:
    """Return the latency of each event, in the order of sending."""
    sent_until, sent_at = np.array([tick[0] for tick in ticks]), np.array([tick[1] for tick in ticks])
    numbers = np.arange(1, int(sent_until[-1]) + 1)
    counted, counted_at = np.array([tick[0] for tick in seen]), np.array([tick[1] for tick in seen])
    sent = sent_at[np.searchsorted(sent_until, numbers)]
    return (counted_at[np.searchsorted(counted, numbers)] - sent) * 1000


def require_equal(stage: Stage, work: Mapping[str, Any], sent: Mapping[str, Any]) -> None:
    """Raise SystemExit unless all clicks are counted once."""
    counted = sum(map(int, stage.redis.hvals(f"{{{work['hash_key']}}}:count")))
    if counted != sent["clicks"]:
        raise SystemExit(f"{work['pipeline']} counted {counted} clicks of {sent['clicks']}")
