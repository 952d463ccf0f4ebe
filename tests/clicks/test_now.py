"""The sums as of now, for any order of records, micro-batches, half written ones, losses of Redis and new bases."""

import json
import tracemalloc
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from onceflow.clicks import now as nows
from onceflow.clicks.events import Click, Reason, Rules
from onceflow.clicks.now import Counts, Lookup, Now, Pending, Position, sums_of
from onceflow.clicks.results import MarkerView, Snapshot
from onceflow.client.cluster import Fetched
from onceflow.wire.batch import Record, encode_batch, encode_retained, read_header

TOPIC = "t"
PARTITIONS_MAX = 3
TOP = 3
CHUNKS = 3
Verdicts = Sequence[Click | Reason | None]
"""None is an offset without a record, such as that of a transaction marker."""


def summed(verdicts: Verdicts) -> Counts:
    counts = Counts()
    for verdict in verdicts:
        if verdict is not None:
            counts.add(verdict)
    return counts


class ModelRedis:
    """The read model after complete micro-batches, and the chunks of one that is being written."""

    def __init__(self, log: Mapping[int, Verdicts]) -> None:
        self.log = log
        self.states: list[dict[int, int]] = []
        """End offsets of each complete micro-batch."""
        self.begun: dict[int, int] | None = None
        self.chunks_done: set[int] = set()

    @property
    def offsets(self) -> dict[int, int]:
        """The end of each partition that is counted."""
        return self.states[-1] if self.states else {}

    def marker(self) -> MarkerView | None:
        if not self.states and self.begun is None:
            return None
        ends = self.offsets if self.begun is None else self.begun
        ranges = {TOPIC: {str(number): [self.offsets.get(number, 0), end] for number, end in ends.items()}}
        digest = json.dumps([ranges if self.begun else None, ends])
        fields = {"ranges": json.dumps(ranges), "digest": digest}
        batch = len(self.states) - (self.begun is None)
        since = dict.fromkeys(ends, 0)
        return MarkerView("q", batch, self.begun is None, {TOPIC: ends}, {TOPIC: since}, "", 0, 0, None, (), fields)

    def counted(self, offsets: dict[int, int]) -> Counts:
        return summed([verdict for number, end in offsets.items() for verdict in self.log[number][:end]])

    def clicks_of(self, uid: str) -> int | None:
        is_done = self.begun is not None and len(uid) % CHUNKS in self.chunks_done
        return self.counted(self.begun if is_done and self.begun else self.offsets).by_user.get(uid)

    def lookup(self, uids: list[str]) -> Lookup:
        return Lookup(Position.of(self.marker(), TOPIC), {uid: self.clicks_of(uid) for uid in uids})

    def snapshot(self) -> Snapshot:
        return snapshot_of(self.counted(self.offsets), self.marker())


def snapshot_of(counts: Counts, marker: MarkerView | None = None) -> Snapshot:
    ranking = sorted(counts.by_user.items(), key=lambda entry: (-entry[1], entry[0]))[:TOP]
    return Snapshot(
        hash_key="h",
        events=counts.events,
        clicks=counts.clicks,
        bad=counts.bad,
        users=len(counts.by_user),
        top=ranking,
        by_os=counts.by_os,
        bad_by_reason=counts.by_reason,
        marker=marker,
        history=[],
    )


