"""Generator of click events: the article's, or those of a seeded crowd.

The article's: its ten users in turn, `os_type` Android, `click_count` uniform from 0 to 9, no key, one event every
200 ms. The crowd: thousands of users with Zipf-distributed activity, several systems, and a rate that rises and falls
once a minute; the key is the uid. One seed gives the same events, except for `event_time`, the current time.
"""

import itertools
import math
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import msgspec

from onceflow.client.cluster import EARLIEST, LATEST, Cluster
from onceflow.client.errors import TopicExists
from onceflow.client.security import PLAINTEXT, Security

USERS = (
    "4A4D769EB9679C054DE81B973ED5D768",
    "8dfeb5aaafc027d89349ac9a20b3930f",
    "011BBF43B89BFBF266C865DF0397AA71",
    "f2a8474bf7bd94f0aabbd4cdd2c06dcf",
    "068b746ed4620d25e26055a9f804385f",
    "97edfc08311c70143401745a03a50706",
    "d7f141563005d1b5d0d3dd30138f3f62",
    "c8ee90aade1671a21336c721512b817a",
    "6b67c8c700427dee7552f81f3228c927",
    "a95f22eabc4fd4b580c011a3161a9d9d",
)
"""The article's users, in its order and case."""

PARTITIONS = 2
INTERVAL_MS = 200.0
SYSTEMS = {"Android": 46, "iOS": 27, "Windows": 16, "macOS": 6, "Linux": 3, "HarmonyOS": 2}
"""Operating systems of the crowd and their share in percent."""

WAVE_S = 60.0
WAVE_HEIGHT = 0.6
BEHIND_S_MAX = 1.0
"""A generator that is later than this (a suspended laptop) restarts its schedule and does not catch up."""

_encode = msgspec.json.encode


class Event(NamedTuple):
    """Key and value of a record to send."""

    key: bytes | None
    value: bytes


class Writer(Protocol):
    """Destination of events, such as `onceflow.client.producer.EventWriter`."""

    def write(self, key: bytes | None, value: bytes | None) -> None: ...


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits at which to stop: after `count` events, or at about `size_bytes_max` of values in the topic.

    The protocol has no request for a topic's size, so it is estimated: earlier records (`records_before`) are assumed
    to have the average size of those written now.
    """

    count: int | None = None
    size_bytes_max: int | None = None
    records_before: int = 0

    def reached(self, written: int, written_bytes: int, next_bytes: int) -> bool:
        """Return whether the next event, of `next_bytes`, exceeds a limit."""
        if self.count is not None and written >= self.count:
            return True
        if self.size_bytes_max is None:
            return False
        average_bytes = written_bytes / written if written else next_bytes
        return (self.records_before + written + 1) * average_bytes > self.size_bytes_max


def now_ms() -> int:
    """Return the wall clock in ms since 1970."""
    return time.time_ns() // 1_000_000


def article_events(seed: int, clock_ms: Callable[[], int] = now_ms) -> Iterator[Event]:
    """Yield the article's events indefinitely."""
    chance = random.Random(seed)
    for uid in itertools.cycle(USERS):
        yield Event(None, _event(uid, clock_ms(), "Android", chance.randrange(10)))


def crowd_events(seed: int, users: int, clock_ms: Callable[[], int] = now_ms) -> Iterator[Event]:
    """Yield the events of `users` seeded users indefinitely; the n-th clicks about 1/n as often as the first."""
    chance = random.Random(seed)
    uids = [f"{chance.getrandbits(128):032x}" for _ in range(users)]
    weights = list(itertools.accumulate(1 / rank for rank in range(1, users + 1)))
    # Each user has one system, so the sums by system follow those of the users.
    systems = chance.choices(list(SYSTEMS), list(SYSTEMS.values()), k=users)
    while True:
        user = chance.choices(range(users), cum_weights=weights)[0]
        clicks = min(9, int(chance.expovariate(0.5)))
        yield Event(uids[user].encode(), _event(uids[user], clock_ms(), systems[user], clicks))


def _event(uid: str, event_time_ms: int, os_type: str, click_count: int) -> bytes:
    event = {"uid": uid, "event_time": str(event_time_ms), "os_type": os_type, "click_count": click_count}
    return _encode(event)


def due_times_s(interval_ms: float, *, waves: bool) -> Iterator[float]:
    """Yield when each event is due, in seconds after the start; with waves the pauses grow and shrink."""
    due_s = 0.0
    while True:
        yield due_s
        wave = 1 + WAVE_HEIGHT * math.sin(2 * math.pi * due_s / WAVE_S) if waves else 1
        due_s += interval_ms / 1000 / wave


def send(
    events: Iterator[Event],
    writer: Writer,
    due_s: Iterator[float],
    limits: Limits,
    *,
    wait: Callable[[float], bool],
    sent: Callable[[bytes], None],
    monotonic: Callable[[], float] = time.monotonic,
) -> int:
    """Write each event when it is due until a limit is reached or `wait(seconds)` is true; return their number."""
    started = monotonic()
    written = written_bytes = 0
    for event, due in zip(events, due_s, strict=False):
        pause_s = started + due - monotonic()
        if pause_s < -BEHIND_S_MAX:
            started -= pause_s
        if wait(max(0.0, pause_s)) or limits.reached(written, written_bytes, len(event.value)):
            break
        writer.write(event.key, event.value)
        written += 1
        written_bytes += len(event.value)
        sent(event.value)
    return written


def ensure_topic(bootstrap: str, topic: str, partitions: int, security: Security = PLAINTEXT) -> None:
    """Create a missing topic with this number of partitions; an existing one is not changed."""
    with Cluster(bootstrap, security=security) as cluster:
        if topic in cluster.topics(topic):
            return
        try:
            cluster.create_topic(topic, partitions)
        except TopicExists:
            return  # Another producer created it first.


def records_in(bootstrap: str, topic: str, security: Security = PLAINTEXT) -> int:
    """Return the number of records in the topic: the sum over partitions of end minus start."""
    with Cluster(bootstrap, security=security) as cluster:
        partitions = cluster.require_topic(topic).partitions
        starts = cluster.list_offsets(topic, dict.fromkeys(partitions, EARLIEST))
        ends = cluster.list_offsets(topic, dict.fromkeys(partitions, LATEST))
    return sum(ends[partition].offset - starts[partition].offset for partition in partitions)
