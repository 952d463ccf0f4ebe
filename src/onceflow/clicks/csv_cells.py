"""Text in CSV, which a spreadsheet must not evaluate (CSV injection)."""

from typing import Any

FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""Beginnings of cells that spreadsheets evaluate."""


def harmless(value: Any) -> Any:
    """Return text that a spreadsheet would take for a formula with an apostrophe before it, other values unchanged."""
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) else value
