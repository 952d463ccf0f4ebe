"""Seeded simulations of the whole broker: acknowledged records exist, in order, once; a failure names its seed.

One seed is the life of one broker with its clients on a disk that loses unsynced writes, tears them, flips their bits,
fails to sync and is full, and that is killed and loses its power at any moment, its own start included. Plain,
idempotent and transactional producers, members of groups and an administrator act in an order that the seed decides;
so do the event loop's turns, the work of its threads and the clock. Logs are a few small segments, so that they roll,
are deleted and are compacted all the time.

What must hold after each crash and at the end:
- each acknowledged record is at its offset, once, its producer's records in order; so is each that a reader saw;
- no record exists that was refused or never sent;
- high watermark, last stable offset and log start never decrease; nothing is deleted that retention keeps;
- a transaction and its offsets are atomic, with the outcome that its producer received, and none hangs;
- committed offsets never decrease, and a generation that is over commits nothing;
- topics and partitions are as they were acknowledged.

Then a bit flips in some file while the broker is down (`rot`): it refuses to start, or serves nothing that is wrong.
"""

import os
import random
import shutil
from collections import Counter
from pathlib import Path
from unittest import mock

import pytest

from onceflow.broker.storage import log_cleaner
from onceflow.testing.disk import FAULTS
from tests.broker.simulation.clients import Admin, Committer, IdempotentProducer, PlainProducer, Reader
from tests.broker.simulation.members import Attempt, Member, TransactionalProducer
from tests.broker.simulation.rot import rot
from tests.broker.simulation.stepped_broker import Unexpected
from tests.broker.simulation.transactions import check_attempts, end_transactions
from tests.broker.simulation.world import Steps, World
from tests.campaigns import RecordProperty, tell

STEPS = 500
SEEDS = 100
SEEDS_AT_ONCE = 50
CAMPAIGN_SEEDS = 10_000
CAMPAIGN_SEEDS_AT_ONCE = 1_000


def simulate(number: int, root: Path) -> Counter[str]:
    """Run one seed; returns how much happened. Raises AssertionError where a promise was broken."""
    ids = random.Random(number)
    with (
        Unexpected().listening() as unexpected,
        # Ids are random, and a compaction's slices end by the machine's time: with the seed all is as it was.
        mock.patch.object(os, "urandom", ids.randbytes),
        mock.patch.object(log_cleaner, "SLICE_S", -1.0),
    ):
        return live(World(number, root, unexpected))


def live(world: World) -> Counter[str]:
    attempts: list[Attempt] = []
    generations: dict[int, int] = {}
    lives = [
        Admin(world).life(),
        PlainProducer(world, 1).life(),
        IdempotentProducer(world, 2).life(),
        IdempotentProducer(world, 3).life(),
        TransactionalProducer(world, 4, "x", attempts).life(),
        TransactionalProducer(world, 5, world.seed.choice("xy"), attempts).life(),
        Reader(world).life(),
        Committer(world, "alone").life(),
        Member(world, "group", generations).life(),
        Member(world, "group", generations).life(),
    ]
    for _ in range(STEPS):
        step(world, world.seed, lives)
        world.check_unexpected()
        if world.disk.is_off:
            world.crash(power=True)
    world.make_well()
    world.crash(power=True)
    end_transactions(world)
    check_attempts(world, attempts)
    world.audit()
    fate = rot(world)
    if fate == "served":
        world.end()
    acknowledged = sum(attempt.is_acknowledged for attempt in attempts)
    return Counter(
        {
            f"damaged and {fate}": 1,
            "records acknowledged": world.records,
            "crashes": world.crashes,
            "transactions acknowledged": acknowledged,
            "offsets committed": sum(world.committed.values()),
            **world.disk.faults,
        }
    )


def step(world: World, seed: random.Random, lives: list[Steps[None]]) -> None:
    chance = seed.random()
    if chance < 0.55:
        next(seed.choice(lives))
    elif chance < 0.92:
        busy = world.broker.busy_threads()
        if busy:
            seed.choice(busy).step()
    elif chance < 0.984:
        world.clock.advance_ms(seed.choice((50, 100, 300, 1000)))
    else:
        fault(world, seed)
    if not world.disk.is_off and seed.random() < 0.7:
        world.broker.loop.turn()


def fault(world: World, seed: random.Random) -> None:
    chance = seed.random()
    if chance < 0.20:
        world.crash(power=False)
    elif chance < 0.50:
        world.disk.cut_power_after(seed.randrange(40))
    elif chance < 0.60:
        world.stop()
    elif chance < 0.68:
        world.disk.fail_next_syncs()
        world.needs_power_cut = True
    elif chance < 0.72:
        world.disk.fail_next_directory_syncs()
        world.needs_power_cut = True
    elif chance < 0.86:
        world.disk.space_bytes = seed.randrange(600)
    else:
        world.disk.space_bytes = None


def run(seeds: range, directory: Path) -> Counter[str]:
    """Return the number of events over all seeds."""
    counts: Counter[str] = Counter()
    for seed in seeds:
        root = directory / str(seed)
        root.mkdir()
        try:
            counts += simulate(seed, root)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}") from error
        shutil.rmtree(root)
    return counts


@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS_AT_ONCE))
def test_acknowledged_records_exist(first: int, scratch: Path) -> None:
    counts = run(range(first, first + SEEDS_AT_ONCE), scratch)
    assert counts["transactions acknowledged"] > SEEDS_AT_ONCE, counts
    assert not [fault for fault in FAULTS if not counts[fault]], counts


@pytest.mark.campaign
@pytest.mark.parametrize("first", range(0, CAMPAIGN_SEEDS, CAMPAIGN_SEEDS_AT_ONCE))
def test_acknowledged_records_exist_in_more_seeds(first: int, scratch: Path, record_property: RecordProperty) -> None:
    """The whole broker on a disk with every fault: what it acknowledged is there, in order, once."""
    seeds = range(first, first + CAMPAIGN_SEEDS_AT_ONCE)
    counts = run(seeds, scratch)
    assert not [fault for fault in FAULTS if not counts[fault]], counts
    tell(record_property, seeds, counts)
