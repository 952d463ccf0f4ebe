"""Counts with their nouns, and rows as CSV."""

from types import SimpleNamespace
from typing import Any

import pytest

from onceflow.cli.clicks.results import _export
from onceflow.cli.output import counted, print_rows


@pytest.mark.parametrize(
    ("count", "noun", "expected"),
    [
        (0, "event", "0 events"),
        (1, "event", "1 event"),
        (1_000, "row", "1,000 rows"),
        (1, "batch", "1 batch"),
        (2, "micro-batch", "2 micro-batches"),
    ],
)
def test_one_is_singular(count: int, noun: str, expected: str) -> None:
    assert counted(count, noun) == expected


FORMULAS = ("=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1")


@pytest.mark.parametrize("text", FORMULAS)
def test_rows_have_no_formulas(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """CSV injection: a spreadsheet would evaluate a name that a visitor chose."""
    print_rows([{"name": text, "count": -1}, {"name": "a=b", "count": 2}], "csv")
    lines = capsys.readouterr().out.replace("\r\n", "\n")
    assert f"'{text}" in lines
    assert ",-1\n" in lines and "\na=b,2\n" in lines


@pytest.mark.parametrize("text", FORMULAS)
def test_exported_users_have_no_formulas(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    results: Any = SimpleNamespace(users=lambda: (SimpleNamespace(batch=1, offsets={}), {text: 7}))
    _export(results, "csv")
    assert f"'{text}" in capsys.readouterr().out
