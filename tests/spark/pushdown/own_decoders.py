"""Decoders for option `decoder`: CSV records, and wrong ones."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pyarrow as pa


class CsvDecoder:
    """`uid,clicks` with a separator of one's choice; the record's timestamp is the time."""

    schema = "uid STRING, clicks INT, at TIMESTAMP"

    def __init__(self, separator: str) -> None:
        if len(separator) > 1:
            raise ValueError("the separator must be one character")
        self._separator = separator or ","

    def decode(self, batch: pa.RecordBatch) -> tuple[Sequence[pa.Array], pa.Array]:
        rows = [self._row(value) for value in batch.column("value").to_pylist()]
        columns = [pa.array([row[0] for row in rows], pa.string()), pa.array([row[1] for row in rows], pa.int32())]
        return [*columns, batch.column("timestamp")], pa.array([row[2] for row in rows], pa.string())

    def _row(self, value: bytes | None) -> tuple[str | None, int | None, str | None]:
        uid, _, clicks = (value or b"").decode(errors="replace").partition(self._separator)
        return (uid, int(clicks), None) if clicks.isdecimal() else (None, None, "no-number")


def wrong(schema: Any, decode: Callable[[Any], Any] | None = None) -> Callable[[str], Any]:
    return lambda _options: SimpleNamespace(schema=schema, decode=decode or CsvDecoder("").decode)


without_schema = wrong(None)
wrong_schema = wrong("uid STRNG")
required_field = wrong("uid STRING NOT NULL")
kept_field = wrong("topic STRING")
one_column = wrong("uid STRING")
other_type = wrong("uid STRING, clicks BIGINT, at TIMESTAMP")
short_reasons = wrong(CsvDecoder.schema, lambda batch: (CsvDecoder("").decode(batch)[0], pa.array(["x"], pa.string())))
