"""Topic that the connector's contenders read: generated clicks and their right sums."""

import itertools
from collections import Counter
from typing import NamedTuple

import msgspec
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.peers import wait_for_leader
from onceflow.clicks.ingest.generator import crowd_events

USERS = 10_000
PARTITIONS = 4
SEED = 1
_QUEUE_RECORDS = 1_000_000
_POLL_EVERY = 10_000


class Click(msgspec.Struct):
    """Summed field of an event."""

    click_count: int


class Clicks(NamedTuple):
    """Topic, number of its clicks, and sums by uid."""

    topic: str
    count: int  # type: ignore[assignment]
    sums: dict[bytes, int]


def create(bootstrap: str, topic: str, partitions: int = PARTITIONS) -> None:
    """Create a topic with one replica, and wait until it accepts writes."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, partitions, 1, config={"file.delete.delay.ms": "0"})])[topic].result(30)
    wait_for_leader(admin, topic)


def delete(bootstrap: str, topic: str) -> None:
    """Delete a topic, and wait for the response."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_topics([topic])[topic].result(30)


def fill(bootstrap: str, topic: str, count: int) -> Clicks:
    """Create the topic and write `count` clicks, to the partitions in turn."""
    create(bootstrap, topic)
    producer = Producer(
        {"bootstrap.servers": bootstrap, "linger.ms": 5, "queue.buffering.max.messages": _QUEUE_RECORDS}
    )
    sums: Counter[bytes] = Counter()
    clicks_of = msgspec.json.Decoder(Click).decode
    for number, (key, value) in enumerate(itertools.islice(crowd_events(SEED, USERS), count)):
        while True:
            try:
                producer.produce(topic, value, key, number % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.1)
        if number % _POLL_EVERY == 0:
            producer.poll(0)
        assert key is not None
        sums[key] += clicks_of(value).click_count
    left = producer.flush(120)
    assert left == 0, f"{left} clicks were not acknowledged"
    return Clicks(topic, count, dict(sums))


def differences(stored: dict[bytes, bytes], clicks: Clicks) -> int:
    """Return the number of users whose sums in Redis and in the topic differ; a sum of 0 may be missing."""
    wanted = {uid: total for uid, total in clicks.sums.items() if total}
    counted = {uid: int(total) for uid, total in stored.items() if int(total)}
    return sum(wanted.get(uid) != counted.get(uid) for uid in wanted.keys() | counted.keys())
