"""Measured tables of README.md, between two marks, and the commit of each row.

They are written from `figures.json`, so that rows can be measured again by name. Text outside the marks is kept.
"""

import datetime
import json
import os
import platform
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
README, STORE = HERE / "README.md", HERE / "figures.json"
BEGIN, END = "<!-- figures: written by make bench -->", "<!-- end of the figures -->"


class Line(NamedTuple):
    """Row of a table by name; a `text` that does not start with "|" is a paragraph below the table."""

    name: str
    text: str


def row(name: str, *cells: str) -> Line:
    """Return a row with `name` as its first cell."""
    return Line(name, f"| {' | '.join((name, *cells))} |")


@dataclass(frozen=True)
class Table:
    """Measurements of one module. `names` are the parts that can be measured alone; a part may have several lines.

    `says` is a paragraph above the table.
    """

    title: str
    columns: Sequence[str]
    names: Sequence[str]
    measure: Callable[[Sequence[str]], Iterator[Line]]
    says: str = ""

    def chosen(self, words: Sequence[str]) -> list[str]:
        """Return the parts whose name, or the table's, contains one of `words`; all without words."""
        return [name for name in self.names if not words or any(word in f"{self.title}: {name}" for word in words)]

    @property
    def head(self) -> str:
        """First two lines of the table."""
        return f"| {' | '.join(self.columns)} |\n|{'---|' * len(self.columns)}"


def machine() -> str:
    """Return cores, memory and system."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    system = f"{platform.system()} {platform.machine()}, CPython {platform.python_version()}"
    return f"{os.cpu_count()} cores, {memory:.0f} GiB, {system}"


def day_and_commit() -> str:
    """Return date and commit of a measurement, "with changes" if sources differ from the commit."""
    commit = _git("rev-parse", "--short", "HEAD") or "unknown"
    changes = " with changes" if _git("status", "--porcelain", "--", "src", "benchmarks/*.py") else ""
    return f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d} at commit {commit}{changes}"


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(HERE.parent), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


class Figures:
    """All measured rows; written after each row, so that an interrupted run loses nothing."""

    def __init__(self) -> None:
        self._tables: dict[str, Any] = json.loads(STORE.read_text())["tables"] if STORE.exists() else {}

    def begin(self, table: Table) -> None:
        """Start a table; its old rows are kept until they are measured again."""
        rows = self._tables.get(table.title, {}).get("rows", {})
        self._tables[table.title] = {"says": table.says, "head": table.head, "rows": rows}

    def end(self, table: Table, names: Sequence[str]) -> None:
        """End a table that was measured completely; keep only these rows."""
        rows = self._tables[table.title]["rows"]
        self._tables[table.title]["rows"] = {name: rows[name] for name in names}

    def add(self, table: Table, line: Line, seconds: float) -> None:
        """Add a row, or replace it."""
        measured = {"text": line.text, "measured": day_and_commit(), "seconds": round(seconds, 1)}
        self._tables[table.title]["rows"][line.name] = measured

    def write(self, order: Sequence[Table]) -> None:
        """Write both files, with the tables in this order."""
        here = machine()
        STORE.write_text(json.dumps({"machine": here, "tables": self._tables}, indent=1, ensure_ascii=False) + "\n")
        known = [table.title for table in order if self._tables.get(table.title, {}).get("rows")]
        sections = [f"Measured on: {here}.", *(section(title, self._tables[title]) for title in known)]
        before, _, rest = README.read_text().partition(BEGIN)
        _, _, after = rest.partition(END)
        README.write_text("\n\n".join([before + BEGIN, *sections, END]) + after)


def section(title: str, table: dict[str, Any]) -> str:
    """Return a table as Markdown."""
    texts = [line["text"] for line in table["rows"].values()]
    rows = [text for text in texts if text.startswith("|")]
    paragraphs = [text for text in texts if not text.startswith("|")]
    grid = "\n".join([table["head"], *rows])
    return "\n\n".join([f"## {title}", *filter(None, [table["says"]]), grid, *paragraphs, provenance(table["rows"])])


def provenance(rows: dict[str, Any]) -> str:
    """Return dates and commits of the measurements, with the names of the rows that differ."""
    groups: dict[str, list[str]] = {}
    for name, line in rows.items():
        groups.setdefault(line["measured"], []).append(name)
    first, *others = sorted(groups, key=lambda when: -len(groups[when]))
    rest = "".join(f"; {when}: {', '.join(groups[when])}" for when in others)
    return f"Measured {first}, in {sum(line['seconds'] for line in rows.values()):.0f} s{rest}."