class World:
    """A log, a Redis and a `Now` that follows them as `Live` does, one step at a time in any order."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.log: dict[int, list[Click | Reason | None]] = {0: []}
        self.redis = ModelRedis(self.log)
        self.now = Now(self.redis.snapshot(), TOPIC, {0: 0}, top=TOP)
        self.fetched: dict[int, tuple[int, Verdicts, Lookup]] = {}
        self.replacing: Iterator[None] | None = None

    def write(self) -> None:
        for _ in range(self.random.randint(1, 6)):
            uid = "u" * self.random.randint(1, 7)
            click = Click(uid, self.random.randint(0, 3), self.random.choice("ab"))
            self.log[self.random.choice(list(self.log))].append(
                self.random.choice([click, click, Reason.NOT_JSON, None])
            )

    def widen(self) -> None:
        """Add a partition, or notice one."""
        unnoticed = {number: 0 for number in self.log if number not in self.now.pending.ends}
        if unnoticed:
            self.now.add_partitions(unnoticed)
        elif len(self.log) < PARTITIONS_MAX:
            self.log[len(self.log)] = []

    def fetch(self) -> None:
        """Read records and look their users up; they are added by a later step."""
        number = self.random.choice(list(self.now.pending.ends))
        begin = self.now.pending.ends[number]
        verdicts = self.log[number][begin : begin + self.random.randint(1, 5)]
        unknown = self.now.unknown_users([summed(verdicts)])
        self.fetched[number] = begin, verdicts, self.redis.lookup(sorted(unknown))

    def take(self) -> None:
        for number, (begin, verdicts, lookup) in self.fetched.items():
            counts = summed(verdicts)
            unknown = self.now.unknown_users([counts])
            if verdicts and (not unknown or self.now.is_usable(lookup, unknown, {number: begin})):
                self.now.add(number, begin, begin + len(verdicts), counts, lookup)
        self.fetched = {}

    def count(self) -> None:
        """Begin, continue or complete a micro-batch."""
        redis = self.redis
        if redis.begun is None:
            redis.begun = {
                number: self.random.randint(redis.offsets.get(number, 0), len(part))
                for number, part in self.log.items()
            }
            redis.chunks_done = set()
        elif len(redis.chunks_done) < CHUNKS:
            redis.chunks_done.add(self.random.randrange(CHUNKS))
        else:
            redis.states.append(redis.begun)
            redis.begun = None

    def lose(self) -> None:
        del self.redis.states[self.random.randint(0, len(self.redis.states)) :]
        self.redis.begun = None

    def shrink(self) -> None:
        self.now.pending.shrink()

    def replace(self) -> None:
        """Take one step towards another base."""
        self.replacing = self.replacing or self._replace()
        if next(self.replacing, "over") == "over":
            self.replacing = None

    def _replace(self) -> Iterator[None]:
        base = self.redis.snapshot()
        position = Position.of(base.marker, TOPIC)
        begins = {**dict.fromkeys(self.log, 0), **self.now.starts, **self.redis.offsets}
        is_other_query = self.now.position.query not in (None, position.query)
        if self.redis.begun is not None or is_other_query:
            return
        missing = self.now.pending.missing(begins)
        yield
        pieces = {number: summed(self.log[number][begin:end]) for number, (begin, end) in missing.items()}
        while self.now.advance(begins):
            yield
        known_stay = self.now.differs_only_by(pieces, base, TOPIC, begins)
        users = [] if known_stay else self.now.users
        users += [uid for counts in pieces.values() for uid in counts.by_user]
        yield
        lookup = self.redis.lookup(users)
        if lookup.at.identity != position.identity:
            return
        yield
        self.now.replace_base(base, TOPIC, begins, missing, pieces, lookup.clicks, known_stay=known_stay)

    def check(self) -> None:
        expected = self.redis.counted(self.now.pending.ends)
        shown = self.now.snapshot()
        assert (shown.events, shown.clicks, shown.bad) == (expected.events, expected.clicks, expected.bad)
        assert (dict(shown.by_os), dict(shown.bad_by_reason)) == (expected.by_os, expected.by_reason)
        assert shown.users == len(expected.by_user)
        assert shown.top == snapshot_of(expected).top
        assert all(self.now.clicks_of(uid) is not None for uid in self.now.users)
        for uid in ("u" * length for length in range(1, 8)):
            lookup = self.redis.lookup([uid])
            if self.now.clicks_of(uid) is not None:
                assert self.now.clicks_of(uid) == expected.by_user[uid]
            elif self.now.is_usable(lookup, {uid}, {}):
                assert lookup.clicks[uid] == expected.by_user.get(uid)


STEPS = ("write", "fetch", "take", "count", "replace", "shrink", "widen", "lose")
WEIGHTS = (6, 9, 9, 9, 9, 1, 1, 1)


@given(st.integers(0, 2**32))
@settings(max_examples=40)
@example(30)
@example(39)
@example(1579)
def test_sums_in_any_order(seed: int) -> None:
    """Seeds: in 30, users are forgotten when the base changes; in 39, ranges before another base are added while it is
    looked up; in 1579, missing offsets change."""
    random = Random(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nows, "RANGE_EVENTS", 4)
        patch.setattr(nows, "RANGES_MAX", 5)
        patch.setattr(nows, "KNOWN_USERS_MAX", random.choice((0, 2, 100)))
        world = World(random)
        ends = dict(world.now.pending.ends)
        for step in random.choices(STEPS, WEIGHTS, k=250):
            getattr(world, step)()
            world.check()
            assert all(world.now.pending.ends[number] >= end for number, end in ends.items())
            ends = dict(world.now.pending.ends)


@given(st.builds(Random, st.integers(0, 2**32)))
@settings(max_examples=40)
def test_quiet_log_is_followed_completely(random: Random) -> None:
    """Once nothing changes any more, everything is read, and no record before the base is kept."""
    world = World(random)
    for _ in range(60):
        getattr(world, random.choice(STEPS[:7]))()
    world.widen()
    while not world.redis.states or world.redis.begun is not None:
        world.count()
    world.fetched, world.replacing = {}, None
    for _ in range(6 * sum(map(len, world.log.values())) + 16):
        for step in ("fetch", "take", "replace"):
            getattr(world, step)()
    world.check()
    assert world.now.pending.ends == {number: len(verdicts) for number, verdicts in world.log.items()}
    pending = world.now.pending
    begins = {number: ranges[0].begin if ranges else pending.ends[number] for number, ranges in pending._ranges.items()}
    assert begins == {**dict.fromkeys(world.log, 0), **world.redis.offsets}
    everything, counted = world.redis.counted(world.now.pending.ends), world.redis.counted(world.redis.offsets)
    assert world.now.pending.events == everything.events - counted.events


USERS: Verdicts = [Click("u", 1, "a"), Click("v", 0, "a"), Click("w", 5, "b"), Reason.NOT_JSON]


def now_with(log: Verdicts) -> tuple[Now, ModelRedis]:
    """Return a state with these records pending, and the Redis that has counted none of them."""
    redis = ModelRedis({0: log})
    redis.states = [{0: 0}]
    now = Now(redis.snapshot(), TOPIC, {0: 0}, top=TOP)
    now.add(0, 0, len(log), summed(log), redis.lookup(["u", "v", "w", "x"]))
    return now, redis


def test_known_users_are_not_asked_again() -> None:
    """A micro-batch of exactly the records that were read changes nothing; the next needs no lookup."""
    now, redis = now_with(USERS)
    shown = now.snapshot()
    redis.states.append({0: 4})
    assert now.advance({0: 4})
    assert now.differs_only_by({}, redis.snapshot(), TOPIC, {0: 4})
    assert now.replace_base(redis.snapshot(), TOPIC, {0: 4}, {}, {}, {}, known_stay=True)
    assert (now.pending.events, replace(now.snapshot(), marker=None)) == (0, replace(shown, marker=None))
    again = summed([Click("v", 2, "a")])
    assert not now.unknown_users([again])
    now.add(0, 4, 5, again, None)
    assert (now.clicks_of("v"), now.snapshot().users) == (2, 3)


def test_ranges_are_added_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that is shown changes, and a lookup from before the first stays usable."""
    monkeypatch.setattr(nows, "RANGE_EVENTS", 1)
    now, redis = now_with(USERS[:1])
    redis.log = {0: USERS}
    before = redis.lookup(["x"])
    for number, verdict in enumerate(USERS[1:], 1):
        now.add(0, number, number + 1, summed([verdict]), redis.lookup(["u", "v", "w"]))
    shown = now.snapshot()
    for left in (3, 2, 1):
        assert now.advance({0: 3})
        assert (now.pending.events, now.snapshot()) == (left, shown)
        assert [now.clicks_of(uid) for uid in "uvw"] == [1, 0, 5]
    assert not now.advance({0: 3})
    redis.states.append({0: 3})
    assert now.differs_only_by({}, redis.snapshot(), TOPIC, {0: 3})
    assert now.replace_base(redis.snapshot(), TOPIC, {0: 3}, {}, {}, {}, known_stay=True)
    assert now.is_usable(before, {"x"}, {0: 4})
    assert replace(now.snapshot(), marker=None) == replace(shown, marker=None)


