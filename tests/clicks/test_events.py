"""The rules of docs/events.md, one row each, for the pipeline's code and for that of verify."""

import json
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from onceflow.clicks import recount
from onceflow.clicks.events import COUNT_MAX, Click, Reason, Rules, WrongField, count_of_text
from onceflow.clicks.ingest.mapping import FieldMapping, Mapper, Unmappable
from onceflow.clicks.ingest.readers import InputFormat
from onceflow.clicks.recount import judge

PAGE = Path(__file__).parents[2] / "docs" / "events.md"


def with_count(count: str) -> bytes:
    return b'{"uid":"u","click_count":%s}' % count.encode()


def with_uid(uid: str) -> bytes:
    return b'{"uid":%s,"click_count":1}' % uid.encode()


COUNTS: list[tuple[str, int | Reason]] = [
    ("6", 6),
    ("6.0", 6),
    ("6.000", 6),
    ("6e0", 6),
    ("0.6e1", 6),
    ("60e-1", 6),
    ("60E-1", 6),
    ("6E+0", 6),
    ('"6"', 6),
    ('"6.0"', 6),
    ('"6e0"', 6),
    ('"\\u0036"', 6),
    ("0", 0),
    ("-0", 0),
    ("-0.0", 0),
    ('"-0"', 0),
    ("0e999999999999999999999999", 0),
    ("10000", 10_000),
    ("10000.0", 10_000),
    ("1e4", 10_000),
    ("100000e-1", 10_000),
    ("10001", Reason.COUNT_TOO_LARGE),
    ("10000.5", Reason.COUNT_FRACTIONAL),
    ("9007199254740992", Reason.COUNT_TOO_LARGE),
    ("9007199254740993", Reason.COUNT_TOO_LARGE),
    ("1e16", Reason.COUNT_TOO_LARGE),
    ("1e400", Reason.COUNT_TOO_LARGE),
    ("1e99999999999999999999999999", Reason.COUNT_TOO_LARGE),
    ("1" * 5000, Reason.COUNT_TOO_LARGE),
    ("6.5", Reason.COUNT_FRACTIONAL),
    ("6.0000000000000000001", Reason.COUNT_FRACTIONAL),
    ("1e-400", Reason.COUNT_FRACTIONAL),
    ("1e-99999999999999999999999999", Reason.COUNT_FRACTIONAL),
    ('"6.5"', Reason.COUNT_FRACTIONAL),
    ("-1", Reason.COUNT_NEGATIVE),
    ("-0.5", Reason.COUNT_NEGATIVE),
    ("-1e400", Reason.COUNT_NEGATIVE),
    ('"-1"', Reason.COUNT_NEGATIVE),
    ("null", Reason.COUNT_NULL),
    ("true", Reason.COUNT_NOT_A_NUMBER),
    ("[6]", Reason.COUNT_NOT_A_NUMBER),
    ("{}", Reason.COUNT_NOT_A_NUMBER),
    ('""', Reason.COUNT_NOT_A_NUMBER),
    ('" 6"', Reason.COUNT_NOT_A_NUMBER),
    ('"6 "', Reason.COUNT_NOT_A_NUMBER),
    ('"6\\n"', Reason.COUNT_NOT_A_NUMBER),
    ('"+6"', Reason.COUNT_NOT_A_NUMBER),
    ('"06"', Reason.COUNT_NOT_A_NUMBER),
    ('"0x6"', Reason.COUNT_NOT_A_NUMBER),
    ('"6."', Reason.COUNT_NOT_A_NUMBER),
    ('"1_0"', Reason.COUNT_NOT_A_NUMBER),
    ('"NaN"', Reason.COUNT_NOT_A_NUMBER),
    ('"٦"', Reason.COUNT_NOT_A_NUMBER),
    ('"six"', Reason.COUNT_NOT_A_NUMBER),
    ('"null"', Reason.COUNT_NOT_A_NUMBER),
    (json.dumps("[" * 3000), Reason.COUNT_NOT_A_NUMBER),
    ("NaN", Reason.NOT_JSON),
    ("Infinity", Reason.NOT_JSON),
    ("-Infinity", Reason.NOT_JSON),
    ("06", Reason.NOT_JSON),
    ("+6", Reason.NOT_JSON),
    (".5", Reason.NOT_JSON),
    ("6.", Reason.NOT_JSON),
]

