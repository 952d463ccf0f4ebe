"""Micro-batches: their digest, and the offsets after them."""

from dataclasses import replace

from onceflow.spark.exactly_once.batch import Batch, offsets_after, since_after
from onceflow.spark.offsets import OffsetRange


def batch(number: int, *, begin: int = 100, end: int = 110, **changes: object) -> Batch:
    plain = Batch("query-1", number, (OffsetRange("clicks", 0, begin, end),), "clicks", 1, {"clicks": "id-1"})
    return replace(plain, **changes)  # type: ignore[arg-type]


def test_since_keeps_first_offsets() -> None:
    first = batch(0, begin=5, end=5)
    since = since_after({}, first)
    grown = replace(first, number=1, ranges=(OffsetRange("clicks", 0, 5, 9), OffsetRange("clicks", 1, 3, 3)))
    assert since_after(since, grown) == {"clicks": {"0": 5, "1": 3}}
    assert offsets_after({"clicks": {"0": 5}}, grown) == {"clicks": {"0": 9, "1": 3}}
    later = replace(first, number=1, ranges=(OffsetRange("clicks", 0, 7, 9),))
    assert since_after(since, later) == {"clicks": {"0": 5}}


def test_partition_outside_the_batch_keeps_its_offset() -> None:
    known = offsets_after({}, batch(0))
    other = batch(1, ranges=(OffsetRange("views", 0, 1, 2),))
    assert offsets_after(known, other) == {"clicks": {"0": 110}, "views": {"0": 2}}


def test_digest_does_not_depend_on_order() -> None:
    parts = (OffsetRange("clicks", 0, 1, 2), OffsetRange("clicks", 1, 3, 4))
    one = batch(7, ranges=parts)
    assert one.digest == batch(7, ranges=parts[::-1]).digest
    others = [
        batch(7, ranges=parts[:1]),
        replace(one, plan="x"),
        replace(one, plan_version=2),
        replace(one, topic_ids={"clicks": "id-2"}),
    ]
    assert len({one.digest, *(other.digest for other in others)}) == 5
