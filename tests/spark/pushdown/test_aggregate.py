"""`aggregate` without Spark: compared with sums of one record after another, exact at the edges of each type."""

import datetime
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onceflow.remedies import Remedy
from onceflow.spark.pushdown import groups
from onceflow.spark.pushdown.aggregate import SumOverflow
from onceflow.spark.pushdown.options import Pushdown, parse_pushdown
from tests import remedies
from tests.spark.decoded import source_batch

SCHEMA = "uid STRING, n BIGINT, p DECIMAL(12, 2), q DECIMAL(38, 0), at TIMESTAMP, day DATE, flag BOOLEAN"
LONG_MAX = 2**63 - 1
MINUTE_US = 60_000_000


def pushdown(measures: str, keys: str | None = None, schema: str = SCHEMA, **options: str) -> Pushdown:
    values = {"decode": schema, "aggregate": measures} | options | ({} if keys is None else {"groupby": keys})
    parsed = parse_pushdown(values)
    assert parsed is not None
    return parsed


def aggregated(wanted: Pushdown, *batches: Sequence[bytes | None]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """(rows with sums, rejected records); each batch is one partition."""
    sums, rejected = [], []
    for batch in wanted.apply(source_batch(values, partition=number) for number, values in enumerate(batches)):
        assert batch.schema.names == wanted.schema().names
        for row in batch.to_pylist():
            refused = row.pop("rejected")
            if refused is None:
                sums.append(row)
            else:
                assert set(row.values()) <= {None}
                rejected.append(refused)
    return sums, rejected


def record(**fields: str) -> bytes:
    return ("{" + ",".join(f'"{name}":{text}' for name, text in fields.items()) + "}").encode()


def test_each_measure_by_key() -> None:
    wanted = pushdown("sum(n) AS total, count(n), count(*), min(n) AS least, max(p), sum(p), max(day)", "uid")
    sums, rejected = aggregated(
        wanted,
        [record(uid='"a"', n="1", p="1.5", day='"2015-04-28"'), record(uid='"b"'), record(uid='"a"', n="-3")],
        [record(uid='"a"', day='"2015-04-27"', p='"0.01"'), record(n="7")],
    )
    assert not rejected
    nothing = {"total": None, "count(n)": 0, "least": None, "max(p)": None, "sum(p)": None, "max(day)": None}
    assert [
        {name: value for name, value in row.items() if name != "max(day)"} for row in sums if row["uid"] == "a"
    ] == [
        {
            "uid": "a",
            "total": -2,
            "count(n)": 2,
            "count(1)": 3,
            "least": -3,
            "max(p)": Decimal("1.50"),
            "sum(p)": Decimal("1.51"),
        }
    ]
    assert [str(row["max(day)"]) for row in sums] == ["2015-04-28", "None", "None"]
    assert sums[1] == {"uid": "b", **nothing, "count(1)": 1}
    assert sums[2] == {"uid": None, **nothing, "total": 7, "count(n)": 1, "count(1)": 1, "least": 7}


def test_windows_are_sparks_tumbling_ones() -> None:
    wanted = pushdown("count(*) AS events", "window(at, '1 minute') AS minute")
    sums, _ = aggregated(wanted, [record(at=text) for text in ("0", "59", "60", "-1", "-60", "-61")])
    starts = {str(row["minute"]["start"])[:19]: row["events"] for row in sums}
    assert starts == {
        "1970-01-01 00:00:00": 2,
        "1970-01-01 00:01:00": 1,
        "1969-12-31 23:59:00": 2,
        "1969-12-31 23:58:00": 1,
    }
    lengths = {row["minute"]["end"] - row["minute"]["start"] for row in sums}
    assert lengths == {datetime.timedelta(minutes=1)}


def test_rejected_records_are_passed_through() -> None:
    wanted = pushdown("sum(n) AS total", "uid, window(at, '1 hour')", "uid STRING NOT NULL, n INT, at TIMESTAMP")
    good = record(uid='"a"', n="1", at="0")
    values = [
        good,
        b"bad",
        record(uid='"a"', n='"x"', at="0"),
        None,
        record(uid='"a"', n="1"),
        record(n="1", at="0"),
        good,
    ]
    sums, rejected = aggregated(wanted, [good], values)
    assert [row["total"] for row in sums] == [3]
    assert [tuple(row[name] for name in ("topic", "partition", "offset", "reason", "value")) for row in rejected] == [
        ("clicks", 1, 1, "not-json", values[1]),
        ("clicks", 1, 2, "wrong-type n", values[2]),
        ("clicks", 1, 3, "no-value", None),
        ("clicks", 1, 4, "no-time at", values[4]),
        ("clicks", 1, 5, "missing uid", values[5]),
    ]
    assert [row["timestamp"].microsecond for row in rejected] == [1000, 2000, 3000, 4000, 5000]


def test_without_keys_all_records_are_one_group() -> None:
    wanted = pushdown("sum(n), count(*)")
    assert aggregated(wanted, [record(n="1"), record(n="2")], [record(n="4")]) == ([{"sum(n)": 7, "count(1)": 3}], [])
    assert aggregated(wanted) == ([], [])
    assert aggregated(wanted, [], [b"bad"])[0] == []


def test_kept_columns_can_be_keys() -> None:
    wanted = pushdown(
        "max(offset) AS last", "partition, window(timestamp, '1 second')", columns="partition, timestamp, offset"
    )
    sums, _ = aggregated(wanted, [b"{}"] * 1500, [b"{}"])
    assert sorted((row["partition"], row["last"]) for row in sums) == [(0, 999), (0, 1499), (1, 0)]


@pytest.mark.parametrize(
    ("measure", "values", "total"),
    [
        ("n", [LONG_MAX, -1, 1], LONG_MAX),
        ("n", [LONG_MAX, 1, -1], LONG_MAX),
        ("n", [-(2**63), LONG_MAX], -1),
        ("n", [LONG_MAX] * 3 + [-LONG_MAX] * 3, 0),
        ("q", [10**38 - 1, 1 - 10**38, 5], Decimal(5)),
        ("q", [10**38 - 1, 10**38 - 1, 1 - 10**38], Decimal(10**38 - 1)),
    ],
)
def test_sums_are_exact_up_to_the_limits(
    measure: str, values: list[int], total: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = pushdown(f"sum({measure}) AS total")
    for rows_per_grouping in (1, 1000):
        monkeypatch.setattr(groups, "ROWS_PER_GROUPING", rows_per_grouping)
        batches = [[record(**{measure: str(value)})] for value in values]
        assert aggregated(wanted, *batches) == ([{"total": total}], [])


@pytest.mark.parametrize(
    ("measure", "values", "message"),
    [
        (
            "n",
            [LONG_MAX, 1],
            r"sum\(n\) of \{'uid': 'a'\} in one read task is 9223372036854775808, which does not fit",
        ),
        ("n", [-(2**63), -1], r"is -9223372036854775809, which does not fit BIGINT"),
        ("n", [LONG_MAX] * 5, r"is 46116860184273879035, which"),
        ("q", [10**38 - 1, 1], r"is 1(0{38}), which does not fit DECIMAL\(38,0\)"),
    ],
)
def test_sum_overflow(measure: str, values: list[int], message: str) -> None:
    wanted = pushdown(f"sum({measure})", "uid")
    batches = [[record(uid='"a"', **{measure: str(value)}), record(uid='"b"', **{measure: "1"})] for value in values]
    with pytest.raises(SumOverflow, match=message):
        aggregated(wanted, *batches)


@pytest.mark.remedy(Remedy.MORE_DIGITS, Remedy.FIND_RECORD)
def test_sum_with_more_digits() -> None:
    """Or without the record, which was a mistake."""
    values = [[record(uid='"a"', n=str(LONG_MAX))], [record(uid='"a"', n="5")]]
    with pytest.raises(SumOverflow) as raised:
        aggregated(pushdown("sum(n) AS total", "uid"), *values)
    assert remedies.find(Remedy.MORE_DIGITS, raised.value) == {"column": "n"}
    wanted = pushdown("sum(n) AS total", "uid", schema=SCHEMA.replace("n BIGINT", "n DECIMAL(30, 0)"))
    assert aggregated(wanted, *values) == ([{"uid": "a", "total": Decimal(LONG_MAX + 5)}], [])
    remedies.find(Remedy.FIND_RECORD, raised.value)
    right = [batch for batch in values if str(LONG_MAX).encode() not in batch[0]]
    assert aggregated(pushdown("sum(n) AS total", "uid"), *right) == ([{"uid": "a", "total": 5}], [])


def test_many_groups_are_emitted_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "ROWS_PER_GROUPING", 5)
    monkeypatch.setattr(groups, "GROUPS_MAX", 20)
    wanted = pushdown("count(*) AS events, sum(n) AS total", "uid")
    sums, _ = aggregated(wanted, *([record(uid=f'"{user % 33}"', n=str(user))] for user in range(300)))
    assert len(sums) > 33
    assert sum(row["events"] for row in sums) == 300
    assert sum(row["total"] for row in sums) == sum(range(300))
    assert merged(sums, ["uid"]) == recount([{"uid": str(user % 33), "n": user} for user in range(300)], ["uid"])


Row = dict[str, Any]
ROWS = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "uid": st.sampled_from(["a", "b", "é"]),
            "n": st.integers(-(2**59), 2**59),
            "at": st.integers(-200, 200),
            "flag": st.booleans(),
        },
    ),
    max_size=40,
)


