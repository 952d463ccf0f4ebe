"""Where a driver can die: between any two lines of the sink's own code, and after each of its steps.

`watched` shows every line that is about to run to a `Reaper`, which ends the driver at one of them. A line that runs
again in the same batch is another point, once; the third time is not.
"""

import linecache
import sys
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

VISITS_MAX = 2
ASLEEP_S_MAX = 60.0


class DriverDied(BaseException):
    """The driver's process ends here; nothing may catch it. What cleans up (`finally`, `with`) still runs."""


@dataclass(frozen=True, slots=True)
class Point:
    """A place in the driver's life; `said` names it in a sentence and is no part of what it is."""

    file: str
    function: str
    line: int
    visit: int
    said: str = field(compare=False)
    step: str = field(compare=False, default="")
    """The outermost function of the sink's own code, such as `commit`; empty outside of it."""

    def __str__(self) -> str:
        return self.said


class Reaper:
    """Ends one driver at the first point that `wanted` says yes to: by an exception, or asleep until it is woken."""

    def __init__(self, wanted: Callable[[Point], bool], *, sleeps: bool = False) -> None:
        self.at: Point | None = None
        """Where the driver died or fell asleep."""
        self.passed: list[Point] = []
        self.losses = 0
        """Answers that the driver did not get."""
        self.stopped = threading.Event()
        """Set when the driver falls asleep; its thread sets it too when it ends."""
        self._wanted = wanted
        self._sleeps = sleeps
        self._wake = threading.Event()
        self._is_dead = False
        self._visits: Counter[tuple[str, str, int]] = Counter()

    def visit(self, file: str, function: str, line: int, said: str, step: str) -> None:
        """The driver is at a point. Raises DriverDied."""
        self._visits[file, function, line] += 1
        point = Point(file, function, line, self._visits[file, function, line], said, step)
        if point.visit > VISITS_MAX or self.at is not None:
            return
        self.passed.append(point)
        if not self._wanted(point):
            return
        self.at = point
        if self._sleeps:
            self._sleep()
        else:
            raise DriverDied(said)

    def _sleep(self) -> None:
        self.stopped.set()
        if not self._wake.wait(ASLEEP_S_MAX) or self._is_dead:
            raise DriverDied("the process was ended while it was asleep")

    def wake(self, *, to_die: bool = False) -> None:
        """Lets the driver that is asleep go on, or die where it is."""
        self._is_dead = to_die
        self._wake.set()


class _Lines:
    """Follows one call of a function of the sink; `inside` are the functions of the sink that this thread is in."""

    def __init__(self, frame: FrameType, reaper: Reaper, inside: list[str]) -> None:
        self._function = frame.f_code.co_qualname
        self._file = frame.f_code.co_filename
        self._reaper = reaper
        self._inside = inside
        self._line_done = 0
        inside.append(frame.f_code.co_name)

    def event(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            # Before the first line of a function nothing has happened since the last line of another one.
            if self._line_done:
                self._reaper.visit(self._file, self._function, frame.f_lineno, self._said(), self._inside[0])
            self._line_done = frame.f_lineno
        elif event == "return":
            self._inside.pop()
        return self.event

    def _said(self) -> str:
        text = linecache.getline(self._file, self._line_done).strip()
        return f"after line {self._line_done} ({text}) of {self._inside[-1]}"


@contextmanager
def watched(files: Collection[str], reaper: Reaper) -> Iterator[None]:
    """Shows the reaper every line of these files that this thread runs in the block."""
    inside: list[str] = []

    def called(frame: FrameType, event: str, argument: Any) -> Any:
        code = frame.f_code
        # Comprehensions and lambdas are lines of the function that has them.
        if code.co_filename not in files or code.co_name.startswith("<"):
            return None
        return _Lines(frame, reaper, inside).event

    before = sys.gettrace()
    sys.settrace(called if files else before)
    try:
        yield
    finally:
        sys.settrace(before)
