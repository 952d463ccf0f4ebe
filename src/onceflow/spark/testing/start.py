"""One start of the query: a driver in a thread of its own, which makes the sink and calls it until it ends or dies."""

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
    """A sink did not come back."""


class Start:
    """Begins as soon as it is made: `make` the sink, then `run` it while the reaper watches, then close it.

    The reaper sees every line of the sink's own files and of `files`; where these are None, no line.
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
        """Whether the driver has ended or fallen asleep within that time."""
        return self.reaper.stopped.wait(within_s)

    def is_over(self, within_s: float) -> bool:
        """Whether the driver has ended within that time."""
        if self._future is None:
            return True
        return not futures_wait([self._future], within_s).not_done

    @property
    def is_asleep(self) -> bool:
        return self._future is not None and self.reaper.at is not None and not self._future.done()

    def end(self) -> BaseException | None:
        """Waits for the end of the driver, and forgets all that it held, as the end of a process does.

        What ended it, None where nothing did. Raises DriverSilent.
        """
        if self._future is None:
            return None
        try:
            error = self._future.exception(SILENT_S_MAX)
        except TimeoutError as late:
            raise DriverSilent(
                f"the sink did not come back within {SILENT_S_MAX:g} s: bound what it waits for"
            ) from late
        self._future = None
        self._thread.shutdown()
        if error is not None:
            _forget(error)
        return error

    def kill(self) -> None:
        """Ends a driver that is asleep."""
        self.reaper.wake(to_die=True)
        self.end()


def _forget(error: BaseException) -> None:
    """Lets go of all that the frames of a dead driver hold; where it happened stays, as text."""
    error.add_note("".join(traceback.format_tb(error.__traceback__)))
    with _death():
        each: BaseException | None = error
        for _ in range(CAUSES_MAX):
            if each is None:
                break
            traceback.clear_frames(each.__traceback__)
            each.__traceback__ = None
            each = each.__cause__ or each.__context__
    bury()


def bury() -> None:
    """Closes what dead drivers had open."""
    with _death():
        gc.collect()


@contextlib.contextmanager
def _death() -> Iterator[None]:
    """A process that dies leaves its connections to the system, so nobody is told that they were not closed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        yield
