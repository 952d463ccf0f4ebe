"""Work that is put off to the end of a turn of the loop: when it comes, and that it keeps nobody waiting."""

import asyncio
from collections.abc import Iterator

import pytest

from onceflow.broker.loop.turn import HUGE_REQUEST_BYTES, LARGE_WORK_PER_TURN, PASSES_MAX, Turn


def test_what_is_put_off_comes_in_order_at_the_end_and_what_it_puts_off_after_it() -> None:
    done: list[str] = []
    turn = Turn()
    turn.begin()
    turn.soon(lambda: (done.append("seen"), turn.soon(lambda: done.append("answered")))[0])
    turn.soon(lambda: done.append("sent"))
    assert done == []
    turn.end()
    assert done == ["seen", "sent", "answered"]


def test_without_a_begin_it_comes_in_the_loops_next_turn_once() -> None:
    done: list[str] = []

    async def scenario() -> None:
        turn = Turn()
        turn.soon(lambda: done.append("first"))
        turn.soon(lambda: done.append("second"))
        assert done == []
        await asyncio.sleep(0)
        assert done == ["first", "second"]
        turn.begin()
        turn.end()
        turn.soon(lambda: done.append("third"))
        await asyncio.sleep(0)

    asyncio.run(scenario())
    assert done == ["first", "second", "third"]


def test_work_without_end_lets_the_loop_go_on() -> None:
    passes = 0

    async def scenario() -> None:
        turn = Turn()

        def again() -> None:
            nonlocal passes
            passes += 1
            turn.soon(again)

        turn.begin()
        turn.soon(again)
        turn.end()
        assert passes == PASSES_MAX
        await asyncio.sleep(0)
        assert passes == 2 * PASSES_MAX

    asyncio.run(scenario())


def test_what_fails_is_told_and_the_rest_is_done(caplog: pytest.LogCaptureFixture) -> None:
    done: list[str] = []

    def fails() -> None:
        raise OSError("no such answer")

    turn = Turn()
    turn.begin()
    turn.soon(fails)
    turn.soon(lambda: done.append("sent"))
    turn.end()
    assert done == ["sent"]
    assert "no such answer" in caplog.text


async def turns_of(turn: Turn, done: list[str]) -> list[list[str]]:
    """What each turn of the loop did, until one does nothing."""
    turns: list[list[str]] = []
    await asyncio.sleep(0)
    while done:
        turns.append(list(done))
        done.clear()
        await asyncio.sleep(0)
    return turns


def test_large_work_is_spread_over_turns() -> None:
    """In its order, each turn of the loop does LARGE_WORK_PER_TURN of it, or one larger step."""
    half = LARGE_WORK_PER_TURN // 2

    async def scenario() -> None:
        turn = Turn()
        done: list[str] = []

        def work(name: str, *units: int) -> Iterator[int]:
            for unit in units:
                done.append(name)
                yield unit

        turn.large(work("a", half, half, half), is_wanted=lambda: True)
        turn.large(work("b", half, 10 * half, half), is_wanted=lambda: True)
        assert done == [], "none in the turn that asks for it"
        assert await turns_of(turn, done) == [["a", "a"], ["a", "b"], ["b"], ["b"]]
        turn.large(work("c", half), is_wanted=lambda: True)
        assert await turns_of(turn, done) == [["c"]]

    asyncio.run(scenario())


def test_huge_work_has_half_of_a_turn_beside_large() -> None:
    half = LARGE_WORK_PER_TURN // 2

    async def scenario() -> None:
        turn = Turn()
        done: list[str] = []

        def work(name: str, steps: int) -> Iterator[int]:
            for _ in range(steps):
                done.append(name)
                yield half

        turn.large(work("huge", 5), is_wanted=lambda: True, size_bytes=HUGE_REQUEST_BYTES + 1)
        turn.large(work("a", 1), is_wanted=lambda: True, size_bytes=HUGE_REQUEST_BYTES)
        turn.large(work("b", 1), is_wanted=lambda: True)
        assert await turns_of(turn, done) == [["a", "huge"], ["b", "huge"], ["huge", "huge"], ["huge"]]

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
        turn = Turn()
        turn.large(work("left"), is_wanted=lambda: is_wanted)
        turn.large(work("next"), is_wanted=lambda: True)
        await asyncio.sleep(0)
        is_wanted = False
        assert await turns_of(turn, done) == [["left", "next"], ["next"]]

    asyncio.run(scenario())


def test_large_work_that_fails_keeps_none_from_its_turn(caplog: pytest.LogCaptureFixture) -> None:
    done: list[str] = []

    def fails() -> Iterator[int]:
        yield 1 // 0

    def succeeds() -> Iterator[int]:
        done.append("next")
        yield 1

    async def scenario() -> None:
        turn = Turn()
        turn.large(fails(), is_wanted=lambda: True)
        turn.large(succeeds(), is_wanted=lambda: True)
        await asyncio.sleep(0)

    asyncio.run(scenario())
    assert done == ["next"]
    assert "ZeroDivisionError" in caplog.text
