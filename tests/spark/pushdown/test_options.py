"""The push-downs' options: what they mean, and that what is not understood is refused with the way out."""

import re
from pathlib import Path

import pytest
from pyspark.sql import types

from onceflow.spark.errors import WrongOption
from onceflow.spark.pushdown.aggregate_plan import Key, Measure, Session, TimeBucket
from onceflow.spark.pushdown.decode_schema import Field
from onceflow.spark.pushdown.options import NAMES, Pushdown, parse_pushdown

DECODE = {"decode": "uid STRING, n INT, p DECIMAL(30, 4), x DOUBLE, at TIMESTAMP, `a b` TINYINT"}


def parse(**values: str) -> Pushdown:
    parsed = parse_pushdown(DECODE | values)
    assert parsed is not None
    return parsed


def test_no_pushdown_without_decode() -> None:
    assert parse_pushdown({}) is None


def test_the_page_has_every_option() -> None:
    page = (Path(__file__).parents[3] / "docs" / "pushdown.md").read_text()
    assert re.findall(r"^\| (?:both|`\w+`) \| `(\w+)` \|", page, re.MULTILINE) == list(NAMES)


def test_the_columns_of_decode() -> None:
    assert parse().schema().simpleString() == (
        "struct<uid:string,n:int,p:decimal(30,4),x:double,at:timestamp,a b:tinyint,"
        "_corrupt_record:string,_corrupt_reason:string,topic:string,partition:int,offset:bigint>"
    )
    assert parse(columns="").schema().names[-1] == "_corrupt_reason"
    assert parse(columns="Value, TIMESTAMP").schema().names[-2:] == ["value", "timestamp"]
    with_headers = parse_pushdown(DECODE, include_headers=True)
    assert with_headers is not None and with_headers.schema().names[-1] == "headers"


def test_the_columns_of_aggregate() -> None:
    wanted = parse(
        aggregate="SUM(N) as total, count( * ), count(uid), sum(`a b`), Max(at) AS `the last`, sum(p), min(p)",
        groupby='uid, window(AT, "INTERVAL 1 Hour 30 minutes") AS slot, topic',
    )
    plan = wanted.aggregation
    assert plan is not None
    assert plan.keys == (
        Key("uid", "uid", types.StringType()),
        TimeBucket("at", "slot", 5_400_000_000),
        Key("topic", "topic", types.StringType()),
    )
    assert plan.measures[0] == Measure("sum", "n", "total", types.LongType())
    assert plan.measures[1] == Measure("count", None, "count(1)", types.LongType())
    assert wanted.schema().simpleString() == (
        "struct<uid:string,slot:struct<start:timestamp,end:timestamp>,topic:string,total:bigint,count(1):bigint,"
        "count(uid):bigint,sum(a b):bigint,the last:timestamp,sum(p):decimal(38,4),min(p):decimal(30,4),"
        "rejected:struct<topic:string,partition:int,offset:bigint,timestamp:timestamp,reason:string,key:binary,"
        "value:binary>>"
    )


@pytest.mark.parametrize(
    ("text", "width_us"),
    [("'1 minute'", 60_000_000), ('"10 Seconds"', 10_000_000), ("'1 week 1 day'", 8 * 86_400_000_000)],
)
def test_widths_of_windows(text: str, width_us: int) -> None:
    plan = parse(aggregate="count(*)", groupby=f"window(at, {text})").aggregation
    assert plan is not None and plan.keys == (TimeBucket("at", "window", width_us),)


