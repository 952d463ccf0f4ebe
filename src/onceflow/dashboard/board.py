"""The page's content as one JSON document, from the last results of Redis and the broker.

    taken_ms          time of the document, by this machine's clock
    topic, bootstrap, redis, hash_key   sources of the numbers (no password)
    services          {"redis" | "broker": {"state": "unknown" | "up" | "down", "since_ms", "error", "other_job"}}
    counted           whether anything was counted under the hash key
    now               {"live", "as_of_ms", "not_counted", "reason"}: whether totals, top, os and bad include all events
                      acknowledged until then (`onceflow.clicks.live`), or why they are only the counted ones
    totals            {"events", "clicks", "bad", "users"}
    top               [{"uid", "clicks"}], the ten largest
    os                [{"name", "clicks"}], the eight largest and the sum of the others
    bad               [{"reason", "events"}], likewise
    batch             {"number", "events", "duration_ms", "finished_ms"} of the last complete micro-batch, or null
    rate              {"begin_ms", "step_ms", "per_second", "last_minute"}, of closed buckets, see `rates`
    lag               {"messages", "seconds", "oldest_ms", "topic_exists"}, or null if it is unknown
    stopped_since_ms  time of the last micro-batch, if there is a lag and the next batch is overdue; else null

Counts are JSON numbers, or decimal text above 2^53 - 1, the largest exact integer of a browser.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from onceflow.clicks.live import NOT_LIVE, View
from onceflow.clicks.results import HISTORY_LENGTH, HistoryEntry, OtherJob, Snapshot
from onceflow.dashboard.rates import Rates, rates, usual_gap_ms
from onceflow.dashboard.sources import Addresses, Backlog

SAFE_INTEGER_MAX = 2**53 - 1
BARS_MAX = 8
OVERDUE_MS_MIN = 15_000
"""Minimum time after which a stream counts as stopped; it is also at least three usual gaps."""

Document = dict[str, Any]


@dataclass(slots=True)
class Health:
    """State of one of the two services."""

    state: str = "unknown"
    since_ms: int | None = None
    error: str | None = None
    other_job: bool = False
    """Whether the service responds with counts of another job."""

    def responded(self, now_ms: int) -> None:
        """Record a response."""
        if self.state != "up":
            self.state, self.since_ms, self.error, self.other_job = "up", now_ms, None, False

    def failed(self, error: Exception, now_ms: int) -> None:
        """Record a failure, with the time of the first of consecutive ones."""
        if self.state != "down":
            self.state, self.since_ms = "down", now_ms
        self.error, self.other_job = str(error).rstrip("."), isinstance(error, OtherJob)


@dataclass(slots=True)
class Board:
    """Last results of Redis and the broker. The counts are kept while Redis is down; the lag is not."""

    addresses: Addresses
    redis: Health = field(default_factory=Health)
    broker: Health = field(default_factory=Health)
    counts: Snapshot | None = None
    backlog: Backlog | None = None

    def set_counts(self, counts: Snapshot, now_ms: int) -> None:
        """Keep the counts that Redis returned."""
        self.redis.responded(now_ms)
        self.counts = counts

    def set_backlog(self, backlog: Backlog, now_ms: int) -> None:
        """Keep the backlog that the broker returned."""
        self.broker.responded(now_ms)
        self.backlog = backlog

    def broker_failed(self, error: Exception, now_ms: int) -> None:
        """Record that the broker is unreachable; the old lag is dropped."""
        self.broker.failed(error, now_ms)
        self.backlog = None

    def reset_health(self) -> None:
        """Reset the states before polling starts again, and keep the counts."""
        self.redis, self.broker, self.backlog = Health(), Health(), None

    def document(self, now_ms: int, view: View = NOT_LIVE) -> Document:
        """Return the document described above."""
        counts, where = self.counts, self.addresses
        shown = view.snapshot or counts
        topics = sorted(counts.marker.offsets) if counts and counts.marker else []
        return {
            "taken_ms": now_ms,
            "topic": ", ".join(topics) or where.topic,
            "bootstrap": where.bootstrap,
            "redis": where.redis_shown,
            "hash_key": where.hash_key,
            "services": {"redis": asdict(self.redis), "broker": asdict(self.broker)},
            "counted": counts is not None and (counts.marker is not None or counts.users > 0 or counts.events > 0),
            "now": view.as_json(),
            "totals": _totals(shown),
            "top": [{"uid": uid, "clicks": exact(clicks)} for uid, clicks in shown.top] if shown else [],
            "os": [{"name": name, "clicks": n} for name, n in largest(shown.by_os if shown else {})],
            "bad": [{"reason": name, "events": n} for name, n in largest(shown.bad_by_reason if shown else {})],
            "batch": _batch(counts),
            "rate": asdict(_rates(counts.history if counts else [], now_ms)),
            "lag": self._lag(now_ms),
            "stopped_since_ms": self._stopped_since_ms(now_ms),
        }

    def _lag(self, now_ms: int) -> Document | None:
        backlog = self.backlog
        if backlog is None:
            return None
        oldest_ms = backlog.oldest_ms
        seconds = 0.0 if oldest_ms is None else max(0, now_ms - oldest_ms) / 1_000
        return {"seconds": seconds, **asdict(backlog)}

    def _stopped_since_ms(self, now_ms: int) -> int | None:
        if self.counts is None or self.counts.marker is None or not self.backlog or not self.backlog.messages:
            return None
        marker = self.counts.marker
        alive_ms = max(marker.finished_ms, marker.started_ms)
        gap_ms = usual_gap_ms(sorted(entry.finished_ms for entry in self.counts.history))
        overdue_ms = max(OVERDUE_MS_MIN, 3 * gap_ms + 3 * (marker.duration_ms or 0))
        return alive_ms if now_ms - alive_ms > overdue_ms else None


def exact(count: int) -> int | str:
    """Return a count in a form that a browser reads exactly."""
    return count if count <= SAFE_INTEGER_MAX else str(count)


def largest(counts: Mapping[str, int]) -> list[tuple[str, int | str]]:
    """Return the eight largest counts and the sum of the others: names come from events and may be many."""
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
