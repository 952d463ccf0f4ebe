"""Deletion of segment files and replacement by compacted ones; after a crash either the old or the new ones exist.

Before any file is removed, the directory is synced: the producers' state in the next segment's snapshot must be durable
before the batches that contain it too.

A **deleted** segment's files are renamed to `NNN.log.deleted` and so on, and removed after `file.delete.delay.ms` or
at the next start: their readers keep them open.

A **compacted** segment replaces one or several neighbours. Its files go through Kafka's names
(LocalLog.replaceSegments). The directory is synced between the steps, because a power cut may keep any subset of
renames:

1. `NNN.log.cleaned` and its indexes are written and synced. After a crash they are removed; the old segments are valid.
2. They are renamed to `.swap`. From here on the new segment is valid: a start that finds `NNN.log.swap` removes
   the rest of the old segments and gives the new one its name.
3. The old segments' files are renamed to `.deleted`.
4. The `.swap` files get their names. A crash may leave indexes without theirs: they are rebuilt.

Its offsets alone determine which old segments a `.swap` file replaces: from its base offset to that of its last batch,
which compaction keeps for this, empty if necessary.

Compaction leaves gaps between offsets, which recovery otherwise treats as damage. So before step 2
`compaction-end-checkpoint` (a version, an offset) records the end offset of possible gaps.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from onceflow.log.disk import Disk, read_file, replace_file
from onceflow.log.errors import CorruptBatch, DataDirectoryRefused
from onceflow.log.index import OffsetIndex, TimeIndex, file_name
from onceflow.log.segment import LOG_SUFFIX, SNAPSHOT_SUFFIX, Segment, offsets_of
from onceflow.log.transactions import TransactionIndex

CLEANED_SUFFIX = ".cleaned"
SWAP_SUFFIX = ".swap"
DELETED_SUFFIX = ".deleted"
SEGMENT_SUFFIXES = (OffsetIndex.suffix, TimeIndex.suffix, TransactionIndex.suffix, LOG_SUFFIX)
"""Suffixes of a segment's files. The log comes last: the others are rebuilt from it."""

COMPACTION_END_FILE = "compaction-end-checkpoint"
_VERSION = "0"


def retire(disk: Disk, directory: Path, segments: Sequence[Segment], *, kept_snapshot: int = -1) -> list[Path]:
    """Rename the files of sealed segments and the snapshots at their starts, except at `kept_snapshot`, oldest first.

    Blocks; raises OSError, after which it may be repeated. Returns the new paths, for `remove_retired` when no reader
    holds them.
    """
    retired = []
    disk.sync_directory(directory)
    for segment in segments:
        segment.pin()
        suffixes = SEGMENT_SUFFIXES if segment.base_offset == kept_snapshot else (*SEGMENT_SUFFIXES, SNAPSHOT_SUFFIX)
        for suffix in suffixes:
            path = directory / file_name(segment.base_offset, suffix)
            target = path.with_name(path.name + DELETED_SUFFIX)
            if disk.exists(path):
                disk.rename(path, target)
            elif not disk.exists(target):
                continue
            retired.append(target)
    disk.sync_directory(directory)
    return retired


def remove_retired(disk: Disk, paths: Iterable[Path]) -> None:
    """Remove renamed files, unless their directory was already removed. Blocks; raises OSError."""
    for path in paths:
        if disk.exists(path):
            disk.remove(path)


def replace(disk: Disk, directory: Path, old: Sequence[Segment], offset_end: int) -> tuple[Segment, list[Path]]:
    """Replace the neighbours `old` by the durable `.cleaned` files at their base offset, as the module describes.

    `offset_end` is the end of both. Callers that hold `old` can still read them. Blocks only for renames and syncs of
    names, regardless of the segments' size. Raises OSError, after which the next start finishes the replacement.
    Returns the new segment, and the old files' new names.
    """
    base = old[0].base_offset
    write_compaction_end(disk, directory, offset_end)
    _rename_all(disk, directory, base, CLEANED_SUFFIX, SWAP_SUFFIX)
    disk.sync_directory(directory)
    retired = retire(disk, directory, old, kept_snapshot=base)
    _rename_all(disk, directory, base, SWAP_SUFFIX, "")
    disk.sync_directory(directory)
    segment = Segment(disk, directory, base)
    aborted = segment.transaction_index.path
    segment.load_sealed(disk.size_bytes(aborted) if disk.exists(aborted) else 0)
    return segment, retired


