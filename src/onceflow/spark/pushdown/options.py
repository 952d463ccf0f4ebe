"""Options of the push-downs, `decode` (or `decoder`) and `aggregate`; see docs/pushdown.md."""

import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import types
from pyspark.sql.types import StructField, StructType

from onceflow.spark.errors import WrongOption
from onceflow.spark.pushdown.aggregate_plan import AGGREGATE, GROUP_BY, REJECTED, Aggregation, parse_aggregation
from onceflow.spark.pushdown.converters import MICROSECONDS
from onceflow.spark.pushdown.decode_schema import (
    CORRUPT_REASON,
    CORRUPT_RECORD,
    DECODE,
    DECODER,
    DECODER_OPTIONS,
    Field,
    parse_schema,
)

if TYPE_CHECKING:
    import pyarrow

    from onceflow.spark.pushdown.custom import DecodesColumns

COLUMNS = "columns"
TIMESTAMP_UNIT = "timestampUnit"
NAMES = (DECODE, TIMESTAMP_UNIT, DECODER, DECODER_OPTIONS, COLUMNS, AGGREGATE, GROUP_BY)
_LIKE = {DECODE: "a schema like 'uid STRING, click_count INT'", DECODER: "a factory like 'package.module:factory'"}
_REQUIRED = {
    TIMESTAMP_UNIT: (DECODE,),
    DECODER_OPTIONS: (DECODER,),
    COLUMNS: (DECODE, DECODER),
    AGGREGATE: (DECODE, DECODER),
    GROUP_BY: (DECODE, DECODER),
}
"""Options that have a meaning only with one of others."""

SCHEMA = StructType(
    [
        StructField("key", types.BinaryType()),
        StructField("value", types.BinaryType()),
        StructField("topic", types.StringType()),
        StructField("partition", types.IntegerType()),
        StructField("offset", types.LongType()),
        StructField("timestamp", types.TimestampType()),
        StructField("timestampType", types.IntegerType()),
    ]
)
"""Columns of the source, the same as those of Spark's Kafka source."""
HEADERS = StructField(
    "headers",
    types.ArrayType(StructType([StructField("key", types.StringType()), StructField("value", types.BinaryType())])),
)
"""Column added by option includeHeaders."""

KEPT = ("topic", "partition", "offset")
"""Columns kept beside the decoded fields by default (option columns)."""

CORRUPT = (StructField(CORRUPT_RECORD, types.StringType()), StructField(CORRUPT_REASON, types.StringType()))

REJECTED_FIELDS = ("topic", "partition", "offset", "timestamp", "reason", "key", "value")


@dataclass(frozen=True, slots=True)
class Pushdown:
    """Processing of the source's records before they leave the read task."""

    fields: tuple[Field, ...]
    kept: tuple[str, ...] = KEPT
    timestamp_unit: str | None = None
    aggregation: Aggregation | None = None
    decoder: tuple[str, str] | None = None
    """The user's decoder and its options, instead of `decode`."""

    def schema(self) -> StructType:
        """Return the resulting columns."""
        if self.aggregation is None:
            fields = [StructField(field.name, field.spark_type) for field in self.fields]
            return StructType([*fields, *CORRUPT, *(_SOURCE[name] for name in self.kept)])
        return StructType([*self.aggregation.schema(), StructField(REJECTED, _REJECTED)])

    def apply(self, batches: "Iterable[pyarrow.RecordBatch]") -> "Iterator[pyarrow.RecordBatch]":
        """Yield the result for batches of the source's own columns; runs in a read task."""
        decoder = self._decoder()
        if self.aggregation is None:
            yield from map(decoder.columns, batches)
            return
        from onceflow.spark.pushdown.aggregate import Partial

        partial = Partial(self.aggregation, decoder)
        for batch in batches:
            yield from partial.add(batch)
        yield from partial.result()

    def _decoder(self) -> "DecodesColumns":
        if self.decoder is None:
            from onceflow.spark.pushdown.decode import Decoder

            return Decoder(self.fields, self.kept, self.timestamp_unit)
        from onceflow.spark.pushdown.custom import CustomDecoder

        return CustomDecoder(*self.decoder, self.fields, self.kept)


_SOURCE = {field.name: field for field in (*SCHEMA.fields, HEADERS)}
_REJECTED = StructType(
    [_SOURCE[name] if name in _SOURCE else StructField(name, types.StringType()) for name in REJECTED_FIELDS]
)


