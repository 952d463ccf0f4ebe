"""What is done to a sink: each phase is some micro-batches of its query, and how each must end.

The order matters for the verdict. Plain batches come first, then one thing that goes wrong at a time, so that a sink
is told the first rule that it breaks and not what follows from it.
"""

from collections.abc import Collection, Iterator
from typing import Any

from pyspark.sql import DataFrame

from onceflow.errors import OnceflowError
from onceflow.spark.testing import tasks
from onceflow.spark.testing.points import Point
from onceflow.spark.testing.stand import Stand
from onceflow.spark.testing.start import Start
from onceflow.spark.testing.steps import LOSSES, NO_ABORT, Loss
from onceflow.spark.testing.tasks import TaskDeath
from onceflow.spark.testing.verdict import Event, Kind, KitMisused, NotExactlyOnce, Rule

POINTS_MAX = 1000
OVERTAKE_S = 10.0
"""How long a driver that sleeps may hold its successor up; it is ended then."""


def examine(stand: Stand) -> None:
    """Raises NotExactlyOnce, KitMisused, DriverSilent."""
    first_batch(stand)
    ordinary_batches(stand)
    a_batch_again(stand)
    other_batches(stand)
    way = the_way(stand)
    deaths(stand, way)
    for loss in LOSSES:
        deaths(stand, way, loss)
    failed_abort(stand)
    failed_tasks(stand)
    overtaken(stand, way)


def first_batch(stand: Stand) -> None:
    """Batch 0 has no rows, and no proof before it; drivers die at each point of it, one after the other."""
    known: set[Point] = set()

    def is_new(point: Point) -> bool:
        is_new = point not in known
        known.add(point)
        return is_new

    stand.through(Event(Kind.DEATH, 0, "batch 0, which has no rows, came several times"), is_new)
    stand.advance()


def ordinary_batches(stand: Stand) -> None:
    """One start writes some batches, and nothing fails."""
    event = Event(Kind.ORDINARY, stand.query.newest, "batches came without any failure, one of them without rows")
    stand.must_not_stop(event, stand.start(then=(False, True, False)).end())
    stand.must_be_whole(event)


def a_batch_again(stand: Stand) -> None:
    """Spark has lost its own commit of a batch, which comes again, to two more starts."""
    number = stand.query.newest
    event = Event(Kind.REPLAY, number, f"batch {number} was written and came again to another start")
    stand.through(event)
    read = stand.session.sparkContext.accumulator(0)

    def counted(rows: DataFrame) -> DataFrame:
        def count(batches: Iterator[Any]) -> Iterator[Any]:
            for batch in batches:
                read.add(batch.num_rows)
                yield batch

        return rows.mapInArrow(count, rows.schema)

    stand.must_not_stop(event, stand.start(rows=counted).end())
    stand.must_be_whole(event)
    if read.value < len(stand.query.values(number)):
        raise NotExactlyOnce(Rule.NOT_CONSUMED, event.said, f"and {read.value} of its rows were read")
    said = f"{event.said}, which wrote one more"
    stand.must_not_stop(event, stand.start(then=(False,)).end())
    stand.must_be_whole(Event(Kind.REPLAY, stand.query.newest, said))


def other_batches(stand: Stand) -> None:
    """A batch of the same number and other offsets is another one, and an older checkpoint is refused."""
    number = stand.query.newest

    def must_refuse(said: str, start: Start) -> None:
        event = Event(Kind.REPLAY, number, f"batch {number} was written and another start came with {said}")
        error = start.end()
        if error is None:
            raise NotExactlyOnce(Rule.OTHER_BATCH, event.said, "and was not refused")
        if not isinstance(error, OnceflowError):
            # It may have failed by chance, before it looked or behind what it should not have done.
            said = f"and ended by {type(error).__name__}, which is no OnceflowError, so not by a refusal ({error})"
            raise NotExactlyOnce(Rule.OTHER_BATCH, event.said, said) from error
        stand.must_be_whole(event)

    must_refuse("other offsets under the same number", stand.start(offsets_more=1))
    must_refuse("the checkpoint of the batch before", stand.start(at=number - 1))
    stand.advance()


def the_way(stand: Stand) -> tuple[Point, ...]:
    """The points that one batch passes where nothing fails."""
    event = Event(Kind.ORDINARY, stand.query.newest, "a batch came to another start")
    start = stand.start()
    stand.must_not_stop(event, start.end())
    stand.must_be_whole(event)
    stand.advance()
    return tuple(start.reaper.passed)


