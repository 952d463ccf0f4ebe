"""Disk that loses unsynced data, tears writes and fails on request."""

import errno
import random
import shutil
import sys
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias, TypeVar

from typing_extensions import Buffer

from onceflow.log.disk import File, RealDisk

FLIPPED_SUFFIXES = (".log", ".index", ".timeindex", ".txnindex", ".snapshot")

POWER_CUTS = "power cuts"
KILLS = "kills"
LOST_WRITES = "unsynced writes lost"
LOST_NAMES = "unsynced names lost"
TORN_WRITES = "writes torn"
ZEROED_WRITES = "writes zeroed"
FLIPPED_WRITES = "writes with a bit flipped"
FLIPPED_BITS = "bits flipped at rest"
ENOSPC = "ENOSPC"
EIO = "EIO of a file's sync"
EIO_DIRECTORY = "EIO of a directory's sync"
FAULTS = (
    POWER_CUTS,
    KILLS,
    LOST_WRITES,
    LOST_NAMES,
    TORN_WRITES,
    ZEROED_WRITES,
    FLIPPED_WRITES,
    FLIPPED_BITS,
    ENOSPC,
    EIO,
    EIO_DIRECTORY,
)
"""Events of a `FaultyDisk`, as its `faults` count them."""


class PowerCut(Exception):
    """The power is off: every change on a `FaultyDisk` raises this from the cut until `crash` or `kill`."""


class _FileNode:
    """A file: its durable bytes, and the pending writes (position, data) and truncations (size, None)."""

    def __init__(self, durable: bytes = b"") -> None:
        self.durable = bytearray(durable)
        self.pending: list[tuple[int, bytes | None]] = []
        self.size_bytes = len(durable)
        """Length visible to programs."""

    def change(self, position: int, data: bytes | None) -> None:
        """Record a write, or without data a truncation."""
        self.pending.append((position, data))
        self.size_bytes = position if data is None else max(self.size_bytes, position + len(data))

    def sync(self) -> None:
        for position, data in self.pending:
            _apply(self.durable, position, data)
        self.pending.clear()

    def crash(self, seed: random.Random, drop_all: bool, faults: Counter[str], *, may_flip: bool) -> None:
        survivors = [] if drop_all else _survivors(seed, self.pending)
        faults[LOST_WRITES] += len(self.pending) - len(survivors)
        for position, data in survivors:
            _apply(self.durable, position, data if data is None else _torn(seed, data, faults, may_flip=may_flip))
        self.pending.clear()
        self.size_bytes = len(self.durable)


class _DirectoryNode:
    """A directory: its durable names, those visible to programs, and the changes between the two."""

    def __init__(self) -> None:
        self.durable: dict[str, _Node] = {}
        self.live: dict[str, _Node] = {}
        self.pending: list[dict[str, _Node | None]] = []

    @property
    def size_bytes(self) -> int:
        """Return the size of all files in it."""
        return sum(node.size_bytes for node in self.live.values())

    def change(self, changes: dict[str, "_Node | None"]) -> None:
        """Apply one atomic change of names; None removes a name."""
        _rename(self.live, changes)
        self.pending.append(changes)

    def sync(self) -> None:
        self.durable = dict(self.live)
        self.pending.clear()

    def crash(self, seed: random.Random, drop_all: bool, faults: Counter[str]) -> None:
        survivors = [] if drop_all else _survivors(seed, self.pending)
        faults[LOST_NAMES] += len(self.pending) - len(survivors)
        for changes in survivors:
            _rename(self.durable, changes)
        self.live = dict(self.durable)
        self.pending.clear()
        for name, node in self.live.items():
            if isinstance(node, _FileNode):
                node.crash(seed, drop_all, faults, may_flip=name.endswith(FLIPPED_SUFFIXES))
            else:
                node.crash(seed, drop_all, faults)


_Node: TypeAlias = _FileNode | _DirectoryNode
_Change = TypeVar("_Change")


