"""A batch that is encoded record by record: a long one in several turns of an event loop."""

from onceflow.wire.batch import Record, append_record, patch_producer, unsealed_batch
from onceflow.wire.codecs import Codec


class BatchEncoder:
    """Encodes the records of one batch, all with the same timestamp and without headers."""

    __slots__ = ("_body", "_count", "_first")

    def __init__(self, timestamp_ms: int) -> None:
        """Take the records' timestamp in milliseconds since the epoch, UTC."""
        self._body = bytearray()
        self._count = 0
        self._first = Record(0, timestamp_ms, None, None)

    @property
    def size_bytes(self) -> int:
        """Size of the records so far, without the batch's header."""
        return len(self._body)

    def append(self, key: bytes | None, value: bytes | None) -> None:
        """Encode the next record."""
        append_record(self._body, Record(self._count, self._first.timestamp_ms, key, value), self._first)
        self._count += 1

    def encode(self, *, producer_id: int, producer_epoch: int, transactional: bool) -> bytearray:
        """Return the batch, with offsets from 0 on. Raises ValueError without records."""
        if not self._count:
            raise ValueError("a batch has at least one record")
        timestamp_ms = self._first.timestamp_ms
        batch = unsealed_batch(
            self._body,
            codec=Codec.NONE,
            record_count=self._count,
            base_timestamp_ms=timestamp_ms,
            max_timestamp_ms=timestamp_ms,
        )
        patch_producer(
            batch,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=-1,
            transactional=transactional,
        )
        return batch
