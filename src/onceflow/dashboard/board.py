"""What the page shows, as one JSON document made from what Redis and the broker last said.

    taken_ms          when the document was made, by this machine's clock
    topic, bootstrap, redis, hash_key   where the numbers come from (no password)
    services          {"redis" | "broker": {"state": "unknown" | "up" | "down", "since_ms", "error", "other_job"}}
    counted           whether anything was ever counted under the hash key
    totals            {"events", "clicks", "bad", "users"}
    top               [{"uid", "clicks"}], the ten largest
    os                [{"name", "clicks"}], the eight largest and the sum of the others
    bad               [{"reason", "events"}], likewise
    batch             {"number", "events", "duration_ms", "finished_ms"} of the last complete micro-batch, or null
    rate              {"begin_ms", "step_ms", "per_second", "last_minute"}, of closed buckets, see `rates`
    lag               {"messages", "seconds", "oldest_ms", "topic_exists"}, or null where it is unknown
    stopped_since_ms  when the last micro-batch gave a sign of life, if messages wait and it is overdue; else null

Counts are JSON numbers, and decimal text beyond 2^53 - 1, which a browser's numbers cannot hold.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from onceflow.clicks.results import HISTORY_LENGTH, HistoryEntry, OtherJob, Snapshot
from onceflow.dashboard.rates import Rates, rates, usual_gap_ms
from onceflow.dashboard.sources import Addresses, Waiting

SAFE_INTEGER_MAX = 2**53 - 1
BARS_MAX = 8
OVERDUE_MS_MIN = 15_000
"""A stream is not called stopped before this, nor before three of its usual gaps."""

Document = dict[str, Any]


@dataclass(slots=True)
class Health:
    """Whether one of the two services answers, and since when it does not."""

    state: str = "unknown"
    since_ms: int | None = None
    error: str | None = None
    other_job: bool = False
    """Whether the service answers, with counts of another job."""

    def answered(self, now_ms: int) -> None:
        """Note an answer."""
        if self.state != "up":
            self.state, self.since_ms, self.error, self.other_job = "up", now_ms, None, False

    def failed(self, error: Exception, now_ms: int) -> None:
        """Note a failure; the time of the first one in a row stays."""
        if self.state != "down":
            self.state, self.since_ms = "down", now_ms
        self.error, self.other_job = str(error).rstrip("."), isinstance(error, OtherJob)


@dataclass(slots=True)
class Board:
    """The last answers of Redis and of the broker. The counts outlive a Redis that is down; the lag does not."""

    addresses: Addresses
    redis: Health = field(default_factory=Health)
    broker: Health = field(default_factory=Health)
    counts: Snapshot | None = None
    waiting: Waiting | None = None

    def counts_arrived(self, counts: Snapshot, now_ms: int) -> None:
        """Keep what Redis said."""
        self.redis.answered(now_ms)
        self.counts = counts

    def waiting_arrived(self, waiting: Waiting, now_ms: int) -> None:
        """Keep what the broker said."""
        self.broker.answered(now_ms)
        self.waiting = waiting

    def broker_failed(self, error: Exception, now_ms: int) -> None:
        """Note that the broker is away: a lag of a moment ago says nothing about now."""
        self.broker.failed(error, now_ms)
        self.waiting = None

    def forget_health(self) -> None:
        """Before polling starts again: the numbers are kept, whether anybody answers is not known."""
        self.redis, self.broker, self.waiting = Health(), Health(), None

    def document(self, now_ms: int) -> Document:
        """Return the document described above."""
        counts, where = self.counts, self.addresses
        topics = sorted(counts.marker.offsets) if counts and counts.marker else []
        return {
            "taken_ms": now_ms,
            "topic": ", ".join(topics) or where.topic,
            "bootstrap": where.bootstrap,
            "redis": where.redis_shown,
            "hash_key": where.hash_key,
            "services": {"redis": asdict(self.redis), "broker": asdict(self.broker)},
            "counted": counts is not None and (counts.marker is not None or counts.users > 0 or counts.events > 0),
            "totals": _totals(counts),
            "top": [{"uid": uid, "clicks": exact(clicks)} for uid, clicks in counts.top] if counts else [],
            "os": [{"name": name, "clicks": n} for name, n in largest(counts.by_os if counts else {})],
            "bad": [{"reason": name, "events": n} for name, n in largest(counts.bad_by_reason if counts else {})],
            "batch": _batch(counts),
            "rate": asdict(_rates(counts.history if counts else [], now_ms)),
            "lag": self._lag(now_ms),
            "stopped_since_ms": self._stopped_since_ms(now_ms),
        }

    def _lag(self, now_ms: int) -> Document | None:
        waiting = self.waiting
        if waiting is None:
            return None
        oldest_ms = waiting.oldest_ms
        seconds = 0.0 if oldest_ms is None else max(0, now_ms - oldest_ms) / 1_000
        return {"seconds": seconds, **asdict(waiting)}

    def _stopped_since_ms(self, now_ms: int) -> int | None:
        if self.counts is None or self.counts.marker is None or not self.waiting or not self.waiting.messages:
            return None
        marker = self.counts.marker
        alive_ms = max(marker.finished_ms, marker.started_ms)
        gap_ms = usual_gap_ms(sorted(entry.finished_ms for entry in self.counts.history))
        overdue_ms = max(OVERDUE_MS_MIN, 3 * gap_ms + 3 * (marker.duration_ms or 0))
        return alive_ms if now_ms - alive_ms > overdue_ms else None


def exact(count: int) -> int | str:
    """Return a count as a browser can hold it exactly."""
    return count if count <= SAFE_INTEGER_MAX else str(count)


def largest(counts: Mapping[str, int]) -> list[tuple[str, int | str]]:
    """Return the largest counts first, and all beyond the eighth as one: names come from events and may be many."""
    ordered = sorted(counts.items(), key=lambda entry: (-entry[1], entry[0]))
    shown, others = ordered[:BARS_MAX], ordered[BARS_MAX:]
    if others:
        shown.append((f"{len(others):,} others", sum(count for _, count in others)))
    return [(name, exact(count)) for name, count in shown]


def _rates(history: Sequence[HistoryEntry], now_ms: int) -> Rates:
    return rates(history, now_ms, is_whole=len(history) < HISTORY_LENGTH)


def _totals(counts: Snapshot | None) -> Document:
    if counts is None:
        return {"events": 0, "clicks": 0, "bad": 0, "users": 0}
    return {name: exact(getattr(counts, name)) for name in ("events", "clicks", "bad", "users")}


def _batch(counts: Snapshot | None) -> Document | None:
    if counts is None or not counts.history:
        return None
    last, marker = counts.history[0], counts.marker
    ours = marker is not None and marker.complete and marker.batch == last.batch
    duration_ms = None
    if ours and marker is not None:
        duration_ms = marker.duration_ms or max(0, marker.finished_ms - marker.started_ms)
    return {
        "number": last.batch,
        "events": exact(last.events),
        "duration_ms": duration_ms,
        "finished_ms": last.finished_ms,
    }
