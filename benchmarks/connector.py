"""onceflow.spark beside Spark's JVM connector and PyFlink: the same topic, the same Redis, two cores for each.

One driver for each contender, its session warm; the contenders take turns. Processor time is that of the driver, its
JVM and its Python workers; Kafka and Redis are the same for all and not in it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

from benchmarks.comparison import Goal, judged, ratios, spread
from benchmarks.figures import Line, Table, row
from benchmarks.stage import CLICKS, OURS, PEER, Stage

RUNS = 5
OFFSETS_PER_TRIGGER_MAX = 500_000
Part = Callable[[Stage], Iterator[Line]]


def compared(name: str, unit: str, goal: Goal | None, ours: Sequence[float], theirs: Sequence[float]) -> Line:
    """A row of the table: runs side by side."""
    cells = [f"{spread(ours)} {unit}", f"{spread(theirs)} {unit}", *judged(ratios(ours, theirs), goal)]
    return row(name, *cells)


def drain(stage: Stage) -> Iterator[Line]:
    """Push-downs and raw records beside the same runs of the peer."""
    found: dict[str, list[tuple[float, float]]] = {"pushdown": [], "raw": [], "jvm": []}
    for number in range(-1, RUNS):
        for pipeline in found if number % 2 else reversed(found):
            measured = drained(stage, pipeline)
            if number >= 0:
                found[pipeline].append(measured)
    speeds = {name: [speed for speed, _ in runs] for name, runs in found.items()}
    cpu = {name: [seconds for _, seconds in runs] for name, runs in found.items()}
    yield compared("drain to Redis, with push-downs", "events/s", Goal(1.5, 2.5), speeds["pushdown"], speeds["jvm"])
    yield compared(
        "drain to Redis, with push-downs, CPU", "s", Goal(0.7, 0.4, is_cost=True), cpu["pushdown"], cpu["jvm"]
    )
    yield compared("drain to Redis, raw records", "events/s", Goal(0.9, 1.2), speeds["raw"], speeds["jvm"])
    yield compared("drain to Redis, raw records, CPU", "s", None, cpu["raw"], cpu["jvm"])


def drained(stage: Stage, pipeline: str) -> tuple[float, float]:
    """Events per second and processor time of one drain, whose sums are right."""
    work = stage.counting(pipeline, offsets_per_trigger_max=OFFSETS_PER_TRIGGER_MAX)
    driver = stage.driver(PEER if pipeline == "jvm" else OURS)
    before = driver.cpu_seconds()
    seconds = driver.ask("drain", **work)["seconds"]
    cpu_seconds = driver.cpu_seconds() - before
    wrong = stage.wrong_users(work)
    if wrong:
        raise SystemExit(f"{pipeline}: {wrong} users have a wrong sum after a drain, so that its time is of no use")
    return stage.clicks.count / seconds, cpu_seconds


PARTS: Mapping[str, Part] = {
    "drain to Redis": drain,
}


def measure(names: Sequence[str]) -> Iterator[Line]:
    """The parts of these names, on one stage."""
    with Stage() as stage:
        for name in names:
            yield from PARTS[name](stage)


TABLE = Table(
    "The connector",
    ("what", "onceflow", "beside", "ours / its", "at least, aim", "reached"),
    tuple(PARTS),
    measure,
    says=f"{CLICKS:,} clicks.",
)