def test_users_of_a_divided_range_are_known() -> None:
    now, redis = now_with(USERS)
    redis.states.append({0: 2})
    assert now.pending.missing({0: 2}) == {0: (2, 4)}
    pieces = {0: summed(USERS[2:])}
    now.advance({0: 2})
    assert now.differs_only_by(pieces, redis.snapshot(), TOPIC, {0: 2})
    looked_up = redis.lookup(["w"]).clicks
    assert now.replace_base(redis.snapshot(), TOPIC, {0: 2}, {0: (2, 4)}, pieces, looked_up, known_stay=True)
    assert [now.clicks_of(uid) for uid in "uvw"] == [1, 0, 5]
    assert (now.pending.events, now.snapshot().users) == (2, 3)


def test_few_known_users_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nows, "KNOWN_USERS_MAX", 2)
    now, redis = now_with(USERS)
    redis.states.append({0: 4})
    now.advance({0: 4})
    assert now.replace_base(redis.snapshot(), TOPIC, {0: 4}, {}, {}, {}, known_stay=True)
    assert now.unknown_users([summed(USERS)]) == {"u", "v", "w"}


@pytest.mark.parametrize("changed", ["events", "clicks", "bad"])
def test_other_counts_are_looked_up(changed: str) -> None:
    """Redis or the pipeline has lost a record."""
    now, redis = now_with(USERS)
    redis.states.append({0: 4})
    base = redis.snapshot()
    now.advance({0: 4})
    assert now.differs_only_by({}, base, TOPIC, {0: 4})
    assert not now.differs_only_by({}, replace(base, **{changed: getattr(base, changed) - 1}), TOPIC, {0: 4})
    assert not now.differs_only_by({}, replace(base, by_os={"b": 1}), TOPIC, {0: 4})
    assert not now.differs_only_by({}, replace(base, bad_by_reason={}), TOPIC, {0: 4})


