"""Partitions read side by side in event time: option maxEventTimeSkew.

Spark has one watermark, the latest event time of all rows that were read, less the delay; other engines have one for
each partition, and the slowest decides. So when one partition is an hour ahead of another, what the other holds is late
for Spark before it was read. Here a micro-batch ends, in each partition, before the first record that is dated more
than the skew after the oldest record that is still to be read. Then:

    the latest row of batch k-1  ≤  the oldest unread record of then + skew
    a row of batch k             ≥  the oldest unread record of then, as far as its partition is in order

so with a watermark's delay of at least the skew no row is late that comes in order within its partition. Partitions
that have nothing to read take no part, so that an idle one holds nobody back.

Record timestamps stand for event times, which they must be near. Those of `message.timestamp.type=LogAppendTime` are
not: they say when a record was written, and are refused. So do the markers of transactions, which the broker dates.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from onceflow.client.cluster import MAX_TIMESTAMP, Cluster, OffsetAt
from onceflow.client.errors import OffsetOutOfRange
from onceflow.remedies import Remedy
from onceflow.spark.offsets import OffsetRange, Offsets, ranges
from onceflow.spark.reader.options import MAX_EVENT_TIME_SKEW
from onceflow.spark.wrong_option import WrongOption
from onceflow.wire.columns import decode_columns

FETCH_BYTES = 16 * 1024
FETCHES_MAX = 16
"""How many fetches look for a record behind markers and aborted transactions, before a batch ends there."""
_LOG_APPEND_TIME = 1
_NO_OFFSET = -1


class _Next(NamedTuple):
    """The first record of a range that is shown; without a time: none was found before `offset`."""

    offset: int
    time_ms: int | None


class Alignment:
    """Where batches end, for one query."""

    def __init__(self, cluster: Cluster, skew_ms: int, *, read_committed: bool) -> None:
        self._cluster = cluster
        self._skew_ms = skew_ms
        self._read_committed = read_committed
        self._reached_ms: dict[tuple[str, int], int] = {}
        """Times up to which nothing is gained by waiting in a partition, since records so late were read before."""

    def limit(self, known: Offsets, found: Offsets) -> Offsets:
        """`found`, or less in partitions that run ahead: where a batch after `known` may end.

        At least one record of one partition is read where one is shown. Raises WrongOption and the client's errors.
        """
        waiting = {part: self._next(part) for part in ranges(known, found) if part.size}
        by_topic = {topic: dict(partitions) for topic, partitions in found.by_topic.items()}
        times = [following.time_ms for following in waiting.values() if following.time_ms is not None]
        is_searching = any(each.time_ms is None and each.offset < part.end for part, each in waiting.items())
        until_ms = min(times, default=0) + self._skew_ms
        for part, following in waiting.items():
            if following.time_ms is None:
                end = following.offset
            elif is_searching or following.time_ms > until_ms:
                # One that may be the slowest has not shown where it is: the next batch goes on from there.
                end = part.begin
            else:
                end = self._end(part, following.offset, until_ms)
            by_topic[part.topic][part.partition] = end
        return Offsets(by_topic, found.topic_ids)

    def _end(self, part: OffsetRange, first_offset: int, until_ms: int) -> int:
        """Where the first record after `until_ms` is, behind `first_offset`. The broker looks from the log's begin."""
        until_ms = max(until_ms, self._reached_ms.get((part.topic, part.partition), until_ms))
        end = self._first_after(part, until_ms)
        if end <= first_offset:
            reached_ms = self._time_reached_before(part, first_offset, until_ms)
            if reached_ms is None:
                return part.end
            self._reached_ms[part.topic, part.partition] = reached_ms
            end = self._first_after(part, reached_ms)
        return max(end, first_offset + 1)

    def _time_reached_before(self, part: OffsetRange, first_offset: int, low_ms: int) -> int | None:
        """The least time after which the first record comes behind `first_offset`; some before it are after `low_ms`.

        None where the broker does not tell the latest time, as while the record that has it is not stable yet.
        """
        high_ms = self._ask(part, MAX_TIMESTAMP).timestamp_ms
        if high_ms <= low_ms:
            return None
        while low_ms + 1 < high_ms:
            middle_ms = (low_ms + high_ms) // 2
            if self._first_after(part, middle_ms) <= first_offset:
                low_ms = middle_ms
            else:
                high_ms = middle_ms
        return high_ms

    def _first_after(self, part: OffsetRange, time_ms: int) -> int:
        offset = self._ask(part, time_ms + 1).offset
        return part.end if offset == _NO_OFFSET else min(offset, part.end)

    def _ask(self, part: OffsetRange, timestamp: int) -> OffsetAt:
        asked = {part.partition: timestamp}
        return self._cluster.list_offsets(part.topic, asked, read_committed=self._read_committed)[part.partition]

    def _next(self, part: OffsetRange) -> _Next:
        offset = part.begin
        for columns, next_offset in self._fetched(part):
            if columns.num_rows:
                if columns["timestampType"][0].as_py() == _LOG_APPEND_TIME:
                    raise WrongOption(
                        f"option {MAX_EVENT_TIME_SKEW} needs timestamps that say when an event was, and topic "
                        f"{part.topic} has those of its writing: {Remedy.CREATE_TIME}"
                    )
                return _Next(columns["offset"][0].as_py(), int(columns["timestamp"][0].value) // 1000)
            offset = next_offset
        return _Next(offset, None)

    def _fetched(self, part: OffsetRange) -> Iterator[tuple[Any, int]]:
        """(columns, where they end) of the first fetches, until the range ends."""
        offset = part.begin
        for _ in range(FETCHES_MAX):
            try:
                fetched = self._cluster.fetch(
                    part.topic,
                    part.partition,
                    offset,
                    size_bytes_max=FETCH_BYTES,
                    read_committed=self._read_committed,
                )
            except OffsetOutOfRange as error:
                # What is gone is gone whatever the partition's time: the read task says so, or fails, by its option.
                gone_end = min(error.log_start_offset, part.end)
                if gone_end <= offset:
                    raise
                offset = gone_end
            else:
                decoded = decode_columns(
                    fetched.records, offset_begin=offset, offset_end=part.end, aborted=fetched.aborted
                )
                # A first batch that begins beyond the range says that the rest of the range is a gap.
                offset = min(decoded.next_offset, part.end) if decoded.next_offset > offset else part.end
                yield decoded.columns, offset
            if offset >= part.end:
                return
