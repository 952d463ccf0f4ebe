"""The map of offsets, and its records."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceflow.mirror.errors import MirrorStopped
from onceflow.mirror.groups import Runs
from onceflow.mirror.offset_map import RUNS_MAX, Ids, MapRecord, Run, extend, map_records, read_map

IDS = Ids("source-id", None)


def test_runs_join_where_both_sides_continue() -> None:
    runs: list[Run] = []
    for source, target, length in [(0, 10, 2), (2, 12, 1), (4, 13, 1), (5, 15, 1)]:
        extend(runs, source, target, length)
    assert runs == [Run(0, 10, 3), Run(4, 13, 1), Run(5, 15, 1)]


@pytest.mark.parametrize(
    ("offset", "expected"),
    [(0, 10), (5, 10), (6, 11), (7, 12), (8, 12), (9, 20), (10, 21), (99, 21)],
)
def test_offsets_in_runs_and_gaps(offset: int, expected: int) -> None:
    runs = Runs()
    runs.append([Run(5, 10, 2), Run(9, 20, 1)])
    assert runs.translate(offset) == expected


def test_dropped_runs_are_not_translated() -> None:
    runs = Runs()
    assert not runs.has(0)
    runs.append([Run(0, 0, 2), Run(5, 10, 2), Run(9, 20, 1)])
    assert runs.has(0)
    runs.drop_half()
    assert [runs.has(offset) for offset in (8, 9)] == [False, True]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=30), st.integers(0, 150))
def test_the_same_records_are_before_it(gaps: list[tuple[int, int]], offset: int) -> None:
    """Records before an offset of the source are those before the translated one."""
    runs = Runs()
    pairs = []
    source = target = 0
    for source_gap, target_gap in gaps:
        source, target = source + source_gap, target + target_gap
        runs.append([Run(source, target, 1)])
        pairs.append((source, target))
        source, target = source + 1, target + 1
    if pairs:
        translated = runs.translate(offset)
        assert [before < offset for before, _ in pairs] == [before < translated for _, before in pairs]


def test_a_record_is_read_back() -> None:
    record = MapRecord(("visits", 3), IDS, (Run(1, 2, 3), Run(9, 9, 1)))
    assert read_map(record.value(), "offset 0") == record


def test_many_runs_are_split() -> None:
    runs = [Run(2 * index, index, 1) for index in range(RUNS_MAX + 1)]
    parts = list(map_records(("visits", 0), IDS, runs))
    assert [len(part.runs) for part in parts] == [RUNS_MAX, 1]
    assert [run for part in parts for run in part.runs] == runs


@pytest.mark.parametrize("value", [None, b"", b"{}", b"[]", b'{"version":2}', b"\xff"])
def test_other_records_are_refused(value: bytes | None) -> None:
    with pytest.raises(MirrorStopped, match="offset 4 of x is not a record"):
        read_map(value, "offset 4 of x")
