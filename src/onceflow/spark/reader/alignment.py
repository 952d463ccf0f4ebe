"""Alignment of partitions in event time: option maxEventTimeSkew.

Spark has one watermark: the latest event time of all rows read, less the delay. Other engines have one for each
partition, and the slowest decides. So if one partition is an hour ahead, Spark takes the other's records for late
before it reads them. Here a micro-batch ends, in each partition, before the first record that is more than the skew
later than the oldest unread record. Then:

    the latest row of batch k-1  ≤  the oldest record unread at that time + skew
    a row of batch k             ≥  the oldest record unread at that time, if its partition is in order

With a watermark delay of at least the skew, no row is late that is in order within its partition. Partitions without
unread records are left out, so that an idle one does not delay the others.

Record timestamps stand for event times and must be close to them. Those of `message.timestamp.type=LogAppendTime` are
the time of the write and are refused. Transaction markers carry the time of the write too.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from onceflow.client.cluster import MAX_TIMESTAMP, Cluster, OffsetAt
from onceflow.client.errors import OffsetOutOfRange
from onceflow.remedies import Remedy
from onceflow.spark.errors import WrongOption
from onceflow.spark.offsets import OffsetRange, Offsets, ranges
from onceflow.spark.reader.options import MAX_EVENT_TIME_SKEW
from onceflow.wire import TopicPartition
from onceflow.wire.columns import decode_columns

FETCH_BYTES = 16 * 1024
FETCHES_MAX = 16
"""Number of fetches that search for a record after markers and aborted transactions, before a batch ends there."""
_LOG_APPEND_TIME = 1
_NO_OFFSET = -1


class _Next(NamedTuple):
    """First visible record of a range; without a time, there is none before `offset`."""

    offset: int
    time_ms: int | None


class Alignment:
    """Ends of the batches of one query."""

    def __init__(self, cluster: Cluster, skew_ms: int, *, read_committed: bool) -> None:
        self._cluster = cluster
        self._skew_ms = skew_ms
        self._read_committed = read_committed
        self._reached_ms: dict[TopicPartition, int] = {}
        """Times up to which a partition does not wait, since records that late were already read."""

    def limit(self, known: Offsets, ends: Offsets) -> Offsets:
        """Return where a batch after `known` may end: `ends`, or less in partitions that are ahead.

        If any record is visible, at least one is read. Raises WrongOption and the client's errors.
        """
        waiting = {part: self._next(part) for part in ranges(known, ends) if part.size}
        by_topic = {topic: dict(partitions) for topic, partitions in ends.by_topic.items()}
        times = [following.time_ms for following in waiting.values() if following.time_ms is not None]
        is_searching = any(
            following.time_ms is None and following.offset < part.end for part, following in waiting.items()
        )
        until_ms = min(times, default=0) + self._skew_ms
        for part, following in waiting.items():
            if following.time_ms is None:
                end = following.offset
            elif is_searching or following.time_ms > until_ms:
                # The next batch continues the search in a partition that may be the slowest.
                end = part.begin
            else:
                end = self._end(part, following.offset, until_ms)
            by_topic[part.topic][part.partition] = end
        return Offsets(by_topic, ends.topic_ids)

    def _end(self, part: OffsetRange, first_offset: int, until_ms: int) -> int:
        """Return the offset of the first record after `until_ms` and `first_offset`.

        The broker searches from the log's start.
        """
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
        """Return the least time whose next later record is after `first_offset`; some before it are after `low_ms`.

        Return None if the broker does not know the latest time, as while the record that has it is not stable yet.
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
                        f"option {MAX_EVENT_TIME_SKEW} needs event times, and the timestamps of topic {part.topic} are "
                        f"the times of the writes: {Remedy.CREATE_TIME}"
                    )
                return _Next(columns["offset"][0].as_py(), int(columns["timestamp"][0].value) // 1000)
            offset = next_offset
        return _Next(offset, None)

    def _fetched(self, part: OffsetRange) -> Iterator[tuple[Any, int]]:
        """Yield (columns, their end offset) of the first fetches, until the range ends."""
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
                # Deleted records do not depend on the time: the read task logs them or fails, by its option.
                deleted_end = min(error.log_start_offset, part.end)
                if deleted_end <= offset:
                    raise
                offset = deleted_end
            else:
                decoded = decode_columns(
                    fetched.records, offset_begin=offset, offset_end=part.end, aborted=fetched.aborted
                )
                # If the first batch starts after the range, the rest of the range is a gap.
                offset = min(decoded.next_offset, part.end) if decoded.next_offset > offset else part.end
                yield decoded.columns, offset
            if offset >= part.end:
                return
