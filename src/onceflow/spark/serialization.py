"""Serializers and deserializers: bytes of records to columns and back, in the executors.

    events = deserialized(stream, JsonDeserializer("uid string, click_count bigint"))
    rows = serialized(events, AvroSerializer(schema))
    rows.writeStream.foreachBatch(kafka_sink(…))

A deserializer is any object with a `schema` and a method `deserialize`, a serializer any object with a method
`serialize`; Spark pickles them for its executors. For JSON alone the option `decode` of the source is faster: it works
in the read tasks, on whole columns (docs/pushdown.md).
"""

import datetime
import decimal
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypedDict

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, types
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from onceflow.errors import OnceflowError
from onceflow.spark.errors import WrongOption
from onceflow.spark.pushdown.decode_schema import CORRUPT_REASON, CORRUPT_RECORD

Row = Mapping[str, Any]
OnError = Literal["fail", "keep"]

KEPT = ("topic", "partition", "offset", "timestamp")
SINK_COLUMNS = ("key", "topic", "partition", "headers", "timestamp")
REASON_CHARACTERS_MAX = 200


class Deserializer(Protocol):
    """Bytes to columns."""

    @property
    def schema(self) -> StructType:
        """Columns that `deserialize` returns."""

    def deserialize(self, data: bytes) -> Row:
        """Return the columns of one record's bytes; a missing one is null. May raise anything for invalid bytes."""


class Serializer(Protocol):
    """Columns to bytes."""

    def serialize(self, row: Row) -> bytes | None:
        """Return the bytes of one row, or None for a null value. Any exception stops the query."""


class SerializationFailed(OnceflowError):
    """A record cannot be deserialized, or a row not serialized."""


def deserialized(
    records: DataFrame,
    deserializer: Deserializer,
    *,
    column: str = "value",
    keep: Sequence[str] = KEPT,
    on_error: OnError = "fail",
) -> DataFrame:
    """Return the columns of `deserializer` for the bytes in `column`, and beside them the columns `keep`.

    A null value gives nulls. `on_error`: "fail" stops the query with the record's position; "keep" keeps the record
    with nulls, its bytes in `_corrupt_record` (binary) and the reason in `_corrupt_reason`. Raises WrongOption.
    """
    if on_error not in {"fail", "keep"}:
        raise WrongOption(f"on_error {on_error!r} is not valid; choose 'fail' or 'keep'")
    _require_columns(records, (column, *keep))
    schema = StructType([*deserializer.schema.fields, *(records.schema[name] for name in keep)])
    if on_error == "keep":
        schema.add(StructField(CORRUPT_RECORD, records.schema[column].dataType))
        schema.add(StructField(CORRUPT_REASON, StringType()))
    _require_distinct(schema)
    task = _Deserialize(deserializer, column, tuple(keep), on_error, to_arrow_schema(schema, timezone="UTC"))
    places = [name for name in ("topic", "partition", "offset") if name in records.columns]
    needed = dict.fromkeys((column, *keep, *places))
    return records.select(*needed).mapInArrow(task, schema)


def serialized(
    rows: DataFrame,
    serializer: Serializer,
    *,
    into: str = "value",
    columns: Sequence[str] | None = None,
    keep: Sequence[str] | None = None,
) -> DataFrame:
    """Return `into`, the bytes that `serializer` makes of `columns`, and beside it the columns `keep`.

    Without `keep`: those of key, topic, partition, headers and timestamp that are there, as the Kafka sink takes them.
    Without `columns`: all that are not kept. Raises WrongOption.
    """
    kept = [name for name in SINK_COLUMNS if name in rows.columns and name != into] if keep is None else list(keep)
    taken = [name for name in rows.columns if name not in kept] if columns is None else list(columns)
    _require_columns(rows, (*taken, *kept))
    schema = StructType([StructField(into, BinaryType()), *(rows.schema[name] for name in kept)])
    _require_distinct(schema)
    task = _Serialize(serializer, tuple(taken), tuple(kept), to_arrow_schema(schema, timezone="UTC"))
    return rows.select(*dict.fromkeys((*taken, *kept))).mapInArrow(task, schema)


