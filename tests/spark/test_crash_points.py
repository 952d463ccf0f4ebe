"""Both outputs are exact, whatever dies at any of `crash_points`; the query is simulated."""

import random
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.spark.crash_points import POINTS, SECOND_DRIVER, VICTIMS, Death
from tests.spark.simulated_query import KilledBroker, PoweredBroker, Services, Started, services

PIECES = 3
SEEDS_IN_TEST = 3
SEEDS = 60
DEATHS_PER_SEED = 60


def test_there_are_enough_points() -> None:
    assert len(POINTS) == len(set(POINTS)) >= 25
    assert set(VICTIMS) >= {"driver", "executor", "broker", "redis"}


@pytest.mark.parametrize("piece", range(PIECES))
def test_each_part_dies_at_each_point(directory: Path, new_query: Started, piece: int) -> None:
    chance = random.Random(piece)
    with services(directory, chance) as running:
        query = new_query(running, chance)
        for number, point in enumerate(POINTS[piece::PIECES]):
            if number % 8 == 7:
                query = new_query(running, chance)
            for deaths in deaths_at(point):
                if point.endswith("metadata"):
                    query = new_query(running, chance, batches=0)
                query.run_until(*deaths)
                query.run(1)
                query.check()
            assert not query.stops, f"{point}: {query.stops}"
            running.save_redis()


def deaths_at(point: str) -> list[list[Death]]:
    """Return a death of each part at the point, in groups; the outputs are checked after each group.

    A lost key and a rollback of Redis also undo wrong counts, so each is a group of its own, at the end. A query writes
    its metadata only once, and reads rows alone only after a death.
    """
    deaths = [Death(point, victim) for victim in VICTIMS]
    if point.endswith("metadata"):
        return [[death] for death in deaths]
    if point.endswith("alone"):
        return [[Death("before commits", "driver"), death] for death in deaths]
    return [deaths[:-2], deaths[-2:-1], deaths[-1:]]


STOPPED = re.compile(
    "was taken over by (another driver|a later start)|another driver of this query took it over|"
    "was written by another driver|moved to batch|checkpoint is older than|"
    "with other offsets|plans it as|does not have it open"
)


@pytest.mark.parametrize("side", [pytest.param("before", marks=pytest.mark.campaign), "after"])
def test_another_driver_starts_at_each_point(
    directory: Path, new_query: Started, side: str, record_property: Callable[[str, object], None]
) -> None:
    """A second driver starts at each point, past the checkpoint's lock; the first one notices it and stops."""
    chance = random.Random(1)
    points = [point for point in POINTS if point.startswith(side) and not point.endswith(("metadata", "alone"))]
    with services(directory, chance) as running:
        query = new_query(running, chance)
        for point in points:
            query.run_until(Death(point, SECOND_DRIVER))
            query.check()
            for message in query.stops:
                assert STOPPED.search(message), f"{point}: {message}"
            query.stops.clear()
    record_property("points at which a second driver started, both outputs exact", len(points))


@pytest.mark.parametrize("seed", range(SEEDS_IN_TEST))
def test_deaths_in_any_order(directory: Path, new_query: Started, seed: int) -> None:
    chance = random.Random(seed)
    with services(directory, chance) as running:
        die_at_random(running, chance, new_query, 25)


@pytest.mark.campaign
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("broker", [PoweredBroker, KilledBroker], ids=["power cut", "kill -9"])
@pytest.mark.parametrize("seed", range(100, 100 + SEEDS // 2))
def test_deaths_in_any_order_for_long(
    directory: Path,
    new_query: Started,
    seed: int,
    broker: type[PoweredBroker | KilledBroker],
    record_property: Callable[[str, object], None],
) -> None:
    """Driver, its machine, executors, broker and Redis die at random points of a query; both outputs are exact."""
    chance = random.Random(seed)
    with services(directory, chance, broker=broker, appendfsync=chance.choice(("always", "everysec"))) as running:
        deaths, points, batches = die_at_random(running, chance, new_query, DEATHS_PER_SEED)
    record_property("seeds", str(seed))
    for victim, count in deaths.items():
        record_property(f"deaths: {victim}", count)
    record_property("micro-batches", batches)
    record_property("points of death in one run", len(points))


def die_at_random(
    running: Services, chance: random.Random, new_query: Started, count: int
) -> tuple[Counter[str], set[str], int]:
    """Run `count` deaths; return the number by victim, the points, and the number of batches."""
    query = new_query(running, chance)
    deaths: Counter[str] = Counter()
    points: set[str] = set()
    batches = 0
    while deaths.total() < count:
        arranged = [
            Death(chance.choice(POINTS), chance.choice(VICTIMS), chance.choice((1, 1, 2, 3)))
            for _ in range(chance.randrange(1, 6))
        ]
        query.schedule(*arranged)
        query.run(chance.randrange(1, 5))
        query.check()
        assert not query.stops, query.stops
        points |= {death.point for death in arranged[: len(arranged) - len(query.scheduled)]}
        deaths += query.deaths
        query.deaths.clear()
        batches = query.committed + 1
        if chance.random() < 0.3:
            running.save_redis()
    return deaths, points, batches