UIDS: list[tuple[str, str | Reason]] = [
    ('"ada"', "ada"),
    ('"\\u0061da"', "ada"),
    ('" "', " "),
    ('"用户"', "用户"),
    ('"\\ud83d\\ude00"', "\U0001f600"),
    ('"' + "x" * 1024 + '"', "x" * 1024),
    ('"' + "é" * 512 + '"', "é" * 512),
    ("5890", "5890"),
    ("-1", "-1"),
    ("-0", "-0"),
    ("12345678901234567890123456789", "12345678901234567890123456789"),
    ('"' + "x" * 1025 + '"', Reason.UID_TOO_LONG),
    ('"' + "é" * 513 + '"', Reason.UID_TOO_LONG),
    ("1" * 1025, Reason.UID_TOO_LONG),
    ('""', Reason.UID_EMPTY),
    ("null", Reason.NO_UID),
    ("true", Reason.UID_NOT_TEXT),
    ("1.0", Reason.UID_NOT_TEXT),
    ("1e3", Reason.UID_NOT_TEXT),
    ('["ada"]', Reason.UID_NOT_TEXT),
    ("{}", Reason.UID_NOT_TEXT),
    ('"\\ud83d"', Reason.NOT_JSON),
]

VALUES: list[tuple[bytes | None, Click | Reason]] = [
    (None, Reason.NO_VALUE),
    (b"", Reason.NOT_JSON),
    (b" ", Reason.NOT_JSON),
    (b"\xff", Reason.NOT_UTF8),
    (b'{"uid":"\xff","click_count":1}', Reason.NOT_UTF8),
    (b'{"uid":"u","click_count":1,"other":"\xed\xa0\x80"}', Reason.NOT_UTF8),
    (b"hello", Reason.NOT_JSON),
    (b'{"uid":"u","click_count":1', Reason.NOT_JSON),
    (b'{"uid":"u","click_count":1,}', Reason.NOT_JSON),
    (b'{"uid":"u","click_count":1} x', Reason.NOT_JSON),
    (b"{'uid':'u','click_count':1}", Reason.NOT_JSON),
    (b'\xef\xbb\xbf{"uid":"u","click_count":1}', Reason.NOT_JSON),
    (b'{"uid":"u","click_count":1,"other":"\x01"}', Reason.NOT_JSON),
    (b'{"uid":"u","click_count":1,"other":NaN}', Reason.NOT_JSON),
    (b'{"uid":"u","click_count":1,"other":"\\ud800"}', Reason.NOT_JSON),
    (b'{"other":"\\uD800","uid":"u","click_count":1,"other":0}', Reason.NOT_JSON),
    (b'{"uid":"u","click_count":1,"other":' + b"[" * 200 + b"]" * 200 + b"}", Reason.NOT_JSON),
    (b'{"uid":"u","click_count":1,"other":' + b"[" * 100_000, Reason.NOT_JSON),
    (b"[1", Reason.NOT_JSON),
    (b"[]", Reason.NOT_OBJECT),
    (b"null", Reason.NOT_OBJECT),
    (b"1", Reason.NOT_OBJECT),
    (b'"uid"', Reason.NOT_OBJECT),
    (b"{}", Reason.NO_UID),
    (b'{"UID":"u","click_count":1}', Reason.NO_UID),
    (b'{"user":{"uid":"u"},"click_count":1}', Reason.NO_UID),
    (b'{"uid":"u"}', Reason.NO_COUNT),
    (b'{"uid":"","click_count":-1}', Reason.UID_EMPTY),
    (b' \t\r\n{"uid":"u","click_count":1} \n', Click("u", 1, "unknown")),
    (b'{"uid":1,"click_count":2,"uid":"u","click_count":3}', Click("u", 3, "unknown")),
    (b'{"\\u0075id":"u","click_count":1}', Click("u", 1, "unknown")),
    (b'{"uid":"u","click_count":1,"other":1e999}', Click("u", 1, "unknown")),
    (b'{"uid":"u","click_count":1,"other":' + b"[" * 199 + b"]" * 199 + b"}", Click("u", 1, "unknown")),
    (b'{"uid":"u","click_count":1,"other":"' + b"[" * 5000 + b'"}', Click("u", 1, "unknown")),
    (b'{"uid":"u","click_count":1,"os_type":"Android"}', Click("u", 1, "Android")),
    (b'{"uid":"u","click_count":1,"os_type":17}', Click("u", 1, "17")),
    (b'{"uid":"u","click_count":1,"os_type":1.5}', Click("u", 1, "unknown")),
    (b'{"uid":"u","click_count":1,"os_type":""}', Click("u", 1, "unknown")),
    (b'{"uid":"u","click_count":1,"os_type":null}', Click("u", 1, "unknown")),
    (b'{"uid":"u","click_count":1,"os_type":"' + b"x" * 1025 + b'"}', Click("u", 1, "unknown")),
    (b'{"uid":"u","click_count":1,"os_type":"' + b"x" * 1024 + b'"}', Click("u", 1, "x" * 1024)),
]

