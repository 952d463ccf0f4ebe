"""Avro without a registry: one schema, given to both ends; the bytes are one datum, without header or schema id.

Needs the extra [avro] (fastavro). Source of the types: Apache Avro's specification 1.11, and Spark's `from_avro`.
"""

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import types
from pyspark.sql.types import StructField, StructType

from onceflow.errors import missing_package
from onceflow.spark.errors import WrongOption

try:
    import fastavro
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(missing_package(__name__, "fastavro", "avro"), name="fastavro") from error

Schema = dict[str, Any]

_PRIMITIVES: Mapping[str, types.DataType] = {
    "boolean": types.BooleanType(),
    "bytes": types.BinaryType(),
    "double": types.DoubleType(),
    "enum": types.StringType(),
    "fixed": types.BinaryType(),
    "float": types.FloatType(),
    "int": types.IntegerType(),
    "long": types.LongType(),
    "string": types.StringType(),
}
_LOGICAL: Mapping[tuple[str, str | None], types.DataType] = {
    ("int", "date"): types.DateType(),
    ("long", "timestamp-millis"): types.TimestampType(),
    ("long", "timestamp-micros"): types.TimestampType(),
}
_KEPT = ("decimal", *(logical for _, logical in _LOGICAL))


@dataclass(frozen=True)
class AvroDeserializer:
    """Avro records to columns.

    `writer`: schema of the bytes, a mapping or its JSON text; its type is record. `reader`: schema of the columns where
    it differs, resolved by Avro's rules. Raises WrongOption for a schema that is not valid or has no Spark type.
    """

    writer: Schema
    reader: Schema | None
    schema: StructType

    def __init__(self, writer: Schema | str, reader: Schema | str | None = None) -> None:
        object.__setattr__(self, "writer", _parsed(writer))
        object.__setattr__(self, "reader", None if reader is None else _parsed(reader))
        object.__setattr__(self, "schema", _struct(self.reader or self.writer, {}))

    def deserialize(self, data: bytes) -> Mapping[str, Any]:
        """Return the fields. Raises EOFError, ValueError and other errors of fastavro."""
        file = io.BytesIO(data)
        row: Any = fastavro.schemaless_reader(file, self.writer, self.reader)
        left = len(data) - file.tell()
        if left:
            raise ValueError(f"{left} bytes are left after the record")
        return row  # type: ignore[no-any-return]


@dataclass(frozen=True)
class AvroSerializer:
    """Columns to Avro records. `writer`: schema of the bytes. Raises WrongOption for a schema that is not valid."""

    writer: Schema

    def __init__(self, writer: Schema | str) -> None:
        object.__setattr__(self, "writer", _parsed(writer))

    def serialize(self, row: Mapping[str, Any]) -> bytes:
        """Return one record. Raises ValueError and other errors of fastavro for a value that does not fit."""
        file = io.BytesIO()
        fastavro.schemaless_writer(file, self.writer, row, strict=True)
        return file.getvalue()


def _parsed(schema: Schema | str) -> Schema:
    try:
        loaded = json.loads(schema) if isinstance(schema, str) else dict(schema)
        parsed: Any = fastavro.parse_schema(_with_spark_types(loaded))
    except (ValueError, KeyError, TypeError, fastavro.schema.SchemaParseException) as error:
        raise WrongOption(f"the Avro schema is not valid: {error}") from error
    if not isinstance(parsed, dict) or parsed.get("type") != "record" or not parsed.get("fields"):
        raise WrongOption("the Avro schema is not a record with fields; put the value into a field of a record")
    return parsed


def _with_spark_types(schema: Any) -> Any:
    """Return the schema without logical types that Spark has no type for, such as uuid: fastavro reads them as objects.

    Their values then have the types that they are stored as.
    """
    match schema:
        case list():
            return [_with_spark_types(part) for part in schema]
        case dict():
            parts = schema.items()
            return {name: _with_spark_types(part) for name, part in parts if name != "logicalType" or part in _KEPT}
    return schema


def _struct(schema: Schema, named: dict[str, Schema]) -> StructType:
    named[schema["name"]] = schema
    fields = []
    for field in schema["fields"]:
        nullable, branch = _without_null(field["type"])
        fields.append(StructField(field["name"], _spark_type(branch, named, field["name"]), nullable))
    return StructType(fields)


def _without_null(avro: Any) -> tuple[bool, Any]:
    """Return whether a type may be null, and the type without null; a union of several types stays a list."""
    if not isinstance(avro, list):
        return avro == "null", avro
    branches = [branch for branch in avro if branch != "null"]
    return len(branches) < len(avro), branches[0] if len(branches) == 1 else branches


def _spark_type(avro: Any, named: dict[str, Schema], field: str) -> types.DataType:
    if isinstance(avro, str) and avro in named:
        avro = named[avro]
    schema = {"type": avro} if isinstance(avro, str) else avro
    if isinstance(schema, dict):
        kind, logical = schema["type"], schema.get("logicalType")
        if logical == "decimal":
            return types.DecimalType(schema["precision"], schema.get("scale", 0))
        if (kind, logical) in _LOGICAL:
            return _LOGICAL[kind, logical]
        if kind in ("enum", "fixed"):
            named[schema["name"]] = schema
        match kind:
            case "record" if schema["name"] not in named:
                return _struct(schema, dict(named))
            case "array":
                nullable, items = _without_null(schema["items"])
                return types.ArrayType(_spark_type(items, named, field), nullable)
            case "map":
                nullable, values = _without_null(schema["values"])
                return types.MapType(types.StringType(), _spark_type(values, named, field), nullable)
            case str() if kind in _PRIMITIVES:
                return _PRIMITIVES[kind]
    raise WrongOption(f"field {field!r} of the Avro schema: type {json.dumps(avro)} has no Spark type")
