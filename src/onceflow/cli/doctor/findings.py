"""Findings of checks, and a runner that waits for each check for a limited time."""

import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from onceflow.cli import missing_extra
from onceflow.errors import OnceflowError
from onceflow.remedies import Remedy

LIMIT_S = 20.0
"""Maximum time of a check, above every time-out inside one: the resolver of host names has none."""


class State(StrEnum):
    """Result of a check."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"
    NOT_CHECKED = "not checked"


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of one check; `remedy` is None if there is nothing to do."""

    check: str
    state: State
    message: str
    remedy: str | None = None


def failure(check: str, error: object) -> Finding:
    """Return the finding of an error whose message ends with `; ` and a remedy, if it has one."""
    message, *parts = re.split(r"; (?![^(]*\))", str(error))  # Not inside parentheses.
    return Finding(check, State.FAILED, "; ".join([message, *parts[:-1]]), *parts[-1:])


Check = Callable[[], Iterable[Finding]]


def run(checks: Mapping[str, Check], *, limit_s: float = LIMIT_S) -> list[Finding]:
    """Run all checks at once; return their findings in the order of the checks.

    A check that does not end in time, or fails, is a finding itself.
    """
    findings: dict[str, list[Finding]] = {}
    unexpected: list[Exception] = []

    def run_one(name: str, check: Check) -> None:
        try:
            findings[name] = list(check())
        except (OnceflowError, OSError) as error:
            findings[name] = [failure(name, error)]
        except ModuleNotFoundError as error:
            findings[name] = [failure(name, missing_extra("doctor", error))]
        except Exception as error:  # noqa: BLE001 - It is raised in the caller's thread.
            unexpected.append(error)

    # A daemon does not keep the process alive.
    threads = {
        name: threading.Thread(target=run_one, args=(name, check), daemon=True) for name, check in checks.items()
    }
    deadline = time.monotonic() + limit_s
    for thread in threads.values():
        thread.start()
    for thread in threads.values():
        thread.join(max(0.0, deadline - time.monotonic()))
    for error in unexpected:
        raise error
    missing = f"the check did not end within {limit_s:g} s"
    return [
        finding
        for name in checks
        for finding in findings.get(name, [Finding(name, State.FAILED, missing, Remedy.TRY_AGAIN)])
    ]
