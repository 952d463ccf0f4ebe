"""Writer of a class data sharing archive of Spark's classes: it halves the CPU time in which a JVM of the tests starts.

`python -m tests.class_archive FILE`. A Java without such archives leaves the file empty, which a JVM ignores.
"""

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession

from onceflow import services
from onceflow.spark.session import EVERYWHERE, build_session
from tests.compat.java_programs import QUICK_JVM

ARCHIVE_S_MAX = 600
"""Two minutes were too few beside lint and eight busy loops."""
JAVA_OPTIONS = "spark.driver.extraJavaOptions"


def same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def write(frame: DataFrame, _: int) -> None:
    frame.mapInArrow(same, frame.schema).groupBy("value").count().collect()


def load_classes(spark: SparkSession, directory: Path) -> None:
    """Run a stream of two micro-batches, as the tests do."""
    rates = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
    writer = rates.writeStream.foreachBatch(write).option("checkpointLocation", str(directory / "checkpoint"))
    query = writer.start()
    while not query.lastProgress or query.lastProgress.batchId < 1:
        assert query.isActive, query.exception()
        query.awaitTermination(1)
    query.stop()


def main(archive: Path) -> None:
    fresh = archive.with_suffix(".new").absolute()
    fresh.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        java_home = str(services.find_java(Path(directory, "java")))
        options = {JAVA_OPTIONS: f"{EVERYWHERE[JAVA_OPTIONS]} {QUICK_JVM} -XX:ArchiveClassesAtExit={fresh}"}
        log_file = Path(directory, "spark.log")
        spark = build_session("archive", java_home=java_home, log_file=log_file, extra_conf=options)
        load_classes(spark, Path(directory))
        spark.stop()
        gateway = SparkContext._gateway
        assert gateway is not None
        gateway.shutdown()
        # The JVM ends with its standard input, and writes the archive then.
        gateway.proc.stdin.close()
        gateway.proc.wait(timeout=ARCHIVE_S_MAX)
    fresh.touch()
    fresh.replace(archive)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
