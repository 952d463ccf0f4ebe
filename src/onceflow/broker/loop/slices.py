"""Work on the event loop in slices: a bounded amount of it in each turn, so that other clients are served between."""

import asyncio
from collections.abc import Callable, Iterator

WORK_PER_TURN = 1000
"""Work of one slice, in units of about a microsecond.

Turns much shorter than the interpreter's switch interval would lock out other threads, those that sync logs too. The
loop releases the interpreter's lock in each turn, too briefly for a thread to wake up, and a thread that was woken
waits for the interval again. So work must not be estimated too high.
"""


def run_in_slices(
    work: Iterator[int],
    done: Callable[[], None],
    *,
    failed: Callable[[BaseException], None],
    is_wanted: Callable[[], bool] = lambda: True,
) -> None:
    """Run `work`, which yields the cost of each step in units of about a microsecond, and then call `done`.

    The first slice runs at once. `failed` gets what the work or `done` raises, before it is raised again. The rest is
    dropped when it is no longer wanted.
    """
    _Slices(work, done, failed, is_wanted).run_slice()


class _Slices:
    """Work in progress."""

    def __init__(
        self,
        work: Iterator[int],
        done: Callable[[], None],
        failed: Callable[[BaseException], None],
        is_wanted: Callable[[], bool],
    ) -> None:
        self._work = work
        self._done = done
        self._failed = failed
        self._is_wanted = is_wanted

    def run_slice(self) -> None:
        """Run a slice in this turn of the loop."""
        try:
            spent = 0
            for units in self._work:
                spent += units
                if spent >= WORK_PER_TURN:
                    break
            if spent < WORK_PER_TURN:
                self._done()
            elif self._is_wanted():
                asyncio.get_running_loop().call_soon(self.run_slice)
        except BaseException as error:
            self._failed(error)
            raise
