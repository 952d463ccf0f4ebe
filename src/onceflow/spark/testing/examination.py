"""The phases of a check: micro-batches of the sink's query with failures, and how each must end.

The order matters for the verdict. Plain batches come first, then one kind of failure at a time, so that the report
names the first rule that a sink breaks and not its consequences.
"""

from collections.abc import Collection, Iterator
from typing import Any

from pyspark.sql import DataFrame

from onceflow.errors import OnceflowError
from onceflow.spark.testing import tasks
from onceflow.spark.testing.harness import Harness
from onceflow.spark.testing.points import Point
from onceflow.spark.testing.start import Start
from onceflow.spark.testing.steps import LOSSES, NO_ABORT, Loss
from onceflow.spark.testing.tasks import TaskDeath
from onceflow.spark.testing.verdict import Event, Kind, KitMisused, NotExactlyOnce, Rule

POINTS_MAX = 1000
OVERTAKE_S = 10.0
"""Time that a sleeping driver may delay its successor; it is ended then."""


def examine(harness: Harness) -> None:
    """Run all phases. Raises NotExactlyOnce, KitMisused, DriverSilent."""
    first_batch(harness)
    ordinary_batches(harness)
    repeated_batch(harness)
    other_batches(harness)
    points = points_of_one_batch(harness)
    deaths(harness, points)
    for loss in LOSSES:
        deaths(harness, points, loss)
    failed_abort(harness)
    failed_tasks(harness)
    overtaken(harness, points)


def first_batch(harness: Harness) -> None:
    """Kill drivers at each point of batch 0, one after the other; it has no rows and no earlier proof."""
    known: set[Point] = set()

    def is_new(point: Point) -> bool:
        is_new = point not in known
        known.add(point)
        return is_new

    harness.through(Event(Kind.DEATH, 0, "batch 0, which has no rows, came several times"), is_new)
    harness.advance()


def ordinary_batches(harness: Harness) -> None:
    """Write some batches in one start without failures."""
    event = Event(Kind.ORDINARY, harness.query.newest, "batches came without any failure, one of them without rows")
    harness.must_not_stop(event, harness.start(then=(False, True, False)).end())
    harness.must_be_whole(event)


def repeated_batch(harness: Harness) -> None:
    """Repeat a batch in two more starts, as if Spark had lost its own commit of it."""
    number = harness.query.newest
    event = Event(Kind.REPLAY, number, f"batch {number} was written and came again to another start")
    harness.through(event)
    rows_read = harness.session.sparkContext.accumulator(0)

    def counted(rows: DataFrame) -> DataFrame:
        def count(batches: Iterator[Any]) -> Iterator[Any]:
            for batch in batches:
                rows_read.add(batch.num_rows)
                yield batch

        return rows.mapInArrow(count, rows.schema)

    harness.must_not_stop(event, harness.start(rows=counted).end())
    harness.must_be_whole(event)
    if rows_read.value < len(harness.query.values(number)):
        raise NotExactlyOnce(Rule.NOT_CONSUMED, event.description, f"and {rows_read.value} of its rows were read")
    description = f"{event.description}, which wrote one more"
    harness.must_not_stop(event, harness.start(then=(False,)).end())
    harness.must_be_whole(Event(Kind.REPLAY, harness.query.newest, description))


def other_batches(harness: Harness) -> None:
    """Require a refusal of a batch with the same number but other offsets, and of an older checkpoint."""
    number = harness.query.newest

    def must_refuse(description: str, start: Start) -> None:
        event = Event(Kind.REPLAY, number, f"batch {number} was written and another start came with {description}")
        error = start.end()
        if error is None:
            raise NotExactlyOnce(Rule.OTHER_BATCH, event.description, "and was not refused")
        if not isinstance(error, OnceflowError):
            # It may have failed by chance, before its check or after a wrong write.
            description = f"and ended by {type(error).__name__} instead of a refusal by an OnceflowError ({error})"
            raise NotExactlyOnce(Rule.OTHER_BATCH, event.description, description) from error
        harness.must_be_whole(event)

    must_refuse("other offsets under the same number", harness.start(offsets_more=1))
    must_refuse("the checkpoint of the batch before", harness.start(at=number - 1))
    harness.advance()


def points_of_one_batch(harness: Harness) -> tuple[Point, ...]:
    """Return the points that a batch passes without failures."""
    event = Event(Kind.ORDINARY, harness.query.newest, "a batch came to another start")
    start = harness.start()
    harness.must_not_stop(event, start.end())
    harness.must_be_whole(event)
    harness.advance()
    return tuple(start.reaper.passed)


