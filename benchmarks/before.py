"""Comparison of this broker with that of another checkout, such as an earlier version, in the rows of Kafka's.

    python -m benchmarks.before ../before                      every row
    python -m benchmarks.before ../before "fetch, raw" "Java"   rows whose names have these words

Both run with the libraries of this environment. Printed only: what is worse than before shows in one run here.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.against_kafka import rows
from benchmarks.comparison import RUNS, Durability, Row, Run, compared, ratios, spread
from benchmarks.peers import NEVER, OURS, Peer
from onceflow.testing import BrokerProcess

BEFORE = "before"
HEAD = "| what | before the response | now | before | now / before | CPU, now / before |\n|---|---|---|---|---|---|"


class BrokerOf(BrokerProcess):
    """Broker with the sources of another checkout."""

    def __init__(self, checkout: Path, data: Path) -> None:
        super().__init__(data)
        self._sources = checkout.resolve() / "src"

    def _environment(self) -> Mapping[str, str]:
        return {**os.environ, "PYTHONPATH": str(self._sources)}


@contextmanager
def versions(checkout: Path, directory: Path) -> Iterator[list[Peer]]:
    """Run both brokers."""
    brokers = {OURS: BrokerProcess(directory / "now"), BEFORE: BrokerOf(checkout, directory / "before")}
    with ExitStack() as exits:
        for broker in brokers.values():
            exits.enter_context(broker)
        unsynced = {"flush.messages": NEVER}
        yield [Peer(name, broker.bootstrap, broker.pid, unsynced=unsynced) for name, broker in brokers.items()]


def lines(row: Row, runs: Mapping[str, list[Run]]) -> Iterator[str]:
    """Yield the table's lines of one row."""
    cpu = ratios([run.cpu_seconds for run in runs[OURS]], [run.cpu_seconds for run in runs[BEFORE]])
    for place, figure in enumerate(row.figures):
        now, before = ([run.values[place] for run in runs[name]] for name in (OURS, BEFORE))
        shown = (f"{spread(now)} {figure.unit}", f"{spread(before)} {figure.unit}", spread(ratios(now, before)))
        yield f"| {' | '.join((figure.name, row.durability.value, *shown, spread(cpu)))} |"


def main(arguments: Sequence[str]) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path, help="of the other version, with its src/")
    parser.add_argument("words", nargs="*", help="of the rows' names; all rows without")
    parser.add_argument("--runs", type=int, default=RUNS, help="of each row on each broker (default: %(default)s)")
    options = parser.parse_args(arguments)
    if not (options.checkout / "src" / "onceflow").is_dir():
        parser.error(f"{options.checkout} has no src/onceflow")
    print(HEAD, flush=True)
    with tempfile.TemporaryDirectory() as directory, versions(options.checkout, Path(directory)) as both:
        for number, row in enumerate(rows()):
            is_asked = not options.words or any(word in row.name for word in options.words)
            if is_asked and row.durability is not Durability.OWN_DEFAULT:
                print(*lines(row, compared(row, both, number, options.runs)), sep="\n", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
