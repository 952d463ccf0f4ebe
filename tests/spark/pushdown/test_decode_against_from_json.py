"""`decode` and Spark's own from_json on the same records: equal, except for the table in docs/pushdown.md."""

import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit

from onceflow.spark.pushdown.decode import Decoder
from onceflow.spark.pushdown.decode_schema import parse_schema
from tests.spark.decoded import plain, source_batch

SEED = 20150428
RECORDS = 6000
SCHEMA = (
    "s STRING, t TINYINT, h SMALLINT, i INT, l BIGINT, d DECIMAL(10, 2), e DECIMAL(38, 0), f DOUBLE, g FLOAT, "
    "b BOOLEAN, y DATE, z TIMESTAMP, `a b` STRING"
)
BAD = "bad"

# Row of the page, field, record, from_json's value of the field, and ours.
DIFFERENCES: list[tuple[str, str, str | bytes | None, Any, Any]] = [
    ("`6.0`, `6e0`", "i", '{"i":6.0}', BAD, 6),
    ("`6.0`, `6e0`", "i", '{"i":6e0}', BAD, 6),
    ("`6.0`, `6e0`", "i", '{"i":"6"}', BAD, 6),
    ("`128` to `255`", "t", '{"t":128}', -128, BAD),
    ("`128` to `255`", "t", '{"t":255}', -1, BAD),
    ('`"1.5"` in a DOUBLE', "f", '{"f":"1.5"}', BAD, 1.5),
    ('`"NaN"` or', "f", '{"f":"Infinity"}', float("inf"), BAD),
    ("`1e400`", "f", '{"f":1e400}', float("inf"), BAD),
    ("`1e400`", "g", '{"g":1e39}', float("inf"), BAD),
    ("`1.00000017", "g", '{"g":1.00000017881393432617187499}', 1 + 2**-23, 1 + 2**-22),
    ('`"+5"` or', "d", '{"d":"+5"}', "5.00", BAD),
    ('`"+5"` or', "d", '{"d":".5"}', "0.50", BAD),
    ("`1.50` or `-0`", "s", '{"s":1.50}', "1.5", "1.50"),
    ("`1.50` or `-0`", "s", '{"s":-0}', "0", "-0"),
    ("`[1, 2]`", "s", '{"s":[1, 2]}', "[1,2]", "[1, 2]"),
    ('`"2015"`', "y", '{"y":"2015"}', 16436, BAD),
    ('`"2015"`', "y", '{"y":"2015-4-8"}', 16533, BAD),
    ('`"2015"`', "y", '{"y":" 2015-04-28"}', 16553, BAD),
    ('`"2015"`', "y", '{"y":"10000-01-01"}', 2932897, BAD),
    ('`"2015"`', "z", '{"z":"2015-04-28T07"}', 1430204400000000, BAD),
    ('`"2015-04-28T07:03:32Z"` in a DATE', "y", '{"y":"2015-04-28T07:03:32Z"}', 16553, BAD),
    ('`"07:03"`', "z", '{"z":"07:03"}', any, BAD),
    ('`"2015-04-28T07:03:32 Europe', "z", '{"z":"2015-04-28T07:03:32 Europe/Berlin"}', 1430197412000000, BAD),
    ('`"2015-04-28T07:03:32 Europe', "z", '{"z":"2015-04-28T07:03:32+0200"}', 1430197412000000, BAD),
    ("`1430204612405`", "z", '{"z":1430204612405}', 1430204612405000000, BAD),
    ("a field twice", "i", '{"i":2,"i":"x"}', (2, BAD), BAD),
    ("a field twice", "i", '{"i":"x","i":2}', (2, BAD), 2),
    ("no value", "i", None, None, (None, "no-value")),
    ("an empty value", "i", "", None, BAD),
    ("an empty value", "i", " ", None, BAD),
    ("something behind", "i", '{"i":1} x', 1, BAD),
    ("something behind", "i", '{"i":1}{"i":2}', 1, BAD),
    ("single quotes", "i", "{'i':1}", 1, BAD),
    ("NaN in a field", "i", '{"n":NaN,"i":1}', 1, BAD),
    ("bytes that are not UTF-8", "s", b'{"s":"\xff"}', "\ufffd", BAD),
    ("half a surrogate", "s", '{"s":"\\ud800"}', "?", BAD),
    ("nested 201", "i", '{"n":' + "[" * 900 + "]" * 900 + ',"i":1}', 1, BAD),
    ("a number of more than 1,000", "i", '{"n":' + "9" * 1001 + ',"i":1}', BAD, 1),
]
ELSEWHERE = ('`"1430204612405"`', "null or nothing in a NOT NULL")
"""Rows about options that from_json does not have; tests/spark/pushdown/test_decode.py tests them."""