def parse_pushdown(values: Mapping[str, str], *, include_headers: bool = False) -> Pushdown | None:
    """Parse the options by lower-case name; return None without `decode` and `decoder`. Raises WrongOption."""
    schema, path = values.get(DECODE.lower()), values.get(DECODER.lower())
    if schema is not None and path is not None:
        raise WrongOption(f"options {DECODE} and {DECODER} both give the columns of a record; remove one of them")
    for name, needed in _REQUIRED.items():
        if name.lower() in values and not any(option.lower() in values for option in needed):
            alternatives = ", or option ".join(f"{option}, {_LIKE[option]}" for option in needed)
            raise WrongOption(f"option {name} requires option {alternatives}")
    decoder = None if path is None else (path, values.get(DECODER_OPTIONS.lower(), ""))
    if decoder is not None:
        from onceflow.spark.pushdown import custom

        fields = custom.fields_of(*decoder)
    elif schema is not None:
        fields = parse_schema(schema)
    else:
        return None
    kept = _kept(values, include_headers)
    _require_different(fields, kept)
    unit = _unit(values, fields)
    return Pushdown(fields, kept, unit, _aggregation(values, fields, kept, include_headers), decoder)


def _kept(values: Mapping[str, str], include_headers: bool) -> tuple[str, ...]:
    headers = (HEADERS.name,) if include_headers else ()
    given = values.get(COLUMNS.lower())
    if given is None:
        return KEPT + headers
    known = {name.lower(): name for name in (*SCHEMA.names, *headers)}
    names = [name.strip() for name in given.split(",")] if given else []
    for name in names:
        if name.lower() not in known:
            nearest = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.5)
            remedy = f"did you mean {known[nearest[0]]}?" if nearest else f"they are {', '.join(known.values())}"
            raise WrongOption(f"option {COLUMNS}: {name!r} is not one of the source's own columns; {remedy}")
    kept = tuple(known[name.lower()] for name in names)
    if len(set(kept)) < len(kept):
        raise WrongOption(f"option {COLUMNS}={given!r} names a column twice")
    if include_headers and HEADERS.name not in kept:
        raise WrongOption(f"option includeHeaders is true, and option {COLUMNS}={given!r} lacks headers; add it")
    return kept


def _require_different(fields: Iterable[Field], kept: tuple[str, ...]) -> None:
    own = {name.lower() for name in kept}
    for field in fields:
        if field.name.lower() in own:
            raise WrongOption(
                f"the schema has a field {field.name!r}, which is also a column of the source; list in option "
                f"{COLUMNS} which of those to keep, now {', '.join(kept)} ('' keeps none)"
            )
        if field.name.lower() in {column.name for column in CORRUPT}:
            raise WrongOption(f"the schema has a field {field.name!r}, which is always a column; remove it")


def _unit(values: Mapping[str, str], fields: Iterable[Field]) -> str | None:
    unit = values.get(TIMESTAMP_UNIT.lower())
    if unit is None:
        return None
    if unit.lower() not in MICROSECONDS:
        nearest = difflib.get_close_matches(unit.lower(), MICROSECONDS, n=1, cutoff=0.5)
        remedy = f"did you mean {nearest[0]}?" if nearest else f"it takes {', '.join(MICROSECONDS)}"
        raise WrongOption(f"option {TIMESTAMP_UNIT}={unit!r} is not a valid unit; {remedy}")
    if not any(field.kind == "TIMESTAMP" for field in fields):
        raise WrongOption(f"option {TIMESTAMP_UNIT} requires a TIMESTAMP field in option {DECODE}")
    return unit.lower()


def _aggregation(
    values: Mapping[str, str], fields: Iterable[Field], kept: Iterable[str], include_headers: bool
) -> Aggregation | None:
    measures, keys = values.get(AGGREGATE.lower()), values.get(GROUP_BY.lower())
    if measures is None:
        if keys is not None:
            raise WrongOption(
                f"option {GROUP_BY} requires option {AGGREGATE}, like 'sum(click_count) AS clicks, count(*)'"
            )
        return None
    if include_headers:
        raise WrongOption(f"option includeHeaders has no effect with option {AGGREGATE}: sums have no headers")
    columns = {field.name: field.spark_type for field in fields}
    return parse_aggregation(measures, keys, columns | {name: _SOURCE[name].dataType for name in kept})
