"""Decoded records of the broker's internal topics: groups and their offsets, transactions, topics, markers."""

import base64
import struct
import uuid
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from onceflow.broker.groups import records as group_records
from onceflow.broker.topics import records as metadata_records
from onceflow.broker.transactions import records as transaction_records
from onceflow.errors import OnceflowError
from onceflow.log.checkpoint import encode_uuid
from onceflow.wire.markers import read_marker

if TYPE_CHECKING:
    from onceflow.wire.batch import Record

_DECODERS: Mapping[str, Callable[["Record"], object]] = {
    "__consumer_offsets": lambda record: group_records.decode(record.key or b"", record.value),
    "__transaction_state": lambda record: transaction_records.decode(record.key or b"", record.value),
    "__cluster_metadata": lambda record: metadata_records.decode(record.value or b""),
}


def decode_record(topic: str | None, record: "Record") -> dict[str, Any] | None:
    """Return the fields of an internal topic's record; None for other topics and unknown kinds of records."""
    decode = _DECODERS.get(topic or "")
    if decode is None:
        return None
    try:
        decoded = decode(record)
    except (OnceflowError, struct.error, ValueError, IndexError, KeyError):
        return None
    if isinstance(decoded, str):
        return {"record": {"type": "Transaction", "transactional_id": decoded, "removed": True}}
    return {"record": {"type": type(decoded).__name__, **_plain_fields(decoded), "removed": record.value is None}}


def decode_control_record(record: "Record") -> dict[str, Any] | None:
    """Return the fields of a transaction's marker; None for other control records."""
    marker = read_marker(record)
    if marker is None:
        return None
    kind = "CommitMarker" if marker.commit else "AbortMarker"
    return {"record": {"type": kind, "coordinator_epoch": marker.coordinator_epoch}}


def _plain_fields(decoded: Any) -> dict[str, Any]:
    return {field.name: _plain(getattr(decoded, field.name)) for field in fields(decoded) if field.compare}


def _plain(value: Any) -> Any:
    """Return the value in types that JSON has."""
    if is_dataclass(value):
        return _plain_fields(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, uuid.UUID):
        return encode_uuid(value)
    if isinstance(value, set | frozenset):
        return sorted(map(_plain, value))
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
