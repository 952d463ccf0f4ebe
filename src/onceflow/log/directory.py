"""The data directory of one broker.

    .lock                 locked by the running broker (flock); holds its process id as text
    meta.properties       Kafka's: version=1, cluster.id, node.id, directory.id
    .kafka_cleanshutdown  exists if the last broker synced and closed every log
    .reserve              space for a full disk (onceflow.log.reserve)
    log-start-offset-checkpoint, cleaner-offset-checkpoint, replication-offset-checkpoint
                          (onceflow.log.offset_checkpoint)
    TOPIC-N/              the log of one partition (onceflow.log.partition)
    TOPIC-N.ID-delete/    a log being deleted; after a crash the next start removes it

The clean-shutdown file is removed, durably, before anything is loaded (KAFKA-10471): a crash while loading must not
count as a clean shutdown.
"""

import fcntl
import logging
import os
import re
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID, uuid4

from onceflow.log.checkpoint import encode_uuid
from onceflow.log.disk import Disk, read_file, replace_file
from onceflow.log.errors import DataDirectoryRefused
from onceflow.log.offset_checkpoint import CLEANER_FILE, HIGH_WATERMARK_FILE, LOG_START_FILE, OffsetCheckpoint
from onceflow.remedies import Remedy
from onceflow.wire import TopicPartition

logger = logging.getLogger(__name__)

OWNER_ONLY = 0o700
"""Mode of a new data directory."""
_LOCK_FILE = ".lock"
_META_FILE = "meta.properties"
_CLEAN_FILE = ".kafka_cleanshutdown"
_DELETE_SUFFIX = "-delete"
UNKNOWN_NAMES_MAX = 5
"""Maximum number of names in a warning."""
_CLUSTER_ID = re.compile(r"[a-zA-Z0-9_-]{1,22}")
_PARTITION_NAME = re.compile(r"(?P<topic>[a-zA-Z0-9._-]{1,249})-(?P<partition>0|[1-9][0-9]{0,9})")


class DataDirectory:
    """A data directory that is locked until `close`."""

    def __init__(self, path: Path, disk: Disk, lock: int, properties: dict[str, str], *, clean: bool) -> None:
        self.path = path
        self.cluster_id = properties["cluster.id"]
        self.node_id = int(properties["node.id"])
        self.clean = clean
        """Whether the last broker synced and closed every log."""
        self.log_start_offsets = OffsetCheckpoint(disk, path / LOG_START_FILE)
        self.cleaner_offsets = OffsetCheckpoint(disk, path / CLEANER_FILE)
        self.high_watermarks = OffsetCheckpoint(disk, path / HIGH_WATERMARK_FILE)
        self._disk = disk
        self._lock = lock
        self._lock_path = str(path / _LOCK_FILE)
        self._lock_stat = os.fstat(lock)
        self._are_names_durable = True
        """Whether the last deletion of a log is durable."""

    @classmethod
    def open(cls, path: Path, *, disk: Disk, node_id: int = 1, cluster_id: str | None = None) -> "DataDirectory":
        """Lock the directory. Initialize a new one, with a new cluster id unless one is given.

        Raises DataDirectoryRefused where the directory is in use, damaged, or of another cluster or node; OSError.
        """
        _make_directories(disk, path)
        lock = _lock(path)
        try:
            properties = _read_or_create_meta(disk, path, node_id, cluster_id)
            clean = disk.exists(path / _CLEAN_FILE)
            if clean:
                disk.remove(path / _CLEAN_FILE)
                disk.sync_directory(path)
            directory = cls(path, disk, lock, properties, clean=clean)
            directory._finish_deletions()
        except BaseException:
            os.close(lock)
            raise
        return directory

    def partition_path(self, topic: str, partition: int) -> Path:
        return self.path / f"{topic}-{partition}"

    def partitions(self) -> Iterator[TopicPartition]:
        """Yield (topic, partition) of each log in the directory."""
        for name in self._disk.names(self.path):
            match = _PARTITION_NAME.fullmatch(name)
            if match is not None:
                yield match["topic"], int(match["partition"])

    @staticmethod
    def cluster_id_in(path: Path, disk: Disk) -> str | None:
        """Return the cluster of a data directory, None if it is new. Raises DataDirectoryRefused, OSError."""
        meta = path / _META_FILE
        return _parse_properties(meta, read_file(disk, meta))["cluster.id"] if disk.exists(meta) else None

    def delete_partition(self, topic: str, partition: int) -> None:
        """Delete a closed log. Once the rename is durable, the log cannot reappear."""
        path = self.partition_path(topic, partition)
        if not self._disk.exists(path):
            # An earlier call may have renamed it, and failed to make that durable.
            self._sync_names()
            return
        for offsets in (self.log_start_offsets, self.cleaner_offsets, self.high_watermarks):
            offsets.forget([(topic, partition)])
        doomed = path.with_name(f"{path.name[:200]}.{uuid4().hex}{_DELETE_SUFFIX}")
        self._disk.rename(path, doomed)
        self._are_names_durable = False
        self._sync_names()
        self._remove(doomed)

    def _sync_names(self) -> None:
        if not self._are_names_durable:
            self._disk.sync_directory(self.path)
            self._are_names_durable = True

    def lower_offsets(self, topic: str, partition: int, offset: int) -> None:
        """Store offsets of at most `offset`, before a follower removes what is there.

        Otherwise the next start would find them above the log's end, and what is copied there later would be removed,
        visible too early, or taken for compacted. Blocks; raises OSError.
        """
        for offsets in (self.log_start_offsets, self.cleaner_offsets, self.high_watermarks):
            offsets.lower({(topic, partition): offset})

    def _finish_deletions(self) -> None:
        for name in self._disk.names(self.path):
            if name.endswith(_DELETE_SUFFIX):
                self._remove(self.path / name)

    def _remove(self, directory: Path) -> None:
        for name in self._disk.names(directory):
            self._disk.remove(directory / name)
        self._disk.remove_directory(directory)

    def is_in_place(self) -> bool:
        """Return whether the directory is still at its path, with the lock that this broker holds. Any thread."""
        try:
            return os.path.samestat(os.stat(self._lock_path), self._lock_stat)
        except OSError:
            return False

    def close_descriptor(self) -> None:
        """Close the lock in a forked child, whose copy would keep the directory locked after the parent unlocks it."""
        os.close(self._lock)

    def close(self, *, clean: bool) -> None:
        """Unlock the directory; `clean` only after every log was closed without an error."""
        try:
            if clean:
                replace_file(self._disk, self.path / _CLEAN_FILE, b'{"version":0,"brokerEpoch":-1}')
        finally:
            os.close(self._lock)


