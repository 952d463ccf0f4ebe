"""Work that is put off to the end of a turn of the loop: when it comes, and that it keeps nobody waiting."""

import asyncio

import pytest

from onceflow.broker.turn import LARGE_BYTES_PER_TURN, PASSES_MAX, Turn


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


def test_large_work_is_spread_over_turns_in_its_order() -> None:
    """Each turn of the loop does LARGE_BYTES_PER_TURN of it, or one larger piece."""
    turns: list[list[str]] = []

    async def scenario() -> None:
        turn = Turn()
        done: list[str] = []
        half = LARGE_BYTES_PER_TURN // 2
        sizes = {"a": half, "b": half, "c": 10 * half, "d": half, "e": half, "f": half}
        for name, size_bytes in sizes.items():
            if turn.admits(size_bytes, lambda name=name: done.append(name)):  # type: ignore[misc]
                done.append(name)
        while done:
            turns.append(list(done))
            done.clear()
            await asyncio.sleep(0)
        assert turn.admits(half, lambda: None), "nothing is left"
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert turn.admits(LARGE_BYTES_PER_TURN, lambda: None)
        assert not turn.admits(1, lambda: None), "the turn has done its part"

    asyncio.run(scenario())
    assert turns == [["a", "b"], ["c"], ["d", "e"], ["f"]]


def test_large_work_that_fails_keeps_none_from_its_turn(caplog: pytest.LogCaptureFixture) -> None:
    done: list[str] = []

    async def scenario() -> None:
        turn = Turn()
        assert turn.admits(LARGE_BYTES_PER_TURN, lambda: None)
        assert not turn.admits(LARGE_BYTES_PER_TURN, lambda: done.append(str(1 // 0)))
        assert not turn.admits(LARGE_BYTES_PER_TURN, lambda: done.append("next"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    asyncio.run(scenario())
    assert done == ["next"]
    assert "ZeroDivisionError" in caplog.text
