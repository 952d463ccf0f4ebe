"""onceflow.spark, Spark's JVM connector and PyFlink: the same topic, the same Redis, two cores each.

Each contender has a driver with a warm session; the contenders take turns. Processor time is that of the driver, its
JVM and its Python workers, without Kafka and Redis, which all share.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

from benchmarks import clicks_topic, flink, killed_drain, latency
from benchmarks.child import Child
from benchmarks.comparison import Goal, in_turns, judged, ratios, spread
from benchmarks.figures import Line, Table, row
from benchmarks.stage import CLICKS, OURS, PEER, Stage
from onceflow.clicks.job import EVENTS_PER_BATCH_MAX

RUNS = 5
RATES = (1_000, 20_000)
ROWS = (200_000, 1_000_000)
SINK_GOALS = {"lz4": Goal(0.7, 1.1), "none": Goal(0.5, 1.0)}
PEERS = {OURS: "pushdown", PEER: "jvm"}
"""Pipeline of each contender, in rows with one pipeline each."""
Part = Callable[[Stage], Iterator[Line]]
T = TypeVar("T")


class Run(NamedTuple):
    """Events or rows per second, and processor time."""

    speed: float
    cpu_seconds: float


class Sides(NamedTuple):
    """Paired runs."""

    ours: Sequence[Run]
    theirs: Sequence[Run]

    def speed(self, name: str, peer: str, unit: str, goal: Goal | None) -> Line:
        """Return a row of the table."""
        return compared(name, peer, unit, goal, [run.speed for run in self.ours], [run.speed for run in self.theirs])

    def cpu(self, name: str, peer: str, goal: Goal | None) -> Line:
        """Return the row of processor times."""
        mine, its = [run.cpu_seconds for run in self.ours], [run.cpu_seconds for run in self.theirs]
        return compared(f"{name}: CPU", peer, "s", goal, mine, its)


def compared(
    name: str, peer: str, unit: str, goal: Goal | None, ours: Sequence[float], theirs: Sequence[float]
) -> Line:
    """Return a row of the table."""
    cells = (f"{spread(ours)} {unit}", f"{spread(theirs)} {unit}", *judged(ratios(ours, theirs), goal))
    return row(name, peer, *cells)


def rounds(contenders: Mapping[str, Callable[[], T]], *, uncounted: int = 1) -> dict[str, list[T]]:
    """Return `RUNS` results of each in turns, after `uncounted` rounds."""

    def numbered(run: Callable[[], T]) -> Callable[[int], T]:
        return lambda _number: run()

    return in_turns({name: numbered(run) for name, run in contenders.items()}, RUNS, uncounted=uncounted)


def drain(stage: Stage) -> Iterator[Line]:
    """Yield the rows with push-downs and with raw records, paired with the same runs of the peer."""
    results = rounds({name: partial(drained, stage, name) for name in ("pushdown", "raw", "jvm")})
    with_pushdowns, raw = Sides(results["pushdown"], results["jvm"]), Sides(results["raw"], results["jvm"])
    name = "drain to Redis, with push-downs"
    yield with_pushdowns.speed(name, "JVM connector", "events/s", Goal(1.5, 2.5))
    yield with_pushdowns.cpu(name, "JVM connector", Goal(0.7, 0.4, is_cost=True))
    yield raw.speed("drain to Redis, raw records", "JVM connector", "events/s", Goal(0.9, 1.2))
    yield raw.cpu("drain to Redis, raw records", "JVM connector", None)


def application(stage: Stage) -> Iterator[Line]:
    """Yield the rows of `onceflow run`; the peer counts users only."""
    results = rounds({name: partial(drained, stage, name) for name in ("run", "run, every measure", "jvm")})
    goals = {
        "run": (Goal(1.6, 2.2), Goal(0.7, 0.5, is_cost=True)),
        "run, every measure": (Goal(0.7, 1.2), None),
    }
    for pipeline, (speed, cpu) in goals.items():
        sides, name = Sides(results[pipeline], results["jvm"]), f"onceflow {pipeline}: drain to Redis"
        yield sides.speed(name, "JVM connector, users only", "events/s", speed)
        yield sides.cpu(name, "JVM connector, users only", cpu)


def drained(stage: Stage, pipeline: str) -> Run:
    """Return the result of a drain by a Spark driver."""
    work: dict[str, Any] = stage.counting(pipeline, stage.clicks.topic, offsets_per_trigger_max=EVENTS_PER_BATCH_MAX)
    return one_drain(stage, stage.driver(PEER if pipeline == "jvm" else OURS), work)


def one_drain(stage: Stage, child: Child, work: dict[str, object]) -> Run:
    """Return the result of a drain with correct sums. Raises SystemExit."""
    before = child.cpu_seconds()
    seconds = child.ask("drain", **work)["seconds"]  # type: ignore[arg-type]
    cpu_seconds = child.cpu_seconds() - before
    wrong = stage.wrong_users(work)
    if wrong:
        raise SystemExit(f"{work['pipeline']}: {wrong} users have a wrong sum after a drain, so its time is of no use")
    return Run(stage.clicks.count / seconds, cpu_seconds)


def drain_beside_flink(stage: Stage) -> Iterator[Line]:
    """Yield the rows of push-downs and of PyFlink SQL with mini-batches."""
    results = flink.find()
    name = f"PyFlink {flink.VERSION}: drain to Redis"
    if isinstance(results, str):
        yield row(name, "PyFlink", "", f"not measured: {results}", "", "1, 1.5", "")
        return
    with Child(results.command, stage.directory / "flink.log") as child:
        runs: dict[str, list[Run]] = rounds(
            {
                "pushdown": partial(drained, stage, "pushdown"),
                "flink": lambda: one_drain(stage, child, stage.counting("flink", stage.clicks.topic)),
            }
        )
    sides = Sides(runs["pushdown"], runs["flink"])
    yield sides.speed(name, "PyFlink SQL, mini-batch", "events/s", Goal(1.0, 1.5))
    yield sides.cpu(name, "PyFlink SQL, mini-batch", Goal(1.0, 0.7, is_cost=True))


def latency_at(rate: int, stage: Stage) -> Iterator[Line]:
    """Yield the rows of latency, after a warm-up drain of each."""
    for pipeline in PEERS.values():
        drained(stage, pipeline)
    contenders = {name: partial(latency.measured, stage, name, pipeline, rate) for name, pipeline in PEERS.items()}
    results = rounds(contenders, uncounted=0)
    name = f"latency, event to Redis, {rate:,} events/s"
    goals = {"p50": Goal(0.8, 0.33, is_cost=True), "p99": Goal(0.9, 0.5, is_cost=True), "CPU": None}
    for what, goal in goals.items():
        ours, theirs = ([getattr(run, latency.MEASURES[what]) for run in results[side]] for side in PEERS)
        yield compared(f"{name}: {what}", "JVM connector", "s" if what == "CPU" else "ms", goal, ours, theirs)


def kafka_sink(count: int, stage: Stage) -> Iterator[Line]:
    """Yield the rows of both codecs: the same cached rows, exactly once here, at least once for the peer."""
    shared: dict[str, Any] = {
        "bootstrap": stage.bootstrap,
        "topic": stage.clicks.topic,
        "count": count,
        "partitions": clicks_topic.PARTITIONS,
    }
    cached = [stage.driver(source).ask("cache", source=source, **shared) for source in (OURS, PEER)]
    require_equal("cached rows", cached[0], cached[1])
    for compression, goal in SINK_GOALS.items():
        works = {source: sink_work(stage, source, compression) for source in (OURS, PEER)}
        for source, work in works.items():
            stage.driver(source).ask("begin", **work)
        results = rounds({source: partial(written, stage, work, count) for source, work in works.items()})
        for source, work in works.items():
            wanted = {name: value * (RUNS + 1) for name, value in cached[0].items()}
            require_equal(f"rows written by {source}", stage.driver(source).ask("end", **work), wanted)
            clicks_topic.delete(stage.bootstrap, work["target"])
        sides = Sides(results[OURS], results[PEER])
        name = f"Kafka sink, {count:,} rows, exactly once, {compression}"
        yield sides.speed(name, "JVM sink, at least once", "rows/s", goal)
        yield sides.cpu(name, "JVM sink, at least once", None)


def sink_work(stage: Stage, source: str, compression: str) -> dict[str, Any]:
    """Return a task with a fresh output topic and a fresh topic of ticks."""
    name = stage.fresh(f"sink-{source}-{compression}")
    for topic, partitions in ((name, clicks_topic.PARTITIONS), (f"{name}-ticks", 1)):
        clicks_topic.create(stage.bootstrap, topic, partitions)
    return {
        "source": source,
        "bootstrap": stage.bootstrap,
        "target": name,
        "ticks": f"{name}-ticks",
        "compression": compression,
        "checkpoint": str(stage.directory / "checkpoints" / name),
    }


def written(stage: Stage, work: Mapping[str, Any], count: int) -> Run:
    """Return the result of one write."""
    driver = stage.driver(work["source"])
    before = driver.cpu_seconds()
    seconds = driver.ask("write", **work)["seconds"]
    return Run(count / seconds, driver.cpu_seconds() - before)


def require_equal(what: str, actual: object, wanted: object) -> None:
    """Raise SystemExit unless both are equal."""
    if actual != wanted:
        raise SystemExit(f"{what}: {actual} instead of {wanted}")


def killed(stage: Stage) -> Iterator[Line]:
    """Yield the row of wrong sums after two kills; the goal is 0."""
    ours, theirs = (killed_drain.wrong_users(stage, pipeline) for pipeline in PEERS.values())
    verdict = "aim" if ours == 0 else "**no**"
    cells = (f"{ours:,} users with a wrong sum", f"{theirs:,} of {len(stage.clicks.sums):,}", "", "0, 0", verdict)
    yield row("two kill -9 in a drain", "JVM connector", *cells)


PARTS: Mapping[str, Part] = {
    "drain to Redis": drain,
    "onceflow run, drain": application,
    **{f"latency, {rate:,} events/s": partial(latency_at, rate) for rate in RATES},
    "PyFlink, drain": drain_beside_flink,
    **{f"Kafka sink, {count:,} rows": partial(kafka_sink, count) for count in ROWS},
    "two kill -9 in a drain": killed,
}


def measure(names: Sequence[str]) -> Iterator[Line]:
    """Yield the lines of these parts, measured on one stage."""
    with Stage() as stage:
        for name in names:
            yield from PARTS[name](stage)


TABLE = Table(
    "The connector",
    ("what", "beside", "onceflow", "it", "ours / its", "at least, aim", "reached"),
    tuple(PARTS),
    measure,
    says=(
        f"{CLICKS:,} clicks of {clicks_topic.USERS:,} users in {clicks_topic.PARTITIONS} partitions of Apache Kafka, "
        f"{EVENTS_PER_BATCH_MAX:,} at most in a micro-batch, as in the clicks job; two threads for each contender, and "
        f"the same settings of Spark. After a drain that warms, medians of {RUNS}; sums, rows and checksums are "
        f"compared after each. Latency is of {latency.SECONDS} s after {latency.WARM_SECONDS} s of warming, its CPU of "
        "both. CPU is the driver's, its JVM's and its Python workers', without Kafka and Redis."
    ),
)
