"""`decode` without Spark: each rule of docs/pushdown.md, and that the fast path equals the converters."""

import functools
import json
import subprocess
import sys
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onceflow.spark.errors import WrongOption
from onceflow.spark.pushdown import decode
from onceflow.spark.pushdown.decode import Decoder, RecordReader
from onceflow.spark.pushdown.decode_schema import Field, parse_schema
from tests.spark.decoded import decoded, fields, source_batch

DAY_US = 86_400_000_000
APRIL = 1430204612  # 2015-04-28T07:03:32Z

WHOLE_RECORDS: list[tuple[bytes | None, Any, str | None]] = [
    (b'{"a":1}', 1, None),
    (b' \r\n\t{"a":1,"b":[1,{"a":2}]} ', 1, None),
    (b"{}", None, None),
    (b'{"A":1}', None, None),
    (b'{"\\u0061":1}', 1, None),
    (b'{"a":1,"a":2}', 2, None),
    (b'{"a":"x","a":2}', 2, None),
    (b'{"a":2,"a":"x"}', None, "wrong-type a"),
    (None, None, "no-value"),
    (b'{"a":1,"b":"\xff"}', None, "not-utf8"),
    (b'{"a":1,"b":"\xed\xa0\x80"}', None, "not-utf8"),
    (b"", None, "not-json"),
    (b" ", None, "not-json"),
    (b'{"a":1', None, "not-json"),
    (b'{"a":1,}', None, "not-json"),
    (b'{"a":1} x', None, "not-json"),
    (b'{"a":1}{"a":2}', None, "not-json"),
    (b'[{"a":1}] x', None, "not-json"),
    (b"{'a':1}", None, "not-json"),
    (b'{"a":01}', None, "not-json"),
    (b'{"a":"x","b":NaN}', None, "not-json"),
    (b'{"a":1,"b":"\\ud800"}', None, "not-json"),
    (b'\xef\xbb\xbf{"a":1}', None, "not-json"),
    (b'/* c */{"a":1}', None, "not-json"),
    (b'{"a":1,"b":' + b"[" * 199 + b"]" * 199 + b"}", 1, None),
    (b'{"a":1,"b":' + b"[" * 200 + b"]" * 200 + b"}", None, "not-json"),
    (b'{"a":1,"b":"' + b"[" * 500 + b'"}', 1, None),
    (b'{"a":' * 201 + b"1" + b"}" * 201, None, "not-json"),
    (b"[" * 201 + b"]" * 201, None, "not-json"),
    (b"[" * 200 + b"]" * 200, None, "not-object"),
    (b"[" * 1500, None, "not-json"),
    (b'{"a":[' + b"[" * 100_000, None, "not-json"),
    (b"[]", None, "not-object"),
    (b'[{"a":1}]', None, "not-object"),
    (b"null", None, "not-object"),
    (b'"x"', None, "not-object"),
    (b"1", None, "not-object"),
]


@pytest.mark.parametrize(("value", "a", "reason"), WHOLE_RECORDS)
def test_records(value: bytes | None, a: Any, reason: str | None) -> None:
    assert fields("a INT", value) == (a, reason)


