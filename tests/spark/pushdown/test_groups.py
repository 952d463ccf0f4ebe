"""Grouping sets and sessions without Spark, compared with a count of one record after another."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from onceflow.spark.pushdown import groups
from onceflow.spark.pushdown.aggregate_plan import AnyKey, Key, Session, TimeBucket
from onceflow.spark.pushdown.groups import Groups
from onceflow.spark.pushdown.options import Pushdown
from tests.spark.pushdown.test_aggregate import SCHEMA, aggregated, pushdown, record, text_of

MEASURES = "count(*) AS events, count(n) AS numbers, sum(n) AS total, min(n) AS least, max(n) AS most"
KEYS = {
    "uid": "uid",
    "flag": "flag",
    "day": "day",
    "p": "p",
    "minute": "window(at, '1 minute') AS minute",
    "quarter": "window(at, '15 minutes') AS quarter",
    "seven": "window(at, '7 minutes') AS seven",
    "session": "session_window(at, '5 minutes') AS session",
    "pause": "session_window(at, '20 minutes') AS pause",
}
WINDOWS = {"minute", "quarter", "seven", "session", "pause"}

Row = dict[str, Any]
Found = dict[tuple[Any, ...], list[Any]]
ROWS = st.lists(
    st.fixed_dictionaries(
        {"at": st.integers(-3000, 3000)},
        optional={
            "uid": st.sampled_from(["a", "b", "é"]),
            "n": st.integers(-(2**59), 2**59),
            "flag": st.booleans(),
            "day": st.sampled_from(["2015-04-28", "2015-04-29"]),
            "p": st.sampled_from(["0.50", "7.25"]),
        },
    ),
    max_size=40,
)


def is_possible(keys: Sequence[str]) -> bool:
    return len(WINDOWS.intersection(keys)) <= 1


SETS = st.lists(
    st.lists(st.sampled_from(list(KEYS)), unique=True, max_size=3).filter(is_possible).map(sorted).map(tuple),
    unique=True,
    min_size=1,
    max_size=6,
)


def with_sets(sets: Sequence[Sequence[str]]) -> Pushdown:
    listed = ", ".join(f"({', '.join(KEYS[name] for name in keys)})" for keys in sets)
    return pushdown(MEASURES, f"GROUPING SETS ({listed})", timestampunit="seconds")


@contextmanager
def limits(rows_per_grouping: int, groups_max: int) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(groups, "ROWS_PER_GROUPING", rows_per_grouping)
        patch.setattr(groups, "GROUPS_MAX", groups_max)
        yield


@settings(max_examples=200, deadline=None)
@given(ROWS, SETS, st.integers(1, 20), st.integers(1, 30))
@example([{"at": 0}, {"at": 600}, {"at": 300}], [("session",), ("session", "uid")], 1, 30)
@example([{"at": 420}, {"at": 900}], [("seven",), ("quarter",)], 20, 30)
def test_each_set_equals_a_count_of_records(
    rows: list[Row], sets: list[tuple[str, ...]], size: int, groups_max: int
) -> None:
    wanted = with_sets(sets)
    values = [record(**{name: text_of(value) for name, value in row.items()}) for row in rows]
    with limits(size, groups_max):
        sums, rejected = aggregated(wanted, *(values[begin : begin + size] for begin in range(0, len(values), size)))
    assert not rejected
    plan = wanted.aggregation
    assert plan is not None
    for names, keys in zip(sets, plan.grouping_sets, strict=True):
        own = [row for row in sums if row["grouping_id"] == plan.grouping_id(keys)]
        assert all(row[key.name] is None for row in own for key in plan.keys if key not in keys)
        assert finished(own, names, keys) == counted(rows, keys)
    assert {row["grouping_id"] for row in sums} <= set(map(plan.grouping_id, plan.grouping_sets))


Parts = dict[tuple[Any, ...], list[tuple[Any, Row]]]
"""Key without session → the session's part, and the measures of one row."""


def finished(partial: list[Row], names: Sequence[str], keys: Sequence[AnyKey]) -> Found:
    """Add up partial groups, which may appear several times."""
    session = "".join(key.name for key in keys if isinstance(key, Session))
    by_key: Parts = defaultdict(list)
    for row in partial:
        part = plain(row[session]) if session else None
        by_key[tuple(plain(row[name]) for name in names if name != session)].append((part, row))
    return added_up(by_key)


