"""Calls of a function in each slice of sliced work, so that tests can bound the work of a turn."""

from typing import Any

import pytest

from onceflow.broker.loop import slices


def counted(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> list[int]:
    """Return a list with the number of calls of `owner`'s function `name` in each slice."""
    slice_counts: list[int] = []
    run_slice, function = slices._Slices.run_slice, getattr(owner, name)

    def count_slice(running: Any) -> None:
        slice_counts.append(0)
        run_slice(running)

    def count(*arguments: Any, **named: Any) -> Any:
        slice_counts[-1] += 1
        return function(*arguments, **named)

    monkeypatch.setattr(slices._Slices, "run_slice", count_slice)
    monkeypatch.setattr(owner, name, count)
    return slice_counts