@pytest.mark.parametrize("is_rebuilt", [False, True])
def test_users_of_skipped_records_are_looked_up(*, is_rebuilt: bool) -> None:
    """Also a user whose first record arrived while those of the others were."""
    redis = ModelRedis({0: [Click("u", 1, "a")], 1: [Click("u", 2, "a")]})
    redis.states.append({0: 0, 1: 0})
    now = Now(redis.snapshot(), TOPIC, redis.offsets, top=TOP)
    lookup = redis.lookup(["u"])
    redis.states.append({0: 1, 1: 0})
    base = redis.snapshot()
    assert base.marker is not None
    if is_rebuilt:
        now.add(0, 0, 1, summed(redis.log[0]), lookup)
        base = replace(base, marker=replace(base.marker, fields={**base.marker.fields, "rebuilt": "1"}))
    now.add(1, 0, 1, summed(redis.log[1]), lookup)
    assert not now.replace_base(base, TOPIC, {0: 1, 1: 0}, {}, {}, {}, known_stay=False)
    counted = redis.lookup(["u"]).clicks
    assert now.replace_base(base, TOPIC, {0: 1, 1: 0}, {}, {}, counted, known_stay=False)
    assert (now.clicks_of("u"), now.snapshot().clicks, now.snapshot().users) == (3, 3, 1)


def test_users_of_unread_partition_are_looked_up() -> None:
    """The base is the first to show it."""
    redis = ModelRedis({0: [Click("u", 1, "a")], 1: [Click("u", 2, "a")]})
    redis.states.append({0: 0})
    now = Now(redis.snapshot(), TOPIC, redis.offsets, top=TOP)
    now.add(0, 0, 1, summed(redis.log[0]), redis.lookup(["u"]))
    redis.states.append({0: 0, 1: 1})
    assert not now.replace_base(redis.snapshot(), TOPIC, redis.offsets, {}, {}, {}, known_stay=False)
    counted = redis.lookup(["u"]).clicks
    assert now.replace_base(redis.snapshot(), TOPIC, redis.offsets, {}, {}, counted, known_stay=False)
    assert now.clicks_of("u") == 3