def remove_cleaned(disk: Disk, directory: Path) -> None:
    """Remove the files of a compaction that was stopped before step 2."""
    remove_retired(disk, [directory / name for name in disk.names(directory) if name.endswith(CLEANED_SUFFIX)])


def _rename_all(disk: Disk, directory: Path, base: int, source_suffix: str, target_suffix: str) -> None:
    for suffix in SEGMENT_SUFFIXES:
        name = file_name(base, suffix)
        source = directory / (name + source_suffix)
        if disk.exists(source):
            disk.rename(source, directory / (name + target_suffix))


def finish(disk: Disk, directory: Path) -> Mapping[str, int]:
    """Finish or discard every interrupted deletion and replacement, at the start before segments are loaded.

    Returns the sizes of the directory's files by name. Blocks; raises OSError. May be interrupted and called again.
    """
    names = disk.sizes(directory)
    if not any(name.endswith((CLEANED_SUFFIX, SWAP_SUFFIX, DELETED_SUFFIX)) for name in names):
        return names
    # After a mere kill the names with `.swap` may not be durable yet, and the old files are removed next.
    disk.sync_directory(directory)
    swapped = offsets_of((name.removesuffix(SWAP_SUFFIX) for name in names if name.endswith(SWAP_SUFFIX)), LOG_SUFFIX)
    for base in swapped:
        path = directory / (file_name(base, LOG_SUFFIX) + SWAP_SUFFIX)
        end = _offset_end(disk, directory, base)
        for suffix in SEGMENT_SUFFIXES:
            doomed = [offset for offset in offsets_of(names, suffix) if base <= offset < end]
            remove_retired(disk, [directory / file_name(offset, suffix) for offset in doomed])
        disk.sync_directory(directory)
        disk.rename(path, directory / file_name(base, LOG_SUFFIX))
        disk.sync_directory(directory)
    strays = [name for name in names if name.endswith((CLEANED_SUFFIX, SWAP_SUFFIX, DELETED_SUFFIX))]
    remove_retired(disk, [directory / name for name in strays])
    return disk.sizes(directory)


def _offset_end(disk: Disk, directory: Path, base: int) -> int:
    """Return the end offset of the segment in a `.swap` file; where it is damaged, recovery truncates it there."""
    segment = Segment(disk, directory, base, suffix=SWAP_SUFFIX)
    end = base + 1
    try:
        for _position, _size_bytes, last_offset in segment.spans(0, segment.size_bytes):
            end = last_offset + 1
    except CorruptBatch:
        return end
    return end


def read_compaction_end(disk: Disk, directory: Path) -> int:
    """Return the offset below which offsets may be missing. Raises DataDirectoryRefused, OSError."""
    path = directory / COMPACTION_END_FILE
    if not disk.exists(path):
        return 0
    content = read_file(disk, path).decode(errors="replace").split()
    if len(content) != 2 or content[0] != _VERSION or not content[1].isdecimal():
        raise DataDirectoryRefused(f"{path} is damaged: {content} is not version {_VERSION} and an offset")
    return int(content[1])


def write_compaction_end(disk: Disk, directory: Path, offset_end: int) -> None:
    """Let recovery accept missing offsets below `offset_end`. Blocks; raises OSError.

    The file is replaced even if it has that end: an earlier call may have failed to make it durable.
    """
    offset_end = max(offset_end, read_compaction_end(disk, directory))
    replace_file(disk, directory / COMPACTION_END_FILE, f"{_VERSION}\n{offset_end}\n".encode())
