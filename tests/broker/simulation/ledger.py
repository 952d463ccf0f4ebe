"""Requests and responses of one partition, and the records that must therefore be in it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from onceflow.client.records import committed_records
from onceflow.wire.batch import BatchHeader, batches, check_batch, decode_batch
from onceflow.wire.fetch import FetchedPartition


class Sent(NamedTuple):
    """A record on its way: of which producer, its how manieth, and when."""

    producer: int
    number: int
    key: bytes | None
    at_ms: int
    is_transactional: bool = False
    """Whether it is in a transaction, which decides its outcome; compaction removes records of an aborted one."""


class Found(NamedTuple):
    """A record as it was read."""

    offset: int
    key: bytes | None
    value: bytes


class Ends(NamedTuple):
    """Start and ends of a partition in a Fetch response."""

    high_watermark: int
    last_stable_offset: int
    log_start_offset: int


@dataclass(eq=False)
class Ledger:
    """One partition of one topic's life; a recreated topic has new ones."""

    topic: str
    index: int
    kind: str
    sent: dict[bytes, Sent] = field(default_factory=dict)
    acknowledged: dict[int, bytes] = field(default_factory=dict)
    refused: set[bytes] = field(default_factory=set)
    seen: dict[int, bytes] = field(default_factory=dict)
    places: dict[bytes, int] = field(default_factory=dict)
    high_watermark: int = 0
    last_stable_offset: int = 0
    log_start_offset: int = 0
    start_asked: int = 0
    """The largest offset below which a client deleted records."""

    def __str__(self) -> str:
        return f"{self.topic}-{self.index}"

    def acknowledge(self, base_offset: int, values: Sequence[bytes]) -> None:
        for offset, value in enumerate(values, base_offset):
            assert self.acknowledged.setdefault(offset, value) == value, f"{self}: offset {offset} was given twice"
            self._note(offset, value)

    def _note(self, offset: int, value: bytes) -> None:
        assert self.seen.setdefault(offset, value) == value, f"{self}: offset {offset} was {self.seen[offset]!r}"
        assert self.places.setdefault(value, offset) == offset, f"{self}: {value!r} is there twice"

    @property
    def ends(self) -> Ends:
        """Return the partition's known ends: the response to a later request may not have smaller ones."""
        return Ends(self.high_watermark, self.last_stable_offset, self.log_start_offset)

    def check_ends(self, response: FetchedPartition, known: Ends) -> None:
        """Check that the partition's ends never decrease for a reader."""
        ends = Ends(response.high_watermark, response.last_stable_offset, response.log_start_offset)
        back = [name for name, now, before in zip(Ends._fields, ends, known, strict=True) if now < before]
        assert not back, f"{self}: {ends} after {known}"
        assert ends.log_start_offset <= ends.last_stable_offset <= ends.high_watermark, f"{self}: {ends}"
        self.high_watermark, self.last_stable_offset, self.log_start_offset = map(
            max, zip(ends, self.ends, strict=True)
        )
        if self.kind == "kept":
            assert self.log_start_offset <= self.start_asked, f"{self}: begins at {self.log_start_offset}"

    def read(self, response: FetchedPartition, offset: int, *, committed: bool) -> tuple[list[Found], int]:
        """Return the records of a response, checked against those sent and read before, and the offset after them."""
        records: list[Found] = []
        end = response.last_stable_offset if committed else response.high_watermark
        behind = offset
        for position, header in batches(response.records):
            check_batch(response.records, position, header)
            self._check_place(header, behind, offset, end)
            behind = header.last_offset + 1
            if not header.is_control:
                records += self._records(response, position, offset)
        if committed:
            aborted_too = {entry.offset for entry in records}
            kept = {committed_record.offset for committed_record in committed_records(response, offset, end)}  # type: ignore[arg-type]
            assert kept <= aborted_too
            records = [item for item in records if item.offset in kept]
        return records, behind

    def _check_place(self, header: BatchHeader, behind: int, asked: int, end: int) -> None:
        where = f"{self}: a batch {header.base_offset} to {header.last_offset} after {behind}, asked for {asked}"
        assert header.last_offset < end, f"{where}: it is beyond {end}"
        assert header.last_offset >= behind, where
        if self.kind != "compacted":
            assert header.base_offset == behind or (behind == asked and header.base_offset < asked), where

    def _records(self, response: FetchedPartition, position: int, offset: int) -> Iterator[Found]:
        for record in decode_batch(response.records, position):
            value = record.value or b""
            assert value in self.sent, f"{self}: {value!r} at {record.offset} was never sent here"
            assert value not in self.refused, f"{self}: {value!r} at {record.offset} was refused"
            self._note(record.offset, value)
            if record.offset >= offset:
                yield Found(record.offset, record.key, value)

    def check_whole(self, records: Sequence[Found], now_ms: int, retention_ms: int) -> None:
        """Check all records from the log's start on: they include all that were read or acknowledged, in order."""
        offsets = {element.offset for element in records}
        newest = {entry.key: entry.offset for entry in records}
        for offset, value in self.seen.items():
            if offset in offsets:
                continue
            sent = self.sent[value]
            if offset < self.log_start_offset:
                is_old = sent.at_ms <= now_ms - retention_ms
                assert self.kind != "short" or is_old or offset < self.start_asked, f"{self}: {offset} was deleted"
            else:
                is_replaced = newest.get(sent.key, -1) > offset or sent.is_transactional
                assert self.kind == "compacted" and is_replaced, f"{self}: {value!r} at {offset} is lost"
        last: dict[int, int] = {}
        for item in records:
            sent = self.sent[item.value]
            assert sent.number > last.get(sent.producer, -1), f"{self}: {item.value!r} is out of its order"
            last[sent.producer] = sent.number