def test_lookup_without_a_lost_partition_is_refused() -> None:
    """Redis has lost the micro-batch that was the first to count a partition."""
    redis = ModelRedis({0: [Click("a", 1, "x")] * 2, 1: [Click("u", 5, "x")]})
    redis.states = [{0: 1}, {0: 1, 1: 1}]
    now = Now(redis.snapshot(), TOPIC, {0: 1, 1: 1}, top=TOP)
    redis.states.pop()
    lookup = redis.lookup(["u"])
    assert lookup.clicks["u"] is None
    assert not now.is_usable(lookup, {"u"}, {0: 1})
    assert now.starts == {0: 0, 1: 0}


def test_first_micro_batch_is_no_rebuild() -> None:
    """No user is looked up for it, however many are new."""
    redis = ModelRedis({0: USERS, 1: [Click("x", 1, "a")]})
    now = Now(redis.snapshot(), TOPIC, {0: 0, 1: 0}, top=TOP)
    now.add(0, 0, 4, summed(USERS), redis.lookup(["u", "v", "w"]))
    redis.states.append({0: 4, 1: 0})
    assert now.advance({0: 4, 1: 0})
    assert now.differs_only_by({}, redis.snapshot(), TOPIC, {0: 4, 1: 0})
    now.add(1, 0, 1, summed(redis.log[1]), redis.lookup(["x"]))
    assert now.replace_base(redis.snapshot(), TOPIC, {0: 4, 1: 0}, {}, {}, {}, known_stay=True)
    assert [now.clicks_of(uid) for uid in "uvwx"] == [1, 0, 5, 1]
    assert not now.is_advanced


def test_offsets_without_records_are_skipped() -> None:
    """Otherwise the base waited for a reader that waits for the base to know a user."""
    redis = ModelRedis({0: [Click("u", 1, "a"), None, Click("x", 1, "a")], 1: [Click("v", 2, "a")]})
    redis.states.append({0: 1, 1: 0})
    now = Now(redis.snapshot(), TOPIC, {0: 1, 1: 0}, top=TOP)
    now.add(1, 0, 1, summed(redis.log[1]), redis.lookup(["v"]))
    redis.states.append({0: 2, 1: 0})
    assert not now.is_usable(redis.lookup(["x"]), {"x"}, {0: 1})
    assert now.differs_only_by({}, redis.snapshot(), TOPIC, {0: 2, 1: 0})
    assert now.replace_base(redis.snapshot(), TOPIC, {0: 2, 1: 0}, {}, {}, {}, known_stay=True)
    assert (now.pending.ends, now.clicks_of("v")) == ({0: 2, 1: 1}, 2)


def test_top_users_follow_a_rebuild() -> None:
    """A rebuild may lower a user's clicks, and raise those of another who is pending."""
    now, redis = now_with([Click("u", 1, "a"), Click("v", 900, "a"), Click("w", 5, "b"), Click("x", 2, "b")])
    assert now.snapshot().top == [("v", 900), ("w", 5), ("x", 2)]
    base = redis.snapshot()
    assert base.marker is not None
    marker = replace(base.marker, fields={**base.marker.fields, "rebuilt": "1"})
    rebuilt = replace(base, marker=marker, top=[("u", 70), ("y", 60), ("x", 50)])
    pieces = {0: summed([Click("w", 5, "b"), Click("x", 2, "b")])}
    counted = {"u": 70, "v": None, "w": None, "x": 50}
    assert now.advance({0: 2})
    assert now.replace_base(rebuilt, TOPIC, {0: 2}, {0: (2, 4)}, pieces, counted, known_stay=False)
    assert now.snapshot().top == [("u", 70), ("y", 60), ("x", 52)]


def test_rebuilt_counts_are_looked_up() -> None:
    """A rebuild may correct the sums of single users."""
    now, redis = now_with(USERS)
    redis.states.append({0: 4})
    marker = redis.marker()
    assert marker is not None
    rebuilt = replace(marker, fields={**marker.fields, "rebuilt": "1"})
    now.advance({0: 4})
    assert not now.differs_only_by({}, replace(redis.snapshot(), marker=rebuilt), TOPIC, {0: 4})


