"""Seeded simulations of transactions; a failure names its seed."""

from collections import Counter
from pathlib import Path

import pytest

from tests.broker.transactions import simulation
from tests.campaigns import RecordProperty, tell

SEEDS = 100
CAMPAIGN_SEEDS = 5000
SEEDS_AT_ONCE = 50


def run(seeds: range, directory: Path) -> Counter[str]:
    """Return the number of events over all seeds."""
    counts: Counter[str] = Counter()
    for seed in seeds:
        root = directory / str(seed)
        root.mkdir()
        try:
            world = simulation.simulate(seed, root)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}") from error
        counts["acknowledged transactions"] += sum(attempt.is_acknowledged for attempt in world.attempts)
        counts["crashes"] += world.crashes
    return counts


@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS_AT_ONCE))
def test_transactions_are_atomic(first: int, scratch: Path) -> None:
    counts = run(range(first, first + SEEDS_AT_ONCE), scratch)
    assert counts["acknowledged transactions"] > 3 * SEEDS_AT_ONCE
    assert counts["crashes"] > 3 * SEEDS_AT_ONCE


@pytest.mark.campaign
@pytest.mark.parametrize("first", range(SEEDS, CAMPAIGN_SEEDS, SEEDS_AT_ONCE))
def test_transactions_are_atomic_in_more_seeds(first: int, scratch: Path, record_property: RecordProperty) -> None:
    seeds = range(first, first + SEEDS_AT_ONCE)
    tell(record_property, seeds, run(seeds, scratch))
