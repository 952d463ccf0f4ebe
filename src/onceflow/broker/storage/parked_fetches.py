"""Fetch requests that wait for records, over all connections: `queued.max.fetch.partitions`.

Each partition that such a request names costs memory until the request is answered. A connection has at most one of
them. Beyond the limit those that name most partitions are answered early with what there is, as when their time is
over, until three quarters of the limit are left.
"""

import asyncio
from typing import Protocol

KEPT_PART = 3 / 4


class ParkedFetch(Protocol):
    """A Fetch request that waits."""

    def respond_soon(self) -> None:
        """Answer with what there is, and leave."""


class ParkedFetches:
    """Counts the partitions that are waited for. All methods are the event loop's."""

    def __init__(self, partitions_max: int) -> None:
        self.partitions_max = partitions_max
        self.partition_count = 0
        self._counts: dict[ParkedFetch, int] = {}
        self._is_scheduled = False
        self._is_over = False

    def add(self, fetch: ParkedFetch, partition_count: int) -> None:
        """Count a fetch; in a later turn of the loop it may be answered early."""
        self._counts[fetch] = partition_count
        self.partition_count += partition_count
        if self.partition_count > self.partitions_max:
            self._is_over = True
            self._relieve_soon()

    def remove(self, fetch: ParkedFetch) -> None:
        """Forget a fetch that is answered or abandoned."""
        self.partition_count -= self._counts.pop(fetch, 0)
        if self._is_over:
            self._relieve_soon()

    def _relieve_soon(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._answer_largest)

    def _answer_largest(self) -> None:
        """Answer one fetch; the next one is answered when it has left."""
        self._is_scheduled = False
        self._is_over = self.partition_count > self.partitions_max * KEPT_PART
        if self._is_over:
            max(self._counts, key=self._counts.__getitem__).respond_soon()