class FaultyDisk:
    """A `Disk` in its own directory `root` that can lose power and fail.

    Files are real ones (a descriptor can be given to sendfile). Beside them the disk keeps what would survive: a
    file's bytes and length as of its last `sync_data`, a directory's names as of its last `sync_directory`; neither
    does the other's work. `crash` puts `root` into a state that a power cut could have left: none, all, the first few
    or any selection of the unsynced writes, truncations, creations, renames and removals. A surviving write may be a
    first part, zeros only, or complete with one bit flipped. A bit is flipped only in a log's own files
    (`FLIPPED_SUFFIXES`): a small text file is one sector, which survives or not.
    """

    is_full = False

    def __init__(self, root: Path) -> None:
        self._root = root
        self._disk = RealDisk()
        self._lock = threading.Lock()
        self._tree = _read_tree(root)
        self._generation = 0
        self._off = False
        self._operations_left: int | None = None
        self._sync_failures = 0
        self._directory_sync_failures = 0
        self.faults: Counter[str] = Counter()
        """Count of each of `FAULTS`: a test checks that the faults it meant to inject happened."""
        self.operations = 0
        """Number of changes and syncs; `cut_power_after` counts the same."""
        self.space_bytes: int | None = None
        """Number of bytes that can be written before ENOSPC; at 0 nothing can be created either. None: no limit."""
        self.capacity_bytes: int | None = None
        """Total size of all files at which the disk is full; a removal frees space. None: no limit."""
        self.ignores_sync_data = False
        """Whether a file's sync does nothing, which simulates a forgotten fdatasync."""
        self.ignores_sync_directory = False

    def cut_power_after(self, operations: int) -> None:
        """Allow that many more changes and syncs; the next one raises PowerCut."""
        self._operations_left = operations

    def cut_power(self) -> None:
        """Turn the power off now: every later change and sync raises PowerCut."""
        with self._lock:
            self._off = True

    def fail_next_syncs(self, count: int = 1) -> None:
        """Make the next `count` file syncs raise EIO and, like a kernel, drop the writes that they were for."""
        self._sync_failures = count

    def fail_next_directory_syncs(self, count: int = 1) -> None:
        """Make the next `count` directory syncs raise EIO; their changes may or may not survive a crash."""
        self._directory_sync_failures = count

    @property
    def is_off(self) -> bool:
        """Whether the power is cut: responses that a broker still sends reach no client."""
        return self._off

    def durable_bytes(self, path: Path) -> int:
        """Return the number of durable bytes of a file; `flip_bit` can damage each of them."""
        return len(self._file(path).durable)

    def flip_bit(self, path: Path, position: int, bit: int = 0) -> None:
        """Damage a durable byte."""
        node = self._file(path)
        node.durable[position] ^= 1 << bit
        self.faults[FLIPPED_BITS] += 1
        file = self._disk.open(path)
        file.write(bytes([file.read(1, position)[0] ^ 1 << bit]), position)
        file.close()

    def crash(self, seed: int, *, drop_all: bool = False) -> None:
        """Turn the power off and on: `root` is rewritten, and files opened before raise PowerCut from now on."""
        with self._lock:
            self._generation += 1
            self._off = False
            self._operations_left = None
            self.faults[POWER_CUTS] += 1
            self._tree.crash(random.Random(seed), drop_all, self.faults)
            for entry in self._root.iterdir():
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
            _write_tree(self._tree, self._root)

    def kill(self) -> None:
        """Kill the program while the machine continues: written data is there, but still not durable."""
        with self._lock:
            self.faults[KILLS] += 1
            self._generation += 1
            self._off = False
            self._operations_left = None

    def open(self, path: Path, *, create: bool = False) -> File:
        with self._lock:
            name, parent = path.name, self._directory(path.parent)
            if create and name not in parent.live:
                self._step()
                self._require_room()
                parent.change({name: _FileNode()})
            return _FaultyFile(self, self._disk.open(path, create=create), self._file(path))

    def exists(self, path: Path) -> bool:
        return self._disk.exists(path)

    def size_bytes(self, path: Path) -> int:
        return self._disk.size_bytes(path)

    def names(self, directory: Path) -> Sequence[str]:
        return self._disk.names(directory)

    def sizes(self, directory: Path) -> Mapping[str, int]:
        return self._disk.sizes(directory)

    def make_directory(self, path: Path) -> None:
        with self._lock:
            self._step()
            self._require_room()
            self._disk.make_directory(path)
            self._directory(path.parent).change({path.name: _DirectoryNode()})

    def rename(self, source: Path, target: Path) -> None:
        if source.parent != target.parent:
            raise NotImplementedError(f"{source} to {target}: only names within one directory change together")
        with self._lock:
            self._step()
            self._disk.rename(source, target)
            parent = self._directory(source.parent)
            parent.change({source.name: None, target.name: parent.live[source.name]})

    def remove(self, path: Path) -> None:
        with self._lock:
            self._step()
            self._disk.remove(path)
            self._directory(path.parent).change({path.name: None})

    def remove_directory(self, path: Path) -> None:
        with self._lock:
            self._step()
            self._disk.remove_directory(path)
            self._directory(path.parent).change({path.name: None})

    def sync_directory(self, path: Path) -> None:
        with self._lock:
            self._step()
            if path == self._root.parent or self.ignores_sync_directory:
                return
            if self._directory_sync_failures:
                self._directory_sync_failures -= 1
                self.faults[EIO_DIRECTORY] += 1
                raise OSError(errno.EIO, "the faulty disk could not sync a directory")
            self._directory(path).sync()

    def allocate(self, path: Path, size_bytes: int) -> None:
        with self._lock:
            self._step()
            held = self._directory(path.parent).live.get(path.name)
            held_bytes = held.size_bytes if held is not None else 0
            if self._room_bytes() < size_bytes - held_bytes:
                raise self._no_space()
        file = self.open(path, create=True)
        if held_bytes < size_bytes:
            self._use(size_bytes - held_bytes)
            file.truncate(size_bytes)
        file.close()

    def free_bytes(self, directory: Path) -> int:
        with self._lock:
            return self._room_bytes()

    def release_reserve(self, error: OSError) -> bool:
        return False

    def _room_bytes(self) -> int:
        room_bytes = self.space_bytes if self.space_bytes is not None else sys.maxsize
        if self.capacity_bytes is not None:
            room_bytes = min(room_bytes, max(0, self.capacity_bytes - self._tree.size_bytes))
        return room_bytes

    def _use(self, size_bytes: int) -> None:
        if self.space_bytes is not None:
            self.space_bytes -= size_bytes

    def _require_room(self) -> None:
        if not self._room_bytes():
            raise self._no_space()

    def _take(self, node: _FileNode, position: int, data: bytes) -> bytes:
        """Return the first bytes of a write that fit on the disk. Raises OSError if none do."""
        taken = data
        if self.space_bytes is not None:
            taken = taken[: self.space_bytes]
        if self.capacity_bytes is not None:
            taken = taken[: max(0, node.size_bytes - position) + self._room_bytes()]
        if data and not taken:
            raise self._no_space()
        self._use(len(taken))
        return taken

    def _no_space(self) -> OSError:
        self.faults[ENOSPC] += 1
        return OSError(errno.ENOSPC, "no space left on the faulty disk")

    def _step(self) -> None:
        """Count a change or sync that is about to happen."""
        if self._operations_left == 0:
            self._off = True
        if self._off:
            raise PowerCut(f"{self._root}: the power is off")
        self.operations += 1
        if self._operations_left is not None:
            self._operations_left -= 1

    def _directory(self, path: Path) -> _DirectoryNode:
        node: _Node = self._tree
        for name in path.relative_to(self._root).parts:
            if not isinstance(node, _DirectoryNode) or name not in node.live:
                raise FileNotFoundError(errno.ENOENT, "no such directory", str(path))
            node = node.live[name]
        if not isinstance(node, _DirectoryNode):
            raise NotADirectoryError(errno.ENOTDIR, "a file", str(path))
        return node

    def _file(self, path: Path) -> _FileNode:
        node = self._directory(path.parent).live.get(path.name)
        if not isinstance(node, _FileNode):
            raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
        return node