def counted(rows: list[Row], keys: Sequence[AnyKey]) -> Found:
    """Count one record after another."""
    gap_us = sum(key.gap_us for key in keys if isinstance(key, Session))
    by_key: Parts = defaultdict(list)
    for row in rows:
        n, at = row.get("n"), row["at"] * 1_000_000
        one = {"events": 1, "numbers": int(n is not None), "total": n, "least": n, "most": n}
        key = tuple(value_of(row, key) for key in keys if not isinstance(key, Session))
        by_key[key].append(((at, at + gap_us) if gap_us else None, one))
    return added_up(by_key)


def added_up(by_key: Parts) -> Found:
    sums: Found = {}
    for key, parts in by_key.items():
        if parts[0][0] is None:
            sums[key] = totals([row for _, row in parts])
        else:
            sums |= {(*key, *interval): totals(members) for interval, members in merged(parts)}
    return sums


def totals(rows: list[Row]) -> list[Any]:
    def known(name: str) -> list[int]:
        return [row[name] for row in rows if row[name] is not None]

    added = [sum(row[name] for row in rows) for name in ("events", "numbers")]
    total = sum(known("total")) if known("total") else None
    return [*added, total, min(known("least"), default=None), max(known("most"), default=None)]


def merged(parts: list[tuple[Any, Row]]) -> list[tuple[tuple[int, int], list[Row]]]:
    """Merge intervals that overlap or touch."""
    sums: list[tuple[tuple[int, int], list[Row]]] = []
    for (start, end), row in sorted(parts, key=lambda part: part[0]):
        if sums and start <= sums[-1][0][1]:
            (first, last), members = sums[-1]
            sums[-1] = (first, max(last, end)), [*members, row]
        else:
            sums.append(((start, end), [row]))
    return sums


def value_of(row: Row, key: Key | TimeBucket) -> Any:
    if isinstance(key, TimeBucket):
        start = row["at"] * 1_000_000 // key.width_us * key.width_us
        return start, start + key.width_us
    value = row.get(key.name)
    return None if value is None else str(value)


def plain(value: Any) -> Any:
    """Return a window as microseconds since 1970, and other keys as text."""
    if isinstance(value, dict):
        return tuple(round(value[side].timestamp() * 1_000_000) for side in ("start", "end"))
    return None if value is None else str(value)


def test_coarse_sets_are_made_from_fine_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the finest sets read the records: minutes for hours and days, users for the total."""
    read: list[tuple[str, ...]] = []

    class Recorded(groups._Set):
        def add_rows(self, rows: Any) -> bool:
            read.append(tuple(key.name for key in self._keys))
            return super().add_rows(rows)

    monkeypatch.setattr(groups, "_Set", Recorded)
    sets = [("quarter",), ("flag", "uid"), ("minute", "uid"), ("seven",), ("uid",), ("session", "uid"), ()]
    aggregated(with_sets(sets), [record(uid='"a"', at="0", n="1", flag="true")] * 3)
    assert sorted(read) == [("flag", "uid"), ("minute", "uid"), ("session", "uid")]


def test_full_set_leaves_groups_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Minutes of users are emitted at each limit, flags and quarters once."""
    with limits(10, 20):
        values = [record(uid=f'"{number}"', flag="true", at=str(number), n="1") for number in range(400)]
        batches = [values[begin : begin + 10] for begin in range(0, 400, 10)]
        sums, _ = aggregated(with_sets([("minute", "uid"), ("flag",), ("quarter",)]), *batches)
    sizes = [sum(row["grouping_id"] == one for row in sums) for one in sorted({row["grouping_id"] for row in sums})]
    assert sizes == [400, 1, 1]


def test_touching_sessions_are_one_group() -> None:
    """The end of a session is its last event plus the gap; an event at that moment continues it, as in Spark."""
    sums, _ = aggregated(with_sets([("session",)]), [record(at=text_of(at)) for at in (300, 0, 601)])
    assert sorted(row["events"] for row in sums) == [1, 2]


def test_record_without_a_time_is_rejected() -> None:
    """It is in no set, as in SQL, where a window drops the row before the grouping."""
    sums, rejected = aggregated(with_sets([("minute",), ("uid",), ()]), [record(uid='"a"'), record(uid='"b"', at="0")])
    assert [row["reason"] for row in rejected] == ["no-time at"]
    assert [row["events"] for row in sums] == [1, 1, 1]


def test_pending_rows_have_no_unused_columns() -> None:
    plan = with_sets([("minute", "uid"), ("quarter",)]).aggregation
    assert plan is not None
    from onceflow.spark.pushdown.decode import Decoder
    from onceflow.spark.pushdown.decode_schema import parse_schema
    from tests.spark.decoded import source_batch

    decoded = Decoder(parse_schema(SCHEMA), (), "seconds").columns(source_batch([record(at="0")]))
    rows = Groups(plan)._rows(decoded)
    assert "key2" not in rows.column_names and len(plan.keys) == 3