CASES: list[tuple[bytes | None, Click | Reason]] = [
    *(
        (with_count(text), expected if isinstance(expected, Reason) else Click("u", expected, "unknown"))
        for text, expected in COUNTS
    ),
    *(
        (with_uid(text), expected if isinstance(expected, Reason) else Click(expected, 1, "unknown"))
        for text, expected in UIDS
    ),
    *VALUES,
]


def recounted(value: bytes | None, key_field: str = "uid", value_field: str | None = "click_count") -> Click | Reason:
    judged = judge(value, key_field, value_field)
    return Reason(judged.reason) if judged.reason else Click(judged.uid, judged.clicks, judged.os_type)


@pytest.mark.parametrize(("value", "expected"), CASES, ids=lambda part: repr(part)[:60])
def test_each_rule(value: bytes | None, expected: Click | Reason) -> None:
    verdict = Rules().judge(value)
    assert verdict == expected
    assert type(verdict) is type(expected)


@pytest.mark.parametrize(("value", "expected"), CASES, ids=lambda part: repr(part)[:60])
def test_each_rule_in_the_recount(value: bytes | None, expected: Click | Reason) -> None:
    assert recounted(value) == expected


def test_every_reason_is_tested_and_documented() -> None:
    assert {expected for _, expected in CASES if isinstance(expected, Reason)} == set(Reason)
    page = PAGE.read_text()
    assert [reason for reason in Reason if f"`{reason}`" not in page] == []


def test_without_count_field_events_count_one() -> None:
    rules = Rules("user", None)
    assert rules.judge(b'{"user":"u","click_count":"six"}') == Click("u", 1, "unknown")
    assert rules.judge(b'{"uid":"u"}') is Reason.NO_UID
    assert recounted(b'{"user":"u","click_count":-5}', "user", None) == Click("u", 1, "unknown")


def test_other_field_names() -> None:
    rules = Rules("user id", "n")
    assert rules.judge(b'{"user id":"u","n":3,"os_type":"iOS"}') == Click("u", 3, "iOS")


@pytest.mark.parametrize("names", [("uid", "uid"), ("", "n"), ("os_type", "n"), ("uid", "")])
def test_field_names_that_cannot_be(names: tuple[str, str]) -> None:
    with pytest.raises(WrongField, match="must have different names"):
        Rules(*names)


# Both implementations agree on any input.

json_texts = st.recursive(
    st.sampled_from(
        ["null", "true", "0", "-1", "6.5", "6.0", "1e2", "1e-2", "NaN", '"6"', '""', '"\\ud83d"', '"\\ud83d\\ude00"']
    )
    | st.text().map(json.dumps)
    | st.text().map(lambda text: json.dumps(text, ensure_ascii=False))
    | st.floats().map(json.dumps)
    | st.decimals(allow_nan=False, allow_infinity=False).map(str)
    | st.integers().map(str),
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda parts: "[" + ",".join(parts) + "]")
        | st.lists(st.tuples(st.sampled_from(['"uid"', '"x"', '"click_count"']), inner), max_size=3).map(
            lambda pairs: "{" + ", ".join(f"{name}:{value}" for name, value in pairs) + "}"
        )
    ),
    max_leaves=6,
)
events = st.lists(
    st.tuples(st.sampled_from(['"uid"', '"click_count"', '"os_type"', '"\\u0075id"', '"x"']), json_texts), max_size=6
).map(lambda pairs: ("{" + ",".join(f"{name}:{value}" for name, value in pairs) + "}").encode("utf-8", "surrogatepass"))


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """Return an event with one part replaced, cut or doubled."""
    value = draw(events)
    begin = draw(st.integers(0, len(value)))
    end = draw(st.integers(begin, min(len(value), begin + 3)))
    return value[:begin] + draw(st.binary(max_size=2)) + value[end:]