class _FaultyFile:
    """A real file whose changes are recorded; unusable after its disk's next crash."""

    def __init__(self, disk: FaultyDisk, file: File, node: _FileNode) -> None:
        self._disk = disk
        self._file = file
        self._node = node
        self._generation = disk._generation

    def fileno(self) -> int:
        return self._file.fileno()

    def size_bytes(self) -> int:
        return self._file.size_bytes()

    def read(self, size_bytes: int, position: int) -> bytes:
        self._require_power()
        return self._file.read(size_bytes, position)

    def mapped(self) -> memoryview:
        return memoryview(self.read(self.size_bytes(), 0))

    def write(self, data: Buffer, position: int) -> int:
        with self._disk._lock:
            self._require_power()
            self._disk._step()
            content = self._disk._take(self._node, position, bytes(data))
            self._node.change(position, content)
            return self._file.write(content, position)

    def truncate(self, size_bytes: int) -> None:
        with self._disk._lock:
            self._require_power()
            self._disk._step()
            self._node.change(size_bytes, None)
            self._file.truncate(size_bytes)

    def sync_data(self) -> None:
        with self._disk._lock:
            self._require_power()
            self._disk._step()
            if self._disk._sync_failures:
                self._disk._sync_failures -= 1
                self._disk.faults[EIO] += 1
                self._node.pending.clear()
                raise OSError(errno.EIO, "the faulty disk could not sync")
            if not self._disk.ignores_sync_data:
                self._node.sync()

    def is_removed(self) -> bool:
        return self._file.is_removed()

    def close(self) -> None:
        self._file.close()

    def _require_power(self) -> None:
        if self._generation != self._disk._generation:
            raise PowerCut("this file was opened before the crash or the kill")


