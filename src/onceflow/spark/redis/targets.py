"""Targets of the Redis sink's rows: what a row of each changes, and in which keys.

A *bucket target* has more keys than its own. Its key K is the index, a sorted set whose members name further keys: the
data of member M is the key `K:M`. All names that begin with `K:` are the sink's.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from onceflow.spark.errors import WrongOption

EXACT_MAX = 1_000_000


@dataclass(frozen=True, slots=True)
class Increment:
    """Rows of `target` add their amount to a field of the hash `key`; the sorted set `ranking_key` repeats its values.

    A score above 2^53 is the nearest double.
    """

    target: str
    key: str
    ranking_key: str | None = None


@dataclass(frozen=True, slots=True)
class Append:
    """Rows of `target` are entries of the list `key`: the newest `length_max` by amount, newest first."""

    target: str
    key: str
    length_max: int


@dataclass(frozen=True, slots=True)
class SetIfNewer:
    """Rows of `target` set a field of the hash `key` to their value, if their amount is greater than all earlier ones.

    The amount is the value's version, such as a time; the hash `versions_key` has each field's greatest version. Of two
    values of one version the one whose bytes sort last wins, regardless of their order of arrival.
    """

    target: str
    key: str
    versions_key: str


@dataclass(frozen=True, slots=True)
class StreamAppend:
    """Rows of `target` are entries of the stream `key`: the newest `length_max`, in the order of their amounts.

    An entry's id is the number of its micro-batch and its position there from 1, such as `17-1`; it has one field,
    `value`. No other program may add to the stream. A repair joins the batches that Redis lost into one or two, so
    their entries may get other ids.
    """

    target: str
    key: str
    length_max: int


@dataclass(frozen=True, slots=True)
class BucketIncrement:
    """Rows of `target` add their amount to a field of the hash `key:START`, the bucket of width `width_ms` at START.

    A row's field is `START:NAME`, START in ms since 1970, a multiple of the width. The index `key` has each START with
    itself as score. A bucket is kept while its start is not before the newest time ever counted minus `retention_ms`;
    without retention, always.

    A row of a bucket that retention has removed is late. Its amount is added to the field `late` of the hash
    `late_key`, the key of an Increment, if given; with `late_name`, only rows of that name.
    """

    target: str
    key: str
    width_ms: int
    retention_ms: int | None = None
    late_key: str | None = None
    late_name: str | None = None

    def __post_init__(self) -> None:
        _validate_width(self.target, self.width_ms, self.retention_ms)


@dataclass(frozen=True, slots=True)
class BucketRanking:
    """Rows as BucketIncrement's, but the bucket `key:START` is a sorted set, in which NAME has the sum as its score.

    A score has at most 2^53, above which doubles are not exact; a greater one is refused.
    """

    target: str
    key: str
    width_ms: int
    retention_ms: int | None = None

    def __post_init__(self) -> None:
        _validate_width(self.target, self.width_ms, self.retention_ms)


@dataclass(frozen=True, slots=True)
class BucketDistinct:
    """Rows of `target` add their value to the members of `key:START:GROUP`, where `START:GROUP` is the row's field.

    Up to `exact_max` members it is a set. With more it is a HyperLogLog of all its members, an estimate: `TYPE` is then
    `string`, and `PFCOUNT` has their number. GROUP may be empty. The index `key` has each `START:GROUP`, its score is
    START. Amounts are ignored. Retention is BucketIncrement's.
    """

    target: str
    key: str
    width_ms: int
    retention_ms: int | None = None
    exact_max: int = 100_000

    def __post_init__(self) -> None:
        _validate_width(self.target, self.width_ms, self.retention_ms)
        if not 1 <= self.exact_max <= EXACT_MAX:
            raise WrongOption(f"exact_max {self.exact_max} of target {self.target!r}: must be 1 to {EXACT_MAX}")


@dataclass(frozen=True, slots=True)
class IntervalBuckets:
    """Counts of an Intervals target's intervals, by the bucket in which they start: the hash `key:START`.

    Its fields are `intervals`, their number, and the sums `length_ms` and `events`. A bucket without intervals is
    removed.
    """

    key: str
    width_ms: int
    retention_ms: int | None = None

    def __post_init__(self) -> None:
        _validate_width(self.key, self.width_ms, self.retention_ms)


@dataclass(frozen=True, slots=True)
class Intervals:
    """Rows of `target` are intervals of a user, their field; intervals at most `gap_ms` apart are merged into one.

    A row's value is `STARTED,ENDED,EVENTS,CLICKS`, four whole numbers; both times in ms since 1970. The sorted set
    `key:USER` has such texts, their score is STARTED. The index `key` has each user with the end of the last interval.

    A user is removed when the last interval ended before the newest time ever counted minus `retention_ms`. Earlier
    intervals of other users are removed when the user gets a new one; until then a reader must ignore them. A row that
    ended before that time is ignored.
    """

    target: str
    key: str
    gap_ms: int
    retention_ms: int | None = None
    buckets: tuple[IntervalBuckets, ...] = ()

    def __post_init__(self) -> None:
        if self.gap_ms < 0:
            raise WrongOption(f"gap_ms {self.gap_ms} of target {self.target!r}: must not be negative")
        _validate_retention(self.target, self.gap_ms, self.retention_ms, "gap_ms")


IDS_PARTS = 4
"""Buckets of one window of ids."""


@dataclass(frozen=True, slots=True)
class Ids:
    """Ids of the records that a sink counts, each of which counts once within `window_ms`.

    The hash `key:START` has the ids that were first read in a quarter of the window: id → `PARTITION:OFFSET` of the
    record that counts. The index `key` has each START. The sorted set `duplicates_key` has the other records of a batch
    as `PARTITION:OFFSET`, their score is the offset; it exists until the batch is complete.

    The time of a record is the newest timestamp of a record with an id in its partition, up to itself. So every record
    of a partition has the same decision in any batch. An id is removed when each partition that may have claimed it is
    a window further.
    """

    key: str
    duplicates_key: str
    window_ms: int

    def __post_init__(self) -> None:
        if self.window_ms < IDS_PARTS:
            raise WrongOption(f"window_ms {self.window_ms} of the ids {self.key!r}: must be at least {IDS_PARTS}")

    @property
    def width_ms(self) -> int:
        """Width of a bucket; all of a window together are not shorter than it."""
        return -(-self.window_ms // IDS_PARTS)

    @property
    def index(self) -> "Index":
        return Index("ids", self.key, None, self.width_ms, limit=IDS_PARTS, late_key=self.duplicates_key)


BucketTarget = BucketIncrement | BucketRanking | BucketDistinct | Intervals
Target = Increment | Append | SetIfNewer | StreamAppend | BucketTarget


class Index(NamedTuple):
    """The index of a bucket target, or of an Intervals' buckets, as the scripts need it."""

    kind: str
    key: str
    retention_ms: int | None
    width_ms: int = 1
    limit: int = 0
    """Most members of an exact set; the gap of intervals; the buckets of a window of ids."""
    late_key: str | None = None
    late_name: str | None = None
    counters: int = 0
    """Number of the following indexes that count this one's intervals."""
    target: str | None = None

    def may_name(self, key: bytes) -> bool:
        """Return whether the index may have a member whose data is `key`."""
        beside = self.key.encode() + b":"
        return key.startswith(beside) and is_member(self.kind, key.removeprefix(beside))


