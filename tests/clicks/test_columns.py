"""Click events as columns: the same as one event after another by the pipeline's rules, and by those of verify."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onceflow.clicks import recount
from onceflow.clicks.columns import ClickDecoder, EventFields
from onceflow.clicks.event_time import FUTURE_MS, TIME_MS_MAX
from onceflow.clicks.events import Click, Reason, Rules, WrongField
from onceflow.spark.pushdown.options import parse_pushdown
from tests.clicks.test_events import CASES, damaged, json_texts
from tests.clicks.test_events import events as any_events
from tests.spark.decoded import source_batch

ARTICLE_MS = 1_430_204_612_405
Rows = list[dict[str, Any]]


def decoded(values: Sequence[bytes | None], fields: EventFields | None = None, timestamp_ms: int = ARTICLE_MS) -> Rows:
    """Return the columns of each record, and its reason; times in milliseconds."""
    decoder = ClickDecoder((fields or EventFields()).source_options()["decoderOptions"])
    stamps = pa.array([timestamp_ms * 1000] * len(values), pa.timestamp("us", "UTC"))
    batch = source_batch(values)
    columns, reasons = decoder.decode(batch.set_column(batch.schema.get_field_index("timestamp"), "timestamp", stamps))
    names = [part.split()[0].strip("`") for part in decoder.schema.split(", ")]
    rows: Rows = pa.RecordBatch.from_arrays([*columns, reasons], names=[*names, "reason"]).to_pylist()
    for row in rows:
        if row["event_time"] is not None:
            row["event_time"] = round(row["event_time"].timestamp() * 1000)
    return rows


def verdict(row: Mapping[str, Any]) -> Click | Reason:
    if row["reason"] is not None:
        assert {value for name, value in row.items() if name != "reason"} == {None}
        return Reason(row["reason"])
    return Click(row["uid"], row["clicks"], row["os"])


def times(row: Mapping[str, Any]) -> tuple[int, str]:
    """Return a row's time in the recount's form."""
    assert {row["no_time"], row["future"]} <= {0, 1} and row["no_time"] + row["future"] < 2
    return row["event_time"], "no-time" if row["no_time"] else "future" if row["future"] else ""


def recounted_times(value: bytes, timestamp_ms: int = ARTICLE_MS) -> tuple[int, str]:
    return recount.event_ms(value, "event_time", timestamp_ms)


def with_time(text: str) -> bytes:
    return b'{"uid":"u","click_count":1,"event_time":%s}' % text.encode()


def test_each_rule_on_columns() -> None:
    """All cases are one batch, so common and other records are neighbours."""
    rows = decoded([value for value, _ in CASES])
    assert list(map(verdict, rows)) == [expected for _, expected in CASES]


@pytest.mark.parametrize("value_field", ["click_count", None])
def test_columns_of_other_fields(value_field: str | None) -> None:
    fields = EventFields("user id", value_field, "at", {"os": "os_type", "page `a`": "url"})
    row, bare = decoded(
        [
            b'{"user id":"u","click_count":3,"os_type":"iOS","url":5,"at":"2015-04-28"}',
            b'{"user id":"u","click_count":3}',
        ],
        fields,
    )
    clicks = 1 if value_field is None else 3
    assert row == {
        "uid": "u",
        "clicks": clicks,
        "event_time": 1_430_179_200_000,
        "no_time": 0,
        "future": 0,
        "os": "iOS",
        "page": "5",
        "reason": None,
    }
    assert (bare["os"], bare["page"], bare["clicks"], bare["no_time"]) == ("unknown", "unknown", clicks, 1)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (EventFields(time="uid"), "the event's fields .* must have different names"),
        (EventFields(dimensions={"os": ""}), "the event's fields .* must have different names"),
        (EventFields(dimensions={"os": "os_type", "system": "os_type"}), "must have different names"),
        (EventFields(dimensions={"Clicks": "x"}), "the dimensions 'Clicks' must have different names, other than uid"),
        (EventFields(dimensions={"a": "x", "A": "y"}), "the dimensions 'a', 'A' must have different names"),
    ],
)
def test_fields_that_cannot_be(fields: EventFields, message: str) -> None:
    with pytest.raises(WrongField, match=message):
        fields.check()


def test_options_of_the_source() -> None:
    wanted = parse_pushdown({name.lower(): value for name, value in EventFields().source_options().items()})
    assert wanted is not None
    assert wanted.schema().simpleString() == (
        "struct<uid:string,clicks:int,event_time:timestamp,no_time:tinyint,future:tinyint,os:string,"
        "_corrupt_record:string,_corrupt_reason:string,topic:string,partition:int,offset:bigint>"
    )
    (batch,) = wanted.apply([source_batch([b'{"uid":"u","click_count":3}', b"bad"])])
    assert batch.column("_corrupt_reason").to_pylist() == [None, "not-json"]


TIMES = [
    (str(ARTICLE_MS), ARTICLE_MS, ""),
    (f'"{ARTICLE_MS}"', ARTICLE_MS, ""),
    (f"{ARTICLE_MS}.0", ARTICLE_MS, ""),
    ("1.430204612405e12", ARTICLE_MS, ""),
    ('"2015-04-28T07:03:32.405Z"', ARTICLE_MS, ""),
    ('"2015-04-28 07:03:32.4059999"', ARTICLE_MS, ""),
    ('"2015-04-28T09:03:32.405+02:00"', ARTICLE_MS, ""),
    ('"2015-04-27T13:03:32.405-18:00"', ARTICLE_MS, ""),
    ('"2015-04-28T07:03"', 1_430_204_580_000, ""),
    ('"1970-01-01"', 0, ""),
    ("-0", 0, ""),
    ("0e999999999999999999999999", 0, ""),
    (str(ARTICLE_MS + FUTURE_MS), ARTICLE_MS + FUTURE_MS, ""),
    (str(ARTICLE_MS + FUTURE_MS + 1), ARTICLE_MS, "future"),
    (f'"{TIME_MS_MAX}"', ARTICLE_MS, "future"),
    ('"9999-12-31T23:59:59.9999Z"', ARTICLE_MS, "future"),
    *(
        (text, ARTICLE_MS, "no-time")
        for text in [
            "null",
            "true",
            "[]",
            "-1",
            '"-1"',
            '""',
            '" 0"',
            '"+5"',
            '"05"',
            f"{ARTICLE_MS}.5",
            f"{ARTICLE_MS}.00000000000000000001",
            str(TIME_MS_MAX + 1),
            "9" * 30,
            "1e99999999999999999999",
            '"1969-12-31T23:59:59.999Z"',
            '"1970-01-01T00:00:00+00:01"',
            '"9999-12-31T23:59:59-00:01"',
            '"2015-02-29"',
            '"2015-04-28T24:00:00"',
            '"2015-04-28T07:60:00"',
            '"2015-04-28T07:03:60"',
            '"2015-04-28T07:03:32+18:01"',
            '"2015-04-28T07:03:32+02:60"',
            '"2015-04-28T07:03Z"',
            '"2015-4-28"',
            '"2015-04-28T07"',
            '"2015-04-28T07:03:32."',
            '"2015-04-28t07:03:32z"',
            '"\\u0662015-04-28"',
            '"today"',
        ]
    ),
]


def test_times_on_columns_and_in_the_recount() -> None:
    """Alone each is its batch's only kind of text, together they are mixed."""
    wanted = [(ms, kind) for _, ms, kind in TIMES]
    together = decoded([with_time(text) for text, _, _ in TIMES])
    assert list(map(times, together)) == wanted
    assert [times(decoded([with_time(text)])[0]) for text, _, _ in TIMES] == wanted
    assert [recounted_times(with_time(text)) for text, _, _ in TIMES] == wanted