@dataclass(frozen=True)
class _Deserialize:
    """Function of one task of `deserialized`."""

    deserializer: Deserializer
    column: str
    keep: tuple[str, ...]
    on_error: OnError
    schema: pa.Schema

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        names = self.deserializer.schema.fieldNames()
        columns = pa.schema([self.schema.field(name) for name in names])
        for batch in batches:
            data = batch.column(self.column).to_pylist()
            reasons: list[str | None] = [None] * len(data)
            arrays = self._columns(batch, data, reasons, columns) + [batch.column(name) for name in self.keep]
            if self.on_error == "keep":
                corrupt = [value if reason else None for value, reason in zip(data, reasons, strict=True)]
                arrays += [pa.array(corrupt, self.schema.field(CORRUPT_RECORD).type), pa.array(reasons, pa.string())]
            yield pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _columns(
        self, batch: pa.RecordBatch, data: Sequence[Any], reasons: list[str | None], columns: pa.Schema
    ) -> list[pa.Array]:
        """Return the deserializer's columns; `reasons` gets why a row has nulls instead."""

        def attempt(number: int, read: Callable[[], Row]) -> Row:
            try:
                return read()
            except Exception as error:
                # A deserializer is a user's code, which may raise anything.
                if self.on_error == "fail":
                    text = f"{_place(batch, number)} cannot be deserialized: {_reason(error)}"
                    raise SerializationFailed(text) from error
                reasons[number] = _reason(error)
                return {}

        rows = [
            {} if value is None else attempt(number, functools.partial(self._deserialize, value))
            for number, value in enumerate(data)
        ]
        try:
            return list(pa.RecordBatch.from_pylist(rows, schema=columns).columns)
        except (ValueError, TypeError, OverflowError):  # pyarrow's errors; they do not name the row.
            checked = [attempt(number, functools.partial(_typed, row, columns)) for number, row in enumerate(rows)]
            return list(pa.RecordBatch.from_pylist(checked, schema=columns).columns)

    def _deserialize(self, value: bytes | str) -> Row:
        return self.deserializer.deserialize(value.encode() if isinstance(value, str) else value)


@dataclass(frozen=True)
class _Serialize:
    """Function of one task of `serialized`."""

    serializer: Serializer
    columns: tuple[str, ...]
    keep: tuple[str, ...]
    schema: pa.Schema

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            rows = batch.select(list(self.columns)).to_pylist(maps_as_pydicts="strict")
            data = [self._data(row) for row in rows]
            arrays = [pa.array(data, self.schema.field(0).type), *(batch.column(name) for name in self.keep)]
            yield pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _data(self, row: Row) -> bytes | None:
        try:
            return self.serializer.serialize(row)
        except Exception as error:  # A serializer is a user's code, which may raise anything.
            shown = str(dict(row))[:REASON_CHARACTERS_MAX]
            raise SerializationFailed(f"the row {shown} cannot be serialized: {_reason(error)}") from error


def _typed(row: Row, columns: pa.Schema) -> Row:
    """Return the row. Raises ValueError, which names the field, for a value that does not fit its column."""
    for field in columns:
        try:
            pa.scalar(row.get(field.name), field.type)
        except (ValueError, TypeError, OverflowError) as error:
            raise ValueError(f"field {field.name!r}: {error}") from error
    return row


def _place(batch: pa.RecordBatch, number: int) -> str:
    names = [name for name in ("topic", "partition", "offset") if name in batch.schema.names]
    values = {name: batch.column(name)[number].as_py() for name in names}
    if len(values) < 3:
        return "a record"
    return f"{values['topic']}-{values['partition']} offset {values['offset']}"


def _reason(error: Exception) -> str:
    return (str(error) or type(error).__name__)[:REASON_CHARACTERS_MAX]


