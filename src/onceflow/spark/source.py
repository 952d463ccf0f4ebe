"""`spark.readStream.format("onceflow")` and `spark.read.format("onceflow")`: any Kafka as a Spark source.

Spark finds it by itself through the package `pyspark_onceflow`. Options and columns are those of Spark's own Kafka
source; the one default that differs is isolation.level, read_committed here.
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
    """The user gave a schema; the source has one of its own."""


class NoWriter(OnceflowError):
    """Rows were to be written with `format("onceflow")`, which reads alone."""


class OnceflowDataSource(DataSource):
    """What Spark makes from `format("onceflow")`. Its readers are imported when they are asked for: they load numpy."""

    @classmethod
    def name(cls) -> str:
        """The short name."""
        return "onceflow"

    def schema(self) -> StructType:
        """The columns. Spark asks this first, so wrong options are told at `load()`."""
        return columns(read_options(self.options))

    def reader(self, schema: StructType) -> "BatchReader":
        """For `spark.read`."""
        options = read_options(self.options, "batch")
        _require_schema(options, schema)
        return BatchReader(options)

    def streamReader(self, schema: StructType) -> "StreamReader | RefusedReader":  # noqa: N802 - Spark's name
        """For `spark.readStream`."""
        try:
            from onceflow.spark.reader.stream import StreamReader

            options = read_options(self.options, "stream")
            _require_schema(options, schema)
        except Exception as error:  # noqa: BLE001 - whatever it is, Spark would tell of another
            return RefusedReader(error)
        return StreamReader(options)

    def writer(self, schema: StructType, overwrite: bool) -> NoReturn:
        """For `write`. Raises NoWriter."""
        raise NoWriter(
            "format('onceflow') reads alone: write a batch with Spark's own format('kafka') and its jar, or let a "
            "query write it exactly once with writeStream.foreachBatch(kafka_sink(…)), from onceflow.spark.kafka_sink"
        )

    def streamWriter(self, schema: StructType, overwrite: bool) -> NoReturn:  # noqa: N802
        """For `writeStream`. Raises NoWriter."""
        raise NoWriter(
            "format('onceflow') reads alone: write exactly once with writeStream.foreachBatch(kafka_sink(…)), from "
            "onceflow.spark.kafka_sink, or redis_sink(…), from onceflow.spark.redis_sink"
        )


class RefusedReader(DataSourceStreamReader):
    """Stands for a reader that cannot be made, and says why when Spark asks it for anything.

    Of an error in `streamReader` itself Spark (4.2) tells nothing at the end: it stops the reader that it has not got.
    """

    def __init__(self, error: Exception) -> None:
        self._error = error

    def initialOffset(self) -> NoReturn:  # noqa: N802 - Spark's name
        """Of a fresh query."""
        raise self._error

    def latestOffset(self) -> NoReturn:  # type: ignore[override]  # noqa: N802
        """Of any query."""
        raise self._error

    def partitions(self, start: Any, end: Any) -> NoReturn:
        """Of a batch that was planned."""
        raise self._error

    def read(self, partition: Any) -> NoReturn:
        """Is not asked, for there are no partitions."""
        raise self._error


class BatchReader(DataSourceReader):
    """Reads from one position to another; both are looked up anew for each action."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def partitions(self) -> "list[ReadTask]":
        """The read tasks; none where there are no records, which Spark turns into one task without a plan."""
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
        """Runs in Spark's workers, on a copy of this reader."""
        from onceflow.spark.reader import read_task

        return read_task.read(self._options, partition) if isinstance(partition, read_task.ReadTask) else iter(())


def columns(options: SourceOptions) -> StructType:
    """The columns that these options ask for."""
    if options.pushdown is not None:
        return options.pushdown.schema()
    return StructType([*SCHEMA.fields, HEADERS]) if options.include_headers else SCHEMA


def _require_schema(options: SourceOptions, schema: StructType) -> None:
    own = columns(options)
    if schema != own:
        raise WrongSchema(
            f"source onceflow has the columns {own.simpleString()}, not {schema.simpleString()}; take .schema(…) out"
        )
