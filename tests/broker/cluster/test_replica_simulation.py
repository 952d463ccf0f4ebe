"""Three to five brokers with registry, network, disks and clocks, simulated: no acknowledged record is lost.

`tests.broker.cluster.simulation.world` states what must hold; `tests.mutants.replication` the defects that this finds.
"""

from collections import Counter
from pathlib import Path

import pytest

from tests.broker.cluster.simulation.world import run_seed, run_world
from tests.campaigns import RecordProperty, tell

STEPS = 300
SEEDS = 200
SEEDS_CAMPAIGN = 10_000
PARTS = 10


def run_seeds(scratch: Path, seeds: range) -> Counter[str]:
    counts: Counter[str] = Counter()
    for seed in seeds:
        counts += run_seed(scratch / str(seed), seed, STEPS)
    return counts


def test_replicas_keep_acknowledged_records(scratch: Path) -> None:
    counts = run_seeds(scratch, range(SEEDS))
    often = (
        "elections",
        "changes of in-sync replicas",
        "stops",
        "partitions",
        "acknowledged records kept",
        "controllers",
    )
    assert all(counts[name] > SEEDS for name in often), counts
    seldom = (
        "freezes",
        "controlled shutdowns",
        "failures of disks",
        "lost disks",
        "wrong bits",
        "steps of a truncation",
        "writes of former controllers",
    )
    assert all(counts[name] for name in seldom), counts


@pytest.mark.parametrize("seed", [2601])
def test_rare_faults_lose_nothing(scratch: Path, seed: int) -> None:
    """Seed 2601 fails if a follower that truncates below its high watermark keeps the checkpoint of it."""
    run_seeds(scratch, range(seed, seed + 1))


@pytest.mark.parametrize("seed", [7, 18])
def test_a_seed_repeats_its_run(scratch: Path, seed: int) -> None:
    """Followers were once woken in the order of a set."""
    ends = {run_world(scratch / str(number), seed, STEPS).chance.random() for number in range(3)}
    assert len(ends) == 1


@pytest.mark.campaign
@pytest.mark.parametrize("part", range(PARTS))
def test_many_replicas_keep_records(scratch: Path, record_property: RecordProperty, part: int) -> None:
    """Acknowledged records of a simulated cluster survive all faults of its parts; the replicas' logs become equal."""
    size = SEEDS_CAMPAIGN // PARTS
    seeds = range(SEEDS + part * size, SEEDS + (part + 1) * size)
    tell(record_property, seeds, run_seeds(scratch, seeds))
