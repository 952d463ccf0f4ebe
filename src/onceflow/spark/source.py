"""`spark.readStream.format("onceflow")` and `spark.read.format("onceflow")`: a Spark source for any Kafka cluster.

Spark finds it through the package `pyspark_onceflow`. Options and columns are those of Spark's own Kafka source. One
default differs: isolation.level is read_committed here.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NoReturn

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from onceflow.errors import OnceflowError
from onceflow.spark.pushdown.source_columns import HEADERS, SCHEMA
from onceflow.spark.reader.options import SourceOptions, read_options
from onceflow.spark.reader.position_options import ENDING_OFFSETS, STARTING_OFFSETS

if TYPE_CHECKING:
    import pyarrow

    from onceflow.spark.reader.read_task import ReadTask
    from onceflow.spark.reader.stream import StreamReader


class WrongSchema(OnceflowError):
    """The schema that the user gave differs from the source's own."""


class NoWriter(OnceflowError):
    """A write with `format("onceflow")`, which is read-only."""


class OnceflowDataSource(DataSource):
    """The data source `format("onceflow")`. Its readers are imported on first use: they load numpy."""

    @classmethod
    def name(cls) -> str:
        """Return the short name."""
        return "onceflow"

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
        from onceflow.spark.reader.positions import LogPositions

        log = LogPositions(connect(self._options.bootstrap, self._options.security), self._options)
        now = log.ends(fresh=True)
        start = log.resolve(STARTING_OFFSETS, self._options.starting, now)
        end = log.resolve(ENDING_OFFSETS, self._options.ending, now)
        return read_task.plan(ranges(start, end), end.topic_ids, self._options)

    def read(self, partition: Any) -> "Iterator[pyarrow.RecordBatch]":
        """Read one task's records; runs in Spark's workers, on a copy of this reader."""
        from onceflow.spark.reader import read_task

        return read_task.read(self._options, partition) if isinstance(partition, read_task.ReadTask) else iter(())


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
