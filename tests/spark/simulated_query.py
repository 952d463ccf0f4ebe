"""A query without Spark that writes every micro-batch to Kafka and Redis; any part may die at any point.

The sinks, the broker, the checkpoint's code and Redis are real; Spark and its executors are `simulated_spark`. A death
happens inside the call that names its point. Servers are restarted at once; the driver as a new start of the query on
the same checkpoint, each time that it stops.
"""

import contextlib
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import redis

from onceflow.client.cluster import LATEST, Cluster
from onceflow.client.records import read_records
from onceflow.errors import OnceflowError
from onceflow.redis import pool as redis_pool
from onceflow.spark.exactly_once import checkpoint_lock
from onceflow.spark.exactly_once.checkpoint import LocalCheckpoint
from onceflow.spark.kafka import marker as kafka_marker
from onceflow.spark.kafka_sink import KafkaSink, kafka_sink
from onceflow.spark.redis import scripts as redis_scripts
from onceflow.spark.redis_sink import Increment, MissingRanges, RedisSink, SetIfNewer
from onceflow.spark.sink import sinks
from onceflow.testing import Broker, BrokerProcess, FaultyDisk, PowerCut
from tests.conftest import RedisProcess
from tests.end_to_end.test_power_cut import SyncedDirectory
from tests.spark.crash_points import LOST_KEY, ROLLED_BACK, SECOND_DRIVER, Death
from tests.spark.exactly_once.test_checkpoint import offsets_text
from tests.spark.kafka_driver import Killed, eventually, quick_sleep
from tests.spark.simulated_spark import Executors, Frame, Session

PARTITIONS = 2
TARGETS = 3
USERS = 5
STARTS_MAX = 10
"""Number of starts after which a test fails, if the query dies or stops each time."""
BATCHES_MAX = 40

Ends = dict[int, int]


class ConcurrentLogUpdate(OnceflowError):
    """Stand-in for Spark's error of this name: another driver has written this file of the checkpoint."""


@dataclass
class Services:
    """Broker and Redis of a query, which can be killed."""

    directory: Path
    redis: RedisProcess
    broker: "PoweredBroker | KilledBroker"

    def __post_init__(self) -> None:
        self._copy = self.directory / "redis-copy"

    def save_redis(self) -> None:
        """Copy Redis's files, as the state of a later rollback."""
        shutil.rmtree(self._copy, ignore_errors=True)
        shutil.copytree(self.redis.directory, self._copy)

    def die(self, victim: str) -> None:
        if victim == "broker":
            self.broker.die()
        if victim.startswith("redis"):
            self.redis.kill()
            if victim == ROLLED_BACK:
                shutil.rmtree(self.redis.directory)
                shutil.copytree(self._copy, self.redis.directory)
            self.redis.start()


class PoweredBroker:
    """A broker in this process, on a disk that loses unsynced data in a power cut."""

    def __init__(self, directory: Path, chance: random.Random, **options: Any) -> None:
        directory.mkdir()
        self._disk, self._chance = FaultyDisk(directory), chance
        self._broker = Broker(directory, disk=self._disk, **options)
        self.bootstrap = self._broker.start().bootstrap_servers

    def die(self) -> None:
        self._disk.cut_power_after(0)
        self.stop()
        self._disk.crash(self._chance.randrange(2**32))
        self._broker.start()

    def stop(self) -> None:
        with contextlib.suppress(PowerCut):
            self._broker.stop()


class KilledBroker:
    """A broker process that is killed -9."""

    def __init__(self, directory: Path, _chance: random.Random) -> None:
        self._process = BrokerProcess(directory).start()
        self.bootstrap = self._process.bootstrap

    def die(self) -> None:
        self._process.kill()
        self._process.start()

    def stop(self) -> None:
        self._process.stop()


def row_of(partition: int, offset: int) -> tuple[int, bytes, bytes]:
    """Return target partition, key and value of an input record."""
    key = offset % 4
    return key % TARGETS, b"key-%d-%d" % (partition, key), b"%d:%d" % (partition, offset)


def counts_of(partition: int, offset: int) -> list[tuple[str, bytes, int, bytes | None]]:
    user = b"user-%d" % (offset % USERS)
    return [
        ("count", user, 1 + offset % 3, None),
        ("count", b"partition-%d" % partition, 1, None),
        ("last", b"partition-%d" % partition, offset + 1, b"at %d" % offset),
    ]


