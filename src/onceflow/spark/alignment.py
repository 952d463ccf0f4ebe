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
from onceflow.spark.offsets import OffsetRange, Offsets, ranges
from onceflow.spark.options import MAX_EVENT_TIME_SKEW
from onceflow.spark.wrong_option import WrongOption
from onceflow.wire.columns import decode_columns

FETCH_BYTES = 16 * 1024
FETCHES_MAX = 16
"""How many fetches look for a record behind markers and aborted transactions, before the partition takes no part."""
_LOG_APPEND_TIME = 1
_NO_OFFSET = -1


class _Next(NamedTuple):
    """The first record of a range that is shown."""

    offset: int
    time_ms: int


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
        shown = {part: following for part, following in waiting.items() if following is not None}
        if not shown:
            return found
        until_ms = min(following.time_ms for following in shown.values()) + self._skew_ms
        by_topic = {topic: dict(partitions) for topic, partitions in found.by_topic.items()}
        for part, following in shown.items():
            is_ahead = following.time_ms > until_ms
            end = part.begin if is_ahead else self._end(part, following, until_ms)
            by_topic[part.topic][part.partition] = end
        return Offsets(by_topic, found.topic_ids)

    def _end(self, part: OffsetRange, following: _Next, until_ms: int) -> int:
        """Where the first record after `until_ms` is. The broker looks for it from the log's beginning."""
        until_ms = max(until_ms, self._reached_ms.get((part.topic, part.partition), until_ms))
        end = self._first_after(part, until_ms)
        if end <= following.offset:
            until_ms = self._time_reached_before(part, following, until_ms)
            self._reached_ms[part.topic, part.partition] = until_ms
            end = self._first_after(part, until_ms)
        return end

    def _time_reached_before(self, part: OffsetRange, following: _Next, low_ms: int) -> int:
        """The least time after which the first record comes behind `following`; some before it are after `low_ms`."""
        high_ms = self._ask(part, MAX_TIMESTAMP).timestamp_ms
        while low_ms + 1 < high_ms:
            middle_ms = (low_ms + high_ms) // 2
            if self._first_after(part, middle_ms) <= following.offset:
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

    def _next(self, part: OffsetRange) -> _Next | None:
        for columns in self._fetched(part):
            if columns.num_rows:
                if columns["timestampType"][0].as_py() == _LOG_APPEND_TIME:
                    raise WrongOption(
                        f"option {MAX_EVENT_TIME_SKEW} needs timestamps that say when an event was, and topic "
                        f"{part.topic} has those of its writing: set its message.timestamp.type to CreateTime, or take "
                        "the option out"
                    )
                return _Next(columns["offset"][0].as_py(), int(columns["timestamp"][0].value) // 1000)
        return None

    def _fetched(self, part: OffsetRange) -> Iterator[Any]:
        offset = part.begin
        for _ in range(FETCHES_MAX):
            fetched = self._cluster.fetch(
                part.topic,
                part.partition,
                offset,
                size_bytes_max=FETCH_BYTES,
                read_committed=self._read_committed,
            )
            decoded = decode_columns(fetched.records, offset_begin=offset, offset_end=part.end, aborted=fetched.aborted)
            yield decoded.columns
            if not fetched.records or decoded.next_offset <= offset or decoded.next_offset >= part.end:
                return
            offset = decoded.next_offset
