"""What runs in Spark's Python workers: fetch ranges of the log as raw batches, hand them on as Arrow columns."""

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
"""A task costs some 40 ms however little it reads, about what ten thousand records cost to read and parse."""
FETCH_BYTES_MAX = 8 * 1024 * 1024
FETCH_BYTES_MIN = 64 * 1024
FETCH_BYTES_PER_OFFSET = 1024
"""A short range in a long log asks for a little, not for 8 MiB to throw away; larger records take more fetches."""
FIRST_CONTACT_MS = 30_000
"""The batch was planned on these addresses a moment ago, so a broker that is away is expected back."""
STALL_SECONDS_MAX = 30
"""How long a partition may give nothing below an end that it had when the batch was planned."""

_COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")


class ReadStalled(OnceflowError):
    """A partition does not give the records that it was seen to have."""


class TopicReplaced(OnceflowError):
    """The topic was deleted and made again while a task read it."""


@dataclass(frozen=True)
class ReadTask(InputPartition):
    """The ranges that one Spark task reads, and the ids of their topics where the broker tells them."""

    ranges: tuple[OffsetRange, ...]
    topic_ids: Mapping[str, str]


def plan(parts: Iterable[OffsetRange], topic_ids: Mapping[str, str], options: SourceOptions) -> list[ReadTask]:
    """The tasks of one batch; none where no range holds an offset."""
    tasks = share_out(
        parts,
        OFFSETS_PER_TASK_MIN,
        tasks_min=options.tasks_min,
        offsets_per_task_max=options.offsets_per_task_max,
    )
    return [
        ReadTask(tuple(shared), {part.topic: topic_ids[part.topic] for part in shared if part.topic in topic_ids})
        for shared in tasks
    ]


def read(options: SourceOptions, task: ReadTask) -> Iterator[pyarrow.RecordBatch]:
    """The task's records, or what the push-downs make of them.

    Raises DataLost, ReadStalled, TopicReplaced, SumOverflow and the client's errors.
    """
    records = _read_records(options, task)
    return records if options.pushdown is None else options.pushdown.apply(records)


def _read_records(options: SourceOptions, task: ReadTask) -> Iterator[pyarrow.RecordBatch]:
    """Every record of the task's ranges that the isolation level shows, each range in the order of its offsets."""
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
            offset = _skip_gone(options, part, error)
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
                f"{part} gave nothing at offset {offset} for {STALL_SECONDS_MAX} s, though it reached its end when "
                f"the batch was planned; its last stable offset is {fetched.last_stable_offset} now: "
                f"{Remedy.LOOK_AT_BROKER_LOG}, then {Remedy.START_AGAIN}"
            )


def _skip_gone(options: SourceOptions, part: OffsetRange, error: OffsetOutOfRange) -> int:
    """The offset after those that are gone, if the options allow that."""
    if error.log_start_offset <= error.offset <= error.offset_end:
        raise error
    gone_end = min(error.log_start_offset, part.end) if error.offset < error.log_start_offset else part.end
    kind = LossKind.TRIMMED if error.offset < error.log_start_offset else LossKind.TRUNCATED
    reason = f"the partition now begins at {error.log_start_offset} and ends at {error.offset_end}"
    loss = Loss(kind, part.topic, part.partition, error.offset, gone_end, reason)
    data_loss.report([loss], fail=options.fail_on_data_loss)
    return gone_end


def _next_offset(part: OffsetRange, offset: int, fetched: Fetched, decoded: DecodedColumns) -> int:
    """Where to fetch next. A first batch that begins beyond the range says that the rest of the range is a gap."""
    if decoded.next_offset > offset:
        return decoded.next_offset
    found = read_header(fetched.records).base_offset
    if found < part.end:
        raise ReadStalled(f"{part}: a batch at offset {found} was fetched at {offset} and leads no further")
    return part.end


def _with_origin(columns: pyarrow.RecordBatch, part: OffsetRange) -> pyarrow.RecordBatch:
    rows = columns.num_rows
    key, value, offset, timestamp, timestamp_type, *headers = columns.columns
    topic = pyarrow.repeat(pyarrow.scalar(part.topic, pyarrow.string()), rows)
    partition = pyarrow.repeat(pyarrow.scalar(part.partition, pyarrow.int32()), rows)
    arrays = [key, value, topic, partition, offset, timestamp, timestamp_type, *headers]
    return pyarrow.RecordBatch.from_arrays(arrays, names=_COLUMNS[: len(arrays)])


def _require_same_topics(cluster: Cluster, task: ReadTask) -> None:
    """Ids are never used twice: the same one before and after means that all that was read is of that topic."""
    for name, topic in cluster.topics(*task.topic_ids).items() if task.topic_ids else ():
        if str(topic.topic_id) != task.topic_ids[name]:
            raise TopicReplaced(
                f"topic {name} was deleted and created again while it was read, id {task.topic_ids[name]} is now "
                f"{topic.topic_id}; {Remedy.START_AGAIN}"
            )