@dataclass
class Query:
    """One query on one checkpoint, restarted after each death."""

    services: Services
    directory: Path
    name: str
    chance: random.Random
    redis_first: bool = False
    with_kafka: bool = True
    with_redis: bool = True
    arrivals: tuple[int, ...] = (0, 3, 5, 20)
    """Possible numbers of new records of a partition in a batch; a batch of 14 or more goes to Redis in chunks."""
    visits: Counter[str] = field(default_factory=Counter)
    passed: set[str] = field(default_factory=set)
    scheduled: list[Death] = field(default_factory=list)
    deaths: Counter[str] = field(default_factory=Counter)
    stops: list[str] = field(default_factory=list)
    starts: int = 0
    repairs: int = 0

    def __post_init__(self) -> None:
        self._patches = pytest.MonkeyPatch()
        number = int(self.name.rpartition("-")[2])
        self.query_id = f"00000000-0000-4000-8000-{number:012x}"
        self.watch_requests: Callable[[str], None] = self.at
        self.checkpoint = self.directory / f"checkpoint-{self.name}"
        self.checkpoint.mkdir()
        self.target = f"{self.name}-out"
        with Cluster(self.services.broker.bootstrap) as cluster:
            cluster.create_topic(self.target, TARGETS)
        self.executors = Executors(self.chance, self.at)
        self._disk = SyncedDirectory(self._patches, self.checkpoint)
        self._sinks: list[KafkaSink | RedisSink] = []
        self._watch()

    def close(self) -> None:
        """Stop watching its points."""
        self._patches.undo()

    # Points and deaths

    def at(self, point: str) -> None:
        self.visits[point] += 1
        self.passed.add(point)
        if not self.scheduled or self.scheduled[0].point != point or self.visits[point] < self.scheduled[0].visit:
            return
        death = self.scheduled.pop(0)
        self.visits.clear()
        self.deaths[death.victim] += 1
        self.services.die(death.victim)
        if death.victim == SECOND_DRIVER:
            self._overtake()
        if death.victim == LOST_KEY:
            self._lose_key()
        if death.victim == "executor":
            self.executors.lost += 1
        if death.victim == "driver's machine":
            self._lose_unsynced()
        if death.victim.startswith("driver"):
            raise Killed(str(death))

    def schedule(self, *deaths: Death) -> None:
        """Schedule these deaths, one after the other; each death restarts the count of visits."""
        self.visits.clear()
        self.scheduled = list(deaths)

    def _overtake(self) -> None:
        """Run two batches by another driver while this one waits."""
        mine, locked = (self._session, self._sinks), checkpoint_lock._held.copy()  # type: ignore[has-type]
        checkpoint_lock._held.clear()
        self.run(2)
        checkpoint_lock._held.update(locked)
        self._session, self._sinks = mine

    def run_until(self, *deaths: Death) -> None:
        """Run batches until these deaths have happened, one after the other."""
        self.schedule(*deaths)
        for _ in range(BATCHES_MAX):
            self.run(1)
            if not self.scheduled:
                return
        raise AssertionError(f"{self.scheduled[0]}: did not happen in {BATCHES_MAX} batches")

    def _lose_key(self) -> None:
        """Delete one key of the sink, as an eviction or another client's UNLINK would."""
        with redis.Redis.from_url(self.services.redis.url) as client:
            keys = [
                self.name,
                *(f"{{{self.name}}}:{ending}" for ending in ("top", "last", "versions", "onceflow-claims")),
            ]
            client.unlink(self.chance.choice(keys))

    def _lose_unsynced(self) -> None:
        """Change the checkpoint as a power cut would: each unsynced file is kept, lost or empty."""
        left = self._disk.survivors()
        for name, content in self._disk.present().items():
            if left.get(name) == content:
                continue
            match self.chance.randrange(3):
                case 0:
                    left[name] = content
                case 1:
                    left.setdefault(name, b"")
        shutil.rmtree(self.checkpoint)
        for name, content in left.items():
            (self.checkpoint / name).parent.mkdir(parents=True, exist_ok=True)
            (self.checkpoint / name).write_bytes(content)

    def _watch(self) -> None:
        run, settle, read_record = redis_scripts.run, redis_scripts.settle, kafka_marker.MarkerLocation.read_record
        execute, prepare = redis.client.Pipeline.execute, LocalCheckpoint.prepare

        def watched(name: str, function: Any) -> Any:
            def call(*arguments: Any, **options: Any) -> Any:
                self.at(f"before {name}")
                result = function(*arguments, **options)
                self.at(f"after {name}")
                return result

            return call

        def watched_run(client: Any, name: str, *arguments: Any) -> list[str]:
            return list(watched(name, run)(client, name, *arguments))

        def watched_execute(pipeline: Any, *arguments: Any, **options: Any) -> Any:
            reads = pipeline.command_stack and pipeline.command_stack[0][0][0] == "HGETALL"
            return (watched("marker's hash", execute) if reads else execute)(pipeline, *arguments, **options)

        self._patches.setattr(redis_scripts, "run", watched_run)
        self._patches.setattr(redis_scripts, "settle", watched("settle", settle))
        self._patches.setattr(redis.client.Pipeline, "execute", watched_execute)
        self._patches.setattr(LocalCheckpoint, "prepare", watched("syncs", prepare))
        self._patches.setattr(kafka_marker.MarkerLocation, "read_record", watched("marker's record", read_record))

    # Spark's part

    def run(self, batches: int) -> None:
        """Run until `batches` more micro-batches are committed, through every death and stop."""
        goal = self.committed + batches
        for _ in range(STARTS_MAX):
            try:
                self.start_once(goal)
                return
            except Killed:
                continue
            except OnceflowError as error:
                self.stops.append(str(error))
        raise AssertionError(f"not done after {STARTS_MAX} starts: {self.stops}")

    def start_once(self, goal: int) -> None:
        """Start once and run until batch `goal` is committed; raise Killed or the error that stops the query."""
        try:
            self._start()
            while self.committed < goal:
                self._next_batch()
            for sink in self._sinks:
                # As at the end of available-now: Redis may have lost batches since the sink's last write.
                if isinstance(sink, RedisSink):
                    sink.check()
        finally:
            self._end()

    @property
    def committed(self) -> int:
        return LocalCheckpoint(self.checkpoint).newest_batch("commits")

    def kafka_sink(self) -> KafkaSink:
        made = kafka_sink(
            self.services.broker.bootstrap, topic=self.target, checkpoint=str(self.checkpoint), plan="copy"
        )
        made.settings = replace(made.settings, at=self.watch_requests, sleep=quick_sleep, retry_timeout_ms=20_000)
        return made  # type: ignore[return-value]

    def redis_sink(self) -> RedisSink:
        return RedisSink(
            self.services.redis.url,
            hash_key=self.name,
            increments=[Increment("count", self.name, f"{{{self.name}}}:top")],
            sets=[SetIfNewer("last", f"{{{self.name}}}:last", f"{{{self.name}}}:versions")],
            checkpoint=str(self.checkpoint),
            plan="counts",
            plan_version=1,
            rebuild=self._rebuild,  # type: ignore[arg-type]
        )

    def _rebuild(self, missing: MissingRanges) -> Frame:
        self.repairs += 1
        return self._counts({part.partition: (part.begin, part.end) for part in missing.ranges})

    def _start(self) -> None:
        self.starts += 1
        self._session = Session(self.executors, lambda: LocalCheckpoint(self.checkpoint).query_id())
        made = [*([self.kafka_sink()] if self.with_kafka else []), *([self.redis_sink()] if self.with_redis else [])]
        self._sinks = made[::-1] if self.redis_first else made  # type: ignore[assignment]
        for sink in self._sinks:
            sink.open(self._session)
        if not (self.checkpoint / "metadata").exists():
            self._write("metadata", "metadata", f'{{"id":"{self.query_id}"}}')

    def _end(self) -> None:
        """Release what the end of the process would release."""
        for sink in self._sinks:
            if isinstance(sink, KafkaSink):
                sink.target.close()
        self._sinks = []
        redis_pool.close()
        checkpoint_lock._held.clear()

    def _next_batch(self) -> None:
        """Run the next batch as Spark does: the planned one if it is not committed, else a new one."""
        planned = LocalCheckpoint(self.checkpoint).newest_batch("offsets")
        number = planned
        if planned == self.committed:
            number = planned + 1
            ends = {partition: end + self._arrived(number) for partition, end in self.ends(planned).items()}
            document: dict[str, object] = {self.name: {str(partition): end for partition, end in ends.items()}}
            self._write("offsets", f"offsets/{number}", offsets_text(document))
        self._foreach_batch(number)
        self._write("commits", f"commits/{number}", 'v1\n{"nextBatchWatermarkMs":0}')

    def _arrived(self, number: int) -> int:
        return 0 if number == 0 else self.chance.choice(self.arrivals)

    def _foreach_batch(self, number: int) -> None:
        begins, ends = self.ends(number - 1), self.ends(number)
        ranges = {partition: (begins[partition], ends[partition]) for partition in range(PARTITIONS)}
        events = Frame(self._session, list(places(ranges)))
        shaped: list[Frame] = []

        def part(sink: KafkaSink | RedisSink) -> Any:
            def shape(_events: Frame) -> Frame:
                shaped.append(self._records(ranges) if isinstance(sink, KafkaSink) else self._counts(ranges))
                return shaped[-1]

            return sink, shape

        sinks(events, number, *map(part, self._sinks))  # type: ignore[arg-type]
        was_read = any(frame.times_read for frame in (events, *shaped))
        assert was_read, f"batch {number} was not read, which makes a stateful query's checkpoint unusable"

    def _write(self, kind: str, name: str, text: str) -> None:
        self.at(f"before {kind}")
        path = self.checkpoint / name
        path.parent.mkdir(exist_ok=True)
        if path.exists():
            raise ConcurrentLogUpdate(f"{path} was written by another driver")
        path.write_text(text)
        self.at(f"after {kind}")

    def ends(self, number: int) -> Ends:
        """Return the end offsets of batch `number` by partition; 0 before the first batch."""
        if number < 0:
            return dict.fromkeys(range(PARTITIONS), 0)
        reached = LocalCheckpoint(self.checkpoint).reached(number).by_topic[self.name]
        return {int(partition): offset for partition, offset in reached.items()}

    def _records(self, ranges: Mapping[int, tuple[int, int]]) -> Frame:
        return Frame(self._session, [row_of(*place) for place in places(ranges)])

    def _counts(self, ranges: Mapping[int, tuple[int, int]]) -> Frame:
        return Frame(self._session, [row for place in places(ranges) for row in counts_of(*place)])

    # Outputs

    def check(self) -> None:
        """Assert that the outputs are those of the committed batches: each record once and in order, each sum exact."""
        ends = self.ends(self.committed)
        if self.with_kafka:
            self._check_written(ends)
        if self.with_redis:
            assert self.counted() == recount(ends)

    def _check_written(self, ends: Ends) -> None:
        wanted = sorted(row_of(*place) for place in places({partition: (0, end) for partition, end in ends.items()}))
        eventually(lambda: len(self.written()) >= len(wanted))
        rows = self.written()
        assert sorted(rows) == wanted
        for number in range(PARTITIONS):
            for target in range(TARGETS):
                begins = (target, b"%d:" % number)
                own = [int(value[2:]) for place, _, value in rows if (place, value[:2]) == begins]
                assert own == sorted(own), f"partition {number} of the input in {target}"

    def written(self) -> list[tuple[int, bytes, bytes]]:
        rows = []
        with Cluster(self.services.broker.bootstrap) as cluster:
            for target, end in cluster.list_offsets(self.target, dict.fromkeys(range(TARGETS), LATEST)).items():
                for record in read_records(cluster, self.target, target, 0, end.offset):
                    assert record.key is not None and record.value is not None
                    rows.append((target, record.key, record.value))
        return rows

    def counted(self) -> dict[str, dict[bytes, bytes]]:
        with redis.Redis.from_url(self.services.redis.url) as client:
            ranked: Any = client.zrange(f"{{{self.name}}}:top", 0, -1, withscores=True)
            sums: Any = client.hgetall(self.name)
            last: Any = client.hgetall(f"{{{self.name}}}:last")
        return {"sums": sums, "ranking": {name: b"%d" % score for name, score in ranked}, "last": last}


