"""New connections that are not authenticated yet: their number, their time and their share of the loop are limited.

A TLS handshake costs a millisecond of computing, a login a few tenths, and their client may leave them unfinished. So
one step of one newcomer runs in a turn of the loop, in the order of their arrival, and requests of other clients are
served in between. An honest client needs a few round trips: beyond the maximum number, the oldest newcomer is closed
for the next one.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Protocol

from onceflow.broker.config import BrokerConfig
from onceflow.broker.network.incoming import is_over
from onceflow.log.clock import Clock

logger = logging.getLogger(__name__)


class Newcomer(Protocol):
    """A connection that is not authenticated yet."""

    def close(self, reason: str | None) -> None: ...


class Newcomers:
    """All methods run on the event loop."""

    def __init__(self, config: BrokerConfig, clock: Clock) -> None:
        self._count_max = config.unauthenticated_connections_max
        self._ms_max = config.authentication_ms_max
        self._clock = clock
        self._began_at: dict[Newcomer, float] = {}
        self._steps: deque[tuple[Newcomer, Callable[[], None]]] = deque()
        self._is_step_scheduled = False
        self._closed = 0

    def __len__(self) -> int:
        return len(self._began_at)

    def begin(self, newcomer: Newcomer) -> None:
        """Count a new connection; close the oldest newcomer if there are too many."""
        self._began_at[newcomer] = self._clock.monotonic()
        if len(self._began_at) > self._count_max:
            self._closed += 1
            next(iter(self._began_at)).close(None)

    def end(self, newcomer: Newcomer) -> None:
        """Count it no more: it is authenticated, or closed."""
        self._began_at.pop(newcomer, None)

    def do_soon(self, newcomer: Newcomer, step: Callable[[], None]) -> None:
        """Make a newcomer's step in a later turn of the loop, after the steps before it, unless it has ended then."""
        self._steps.append((newcomer, step))
        self._schedule()

    def _schedule(self) -> None:
        if self._steps and not self._is_step_scheduled:
            self._is_step_scheduled = True
            asyncio.get_running_loop().call_soon(self._do_next)

    def _do_next(self) -> None:
        self._is_step_scheduled = False
        try:
            while self._steps:
                newcomer, step = self._steps.popleft()
                if newcomer in self._began_at:
                    step()
                    return
        finally:
            self._schedule()

    def check(self) -> None:
        """Close those that take too long, and log how many were closed for others; called once a second."""
        now = self._clock.monotonic()
        late = [newcomer for newcomer, began_at in self._began_at.items() if is_over(now - began_at, self._ms_max)]
        for newcomer in late:
            newcomer.close(f"not authenticated within authentication.timeout.ms={self._ms_max}")
        if self._closed:
            logger.warning(
                "%d connections were closed before they were authenticated, for later ones:"
                " max.unauthenticated.connections=%d",
                self._closed,
                self._count_max,
            )
            self._closed = 0