def test_absent_time() -> None:
    value = b'{"uid":"u","click_count":1}'
    assert times(decoded([value])[0]) == recounted_times(value) == (ARTICLE_MS, "no-time")


def test_without_a_time_field() -> None:
    """A name that is not asked for may be any field: here the time is the user."""
    fields = EventFields("event_time", time=None)
    row, other = decoded([b'{"event_time":"u","click_count":1}', b'{"event_time":5,"click_count":"1"}'], fields)
    assert (row["uid"], other["uid"]) == ("u", "5")
    assert times(row) == times(other) == (ARTICLE_MS, "")


def test_old_record_with_a_present_time() -> None:
    """A record's timestamp may be anything; -1 is Kafka's for none."""
    assert times(decoded([with_time(str(ARTICLE_MS))], timestamp_ms=-1)[0]) == (-1, "future")
    assert recounted_times(with_time(str(ARTICLE_MS)), -1) == (-1, "future")


instants = st.datetimes().map(lambda time: json.dumps(time.isoformat(timespec="milliseconds")))
zones = st.sampled_from(["Z", "+02:00", "-17:59", "+18:30", "+2:00", ""])
time_texts = st.one_of(
    st.integers(ARTICLE_MS - 10**8, ARTICLE_MS + 10**8).map(str),
    st.integers(ARTICLE_MS - 10**8, ARTICLE_MS + 10**8).map(lambda ms: f'"{ms}"'),
    st.builds(lambda text, zone: f'{text[:-1]}{zone}"', instants, zones),
    st.from_regex(
        r'"[0-9]{4}-[01][0-9]-[0-3][0-9]([T ][0-2][0-9]:[0-6][0-9](:[0-6][0-9](\.[0-9]{1,8})?Z?)?)?"', fullmatch=True
    ),
    json_texts,
)
timed_events = st.builds(
    lambda uid, time, system: (
        b'{"uid":%s,"click_count":1,"os_type":%s,"event_time":%s}'
        % tuple(text.encode("utf-8", "surrogatepass") for text in (uid, system, time))
    ),
    st.sampled_from(['"u"', "5", '""']),
    time_texts,
    json_texts,
)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.one_of(timed_events, any_events, damaged(), st.none()), max_size=12),
    st.integers(-1, TIME_MS_MAX) | st.just(ARTICLE_MS),
)
def test_all_judge_odd_records_alike(values: list[bytes | None], timestamp_ms: int) -> None:
    judge = Rules().judge
    for value, row in zip(values, decoded(values, timestamp_ms=timestamp_ms), strict=True):
        judged = recount.judge(value, "uid", "click_count")
        assert verdict(row) == judge(value)
        assert (row["reason"] or "") == judged.reason
        if value is not None and not judged.reason:
            assert times(row) == recounted_times(value, timestamp_ms)
