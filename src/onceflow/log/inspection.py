"""Reader of any file in a data directory; it needs no broker and reports the byte where a file is damaged.

It only reads, so the files of a running broker can be inspected. A .log may contain all three formats one after the
other (`wire.batch`, `wire.message_sets`): the magic is at byte 16 of each. Kafka preallocates the indexes of an active
segment, so zeros at an index's end are not entries.
"""

import mmap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from typing_extensions import Buffer

from onceflow.errors import OnceflowError
from onceflow.log.errors import DataDirectoryRefused
from onceflow.log.index import Index, OffsetIndex, TimeIndex
from onceflow.log.offset_checkpoint import parse_offsets
from onceflow.log.producers import SnapshotEntry, read_snapshot
from onceflow.log.segment import LOG_SUFFIX, SNAPSHOT_SUFFIX
from onceflow.log.transactions import TransactionIndex
from onceflow.wire import batch, first_messages, message_sets
from onceflow.wire.batch import BatchHeader, Record
from onceflow.wire.errors import WireError
from onceflow.wire.message_sets import EntryHeader

INDEXES: tuple[type[Index], ...] = (OffsetIndex, TimeIndex, TransactionIndex)
SUFFIXES = (LOG_SUFFIX, *(index.suffix for index in INDEXES), SNAPSHOT_SUFFIX)
LEADER_EPOCHS = "leader-epoch-checkpoint"
OFFSETS = "-offset-checkpoint"
_TEMPORARY_SUFFIXES = (".deleted", ".cleaned", ".swap")
"""Suffixes that Kafka and Onceflow append to files being added or deleted."""
_MAGIC_POSITION = 16

_Read = Callable[[Buffer, int], BatchHeader | EntryHeader]
_Check = Callable[[Buffer, int, Any], None]


class Damaged(OnceflowError):
    """A file does not match its name, from `position` on."""

    def __init__(self, path: Path, position: int, reason: str) -> None:
        super().__init__(f"{path} is damaged at byte {position}: {reason}")
        self.position = position


class UnknownFile(OnceflowError):
    """The file's name does not match a known type."""


class InspectedBatch(NamedTuple):
    """A batch, or an entry of the older formats, and the problem inside it if its length is valid."""

    position: int
    header: BatchHeader | EntryHeader
    problem: str | None


def kind_of(path: Path) -> str:
    """Return a suffix of SUFFIXES, LEADER_EPOCHS or OFFSETS. Raises UnknownFile."""
    name = path.name
    for temporary in _TEMPORARY_SUFFIXES:
        name = name.removesuffix(temporary)
    if name == LEADER_EPOCHS:
        return LEADER_EPOCHS
    kind = next((kind for kind in (*SUFFIXES, OFFSETS) if name.endswith(kind)), None)
    if kind is None or (kind in SUFFIXES and not name.removesuffix(kind).isdecimal()):
        known = ", ".join(f"NNN{suffix}" for suffix in SUFFIXES)
        raise UnknownFile(f"{path} is not named like a file of a log; expected {known}, {LEADER_EPOCHS} or *{OFFSETS}")
    return kind


def base_offset_of(path: Path) -> int:
    """Return the number in a segment file's name."""
    return int(path.name.partition(".")[0])


def mapped(path: Path) -> memoryview:
    """Map the file's bytes while the view is held, so that a segment of a gigabyte costs no memory. Raises OSError."""
    with path.open("rb") as file:
        if not file.seek(0, 2):
            return memoryview(b"")
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def log_batches(path: Path, content: memoryview) -> Iterator[InspectedBatch]:
    """Yield every batch or message of a .log. Raises Damaged where the next one cannot be located."""
    position = 0
    while position < len(content):
        if len(content) - position <= _MAGIC_POSITION:
            raise Damaged(path, position, f"{len(content) - position} bytes are left, too few for a batch")
        read, check, bytes_min = _format_at(content, position)
        try:
            header = read(content, position)
        except WireError as error:
            raise Damaged(path, position, str(error)) from error
        if header.magic not in (0, 1, 2) or header.size_bytes < bytes_min:
            raise Damaged(path, position, f"magic {header.magic} and a size of {header.size_bytes} bytes")
        if header.size_bytes > len(content) - position:
            reason = f"a batch of {header.size_bytes} bytes is cut, {len(content) - position} bytes are left"
            raise Damaged(path, position, reason)
        yield InspectedBatch(position, header, _problem(check, content, position, header))
        position += header.size_bytes


def _format_at(content: memoryview, position: int) -> tuple[_Read, _Check, int]:
    if content[position + _MAGIC_POSITION] <= message_sets.MAGIC_MAX:
        return message_sets.read_header, message_sets.check_entry, message_sets.PREFIX_BYTES
    return batch.read_header, batch.check_batch, batch.HEADER_BYTES


def _problem(check: _Check, content: memoryview, position: int, header: BatchHeader | EntryHeader) -> str | None:
    try:
        check(content, position, header)
    except WireError as error:
        return str(error)
    return None


