"""Calls of a function in each slice of sliced work, so that tests can bound the work of a turn."""

from typing import Any

import pytest

from onceflow.broker.loop import slices


def counted(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> list[int]:
    """Return a list that gets, for each slice, how often the function `name` of `owner` was called in it."""
    turns: list[int] = []
    turn, function = slices._Slices.turn, getattr(owner, name)

    def count_turn(running: Any) -> None:
        turns.append(0)
        turn(running)

    def count(*arguments: Any, **named: Any) -> Any:
        turns[-1] += 1
        return function(*arguments, **named)

    monkeypatch.setattr(slices._Slices, "turn", count_turn)
    monkeypatch.setattr(owner, name, count)
    return turns
