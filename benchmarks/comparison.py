"""Rows of figures, ours beside a peer's from the same run: alternating order, medians, spreads, and goals."""

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.peers import OURS, Peer, fresh_topic, touch_memory

RUNS = 5
Measure = Callable[[Peer, str], Sequence[float]]
"""Measures on a fresh topic; gives a figure for each `Figure` of its row."""


@dataclass(frozen=True)
class Figure:
    """What is read off a run, and what is asked of it: of ratios ours / theirs the least (for a time: the most)."""

    name: str
    unit: str
    at_least: float
    aim: float
    is_time: bool = False

    def verdict(self, ratio: float) -> str:
        """Where a ratio stands between what is asked and what is aimed at."""
        sign = -1 if self.is_time else 1
        if sign * ratio >= sign * self.aim:
            return "aim"
        return "yes" if sign * ratio >= sign * self.at_least else "**no**"


@dataclass(frozen=True)
class Row:
    """One kind of work; `is_synced`: whether acknowledged records are on the disk, on both brokers."""

    measure: Measure
    figures: tuple[Figure, ...]
    is_synced: bool = False

    def config(self, peer: Peer) -> Mapping[str, str]:
        """Topic settings for equal durability."""
        return peer.synced if self.is_synced else peer.unsynced


@dataclass(frozen=True)
class Run:
    """What one run on one peer gave."""

    values: Sequence[float]
    cpu_seconds: float


def measured(row: Row, peer: Peer, topic: str, config: Mapping[str, str]) -> Run:
    """One run on a fresh topic."""
    with fresh_topic(peer, topic, config) as name:
        before = peer.cpu_seconds()
        values = row.measure(peer, name)
        return Run(values, peer.cpu_seconds() - before)


def alternate(peers: Sequence[Peer], count: int, run: Callable[[Peer, int], Run]) -> dict[str, list[Run]]:
    """`count` runs of each peer, every second round in the other order."""
    found: dict[str, list[Run]] = {peer.name: [] for peer in peers}
    for number in range(count):
        for peer in peers if number % 2 == 0 else reversed(peers):
            found[peer.name].append(run(peer, number))
    return found


def compared(row: Row, peers: Sequence[Peer], number: int, runs: int = RUNS) -> dict[str, list[Run]]:
    """All runs of a row; a run before them, which is not counted, warms both."""
    touch_memory()

    def one(peer: Peer, run: int) -> Run:
        return measured(row, peer, f"bench-{number}-{run}", row.config(peer))

    alternate(peers, 1, lambda peer, _: one(peer, -1))
    return alternate(peers, runs, one)


def spread(values: Sequence[float]) -> str:
    """Median and range, with as many digits as they deserve."""
    digits = ",.0f" if statistics.median(values) >= 100 else ",.2f"
    return f"{statistics.median(values):{digits}} ({min(values):{digits}} to {max(values):{digits}})"


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """The median of the ratios of runs that stood side by side."""
    return statistics.median(mine / its for mine, its in zip(ours, theirs, strict=True))


def lines(row: Row, found: Mapping[str, list[Run]]) -> Iterator[str]:
    """The table's lines for one row."""
    theirs = next((runs for name, runs in found.items() if name != OURS), None)
    for place, figure in enumerate(row.figures):
        mine = [run.values[place] for run in found[OURS]]
        cells = [figure.name, "fsync" if row.is_synced else "none", f"{spread(mine)} {figure.unit}"]
        if theirs is None:
            yield f"| {' | '.join(cells)} | | | | |"
            continue
        its = [run.values[place] for run in theirs]
        ratio = ratios(mine, its)
        asked = f"{figure.at_least:g}, {figure.aim:g}"
        cpu = ratios([run.cpu_seconds for run in found[OURS]], [run.cpu_seconds for run in theirs])
        cells += [f"{spread(its)} {figure.unit}", f"{ratio:.2f}", asked, figure.verdict(ratio), f"{cpu:.2f}"]
        yield f"| {' | '.join(cells)} |"


HEAD = """\
| what | before the answer | onceflow | Apache Kafka | ours / its | at least, aim | reached | CPU, ours / its |
|---|---|---|---|---|---|---|---|"""
