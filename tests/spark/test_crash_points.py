"""Whatever dies at whichever point, both outputs are right: the points are `crash_points`, the query is simulated."""

import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from onceflow.spark import redis_batch, redis_chunks
from tests.spark import simulated_spark
from tests.spark.crash_points import POINTS, VICTIMS, Death
from tests.spark.simulated_query import KilledBroker, PoweredBroker, Query, Services, services

MEMORY = Path("/dev/shm")
PIECES = 3
SEEDS_IN_TEST = 4
SEEDS = 60
DEATHS_PER_SEED = 60


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """In memory where that can be: what is synced is noted by the tests, which need no disk to wait for."""
    if not MEMORY.is_dir():
        yield tmp_path
        return
    made = Path(tempfile.mkdtemp(prefix="onceflow-", dir=MEMORY))
    yield made
    shutil.rmtree(made)


NewQuery = Callable[..., Query]


@pytest.fixture
def new_query(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[NewQuery]:
    """A query that has written two batches, whose chunks begin at 40 rows; Redis can go back to what it is then.

    One at a time: an earlier one is not watched any more.
    """
    simulated_spark.stand_in(monkeypatch)
    monkeypatch.setattr(redis_batch, "WHOLE_ROWS_MAX", 40)
    monkeypatch.setattr(redis_chunks, "ROWS_PER_CHUNK", 3)
    made: list[Query] = []

    def make(running: Services, chance: random.Random, *, batches: int = 2) -> Query:
        for earlier in made[-1:]:
            earlier.close()
        made.append(Query(running, directory, f"query-{len(made)}", chance, redis_first=bool(len(made) % 2)))
        if batches:
            made[-1].run(batches)
        running.keep_redis()
        return made[-1]

    yield make
    made[-1].close()


def test_there_are_enough_points() -> None:
    assert len(POINTS) == len(set(POINTS)) >= 25
    assert set(VICTIMS) >= {"driver", "executor", "broker", "redis"}


@pytest.mark.parametrize("piece", range(PIECES))
def test_each_part_dies_at_each_point(directory: Path, new_query: NewQuery, piece: int) -> None:
    chance = random.Random(piece)
    with services(directory, chance) as running:
        query = new_query(running, chance)
        for number, point in enumerate(POINTS[piece::PIECES]):
            if number % 8 == 7:
                query = new_query(running, chance)
            for deaths in deaths_at(point):
                if point.endswith("metadata"):
                    query = new_query(running, chance, batches=0)
                query.meet(*deaths)
                query.run(1)
                query.check()
            assert not query.stops, f"{point}: {query.stops}"
            running.keep_redis()


def deaths_at(point: str) -> list[list[Death]]:
    """Each part's, in groups after each of which both outputs are looked at.

    A Redis that goes back takes wrong counts with it, so it comes last and by itself. A query writes its metadata once,
    and reads rows alone after a death.
    """
    deaths = [Death(point, victim) for victim in VICTIMS]
    if point.endswith("metadata"):
        return [[death] for death in deaths]
    if point.endswith("alone"):
        return [[Death("before commits", "driver"), death] for death in deaths]
    return [deaths[:-1], deaths[-1:]]


@pytest.mark.parametrize("seed", range(SEEDS_IN_TEST))
def test_deaths_in_any_order(directory: Path, new_query: NewQuery, seed: int) -> None:
    chance = random.Random(seed)
    with services(directory, chance) as running:
        die_at_random(running, chance, new_query, 25)


@pytest.mark.campaign
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("broker", [PoweredBroker, KilledBroker], ids=["power cut", "kill -9"])
@pytest.mark.parametrize("seed", range(100, 100 + SEEDS // 2))
def test_deaths_in_any_order_for_long(
    directory: Path,
    new_query: NewQuery,
    seed: int,
    broker: type[PoweredBroker | KilledBroker],
    record_property: Callable[[str, object], None],
) -> None:
    """Driver, its machine, executors, broker and Redis die at named points, from seeds; both outputs are recounted."""
    chance = random.Random(seed)
    with services(directory, chance, broker=broker, appendfsync=chance.choice(("always", "everysec"))) as running:
        deaths, points, batches = die_at_random(running, chance, new_query, DEATHS_PER_SEED)
    for victim, count in deaths.items():
        record_property(f"times the {victim} died", count)
    record_property("micro-batches", batches)
    record_property("at most points of death in one run", len(points))


def die_at_random(
    running: Services, chance: random.Random, new_query: NewQuery, count: int
) -> tuple[Counter[str], set[str], int]:
    """So many deaths, some of them one right after the other; who died how often, where, and batches altogether."""
    query = new_query(running, chance)
    deaths: Counter[str] = Counter()
    points: set[str] = set()
    batches = 0
    while deaths.total() < count:
        arranged = [
            Death(chance.choice(POINTS), chance.choice(VICTIMS), chance.choice((1, 1, 2, 3)))
            for _ in range(chance.randrange(1, 6))
        ]
        query.arrange(*arranged)
        query.run(chance.randrange(1, 5))
        query.check()
        assert not query.stops, query.stops
        points |= {death.point for death in arranged[: len(arranged) - len(query.to_come)]}
        deaths += query.deaths
        query.deaths.clear()
        batches = query.committed + 1
        if chance.random() < 0.3:
            running.keep_redis()
    return deaths, points, batches