def _survivors(seed: random.Random, pending: list[_Change]) -> list[_Change]:
    """Return a selection of unsynced changes: none, all, the first few, or any."""
    match seed.randrange(4):
        case 0:
            return []
        case 1:
            return list(pending)
        case 2:
            return pending[: seed.randrange(len(pending) + 1)]
        case _:
            return [change for change in pending if seed.random() < 0.5]


def _torn(seed: random.Random, data: bytes, faults: Counter[str], *, may_flip: bool) -> bytes:
    """Return a surviving write: mostly whole, sometimes a first part, its length alone, or whole with one bit
    flipped."""
    match seed.randrange(8):
        case 0:
            faults[TORN_WRITES] += 1
            return data[: seed.randrange(len(data) + 1)]
        case 1:
            faults[ZEROED_WRITES] += 1
            return bytes(len(data))
        case 2 if data and may_flip:
            faults[FLIPPED_WRITES] += 1
            flipped = bytearray(data)
            flipped[seed.randrange(len(data))] ^= 1 << seed.randrange(8)
            return bytes(flipped)
        case _:
            return data


def _apply(content: bytearray, position: int, data: bytes | None) -> None:
    if len(content) < position:
        content.extend(bytes(position - len(content)))
    if data is None:
        del content[position:]
    else:
        content[position : position + len(data)] = data


def _rename(names: dict[str, _Node], changes: dict[str, _Node | None]) -> None:
    for name, node in changes.items():
        if node is None:
            names.pop(name, None)
        else:
            names[name] = node


def _read_tree(path: Path) -> _DirectoryNode:
    directory = _DirectoryNode()
    for entry in path.iterdir():
        directory.live[entry.name] = _read_tree(entry) if entry.is_dir() else _FileNode(entry.read_bytes())
    directory.sync()
    return directory


def _write_tree(directory: _DirectoryNode, path: Path) -> None:
    for name, node in directory.live.items():
        if isinstance(node, _DirectoryNode):
            (path / name).mkdir()
            _write_tree(node, path / name)
        else:
            (path / name).write_bytes(node.durable)
