"""Command that measures the tables of README.md: all rows, or those whose names contain a given word.

python -m benchmarks                       everything
python -m benchmarks "Memory" "fetch, raw" these
python -m benchmarks --list                the names
"""

import logging
import sys
import time
from collections.abc import Sequence

from benchmarks import (
    against_kafka,
    cluster,
    connector,
    in_process,
    load,
    memory,
    pipeline,
    queues,
    secured,
    start,
    stored,
)
from benchmarks.figures import Figures, Table

TABLES = (
    against_kafka.TABLE,
    secured.TABLE,
    stored.TABLE,
    cluster.TABLE,
    queues.TABLE,
    memory.TABLE,
    start.TABLE,
    in_process.TABLE,
    pipeline.TABLE,
    load.TABLE,
    connector.TABLE,
)
logger = logging.getLogger("benchmarks")


def run(table: Table, names: Sequence[str], figures: Figures) -> bool:
    """Measure, print and write each row; return False if the table is incomplete."""
    figures.begin(table)
    measured = []
    print(f"\n## {table.title}\n\n{table.head}", flush=True)
    begin = time.perf_counter()
    try:
        for line in table.measure(names):
            print(line.text, flush=True)
            figures.add(table, line, time.perf_counter() - begin)
            measured.append(line.name)
            figures.write(TABLES)
            begin = time.perf_counter()
    except (Exception, SystemExit):
        logger.exception("%s: cut short", table.title)
        return False
    if len(names) == len(table.names):
        figures.end(table, measured)
        figures.write(TABLES)
    return True


def main(words: Sequence[str]) -> int:
    """Return the exit code: 1 for an incomplete table, 2 for a word that matches no row."""
    if list(words) == ["--list"]:
        print(*(f"{table.title}: {name}" for table in TABLES for name in table.names), sep="\n")
        return 0
    unknown = [word for word in words if not any(table.chosen([word]) for table in TABLES)]
    if unknown:
        print(f"no row has {' or '.join(map(repr, unknown))} in its name; see --list", file=sys.stderr)
        return 2
    figures = Figures()
    chosen = [(table, names) for table in TABLES if (names := table.chosen(words))]
    failed = [table.title for table, names in chosen if not run(table, names, figures)]
    if failed:
        print(f"cut short, run again by name: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
