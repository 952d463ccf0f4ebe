"""The pipeline without Spark: the sink's own target and scripts, and rows that plain Python makes of events."""

import json
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from onceflow.clicks.event_ids import IdDecoder
from onceflow.clicks.event_time import event_time
from onceflow.clicks.events import Reason, Rules
from onceflow.clicks.measures import MeasureSettings
from onceflow.clicks.pipeline import PLAN_VERSION, ClickPipeline
from onceflow.clicks.results import Keys
from onceflow.clicks.targets import redis_ids
from onceflow.clicks.windows import DAY, HOUR, WIDTHS
from onceflow.client.cluster import EARLIEST, LATEST, Cluster
from onceflow.client.records import read_records
from onceflow.spark.exactly_once.batch import Batch
from onceflow.spark.exactly_once.proof import proof_of
from onceflow.spark.offsets import OffsetRange
from onceflow.spark.redis import rows as redis_rows
from onceflow.spark.redis.ids import duplicates
from onceflow.spark.redis.repair import MissingRanges, Step
from onceflow.spark.redis.target import RedisTarget

Row = tuple[str, bytes, int, bytes | None]


class Frame:
    """Rows as the sink takes a small batch from a DataFrame."""

    def __init__(self, rows: list[Row] | Callable[[], list[Row]]) -> None:
        self._made = rows

    @property
    def _rows(self) -> list[Row]:
        """The rows; as in Spark, they are computed when they are needed, after the ids are claimed."""
        return self._made() if callable(self._made) else self._made

    @property
    def dtypes(self) -> list[tuple[str, str]]:
        return list((redis_rows.COLUMNS | redis_rows.VALUE).items())

    def toArrow(self) -> pa.Table:  # noqa: N802 (Spark's own name for it)
        rows = self._rows
        columns = zip(*rows, strict=True) if rows else ([], [], [], [])
        types = (pa.string(), pa.binary(), pa.int64(), pa.binary())
        arrays = [pa.array(list(cells), kind) for cells, kind in zip(columns, types, strict=True)]
        return pa.table(arrays, names=["target", "field", "amount", "value"])


class Records:
    """Records as `onceflow.spark.redis.ids.claim` takes them from a DataFrame."""

    def __init__(self, batches: list[pa.RecordBatch]) -> None:
        self._batches = batches

    def select(self, *names: str) -> "Records":
        return Records([batch.select(names) for batch in self._batches])

    def where(self, condition: str) -> "Records":
        assert condition == "id IS NOT NULL"
        return Records([batch.filter(batch.column("id").is_valid()) for batch in self._batches])

    def mapInArrow(self, function: Any, _schema: str) -> "Records":  # noqa: N802 (Spark's own name for it)
        return Records(list(function(self._batches)))

    def collect(self) -> list[SimpleNamespace]:
        return [SimpleNamespace(**row) for batch in self._batches for row in batch.to_pylist()]


SPARK: Any = SimpleNamespace(createDataFrame=lambda *_: Frame([]))
"""The session that a rebuild passes on."""


def rows_of(value: bytes | None, partition: int, offset: int, timestamp_ms: int, of: ClickPipeline) -> Iterator[Row]:
    """Yield the sink's rows of one record."""

    def row(target: str, field: str, amount: int = 0, value: str | None = None) -> Row:
        return target, field.encode(), amount, None if value is None else value.encode()

    measures: MeasureSettings = of.measures
    judged = Rules(of.key_field, of.value_field).judge(value)
    yield row("totals", "events", 1)
    if isinstance(judged, Reason):
        yield from (row("totals", "clicks"), row("totals", "bad", 1), row("bad", judged, 1))
        yield row("dead", f"{partition}:{offset}:{judged}", timestamp_ms * 1000)
        return
    uid, clicks, system = judged
    yield from (row("count", uid, clicks), row("totals", "clicks", clicks), row("totals", "bad"))
    if not measures.is_timed:
        yield row("os", system, clicks)
        return
    assert value is not None
    event = json.loads(value)
    at_ms, no_time, future = event_time(json.dumps(event.get(of.time_field)).encode(), timestamp_ms)
    yield from (row("totals", "no-time", int(no_time)), row("totals", "future", int(future)))
    yield row("sessions", uid, 0, f"{at_ms},{at_ms},1,{clicks}")
    values = {name: str(event.get(source, "unknown")) for name, source in measures.dimensions.items()}
    yield from (row(name, text, clicks) for name, text in values.items())
    for width in WIDTHS:
        start = at_ms // width.ms * width.ms
        for name, amount in (("events", 1), ("clicks", clicks)):
            yield row(width.name, f"{start}:{name}", amount)
            yield from (row(f"{width.name}:{by}", f"{start}:{name}:{text}", amount) for by, text in values.items())
        for group in ("", *(f"{by}={text}" for by, text in values.items())):
            yield row(f"{width.name}-users", f"{start}:{group}", 0, uid)
        if width in (HOUR, DAY):
            yield row(f"{width.name}-top", f"{start}:{uid}", clicks)


