"""A log that amounts to a terabyte and takes a few gigabytes of disk: valid batches whose records are holes of zeros.

Each batch has one record of four million zero bytes. Only what stands before the zeros is written, so a file system
that knows holes stores one block of it; read back, every batch is whole and its CRC-32C right. The indexes and
snapshots are written by the broker's own code, as it would have written them, and synced together at the end.
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
"""Together 1 GB: the default `segment.bytes` leaves room for some small batches behind."""
BASE_OFFSET = struct.Struct(">q")


class UnsyncedFile(RealFile):
    """A sync for each of thousands of files takes minutes; one for all does it."""

    def sync_data(self) -> None:
        """Later."""


class UnsyncedDisk(RealDisk):
    """Opens such files."""

    def open(self, path: Path, *, create: bool = False) -> UnsyncedFile:
        """As RealDisk does."""
        return UnsyncedFile(os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o644))


def fill(directory: Path, segments: int) -> None:
    """Put segments of 1 GB each in the place of the empty log in `directory`, whose broker has stopped."""
    disk = UnsyncedDisk()
    nobody = Producers(directory.name, LogConfig()).snapshot().encode()
    now_ms = int(time.time() * 1000)
    for number in range(segments):
        segment = Segment(disk, directory, number * SEGMENT_BATCHES, create=True)
        write_batches(segment, now_ms - segments + number)
        segment.index_max_timestamp()
        segment.write_indexes()
        write_snapshot(disk, directory, segment.base_offset, nobody)
        segment.close()
    write_snapshot(disk, directory, segments * SEGMENT_BATCHES, nobody)
    os.sync()


def write_batches(segment: Segment, timestamp_ms: int) -> None:
    """One segment's. Raises OSError where the file system stores holes."""
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