def _make_directories(disk: Disk, path: Path) -> None:
    """Create the directories; sync each new one's parent. The data has all records and the keys of users."""
    missing = [parent for parent in (path, *path.parents) if not parent.exists()]
    for parent in (path, *path.parents):
        if parent.exists() and not parent.is_dir():
            raise DataDirectoryRefused(f"{parent} is a file, not a directory; {Remedy.OTHER_DATA}")
    os.makedirs(path, mode=OWNER_ONLY, exist_ok=True)
    for created in missing:
        disk.sync_directory(created.parent)


def _lock(path: Path) -> int:
    lock = os.open(path / _LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = os.read(lock, 20).decode(errors="replace").strip()
        os.close(lock)
        raise DataDirectoryRefused(
            f"{path} is in use by another broker (pid {holder or 'unknown'}); {Remedy.STOP_BROKER}, or "
            f"{Remedy.OTHER_DATA}"
        ) from error
    # This order needs no new block on a full disk.
    length = os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    os.ftruncate(lock, length)
    return lock


def _read_or_create_meta(disk: Disk, path: Path, node_id: int, cluster_id: str | None) -> dict[str, str]:
    meta = path / _META_FILE
    if not disk.exists(meta):
        _warn_of_unknown_files(disk, path)
        properties = {
            "version": "1",
            "cluster.id": cluster_id or new_id(),
            "node.id": str(node_id),
            "directory.id": new_id(),
        }
        text = "".join(f"{name}={value}\n" for name, value in properties.items())
        replace_file(disk, meta, text.encode())
        disk.sync_directory(path.parent)
        return properties
    properties = _parse_properties(meta, read_file(disk, meta))
    if cluster_id is not None and properties["cluster.id"] != cluster_id:
        raise DataDirectoryRefused(
            f"{path} belongs to cluster {properties['cluster.id']}, not to {cluster_id}; {Remedy.OTHER_DATA}"
        )
    if properties["node.id"] != str(node_id):
        raise DataDirectoryRefused(
            f"{path} belongs to node {properties['node.id']}, not to {node_id}; {Remedy.OTHER_DATA}"
        )
    return properties


def _warn_of_unknown_files(disk: Disk, path: Path) -> None:
    """Warn that the broker's files will be created in a directory with other content, which may be the wrong one."""
    names = [name for name in disk.names(path) if not name.startswith((".", _META_FILE)) and name != "lost+found"]
    if not names:
        return
    within = [str(path / name) for name in names if os.path.exists(path / name / _META_FILE)]
    logger.warning(
        "%s has no %s but contains %s%s; the broker creates its files beside them%s",
        path,
        _META_FILE,
        ", ".join(names[:UNKNOWN_NAMES_MAX]),
        " and more" if len(names) > UNKNOWN_NAMES_MAX else "",
        f"; {', '.join(within)} is a broker's data directory" if within else "",
    )


def _parse_properties(meta: Path, content: bytes) -> dict[str, str]:
    lines = (line.strip() for line in content.decode(errors="replace").splitlines())
    pairs = (line.partition("=") for line in lines if line and not line.startswith("#"))
    properties = {name.strip(): value.strip() for name, _, value in pairs}
    try:
        if not _CLUSTER_ID.fullmatch(properties["cluster.id"]):
            raise ValueError(f"cluster.id {properties['cluster.id']!r} is not a valid id")
        int(properties["node.id"])
        if properties["version"] != "1":
            raise ValueError(f"version {properties['version']} is not 1")
    except (KeyError, ValueError) as error:
        raise DataDirectoryRefused(
            f"{meta} is damaged: {error!r}; {Remedy.FIX_META}, or {Remedy.OTHER_DATA}"
        ) from error
    return properties


def new_id() -> str:
    """Return a random id that does not start with a minus sign, which a command line would parse as an option."""
    random = uuid4().bytes
    return encode_uuid(UUID(bytes=bytes([random[0] & 0x7F]) + random[1:]))
