"""Work on the event loop in slices: a bounded amount of it in each turn, so that other clients are served between."""

import asyncio
from collections.abc import Callable, Iterator

WORK_PER_TURN = 1000
"""In units of about a microsecond.

Much shorter turns than the interpreter's switch interval would keep other threads out, those that sync logs too: the
loop gives the interpreter's lock back in each turn, too briefly for a thread to wake up, and one that was woken begins
to wait for the interval again. Work must not be estimated too high, then.
"""


def run_in_slices(
    work: Iterator[int],
    done: Callable[[], None],
    *,
    failed: Callable[[BaseException], None],
    is_wanted: Callable[[], bool] = lambda: True,
) -> None:
    """Run `work`, which yields what each step cost in units of about a microsecond, and then call `done`.

    The first slice runs at once. `failed` gets what the work or `done` raises, which is raised then. The rest is
    dropped when it is no longer wanted.
    """
    _Slices(work, done, failed, is_wanted).turn()


class _Slices:
    """Work that is under way."""

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

    def turn(self) -> None:
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
                asyncio.get_running_loop().call_soon(self.turn)
        except BaseException as error:
            self._failed(error)
            raise
