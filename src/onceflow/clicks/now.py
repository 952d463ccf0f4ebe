"""Current sums: the counts in Redis and the sums of the later records of the log. It has no I/O; `live` feeds it.

`Now` has a *base*, the read model at one complete micro-batch, and *pending* ranges, which follow the base's offsets
without a gap. The total is the same whichever complete micro-batch is the base, and however many of the ranges are
added to it. So the ranges that a later base has counted are added one at a time, and readers are served in between. The
later base then replaces the current one in one step, and the pending ranges start at exactly its offsets. Until then
the current base stays valid, also while Redis writes a micro-batch or has lost some.

Only the sums of each range of offsets are kept, not the records. If a micro-batch ends inside a range, the rest of that
range is read from the log again. Neighbouring ranges are joined when they become many or large.
"""

import heapq
import json
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field, replace

from onceflow.clicks.events import Click, Reason, Rules
from onceflow.clicks.results import MarkerView, Snapshot
from onceflow.client.cluster import Fetched
from onceflow.client.records import committed_records, next_offset

RANGE_EVENTS = 500
"""Number of events from which a range gets no further records."""
RANGES_MAX = 1_024
"""Maximum number of ranges of a partition; neighbours are joined beyond it."""
ENTRY_BYTES = 200
"""Memory of one name in the sums of one range, without its text."""
KNOWN_USERS_MAX = 100_000
"""Number of users without pending records whose counted clicks are kept, so that Redis is not asked again."""
NAME_BYTES = 400
"""Memory of one name in the sums of all ranges and in the counted clicks, without its text."""

Offsets = Mapping[int, int]
"""Partition → offset."""


@dataclass(slots=True)
class Counts:
    """Sums of some records."""

    events: int = 0
    clicks: int = 0
    bad: int = 0
    by_user: dict[str, int] = field(default_factory=dict)
    by_os: dict[str, int] = field(default_factory=dict)
    by_reason: dict[str, int] = field(default_factory=dict)

    def add(self, verdict: Click | Reason) -> None:
        """Add one judged record."""
        self.events += 1
        if isinstance(verdict, Reason):
            self.bad += 1
            self.by_reason[verdict] = self.by_reason.get(verdict, 0) + 1
            return
        uid, clicks, os_type = verdict
        self.clicks += clicks
        self.by_user[uid] = self.by_user.get(uid, 0) + clicks
        self.by_os[os_type] = self.by_os.get(os_type, 0) + clicks

    def add_all(self, other: "Counts") -> None:
        """Add the sums of other records."""
        self.events += other.events
        self.clicks += other.clicks
        self.bad += other.bad
        for into, part in zip(self._parts(), other._parts(), strict=True):
            for name, amount in part.items():
                into[name] = into.get(name, 0) + amount

    @property
    def size_bytes(self) -> int:
        """Estimate of the memory of these sums."""
        return sum(ENTRY_BYTES + len(name) for part in self._parts() for name in part)

    def _parts(self) -> Iterable[dict[str, int]]:
        return (self.by_user, self.by_os, self.by_reason)


def sums_of(fetched: Fetched, begin: int, rules: Rules) -> Iterator[tuple[int, Counts]]:
    """Yield the sums of the records from `begin` on, one range at a time, each with the offset after it.

    After a stall of the disk, thousands are acknowledged at once: readers see the first ones before all are summed.
    """
    end, counts = next_offset(fetched, begin), Counts()
    for record in committed_records(fetched, begin, end):
        if counts.events == RANGE_EVENTS:
            yield record.offset, counts
            counts = Counts()
        counts.add(rules.judge(record.value))
    yield end, counts


