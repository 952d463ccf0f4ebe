"""The tables of mutations: they fit the source, and each named test fails."""

import queue
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.campaigns import RecordProperty
from tests.mutants import (
    broker,
    buckets,
    clicks,
    client,
    commands,
    connector,
    dashboard,
    durability,
    event_ids,
    groups,
    markers,
    replication,
    security,
    source_offsets,
    transactions,
    wire,
)
from tests.mutants.mutant import Mutant, Outcome, SourceCopy, Tried, stale_reason

AREAS = {
    "durability": durability.MUTANTS,
    "transactions": transactions.MUTANTS,
    "groups": groups.MUTANTS,
    "source offsets": source_offsets.MUTANTS,
    "marker decisions": markers.MUTANTS,
    "buckets": buckets.MUTANTS,
    "event ids": event_ids.MUTANTS,
    "protocol": wire.MUTANTS,
    "replication": replication.MUTANTS,
    "broker": broker.MUTANTS,
    "security": security.MUTANTS,
    "client": client.MUTANTS,
    "connector": connector.MUTANTS,
    "clicks": clicks.MUTANTS,
    "dashboard": dashboard.MUTANTS,
    "commands and test kits": commands.MUTANTS,
}
MANY_OF = ("durability", "transactions", "groups", "source offsets", "marker decisions")
ALL = [mutant for mutants in AREAS.values() for mutant in mutants]
AT_ONCE = 2
UNCHANGED_SECONDS_MAX = 1500
UNCHANGED_TEST_SECONDS_MAX = 300
"""Longer than with a mutation, which may block: on a busy machine an unmutated test may be slow."""


def test_the_tables_fit_the_source() -> None:
    """If code was changed on purpose: update `before`, or choose another mutation there."""
    stale = [reason for mutant in ALL if (reason := stale_reason(mutant)) is not None]
    assert not stale, "\n" + "\n".join(stale)


def test_the_tables_are_large() -> None:
    assert len(set(ALL)) == len(ALL) >= 120
    assert min(len(AREAS[area]) for area in MANY_OF) >= 15


MURMUR2 = "wire/test_murmur2.py::test_sign_bit_is_cleared_before_modulo"


@pytest.mark.parametrize(
    ("after", "test", "outcome"),
    [
        ("murmur2(key) % partition_count", MURMUR2, Outcome.CAUGHT),
        ("(murmur2(key) & 0x7FFFFFFF) % partition_count + 0", MURMUR2, Outcome.SURVIVED),
        (
            "(murmur2(key) & 0x7FFFFFFF) % no_such_name",
            "wire/test_murmur2.py::test_hashes_as_java_does",
            Outcome.SURVIVED,
        ),
        ("(murmur2(key) &", MURMUR2, Outcome.ANOTHER_FAILURE),
    ],
    ids=["caught", "equivalent", "elsewhere", "no Python"],
)
def test_outcomes_are_distinguished(tmp_path: Path, after: str, test: str, outcome: Outcome) -> None:
    copy = SourceCopy(tmp_path / "src")
    before = "(murmur2(key) & 0x7FFFFFFF) % partition_count"
    assert copy.try_out(Mutant("wire/murmur2.py", before, after, test)).outcome is outcome
    assert (tmp_path / "src/onceflow/wire/murmur2.py").read_text().count(before) == 1


class Runs:
    """Runs on copies of the source, one at a time per copy."""

    def __init__(self, directory: Path) -> None:
        self._copies: queue.Queue[SourceCopy] = queue.Queue()
        for number in range(AT_ONCE):
            self._copies.put(SourceCopy(directory / f"copy-{number}" / "src"))

    def run_unchanged(self, node_ids: Sequence[str]) -> tuple[int, str]:
        copy = self._copies.get()
        try:
            return copy.run_tests(
                *node_ids, seconds_max=UNCHANGED_SECONDS_MAX, test_seconds_max=UNCHANGED_TEST_SECONDS_MAX
            )
        finally:
            self._copies.put(copy)

    def try_out(self, mutant: Mutant) -> Tried:
        copy = self._copies.get()
        try:
            return copy.try_out(mutant)
        finally:
            self._copies.put(copy)


@pytest.mark.campaign
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("area", AREAS)
def test_every_mutant_is_caught(tmp_path: Path, area: str, record_property: RecordProperty) -> None:
    """Defects put into the source one at a time, each with a test that must fail: none survives."""
    mutants = AREAS[area]
    runs = Runs(tmp_path)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        unchanged = pool.submit(runs.run_unchanged, sorted({mutant.node_id for mutant in mutants}))
        tried = list(pool.map(runs.try_out, mutants))
    not_caught = [str(trial) for trial in tried if trial.outcome is not Outcome.CAUGHT]
    code, output = unchanged.result()
    if code != 0:
        not_caught.append(f"the tests fail without a mutation:\n{output[-4000:]}")
    assert not not_caught, f"{len(not_caught)} of {len(tried)}:\n" + "\n".join(not_caught)
    record_property(f"caught in {area}", len(mutants))