@settings(max_examples=150, deadline=None)
@given(ROWS, st.integers(1, 20), st.sampled_from([["uid"], ["uid", "flag"], ["flag"], []]))
def test_sums_equal_a_record_by_record_count(rows: list[Row], size: int, keys: list[str]) -> None:
    measures = "count(*) AS events, count(n) AS numbers, sum(n) AS total, min(n) AS least, max(n) AS most"
    wanted = pushdown(measures, ",".join(keys) or None)
    values = [record(**{name: text_of(value) for name, value in row.items()}) for row in rows]
    before, groups.ROWS_PER_GROUPING = groups.ROWS_PER_GROUPING, size
    try:
        sums, rejected = aggregated(wanted, *(values[begin : begin + size] for begin in range(0, len(values), size)))
    finally:
        groups.ROWS_PER_GROUPING = before
    assert not rejected
    by_name = by_key(sums, keys)
    assert set(by_name) == {key_of(row, keys) for row in rows}
    for name, row in by_name.items():
        events = [event for event in rows if key_of(event, keys) == name]
        numbers = [event["n"] for event in events if "n" in event]
        assert (row["events"], row["numbers"]) == (len(events), len(numbers))
        assert row["total"] == (sum(numbers) if numbers else None)
        assert (row["least"], row["most"]) == (min(numbers, default=None), max(numbers, default=None))


