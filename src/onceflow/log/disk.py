"""File operations of log and broker. They all go through a `Disk`, so that a test can substitute a faulty one.

The layer is as thin as the hot path needs: one method call per system call, no buffering, errors are `OSError`. Two
calls alone determine what survives a power cut. `File.sync_data` makes a file's bytes and length durable.
`Disk.sync_directory` makes the names in a directory durable (creations, renames, removals). Neither does the other's
work.
"""

import errno
import fcntl
import mmap
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from typing_extensions import Buffer


class SyncNotBegun(OSError):
    """The directory could not be opened for its sync. The kernel dropped nothing, so the sync can be retried."""


class File(Protocol):
    """One open file, read and written at explicit positions."""

    def fileno(self) -> int:
        """Return the descriptor, for sendfile."""
        ...

    def size_bytes(self) -> int: ...

    def read(self, size_bytes: int, position: int) -> bytes:
        """Return up to `size_bytes` from `position`; fewer only at the end of the file."""
        ...

    def mapped(self) -> memoryview:
        """Map the bytes of a file that no longer changes. The mapping lives as long as the view."""
        ...

    def write(self, data: Buffer, position: int) -> int:
        """Write once; return the number of bytes written, which may be fewer when the disk is full."""
        ...

    def truncate(self, size_bytes: int) -> None: ...

    def sync_data(self) -> None:
        """Make the bytes and the length durable (fdatasync)."""
        ...

    def is_removed(self) -> bool:
        """Return whether no directory names the file any more: what is written to it is lost when it is closed."""
        ...

    def close(self) -> None: ...


class Disk(Protocol):
    """Files and directories by path."""

    def open(self, path: Path, *, create: bool = False) -> File:
        """Open for reading and writing; `create` creates an empty file if there is none."""
        ...

    def exists(self, path: Path) -> bool:
        """Return whether the path exists. Raises OSError where that is unknown."""
        ...

    def size_bytes(self, path: Path) -> int:
        """Return the size of a file without opening it."""
        ...

    def names(self, directory: Path) -> Sequence[str]:
        """Return the names in a directory, sorted."""
        ...

    def sizes(self, directory: Path) -> Mapping[str, int]:
        """Return the size of each file in a directory by its name, in the order of the names. A size is read when it is
        used: a terabyte's log has a thousand files whose sizes a start does not need."""
        ...

    def make_directory(self, path: Path) -> None: ...

    def rename(self, source: Path, target: Path) -> None: ...

    def remove(self, path: Path) -> None: ...

    def remove_directory(self, path: Path) -> None: ...

    def sync_directory(self, path: Path) -> None:
        """Make the names in the directory durable. Raises SyncNotBegun, or another OSError, which is final."""
        ...

    def allocate(self, path: Path, size_bytes: int) -> None:
        """Create or extend a file to that size with all its blocks. Raises OSError and leaves it as before."""
        ...

    def free_bytes(self, directory: Path) -> int:
        """Return the number of bytes that can still be written to the directory's file system."""
        ...

    @property
    def is_full(self) -> bool:
        """Whether the last free space is reserved for writes other than clients' (`onceflow.log.reserve`)."""
        ...

    def release_reserve(self, error: OSError) -> bool:
        """Release the reserve if `error` says that the disk is full. Return whether to retry the failed call."""
        ...


class RealFile:
    """A file of the operating system.

    The descriptor is closed with the last reference: a segment can be deleted while a slice of it is being sent, and
    the number must not name another file meanwhile.
    """

    __slots__ = ("_descriptor",)

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def __del__(self) -> None:
        self.close()

    def fileno(self) -> int:
        return self._descriptor

    def size_bytes(self) -> int:
        return os.fstat(self._descriptor).st_size

    def read(self, size_bytes: int, position: int) -> bytes:
        data = os.pread(self._descriptor, size_bytes, position)
        if len(data) == size_bytes or not data:
            return data
        # Linux returns at most 2 GiB at once, and a signal may interrupt a read.
        return data + self.read(size_bytes - len(data), position + len(data))

    def mapped(self) -> memoryview:
        if not self.size_bytes():
            return memoryview(b"")
        return memoryview(mmap.mmap(self._descriptor, 0, access=mmap.ACCESS_READ))

    def write(self, data: Buffer, position: int) -> int:
        return os.pwrite(self._descriptor, data, position)

    def truncate(self, size_bytes: int) -> None:
        os.ftruncate(self._descriptor, size_bytes)

    def sync_data(self) -> None:
        _sync_data(self._descriptor)

    def is_removed(self) -> bool:
        return not os.fstat(self._descriptor).st_nlink

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class _Sizes(Mapping[str, int]):
    """Sizes by name. The names are those at the time of construction."""

    def __init__(self, directory: Path) -> None:
        self._directory = str(directory)
        self._sizes: dict[str, int | None] = dict.fromkeys(sorted(os.listdir(directory)))

    def __getitem__(self, name: str) -> int:
        size_bytes = self._sizes[name]
        if size_bytes is None:
            size_bytes = self._sizes[name] = os.stat(f"{self._directory}/{name}").st_size
        return size_bytes

    def __contains__(self, name: object) -> bool:
        return name in self._sizes

    def __iter__(self) -> Iterator[str]:
        return iter(self._sizes)

    def __len__(self) -> int:
        return len(self._sizes)


