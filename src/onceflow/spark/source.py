"""`spark.readStream.format("onceflow")` and `spark.read.format("onceflow")`: a Spark source for any Kafka cluster.

Spark finds it through the package `pyspark_onceflow`. Options and columns are those of Spark's own Kafka source. One
default differs: isolation.level is read_committed here.
"""

import importlib.util
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pyspark
from pyspark import SparkFiles
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from onceflow.errors import OnceflowError
from onceflow.remedies import Remedy
from onceflow.spark.pushdown.options import HEADERS, SCHEMA
from onceflow.spark.reader.options import SourceOptions, read_options
from onceflow.spark.reader.position_options import ENDING_OFFSETS, STARTING_OFFSETS

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import SparkSession

    from onceflow.spark.reader.read_task import ReadTask
    from onceflow.spark.reader.stream import StreamReader


class WrongSchema(OnceflowError):
    """The schema that the user gave differs from the source's own."""


class NoWriter(OnceflowError):
    """A write with `format("onceflow")`, which is read-only."""


class OldSpark(OnceflowError):
    """A PySpark before 4.2, which passes no limits to the stream reader of a Python data source."""


class OnceflowDataSource(DataSource):
    """The data source `format("onceflow")`. Its readers are imported on first use: they load numpy."""

    @classmethod
    def name(cls) -> str:
        """Return the short name."""
        return "onceflow"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the source with the wheel's path: a stream's offsets are planned without `--py-files`."""
        archive = _archive()
        return super().__reduce__() if archive is None else (_import_from, (str(archive), self.options))  # type: ignore[return-value]

    def schema(self) -> StructType:
        """Return the columns. Spark calls this first, so wrong options are reported by `load()`."""
        return columns(read_options(self.options))

    def reader(self, schema: StructType) -> "BatchReader":
        """Return the reader for `spark.read`."""
        options = read_options(self.options, "batch")
        _require_schema(options, schema)
        return BatchReader(options)

    def streamReader(self, schema: StructType) -> "StreamReader | RefusedReader":  # noqa: N802 - Spark's name
        """Return the reader for `spark.readStream`."""
        try:
            _require_read_limits()
            from onceflow.spark.reader.stream import StreamReader

            options = read_options(self.options, "stream")
            _require_schema(options, schema)
        except Exception as error:  # noqa: BLE001 - Spark would report a different error
            return RefusedReader(error)
        return StreamReader(options)

    def writer(self, schema: StructType, overwrite: bool) -> NoReturn:
        """Raise NoWriter for `write`."""
        raise NoWriter(
            "format('onceflow') is read-only; write a batch with Spark's own format('kafka') and its jar, or write "
            "exactly once from a query with writeStream.foreachBatch(kafka_sink(…)), from onceflow.spark.kafka_sink"
        )

    def streamWriter(self, schema: StructType, overwrite: bool) -> NoReturn:  # noqa: N802
        """Raise NoWriter for `writeStream`."""
        raise NoWriter(
            "format('onceflow') is read-only; write exactly once with writeStream.foreachBatch(kafka_sink(…)), from "
            "onceflow.spark.kafka_sink, or redis_sink(…), from onceflow.spark.redis_sink"
        )


class RefusedReader(DataSourceStreamReader):
    """Placeholder for a reader that could not be created; every method raises the reason.

    Spark 4.2 hides an error raised in `streamReader` itself: it then fails while stopping the missing reader.
    """

    def __init__(self, error: Exception) -> None:
        self._error = error

    def initialOffset(self) -> NoReturn:  # noqa: N802 - Spark's name
        """Raise the error in a fresh query."""
        raise self._error

    def latestOffset(self) -> NoReturn:  # type: ignore[override]  # noqa: N802
        """Raise the error in any query."""
        raise self._error

    def partitions(self, start: Any, end: Any) -> NoReturn:
        """Raise the error for a planned batch."""
        raise self._error

    def read(self, partition: Any) -> NoReturn:
        """Raise the error; Spark never calls this, since there are no partitions."""
        raise self._error


class BatchReader(DataSourceReader):
    """Reader from one position to another; both are resolved again for each action."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def partitions(self) -> "list[ReadTask]":
        """Return the read tasks; without records none, for which Spark starts one task without a plan."""
        from onceflow.spark.connections import connect
        from onceflow.spark.offsets import ranges
        from onceflow.spark.reader import read_task
        from onceflow.spark.reader.offset_store import zookeeper_store
        from onceflow.spark.reader.positions import LogPositions

        cluster = connect(self._options.bootstrap, self._options.security)
        log = LogPositions(cluster, self._options, store=zookeeper_store(self._options))
        now = log.ends(fresh=True)
        start = log.resolve(STARTING_OFFSETS, self._options.starting, now)
        end = log.resolve(ENDING_OFFSETS, self._options.ending, now)
        return read_task.plan(ranges(start, end), end.topic_ids, self._options)

    def read(self, partition: Any) -> "Iterator[pyarrow.RecordBatch]":
        """Read one task's records; runs in Spark's workers, on a copy of this reader."""
        from onceflow.spark.reader import read_task

        return read_task.read(self._options, partition) if isinstance(partition, read_task.ReadTask) else iter(())


def _require_read_limits() -> None:
    if importlib.util.find_spec("pyspark.sql.streaming.datasource") is None:
        raise OldSpark(f"a stream of 'onceflow' needs PySpark 4.2: this is {pyspark.__version__}; {Remedy.NEWER_SPARK}")


def register(session: "SparkSession") -> None:
    """Register the source in a session that got onceflow as a wheel with `--py-files`, and send it to the executors.

    Spark's Python workers import only files named .zip, .egg and .jar of `--py-files`, so they get the wheel as a .zip.
    Spark's search for data sources does not see `--py-files`, so the class is registered. An installed onceflow is
    found without this, and nothing is done.
    """
    archive = _archive()
    if archive is None:
        return
    renamed = Path(SparkFiles.getRootDirectory(), "onceflow.zip")
    if not renamed.exists():
        shutil.copyfile(archive, renamed)
        session.sparkContext.addPyFile(str(renamed))
    session.dataSource.register(OnceflowDataSource)


def _archive() -> Path | None:
    """Return the wheel or zip from which this module was imported; None if onceflow is installed."""
    archive = Path(__file__).parents[2]
    return archive if archive.is_file() else None


def _import_from(archive: str, options: dict[str, str]) -> Any:
    """Return the data source in a process that may not have onceflow on its path."""
    import importlib
    import sys

    if archive not in sys.path:
        sys.path.insert(1, archive)
    return importlib.import_module("onceflow.spark.source").OnceflowDataSource(options)


_import_from.__module__ = "__main__"
"""Spark's pickler copies the code of functions in `__main__`; others it imports by name."""


def columns(options: SourceOptions) -> StructType:
    """Return the columns that these options select."""
    if options.pushdown is not None:
        return options.pushdown.schema()
    return StructType([*SCHEMA.fields, HEADERS]) if options.include_headers else SCHEMA


def _require_schema(options: SourceOptions, schema: StructType) -> None:
    own = columns(options)
    if schema != own:
        raise WrongSchema(
            f"source onceflow has the columns {own.simpleString()}, not {schema.simpleString()}; remove .schema(…)"
        )
