"""Responses of the API as JSON and as CSV.

Text in CSV that a spreadsheet would take for a formula begins with an apostrophe.
"""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

from onceflow.clicks.csv_cells import harmless
from onceflow.dashboard.api.table import Route
from onceflow.dashboard.board import exact


def to_json(route: Route, rows: Sequence[Any]) -> bytes:
    """Return a list of objects, or the route's only object."""
    names = [field.name for field in route.fields]
    objects = [dict(zip(names, map(_exact, _cells(row, names)), strict=True)) for row in rows]
    return json.dumps(objects if route.is_list else objects[0], ensure_ascii=False).encode(errors="replace")


def to_csv(route: Route, rows: Sequence[Any]) -> bytes:
    """Return the rows with a heading, in the order of the route's fields."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = [field.name for field in route.fields]
    writer.writerow(names)
    writer.writerows(map(_cell, _cells(row, names)) for row in rows)
    return text.getvalue().encode(errors="replace")


def _cells(row: Any, names: Sequence[str]) -> list[Any]:
    return [row[name] for name in names] if isinstance(row, Mapping) else [getattr(row, name) for name in names]


def _exact(value: Any) -> Any:
    return exact(value) if type(value) is int else value


def _cell(value: Any) -> Any:
    if isinstance(value, str):
        return harmless(value)
    if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
        return value
    return json.dumps(value, ensure_ascii=False)
