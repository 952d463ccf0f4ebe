"""Option `decoder`: columns from a class of the user's, and the messages about one that is wrong."""

from pathlib import Path
from typing import Any

import pytest

from onceflow.spark.errors import WrongOption
from onceflow.spark.pushdown.custom import WrongColumns
from onceflow.spark.pushdown.options import Pushdown, parse_pushdown
from tests.spark.decoded import source_batch
from tests.spark.pushdown.test_aggregate import aggregated

OWN = "tests.spark.pushdown.own_decoders"


def with_decoder(name: str, **options: str) -> Pushdown:
    parsed = parse_pushdown({"decoder": f"{OWN}:{name}"} | options)
    assert parsed is not None
    return parsed


def rows_of(wanted: Pushdown, *values: bytes | None) -> list[dict[str, Any]]:
    (batch,) = wanted.apply([source_batch(values)])
    assert batch.schema.names == wanted.schema().names
    rows: list[dict[str, Any]] = batch.to_pylist()
    return rows


def test_columns_of_a_decoder() -> None:
    wanted = with_decoder("CsvDecoder", columns="offset")
    good, bad, empty = rows_of(wanted, b"ada,3", b"ada\xff", None)
    assert good | {"at": None} == {
        "uid": "ada",
        "clicks": 3,
        "at": None,
        "_corrupt_record": None,
        "_corrupt_reason": None,
        "offset": 0,
    }
    assert (bad["uid"], bad["_corrupt_record"], bad["_corrupt_reason"]) == (
        None,
        "ada\N{REPLACEMENT CHARACTER}",
        "no-number",
    )
    assert (empty["_corrupt_record"], empty["_corrupt_reason"]) == (None, "no-number")


def test_options_reach_the_decoder() -> None:
    assert [row["clicks"] for row in rows_of(with_decoder("CsvDecoder", decoderoptions=";"), b"a;3", b"a,3")] == [
        3,
        None,
    ]


def test_decoder_of_the_page() -> None:
    page = (Path(__file__).parents[3] / "docs" / "pushdown.md").read_text()
    names: dict[str, Any] = {}
    exec(page.split("## Own decoders")[1].split("```python\n")[1].split("```")[0], names)
    readings = names["Readings"](";")
    assert readings.schema == "sensor STRING, celsius INT"
    columns, reasons = readings.decode(source_batch([b"a1;-3", None, b"a1,3", b"\xff;3"]))
    assert [column.to_pylist() for column in columns] == [["a1", None, None, None], [-3, None, None, None]]
    assert reasons.to_pylist() == [None, "no-reading", "no-reading", "no-reading"]
    assert [str(column.type) for column in (*columns, reasons)] == ["string", "int32", "string"]


def test_aggregation_of_decoded_columns() -> None:
    wanted = with_decoder(
        "CsvDecoder", aggregate="sum(clicks) AS clicks", groupby="GROUPING SETS ((uid), (window(at, '1 second')))"
    )
    sums, rejected = aggregated(wanted, [b"a,3", b"b,4", b"bad"], [b"a,1"])
    assert sorted((row["uid"] or "", row["grouping_id"], row["clicks"]) for row in sums) == [
        ("", 2, 8),
        ("a", 1, 4),
        ("b", 1, 4),
    ]
    assert [(row["reason"], row["value"]) for row in rejected] == [("no-number", b"bad")]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("CsvDecoder", "is not like package.module:factory"),
        ("no_such_module:CsvDecoder", "cannot be imported: No module named 'no_such_module'; install its module"),
        (f"{OWN}:NoSuch", "cannot be imported: .* has no attribute 'NoSuch'"),
        (f"{OWN}:without_schema", "returned SimpleNamespace, which lacks a text `schema` or a method `decode`"),
        (f"{OWN}:wrong_schema", "has the schema 'uid STRNG': .* did you mean STRING"),
        (f"{OWN}:required_field", "its schema has uid NOT NULL, which only option decode checks; remove it"),
        (f"{OWN}:kept_field", "the schema has a field 'topic', which is also a column of the source"),
    ],
)
def test_wrong_decoders_are_refused(path: str, message: str) -> None:
    with pytest.raises(WrongOption, match=message):
        parse_pushdown({"decoder": path})


def test_decoder_that_refuses_its_options() -> None:
    with pytest.raises(WrongOption, match="refused decoderOptions='--': the separator must be one character"):
        with_decoder("CsvDecoder", decoderoptions="--")


def test_unit_requires_our_decoder() -> None:
    with pytest.raises(WrongOption, match="option timestampUnit requires option decode, a schema"):
        with_decoder("CsvDecoder", timestampunit="seconds")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("one_column", "returned 3 columns, and its schema has 1"),
        ("other_type", "returned 2 of int32 as column clicks for 2 records; return int64 for each"),
        ("short_reasons", "returned 1 of string as column _corrupt_reason for 2 records; return string for each"),
    ],
)
def test_wrong_columns_stop_the_query(name: str, message: str) -> None:
    with pytest.raises(WrongColumns, match=message):
        rows_of(with_decoder(name), b"a,1", b"b,2")
