"""Clicks at a steady rate, in a process of its own (`child.Child`): `python -m benchmarks.steady_clicks`.

They are generated before the first is sent, to leave the processor to the contender. The result has the times at which
they were passed to librdkafka, on the clock that all processes of a machine share.
"""

import itertools
import json
import sys
import time
from collections.abc import Mapping
from typing import Any

import msgspec
from confluent_kafka import Producer

from benchmarks.clicks_topic import PARTITIONS, SEED, USERS, Click
from onceflow.clicks.ingest.generator import crowd_events

TICK_S = 0.005


def produce(work: Mapping[str, Any]) -> dict[str, Any]:
    """Send `rate` clicks per second for `seconds`; `ticks` has numbers sent with times, `clicks` their sum."""
    count = round(work["rate"] * work["seconds"])
    events = list(itertools.islice(crowd_events(SEED, USERS), count))
    total = sum(click.click_count for click in map(msgspec.json.Decoder(Click).decode, (value for _, value in events)))
    producer = Producer({"bootstrap.servers": work["bootstrap"], "linger.ms": 1})
    producer.list_topics(work["topic"], 30)
    ticks: list[tuple[int, float]] = []
    begin, sent = time.monotonic(), 0
    while sent < count:
        now = time.monotonic()
        due = min(count, int((now - begin) * work["rate"]) + 1)
        for number in range(sent, due):
            key, value = events[number]
            producer.produce(work["topic"], value, key, number % PARTITIONS)
        if due > sent:
            ticks.append((due, now))
        sent = due
        producer.poll(0)
        time.sleep(TICK_S if work["rate"] > 1 / TICK_S else 1 / work["rate"])
    left = producer.flush(60)
    assert left == 0, f"{left} clicks were not acknowledged"
    return {"count": count, "clicks": total, "ticks": ticks}


def main() -> None:
    """Run tasks until standard input ends."""
    for line in sys.stdin:
        print(json.dumps(produce(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