@pytest.fixture(scope="module")
def records() -> list[bytes | None]:
    """Records of the table, then generated ones on which both must agree."""
    chance = random.Random(SEED)
    table = [value.encode() if isinstance(value, str) else value for _, _, value, _, _ in DIFFERENCES]
    return table + [record(chance).encode() for _ in range(RECORDS)]


@pytest.fixture(scope="module")
def theirs(spark: SparkSession, records: list[bytes | None]) -> pa.Table:
    """All records read by from_json, in one job."""
    table = pa.table({"n": list(range(len(records))), "value": pa.array(records, pa.binary())})
    parsed = F.from_json(F.col("value").cast("string"), SCHEMA + ", _corrupt_record STRING")
    frame = spark.createDataFrame(table).select("n", parsed.alias("j")).orderBy("n").select("j.*")
    result = frame.toArrow()
    return pa.table({name: plain(result[name].combine_chunks()) for name in result.column_names})


@pytest.fixture(scope="module")
def ours(records: list[bytes | None]) -> pa.Table:
    batch = Decoder(parse_schema(SCHEMA)).columns(source_batch(records))
    return pa.table({name: plain(batch.column(name)) for name in batch.schema.names})


def test_rows_equal_from_json(records: list[bytes | None], theirs: pa.Table, ours: pa.Table) -> None:
    begin = len(DIFFERENCES)
    assert theirs.column_names == ours.column_names[:-1]
    wrong = [
        (name, value, one, other)
        for name in theirs.column_names
        for value, one, other in zip(
            records[begin:], theirs[name][begin:].to_pylist(), ours[name][begin:].to_pylist(), strict=True
        )
        if repr(one) != repr(other)
    ]
    examples = {name: (value, one, other) for name, value, one, other in reversed(wrong)}
    assert not wrong, f"seed {SEED}: {len(wrong)} values differ, the first of each column: {examples}"
    assert [field.type for field in theirs.schema] == [field.type for field in ours.schema][:-1]
    bad = ours["_corrupt_reason"][begin:].drop_null()
    assert RECORDS / 5 < len(bad) < RECORDS * 4 / 5, "there are good and bad ones, many of each"
    assert len(set(bad.to_pylist())) > 15


@pytest.mark.parametrize("index", range(len(DIFFERENCES)))
def test_documented_difference(index: int, theirs: pa.Table, ours: pa.Table) -> None:
    _, name, _, their_value, our_value = DIFFERENCES[index]
    their = (theirs[name][index].as_py(), theirs["_corrupt_record"][index].as_py())
    if their_value is any:
        assert their[0] is not None and their[1] is None
    else:
        value = str(their[0]) if name == "d" else their[0]
        assert (value, their[1] and BAD) == both(their_value)
    reason = ours["_corrupt_reason"][index].as_py()
    shown = reason if reason in (None, "no-value") else BAD
    assert (ours[name][index].as_py(), shown) == both(our_value)


def both(wanted: Any) -> tuple[Any, str | None]:
    """Return (the field's value, whether the record is bad)."""
    if isinstance(wanted, tuple):
        return wanted
    return (None, BAD) if wanted == BAD else (wanted, None)


def test_page_lists_the_same_differences() -> None:
    page = (Path(__file__).parents[3] / "docs" / "pushdown.md").read_text()
    table = page.split("| record or field | from_json | decode |\n|---|---|---|\n")[1].split("\n\n")[0]
    rows = [re.sub(r"^\| ", "", line) for line in table.splitlines()]
    named = [*(name for name, *_ in DIFFERENCES), *ELSEWHERE]
    assert [row for row in rows if not any(row.startswith(name) for name in named)] == []
    assert [name for name in named if sum(row.startswith(name) for row in rows) != 1] == []


Token = Callable[[random.Random], str]


def record(chance: random.Random) -> str:
    """Return one record: mostly an object with a few of the fields, sometimes other text."""
    names = chance.sample(list(GENERATORS), chance.randint(0, 6))
    parts = [f"{quoted(name, chance)}{blank(chance)}:{blank(chance)}{token(name, chance)}" for name in names]
    if chance.random() < 0.1 and "b" not in names:
        parts += [f'"b":{chance.choice(["true", "false", "null"])}' for _ in range(2)]
    text = "{" + blank(chance) + f"{blank(chance)},{blank(chance)}".join(parts) + blank(chance) + "}"
    match chance.randrange(40):
        case 0:
            return text[: chance.randint(1, len(text) - 1)]
        case 1:
            return "[" + text + "]"
        case 2:
            return text[:-1] + ",}"
        case 3:
            return text.replace(":", "=", 1) if ":" in text else "x" + text
        case 4:
            return chance.choice(
                ["null", "[]", "1", '"x"', "true", "{", "}", "{a:1}", '{"i":01}', '{"i":+1}', '{"i":1.}']
            )
        case _:
            return blank(chance) + text + blank(chance)


def token(name: str, chance: random.Random) -> str:
    return good(name, chance) if chance.random() < 0.8 else chance.choice([*ANYTHING_ELSE, *WRONG.get(name, ())])