@settings(max_examples=400, deadline=None)
@given(st.one_of(events, damaged(), st.binary(max_size=20)))
@example(b'{"uid":"a","uid":null}')
def test_pipeline_and_recount_judge_alike(value: bytes) -> None:
    assert Rules().judge(value) == recounted(value)


@settings(max_examples=300, deadline=None)
@given(
    st.from_regex(r"-?(0|[1-9][0-9]{0,20})(\.[0-9]{1,20})?([eE][+-]?[0-9]{1,22})?", fullmatch=True)
    | st.text(alphabet="0123456789+-.eE _", max_size=12)
)
def test_numbers_are_judged_alike(text: str) -> None:
    assert Rules().judge(with_count(json.dumps(text))) == recounted(with_count(json.dumps(text)))
    assert Rules().judge(with_count(text)) == recounted(with_count(text))


VAST = "9" * 19


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0." + "0" * 100_001 + "1e" + VAST, Reason.COUNT_TOO_LARGE),
        ("1" + "0" * 100_001 + "e-" + VAST, Reason.COUNT_FRACTIONAL),
        ("-1e-" + VAST, Reason.COUNT_NEGATIVE),
        ("-1e" + VAST, Reason.COUNT_NEGATIVE),
        ("0.00e" + VAST, 0),
        ("-0e-" + VAST, 0),
        ("5e-" + "0" * 30, 5),
        ("50e-" + "0" * 30 + "1", 5),
        ("0." + "0" * 30 + "5e" + "0" * 5 + "31", 5),
    ],
    ids=lambda part: repr(part)[:20] + repr(part)[-10:],
)
def test_extreme_exponents(text: str, expected: int | Reason) -> None:
    verdict = expected if isinstance(expected, Reason) else Click("u", expected, "unknown")
    assert Rules().judge(with_count(text)) == verdict
    assert recounted(with_count(text)) == verdict


@st.composite
def numbers_around_the_cap(draw: st.DrawFn) -> str:
    """Return a number near the largest count or 2^53, in one of JSON's notations."""
    count = draw(st.one_of(st.integers(COUNT_MAX - 3, COUNT_MAX + 3), st.integers(2**53 - 2, 2**53 + 2)))
    places = draw(st.integers(0, 4))
    whole, fraction = divmod(count, 10**places)
    scaled = f"{whole}.{fraction:0{places}d}e{places}" if places else str(count)
    return draw(
        st.sampled_from([str(count), f"{count}.0", f"{count}e0", f"{count}0e-1", scaled, f"{count}.5", f"-{count}"])
    )


@settings(max_examples=300, deadline=None)
@given(numbers_around_the_cap())
def test_all_judge_the_cap_alike(text: str) -> None:
    """Return the results of the pipeline, of `verify` and of `replay`."""
    verdict = Rules().judge(with_count(text))
    assert recounted(with_count(text)) == Rules().judge(with_count(json.dumps(text))) == verdict
    count = verdict.clicks if isinstance(verdict, Click) else verdict
    assert count_of_text(text) == count
    assert mapped_count(text) == count


def mapped_count(text: str) -> int | str:
    """Return the count that `replay` sends, or the reason why it sends none."""
    try:
        event = Mapper(FieldMapping().for_format(InputFormat.CSV)).event_of({"uid": "u", "click_count": text})
    except Unmappable as error:
        return str(error).rpartition("(")[2].rstrip(")")
    return int(json.loads(event.value)["click_count"])


def test_code_and_page_name_one_cap() -> None:
    assert COUNT_MAX == recount.COUNT_MAX
    assert f"the count is above {COUNT_MAX:,} |" in PAGE.read_text()


def test_sum_of_years_stays_below_limit() -> None:
    events_per_year = 1_000_000 * 365 * 24 * 3600
    assert 3 * events_per_year * COUNT_MAX < 10**18


@given(st.integers(1, COUNT_MAX), st.integers(0, 5))
def test_counts_are_exact_in_any_notation(count: int, zeros: int) -> None:
    assert count_of_text(f"{count}{'0' * zeros}e-{zeros}") == count
    assert count_of_text(f"{count}.{'0' * (zeros + 1)}") == count