def is_member(kind: str, member: bytes) -> bool:
    """Return whether an index of this kind may have this member."""
    start, colon, _ = member.partition(b":")
    return kind == "intervals" or (start.isdigit() and bool(colon) == (kind == "distinct"))


def indexes_of(targets: Iterable[BucketTarget]) -> Iterator[Index]:
    """Yield the index of each target, that of an Intervals followed by its buckets'."""
    for target in targets:
        match target:
            case BucketIncrement(name, key, width, retention, late_key, late_name):
                yield Index("increment", key, retention, width, late_key=late_key, late_name=late_name, target=name)
            case BucketRanking(name, key, width, retention):
                yield Index("ranking", key, retention, width, target=name)
            case BucketDistinct(name, key, width, retention, exact_max):
                yield Index("distinct", key, retention, width, limit=exact_max, target=name)
            case Intervals(name, key, gap, retention, buckets):
                yield Index("intervals", key, retention, limit=gap, counters=len(buckets), target=name)
                for bucket in buckets:
                    yield Index("interval-buckets", bucket.key, bucket.retention_ms, bucket.width_ms)


def _validate_width(name: str, width_ms: int, retention_ms: int | None) -> None:
    if width_ms < 1:
        raise WrongOption(f"width_ms {width_ms} of {name!r}: must be at least 1")
    _validate_retention(name, width_ms, retention_ms, "width_ms")


def _validate_retention(name: str, least_ms: int, retention_ms: int | None, least: str) -> None:
    # The newest bucket itself would be removed.
    if retention_ms is not None and retention_ms < least_ms:
        raise WrongOption(f"retention_ms {retention_ms} of {name!r}: must be at least {least} {least_ms}, or None")