def text_of(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value).lower()


def key_of(row: Mapping[str, Any], keys: Sequence[str]) -> tuple[Any, ...]:
    return tuple(row.get(key) for key in keys)


def by_key(sums: Iterable[Row], keys: Sequence[str]) -> dict[tuple[Any, ...], Row]:
    groups = {key_of(row, keys): row for row in sums}
    assert len(groups) == len(list(sums))
    return groups


def recount(rows: Iterable[Row], keys: Sequence[str]) -> dict[tuple[Any, ...], Row]:
    return merged(({**row, "events": 1, "total": row.get("n")} for row in rows), keys)


def merged(rows: Iterable[Row], keys: Sequence[str]) -> dict[tuple[Any, ...], Row]:
    groups: dict[tuple[Any, ...], Row] = defaultdict(lambda: {"events": 0, "total": None})
    for row in rows:
        group = groups[key_of(row, keys)]
        group["events"] += row["events"]
        if row["total"] is not None:
            group["total"] = (group["total"] or 0) + row["total"]
    return dict(groups)


def test_batches_are_processed_lazily() -> None:
    """A read task hands on its rejected records before the next batch is fetched."""
    taken: list[int] = []

    def batches() -> Iterator[pa.RecordBatch]:
        for number in range(3):
            taken.append(number)
            yield source_batch([b"bad"])

    rows = pushdown("count(*)").apply(batches())
    next(rows)
    assert taken == [0]
