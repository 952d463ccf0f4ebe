"""Output of commands: closed pipes, counts with their nouns, bytes as text, tables."""

import base64
import csv
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import click

from onceflow.clicks.csv_cells import harmless


@contextmanager
def stdout_may_close() -> Iterator[None]:
    """End the block quietly when its reader, such as `head`, closes the pipe."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        # Python flushes stdout again at exit and would report an error; the rest has no reader.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def counted(count: int, noun: str) -> str:
    """Return a count with its noun: `1 record`, `2,000 records`, `2 batches`."""
    return f"{count} {noun}" if count == 1 else f"{count:,} {noun}{'es' if noun.endswith('ch') else 's'}"


def readable(name: str, content: bytes | None) -> dict[str, str | None]:
    """Return bytes for JSON as text under `name`, or as base64 if not UTF-8, marked by `NAME_encoding`."""
    try:
        return {name: None if content is None else content.decode()}
    except UnicodeDecodeError:
        return {name: base64.b64encode(content or b"").decode(), f"{name}_encoding": "base64"}


def print_rows(rows: Sequence[Mapping[str, Any]], layout: str) -> None:
    """Print rows in a layout of `layout_options`: a JSON list, or CSV with a heading, which is empty without rows.

    Text in CSV that a spreadsheet would take for a formula begins with an apostrophe.
    """
    if layout == "json":
        click.echo(json.dumps(rows, ensure_ascii=False))
    elif rows:
        writer = csv.DictWriter(sys.stdout, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: harmless(value) for name, value in row.items()} for row in rows)


def table(rows: Iterable[Sequence[object]]) -> None:
    """Print rows in aligned columns, headings first; None shows as a dash."""
    texts = [["-" if cell is None else str(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in texts) for column in range(len(texts[0]))]
    for row in texts:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
