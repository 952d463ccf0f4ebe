"""A thread for rounds of blocking work. The end of a round wakes the event loop by a byte in a pipe.

A Future and `call_soon_threadsafe` do the same for twice the processor time: each end of a round costs them locks, a
handle, two reads of the loop's own socket and one more exception. There is a round for each sync of a single record.
"""

import asyncio
import os
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Generic, TypeVar

Result = TypeVar("Result")


class RoundThread(Generic[Result]):
    """One round at a time: `begin`, then `end` on the loop with the work's result. All methods run on the loop.

    The first round starts the thread and opens the pipe; `close` ends both.
    """

    def __init__(self, name: str, end: Callable[[Result], None]) -> None:
        self._end = end
        self._work: SimpleQueue[Callable[[], Result] | None] = SimpleQueue()
        self._results: SimpleQueue[Result] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._reading = self._writing = -1

    def begin(self, work: Callable[[], Result]) -> None:
        """Do the work, which raises nothing, in the thread. Raises OSError if no pipe or no thread can be created."""
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
        # Set once both exist: the next round takes an open pipe as a sign of a running thread.
        self._reading, self._writing = reading, writing

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            self._results.put(work())
            # Released before the next round: it may refer to a deleted topic.
            del work
            os.write(self._writing, b"\0")

    def _ended(self) -> None:
        os.read(self._reading, 1)
        self._end(self._results.get())

    def close(self) -> None:
        """End the thread and close the pipe, after the last round's end."""
        if self._reading < 0:
            return
        self._work.put(None)
        self._thread.join()
        asyncio.get_running_loop().remove_reader(self._reading)
        os.close(self._reading)
        os.close(self._writing)
        self._reading = self._writing = -1