def test_keys_of_grouping_sets() -> None:
    minute, hour = "window(at, '1 minute') AS minute", "window(at, '1 hour') AS hour"
    sets = f"grouping  sets(topic, ({minute}, uid), ({hour}), (session_window(at, '30 minutes'), uid), ())"
    wanted = parse(aggregate="count(*) AS events", groupby=sets)
    plan = wanted.aggregation
    assert plan is not None
    topic, uid = Key("topic", "topic", types.StringType()), Key("uid", "uid", types.StringType())
    in_minutes, in_hours = TimeBucket("at", "minute", 60_000_000), TimeBucket("at", "hour", 3_600_000_000)
    sessions = Session("at", "session_window", 1_800_000_000)
    assert plan.keys == (topic, in_minutes, uid, in_hours, sessions)
    assert plan.grouping_sets == ((topic,), (in_minutes, uid), (in_hours,), (sessions, uid), ())
    assert list(map(plan.grouping_id, plan.grouping_sets)) == [0b01111, 0b10011, 0b11101, 0b11010, 0b11111]
    assert wanted.schema().names == [*(key.name for key in plan.keys), "grouping_id", "events", "rejected"]
    assert wanted.schema()["grouping_id"].dataType == types.LongType()
    assert wanted.schema()["session_window"].dataType == wanted.schema()["minute"].dataType


def test_number_of_keys_in_grouping_sets() -> None:
    names = [f"f{number}" for number in range(64)]
    fields = ", ".join(f"{name} INT" for name in names)
    parse(decode=fields, aggregate="count(*)", groupby=f"GROUPING SETS (({', '.join(names[1:])}))")
    with pytest.raises(WrongOption, match="64 keys in its grouping sets; grouping_id has bits for 63: remove some"):
        parse(decode=fields, aggregate="count(*)", groupby=f"GROUPING SETS (({', '.join(names)}))")