def rows_again(of: ClickPipeline, _: object, missing: MissingRanges) -> Frame:
    """Return the rows of these offsets, in place of `ClickPipeline.rows_again`."""
    return Frame(lambda: _rows_again(of, missing))


def _rows_again(of: ClickPipeline, missing: MissingRanges) -> list[Row]:
    rows: list[Row] = []
    for batch in batches_of(of, missing):
        skipped: set[int] = set()
        if of.event_ids_ms is not None:
            ids = redis_ids(Keys(of.hash_key), of.event_ids_ms)
            offsets = batch.column("offset")
            place = batch.column("partition")[0].as_py(), offsets[0].as_py(), offsets[-1].as_py()
            skipped = duplicates(of.redis_url, ids, *place)
        for record in batch.to_pylist():
            if record["offset"] in skipped:
                rows.append(("totals", b"duplicates", 1, None))
            else:
                at_ms = int(record["timestamp"].timestamp() * 1000)
                rows += rows_of(record["value"], record["partition"], record["offset"], at_ms, of)
    return rows


def batches_of(of: ClickPipeline, ranges: MissingRanges) -> Iterator[pa.RecordBatch]:
    """Yield the records of each range, with the source's columns that decoders need."""
    with Cluster(of.bootstrap) as cluster:
        for part in ranges.ranges:
            records = list(read_records(cluster, part.topic, part.partition, part.begin, part.end))
            yield pa.RecordBatch.from_pydict(
                {
                    "value": pa.array([record.value for record in records], pa.binary()),
                    "partition": pa.array([part.partition] * len(records), pa.int32()),
                    "offset": pa.array([record.offset for record in records], pa.int64()),
                    "timestamp": pa.array(
                        [record.timestamp_ms * 1000 for record in records], pa.timestamp("us", "UTC")
                    ),
                }
            )


def id_records(of: ClickPipeline, _: object, ranges: MissingRanges) -> Records:
    """Return the ids of these offsets, in place of `ClickPipeline.id_records`."""
    assert of._ids is not None
    decoder = IdDecoder(of._ids.claiming_options()["decoderOptions"])
    batches = [batch for batch in batches_of(of, ranges) if batch.num_rows]
    in_hex = [decoder.decode(batch)[0][0].to_pylist() for batch in batches]
    ids = [pa.array([None if one is None else bytes.fromhex(one) for one in some], pa.binary()) for some in in_hex]
    return Records([batch.append_column("id", column) for batch, column in zip(batches, ids, strict=True)])


def failing_rows(*_: object) -> Frame:
    """Fail like Spark, in place of `ClickPipeline.rows_again`."""
    raise OSError("the disk")


@pytest.fixture
def without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a pipeline's sink count small batches without Spark."""
    monkeypatch.setattr(ClickPipeline, "rows_again", rows_again)
    monkeypatch.setattr(ClickPipeline, "id_records", id_records)
    monkeypatch.setattr(redis_rows, "is_worth_a_try", lambda *_: True)


class Stream:
    """A start of `onceflow run` that counts what the log has, one batch per call."""

    def __init__(self, query: str, pipeline: ClickPipeline) -> None:
        self.query = query
        self.pipeline = pipeline
        self.target: RedisTarget = pipeline.sink(SPARK).target
        self.target.open(SPARK, query)

    def count(self, *, at_most: Callable[[int, int], int] = lambda _, end: end) -> None:
        """Count the next batch: in each partition up to the log's end, or what `at_most` returns."""
        topic = self.pipeline.topic
        with Cluster(self.pipeline.bootstrap) as cluster:
            partitions = cluster.require_topic(topic).partitions
            starts = cluster.list_offsets(topic, dict.fromkeys(partitions, EARLIEST))
            ends = cluster.list_offsets(topic, dict.fromkeys(partitions, LATEST))
            topic_id = str(cluster.require_topic(topic).topic_id)
        own = self.target.recover(self.query)
        begins: Mapping[str, int] = {} if own is None or own.offsets is None else own.offsets.get(topic, {})
        parts = []
        for number in partitions:
            begin = begins.get(str(number), starts[number].offset)
            parts.append(OffsetRange(topic, number, begin, at_most(begin, ends[number].offset)))
        number = 0 if own is None else own.batch + 1
        batch = Batch(self.query, number, parts, self.pipeline.plan.text, PLAN_VERSION, {topic: topic_id})
        self.target.prepare(batch, own)
        self.target.write(self.target.rows_again(Step(batch).missing))
        self.target.commit(proof_of(batch, self.target.name, own))
