"""Option `decoder`: the user's class that converts records to typed Arrow columns, instead of `decode`.

The option names a factory, `package.module:factory`. It is called with the text of option `decoderOptions`, in the
driver for the schema and in each read task for its records.
"""

import importlib
from collections.abc import Sequence
from typing import Any, Protocol

import pyarrow as pa

from onceflow.errors import OnceflowError
from onceflow.spark.errors import WrongOption
from onceflow.spark.pushdown.decode_schema import (
    CORRUPT_REASON,
    CORRUPT_RECORD,
    DECODER,
    DECODER_OPTIONS,
    Field,
    parse_schema,
)
from onceflow.spark.pushdown.plain_columns import arrow_type


class WrongColumns(OnceflowError):
    """Columns from a decoder that do not match its schema or its batch."""


class RecordDecoder(Protocol):
    """The result of a factory. It must depend only on the records, so that a repeated batch has the same rows."""

    schema: str
    """Columns as in SQL: `uid STRING, clicks INT, event_time TIMESTAMP`."""

    def decode(self, batch: Any) -> tuple[Sequence[Any], Any]:
        """Return an Arrow array for each column of the schema, and one of the reasons of rejected records.

        `batch` is a RecordBatch of the source's own columns. The reason of a valid record is null.
        """


class DecodesColumns(Protocol):
    """`decode.Decoder` or CustomDecoder."""

    def columns(self, batch: Any) -> Any:
        """Return the fields, `_corrupt_record`, `_corrupt_reason` and the kept columns of a RecordBatch, row by row."""


def _load(path: str, options: str) -> RecordDecoder:
    """Return the factory's decoder. Raises WrongOption."""
    module, _, name = path.partition(":")
    if not module or not name:
        raise WrongOption(f"option {DECODER}={path!r} is not like package.module:factory")
    try:
        factory = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise WrongOption(
            f"option {DECODER}={path!r} cannot be imported: {error}; install its module for driver and executors"
        ) from error
    try:
        decoder: RecordDecoder = factory(options)
    except Exception as error:
        raise WrongOption(f"option {DECODER}={path!r} refused {DECODER_OPTIONS}={options!r}: {error}") from error
    if not isinstance(getattr(decoder, "schema", None), str) or not callable(getattr(decoder, "decode", None)):
        raise WrongOption(
            f"option {DECODER}={path!r} returned {type(decoder).__name__}, which lacks a text `schema` or a method "
            "`decode`"
        )
    return decoder


def fields_of(path: str, options: str) -> tuple[Field, ...]:
    """Return the fields of a decoder's schema. Raises WrongOption."""
    decoder = _load(path, options)
    try:
        fields = parse_schema(decoder.schema)
    except WrongOption as error:
        raise WrongOption(f"option {DECODER}={path!r} has the schema {decoder.schema!r}: {error}") from error
    for field in fields:
        if field.required:
            raise WrongOption(
                f"option {DECODER}={path!r}: its schema has {field.name} NOT NULL, which only option decode checks; "
                "remove it, and return a reason for such a record"
            )
    return fields


class CustomDecoder:
    """The user's decoder in a read task, with its columns checked."""

    def __init__(self, path: str, options: str, fields: Sequence[Field], kept: Sequence[str]) -> None:
        self._path = path
        self._decode = _load(path, options).decode
        self._types = {field.name: arrow_type(field) for field in fields}
        self._kept = kept

    def columns(self, batch: Any) -> Any:
        """Return the fields, `_corrupt_record`, `_corrupt_reason` and the kept columns of a RecordBatch, row by row.

        Raises WrongColumns.
        """
        columns, reasons = self._decode(batch)
        if len(columns) != len(self._types):
            raise WrongColumns(
                f"decoder {self._path} returned {len(columns)} columns, and its schema has {len(self._types)}"
            )
        names = [*self._types, CORRUPT_REASON]
        for name, column, wanted in zip(names, (*columns, reasons), (*self._types.values(), pa.string()), strict=True):
            if column.type != wanted or len(column) != batch.num_rows:
                raise WrongColumns(
                    f"decoder {self._path} returned {len(column)} of {column.type} as column {name} for "
                    f"{batch.num_rows} records; return {wanted} for each"
                )
        kept = [batch.column(name) for name in self._kept]
        return pa.RecordBatch.from_arrays(
            [*columns, _texts(batch.column("value"), reasons), reasons, *kept],
            names=[*self._types, CORRUPT_RECORD, CORRUPT_REASON, *self._kept],
        )


def _texts(values: Any, reasons: Any) -> Any:
    """Return the rejected records' values as text."""
    if reasons.null_count == len(reasons):
        return pa.nulls(len(values), pa.string())
    pairs = zip(values.to_pylist(), reasons.is_valid().to_pylist(), strict=True)
    return pa.array([value.decode(errors="replace") if bad and value else None for value, bad in pairs], pa.string())