WRONG = [
    ({"decode": "uid STRNG"}, "did you mean STRING"),
    ({"decode": "topic STRING"}, "a field 'topic', which is also a column of the source; list in option columns"),
    ({"decode": "_Corrupt_Record STRING"}, "which is always a column; remove it"),
    ({"columns": "topc"}, "'topc' is not one of the source's own columns; did you mean topic"),
    ({"columns": "topic,,offset"}, "'' is not one of the source's own columns"),
    ({"columns": "headers"}, "'headers' is not one of the source's own columns"),
    ({"columns": "topic, Topic"}, "names a column twice"),
    ({"timestampunit": "millis"}, "timestampUnit='millis' is not a valid unit; did you mean milliseconds"),
    ({"timestampunit": "fortnights"}, "it takes seconds, milliseconds, microseconds"),
    ({"decode": "n INT", "timestampunit": "seconds"}, "requires a TIMESTAMP field"),
    ({"groupby": "uid"}, "option groupBy requires option aggregate"),
    ({"aggregate": ""}, "an item before, between or after commas is empty"),
    ({"aggregate": "sum(n),"}, "commas is empty"),
    ({"aggregate": "n"}, "'n' is not like sum"),
    ({"aggregate": "summ(n)"}, "did you mean sum"),
    ({"aggregate": "avg(n)"}, "no function that supports partial results; the functions are sum, count, min, max"),
    ({"aggregate": "sum(m)"}, "there is no column 'm'"),
    ({"aggregate": "sum(*)"}, r"there is no column '\*'"),
    ({"aggregate": "count()"}, "there is no column ''"),
    ({"aggregate": "sum(uid)"}, "'uid' is STRING; sum takes whole numbers and DECIMAL"),
    ({"aggregate": "sum(at)"}, "'at' is TIMESTAMP; sum takes whole numbers and DECIMAL"),
    ({"aggregate": "max(uid)"}, "max takes whole numbers and DECIMAL, TIMESTAMP and DATE"),
    ({"aggregate": "sum(x)"}, "'x' is DOUBLE, and a sum of floats depends on their order"),
    ({"aggregate": "max(x)"}, "'x' is DOUBLE"),
    ({"aggregate": "sum(n), sum(N)"}, r"result in two columns 'sum\(n\)'; rename one with AS"),
    ({"aggregate": "sum(n) AS uid", "groupby": "uid"}, "result in two columns 'uid'"),
    ({"aggregate": "sum(n) AS Rejected"}, "the name of the rejected records; rename"),
    ({"aggregate": "sum(n)", "groupby": ""}, "commas is empty"),
    ({"aggregate": "sum(n)", "groupby": "os_type"}, "option groupBy: there is no column 'os_type'"),
    ({"aggregate": "sum(n)", "groupby": "x"}, "'x' is DOUBLE, which cannot be a key"),
    ({"aggregate": "sum(n)", "groupby": "timestamp"}, "there is no column 'timestamp'"),
    ({"aggregate": "sum(n)", "groupby": "hour(at)"}, r"'hour\(at\)' is neither a column nor like window"),
    (
        {"aggregate": "sum(n)", "groupby": "rollup(uid, n)"},
        r"'rollup\(uid, n\)' is not supported; write it as GROUPING",
    ),
    ({"aggregate": "sum(n)", "groupby": "window(at)"}, "is not like window"),
    ({"aggregate": "sum(n)", "groupby": "window(at, '2 minutes', '1 minute')"}, "windows that slide"),
    ({"aggregate": "sum(n)", "groupby": "window(uid, '1 minute')"}, "'uid' is STRING; a window requires a TIMESTAMP"),
    ({"aggregate": "sum(n)", "groupby": "window(at, 1 minute)"}, "has no duration like '1 minute'"),
    ({"aggregate": "sum(n)", "groupby": "window(at, '1 month')"}, "the units are microsecond, .* week"),
    ({"aggregate": "sum(n)", "groupby": "window(at, '0 seconds')"}, "has no duration like '1 minute'"),
    ({"aggregate": "sum(n)", "groupby": "window(at, '1 minute and more')"}, "has no duration like '1 minute'"),
    (
        {"aggregate": "sum(n)", "groupby": "window(at, '1 day'), window(at, '1 hour') AS b"},
        r"two windows in \(window, b\)",
    ),
    ({"aggregate": "sum(n)", "groupby": "session_window(at)"}, "is not like session_window"),
    ({"aggregate": "sum(n)", "groupby": "session_window(n, '1 hour')"}, "'n' is INT; a window requires a TIMESTAMP"),
    (
        {"aggregate": "sum(n)", "groupby": "GROUPING SETS ((window(at, '1 day'), session_window(at, '1 hour')))"},
        r"two windows in \(window, session_window\)",
    ),
    ({"aggregate": "sum(n)", "groupby": "GROUPING SETS ((uid, n), (N, uid))"}, r"grouping set \(n, uid\) twice"),
    ({"aggregate": "sum(n)", "groupby": "GROUPING SETS ((uid), (p AS uid))"}, "result in two columns 'uid'"),
    ({"aggregate": "sum(n) AS grouping_id", "groupby": "GROUPING SETS (uid)"}, "two columns 'grouping_id'"),
    ({"aggregate": "sum(n)", "groupby": "GROUPING SETS ()"}, "commas is empty"),
    ({"aggregate": "sum(n)", "groupby": "GROUPING SETS ((uid,))"}, "commas is empty"),
    ({"decoder": "a:b"}, "options decode and decoder both give the columns"),
    ({"decoderoptions": "a"}, "option decoderOptions requires option decoder, a factory like"),
]


@pytest.mark.parametrize(("values", "message"), WRONG)
def test_wrong_options_are_refused(values: dict[str, str], message: str) -> None:
    with pytest.raises(WrongOption, match=message):
        parse_pushdown(DECODE | values)


@pytest.mark.parametrize("name", [name for name in NAMES if not name.startswith("decode")])
def test_other_options_require_decode(name: str) -> None:
    with pytest.raises(WrongOption, match=f"option {name} requires option decode"):
        parse_pushdown({name.lower(): ""})


@pytest.mark.parametrize(
    ("values", "message"),
    [({"columns": "topic"}, "lacks headers; add it"), ({"aggregate": "count(*)"}, "sums have no headers")],
)
def test_unused_headers_are_refused(values: dict[str, str], message: str) -> None:
    with pytest.raises(WrongOption, match=message):
        parse_pushdown(DECODE | values, include_headers=True)


def test_required_fields_in_the_schema() -> None:
    wanted = parse_pushdown({"decode": "uid STRING NOT NULL, n INT"})
    assert wanted is not None
    assert wanted.fields == (Field("uid", "STRING", required=True), Field("n", "INT"))
    assert wanted.schema()["uid"].nullable