FIELDS: list[tuple[str, str, Any]] = [
    ("STRING", '"x\\u0041\\u0000"', "xA\0"),
    ("STRING", '""', ""),
    ("STRING", "1.50", "1.50"),
    ("STRING", "-0", "-0"),
    ("STRING", "true", "true"),
    ("STRING", '[1, {"b" : "\\u0041"}]', '[1, {"b" : "\\u0041"}]'),
    ("TINYINT", "-128", -128),
    ("TINYINT", "128", "out-of-range"),
    ("SMALLINT", "32767", 32767),
    ("SMALLINT", "-32769", "out-of-range"),
    ("INT", "6.0", 6),
    ("INT", "60e-1", 6),
    ("INT", '"6"', 6),
    ("INT", '"-6.0"', -6),
    ("INT", "-0", 0),
    ("INT", "2147483648", "out-of-range"),
    ("INT", "1e999999999999999999999", "out-of-range"),
    ("INT", "1e-999999999999999999999", "fractional"),
    ("INT", "6.0000000000000000001", "fractional"),
    ("INT", '" 6"', "wrong-type"),
    ("INT", '"06"', "wrong-type"),
    ("INT", '"\u0666"', "wrong-type"),
    ("INT", '""', "wrong-type"),
    ("INT", "true", "wrong-type"),
    ("INT", "[6]", "wrong-type"),
    ("BIGINT", "9223372036854775807", 2**63 - 1),
    ("BIGINT", "-9223372036854775808", -(2**63)),
    ("BIGINT", "9223372036854775808", "out-of-range"),
    ("BIGINT", "9007199254740993.0", 2**53 + 1),
    ("DECIMAL(10, 2)", "1", Decimal("1.00")),
    ("DECIMAL(10, 2)", "1.005", Decimal("1.01")),
    ("DECIMAL(10, 2)", "-1.005", Decimal("-1.01")),
    ("DECIMAL(10, 2)", '"99999999.99"', Decimal("99999999.99")),
    ("DECIMAL(10, 2)", "99999999.995", "out-of-range"),
    ("DECIMAL(10, 2)", "100000000", "out-of-range"),
    ("DECIMAL(10, 2)", "1e-999999999999", Decimal("0.00")),
    ("DECIMAL(10, 2)", "0.005", Decimal("0.01")),
    ("DECIMAL(10, 2)", "0.0049", Decimal("0.00")),
    ("DECIMAL(10, 2)", '"+1"', "wrong-type"),
    ("DECIMAL(10, 2)", '"1_0"', "wrong-type"),
    ("DECIMAL(10, 2)", '"""', "not-json"),
    ("DECIMAL(2, 2)", "0.99", Decimal("0.99")),
    ("DECIMAL(2, 2)", "1", "out-of-range"),
    ("DECIMAL(38, 0)", "9" * 38, Decimal("9" * 38)),
    ("DECIMAL(38, 0)", "9" * 38 + ".5", "out-of-range"),
    ("DECIMAL(38, 38)", "0." + "1" * 38, Decimal("0." + "1" * 38)),
    ("DOUBLE", "1", 1.0),
    ("DOUBLE", '"1.5"', 1.5),
    ("DOUBLE", "0.1e1", 1.0),
    ("DOUBLE", "1e400", "out-of-range"),
    ("DOUBLE", '"1e400"', "out-of-range"),
    ("DOUBLE", '"NaN"', "wrong-type"),
    ("DOUBLE", "true", "wrong-type"),
    ("FLOAT", "0.5", 0.5),
    ("FLOAT", "16777217", 16777216.0),
    ("FLOAT", "1e39", "out-of-range"),
    ("BOOLEAN", "true", True),
    ("BOOLEAN", "false", False),
    ("BOOLEAN", '"true"', "wrong-type"),
    ("BOOLEAN", "1", "wrong-type"),
    ("DATE", '"1970-01-02"', 1),
    ("DATE", '"1582-10-10"', -141432),
    ("DATE", '"2016-02-30"', "out-of-range"),
    ("DATE", '"0000-01-01"', "out-of-range"),
    ("DATE", '"2016-2-3"', "wrong-type"),
    ("DATE", '"2016-02-03 "', "wrong-type"),
    ("DATE", '"2015-04-28T07:03:32Z"', "wrong-type"),
    ("DATE", "0", "wrong-type"),
    ("TIMESTAMP", '"2015-04-28T07:03:32Z"', APRIL * 10**6),
    ("TIMESTAMP", '"2015-04-28 07:03:32"', APRIL * 10**6),
    ("TIMESTAMP", '"2015-04-28T07:03"', (APRIL - 32) * 10**6),
    ("TIMESTAMP", '"2015-04-28"', (APRIL - APRIL % 86400) * 10**6),
    ("TIMESTAMP", '"2015-04-28T07:03:32.405Z"', APRIL * 10**6 + 405_000),
    ("TIMESTAMP", '"2015-04-28T07:03:32.123456789+00:00"', APRIL * 10**6 + 123_456),
    ("TIMESTAMP", '"2015-04-28T07:03:32.1234567890123"', APRIL * 10**6 + 123_456),
    ("TIMESTAMP", '"2015-04-28T07:03:32+02:00"', (APRIL - 7200) * 10**6),
    ("TIMESTAMP", '"2015-04-28T07:03:32-18:00"', (APRIL + 64800) * 10**6),
    ("TIMESTAMP", '"2015-04-28T07:03:32+18:01"', "out-of-range"),
    ("TIMESTAMP", '"2015-04-28T07:03:32+01:60"', "out-of-range"),
    ("TIMESTAMP", '"2015-04-28T24:00:00Z"', "out-of-range"),
    ("TIMESTAMP", '"2015-04-28T07:03:60Z"', "out-of-range"),
    ("TIMESTAMP", '"0000-12-31T23:59:59Z"', "out-of-range"),
    ("TIMESTAMP", '"0001-01-01T00:00:00+00:01"', "out-of-range"),
    ("TIMESTAMP", '"9999-12-31T23:59:59.999999Z"', 253402300799999999),
    ("TIMESTAMP", '"2015-04-28T07Z"', "wrong-type"),
    ("TIMESTAMP", '"2015-04-28T07:03:32.Z"', "wrong-type"),
    ("TIMESTAMP", '"2015-04-28T07:03:32z"', "wrong-type"),
    ("TIMESTAMP", '"2015-04-28T07:03:32+0200"', "wrong-type"),
    ("TIMESTAMP", '"2015-04-28T07:03+02"', "wrong-type"),
    ("TIMESTAMP", '"2015-04-28T07:03Z"', "wrong-type"),
    ("TIMESTAMP", '"2015-04-28Z"', "wrong-type"),
    ("TIMESTAMP", '"1430204612"', "wrong-type"),
    ("TIMESTAMP", "1430204612", APRIL * 10**6),
    ("TIMESTAMP", "1430204612.0", APRIL * 10**6),
    ("TIMESTAMP", "-1", -(10**6)),
    ("TIMESTAMP", "1430204612.5", "fractional"),
    ("TIMESTAMP", "1430204612405", "out-of-range"),
    ("TIMESTAMP", "true", "wrong-type"),
]


