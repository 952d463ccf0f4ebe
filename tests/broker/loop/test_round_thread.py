"""Rounds in a thread that end on the loop: their order and results, and nothing left behind."""

import asyncio
import os
import threading
from collections.abc import Callable

import pytest

from onceflow.broker.loop.round_thread import RoundThread


def test_each_round_returns_its_result() -> None:
    async def test() -> None:
        ended: list[tuple[int, str, str]] = []
        over = asyncio.Event()

        def end(result: tuple[int, str]) -> None:
            ended.append((*result, threading.current_thread().name))
            if result[0] == 99:
                over.set()
            else:
                begin(result[0] + 1)

        def begin(number: int) -> None:
            rounds.begin(lambda: (number, threading.current_thread().name))

        rounds = RoundThread("rounds", end)
        begin(0)
        await asyncio.wait_for(over.wait(), 20)
        rounds.close()
        assert ended == [(number, "rounds", threading.current_thread().name) for number in range(100)]

    asyncio.run(test())


def test_the_loop_continues_during_a_round() -> None:
    async def test() -> None:
        may_end, over = threading.Event(), asyncio.Event()
        rounds: RoundThread[object] = RoundThread("rounds", lambda _result: over.set())
        rounds.begin(lambda: may_end.wait(20))
        for _ in range(10):
            await asyncio.sleep(0)
        assert not over.is_set()
        may_end.set()
        await asyncio.wait_for(over.wait(), 20)
        rounds.close()

    asyncio.run(test())


def test_nothing_remains_after_close(monkeypatch: pytest.MonkeyPatch) -> None:
    pipes: list[tuple[int, int]] = []
    pipe = os.pipe
    monkeypatch.setattr(os, "pipe", lambda: pipes.append(pipe()) or pipes[-1])

    async def test() -> None:
        threads = set(threading.enumerate())
        unused: RoundThread[None] = RoundThread("unused", lambda _result: None)
        unused.close()
        assert not pipes
        over = asyncio.Event()
        rounds: RoundThread[object] = RoundThread("rounds", lambda _result: over.set())
        rounds.begin(lambda: None)
        await asyncio.wait_for(over.wait(), 20)
        rounds.close()
        rounds.close()
        assert set(threading.enumerate()) <= threads
        ((reading, writing),) = pipes
        for descriptor in (reading, writing):
            with pytest.raises(OSError, match="Bad file descriptor"):
                os.fstat(descriptor)

    asyncio.run(test())


@pytest.mark.parametrize("lacking", ["descriptor for the loop", "thread"])
def test_a_round_begins_after_a_failed_one(lacking: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        over = asyncio.Event()
        rounds: RoundThread[object] = RoundThread("rounds", lambda _result: over.set())
        loop = asyncio.get_running_loop()
        open_before = set(os.listdir("/dev/fd"))
        with monkeypatch.context() as patches:
            if lacking == "thread":
                patches.setattr(threading.Thread, "start", fail_with(RuntimeError("can't start new thread")))
            else:
                patches.setattr(loop, "add_reader", fail_with(OSError(28, "No space left on device")))
            with pytest.raises(OSError, match="no thread for rounds"):
                rounds.begin(lambda: None)
        assert set(os.listdir("/dev/fd")) <= open_before
        rounds.begin(lambda: None)
        await asyncio.wait_for(over.wait(), 20)
        rounds.close()

    asyncio.run(test())


def fail_with(error: Exception) -> Callable[..., None]:
    def fail(*_arguments: object) -> None:
        raise error

    return fail
