"""Points where a driver can die: between any two lines of the sink's own code, and after each of its steps.

`watched` reports every line that is about to run to a `Reaper`, which ends the driver at one of them. The second run of
a line in the same batch is another point; the third is not.
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
    """End of the driver's process; nothing may catch it. Clean-up (`finally`, `with`) still runs."""


@dataclass(frozen=True, slots=True)
class Point:
    """A point in the driver's run; `description` is for messages and not part of its identity."""

    file: str
    function: str
    line: int
    visit: int
    description: str = field(compare=False)
    step: str = field(compare=False, default="")
    """The outermost function of the sink's own code, such as `commit`; empty outside of it."""

    def __str__(self) -> str:
        return self.description


class Reaper:
    """Ends one driver at the first point that `wanted` accepts, by an exception or by sleep until it is woken."""

    def __init__(self, wanted: Callable[[Point], bool], *, sleeps: bool = False) -> None:
        self.at: Point | None = None
        """Point where the driver died or fell asleep."""
        self.passed: list[Point] = []
        self.losses = 0
        """Responses that the driver did not receive."""
        self.stopped = threading.Event()
        """Set when the driver falls asleep or its thread ends."""
        self._wanted = wanted
        self._sleeps = sleeps
        self._wake = threading.Event()
        self._is_dead = False
        self._visits: Counter[tuple[str, str, int]] = Counter()

    def visit(self, file: str, function: str, line: int, description: str, step: str) -> None:
        """Record that the driver is at a point. Raises DriverDied."""
        self._visits[file, function, line] += 1
        point = Point(file, function, line, self._visits[file, function, line], description, step)
        if point.visit > VISITS_MAX or self.at is not None:
            return
        self.passed.append(point)
        if not self._wanted(point):
            return
        self.at = point
        if self._sleeps:
            self._sleep()
        else:
            raise DriverDied(description)

    def _sleep(self) -> None:
        self.stopped.set()
        if not self._wake.wait(ASLEEP_S_MAX) or self._is_dead:
            raise DriverDied("the process was ended while it was asleep")

    def wake(self, *, to_die: bool = False) -> None:
        """Wake the sleeping driver, to continue or to die at its point."""
        self._is_dead = to_die
        self._wake.set()


class _Lines:
    """Trace of one call of a sink's function; `inside` is this thread's stack of the sink's functions."""

    def __init__(self, frame: FrameType, reaper: Reaper, inside: list[str]) -> None:
        self._function = frame.f_code.co_qualname
        self._file = frame.f_code.co_filename
        self._reaper = reaper
        self._inside = inside
        self._line_done = 0
        inside.append(frame.f_code.co_name)

    def event(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            # Before a function's first line, nothing has happened since the last line of another one.
            if self._line_done:
                self._reaper.visit(self._file, self._function, frame.f_lineno, self._describe(), self._inside[0])
            self._line_done = frame.f_lineno
        elif event == "return":
            self._inside.pop()
        return self.event

    def _describe(self) -> str:
        text = linecache.getline(self._file, self._line_done).strip()
        return f"after line {self._line_done} ({text}) of {self._inside[-1]}"


@contextmanager
def watched(files: Collection[str], reaper: Reaper) -> Iterator[None]:
    """Report every line of these files that this thread runs in the block to the reaper."""
    inside: list[str] = []

    def called(frame: FrameType, event: str, argument: Any) -> Any:
        code = frame.f_code
        # Comprehensions and lambdas are lines of the function around them.
        if code.co_filename not in files or code.co_name.startswith("<"):
            return None
        return _Lines(frame, reaper, inside).event

    before = sys.gettrace()
    sys.settrace(called if files else before)
    try:
        yield
    finally:
        sys.settrace(before)