class Tally:
    """Sums by name over several ranges. A name stays as long as a range has it, also with the sum 0."""

    def __init__(self) -> None:
        self.sums: dict[str, int] = {}
        self.size_bytes = 0
        self._ranges: dict[str, int] = {}

    def add(self, part: Mapping[str, int], into: dict[str, int]) -> None:
        """Add `part` to `into`, the sums of one range."""
        sums, ranges = self.sums, self._ranges
        for name, amount in part.items():
            if name in into:
                into[name] += amount
                sums[name] += amount
                continue
            into[name] = amount
            self.size_bytes += ENTRY_BYTES + len(name)
            if name in sums:
                sums[name] += amount
                ranges[name] += 1
            else:
                sums[name] = amount
                ranges[name] = 1
                self.size_bytes += NAME_BYTES

    def remove(self, part: Mapping[str, int]) -> None:
        """Remove the sums of one range."""
        for name, amount in part.items():
            self.size_bytes -= ENTRY_BYTES + len(name)
            self._ranges[name] -= 1
            if self._ranges[name]:
                self.sums[name] -= amount
            else:
                del self.sums[name], self._ranges[name]
                self.size_bytes -= NAME_BYTES

    def join(self, part: Mapping[str, int], into: dict[str, int]) -> None:
        """Move the sums of one range into those of its neighbour."""
        for name, amount in part.items():
            if name in into:
                into[name] += amount
                self._ranges[name] -= 1
                self.size_bytes -= ENTRY_BYTES + len(name)
            else:
                into[name] = amount


@dataclass(slots=True)
class Range:
    """Offsets [begin, end) of a partition and the sums of their records."""

    begin: int
    end: int
    counts: Counts


class Pending:
    """Ranges of each partition, without gaps, up to `ends`, the next offsets to read; and the sums of all."""

    def __init__(self, begins: Offsets) -> None:
        self.ends = dict(begins)
        self.events = self.clicks = self.bad = 0
        self.users, self.systems, self.reasons = Tally(), Tally(), Tally()
        self._ranges: dict[int, list[Range]] = {partition: [] for partition in begins}
        self._growing: set[int] = set()

    @property
    def size_bytes(self) -> int:
        """Estimate of the memory of all ranges."""
        return self.users.size_bytes + self.systems.size_bytes + self.reasons.size_bytes

    def append(self, partition: int, end: int, counts: Counts) -> None:
        """Add the records from the partition's end up to `end`."""
        ranges, begin = self._ranges[partition], self.ends[partition]
        self.ends[partition] = end
        if partition in self._growing and ranges[-1].counts.events < RANGE_EVENTS:
            ranges[-1].end = end
            self._add(counts, ranges[-1].counts)
            return
        ranges.append(Range(begin, end, self._added(counts)))
        self._growing.add(partition)
        if len(ranges) > RANGES_MAX:
            self._join(partition)

    def pop(self, begins: Offsets) -> Counts | None:
        """Remove a first range that begins before `begins`, and return its sums; None if there is none."""
        for partition, begin in begins.items():
            ranges = self._ranges.get(partition)
            if ranges and ranges[0].begin < begin:
                counts = ranges.pop(0).counts
                self._remove(counts)
                if not ranges:
                    self._growing.discard(partition)
                return counts
        return None

    def missing(self, begins: Offsets) -> dict[int, tuple[int, int]]:
        """Return the offsets [begin, end) to read before the ranges can begin at `begins`.

        These are the rest of a range that `begins` divides, and what precedes the ranges.
        """
        missing = {}
        for partition, begin in begins.items():
            first = self._first_from(partition, begin)
            if begin < first:
                missing[partition] = (begin, first)
                self._growing.discard(partition)
        return missing

    def start_at(self, begins: Offsets, pieces: Mapping[int, Counts]) -> None:
        """Begin at `begins`, before which there is no range; `pieces` are the sums of the `missing` offsets."""
        for partition, begin in begins.items():
            ranges = self._ranges.setdefault(partition, [])
            if partition in pieces:
                first = self._first_from(partition, begin)
                ranges.insert(0, Range(begin, first, self._added(pieces[partition])))
            self.ends[partition] = max(begin, self.ends.get(partition, begin))

    def shrink(self) -> bool:
        """Join neighbouring ranges in pairs; return false if there are none."""
        partitions = [partition for partition, ranges in self._ranges.items() if len(ranges) > 1]
        for partition in partitions:
            self._join(partition)
        return bool(partitions)

    def _first_from(self, partition: int, offset: int) -> int:
        """Return the first boundary at `offset` or later; `offset` itself if it is beyond the end."""
        ranges = self._ranges.get(partition, [])
        end = max(offset, self.ends.get(partition, offset))
        return next((part.begin for part in ranges if part.begin >= offset), end)

    def _join(self, partition: int) -> None:
        ranges = self._ranges[partition]
        for left, right in zip(ranges[::2], ranges[1::2], strict=False):
            left.end = right.end
            for tally, part, into in self._tallies(right.counts, left.counts):
                tally.join(part, into)
            left.counts.events += right.counts.events
            left.counts.clicks += right.counts.clicks
            left.counts.bad += right.counts.bad
        self._ranges[partition] = ranges[::2]

    def _added(self, counts: Counts) -> Counts:
        into = Counts()
        self._add(counts, into)
        return into

    def _add(self, counts: Counts, into: Counts) -> None:
        for tally, part, names in self._tallies(counts, into):
            tally.add(part, names)
        into.events += counts.events
        into.clicks += counts.clicks
        into.bad += counts.bad
        self._add_totals(counts, 1)

    def _remove(self, counts: Counts) -> None:
        for tally, part, _ in self._tallies(counts, counts):
            tally.remove(part)
        self._add_totals(counts, -1)

    def _add_totals(self, counts: Counts, sign: int) -> None:
        self.events += sign * counts.events
        self.clicks += sign * counts.clicks
        self.bad += sign * counts.bad

    def _tallies(self, part: Counts, into: Counts) -> Iterable[tuple[Tally, dict[str, int], dict[str, int]]]:
        yield self.users, part.by_user, into.by_user
        yield self.systems, part.by_os, into.by_os
        yield self.reasons, part.by_reason, into.by_reason


