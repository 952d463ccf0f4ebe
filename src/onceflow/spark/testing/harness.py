"""Harness of a sink under test: consecutive starts of one query, and a reader of the target."""

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from onceflow.spark.sink import MarkerRefused
from onceflow.spark.testing.points import Point, Reaper
from onceflow.spark.testing.query import Query, Seen, seen
from onceflow.spark.testing.start import Start
from onceflow.spark.testing.steps import BatchSink, Loss
from onceflow.spark.testing.verdict import (
    Event,
    NotExactlyOnce,
    Rule,
    refuse_before_commit,
    refuse_foreign,
    refuse_unless_whole,
)

STARTS_MAX = 1000
"""Maximum starts for one batch; each dies at another point."""
READ_AGAIN_S = 0.05

Make = Callable[[str, Reaper, Loss | None], BatchSink]
"""Checkpoint, reaper, and the response to lose → a sink for foreachBatch."""
Rows = Callable[[DataFrame], DataFrame]


def never(point: Point) -> bool:
    """Return false: the driver does not die."""
    return False


def identity(rows: DataFrame) -> DataFrame:
    """Return the rows unchanged."""
    return rows


@dataclass
class Counts:
    """Counts of the failures that a sink was subjected to."""

    points: dict[Point, None] = field(default_factory=dict)
    """Points where drivers died."""
    overtaken: int = 0
    """Drivers that slept, were overtaken and woke up."""
    blocked: int = 0
    """Drivers that slept with a lock of the target and so could not be overtaken until they were ended."""
    losses: int = 0
    tasks: int = 0


@dataclass(frozen=True)
class Harness:
    """One sink and one query under test."""

    make: Make
    read: Callable[[], Iterable[str]]
    session: SparkSession
    query: Query
    directory: Path
    columns: Rows
    files: Collection[str]
    lines: bool
    visible_within_ms: int
    counts: Counts = field(default_factory=Counts)

    def start(
        self,
        wanted: Callable[[Point], bool] = never,
        *,
        sleeps: bool = False,
        loss: Loss | None = None,
        rows: Rows = identity,
        at: int | None = None,
        offsets_more: int = 0,
        then: Sequence[bool] = (),
    ) -> Start:
        """Start a driver that writes the newest batch, or batch `at`, and one more per item of `then` (true: empty)."""
        number = self.query.newest if at is None else at
        checkpoint = self.query.checkpoint(number, offsets_more=offsets_more)
        reaper = Reaper(wanted, sleeps=sleeps)

        def write(sink: BatchSink, number: int) -> None:
            sink(self.columns(rows(self.query.rows(self.session, number))), number)
            reaper.visit("", "", 0, "after the sink returned", "")

        def run(sink: BatchSink) -> None:
            sink.open(self.session)
            write(sink, number)
            for is_empty in then:
                more = self.query.plan_next(empty=is_empty)
                self.query.advance(checkpoint, more)
                write(sink, more)

        files = self.files if self.lines else None
        return Start(lambda: self.make(str(checkpoint), reaper, loss), run, reaper, files)

    def new_point(self, point: Point) -> bool:
        """Return whether no driver has died at this point yet; record that one does now."""
        is_new = point not in self.counts.points
        self.counts.points[point] = None
        return is_new

    def ended(self, event: Event, step: str = "") -> Event:
        """Check what a driver has left that ended in a step of its sink. Raises NotExactlyOnce."""
        view = self.look(lambda view: view.is_absent or view.is_whole)
        refuse_before_commit(event, step, view)
        committing = event.was_committing or step == "commit"
        return replace(event, was_there=view.is_whole and view.of > 0, was_committing=committing)

    def through(self, event: Event, wanted: Callable[[Point], bool] = never) -> None:
        """Repeat the newest batch after `event` until a start ends. Raises NotExactlyOnce."""
        for _ in range(STARTS_MAX):
            start = self.start(wanted)
            error = start.end()
            at = start.reaper.at
            if at is None:
                self.must_not_stop(event, error)
                return self.must_be_whole(event)
            description = f"{event.description}, the next one {at}"
            event = self.ended(replace(event, description=description), at.step)
        raise NotExactlyOnce(Rule.STOPPED, event.description, f"and {STARTS_MAX} starts did not get through")

    def must_not_stop(self, event: Event, error: BaseException | None) -> None:
        """Raise NotExactlyOnce if a driver ended with an error although nothing was wrong."""
        if error is not None:
            rule = Rule.FORGOTTEN if isinstance(error, MarkerRefused) else Rule.STOPPED
            raise NotExactlyOnce(rule, event.description, f"and the query stopped ({error})") from error

    def must_be_whole(self, event: Event) -> None:
        """Check that each value up to the newest batch is visible once. Raises NotExactlyOnce, KitMisused."""
        refuse_unless_whole(event, self.look(lambda view: view.is_whole))

    def advance(self) -> None:
        """Commit the newest batch and plan another."""
        self.query.plan_next()

    def look(self, wanted: Callable[[Seen], bool]) -> Seen:
        """Return a reader's view of the newest batch; wait for a limited time until it is `wanted`."""
        deadline = time.monotonic() + self.visible_within_ms / 1000
        while True:
            view = seen(self.query, self.query.newest, self.read())
            if wanted(view) or time.monotonic() >= deadline:
                refuse_foreign(view)
                return view
            time.sleep(READ_AGAIN_S)
