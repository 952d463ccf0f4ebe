"""Event ids in the read tasks: the records that claim one, and the decoder that leaves out duplicates.

The field `event_id` of a valid event is a string of 1 to 256 bytes or an integer, which is the same as its text;
anything else is ignored. Redis keeps a digest of it. `onceflow.spark.redis.ids` decides which record of an id counts.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from onceflow.clicks.columns import ClickDecoder, EventFields
from onceflow.clicks.events import DUPLICATE, ID_FIELD, id_of
from onceflow.spark.redis.ids import duplicates
from onceflow.spark.redis.targets import Ids

DIGEST_BYTES = 16


@dataclass(frozen=True)
class IdSettings:
    """Fields of the events, and where Redis keeps the ids."""

    fields: EventFields
    redis_url: str
    ids: Ids

    def counting_options(self) -> dict[str, str]:
        """Return the options of the source that decode events, without duplicates."""
        return self._options(OnceDecoder, asdict(self))

    def claiming_options(self) -> dict[str, str]:
        """Return the options of the source that read the id and the place of each record."""
        fields: dict[str, Any] = {"key": self.fields.key, "value": self.fields.value, "time": None, "dimensions": {}}
        return self._options(IdDecoder, fields) | {"columns": "partition,offset,timestamp"}

    def _options(self, decoder: type, options: Mapping[str, Any]) -> dict[str, str]:
        return {"decoder": f"{decoder.__module__}:{decoder.__name__}", "decoderOptions": json.dumps(options)}


class OnceDecoder:
    """ClickDecoder that rejects duplicates, by the claims of the batch in Redis."""

    def __init__(self, options: str) -> None:
        document = json.loads(options)
        self._ids = Ids(**document["ids"])
        self._redis_url = document["redis_url"]
        self._events = ClickDecoder(json.dumps(document["fields"]))
        self.schema = self._events.schema

    def decode(self, batch: Any) -> tuple[Sequence[Any], Any]:
        """Return the columns and the reasons of a RecordBatch of the source, which has records of one partition."""
        columns, reasons = self._events.decode(batch)
        if not batch.num_rows:
            return columns, reasons
        partition, offsets = batch.column("partition")[0].as_py(), batch.column("offset")
        others = duplicates(self._redis_url, self._ids, partition, offsets[0].as_py(), offsets[-1].as_py())
        is_other = pc.is_in(offsets, pa.array(sorted(others), offsets.type))
        return columns, pc.if_else(is_other, DUPLICATE, reasons)


class IdDecoder:
    """Decoder of the column `id`: the digest of the id of a valid event in hexadecimal, else null."""

    schema = "id STRING"

    def __init__(self, options: str) -> None:
        self._events = ClickDecoder(options)
        event = msgspec.defstruct("Event", [("id", msgspec.Raw, msgspec.Raw())], rename={"id": ID_FIELD}, gc=False)
        self._decode = msgspec.json.Decoder(event).decode

    def decode(self, batch: Any) -> tuple[Sequence[Any], Any]:
        """Return the column and the reasons of a RecordBatch of the source."""
        _, reasons = self._events.decode(batch)
        is_valid = reasons.is_null().to_pylist()
        values = batch.column("value").to_pylist()
        digests = [self._digest(value) if valid else None for value, valid in zip(values, is_valid, strict=True)]
        return [pa.array(digests, pa.string())], reasons

    def _digest(self, value: bytes) -> str | None:
        event: Any = self._decode(value)
        text = id_of(bytes(event.id))
        return None if text is None else hashlib.blake2b(text.encode(), digest_size=DIGEST_BYTES).hexdigest()
