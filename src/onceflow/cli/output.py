"""What commands print: standard output that a reader like `head` may close early, counts in words, bytes as text."""

import base64
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import click


@contextmanager
def stdout_may_close() -> Iterator[None]:
    """A closed pipe ends the block as if it were done: its reader has had enough, which is no failure."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        # Python flushes stdout once more at its end and would complain; what is left has no reader.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def counted(count: int, noun: str) -> str:
    """`1 record`, `2,000 records`, `2 batches`."""
    return f"{count} {noun}" if count == 1 else f"{count:,} {noun}{'es' if noun.endswith('ch') else 's'}"


def readable(name: str, content: bytes | None) -> dict[str, str | None]:
    """For JSON: bytes as text under `name`, or in base64 where they are not UTF-8, which `NAME_encoding` then says."""
    try:
        return {name: None if content is None else content.decode()}
    except UnicodeDecodeError:
        return {name: base64.b64encode(content or b"").decode(), f"{name}_encoding": "base64"}


def table(rows: Iterable[Sequence[object]]) -> None:
    """Print rows, the first one being the heads, with columns as wide as they must be; None shows as a dash."""
    texts = [["-" if cell is None else str(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in texts) for column in range(len(texts[0]))]
    for row in texts:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
