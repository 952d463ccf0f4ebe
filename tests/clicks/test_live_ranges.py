"""Live numbers while the pipeline counts what the reader is adding: records fetched together are added in ranges.

The read model is a model here, since a real one would have to advance between two ranges of one fetch.
"""

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from onceflow.clicks import now as nows
from onceflow.clicks.events import Rules
from onceflow.clicks.live import Live
from onceflow.clicks.now import Counts, Now
from onceflow.clicks.results import MarkerView, Snapshot
from onceflow.client.cluster import Fetched
from onceflow.wire.batch import Record, encode_batch

TOPIC = "t"
LOG = {0: ["ada"] * 3 + ["bob"] * 2 + ["ada"] * 15, 1: ["ada"] + ["eve"] * 6 + ["bob"] + ["eve"] * 2}
RULES = Rules()


def value_of(uid: str) -> bytes:
    return json.dumps({"uid": uid, "click_count": 1}).encode()


def sums(ranges: Mapping[int, tuple[int, int]]) -> Counts:
    """Return the sums of the records of each partition from one offset up to another."""
    counts = Counts()
    for number, (begin, end) in ranges.items():
        for uid in LOG[number][begin:end]:
            counts.add(RULES.judge(value_of(uid)))
    return counts


class ModelResults:
    """The counts up to some offsets; `lookups` are called before each lookup, in order."""

    hash_key = "h"

    def __init__(self) -> None:
        self.ends = dict.fromkeys(LOG, 0)
        self.batches = 0
        self.lookups: list[Callable[[], None]] = []

    def count(self, ends: dict[int, int]) -> None:
        self.batches += 1
        self.ends = ends

    @property
    def counts(self) -> Counts:
        return sums({number: (0, end) for number, end in self.ends.items()})

    @property
    def marker(self) -> MarkerView:
        ranges = {TOPIC: {str(number): [0, end] for number, end in self.ends.items()}}
        fields = {"ranges": json.dumps(ranges), "digest": json.dumps(self.ends)}
        since = {TOPIC: dict.fromkeys(LOG, 0)}
        return MarkerView("q", self.batches, True, {TOPIC: dict(self.ends)}, since, "", 0, 0, None, (), fields)

    def snapshot(self) -> Snapshot:
        counts = self.counts
        return Snapshot(
            hash_key=self.hash_key,
            events=counts.events,
            clicks=counts.clicks,
            bad=counts.bad,
            users=len(counts.by_user),
            top=sorted(counts.by_user.items()),
            by_os=counts.by_os,
            bad_by_reason={},
            marker=self.marker,
            history=[],
        )

    def clicks_of_users(self, uids: Sequence[str]) -> Any:
        if self.lookups:
            self.lookups.pop(0)()
        by_user = self.counts.by_user
        return self.marker, {uid: by_user.get(uid) for uid in uids}

    def close(self) -> None:
        """There is no connection."""


def fetched(partition: int, begin: int) -> Fetched:
    records = [Record(offset, 0, None, value_of(uid)) for offset, uid in enumerate(LOG[partition])]
    end = len(records)
    return Fetched(memoryview(bytes(encode_batch(records[begin:]))), end, end, 0, ())


def test_users_are_counted_once_between_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """A micro-batch takes the first range of a partition from the reader, and the next one has a user of another."""
    monkeypatch.setattr(nows, "RANGE_EVENTS", 5)
    results: Any = ModelResults()
    live = Live(results, "127.0.0.1:1", TOPIC)
    now = live._now = Now(results.snapshot(), TOPIC, dict.fromkeys(LOG, 0), top=10)

    def follow() -> None:
        cluster: Any = None
        live._replace_base(cluster, now, results.snapshot(), dict(results.ends))

    def count_first_and_follow() -> None:
        results.count({0: 3, 1: 0})
        follow()

    def count_more() -> None:
        results.count({0: 5, 1: 0})

    def read(_cluster: Any, partition: int, begin: int, end: int, _bytes_max: int) -> Counts:
        return sums({partition: (begin, end)})

    monkeypatch.setattr(live, "_read", read)
    results.lookups = [count_first_and_follow, count_more]
    while begins := {number: end for number, end in now.pending.ends.items() if end < len(LOG[number])}:
        parts = {number: fetched(number, begin) for number, begin in begins.items()}
        reader = threading.Thread(target=live._take, args=(now, begins, parts, 0, threading.Event()))
        reader.start()
        while reader.is_alive():
            reader.join(0.2)
            if not results.lookups:
                follow()
    assert now.clicks_of("bob") == 3
    results.count({0: 20, 1: 10})
    follow()
    assert now.snapshot().clicks == 30