def deaths(stand: Stand, way: Collection[Point], loss: Loss | None = None) -> None:
    """The driver dies at each point there is, by an exception that cleans up, and its batch is repeated.

    The starts that repeat it die too, at what is not on the way of a batch where nothing fails. With a `loss` the
    first start misses an answer as well, and dies where that leads it.
    """
    for _ in range(POINTS_MAX):
        start = stand.start(stand.new_point, loss=loss)
        error = start.end()
        number, at = stand.query.newest, start.reaper.at
        stand.counts.losses += start.reaper.losses
        if at is None:
            is_there = loss is not None and loss.is_done and loss.step == "commit"
            event = Event(Kind.LOSS, number, f"in batch {number} a step ended with {loss}", was_there=is_there)
            stand.must_not_stop(event, error)
            stand.must_be_whole(event)
            return stand.advance()
        said = f"the driver died {at} in batch {number}{f', which had met {loss}' if loss else ''}"
        event = stand.ended(Event(Kind.DEATH, number, said), at.step)
        stand.through(event, lambda point: point not in way and stand.new_point(point))
        stand.advance()
    raise KitMisused(f"the sink has more than {POINTS_MAX} points where a driver can die: watch fewer modules")


def failed_abort(stand: Stand) -> None:
    """An attempt ends after `write` and cannot be aborted: the next one of the same start goes on all the same."""
    event = Event(Kind.LOSS, stand.query.newest, f"in batch {stand.query.newest} a step ended with {NO_ABORT}")
    start = stand.start(loss=NO_ABORT)
    stand.must_not_stop(event, start.end())
    stand.counts.losses += start.reaper.losses
    stand.must_be_whole(event)
    stand.advance()


def overtaken(stand: Stand, way: Collection[Point]) -> None:
    """The driver falls asleep at each point of a batch's way, its successor starts, and it wakes up."""
    for point in way:
        for overtake in (woken_afterwards, woken_meanwhile):
            sleeper = stand.start(lambda at, point=point: at == point, sleeps=True)  # type: ignore[misc]
            sleeper.wait()
            try:
                if sleeper.is_asleep:
                    overtake(stand, sleeper, point)
            finally:
                sleeper.kill()
            stand.advance()


def woken_afterwards(stand: Stand, sleeper: Start, point: Point) -> None:
    """The sleeper finds that its successor has written the batch."""
    number = stand.query.newest
    event = Event(Kind.DEATH, number, f"the driver was frozen {point} in batch {number}")
    event = stand.ended(event, point.step)
    successor = stand.start()
    if not successor.wait(OVERTAKE_S) or successor.end() is not None:
        # A lock that lives as long as its driver keeps everybody out; no second driver can write then.
        stand.counts.blocked += 1
        sleeper.kill()
        successor.end()
        return stand.through(event)
    stand.must_be_whole(event)
    sleeper.reaper.wake()
    sleeper.end()
    stand.counts.overtaken += 1
    said = f"{event.said}, another start wrote the batch, and it woke up"
    return stand.must_be_whole(Event(Kind.OVERTAKEN, number, said))


def woken_meanwhile(stand: Stand, sleeper: Start, point: Point) -> None:
    """The sleeper goes on when its successor has come to the same point."""
    number = stand.query.newest
    said = f"the driver was frozen {point} in batch {number} and woke up when another start was there too"

    def wake(at: Point) -> bool:
        if at == point:
            sleeper.reaper.wake()
            # It may have to wait for a lock that its successor has.
            sleeper.is_over(OVERTAKE_S)
        return False

    error = stand.start(wake).end()
    sleeper.reaper.wake()
    sleeper.end()
    stand.counts.overtaken += 1
    event = Event(Kind.OVERTAKEN, number, said)
    if error is not None:
        # Either of the two may have stopped the other.
        return stand.through(event)
    return stand.must_be_whole(event)


def failed_tasks(stand: Stand) -> None:
    """A task dies, and is repeated: by Spark where the session does that, else with the whole batch."""
    for when in (tasks.READING, tasks.WRITING, tasks.WRITTEN):
        for task in range(tasks.TASKS):
            failed_task(stand, TaskDeath(task, when, stand.directory / f"{task} {when}"))


def failed_task(stand: Stand, death: TaskDeath) -> None:
    """One task dies in one micro-batch."""
    number = stand.query.newest
    with tasks.dying(death, stand.session):
        error = stand.start(rows=lambda rows: tasks.rows_of(death, rows)).end()
    event = Event(Kind.TASK, number, f"{death} in batch {number}")
    stand.counts.tasks += death.count
    if error is None:
        stand.must_be_whole(event)
    else:
        if not death.count:
            stand.must_not_stop(event, error)
        stand.through(stand.ended(event))
    stand.advance()