@dataclass(frozen=True, slots=True)
class Position:
    """Place of Redis's sums in the log, from the marker at the same instant.

    Every sum has all records before `low` and none from `high` on; the two differ while a micro-batch is written.
    """

    identity: tuple[str, ...] | None
    """The marker's identity: sums of one identity are equal. None without a marker."""
    low: dict[int, int]
    high: dict[int, int]

    @classmethod
    def of(cls, marker: MarkerView | None, topic: str) -> "Position":
        """Return the position of this marker."""
        if marker is None:
            return cls(None, {}, {})
        fields = marker.fields
        high = marker.offsets.get(topic, {})
        low = dict(high)
        if not marker.complete:
            ranges = json.loads(fields.get("ranges", "{}")).get(topic, {})
            low |= {int(partition): begin for partition, (begin, _) in ranges.items()}
        return cls(marker.identity, low, high)

    @property
    def query(self) -> str | None:
        """Spark's id of the query that counts; None before the first micro-batch."""
        return self.identity[0] if self.identity else None

    @property
    def rebuild(self) -> str | None:
        """Id of the last rebuild, which may have corrected any sum."""
        return self.identity[-1] if self.identity else None


@dataclass(frozen=True, slots=True)
class Lookup:
    """Counted clicks of some users, None for those that Redis does not have, and their position."""

    at: Position
    clicks: Mapping[str, int | None]