def records_at(content: Buffer, inspected: InspectedBatch) -> list[Record]:
    """Return the records of a batch or message. Raises WireError."""
    if isinstance(inspected.header, EntryHeader):
        return message_sets.decode_entry(content, inspected.position)
    return batch.decode_batch(content, inspected.position)


def verified_batches(path: Path, content: memoryview) -> Iterator[InspectedBatch]:
    """Yield every batch like `log_batches`; raises Damaged also for a wrong CRC, bad records or offsets that do not
    ascend."""
    offset = base_offset_of(path)
    for inspected in log_batches(path, content):
        first, last = offset_range(inspected.header)
        if inspected.problem is not None:
            raise Damaged(path, inspected.position, inspected.problem)
        try:
            records = records_at(content, inspected)
        except WireError as error:
            raise Damaged(path, inspected.position, str(error)) from error
        first = records[0].offset if records and isinstance(inspected.header, EntryHeader) else first
        if first < offset or last < first:
            raise Damaged(
                path, inspected.position, f"offsets {first} to {last}, but the next offset is {offset} or later"
            )
        yield inspected
        offset = last + 1


def offset_range(header: BatchHeader | EntryHeader) -> tuple[int, int]:
    """Return (first, last) offset according to the header: a compressed message set has only the last."""
    if isinstance(header, EntryHeader):
        return header.offset, header.offset
    return header.base_offset, header.last_offset


def first_format_messages(path: Path, content: memoryview) -> Iterator[tuple[int, bytes]]:
    """Yield (position, payload) of each message of Kafka's first format. Raises Damaged."""
    position = 0
    while position < len(content):
        try:
            payload = first_messages.payload_of(content, position)
        except WireError as error:
            raise Damaged(path, position, str(error)) from error
        yield position, payload
        position += first_messages.HEADER_BYTES + len(payload)


def index_entries(path: Path) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield (position, entry) of an index, the entries as in the file. Raises Damaged where one is cut."""
    layout = next(index for index in INDEXES if index.suffix == kind_of(path)).entry
    content = mapped(path)
    end = len(content.tobytes().rstrip(b"\x00"))
    whole_end = -(-end // layout.size) * layout.size
    if len(content) % layout.size:
        position = len(content) // layout.size * layout.size
        raise Damaged(path, position, f"{len(content) - position} bytes are left, an entry has {layout.size}")
    yield from zip(range(0, whole_end, layout.size), layout.iter_unpack(content[:whole_end]), strict=True)


def verify_index(path: Path) -> int:
    """Return the number of entries. Raises Damaged where they do not ascend or do not match the .log beside it, if any.

    An offset index must contain starts of batches, none of them after the offset of its entry.
    """
    starts = _batch_starts(path) if kind_of(path) == OffsetIndex.suffix else None
    before: tuple[int, ...] | None = None
    count = 0
    for position, entry in index_entries(path):
        if min(entry) < 0 or (before is not None and not _ascends(path, before, entry)):
            raise Damaged(path, position, f"entry {entry} does not follow {before}")
        if starts is not None and starts.get(entry[1], entry[0] + 1) > entry[0]:
            raise Damaged(path, position, f"offset +{entry[0]} is not in a batch that starts at position {entry[1]}")
        before, count = entry, count + 1
    return count


def _ascends(path: Path, before: tuple[int, ...], entry: tuple[int, ...]) -> bool:
    if kind_of(path) == TransactionIndex.suffix:
        return entry[3] > before[3] and entry[4] >= before[4]
    return entry[0] > before[0] and entry[1] >= before[1]


def _batch_starts(path: Path) -> dict[int, int] | None:
    """Return the position of each batch in the .log → its first relative offset; None without a .log."""
    log = path.with_name(path.name.replace(OffsetIndex.suffix, LOG_SUFFIX))
    if not log.exists():
        return None
    base_offset = base_offset_of(path)
    return {
        inspected.position: offset_range(inspected.header)[0] - base_offset
        for inspected in log_batches(log, mapped(log))
    }


def snapshot_entries(path: Path) -> list[SnapshotEntry]:
    """Return the entries of a producer snapshot. Raises Damaged."""
    entries = read_snapshot(path.read_bytes())
    if entries is None:
        raise Damaged(path, 0, "the producer snapshot's version, CRC or length is wrong")
    return entries


def checkpoint_lines(path: Path) -> list[tuple[str, int, int]]:
    """Return (topic, partition, offset) of an offset checkpoint, ("", epoch, start offset) of a leader-epoch one.

    Raises Damaged.
    """
    content = path.read_bytes()
    try:
        if kind_of(path) == OFFSETS:
            return [(topic, partition, offset) for (topic, partition), offset in parse_offsets(path, content).items()]
        version, count, *lines = content.decode().splitlines()
        epochs = [("", *map(int, line.split())) for line in lines]
        if version != "0" or int(count) != len(lines) or any(len(epoch) != 3 for epoch in epochs):
            raise ValueError(f"version {version}, {len(lines)} lines instead of {count}")
    except (DataDirectoryRefused, ValueError) as error:
        raise Damaged(path, 0, str(error)) from error
    return epochs  # type: ignore[return-value]
