"""Limits of rate and memory, with a manual clock."""

import pytest

from onceflow.clicks.ingest import limits
from onceflow.clicks.ingest.limits import Memory, RateLimit


class Clock:
    """Clock that a test moves."""

    now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


def test_burst_then_steady_rate() -> None:
    clock = Clock()
    limit = RateLimit(5, clock)
    limit.count("ann", 50)
    assert limit.wait_s("ann") == 0
    limit.count("ann", 10)
    assert limit.wait_s("ann") == 2
    assert limit.wait_s("bob") == 0
    clock.now_s += 2
    assert limit.wait_s("ann") == 0
    clock.now_s += 1_000
    limit.count("ann", 51)
    assert limit.wait_s("ann") == pytest.approx(0.2), "a pause saves no more than one burst"


def test_no_limit() -> None:
    limit = RateLimit(0)
    limit.count("ann", 1_000_000)
    assert limit.wait_s("ann") == 0


def test_number_of_names_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "NAMES_MAX", 2)
    limit = RateLimit(1, Clock())
    for name in ("ann", "bob", "ann", "zoe"):
        limit.count(name, 100)
    assert [limit.wait_s(name) for name in ("ann", "bob", "zoe")] == [190, 0, 90]


def test_memory() -> None:
    memory = Memory(10)
    assert memory.take(6) and not memory.take(5) and memory.take(4)
    memory.give_back(6)
    assert memory.used == 4
    assert memory.take(6)
