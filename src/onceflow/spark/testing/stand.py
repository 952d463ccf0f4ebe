"""Where a sink is put to be examined: starts of one query follow one another, and a reader looks at the target."""

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
"""Of one batch: each dies at another point."""
READ_AGAIN_S = 0.05

Make = Callable[[str, Reaper, Loss | None], BatchSink]
"""Checkpoint, who watches, and which answer is lost → what foreachBatch gets."""
Rows = Callable[[DataFrame], DataFrame]


def never(point: Point) -> bool:
    """A driver that does not die."""
    return False


def as_they_are(rows: DataFrame) -> DataFrame:
    """The rows of a batch in which nothing happens."""
    return rows


@dataclass
class Counts:
    """What was done to a sink."""

    points: dict[Point, None] = field(default_factory=dict)
    """Where drivers died."""
    overtaken: int = 0
    """Drivers that slept, were overtaken, and woke up."""
    blocked: int = 0
    """Drivers that slept with a lock of the target, so that nobody could overtake them until they were ended."""
    losses: int = 0
    tasks: int = 0


@dataclass(frozen=True)
class Stand:
    """One sink, one query."""

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
        rows: Rows = as_they_are,
        at: int | None = None,
        offsets_more: int = 0,
        then: Sequence[bool] = (),
    ) -> Start:
        """A start that writes the newest batch, or batch `at`; `then` more of them, true: one without rows."""
        number = self.query.newest if at is None else at
        checkpoint = self.query.checkpoint(number, offsets_more=offsets_more)
        reaper = Reaper(wanted, sleeps=sleeps)

        def write(sink: BatchSink, number: int) -> None:
            sink(self.columns(rows(self.query.rows(self.session, number))), number)
            reaper.visit("", "", 0, "after the sink had returned", "")

        def run(sink: BatchSink) -> None:
            sink.open(self.session)
            write(sink, number)
            for is_empty in then:
                more = self.query.plan_next(empty=is_empty)
                self.query.go_on(checkpoint, more)
                write(sink, more)

        files = self.files if self.lines else None
        return Start(lambda: self.make(str(checkpoint), reaper, loss), run, reaper, files)

    def new_point(self, point: Point) -> bool:
        """Whether no driver has died there yet; one does now."""
        is_new = point not in self.counts.points
        self.counts.points[point] = None
        return is_new

    def ended(self, event: Event, step: str = "") -> Event:
        """Looks at what is left by a driver that has ended in a step of its sink. Raises NotExactlyOnce."""
        found = self.look(lambda found: found.is_absent or found.is_whole)
        refuse_before_commit(event, step, found)
        return replace(event, was_there=found.is_whole and found.of > 0)

    def through(self, event: Event, wanted: Callable[[Point], bool] = never) -> None:
        """Repeats the newest batch, which `event` has happened to, until a start ends. Raises NotExactlyOnce."""
        for _ in range(STARTS_MAX):
            start = self.start(wanted)
            error = start.end()
            at = start.reaper.at
            if at is None:
                self.must_not_stop(event, error)
                return self.must_be_whole(event)
            said = f"{event.said}, the next one {at}"
            event = self.ended(replace(event, said=said), at.step)
        raise NotExactlyOnce(Rule.STOPPED, event.said, f"and {STARTS_MAX} starts did not get through")

    def must_not_stop(self, event: Event, error: BaseException | None) -> None:
        """Raises NotExactlyOnce where a driver ended with an error and nothing was wrong."""
        if error is not None:
            rule = Rule.FORGOTTEN if isinstance(error, MarkerRefused) else Rule.STOPPED
            raise NotExactlyOnce(rule, event.said, f"and the query stopped ({error})") from error

    def must_be_whole(self, event: Event) -> None:
        """Each value of the newest batch and of all before it is there once. Raises NotExactlyOnce, KitMisused."""
        refuse_unless_whole(event, self.look(lambda found: found.is_whole))

    def advance(self) -> None:
        """Spark commits the newest batch, and plans another."""
        self.query.plan_next()

    def look(self, wanted: Callable[[Seen], bool]) -> Seen:
        """What a reader sees of the newest batch; again for a while where that is not what is wanted."""
        deadline = time.monotonic() + self.visible_within_ms / 1000
        while True:
            found = seen(self.query, self.query.newest, self.read())
            if wanted(found) or time.monotonic() >= deadline:
                refuse_foreign(found)
                return found
            time.sleep(READ_AGAIN_S)
