"""Rows of figures, ours beside a peer's from the same run: alternating order, medians, spreads, and goals."""

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import TypeVar

from benchmarks.figures import Line
from benchmarks.peers import OURS, Peer, fresh_topic, touch_memory

RUNS = 5
T = TypeVar("T")
Measure = Callable[[Peer, str], Sequence[float]]
"""Measures on a fresh topic; gives a figure for each `Figure` of its row."""


@dataclass(frozen=True)
class Goal:
    """What is asked of a ratio ours / theirs: the least, and the aim; of a time or a cost the most."""

    at_least: float
    aim: float
    is_cost: bool = False

    def verdict(self, ratio: float) -> str:
        """Where a ratio stands between what is asked and what is aimed at."""
        sign = -1 if self.is_cost else 1
        if sign * ratio >= sign * self.aim:
            return "aim"
        return "yes" if sign * ratio >= sign * self.at_least else "**no**"

    def __str__(self) -> str:
        return f"{self.at_least:g}, {self.aim:g}"


CPU_GOAL = Goal(1.0, 0.6, is_cost=True)


@dataclass(frozen=True)
class Figure:
    """What is read off a run, and what is asked of it, if anything."""

    name: str
    unit: str
    goal: Goal | None


class Durability(Enum):
    """What has happened to a record before it is acknowledged."""

    NONE = "none"
    SYNCED = "fsync"
    OWN_DEFAULT = "own default: fsync, theirs none"


@dataclass(frozen=True)
class Row:
    """One kind of work, at one durability on both brokers, or at what each has by default."""

    measure: Measure
    figures: tuple[Figure, ...]
    durability: Durability = Durability.NONE

    @property
    def name(self) -> str:
        """The first figure's."""
        return self.line_name(self.figures[0])

    def line_name(self, figure: Figure) -> str:
        """Of all lines this one's."""
        return f"{figure.name}, {self.durability.value}"

    def config(self, peer: Peer) -> Mapping[str, str]:
        """Topic settings for that durability."""
        if self.durability is Durability.OWN_DEFAULT:
            return {}
        return peer.synced if self.durability is Durability.SYNCED else peer.unsynced


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


def in_turns(contenders: Mapping[str, Callable[[int], T]], count: int, *, uncounted: int = 0) -> dict[str, list[T]]:
    """What `count` runs of each gave, by their numbers, every second round in the other order.

    Before them come `uncounted` rounds, numbered below 0.
    """
    found: dict[str, list[T]] = {name: [] for name in contenders}
    for number in range(-uncounted, count):
        for name in contenders if number % 2 == 0 else reversed(list(contenders)):
            measured_now = contenders[name](number)
            if number >= 0:
                found[name].append(measured_now)
    return found


def compared(row: Row, peers: Sequence[Peer], number: int, runs: int = RUNS) -> dict[str, list[Run]]:
    """All runs of a row; a run before them, which is not counted, warms both."""
    touch_memory()

    def one(peer: Peer, run: int) -> Run:
        return measured(row, peer, f"bench-{number}-{run}", row.config(peer))

    return in_turns({peer.name: partial(one, peer) for peer in peers}, runs, uncounted=1)


def spread(values: Sequence[float]) -> str:
    """Median and range, with as many digits as they deserve."""
    digits = ",.0f" if statistics.median(values) >= 100 else ",.2f"
    return f"{statistics.median(values):{digits}} ({min(values):{digits}} to {max(values):{digits}})"


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Of runs that stood side by side."""
    return [mine / its for mine, its in zip(ours, theirs, strict=True)]


def lines(row: Row, found: Mapping[str, list[Run]]) -> Iterator[Line]:
    """The table's lines for one row."""
    theirs = next((runs for name, runs in found.items() if name != OURS), None)
    for place, figure in enumerate(row.figures):
        mine = [run.values[place] for run in found[OURS]]
        cells = [figure.name, row.durability.value, f"{spread(mine)} {figure.unit}"]
        if theirs is None:
            cells += [""] * 5
        else:
            its = [run.values[place] for run in theirs]
            cpu = ratios([run.cpu_seconds for run in found[OURS]], [run.cpu_seconds for run in theirs])
            cells += [f"{spread(its)} {figure.unit}", *judged(ratios(mine, its), figure.goal), judged_cpu(row, cpu)]
        yield Line(row.line_name(figure), f"| {' | '.join(cells)} |")


def judged(found: Sequence[float], goal: Goal | None) -> tuple[str, str, str]:
    """Cells: the ratio, what is asked, what is reached."""
    if goal is None:
        return spread(found), "not judged", ""
    return spread(found), str(goal), goal.verdict(statistics.median(found))


def judged_cpu(row: Row, found: Sequence[float]) -> str:
    """One cell; other durability is other work, and not judged, nor is a row that has no goal."""
    is_judged = row.durability is not Durability.OWN_DEFAULT and row.figures[0].goal is not None
    return f"{spread(found)} {CPU_GOAL.verdict(statistics.median(found))}" if is_judged else spread(found)


COLUMNS = (
    "what",
    "before the answer",
    "onceflow",
    "Apache Kafka",
    "ours / its",
    "at least, aim",
    "reached",
    f"CPU, ours / its (at most, aim: {CPU_GOAL})",
)
