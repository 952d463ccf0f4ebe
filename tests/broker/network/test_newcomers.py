"""Newcomers: one step in a turn, in their order; their number and time are limited."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from onceflow.broker.config import BrokerConfig
from onceflow.broker.network.newcomers import Newcomers
from onceflow.testing import ManualClock


class Client:
    """A connection that is not authenticated."""

    def __init__(self, newcomers: Newcomers) -> None:
        self.newcomers = newcomers
        self.reasons: list[str | None] = []
        newcomers.begin(self)

    def close(self, reason: str | None) -> None:
        self.reasons.append(reason)
        self.newcomers.end(self)


def run(scenario: Callable[[Newcomers, ManualClock], Awaitable[None]], count_max: int = 100) -> None:
    async def main() -> None:
        clock = ManualClock()
        await scenario(Newcomers(BrokerConfig(Path(), unauthenticated_connections_max=count_max), clock), clock)

    asyncio.run(main())


def test_one_step_runs_in_a_turn() -> None:
    async def scenario(newcomers: Newcomers, _clock: ManualClock) -> None:
        done: list[int] = []
        clients = [Client(newcomers) for _ in range(4)]
        for number, client in enumerate(clients):
            newcomers.do_soon(client, lambda number=number: done.append(number))  # type: ignore[misc]
        clients[1].close(None)
        await asyncio.sleep(0)
        assert done == [0]
        await asyncio.sleep(0)
        assert done == [0, 2], "the step of one that has ended is skipped"
        await asyncio.sleep(0)
        assert done == [0, 2, 3]

    run(scenario)


@pytest.mark.filterwarnings("error")
def test_a_failing_step_leaves_the_others() -> None:
    async def scenario(newcomers: Newcomers, _clock: ManualClock) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _loop, _context: None)
        done: list[str] = []
        first, second = Client(newcomers), Client(newcomers)
        newcomers.do_soon(first, lambda: done.remove("missing"))
        newcomers.do_soon(second, lambda: done.append("second"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert done == ["second"]

    run(scenario)


def test_number_and_time_are_limited(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(newcomers: Newcomers, clock: ManualClock) -> None:
        clients = [Client(newcomers) for _ in range(5)]
        assert [client.reasons for client in clients] == [[None], [None], [], [], []]
        newcomers.end(clients[2])
        clock.advance_ms(10_001)
        newcomers.check()
        assert clients[2].reasons == []
        assert clients[4].reasons == ["not authenticated within authentication.timeout.ms=10000"]
        assert "2 connections were closed before they were authenticated" in caplog.text
        assert len(newcomers) == 0

    run(scenario, count_max=3)
