"""A response as plain values, so that two brokers can be compared.

Values that two brokers cannot share are replaced by these rules; all others count:

- throttle times are left out; hosts, ports, cluster ids, directories and their sizes become the field's name in
  capitals;
- generated ids (topic ids, producer ids, member ids, sessions) are numbered in the order of their appearance;
- a time within an hour of the present becomes `now`;
- a text for people (error messages, documentation) becomes `text`; an error may have one or not, otherwise null stays;
- a batch's CRC is only checked, since it covers ids and times;
- entities are sorted by name, except where Kafka keeps the request's order (ORDER_COUNTS).
"""

import datetime
import re
import time
from dataclasses import fields, is_dataclass
from typing import Any
from uuid import UUID

from crc32c import crc32c

from onceflow.wire.batch import HEADER_BYTES, BatchHeader, batches
from onceflow.wire.errors import ErrorCode

PLACES = {"host", "port", "cluster_id", "log_dir", "total_bytes", "usable_bytes"}
TEXTS_FOR_PEOPLE = {"error_message", "batch_index_error_message", "documentation"}
LEFT_OUT = {"throttle_time"}
ORDER_COUNTS = {"Fetch"}
NOW_WITHIN_MS = 3_600_000
CRC_BEGIN = 21
MADE_BY_THE_BROKER = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
"""Java's UUIDs inside member ids."""


class Names:
    """Numbers of the ids that a broker generated, in the order of their appearance."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, Any], int] = {}

    def name(self, kind: str, value: Any) -> str:
        number = self._numbers.setdefault((kind, value), 1 + sum(known == kind for known, _value in self._numbers))
        return f"{kind} {number}"


def normal_form(response: Any, names: Names, *, ordered: bool) -> Any:
    """Return mappings, lists and plain values."""
    return _Form(names, ordered).of("", response)


class _Form:
    def __init__(self, names: Names, ordered: bool) -> None:
        self._names = names
        self._ordered = ordered

    def of(self, field: str, value: Any) -> Any:
        if is_dataclass(value):
            return self._entity(value)
        if isinstance(value, tuple):
            elements = [self.of(field, element) for element in value]
            return elements if self._ordered else sorted(elements, key=repr)
        if value is None or isinstance(value, bool):
            return value
        return self._plain(field, value)

    def _entity(self, entity: Any) -> dict[str, Any]:
        names = [field.name for field in fields(entity) if field.name not in LEFT_OUT]
        form = {name: self.of(name, getattr(entity, name)) for name in names}
        has_error = any(name.endswith("error_code") and code != "none" for name, code in form.items())
        return {name: "text" if has_error and name in TEXTS_FOR_PEOPLE else value for name, value in form.items()}

    def _plain(self, field: str, value: Any) -> Any:
        if field in PLACES:
            return field.upper()
        if field in TEXTS_FOR_PEOPLE:
            return "text" if value else value
        if isinstance(value, ErrorCode) or field.endswith("error_code"):
            return ErrorCode(value).name
        if isinstance(value, UUID):
            return self._names.name("uuid", value)
        if isinstance(value, str):
            return MADE_BY_THE_BROKER.sub(lambda item: self._names.name("uuid", item[0]), str(value))
        if isinstance(value, bytes):
            return self._batches(value) if field == "records" else value
        return self._number(field, _plain_number(value))

    def _number(self, field: str, value: int) -> Any:
        if field.endswith("producer_id") and value >= 0:
            return self._names.name("producer", value)
        if field == "session_id" and value > 0:
            return self._names.name("session", value)
        return "now" if abs(value - time.time() * 1000) < NOW_WITHIN_MS else value

    def _batches(self, records: bytes) -> list[Any]:
        return [self._batch(records, position, header) for position, header in batches(records)]

    def _batch(self, records: bytes, position: int, header: BatchHeader) -> dict[str, Any]:
        form = {name: self.of(name, value) for name, value in header._asdict().items()}
        end = position + header.size_bytes
        form["crc"] = crc32c(records[position + CRC_BEGIN : end]) == header.crc
        return {**form, "payload": records[position + HEADER_BYTES : end]}


def _plain_number(value: Any) -> int:
    if isinstance(value, datetime.timedelta):
        return round(value.total_seconds() * 1000)
    if isinstance(value, datetime.datetime):
        return round(value.timestamp() * 1000)
    return int(value)
