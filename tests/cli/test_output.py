"""Counts with their nouns."""

import pytest

from onceflow.cli.output import counted


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
