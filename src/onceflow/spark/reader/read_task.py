"""Read tasks, which run in Spark's Python workers: fetch ranges of the log and return them as Arrow columns."""

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import pyarrow
from pyspark.sql.datasource import InputPartition

from onceflow.client.cluster import Cluster, Fetched
from onceflow.client.errors import OffsetOutOfRange
from onceflow.errors import OnceflowError
from onceflow.remedies import Remedy
from onceflow.spark.connections import connect
from onceflow.spark.offsets import Loss, LossKind, OffsetRange, share_out
from onceflow.spark.reader import data_loss
from onceflow.spark.reader.options import SourceOptions
from onceflow.wire.batch import read_header
from onceflow.wire.columns import DecodedColumns, decode_columns

OFFSETS_PER_TASK_MIN = 10_000
"""A task costs at least some 40 ms, about the time to read and parse ten thousand records."""
FETCH_BYTES_MAX = 8 * 1024 * 1024
FETCH_BYTES_MIN = 64 * 1024
FETCH_BYTES_PER_OFFSET = 1024
"""A short range in a long log fetches little, not 8 MiB to discard; larger records take more fetches."""
FIRST_CONTACT_MS = 30_000
"""The batch was planned with these addresses a moment ago, so an unreachable broker is expected to return."""
STALL_SECONDS_MAX = 30
"""How long a partition may return nothing below the end that it had when the batch was planned."""

_COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")


class ReadStalled(OnceflowError):
    """Partition that does not return the records that it had when the batch was planned."""


class TopicReplaced(OnceflowError):
    """Topic that was deleted and recreated while a task read it."""


@dataclass(frozen=True)
class ReadTask(InputPartition):
    """Ranges that one Spark task reads, and the known ids of their topics."""

    ranges: tuple[OffsetRange, ...]
    topic_ids: Mapping[str, str]


def plan(parts: Iterable[OffsetRange], topic_ids: Mapping[str, str], options: SourceOptions) -> list[ReadTask]:
    """Return the tasks of one batch; none if all ranges are empty."""
    tasks = share_out(
        parts,
        OFFSETS_PER_TASK_MIN,
        tasks_min=options.tasks_min,
        tasks_max=options.tasks_max,
        offsets_per_task_max=options.offsets_per_task_max,
    )
    return [
        ReadTask(tuple(shared), {part.topic: topic_ids[part.topic] for part in shared if part.topic in topic_ids})
        for shared in tasks
    ]


def read(options: SourceOptions, task: ReadTask) -> Iterator[pyarrow.RecordBatch]:
    """Yield the task's records, or the result of the push-downs.

    Raises DataLost, ReadStalled, TopicReplaced, SumOverflow and the client's errors.
    """
    records = _read_records(options, task)
    return records if options.pushdown is None else options.pushdown.apply(records)


def _read_records(options: SourceOptions, task: ReadTask) -> Iterator[pyarrow.RecordBatch]:
    """Yield every record of the task's ranges that the isolation level allows, each range in offset order."""
    cluster = connect(options.bootstrap, options.security, first_contact_ms=FIRST_CONTACT_MS)
    for part in task.ranges:
        yield from _read_range(cluster, options, part)
    _require_same_topics(cluster, task)


def _read_range(cluster: Cluster, options: SourceOptions, part: OffsetRange) -> Iterator[pyarrow.RecordBatch]:
    offset = part.begin
    while offset < part.end:
        try:
            fetched = _fetch(cluster, options, part, offset)
        except OffsetOutOfRange as error:
            offset = _skip_deleted(options, part, error)
            continue
        decoded = decode_columns(
            fetched.records,
            offset_begin=offset,
            offset_end=part.end,
            aborted=fetched.aborted,
            include_headers=options.include_headers,
        )
        offset = _next_offset(part, offset, fetched, decoded)
        if decoded.columns.num_rows:
            yield _with_origin(decoded.columns, part)


def _fetch(cluster: Cluster, options: SourceOptions, part: OffsetRange, offset: int) -> Fetched:
    size_bytes = (part.end - offset) * FETCH_BYTES_PER_OFFSET
    deadline = time.monotonic() + STALL_SECONDS_MAX
    while True:
        fetched = cluster.fetch(
            part.topic,
            part.partition,
            offset,
            size_bytes_max=max(FETCH_BYTES_MIN, min(size_bytes, FETCH_BYTES_MAX)),
            read_committed=options.read_committed,
        )
        if fetched.records:
            return fetched
        if time.monotonic() >= deadline:
            raise ReadStalled(
                f"{part} returned no records at offset {offset} for {STALL_SECONDS_MAX} s, though the log reached its "
                f"end when the batch was planned; the last stable offset is now {fetched.last_stable_offset}: "
                f"{Remedy.LOOK_AT_BROKER_LOG}, then {Remedy.START_AGAIN}"
            )


def _skip_deleted(options: SourceOptions, part: OffsetRange, error: OffsetOutOfRange) -> int:
    """Return the offset after the missing ones, if the options allow that."""
    if error.log_start_offset <= error.offset <= error.offset_end:
        raise error
    deleted_end = min(error.log_start_offset, part.end) if error.offset < error.log_start_offset else part.end
    kind = LossKind.TRIMMED if error.offset < error.log_start_offset else LossKind.TRUNCATED
    reason = f"the partition now starts at {error.log_start_offset} and ends at {error.offset_end}"
    loss = Loss(kind, part.topic, part.partition, error.offset, deleted_end, reason)
    data_loss.report([loss], fail=options.fail_on_data_loss)
    return deleted_end


def _next_offset(part: OffsetRange, offset: int, fetched: Fetched, decoded: DecodedColumns) -> int:
    """Return where to fetch next. If the first batch starts after the range, the rest of the range is a gap."""
    if decoded.next_offset > offset:
        return decoded.next_offset
    base_offset = read_header(fetched.records).base_offset
    if base_offset < part.end:
        raise ReadStalled(f"{part}: the batch fetched at offset {offset} ends before it, at base offset {base_offset}")
    return part.end


def _with_origin(columns: pyarrow.RecordBatch, part: OffsetRange) -> pyarrow.RecordBatch:
    rows = columns.num_rows
    key, value, offset, timestamp, timestamp_type, *headers = columns.columns
    topic = pyarrow.repeat(pyarrow.scalar(part.topic, pyarrow.string()), rows)
    partition = pyarrow.repeat(pyarrow.scalar(part.partition, pyarrow.int32()), rows)
    arrays = [key, value, topic, partition, offset, timestamp, timestamp_type, *headers]
    return pyarrow.RecordBatch.from_arrays(arrays, names=_COLUMNS[: len(arrays)])


def _require_same_topics(cluster: Cluster, task: ReadTask) -> None:
    """Raise TopicReplaced if a topic's id changed. Ids are never reused, so an equal id proves one topic was read."""
    for name, topic in cluster.topics(*task.topic_ids).items() if task.topic_ids else ():
        if str(topic.topic_id) != task.topic_ids[name]:
            raise TopicReplaced(
                f"topic {name} was deleted and created again while it was read, id {task.topic_ids[name]} is now "
                f"{topic.topic_id}; {Remedy.START_AGAIN}"
            )