def places(ranges: Mapping[int, tuple[int, int]]) -> Iterator[tuple[int, int]]:
    for partition, (begin, end) in sorted(ranges.items()):
        yield from ((partition, offset) for offset in range(begin, end))


def recount(ends: Ends) -> dict[str, dict[bytes, bytes]]:
    """Return the expected contents of Redis, without the sink's code."""
    sums: Counter[bytes] = Counter()
    last: dict[bytes, bytes] = {}
    for place in places({partition: (0, end) for partition, end in ends.items()}):
        for target, name, amount, value in counts_of(*place):
            if target == "count":
                sums[name] += amount
            else:
                last[name] = value or b""
    texts = {name: b"%d" % count for name, count in sums.items()}
    return {"sums": texts, "ranking": texts, "last": last}


class Started:
    """A factory of queries; it watches only the newest one."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._made: list[Query] = []

    def __call__(self, running: Services, chance: random.Random, *, batches: int = 2, **options: Any) -> Query:
        """Return a query that has written `batches` batches, the state of a later rollback of Redis."""
        self.close()
        number = len(self._made)
        self._made.append(Query(running, self._directory, f"query-{number}", chance, bool(number % 2), **options))
        if batches:
            self._made[-1].run(batches)
        running.save_redis()
        return self._made[-1]

    def close(self) -> None:
        for query in self._made[-1:]:
            query.close()


@contextlib.contextmanager
def services(
    directory: Path,
    chance: random.Random,
    *,
    broker: Callable[..., PoweredBroker | KilledBroker] = PoweredBroker,
    appendfsync: str = "always",
    **options: Any,
) -> Iterator[Services]:
    """Start broker and Redis, and stop them at the end; `options` are the broker's."""
    redis_process = RedisProcess(directory / "redis", appendfsync=appendfsync).start()
    running = broker(directory / "broker", chance, **options)
    try:
        yield Services(directory, redis_process, running)
    finally:
        running.stop()
        redis_process.stop()
