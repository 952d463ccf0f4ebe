"""Fetch requests that wait for records, over all connections: `queued.max.fetch.partitions`.

Each partition named by such a request costs memory until the response is sent. A connection has at most one of them.
Beyond the limit, those with the most partitions get an early response with the available data, as if their time were
over, until three quarters of the limit are left.
"""

import asyncio
from typing import Protocol

KEPT_FRACTION = 3 / 4


class ParkedFetch(Protocol):
    """A waiting Fetch request."""

    def respond_soon(self) -> None:
        """Respond with the available data, and stop waiting."""


class ParkedFetches:
    """Number of partitions in waiting fetches. All methods run on the event loop."""

    def __init__(self, partitions_max: int) -> None:
        self.partitions_max = partitions_max
        self.partition_count = 0
        self._counts: dict[ParkedFetch, int] = {}
        self._is_scheduled = False
        self._is_over = False

    def add(self, fetch: ParkedFetch, partition_count: int) -> None:
        """Count a fetch; it may get an early response in a later turn of the loop."""
        self._counts[fetch] = partition_count
        self.partition_count += partition_count
        if self.partition_count > self.partitions_max:
            self._is_over = True
            self._reclaim_soon()

    def remove(self, fetch: ParkedFetch) -> None:
        """Forget a fetch that has its response or is abandoned."""
        self.partition_count -= self._counts.pop(fetch, 0)
        if self._is_over:
            self._reclaim_soon()

    def _reclaim_soon(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._respond_to_largest)

    def _respond_to_largest(self) -> None:
        """Respond to one fetch; the next one follows when it has left."""
        self._is_scheduled = False
        self._is_over = self.partition_count > self.partitions_max * KEPT_FRACTION
        if self._is_over:
            max(self._counts, key=self._counts.__getitem__).respond_soon()
