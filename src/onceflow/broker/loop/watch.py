"""Reports of long work on the event loop, for debugging (`loop.block.report.ms`).

A request is measured by itself, so that the log names its API and its client. All other work on the loop (rounds of
syncs, timers, writes) shows in a timer that fires late.
"""

import asyncio
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

logger = logging.getLogger(__name__)

BEAT_SECONDS = 0.02


class LoopWatch:
    """Reports work that took longer than `limit_ms`. All methods run on the event loop."""

    def __init__(self, limit_ms: int) -> None:
        self._limit_seconds = limit_ms / 1000
        self._due = 0.0
        self._reported_seconds = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Start the timer."""
        self._due = time.monotonic() + BEAT_SECONDS
        self._reported_seconds = 0.0
        self._timer = asyncio.get_running_loop().call_later(BEAT_SECONDS, self._beat)

    def stop(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()

    def _beat(self) -> None:
        late_seconds = time.monotonic() - self._due - self._reported_seconds
        if late_seconds >= self._limit_seconds:
            logger.warning("work between requests held the loop for %.1f ms", late_seconds * 1000)
        self.start()

    @contextmanager
    def measured(self, what: str, peer: str) -> Iterator[None]:
        """Measure the handling of one request."""
        begin = time.monotonic()
        try:
            yield
        finally:
            seconds = time.monotonic() - begin
            if seconds >= self._limit_seconds:
                self._reported_seconds += seconds
                logger.warning("%s of %s held the loop for %.1f ms", what, peer, seconds * 1000)
