"""A topic with events, and counts in Redis as the pipeline writes them, without Spark."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import redis

from onceflow.clicks.events import Reason, Rules
from onceflow.clicks.results import Keys
from onceflow.client.cluster import Cluster
from onceflow.client.producer import EventWriter

Values = Mapping[int, Sequence[bytes | None]]
"""Partition → values."""

GOOD_AND_BAD: Values = {
    0: [
        b'{"uid":"ada","click_count":3,"os_type":"iOS"}',
        b'{"uid":"bob","click_count":"2"}',
        b"nonsense",
        b'{"uid":"ada","click_count":0,"os_type":"iOS"}',
    ],
    1: [
        b'{"uid":"eve","click_count":0,"os_type":"Android"}',
        b'{"uid":"","click_count":1}',
        None,
        b'{"uid":"bob","click_count":6.0,"os_type":"Android"}',
        b"\xff",
    ],
}


def write(bootstrap: str, topic: str, values: Values, partitions: int = 2) -> None:
    """Create the topic if it is missing and write every value to its partition."""
    with Cluster(bootstrap) as cluster:
        if topic not in cluster.topics(topic):
            cluster.create_topic(topic, partitions)
    with EventWriter(bootstrap, topic) as writer:
        for partition, part in values.items():
            for value in part:
                writer.write(None, value, partition=partition)


def count(redis_url: str, hash_key: str, topic: str, values: Values, **marker: Any) -> None:
    """Write to Redis what the pipeline writes for `values` from the topic's start."""
    keys = Keys(hash_key)
    by_user: Counter[str] = Counter()
    by_os: Counter[str] = Counter()
    by_reason: Counter[str] = Counter()
    dead = []
    for partition, part in values.items():
        for offset, value in enumerate(part):
            verdict = Rules().judge(value)
            if isinstance(verdict, Reason):
                by_reason[verdict] += 1
                dead.append(f"{partition}:{offset}:{verdict}")
            else:
                by_user[verdict.uid] += verdict.clicks
                by_os[verdict.os_type] += verdict.clicks
    events = sum(map(len, values.values()))
    offsets = {str(partition): len(part) for partition, part in values.items()}
    with redis.Redis.from_url(redis_url) as client:
        client.delete(keys.count, keys.top, keys.os, keys.totals, keys.bad, keys.dead, keys.history)
        totals = {"events": events, "clicks": by_user.total(), "bad": by_reason.total()}
        for key, sums in ((keys.count, by_user), (keys.os, by_os), (keys.totals, totals), (keys.bad, by_reason)):
            for field, amount in sums.items():
                client.hset(key, field, str(amount))
        for uid, clicks in by_user.items():
            client.zadd(keys.top, {uid: clicks})
        for pointer in dead:
            client.lpush(keys.dead, pointer)
        entry = {"batch": 1, "finished_ms": 1_700_000_000_000, "events": events, "offsets": offsets}
        client.lpush(keys.history, json.dumps(entry))
        fields = {
            "format": "1",
            "query": "q",
            "batch": "1",
            "complete": "1",
            "plan": json.dumps({"key_field": "uid", "value_field": "click_count"}),
            "since": json.dumps({topic: dict.fromkeys(offsets, 0)}),
            "offsets": json.dumps({topic: offsets}),
            "started_ms": "1699999999000",
            "finished_ms": "1700000000000",
            "duration_ms": "1000",
        }
        client.hset(keys.marker, mapping=fields | marker)
