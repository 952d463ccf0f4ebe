"""Disk space reserved for operations that must succeed on a full disk.

`.reserve` in the data directory is a file with allocated blocks. A deletion, a marker, a checkpoint or a record of the
broker's own may fail because the disk is full. Then the file is removed and the failed call is retried. From then on
`is_full` is true and clients' records are refused before they reach the disk, so the space stays available for its
purpose. `refill` allocates the file again once enough space is free.

Configuration changes, which a client may repeat without limit, leave half of the released space (`leaves_half`): a
deletion takes little, and there are as many as topics.

Two kinds of writes never use the reserve: clients' records, which check `is_full`, and data that grows without its own
limit (new topics, compaction), which is written through `unreserved`.
"""

import errno
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from onceflow.log.disk import Disk, File, remove_if_there
from onceflow.remedies import Remedy

logger = logging.getLogger(__name__)

RESERVE_FILE = ".reserve"

_FULL = (errno.ENOSPC, errno.EDQUOT)

Result = TypeVar("Result")


class ReservedDisk:
    """A disk with a reserve in one data directory. Any thread."""

    def __init__(self, unreserved: Disk, directory: Path, size_bytes: int) -> None:
        self.unreserved = unreserved
        self.is_full = False
        """Whether the reserve is released: only writes that may use it are accepted."""
        self._path = directory / RESERVE_FILE
        self._size_bytes = size_bytes
        self._lock = threading.Lock()

    def fill(self) -> None:
        """Allocate the reserve at the start, or release a smaller one. Raises OSError for an unreadable directory."""
        with self._lock:
            held_bytes = self.unreserved.size_bytes(self._path) if self.unreserved.exists(self._path) else 0
            if held_bytes > self._size_bytes:
                self.unreserved.remove(self._path)
            if not self._allocate():
                remove_if_there(self.unreserved, self._path)
                self._set_full()

    def refill(self) -> None:
        """Allocate a released reserve if enough space is free. Raises OSError where that is unknown."""
        with self._lock:
            if self.is_full and self.unreserved.free_bytes(self._path.parent) >= self._size_bytes and self._allocate():
                self.is_full = False
                logger.info("%s is allocated again; clients' records are accepted", self._path)

    def _allocate(self) -> bool:
        try:
            if self._size_bytes:
                self.unreserved.allocate(self._path, self._size_bytes)
        except OSError as error:
            if error.errno not in _FULL:
                raise
            return False
        return True

    def release_reserve(self, error: OSError) -> bool:
        """Release the reserve if `error` says that the disk is full. Return whether to retry the failed call."""
        if error.errno not in _FULL:
            return False
        with self._lock:
            if self.is_full or not self._size_bytes:
                # Another thread may have released it after this call had failed.
                return self.is_full
            self.unreserved.remove(self._path)
            self._set_full()
            return True

    def leaves_half(self) -> bool:
        """Return whether at least half of the reserve is available, allocated or free."""
        return not self.is_full or 2 * self.unreserved.free_bytes(self._path.parent) >= self._size_bytes

    def _set_full(self) -> None:
        self.is_full = True
        logger.error(
            "the disk of %s is full; clients' records are refused until %d bytes are free; %s, or %s",
            self._path.parent,
            self._size_bytes,
            Remedy.FREE_DISK,
            Remedy.DELETE_SOME,
        )

    def _with_reserve(self, call: Callable[[], Result]) -> Result:
        try:
            return call()
        except OSError as error:
            if not self.release_reserve(error):
                raise
            return call()

    # Calls that may use the reserve

    def open(self, path: Path, *, create: bool = False) -> File:
        if create:
            return self._with_reserve(lambda: self.unreserved.open(path, create=True))
        return self.unreserved.open(path)

    def make_directory(self, path: Path) -> None:
        self._with_reserve(lambda: self.unreserved.make_directory(path))

    def rename(self, source: Path, target: Path) -> None:
        self._with_reserve(lambda: self.unreserved.rename(source, target))

    # Calls that need no space

    def exists(self, path: Path) -> bool:
        return self.unreserved.exists(path)

    def size_bytes(self, path: Path) -> int:
        return self.unreserved.size_bytes(path)

    def names(self, directory: Path) -> Sequence[str]:
        return self.unreserved.names(directory)

    def sizes(self, directory: Path) -> Mapping[str, int]:
        return self.unreserved.sizes(directory)

    def remove(self, path: Path) -> None:
        self.unreserved.remove(path)

    def remove_directory(self, path: Path) -> None:
        self.unreserved.remove_directory(path)

    def sync_directory(self, path: Path) -> None:
        self.unreserved.sync_directory(path)

    def allocate(self, path: Path, size_bytes: int) -> None:
        self.unreserved.allocate(path, size_bytes)

    def free_bytes(self, directory: Path) -> int:
        return self.unreserved.free_bytes(directory)
