"""A driver process that copies a topic and is killed with its JVM at a named point of the sink.

Every task dies once, too: its Python worker is killed after it has returned its encoded rows.
Arguments: `bootstrap input output checkpoint log java_home point visit`.
"""

import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrameWriter

from onceflow.spark.exactly_once.checkpoint import LocalCheckpoint
from onceflow.spark.kafka.encode import Encoder
from onceflow.spark.kafka_sink import KafkaSink, kafka_sink
from onceflow.spark.session import build_session
from tests.spark.slow_workers import finish


class DyingEncoder(Encoder):
    """An encoder that kills its worker in the first attempt of each task, after it has returned its rows."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from super().__call__(batches)
        context = TaskContext.get()
        assert context is not None
        if context.attemptNumber() == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def watch(at: Callable[[str], None]) -> None:
    """Call `at` at the points outside the transaction: syncs of the checkpoint, and reads of skipped batches."""
    prepare, save = LocalCheckpoint.prepare, DataFrameWriter.save

    def watched_prepare(checkpoint: LocalCheckpoint, number: int) -> None:
        at("before the syncs")
        prepare(checkpoint, number)
        at("after the syncs")

    def watched_save(writer: DataFrameWriter, *arguments: Any, **options: Any) -> None:
        at("before reading the rows alone")
        save(writer, *arguments, **options)
        at("after reading the rows alone")

    LocalCheckpoint.prepare = watched_prepare  # type: ignore[assignment, method-assign]
    DataFrameWriter.save = watched_save  # type: ignore[assignment, method-assign]


def main(bootstrap: str, source: str, target: str, checkpoint: str, log: str, java_home: str, *death: str) -> None:
    spark = build_session("copies", "local[2,2]", java_home=java_home, log_file=Path(log))
    visits: Counter[str] = Counter()

    def at(point: str) -> None:
        visits[point] += 1
        if death == (point, str(visits[point])):
            # The group is this process and the JVM that it started; Spark's workers end after the JVM.
            os.killpg(os.getpgid(0), signal.SIGKILL)

    watch(at)
    sink = kafka_sink(bootstrap, topic=target, checkpoint=checkpoint, compression="lz4")
    sink.settings = replace(sink.settings, at=at)
    assert isinstance(sink, KafkaSink)
    output: Any = sink.target.output
    output.encoder = DyingEncoder(**{field.name: getattr(output.encoder, field.name) for field in fields(Encoder)})
    at("before opening")
    sink.open(spark)
    at("after opening")
    stream = spark.readStream.format("onceflow").option("kafka.bootstrap.servers", bootstrap)
    options = {"subscribe": source, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "100"}
    rows = stream.options(**options).load().select("key", "value")
    query = rows.writeStream.foreachBatch(sink).option("checkpointLocation", checkpoint)
    finish(query)


if __name__ == "__main__":
    main(*sys.argv[1:])
