"""A thread for rounds of blocking work, whose ends wake the event loop by a byte in a pipe.

A Future and `call_soon_threadsafe` do the same for twice the processor time: each end of a round costs them locks, a
handle, two reads of the loop's own socket and one more exception. Rounds are as many as the syncs of single records.
"""

import asyncio
import os
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Generic, TypeVar

Result = TypeVar("Result")


class RoundThread(Generic[Result]):
    """One round at a time: `begin`, and on the loop `end` with what the work returned. All methods are the loop's.

    The thread is started, and the pipe made, by the first round; `close` ends both.
    """

    def __init__(self, name: str, end: Callable[[Result], None]) -> None:
        self._end = end
        self._work: SimpleQueue[Callable[[], Result] | None] = SimpleQueue()
        self._results: SimpleQueue[Result] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._reading = self._writing = -1

    def begin(self, work: Callable[[], Result]) -> None:
        """Do the work, which raises nothing, in the thread. Raises OSError where no pipe or no thread can be had."""
        if self._reading < 0:
            self._open()
        self._work.put(work)

    def _open(self) -> None:
        reading, writing = os.pipe()
        try:
            asyncio.get_running_loop().add_reader(reading, self._ended)
            self._thread.start()
        except (OSError, RuntimeError) as error:
            asyncio.get_running_loop().remove_reader(reading)
            os.close(reading)
            os.close(writing)
            raise OSError(f"no thread for rounds: {error}") from error
        # Not before both are there: the next round would take a pipe for a thread.
        self._reading, self._writing = reading, writing

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            self._results.put(work())
            # Not until the next round begins: what it refers to may be a deleted topic's.
            del work
            os.write(self._writing, b"\0")

    def _ended(self) -> None:
        os.read(self._reading, 1)
        self._end(self._results.get())

    def close(self) -> None:
        """After the last round's end."""
        if self._reading < 0:
            return
        self._work.put(None)
        self._thread.join()
        asyncio.get_running_loop().remove_reader(self._reading)
        os.close(self._reading)
        os.close(self._writing)
        self._reading = self._writing = -1
