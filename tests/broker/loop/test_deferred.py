"""Calls deferred to the end of a turn of the loop: their order and time, and their failures."""

import asyncio
from collections.abc import Iterator

import pytest

from onceflow.broker.loop.deferred import HUGE_REQUEST_BYTES, LARGE_WORK_PER_TURN, PASSES_MAX, DeferredCalls


def test_calls_run_in_order_at_the_end() -> None:
    done: list[str] = []
    deferred = DeferredCalls()
    deferred.begin_turn()
    deferred.add(lambda: (done.append("seen"), deferred.add(lambda: done.append("responded")))[0])
    deferred.add(lambda: done.append("sent"))
    assert done == []
    deferred.end_turn()
    assert done == ["seen", "sent", "responded"]


def test_without_a_begin_calls_run_next_turn() -> None:
    done: list[str] = []

    async def scenario() -> None:
        deferred = DeferredCalls()
        deferred.add(lambda: done.append("first"))
        deferred.add(lambda: done.append("second"))
        assert done == []
        await asyncio.sleep(0)
        assert done == ["first", "second"]
        deferred.begin_turn()
        deferred.end_turn()
        deferred.add(lambda: done.append("third"))
        await asyncio.sleep(0)

    asyncio.run(scenario())
    assert done == ["first", "second", "third"]


def test_endless_calls_let_the_loop_continue() -> None:
    passes = 0

    async def scenario() -> None:
        deferred = DeferredCalls()

        def again() -> None:
            nonlocal passes
            passes += 1
            deferred.add(again)

        deferred.begin_turn()
        deferred.add(again)
        deferred.end_turn()
        assert passes == PASSES_MAX
        await asyncio.sleep(0)
        assert passes == 2 * PASSES_MAX

    asyncio.run(scenario())


def test_a_failing_call_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    done: list[str] = []

    def fails() -> None:
        raise OSError("no such response")

    deferred = DeferredCalls()
    deferred.begin_turn()
    deferred.add(fails)
    deferred.add(lambda: done.append("sent"))
    deferred.end_turn()
    assert done == ["sent"]
    assert "no such response" in caplog.text


async def turns_of(deferred: DeferredCalls, done: list[str]) -> list[list[str]]:
    """Return the work of each turn of the loop, until one does nothing."""
    turns: list[list[str]] = []
    await asyncio.sleep(0)
    while done:
        turns.append(list(done))
        done.clear()
        await asyncio.sleep(0)
    return turns


def test_large_work_is_spread_over_turns() -> None:
    """Each turn of the loop does, in order, LARGE_WORK_PER_TURN of it, or one larger step."""
    half = LARGE_WORK_PER_TURN // 2

    async def scenario() -> None:
        deferred = DeferredCalls()
        done: list[str] = []

        def work(name: str, *units: int) -> Iterator[int]:
            for unit in units:
                done.append(name)
                yield unit

        deferred.add_large(work("a", half, half, half), is_wanted=lambda: True)
        deferred.add_large(work("b", half, 10 * half, half), is_wanted=lambda: True)
        assert done == [], "none in the turn that asks for it"
        assert await turns_of(deferred, done) == [["a", "a"], ["a", "b"], ["b"], ["b"]]
        deferred.add_large(work("c", half), is_wanted=lambda: True)
        assert await turns_of(deferred, done) == [["c"]]

    asyncio.run(scenario())


def test_huge_work_has_half_a_turn() -> None:
    half = LARGE_WORK_PER_TURN // 2

    async def scenario() -> None:
        deferred = DeferredCalls()
        done: list[str] = []

        def work(name: str, steps: int) -> Iterator[int]:
            for _ in range(steps):
                done.append(name)
                yield half

        deferred.add_large(work("huge", 5), is_wanted=lambda: True, size_bytes=HUGE_REQUEST_BYTES + 1)
        deferred.add_large(work("a", 1), is_wanted=lambda: True, size_bytes=HUGE_REQUEST_BYTES)
        deferred.add_large(work("b", 1), is_wanted=lambda: True)
        assert await turns_of(deferred, done) == [["a", "huge"], ["b", "huge"], ["huge", "huge"], ["huge"]]

    asyncio.run(scenario())


def test_unwanted_large_work_is_dropped() -> None:
    is_wanted = True
    done: list[str] = []

    def work(name: str) -> Iterator[int]:
        for _ in range(2):
            done.append(name)
            yield LARGE_WORK_PER_TURN

    async def scenario() -> None:
        nonlocal is_wanted
        deferred = DeferredCalls()
        deferred.add_large(work("left"), is_wanted=lambda: is_wanted)
        deferred.add_large(work("next"), is_wanted=lambda: True)
        await asyncio.sleep(0)
        is_wanted = False
        assert await turns_of(deferred, done) == [["left", "next"], ["next"]]

    asyncio.run(scenario())


def test_failing_large_work_does_not_stop_others(caplog: pytest.LogCaptureFixture) -> None:
    done: list[str] = []

    def fails() -> Iterator[int]:
        yield 1 // 0

    def succeeds() -> Iterator[int]:
        done.append("next")
        yield 1

    async def scenario() -> None:
        deferred = DeferredCalls()
        deferred.add_large(fails(), is_wanted=lambda: True)
        deferred.add_large(succeeds(), is_wanted=lambda: True)
        await asyncio.sleep(0)

    asyncio.run(scenario())
    assert done == ["next"]
    assert "ZeroDivisionError" in caplog.text