class RealDisk:
    """The operating system's files. There is no reserve for a full disk."""

    is_full = False

    def release_reserve(self, error: OSError) -> bool:
        return False

    def open(self, path: Path, *, create: bool = False) -> RealFile:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        return RealFile(os.open(path, flags, 0o644))

    def exists(self, path: Path) -> bool:
        # os.path.exists would return False for a disk that fails.
        try:
            os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def size_bytes(self, path: Path) -> int:
        return os.stat(path).st_size

    def names(self, directory: Path) -> Sequence[str]:
        return sorted(os.listdir(directory))

    def sizes(self, directory: Path) -> Mapping[str, int]:
        return _Sizes(directory)

    def make_directory(self, path: Path) -> None:
        os.mkdir(path)

    def rename(self, source: Path, target: Path) -> None:
        os.replace(source, target)

    def remove(self, path: Path) -> None:
        os.unlink(path)

    def remove_directory(self, path: Path) -> None:
        os.rmdir(path)

    def sync_directory(self, path: Path) -> None:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise SyncNotBegun(error.errno, error.strerror, str(path)) from error
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def allocate(self, path: Path, size_bytes: int) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_CREAT, 0o644)
        try:
            held_bytes = os.fstat(descriptor).st_size
            try:
                _allocate(descriptor, size_bytes)
            except OSError:
                # Blocks may be allocated beyond the end, which a truncation need not free.
                os.ftruncate(descriptor, held_bytes)
                if not held_bytes:
                    os.unlink(path)
                raise
        finally:
            os.close(descriptor)

    def free_bytes(self, directory: Path) -> int:
        status = os.statvfs(directory)
        return status.f_bavail * status.f_frsize


_CANNOT_ALLOCATE = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS, errno.ENODEV)


def _allocate(descriptor: int, size_bytes: int) -> None:
    """Allocate all blocks. Write zeros where the system (macOS) or the file system cannot allocate: extending a file
    allocates none."""
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(descriptor, 0, size_bytes)
        except OSError as error:
            if error.errno not in _CANNOT_ALLOCATE:
                raise
        else:
            return
    for position in range(0, size_bytes, 1024 * 1024):
        data = bytes(min(1024 * 1024, size_bytes - position))
        if os.pwrite(descriptor, data, position) < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _sync_data(descriptor: int) -> None:
    if sys.platform == "darwin":
        # macOS has no fdatasync, and its fsync stops at the drive's cache.
        fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
    else:
        os.fdatasync(descriptor)


def modified_ms(path: Path) -> int:
    """Return when a file was last modified, in milliseconds since 1970."""
    return os.stat(path).st_mtime_ns // 1_000_000


def read_file(disk: Disk, path: Path) -> bytes:
    """Return the content of a small file."""
    file = disk.open(path)
    try:
        return file.read(file.size_bytes(), 0)
    finally:
        file.close()


def write_file(disk: Disk, path: Path, data: Buffer, *, is_durable: bool = True) -> None:
    """Overwrite a file in place and make it durable; its name is durable after `sync_directory`.

    A crash may leave it torn, so this is for files with a checksum and files that can be rebuilt. On a full disk the
    write is retried with the reserve.
    """
    try:
        _write_file(disk, path, data, is_durable=is_durable)
    except OSError as error:
        if not disk.release_reserve(error):
            raise
        _write_file(disk, path, data, is_durable=is_durable)


def _write_file(disk: Disk, path: Path, data: Buffer, *, is_durable: bool) -> None:
    file = disk.open(path, create=True)
    try:
        held_bytes = file.size_bytes()
        write_whole(file, data, 0)
        if held_bytes > memoryview(data).nbytes:
            file.truncate(memoryview(data).nbytes)
        if is_durable:
            file.sync_data()
    finally:
        file.close()


def replace_file(disk: Disk, path: Path, data: Buffer) -> None:
    """Write a small file so that a crash leaves either the old content or the new, and sync its directory."""
    fresh = path.with_name(path.name + ".tmp")
    write_file(disk, fresh, data)
    disk.rename(fresh, path)
    disk.sync_directory(path.parent)


def write_whole(file: File, data: Buffer, position: int) -> None:
    """Write all of `data`. Raises OSError when the disk accepts none of it."""
    view = memoryview(data).cast("B")
    while view:
        written_bytes = file.write(view, position)
        if not written_bytes:
            raise OSError(f"the disk accepted none of {len(view)} bytes")
        position += written_bytes
        view = view[written_bytes:]


def remove_if_there(disk: Disk, path: Path) -> None:
    """Remove a file if it exists; durable after `sync_directory`."""
    if disk.exists(path):
        disk.remove(path)
