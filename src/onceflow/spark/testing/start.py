"""One start of the query: a driver in its own thread that creates the sink and calls it until it ends or dies."""

import contextlib
import gc
import traceback
import warnings
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as futures_wait

from onceflow.errors import OnceflowError
from onceflow.spark.testing.points import Reaper, watched
from onceflow.spark.testing.steps import BatchSink, files_of

SILENT_S_MAX = 120.0
CAUSES_MAX = 20


class DriverSilent(OnceflowError):
    """A sink did not return in time."""


class Start:
    """A driver that starts at once: it calls `make`, then `run` with the sink while the reaper watches, then closes it.

    The reaper sees every line of the sink's own files and of `files`; no line if `files` is None.
    """

    def __init__(
        self,
        make: Callable[[], BatchSink],
        run: Callable[[BatchSink], None],
        reaper: Reaper,
        files: Collection[str] | None,
    ) -> None:
        self.reaper = reaper
        self._files = files
        self._thread = ThreadPoolExecutor(1, "driver")
        self._future: Future[None] | None = self._thread.submit(self._life, make, run)
        self._future.add_done_callback(lambda _: reaper.stopped.set())

    def _life(self, make: Callable[[], BatchSink], run: Callable[[BatchSink], None]) -> None:
        sink = make()
        with watched(() if self._files is None else {*self._files, *files_of(sink)}, self.reaper):
            run(sink)
        sink.close()

    def wait(self, within_s: float = SILENT_S_MAX) -> bool:
        """Return whether the driver has ended or fallen asleep within that time."""
        return self.reaper.stopped.wait(within_s)

    def is_over(self, within_s: float) -> bool:
        """Return whether the driver has ended within that time."""
        if self._future is None:
            return True
        return not futures_wait([self._future], within_s).not_done

    @property
    def is_asleep(self) -> bool:
        return self._future is not None and self.reaper.at is not None and not self._future.done()

    def end(self) -> BaseException | None:
        """Wait for the end of the driver and release all that it held, as the end of a process does.

        Return the error that ended it, or None. Raises DriverSilent.
        """
        if self._future is None:
            return None
        try:
            error = self._future.exception(SILENT_S_MAX)
        except TimeoutError as late:
            raise DriverSilent(f"the sink did not return within {SILENT_S_MAX:g} s: limit its waits") from late
        self._future = None
        self._thread.shutdown()
        if error is not None:
            _forget(error)
        return error

    def kill(self) -> None:
        """End a sleeping driver."""
        self.reaper.wake(to_die=True)
        self.end()


def _forget(error: BaseException) -> None:
    """Release all that the frames of a dead driver hold; keep the traceback as text."""
    error.add_note("".join(traceback.format_tb(error.__traceback__)))
    with _death():
        cause: BaseException | None = error
        for _ in range(CAUSES_MAX):
            if cause is None:
                break
            traceback.clear_frames(cause.__traceback__)
            cause.__traceback__ = None
            cause = cause.__cause__ or cause.__context__
    collect_dead_drivers()


def collect_dead_drivers() -> None:
    """Close what dead drivers had open."""
    with _death():
        gc.collect()


@contextlib.contextmanager
def _death() -> Iterator[None]:
    """Ignore warnings of unclosed connections: a dead process leaves them to the system, too."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        yield
