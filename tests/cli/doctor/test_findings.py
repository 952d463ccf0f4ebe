"""The runner of checks: it waits for a limited time, and no error of a check is lost."""

import threading
from collections.abc import Iterator

import pytest

from onceflow.cli.doctor.findings import Finding, State, failure, run
from onceflow.errors import OnceflowError


def ok() -> list[Finding]:
    return [Finding("b", State.OK, "fine")]


def test_a_check_that_hangs() -> None:
    released = threading.Event()

    def hang() -> Iterator[Finding]:
        released.wait(60)
        yield from ok()

    hanging, *others = run({"a": hang, "b": ok}, limit_s=0.1)
    released.set()
    assert (hanging.state, hanging.message) == (State.FAILED, "the check did not end within 0.1 s")
    assert others == ok()


def test_known_errors_become_findings() -> None:
    def missing() -> list[Finding]:
        raise ModuleNotFoundError(name="scramp")

    def refused() -> list[Finding]:
        raise OnceflowError("it failed (at 1; twice); do this")

    first, second = run({"a": missing, "b": refused})
    assert first.message == "'onceflow doctor' needs the package scramp, which is not installed"
    assert str(first.remedy).startswith("install it with: pip install ")
    assert second == Finding("b", State.FAILED, "it failed (at 1; twice)", "do this")
    assert failure("a", "no remedy") == Finding("a", State.FAILED, "no remedy")


def test_other_errors_are_raised() -> None:
    def broken() -> list[Finding]:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run({"a": broken, "b": ok})