def _require_columns(frame: DataFrame, names: Sequence[str]) -> None:
    missing = [name for name in names if name not in frame.columns]
    if missing:
        raise WrongOption(f"column {missing[0]!r} does not exist; the columns are {', '.join(frame.columns)}")


def _require_distinct(schema: StructType) -> None:
    names = schema.fieldNames()
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise WrongOption(f"column {twice[0]!r} is there twice; leave it out of keep=, or rename the field")


# JSON and text


@dataclass(frozen=True)
class JsonDeserializer:
    """JSON objects to the columns of a schema; fields that are not in the schema are left out.

    `schema`: Spark's, or its DDL as "uid string, click_count bigint" (needs a running session). Types are strict: "6"
    is not a bigint. Timestamps and dates are texts in RFC 3339, binary is base64, decimal a text or a number. Raises
    WrongOption for a type that JSON has no form for.
    """

    schema: StructType
    _schema_json: str
    """Key of the decoder, which cannot be pickled."""

    def __init__(self, schema: StructType | str) -> None:
        parsed = StructType.fromDDL(schema) if isinstance(schema, str) else schema
        object.__setattr__(self, "schema", parsed)
        object.__setattr__(self, "_schema_json", parsed.json())
        _json_decoder(self._schema_json)

    def deserialize(self, data: bytes) -> Row:
        """Return the fields of one object."""
        row: Row = _json_decoder(self._schema_json).decode(data)
        return row


class JsonSerializer:
    """Columns to a JSON object; nulls are written as null. Timestamps and dates as in JsonDeserializer."""

    def serialize(self, row: Row) -> bytes:
        """Return the object in UTF-8."""
        return msgspec.json.encode(row)


@dataclass(frozen=True)
class StringDeserializer:
    """UTF-8 text to one column, as Kafka's StringDeserializer and Flink's SimpleStringSchema."""

    column: str = "text"

    @property
    def schema(self) -> StructType:
        """One column of type string."""
        return StructType([StructField(self.column, StringType())])

    def deserialize(self, data: bytes) -> Row:
        """Return the text. Raises UnicodeDecodeError."""
        return {self.column: data.decode()}


class StringSerializer:
    """One column to its text in UTF-8; null is a null value."""

    def serialize(self, row: Row) -> bytes | None:
        """Return the text. Raises ValueError for more than one column."""
        if len(row) != 1:
            raise ValueError(f"a text has one column, not {', '.join(row)}; specify columns=")
        (value,) = row.values()
        return None if value is None else str(value).encode()


_JSON_TYPES: Mapping[type[types.DataType], Any] = {
    types.BinaryType: bytes,
    types.BooleanType: bool,
    types.ByteType: int,
    types.DateType: datetime.date,
    types.DecimalType: decimal.Decimal,
    types.DoubleType: float,
    types.FloatType: float,
    types.IntegerType: int,
    types.LongType: int,
    types.ShortType: int,
    types.StringType: str,
    types.TimestampNTZType: datetime.datetime,
    types.TimestampType: datetime.datetime,
}


@functools.lru_cache(maxsize=64)
def _json_decoder(schema_json: str) -> "msgspec.json.Decoder[Any]":
    """Return the decoder of a schema; kept apart from JsonDeserializer, which is pickled."""
    return msgspec.json.Decoder(_json_type(StructType.fromJson(msgspec.json.decode(schema_json))))


def _json_type(spark_type: types.DataType) -> Any:
    match spark_type:
        case StructType():
            return TypedDict(  # type: ignore[operator]
                "Row", {field.name: _json_type(field.dataType) | None for field in spark_type.fields}, total=False
            )
        case types.ArrayType(elementType=element):
            return list[_json_type(element) | None]  # type: ignore[misc]
        case types.MapType(keyType=StringType(), valueType=value):
            return dict[str, _json_type(value) | None]  # type: ignore[misc]
    if type(spark_type) not in _JSON_TYPES:
        raise WrongOption(f"type {spark_type.simpleString()} has no form in JSON")
    return _JSON_TYPES[type(spark_type)]