def test_lookup_before_a_rebuild_is_refused() -> None:
    """It has the wrong sums that the rebuild has corrected."""
    now, redis = now_with(USERS)
    before = redis.lookup(["x"])
    marker = redis.marker()
    assert marker is not None
    rebuilt = replace(redis.snapshot(), marker=replace(marker, fields={**marker.fields, "rebuilt": "1"}))
    counted = redis.lookup(["u", "v", "w"]).clicks
    assert now.is_usable(before, {"x"}, {0: 4})
    assert now.replace_base(rebuilt, TOPIC, {0: 0}, {}, {}, counted, known_stay=False)
    assert not now.is_usable(before, {"x"}, {0: 4})


def test_position_within_a_micro_batch() -> None:
    """Sums may have the records of the micro-batch that is being written, or not."""
    redis = ModelRedis({0: [Reason.NOT_JSON] * 3, 1: []})
    redis.states.append({0: 1, 1: 0})
    redis.begun = {0: 3, 1: 0}
    at = Position.of(redis.marker(), TOPIC)
    assert (at.low, at.high) == ({0: 1, 1: 0}, {0: 3, 1: 0})


def test_lookup_beyond_read_records_is_refused() -> None:
    """The user may be in a record that has been counted, and has not been read."""
    redis = ModelRedis({0: [Click("u", 1, "a")] * 2, 1: []})
    now = Now(redis.snapshot(), TOPIC, {0: 0, 1: 0}, top=TOP)
    redis.states.append({0: 2, 1: 0})
    lookup = redis.lookup(["u"])
    assert not now.is_usable(lookup, {"u"}, {0: 1})
    assert now.is_usable(lookup, {"u"}, {0: 2})


@given(st.lists(st.tuples(st.sampled_from(["append", "drop", "shrink"]), st.integers(0, 9)), max_size=60))
def test_memory_estimate_follows_the_ranges(steps: list[tuple[str, int]]) -> None:
    pending = Pending({0: 0})
    for step, number in steps:
        if step == "append":
            verdicts: Verdicts = [Click(str(uid), uid, "x") for uid in range(number)]
            pending.append(0, pending.ends[0] + number, summed(verdicts))
        elif step == "drop":
            ranges = pending._ranges[0]
            begin = ranges[number].begin if number < len(ranges) else pending.ends[0]
            while pending.pop({0: begin}):
                pass
        else:
            pending.shrink()
    kept = [part.counts for part in pending._ranges[0]]
    names = {name for counts in kept for name in (*counts.by_user, *(f"os {name}" for name in counts.by_os))}
    kept_bytes = sum(counts.size_bytes for counts in kept)
    assert pending.size_bytes == kept_bytes + nows.NAME_BYTES * len(names)
    assert pending.events == sum(counts.events for counts in kept)


def test_estimate_covers_the_real_memory() -> None:
    pending = Pending({0: 0})
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for number in range(40):
            verdicts: Verdicts = [Click(f"{number * 1_500 + user:032x}", 5_000, "iOS") for user in range(3_000)]
            pending.append(0, pending.ends[0] + 3_000, summed(verdicts))
            del verdicts
        used = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert used < pending.size_bytes < 4 * used


def test_many_records_are_summed_in_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first range begins within a batch, and compaction has removed offsets of another."""
    monkeypatch.setattr(nows, "RANGE_EVENTS", 3)
    value = b'{"uid":"u","click_count":2}'
    first = encode_batch([Record(offset, 0, None, value) for offset in range(5)])
    rest = encode_batch([Record(offset, 0, None, value) for offset in range(9)])
    second = encode_retained(
        read_header(rest)._replace(base_offset=5), [Record(5 + offset, 0, None, value) for offset in (0, 1, 6, 8)]
    )
    fetched = Fetched(memoryview(bytes(first + second)), 14, 14, 0, ())
    ranges = [(end, counts.events, counts.clicks) for end, counts in sums_of(fetched, 2, Rules())]
    assert ranges == [(5, 3, 6), (13, 3, 6), (14, 1, 2)]
    assert [end for end, _ in sums_of(Fetched(memoryview(b""), 7, 7, 0, ()), 7, Rules())] == [7]
