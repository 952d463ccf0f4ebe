"""The Redis sink's targets of the measures of `onceflow.clicks.measures`, each with its key and its retention."""

from collections.abc import Iterator

from onceflow.clicks.measures import BAD, COUNT, EVENTS, SESSIONS, TOTALS, MeasureSettings
from onceflow.clicks.results import Keys
from onceflow.clicks.windows import DAY, HOUR, MINUTE, WIDTHS, Width
from onceflow.spark.redis.targets import BucketTarget
from onceflow.spark.redis_sink import (
    BucketDistinct,
    BucketIncrement,
    BucketRanking,
    Ids,
    Increment,
    IntervalBuckets,
    Intervals,
)


def increments(settings: MeasureSettings, keys: Keys) -> list[Increment]:
    """Return the targets that are added up forever."""
    return [
        Increment(COUNT, keys.count, keys.top),
        Increment(TOTALS, keys.totals),
        Increment(BAD, keys.bad),
        *(Increment(name, keys.beside(name)) for name in settings.dimensions),
    ]


def buckets(settings: MeasureSettings, keys: Keys) -> list[BucketTarget]:
    """Return the targets over time."""
    targets: list[BucketTarget] = []
    if settings.over_time:
        targets += [target for width in WIDTHS for target in _of_width(width, settings, keys)]
    if settings.sessions:
        per_bucket = tuple(
            IntervalBuckets(keys.beside(f"{SESSIONS}-{width.name}"), width.ms, settings.retention_of(width.name))
            for width in (HOUR, DAY)
        )
        retention = settings.retention_of(SESSIONS)
        targets.append(Intervals(SESSIONS, keys.beside(SESSIONS), settings.session_gap_ms, retention, per_bucket))
    return targets


def redis_ids(keys: Keys, window_ms: int) -> Ids:
    """Return where the ids of events are."""
    return Ids(keys.beside("ids"), keys.beside("duplicates"), window_ms)


def _of_width(width: Width, settings: MeasureSettings, keys: Keys) -> Iterator[BucketTarget]:
    def place(target: str) -> tuple[str, str, int, int | None]:
        return target, keys.beside(target), width.ms, settings.retention_of(target)

    # An event is late if the smallest bucket that it belongs to is removed.
    late = (keys.totals, EVENTS) if width is MINUTE else (None, None)
    yield BucketIncrement(*place(width.name), *late)
    for dimension in settings.dimensions:
        yield BucketIncrement(*place(f"{width.name}:{dimension}"))
    yield BucketDistinct(*place(f"{width.name}-users"), settings.exact_users_max)
    if width in (HOUR, DAY):
        yield BucketRanking(*place(f"{width.name}-top"))
