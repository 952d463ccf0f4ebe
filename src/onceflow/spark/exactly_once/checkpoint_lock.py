"""One driver per checkpoint: a lock that lives exactly as long as the JVM that runs the query.

The JVM takes the lock, not Python: a driver whose Python was killed leaves a JVM that may run tasks for a moment, and
its successor must wait for that JVM to end. It is a POSIX record lock on `onceflow.lock` in the checkpoint, so the
kernel releases it with the process. It is also released when its process closes any other descriptor of the file, so
a process opens the file once at most: the sinks of one query share the lock, by name.

Other storage (HDFS, S3) has no such lock. There only the names are checked: two sinks of one name would mistake each
other's marker for their own.
"""

import contextlib
import fcntl
import logging
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError

from onceflow.errors import OnceflowError
from onceflow.remedies import Remedy
from onceflow.spark.exactly_once.checkpoint import java_class

_log = logging.getLogger(__name__)

FILE_NAME = "onceflow.lock"
WAIT_MS = 30_000
UNKNOWN = "an unknown process"
_POLL_S = 0.2

# Channels that must stay open: closing one would release a lock that its JVM holds through another.
_never_closed: list[Any] = []


class CheckpointInUse(OnceflowError):
    """Another driver, or another sink of this process, holds the checkpoint."""


class _Held:
    """The lock of one checkpoint, and the sinks of this process that share it. No file if storage has no locks."""

    def __init__(self, jvm: Any = None, java_file: Any = None) -> None:
        self.jvm = jvm
        # Java closes the file, and so releases the lock, once nothing refers to this object any more.
        self.java_file = java_file
        self.sinks: set[str] = set()


_held: dict[str, _Held] = {}


class CheckpointLock:
    """One sink's share in a lock."""

    def __init__(self, place: str, held: _Held, sink: str) -> None:
        self._place = place
        self._held = held
        self._sink = sink

    def release(self) -> None:
        """Release the share, and the lock with the last share; the JVM's end does the same."""
        self._held.sinks.discard(self._sink)
        if self._held.sinks:
            return
        if _held.get(self._place) is self._held:
            del _held[self._place]
        if self._held.java_file is not None:
            try:
                self._held.java_file.close()
            except (Py4JError, OSError) as error:
                _log.warning("the JVM of lock %s has ended, and the lock with it: %s", self._place, error)


def take_lock(
    session: Any, directory: Path, sink: str, *, wait_ms: int = WAIT_MS, sleep: Callable[[float], None] = time.sleep
) -> CheckpointLock:
    """Lock the checkpoint for the session's JVM, waiting up to `wait_ms` for another. Raises CheckpointInUse.

    Sinks of one process share the lock; each has its own name.
    """
    path = directory.absolute() / FILE_NAME
    held = _held.get(str(path))
    # A lock ends with its JVM, and a new session of this process may have a new JVM.
    if held is None or held.jvm is not session._jvm:
        _held[str(path)] = _Held(session._jvm, _locked(session, directory, path, wait_ms, sleep))
    return _share(str(path), str(directory), sink)


def take_name(location: str, sink: str) -> CheckpointLock:
    """Take only the sink's name, at a checkpoint whose storage has no locks. Raises CheckpointInUse."""
    _held.setdefault(location, _Held())
    return _share(location, location, sink)


def _share(place: str, checkpoint: str, sink: str) -> CheckpointLock:
    held = _held[place]
    if sink in held.sinks:
        raise CheckpointInUse(
            f"checkpoint {checkpoint} is in use by another sink of this process with the name {sink!r}: "
            f"{Remedy.CLOSE_SINK}, {Remedy.OTHER_NAME}, or {Remedy.CHECKPOINT_OF_ITS_OWN}"
        )
    held.sinks.add(sink)
    return CheckpointLock(place, held, sink)


def _locked(session: Any, directory: Path, path: Path, wait_ms: int, sleep: Callable[[float], None]) -> Any:
    """Return the lock file, locked by the JVM."""
    directory.mkdir(parents=True, exist_ok=True)
    java_file = java_class(session, "java.io.RandomAccessFile")(str(path), "rw")
    deadline = time.monotonic() + wait_ms / 1000
    is_logged = False
    while not _try_lock(java_file, directory):
        if time.monotonic() >= deadline:
            java_file.close()
            raise CheckpointInUse(
                f"{_in_use(path)}, after {wait_ms / 1000:g} s of waiting: {Remedy.END_PROCESS}, or "
                f"{Remedy.CHECKPOINT_OF_ITS_OWN}"
            )
        if not is_logged:
            _log.warning("%s; waiting up to %g s for its end", _in_use(path), wait_ms / 1000)
            is_logged = True
        try:
            sleep(_POLL_S)
        except BaseException:
            java_file.close()
            raise
    try:
        _write_holder(session, java_file)
    except BaseException:
        java_file.close()
        raise
    return java_file


def _in_use(path: Path) -> str:
    return f"checkpoint {path.parent} is in use by {path.read_text('utf-8').strip() or UNKNOWN}"


@contextlib.contextmanager
def without_driver(directory: Path) -> Iterator[None]:
    """Hold the checkpoint's lock without a JVM, to remove it. Raises CheckpointInUse at once if a driver runs."""
    path = directory.absolute() / FILE_NAME
    with path.open("a+", encoding="utf-8") as file:
        try:
            # The same kind of lock as Java's FileLock: the kernel keeps one table of both.
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.seek(0)
            holder = file.read().strip() or UNKNOWN
            raise CheckpointInUse(
                f"checkpoint {directory} is in use by {holder}: {Remedy.END_PROCESS} first"
            ) from error
        yield


def holder_of(directory: Path) -> str | None:
    """Return the process that holds the checkpoint's lock now; None if it is free. Nothing is changed."""
    try:
        with (directory / FILE_NAME).open(encoding="utf-8") as file:
            try:
                fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return file.read().strip() or UNKNOWN
            return None
    except FileNotFoundError:
        return None


def _try_lock(java_file: Any, directory: Path) -> bool:
    try:
        return java_file.getChannel().tryLock() is not None
    except Py4JJavaError as error:
        if "OverlappingFileLockException" not in str(error.java_exception.getClass().getName()):
            raise
        _never_closed.append(java_file)
        raise CheckpointInUse(
            f"checkpoint {directory} is in use by another query of this JVM: {Remedy.STOP_QUERY}, or "
            f"{Remedy.CHECKPOINT_OF_ITS_OWN}"
        ) from error


def _write_holder(session: Any, java_file: Any) -> None:
    pid = java_class(session, "java.lang.ProcessHandle").current().pid()
    java_file.setLength(0)
    java_file.writeBytes(f"JVM with pid {pid} on {socket.gethostname()}\n")
