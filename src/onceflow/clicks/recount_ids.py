"""Second implementation of event ids for `verify`: all ids of the log, sorted.

Nothing here is imported from `onceflow.clicks.event_ids` or `onceflow.spark`. All records are read before the first one
is judged, so the result does not depend on micro-batches.
"""

import hashlib
from array import array
from collections.abc import Iterator
from itertools import groupby

from onceflow.clicks.recount import event_id, judge

GROUPS = 256
"""Groups of ids that are sorted one after the other, since Python's objects need more memory than the columns."""
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
        return {position for records in self._repeated() for position in self._others(records)}

    def spread(self) -> int:
        """Return the number of ids in several partitions, whose records have no order."""
        return sum(len({partition for _, partition, _ in records}) > 1 for records in self._repeated())

    def _others(self, records: list[tuple[int, int, int]]) -> Iterator[Position]:
        counted: list[int] = []
        for quarter, partition, offset in records:
            if any(abs(quarter - known) <= PARTS for known in counted):
                yield partition, offset
            else:
                counted.append(quarter)

    def _repeated(self) -> Iterator[list[tuple[int, int, int]]]:
        """Yield the quarters, partitions and offsets of each id with several records, in this order."""
        groups = [array("q") for _ in range(GROUPS)]
        for index, low in enumerate(self._columns[0]):
            groups[low % GROUPS].append(index)
        for group in groups:
            rows = sorted(tuple(column[index] for column in self._columns) for index in group)
            for _, same in groupby(rows, lambda row: row[:2]):
                records = [(quarter, partition, offset) for _, _, quarter, partition, offset in same]
                if len(records) > 1:
                    yield records