@pytest.mark.parametrize(("kind", "text", "wanted"), FIELDS)
def test_fields(kind: str, text: str, wanted: Any) -> None:
    is_reason = isinstance(wanted, str) and kind != "STRING"
    reason = (wanted if wanted == "not-json" else f"{wanted} a") if is_reason else None
    assert fields(f"a {kind}", f'{{"a":{text}}}'.encode()) == (None if is_reason else wanted, reason)


@pytest.mark.parametrize("kind", ["DOUBLE", "FLOAT"])
@pytest.mark.parametrize(
    ("text", "wanted"), [("-0", "0.0"), ('"-0"', "0.0"), ("-0.0", "-0.0"), ('"-0.0"', "-0.0"), ('"-0e0"', "-0.0")]
)
def test_the_sign_of_zero(kind: str, text: str, wanted: str) -> None:
    assert str(fields(f"a {kind}", f'{{"a":{text}}}'.encode())[0]) == wanted


@pytest.mark.parametrize(
    ("unit", "text", "wanted"),
    [
        ("milliseconds", "1430204612405", APRIL * 10**6 + 405_000),
        ("milliseconds", '"1430204612405"', APRIL * 10**6 + 405_000),
        ("milliseconds", '"1430204612405.25"', APRIL * 10**6 + 405_250),
        ("milliseconds", '"1430204612405.2501"', None),
        ("milliseconds", '"01"', None),
        ("milliseconds", '"2015-04-28T07:03:32Z"', APRIL * 10**6),
        ("milliseconds", "-1", -1000),
        ("seconds", '"1430204612"', APRIL * 10**6),
        ("seconds", "253402300800", None),
        ("microseconds", "253402300799999999", 253402300799999999),
        ("microseconds", "0.5", None),
        ("microseconds", "1e999999999999", None),
    ],
)
def test_numbers_of_a_unit_are_times(unit: str, text: str, wanted: int | None) -> None:
    assert fields("a TIMESTAMP", f'{{"a":{text}}}'.encode(), unit)[0] == wanted