def deaths(harness: Harness, points: Collection[Point], loss: Loss | None = None) -> None:
    """Kill the driver at every point, by an exception that cleans up, and repeat its batch.

    The starts that repeat it die, too, at points that a batch without failures does not pass. With a `loss`, the first
    start also loses a response, and dies at the points that follow from that.
    """
    for _ in range(POINTS_MAX):
        start = harness.start(harness.new_point, loss=loss)
        error = start.end()
        number, at = harness.query.newest, start.reaper.at
        harness.counts.losses += start.reaper.losses
        if at is None:
            is_there = loss is not None and loss.is_done and loss.step == "commit"
            event = Event(Kind.LOSS, number, f"in batch {number} a step ended with {loss}", was_there=is_there)
            harness.must_not_stop(event, error)
            harness.must_be_whole(event)
            return harness.advance()
        description = f"the driver died {at} in batch {number}{f', which had met {loss}' if loss else ''}"
        event = harness.ended(Event(Kind.DEATH, number, description), at.step)
        harness.through(event, lambda point: point not in points and harness.new_point(point))
        harness.advance()
    raise KitMisused(f"the sink has more than {POINTS_MAX} points where a driver can die: watch fewer modules")


def failed_abort(harness: Harness) -> None:
    """End an attempt after `write` and fail its abort: the next attempt of the same start must succeed."""
    event = Event(Kind.LOSS, harness.query.newest, f"in batch {harness.query.newest} a step ended with {NO_ABORT}")
    start = harness.start(loss=NO_ABORT)
    harness.must_not_stop(event, start.end())
    harness.counts.losses += start.reaper.losses
    harness.must_be_whole(event)
    harness.advance()


def overtaken(harness: Harness, points: Collection[Point]) -> None:
    """Put the driver to sleep at each point of a batch, start its successor, and wake it."""
    for point in points:
        for overtake in (woken_afterwards, woken_meanwhile):
            sleeper = harness.start(lambda at, point=point: at == point, sleeps=True)  # type: ignore[misc]
            sleeper.wait()
            try:
                if sleeper.is_asleep:
                    overtake(harness, sleeper, point)
            finally:
                sleeper.kill()
            harness.advance()


def woken_afterwards(harness: Harness, sleeper: Start, point: Point) -> None:
    """Wake the sleeper after its successor has written the batch."""
    number = harness.query.newest
    event = Event(Kind.DEATH, number, f"the driver was frozen {point} in batch {number}")
    event = harness.ended(event, point.step)
    successor = harness.start()
    if not successor.wait(OVERTAKE_S) or successor.end() is not None:
        # With a lock that lives as long as its driver, no second driver can write.
        harness.counts.blocked += 1
        sleeper.kill()
        successor.end()
        return harness.through(event)
    harness.must_be_whole(event)
    sleeper.reaper.wake()
    sleeper.end()
    harness.counts.overtaken += 1
    description = f"{event.description}, another start wrote the batch, and it woke up"
    return harness.must_be_whole(Event(Kind.OVERTAKEN, number, description))


def woken_meanwhile(harness: Harness, sleeper: Start, point: Point) -> None:
    """Wake the sleeper when its successor has reached the same point."""
    number = harness.query.newest
    description = f"the driver was frozen {point} in batch {number} and woke up when another start was there too"

    def wake(at: Point) -> bool:
        if at == point:
            sleeper.reaper.wake()
            # It may have to wait for its successor's lock.
            sleeper.is_over(OVERTAKE_S)
        return False

    error = harness.start(wake).end()
    sleeper.reaper.wake()
    sleeper.end()
    harness.counts.overtaken += 1
    event = Event(Kind.OVERTAKEN, number, description)
    if error is not None:
        # Either of the two may have stopped the other.
        return harness.through(event)
    return harness.must_be_whole(event)


def failed_tasks(harness: Harness) -> None:
    """Kill a task; Spark repeats it if the session allows that, otherwise the whole batch is repeated."""
    for when in (tasks.READING, tasks.WRITING, tasks.WRITTEN):
        for task in range(tasks.TASKS):
            failed_task(harness, TaskDeath(task, when, harness.directory / f"{task} {when}"))


def failed_task(harness: Harness, death: TaskDeath) -> None:
    """Kill one task in one micro-batch."""
    number = harness.query.newest
    with tasks.dying(death, harness.session):
        error = harness.start(rows=lambda rows: tasks.rows_of(death, rows)).end()
    event = Event(Kind.TASK, number, f"{death} in batch {number}")
    harness.counts.tasks += death.count
    if error is None:
        harness.must_be_whole(event)
    else:
        if not death.count:
            harness.must_not_stop(event, error)
        harness.through(harness.ended(event))
    harness.advance()
