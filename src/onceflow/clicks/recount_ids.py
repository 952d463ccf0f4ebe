"""Second implementation of event ids for `verify`: all ids of the log, sorted.

Nothing here is imported from `onceflow.clicks.event_ids` or `onceflow.spark`. All records are read before the first one
is judged, so the result does not depend on micro-batches.
"""

import hashlib
from array import array
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from onceflow.clicks.recount import event_id, judge

PARTS = 4
"""An id is kept by quarters of the window, and for all of it at least."""

Position = tuple[int, int]
"""Partition and offset."""


class IdRecount:
    """Ids of records that are added one by one, each partition's in the order of offsets."""

    def __init__(self, key_field: str, value_field: str | None, window_ms: int) -> None:
        self._fields = key_field, value_field
        self._quarter_ms = (window_ms + PARTS - 1) // PARTS
        self._newest_ms: dict[int, int] = {}
        self._columns = tuple(array("q") for _ in range(5))

    def add(self, partition: int, offset: int, value: bytes | None, timestamp_ms: int = 0) -> None:
        """Add one record."""
        if value is None or judge(value, *self._fields).reason:
            return
        text = event_id(value)
        if text is None:
            return
        newest_ms = self._newest_ms[partition] = max(timestamp_ms, self._newest_ms.get(partition, 0))
        digest = hashlib.sha256(text.encode()).digest()
        low, high = (int.from_bytes(digest[at : at + 8], "little", signed=True) for at in (0, 8))
        for column, number in zip(
            self._columns, (low, high, newest_ms // self._quarter_ms, partition, offset), strict=True
        ):
            column.append(number)

    def duplicates(self) -> set[Position]:
        """Return the records that do not count."""
        return {position for _, records in self._repeated() for position in self._others(records)}

    def spread(self) -> int:
        """Return the number of ids in several partitions, whose records have no order."""
        return sum(len({partition for _, partition, _ in records}) > 1 for _, records in self._repeated())

    def _others(self, records: list[tuple[int, int, int]]) -> Iterator[Position]:
        counted: list[int] = []
        for quarter, partition, offset in records:
            if any(abs(quarter - known) <= PARTS for known in counted):
                yield partition, offset
            else:
                counted.append(quarter)

    def _repeated(self) -> Iterator[tuple[int, list[tuple[int, int, int]]]]:
        """Yield each id with several records, and their quarters, partitions and offsets, in this order."""
        columns = [np.frombuffer(column, np.int64) if column else np.zeros(0, np.int64) for column in self._columns]
        order = np.lexsort(columns[::-1])
        low, high, *places = (column[order] for column in columns)
        is_same = (low[1:] == low[:-1]) & (high[1:] == high[:-1])
        for first, last in _runs(is_same):
            yield first, list(zip(*(place[first : last + 1].tolist() for place in places), strict=True))


def _runs(is_same: npt.NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
    """Yield the first and the last index of each run of equal neighbours."""
    edges = np.diff(np.concatenate(([False], is_same, [False])).astype(np.int8))
    yield from zip(np.flatnonzero(edges == 1).tolist(), np.flatnonzero(edges == -1).tolist(), strict=True)