def test_bad_record_keeps_good_fields_and_text() -> None:
    good, bad, not_text, nothing = b'{"a":1,"b":"x"}', b'{"a":"x","b":"y","c":2}', b'{"a":1\xff', None
    rows = decoded("a INT, b STRING NOT NULL, c DATE", [good, bad, not_text, nothing])
    assert rows == [
        {"a": 1, "b": "x", "c": None, "_corrupt_record": None, "_corrupt_reason": None},
        {"a": None, "b": "y", "c": None, "_corrupt_record": bad.decode(), "_corrupt_reason": "wrong-type a"},
        {"a": None, "b": None, "c": None, "_corrupt_record": '{"a":1\ufffd', "_corrupt_reason": "not-utf8"},
        {"a": None, "b": None, "c": None, "_corrupt_record": None, "_corrupt_reason": "no-value"},
    ]


@pytest.mark.parametrize("text", [b"{}", b'{"a":null}'])
def test_required_field(text: bytes) -> None:
    assert fields("a STRING NOT NULL, b INT", text) == (None, None, "missing a")


def test_kept_columns_stay_with_their_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode, "SLICE_ROWS", 3)
    values = [b'{"a":%d}' % number if number % 4 else b"bad" for number in range(11)]
    batch = Decoder(parse_schema("a INT"), ("value", "offset")).columns(source_batch(values, offset_begin=7))
    assert batch.schema.names == ["a", "_corrupt_record", "_corrupt_reason", "value", "offset"]
    assert batch.column("a").to_pylist() == [number if number % 4 else None for number in range(11)]
    assert batch.column("value").to_pylist() == values
    assert batch.column("offset").to_pylist() == list(range(7, 18))


def test_empty_batch_has_the_same_columns() -> None:
    decoder = Decoder(parse_schema("a INT, b DECIMAL(3, 1), c TIMESTAMP, d DATE, e FLOAT, f BOOLEAN"), ("topic",))
    assert decoder.columns(source_batch([])).schema == decoder.columns(source_batch([b"{}"])).schema


KINDS = (
    *("STRING", "TINYINT", "INT", "BIGINT", "DECIMAL(5, 2)", "DECIMAL(38, 0)", "DECIMAL(3, 3)", "DOUBLE", "FLOAT"),
    *("BOOLEAN", "DATE", "TIMESTAMP", "INT NOT NULL"),
)
PARTS = st.sampled_from(["0", "1", "9", "42", "007", "2015", "04", "28", "07", "-", "+", ".", ":", "T", "Z", " ", "e3"])
TIMES = st.from_regex(
    r"\A[0-9]{4}-[01][0-9]-[0-3][0-9]([T ][0-2][0-9]:[0-5][0-9](:[0-6][0-9](\.[0-9]{0,7})?)?"
    r"(Z|[+-]00:00|[+-][01][0-9](:[0-6][0-9])?)?)?\Z",
    alphabet=st.characters(codec="ascii"),
)
TEXTS = st.one_of(
    st.lists(PARTS, max_size=4).map("".join),
    TIMES,
    st.sampled_from(["2015-04-28T07:03:32.405Z", "2015-04-28 07:03:32", "1430204612405", "NaN", "é\0", "0000-01-01"]),
    st.integers(-(2**70), 2**70).map(str),
    st.decimals(allow_nan=False, allow_infinity=False, places=3).map(str),
)
TOKENS = st.one_of(
    st.sampled_from(
        ["null", "true", "false", "[1, 2]", '{"a" : 1}', "-0", "1e400", "1e39", "99.995", "999.995", "1.0"]
    ),
    st.integers(-(2**66), 2**66).map(str),
    st.integers(-(10**13), 10**13).map(str),
    st.integers(-200, 200).map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    TEXTS.map(json.dumps),
)
VALUES = st.one_of(
    st.builds('{{"x":{}}}'.format, TOKENS).map(str.encode),
    st.sampled_from([None, b"", b"[]", b'{"x":1', b'{"x":"\xff"}', b"{}"]),
)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=80, deadline=None)
@given(st.lists(VALUES, max_size=5), st.sampled_from([None, "seconds", "milliseconds"]))
def test_fast_path_equals_converters(kind: str, values: list[bytes | None], unit: str | None) -> None:
    decoder, field, reader = readers_of(kind, unit)
    quick = decoder.columns(source_batch(values))
    slow = [reader.read(value) for value in values]
    wanted = decode._array([record.values[0] for record in slow], field)
    # NaN does not come out of JSON, so equal means equal; 0.0 and -0.0 differ in their text.
    assert quick.column("x").equals(wanted) and str(quick.column("x")) == str(wanted)
    assert quick.column("_corrupt_record").to_pylist() == [record.corrupt for record in slow]
    assert quick.column("_corrupt_reason").to_pylist() == [record.reason for record in slow]