def good(name: str, chance: random.Random) -> str:
    return "null" if chance.random() < 0.05 else GENERATORS[name](chance)


def blank(chance: random.Random) -> str:
    return chance.choice(["", "", "", " ", "\n", "\t\r "])


def quoted(text: str, chance: random.Random) -> str:
    """Return JSON text with some characters escaped."""
    return "".join(['"', *(escaped(character, chance) for character in text), '"'])


def escaped(character: str, chance: random.Random) -> str:
    if chance.random() < 0.1 and ord(character) < 0x10000:
        return f"\\u{ord(character):04x}"
    return json.dumps(character, ensure_ascii=chance.random() < 0.5)[1:-1]


def a_string(chance: random.Random) -> str:
    if chance.random() < 0.2:
        return chance.choice(["7", "99999999999999999999999", "true", "[]", "{}", '{"b":[1,null,"é"]}', "[[],[-1]]"])
    return quoted("".join(chance.choices('aZ 0"\\/\n\t\0\x1fé€😀{}[]:,', k=chance.randint(0, 6))), chance)


def an_integer(bits: int) -> Token:
    edge = 2 ** (bits - 1)

    def integer(chance: random.Random) -> str:
        return str(chance.choice([0, 1, -1, edge - 1, edge, -edge, -edge - 1, chance.randint(-edge, edge - 1), 10**30]))

    return integer


def a_decimal(chance: random.Random) -> str:
    text = chance.choice(
        ["0", "-0", "-0.0", "1", "99999999.994", "99999999.995", "-0.005", "0.004", "1e3", "1E-2", "1e8"]
    )
    if chance.random() < 0.7:
        text = f"{chance.randint(-(10**9), 10**9)}.{chance.randint(0, 10 ** chance.randint(1, 5))}"
    return f'"{text}"' if chance.random() < 0.3 else text


def a_float(chance: random.Random) -> str:
    drawn = chance.choice([chance.uniform(-1e6, 1e6), chance.gauss(0, 1) * 10 ** chance.randint(-30, 30)])
    edges = ["0", "-0", "-0.0", "1e-30", "16777217", "12345678901234567890123", "0.1", "1E+5", "3.4028234e38"]
    return repr(drawn) if chance.random() < 0.7 else chance.choice(edges)


def a_day(chance: random.Random) -> str:
    return f"{chance.randint(1, 9999):04}-{chance.randint(0, 13):02}-{chance.randint(0, 32):02}"


def a_time(chance: random.Random) -> str:
    if chance.random() < 0.2:
        return str(chance.choice([0, -1, 1430204612, 253402300799, -62135596800, chance.randint(-(10**10), 10**11)]))
    text = f"{chance.randint(2, 9998):04}-{chance.randint(1, 12):02}-{chance.randint(1, 29):02}"
    if chance.random() < 0.1:
        return f'"{text}"'
    text += chance.choice("T ") + f"{chance.randint(0, 24):02}:{chance.randint(0, 59):02}"
    if chance.random() < 0.8:
        text += f":{chance.randint(0, 60):02}"
        if chance.random() < 0.5:
            text += "." + "".join(chance.choices("0123456789", k=chance.randint(1, 12)))
    zone = chance.choice(
        [
            "",
            "Z",
            "Z",
            "+00:00",
            "-00:00",
            f"{chance.choice('+-')}{chance.randint(0, 19):02}:{chance.randint(0, 61):02}",
        ]
    )
    return f'"{text}{zone}"'


GENERATORS: dict[str, Token] = {
    "s": a_string,
    "t": lambda chance: str(chance.choice([-129, -128, 0, 127, 256, 10**30, chance.randint(-128, 127)])),
    "h": an_integer(16),
    "i": an_integer(32),
    "l": an_integer(64),
    "d": a_decimal,
    "e": a_decimal,
    "f": a_float,
    "g": a_float,
    "b": lambda chance: chance.choice(["true", "false"]),
    "y": lambda chance: f'"{a_day(chance)}"',
    "z": a_time,
    "a b": a_string,
    "unnamed": lambda chance: chance.choice(["1", '"x"', '[{"i":"x"}]', "-1.5e-3", "[" * 150 + "]" * 150]),
}
ANYTHING_ELSE = ("true", "[]", "{}", '""', '"six"', '"é"', '" 6"', '"0x10"', '[{"i":1}]', "6.5")
WRONG = {
    "i": ("6.5", "1e-1", '"NaN"'),
    "f": ('"nan"', '"1,5"', '"infinity"'),
    "d": ('"NaN"', '"1 "', '"--1"', "1e400"),
    "y": ("0", '"2015-04-28x"', '"28.04.2015"', '"2015/04/28"'),
    "z": ('"now"', '"1430204612405"', "1430204612.5", '"2015-04-28t07:03:32Z"', '"2015-04-28T07:03:32z"'),
}
