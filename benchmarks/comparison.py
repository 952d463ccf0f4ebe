"""Rows of figures with a peer's from the same run: alternating order, medians, spreads and goals."""

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import TypeVar

from benchmarks.figures import Line
from benchmarks.peers import OURS, Peer, fresh_topic, touch_memory

RUNS = 5
K = TypeVar("K")
T = TypeVar("T")
Measure = Callable[[Peer, str], Sequence[float]]
"""Function that measures on a fresh topic and returns a value for each `Figure` of its row."""


@dataclass(frozen=True)
class Goal:
    """Required and desired ratio ours / theirs: a minimum, or a maximum for times and costs."""

    at_least: float
    aim: float
    is_cost: bool = False

    def verdict(self, ratio: float) -> str:
        """Return whether a ratio reaches the goal and the aim."""
        sign = -1 if self.is_cost else 1
        if sign * ratio >= sign * self.aim:
            return "aim"
        return "yes" if sign * ratio >= sign * self.at_least else "**no**"

    def __str__(self) -> str:
        return f"{self.at_least:g}, {self.aim:g}"


CPU_GOAL = Goal(1.0, 0.6, is_cost=True)


@dataclass(frozen=True)
class Figure:
    """Value of a run, and its goal, if any."""

    name: str
    unit: str
    goal: Goal | None


class Durability(Enum):
    """State of a record when it is acknowledged."""

    NONE = "none"
    SYNCED = "fsync"
    OWN_DEFAULT = "own default: fsync, theirs none"


@dataclass(frozen=True)
class Row:
    """Kind of work, with the same durability on both brokers or with their defaults."""

    measure: Measure
    figures: tuple[Figure, ...]
    durability: Durability = Durability.NONE
    cpu_goal: Goal = CPU_GOAL

    @property
    def name(self) -> str:
        """Name of the first line."""
        return self.line_name(self.figures[0])

    def line_name(self, figure: Figure) -> str:
        """Return the unique name of a line."""
        return f"{figure.name}, {self.durability.value}"

    def config(self, peer: Peer) -> Mapping[str, str]:
        """Return the topic configs for that durability."""
        if self.durability is Durability.OWN_DEFAULT:
            return {}
        return peer.synced if self.durability is Durability.SYNCED else peer.unsynced


@dataclass(frozen=True)
class Run:
    """Result of one run on one peer."""

    values: Sequence[float]
    cpu_seconds: float


def measured(row: Row, peer: Peer, topic: str, config: Mapping[str, str]) -> Run:
    """Return the result of one run on a fresh topic."""
    with fresh_topic(peer, topic, config) as name:
        before = peer.cpu_seconds()
        values = row.measure(peer, name)
        return Run(values, peer.cpu_seconds() - before)


def in_turns(contenders: Mapping[K, Callable[[int], T]], count: int, *, uncounted: int = 0) -> dict[K, list[T]]:
    """Return the results of `count` runs of each; every second round is in reverse order.

    `uncounted` rounds, with negative numbers, come first.
    """
    results: dict[K, list[T]] = {name: [] for name in contenders}
    for number in range(-uncounted, count):
        for name in contenders if number % 2 == 0 else reversed(list(contenders)):
            measured_now = contenders[name](number)
            if number >= 0:
                results[name].append(measured_now)
    return results


def compared(row: Row, peers: Sequence[Peer], number: int, runs: int = RUNS) -> dict[str, list[Run]]:
    """Return all runs of a row, after an uncounted run that warms both up."""
    touch_memory()

    def one(peer: Peer, run: int) -> Run:
        return measured(row, peer, f"bench-{number}-{run}", row.config(peer))

    return in_turns({peer.name: partial(one, peer) for peer in peers}, runs, uncounted=1)


def spread(values: Sequence[float]) -> str:
    """Return median and range, with suitable digits."""
    digits = ",.0f" if statistics.median(values) >= 100 else ",.2f"
    return f"{statistics.median(values):{digits}} ({min(values):{digits}} to {max(values):{digits}})"


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Return the ratios of paired runs."""
    return [mine / its for mine, its in zip(ours, theirs, strict=True)]


def lines(row: Row, results: Mapping[str, list[Run]]) -> Iterator[Line]:
    """Yield the table's lines of one row."""
    theirs = next((runs for name, runs in results.items() if name != OURS), None)
    for place, figure in enumerate(row.figures):
        mine = [run.values[place] for run in results[OURS]]
        cells = [figure.name, row.durability.value, f"{spread(mine)} {figure.unit}"]
        if theirs is None:
            cells += [""] * 5
        else:
            its = [run.values[place] for run in theirs]
            cpu = ratios([run.cpu_seconds for run in results[OURS]], [run.cpu_seconds for run in theirs])
            cells += [f"{spread(its)} {figure.unit}", *judged(ratios(mine, its), figure.goal), judged_cpu(row, cpu)]
        yield Line(row.line_name(figure), f"| {' | '.join(cells)} |")


def judged(results: Sequence[float], goal: Goal | None) -> tuple[str, str, str]:
    """Return the cells ratio, goal and verdict."""
    if goal is None:
        return spread(results), "not judged", ""
    return spread(results), str(goal), goal.verdict(statistics.median(results))


def judged_cpu(row: Row, results: Sequence[float]) -> str:
    """Return the cell of CPU time; different durabilities, and rows without a goal, are not judged."""
    is_judged = row.durability is not Durability.OWN_DEFAULT and row.figures[0].goal is not None
    return f"{spread(results)} {row.cpu_goal.verdict(statistics.median(results))}" if is_judged else spread(results)


def columns(cpu_goal: Goal = CPU_GOAL) -> tuple[str, ...]:
    """Return the heading of a table of such rows."""
    return (
        "what",
        "before the response",
        "onceflow",
        "Apache Kafka",
        "ours / its",
        "at least, aim",
        "reached",
        f"CPU, ours / its (at most, aim: {cpu_goal})",
    )
