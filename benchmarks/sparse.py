"""Log of a terabyte in a few gigabytes of disk: valid batches whose records are holes of zeros.

Each batch has one record of four million zero bytes. Only the bytes before the zeros are written, so a file system with
sparse files stores one block of it; every batch can be read with a right CRC-32C. The broker's own code writes the
indexes and snapshots, and they are synced together at the end.
"""

import os
import struct
import time
from pathlib import Path

from onceflow.log.config import LogConfig
from onceflow.log.disk import RealDisk, RealFile, write_whole
from onceflow.log.producers import Producers
from onceflow.log.segment import Segment
from onceflow.log.sync import write_snapshot
from onceflow.wire.batch import Record, encode_batch

SEGMENT_BATCHES = 250
VALUE_BYTES = 4_000_000
"""Together 1 GB: the default `segment.bytes` allows some small batches after them."""
BASE_OFFSET = struct.Struct(">q")


class UnsyncedFile(RealFile):
    """File without syncs: thousands of them take minutes; one for all suffices."""

    def sync_data(self) -> None:
        """Do nothing."""


class UnsyncedDisk(RealDisk):
    """Disk with files without syncs."""

    def open(self, path: Path, *, create: bool = False) -> UnsyncedFile:
        """Open a file."""
        return UnsyncedFile(os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o644))


def fill(directory: Path, segments: int) -> None:
    """Replace the empty log in `directory` by segments of 1 GB each; its broker has stopped."""
    disk = UnsyncedDisk()
    no_producers = Producers(directory.name, LogConfig()).snapshot()
    now_ms = int(time.time() * 1000)
    for number in range(segments):
        segment = Segment(disk, directory, number * SEGMENT_BATCHES, create=True)
        write_batches(segment, now_ms - segments + number)
        segment.index_max_timestamp()
        segment.write_indexes()
        write_snapshot(disk, directory, segment.base_offset, no_producers)
        segment.close()
    write_snapshot(disk, directory, segments * SEGMENT_BATCHES, no_producers)
    os.sync()


def write_batches(segment: Segment, timestamp_ms: int) -> None:
    """Write a segment's batches. Raises OSError if the file system stores holes."""
    batch = encode_batch([Record(0, timestamp_ms, None, bytes(VALUE_BYTES))], leader_epoch=0)
    head = batch.rstrip(b"\0")
    interval_bytes = LogConfig().index_interval_bytes
    for number in range(SEGMENT_BATCHES):
        offset, position = segment.base_offset + number, number * len(batch)
        BASE_OFFSET.pack_into(head, 0, offset)
        write_whole(segment.file, head, position)
        segment.index_batch(position, len(batch), offset, timestamp_ms, interval_bytes)
    segment.file.truncate(SEGMENT_BATCHES * len(batch))
    stored_bytes = 512 * segment.path.stat().st_blocks
    if stored_bytes > SEGMENT_BATCHES * len(batch) // 10:
        raise OSError(f"{segment.path} takes {stored_bytes} bytes: this file system stores holes")
