"""An archive and its batches, as the sink writes them, without Spark."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import pyarrow.parquet as pq

from onceflow.clicks.archive import Archive, Version, plan_of, write_hours
from onceflow.clicks.event_table import event_table
from onceflow.clicks.single_event import ArchivedFields
from onceflow.spark.exactly_once.batch import NO_BATCH
from onceflow.spark.sink import Proof

START_MS = 1_430_204_400_000
"""2015-04-28T07:00:00Z, the hour of the article's event."""
HOUR_MS = 3_600_000
FIELDS = ArchivedFields()
TOPIC = "user_events"


def event(uid: str, at_ms: int, *, clicks: int = 1, os_type: str = "iOS", **extra: object) -> bytes:
    """Return the value of one record."""
    return json.dumps({"uid": uid, "event_time": at_ms, "os_type": os_type, "click_count": clicks, **extra}).encode()


def proof_of(batch: int, end: int, topic: str = TOPIC) -> Proof:
    """Return the proof of a batch that ends at offset `end` of partition 0."""
    return Proof(
        query="q",
        sink="archive",
        batch=batch,
        digest=str(batch),
        ranges="",
        plan=plan_of(topic, FIELDS),
        plan_version=1,
        offsets={topic: {"0": end}},
        since={topic: {"0": 0}},
    )


def add_batch(
    archive: Archive, values: Sequence[bytes | None], *, topic: str = TOPIC, timestamp_ms: int = START_MS
) -> Version:
    """Archive the next values of partition 0 as one micro-batch, and compact."""
    base = archive.newest()
    begin = 0 if base is None else base.ends[0]
    records = [(value, 0, begin + number, timestamp_ms) for number, value in enumerate(values)]
    files = write_hours(event_table(FIELDS, records), archive.directory)
    batch = NO_BATCH + 1 if base is None else base.proof.batch + 1
    version = archive.add(base, proof_of(batch, begin + len(values), topic), files)
    return archive.compact(version)


def filled(
    directory: Path, batches: Iterable[Sequence[bytes | None]], *, topic: str = TOPIC, timestamp_ms: int = START_MS
) -> Archive:
    """Return a new archive with these micro-batches."""
    archive = Archive(directory)
    archive.create()
    for values in batches:
        add_batch(archive, values, topic=topic, timestamp_ms=timestamp_ms)
    return archive


def offsets_in(paths: Sequence[str]) -> list[int]:
    """Return the offsets of the events in Parquet files, sorted."""
    columns = [pq.ParquetFile(path).read(["offset"]).column(0) for path in paths]
    return sorted(offset for column in columns for offset in column.to_pylist())