class Now:
    """Base and pending ranges of one count."""

    def __init__(self, base: Snapshot, topic: str, begins: Offsets, *, top: int) -> None:
        """Start without pending records; `begins` are the base's offsets, of all partitions."""
        self.base = base
        self.position = Position.of(base.marker, topic)
        self.pending = Pending(begins)
        self.starts: dict[int, int] = {}
        """The first offset of each partition that is counted or pending."""
        self._advanced = Counts()
        """Sums of the ranges that were added to the base, without those of single users."""
        self._advanced_users = 0
        """Number of users whose first records are in these ranges."""
        self._known_from = dict(begins)
        """Every user of the records read from these offsets on is known."""
        self._top = top
        self._counted: dict[str, int | None] = {}
        self._new_users = 0
        self._note_starts(base, topic, begins)
        self._rank_again()

    def unknown_users(self, parts: Iterable[Counts]) -> set[str]:
        """Return the users whose counted clicks must be looked up before these parts are added."""
        return {uid for counts in parts for uid in counts.by_user if uid not in self._counted}

    def is_usable(self, lookup: Lookup, unknown: Set[str], begins: Offsets) -> bool:
        """Return whether the lookup has the base's clicks of these unknown users.

        `begins` are the first offsets of the records that the users come from. Another position does, if every record
        between the base and it is read: the users have none there, or they would be known. It does not after a rebuild,
        which may have corrected any sum.
        """
        at = lookup.at
        if not unknown <= lookup.clicks.keys():
            return False
        if at.identity == self.position.identity:
            return True
        if self._is_rebuilt(at):
            return False
        lows = self.starts | at.low
        is_ahead = all(lows[partition] >= begin for partition, begin in self._known_from.items())
        ends = self.pending.ends | dict(begins)
        return is_ahead and all(ends.get(partition, -1) >= offset for partition, offset in at.high.items())

    def add(self, partition: int, begin: int, end: int, counts: Counts, lookup: Lookup | None) -> bool:
        """Add the records [begin, end) of a partition, with the clicks of unknown users from a usable lookup.

        Return false, and change nothing, if these are not the next records: the base has moved beyond them.
        """
        if self.pending.ends.get(partition) != begin:
            return False
        for uid in counts.by_user:
            if uid not in self._counted:
                assert lookup is not None
                self._learn(uid, lookup.clicks[uid])
        self.pending.append(partition, end, counts)
        sums = self.pending.users.sums
        for uid in counts.by_user:
            self._rank(uid, (self._counted[uid] or 0) + sums[uid])
        return True

    def _learn(self, uid: str, clicks: int | None) -> None:
        self._counted[uid] = clicks
        self._new_users += clicks is None

    def advance(self, begins: Offsets) -> bool:
        """Add one range that begins before `begins` to the base; return false if there is none.

        The base keeps its position.
        """
        counts = self.pending.pop(begins)
        if counts is None:
            return False
        new_users = 0
        for uid, clicks in counts.by_user.items():
            counted = self._counted[uid]
            new_users += counted is None
            self._counted[uid] = (counted or 0) + clicks
        self._new_users -= new_users
        self._advanced_users += new_users
        self._advanced.add_all(replace(counts, by_user={}))
        return True

    @property
    def is_advanced(self) -> bool:
        """Whether records were added to the base that it did not have."""
        return self._advanced.events > 0

    def differs_only_by(self, pieces: Mapping[int, Counts], base: Snapshot, topic: str, begins: Offsets) -> bool:
        """Return whether the base, advanced to `begins`, has exactly these records more than another base there.

        Then only the users of these `missing` offsets must be looked up. It is false if some records before `begins`
        are not read, if Redis or the pipeline lost records, and after a rebuild.
        """
        if self._is_rebuilt(Position.of(base.marker, topic)):
            return False
        counted, expected = _sums_of(base), _sums_of(self.base)
        expected.add_all(self._advanced)
        for piece in pieces.values():
            counted.add_all(replace(piece, by_user={}))
        return counted == expected

    def replace_base(
        self,
        base: Snapshot,
        topic: str,
        begins: Offsets,
        missing: Mapping[int, tuple[int, int]],
        pieces: Mapping[int, Counts],
        counted: Mapping[str, int | None],
        *,
        known_stay: bool,
    ) -> bool:
        """Take another base of the same query, complete at `begins`; return false if the pieces no longer fit.

        `pieces` are the sums of the `missing` offsets; `counted` has the new base's clicks of all users in the pieces
        and, unless `differs_only_by` (`known_stay`), of all users that were pending when it was read. Other pending
        users have no records between the two bases, so theirs are known; unless some records before `begins` are not
        read, which are then skipped, or a rebuild has corrected the counts.
        """
        while self.advance(begins):
            pass
        self._note_starts(base, topic, begins)
        users, position = self.pending.users.sums, Position.of(base.marker, topic)
        ends = self.starts | self.pending.ends
        is_skipping = any(begin > ends[partition] for partition, begin in begins.items())
        may_differ = not known_stay and (is_skipping or self._is_rebuilt(position))
        if self.pending.missing(begins) != missing or (may_differ and not users.keys() <= counted.keys()):
            return False
        # The pending users may be many more than those of whom something changes.
        self._new_users -= self._count_new(counted)
        self.pending.start_at(begins, pieces)
        self._counted |= counted
        self._new_users += self._count_new(counted)
        if known_stay and len(self._counted) <= len(users) + KNOWN_USERS_MAX:
            known_from = self._known_from
            self._known_from = {number: min(begin, known_from.get(number, begin)) for number, begin in begins.items()}
        else:
            self._counted = {uid: self._counted[uid] for uid in users}
            self._known_from = dict(begins)
        self.base, self.position = base, position
        self._advanced, self._advanced_users = Counts(), 0
        if not known_stay:
            self._rank_again()
        return True

    def add_partitions(self, starts: Offsets) -> None:
        """Add new partitions, of which nothing is counted, with the first offsets of their logs."""
        self.pending.start_at(starts, {})
        self.starts |= starts

    def _note_starts(self, base: Snapshot, topic: str, begins: Offsets) -> None:
        since = {} if base.marker is None else base.marker.since.get(topic, {})
        self.starts = {**begins, **self.starts, **since}

    def _is_rebuilt(self, at: Position) -> bool:
        """Return whether the sums at this position may be others: of another query, or corrected by a rebuild."""
        here = self.position
        return here.query is not None and (at.query, at.rebuild) != (here.query, here.rebuild)

    def _count_new(self, uids: Iterable[str]) -> int:
        """Return how many of these users have pending records and are not in the base."""
        users = self.pending.users.sums
        return sum(uid in users and self._counted[uid] is None for uid in uids)

    @property
    def users(self) -> list[str]:
        """Users with pending records."""
        return list(self.pending.users.sums)

    def clicks_of(self, uid: str) -> int | None:
        """Return the clicks of a known user; None for another user."""
        if uid not in self._counted:
            return None
        return (self._counted[uid] or 0) + self.pending.users.sums.get(uid, 0)

    def snapshot(self) -> Snapshot:
        """Return the read model as it will be when everything pending is counted."""
        base, advanced, pending = self.base, self._advanced, self.pending
        return replace(
            base,
            events=base.events + advanced.events + pending.events,
            clicks=base.clicks + advanced.clicks + pending.clicks,
            bad=base.bad + advanced.bad + pending.bad,
            users=base.users + self._advanced_users + self._new_users,
            top=self._ranking(),
            by_os=_joined(base.by_os, advanced.by_os, pending.systems.sums),
            bad_by_reason=_joined(base.bad_by_reason, advanced.by_reason, pending.reasons.sums),
        )

    def _rank_again(self) -> None:
        """Rank the users of the base and all pending users: clicks may have become less."""
        top = self.base.top[: self._top]
        users = self.pending.users.sums
        self._ranked = {uid: clicks + users.get(uid, 0) for uid, clicks in top}
        self._least = top[-1][1] if len(top) == self._top else 0
        for uid, amount in users.items():
            self._rank(uid, (self._counted[uid] or 0) + amount)

    def _rank(self, uid: str, clicks: int) -> None:
        """Keep a user who may be a top user now. Clicks only grow, so other users need not be kept."""
        if clicks >= self._least or uid in self._ranked:
            self._ranked[uid] = clicks
            if len(self._ranked) > 2 * self._top + 100:
                self._ranked = dict(self._ranking())
                self._least = min(self._ranked.values())

    def _ranking(self) -> list[tuple[str, int]]:
        return heapq.nsmallest(self._top, self._ranked.items(), key=lambda entry: (-entry[1], entry[0]))


def _sums_of(base: Snapshot) -> Counts:
    """Return the sums of a base without those of single users."""
    return Counts(base.events, base.clicks, base.bad, {}, dict(base.by_os), dict(base.bad_by_reason))


def _joined(base: Mapping[str, int], *further: Mapping[str, int]) -> dict[str, int]:
    sums = dict(base)
    for part in further:
        for name, amount in part.items():
            sums[name] = sums.get(name, 0) + amount
    return dict(sorted(sums.items(), key=lambda entry: (-entry[1], entry[0])))
