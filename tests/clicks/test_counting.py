"""Counting of a task's events, without Spark."""

import functools
import pickle
from collections import Counter
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pytest

from onceflow.clicks import counting
from onceflow.clicks.counting import count_events
from tests.clicks.counted import GOOD_AND_BAD


def arrow(values: Sequence[bytes | None], partition: int = 0, first_offset: int = 0) -> pa.RecordBatch:
    size = len(values)
    columns = {
        "value": pa.array(values, pa.binary()),
        "partition": pa.array([partition] * size, pa.int32()),
        "offset": pa.array(range(first_offset, first_offset + size), pa.int64()),
        "timestamp": pa.array([1_000_000 + first_offset + index for index in range(size)], pa.timestamp("us", "UTC")),
    }
    return pa.RecordBatch.from_pydict(columns)


def counted(batches: Sequence[pa.RecordBatch], dead_length: int = 100) -> list[tuple[str, bytes, int]]:
    rows = count_events(iter(batches), key_field="uid", value_field="click_count", dead_length=dead_length)
    return [tuple(row.values()) for batch in rows for row in batch.to_pylist()]


def summed(rows: list[tuple[str, bytes, int]]) -> Counter[tuple[str, bytes]]:
    sums: Counter[tuple[str, bytes]] = Counter()
    for target, field, amount in rows:
        sums[target, field] += amount
    return sums


def test_sums_totals_reasons_and_pointers() -> None:
    batches = [arrow(part, partition) for partition, part in GOOD_AND_BAD.items()]
    rows = counted(batches)
    assert {(target, field): amount for target, field, amount in rows if target != "dead"} == {
        ("count", b"ada"): 3,
        ("count", b"bob"): 8,
        ("count", b"eve"): 0,
        ("os", b"iOS"): 3,
        ("os", b"unknown"): 2,
        ("os", b"Android"): 6,
        ("totals", b"events"): 9,
        ("totals", b"clicks"): 11,
        ("totals", b"bad"): 4,
        ("bad", b"not-json"): 1,
        ("bad", b"uid-empty"): 1,
        ("bad", b"no-value"): 1,
        ("bad", b"not-utf8"): 1,
    }
    assert [(field, amount) for target, field, amount in rows if target == "dead"] == [
        (b"1:1:uid-empty", 1_000_001),
        (b"0:2:not-json", 1_000_002),
        (b"1:2:no-value", 1_000_002),
        (b"1:4:not-utf8", 1_000_004),
    ]


def test_no_events_give_no_rows() -> None:
    assert counted([]) == []
    assert counted([arrow([])]) == []


def test_only_newest_pointers_are_emitted() -> None:
    rows = counted([arrow([b"bad"] * 7, first_offset=7 * number) for number in range(10)], dead_length=5)
    assert [field for target, field, _ in rows if target == "dead"] == [
        b"0:%d:not-json" % offset for offset in range(65, 70)
    ]
    assert ("bad", b"not-json", 70) in rows


def test_many_users_are_emitted_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "USERS_MAX", 10)

    def batches() -> Iterator[pa.RecordBatch]:
        for number in range(6):
            yield arrow([b'{"uid":"u%d","click_count":1}' % (index % 25) for index in range(number, number + 12)])

    parts = list(count_events(batches(), key_field="uid", value_field="click_count", dead_length=5))
    assert len(parts) > 3
    sums = summed([tuple(row.values()) for part in parts for row in part.to_pylist()])
    assert sums["totals", b"events"] == 72
    assert sum(amount for (target, _), amount in sums.items() if target == "count") == 72


def test_large_counts_are_bad_events() -> None:
    """112 events of 2^53 once had a sum of 19 digits, which stopped the stream."""
    values = [b'{"uid":"u","click_count":9007199254740992}'] * 112 + [b'{"uid":"u","click_count":10000}'] * 112
    sums = summed(counted([arrow(values)]))
    assert (sums["totals", b"clicks"], sums["bad", b"count-too-large"]) == (112 * 10_000, 112)


def test_extreme_timestamp_of_a_bad_event() -> None:
    batch = arrow([b"not json"], first_offset=10**18)
    assert ("dead", b"0:1000000000000000000:not-json", 10**18 + 1_000_000) in counted([batch])


def test_the_task_travels_to_executors_by_name() -> None:
    task = functools.partial(count_events, key_field="uid", value_field=None, dead_length=5)
    assert len(pickle.dumps(task)) < 200