@functools.cache
def readers_of(kind: str, unit: str | None) -> tuple[Decoder, Field, RecordReader]:
    fields = parse_schema(f"x {kind}")
    return Decoder(fields, (), unit), fields[0], RecordReader(fields, unit)


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet='{}[]",:ab\\u0123d8. eE+-truefalsn\n', max_size=12), st.booleans())
def test_json_validity_equals_standard_library(text: str, inside: bool) -> None:
    value = '{"b":' + text + "}" if inside else text
    wanted: str | None
    try:
        meant = json.loads(value, parse_constant=lambda name: (_ for _ in ()).throw(ValueError(name)))
        json.dumps(meant, ensure_ascii=False).encode()
    except (ValueError, UnicodeEncodeError):
        wanted = "not-json"
    else:
        wanted = None if isinstance(meant, dict) else "not-object"
    assert fields("unnamed INT", value.encode())[-1] == wanted


def test_schemas_as_in_sql() -> None:
    text = (
        "uid string not null, `a, ``name``` INTEGER, n: LONG, p DECIMAL(10,2), q DEC, r numeric( 5 ), t TIMESTAMP_LTZ"
    )
    assert parse_schema(text) == (
        Field("uid", "STRING", required=True),
        Field("a, `name`", "INT"),
        Field("n", "BIGINT"),
        Field("p", "DECIMAL", 10, 2),
        Field("q", "DECIMAL", 10, 0),
        Field("r", "DECIMAL", 5, 0),
        Field("t", "TIMESTAMP"),
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "'' is not a field like click_count INT"),
        ("uid", "'uid' is not a field like"),
        ("uid STRING,", "'' is not a field"),
        ("uid STRNG", "type STRNG, which is not supported; did you mean STRING"),
        ("uid BINARY", "type BINARY, which is not supported; .*STRING"),
        ("uid VARCHAR(5)", "type VARCHAR, which is not supported"),
        ("uid INT(5)", "INT takes no brackets"),
        ("a ARRAY<INT>", "array, a struct or a map, .*decode it as a STRING"),
        ("a STRUCT<b: INT, c: INT>", "array, a struct or a map"),
        ("p DECIMAL(39)", r"DECIMAL\(39\); it takes the number of digits, at most 38"),
        ("p DECIMAL(2, 3)", r"DECIMAL\(2, 3\); it takes the number of digits, at most 38"),
        ('`a"b` INT', "has a quote, a backslash or a control character in its name"),
        ("uid STRING, UID INT", "the fields 'uid' and 'UID', which are equal to Spark; rename one"),
    ],
)
def test_wrong_schemas_are_refused(text: str, message: str) -> None:
    with pytest.raises(WrongOption, match=message):
        parse_schema(text)


def test_importing_decoder_loads_no_pandas() -> None:
    """Spark starts a Python process per query for its source; pandas, which pyarrow loads late, doubles its start."""
    script = "import sys, onceflow.clicks.columns; print('pandas' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
