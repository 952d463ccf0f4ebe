"""What one partition was told and what it said, and what must therefore be in it."""

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
    """What comes of it, its transaction says: of an aborted one compaction leaves nothing."""


class Found(NamedTuple):
    """A record as it was read."""

    offset: int
    key: bytes | None
    value: bytes


class Ends(NamedTuple):
    """Where a partition begins and ends, as a Fetch answer says it."""

    high_watermark: int
    last_stable_offset: int
    log_start_offset: int


@dataclass(eq=False)
class Ledger:
    """One partition of one topic's life; a topic made anew has new ones."""

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
    """The largest offset below which somebody asked to delete."""

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
        """What is known of the partition's ends now: an answer to what is asked now may not say less."""
        return Ends(self.high_watermark, self.last_stable_offset, self.log_start_offset)

    def check_ends(self, answer: FetchedPartition, known: Ends) -> None:
        """What a reader was told of the partition's ends never goes back."""
        told = Ends(answer.high_watermark, answer.last_stable_offset, answer.log_start_offset)
        back = [name for name, now, before in zip(Ends._fields, told, known, strict=True) if now < before]
        assert not back, f"{self}: {told} after {known}"
        assert told.log_start_offset <= told.last_stable_offset <= told.high_watermark, f"{self}: {told}"
        self.high_watermark, self.last_stable_offset, self.log_start_offset = map(
            max, zip(told, self.ends, strict=True)
        )
        if self.kind == "kept":
            assert self.log_start_offset <= self.start_asked, f"{self}: begins at {self.log_start_offset}"

    def read(self, answer: FetchedPartition, offset: int, *, committed: bool) -> tuple[list[Found], int]:
        """The records of an answer, each what was sent and where it was before, and the offset behind them."""
        found: list[Found] = []
        end = answer.last_stable_offset if committed else answer.high_watermark
        behind = offset
        for position, header in batches(answer.records):
            check_batch(answer.records, position, header)
            self._check_place(header, behind, offset, end)
            behind = header.last_offset + 1
            if not header.is_control:
                found += self._records(answer, position, offset)
        if committed:
            aborted_too = {each.offset for each in found}
            kept = {each.offset for each in committed_records(answer, offset, end)}  # type: ignore[arg-type]
            assert kept <= aborted_too
            found = [each for each in found if each.offset in kept]
        return found, behind

    def _check_place(self, header: BatchHeader, behind: int, asked: int, end: int) -> None:
        where = f"{self}: a batch {header.base_offset} to {header.last_offset} after {behind}, asked for {asked}"
        assert header.last_offset < end, f"{where}: it is beyond {end}"
        assert header.last_offset >= behind, where
        if self.kind != "compacted":
            assert header.base_offset == behind or (behind == asked and header.base_offset < asked), where

    def _records(self, answer: FetchedPartition, position: int, offset: int) -> Iterator[Found]:
        for record in decode_batch(answer.records, position):
            value = record.value or b""
            assert value in self.sent, f"{self}: {value!r} at {record.offset} was never sent here"
            assert value not in self.refused, f"{self}: {value!r} at {record.offset} was refused"
            self._note(record.offset, value)
            if record.offset >= offset:
                yield Found(record.offset, record.key, value)

    def check_whole(self, found: Sequence[Found], now_ms: int, retention_ms: int) -> None:
        """`found` is everything from the log's start on: what was ever shown or acknowledged is among it, in order."""
        offsets = {each.offset for each in found}
        newest = {each.key: each.offset for each in found}
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
        for each in found:
            sent = self.sent[each.value]
            assert sent.number > last.get(sent.producer, -1), f"{self}: {each.value!r} is out of its order"
            last[sent.producer] = sent.number
