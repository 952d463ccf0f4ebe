"""Micro-batches as Spark's checkpoint defines them, synced to disk before they are written.

Spark writes `metadata` (the query id), `offsets/k` before batch k and `commits/k` after it, and syncs none of them.
After a power cut `offsets/k` may be lost while the sink holds batch k: Spark would plan k again with other offsets.
So `LocalCheckpoint.prepare(k)` syncs the files that batch k rests on before anything of it is written.

`offsets/k` is text: the line `v1`, one line of Spark's own metadata, then one line of offsets per source (the format
is in `onceflow.spark.offsets`; `-` for a source without offsets).
"""

import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from onceflow.errors import OnceflowError
from onceflow.remedies import Remedy
from onceflow.spark import offsets
from onceflow.spark.exactly_once.batch import NO_BATCH, Batch

_NO_OFFSETS = "-"
_PATH = "org.apache.hadoop.fs.Path"
METADATA = "metadata"
"""File with the query's id."""
_TEMPORARY = re.compile(r"/temporary-[0-9a-f-]{36}$")
"""Directory that Spark creates for a query without checkpointLocation."""
TORN = "onceflow.torn"
"""Folder for files torn by a power cut."""
STATE = "state"
"""Folder that only stateful queries have."""


class CheckpointUnreadable(OnceflowError):
    """The checkpoint lacks a file that Spark has already written, or holds one that this version cannot read."""


class CheckpointNotSynced(OnceflowError):
    """The file system failed to sync the checkpoint to disk."""


def java_class(session: Any, name: str) -> Any:
    """Return a class of the session's JVM by its full name.

    `jvm.java.io.File` asks the JVM whether `java` and `java.io` are classes, and it searches all of Spark's jars for
    them, twenty times as long as for the class.
    """
    return getattr(session._jvm, name)


def other_query(session: Any, checkpoint: "Checkpoint") -> str | None:
    """Return the message for a sink called by another query than its checkpoint's; None if it is the same query."""
    running = session.sparkContext.getLocalProperty("sql.streaming.queryId")
    if running is None or running == checkpoint.query_id():
        return None
    queries = session._jsparkSession.sharedState().activeStreamingQueries()
    used = queries.get(java_class(session, "java.util.UUID").fromString(running)).resolvedCheckpointRoot()
    if _TEMPORARY.search(used):
        remedy = Remedy.ADD_CHECKPOINT.format(location=checkpoint.location)
        return f"query {running} has no checkpointLocation: {remedy}"
    return (
        f"query {running} has the checkpointLocation {used} and its sink has {checkpoint.location}: "
        f"{Remedy.OWN_CHECKPOINT}"
    )


class Checkpoint:
    """Reader of one query's checkpoint. Subclasses know where its files are."""

    location: str

    def read_text(self, name: str) -> str | None:
        """Return the content of the file `name`, such as `offsets/7`; None if it does not exist."""
        raise NotImplementedError

    def names(self, folder: str) -> list[str]:
        """Return the names of the files in a folder of the checkpoint; none if it does not exist."""
        raise NotImplementedError

    def prepare(self, number: int) -> None:
        """Sync the files that batch `number` rests on, as far as this kind of storage allows."""
        raise NotImplementedError

    def set_aside(self, name: str) -> str:
        """Rename the file `name` so that Spark does not see it; return its new name.

        Raises CheckpointUnreadable if the storage itself decides what survives a power cut.
        """
        raise CheckpointUnreadable(f"{self.location}/{name} cannot be read: {Remedy.RESTORE_FILE}")

    def query_id(self) -> str | None:
        """Return the query's id; None for a checkpoint that no query has used yet."""
        text = self.read_text(METADATA)
        if text is None:
            return None
        try:
            return str(json.loads(text)["id"])
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointUnreadable(f"{self.location}/{METADATA} has no query id, but {text[:80]!r}") from error

    @property
    def is_stateful(self) -> bool:
        """Whether the query keeps state; known once it has had a batch with rows."""
        return bool(self.names(STATE))

    def newest_batch(self, folder: str) -> int:
        """Return the number of the newest batch in `offsets` (planned) or `commits` (finished); -1 if there is none."""
        return max((int(name) for name in self.names(folder) if name.isdecimal()), default=NO_BATCH)

    def batch(self, number: int, *, plan: str, plan_version: int) -> Batch:
        """Return the batch that Spark plans as `number`, from `offsets/number` and the file before.

        Raises CheckpointUnreadable and offsets.MalformedOffsets (a source that is not ours).
        """
        query = self.query_id()
        if query is None:
            raise CheckpointUnreadable(f"{self.location} has no metadata: {Remedy.OWN_CHECKPOINT}")
        ends = self._source_lines(number)
        starts: list[str | None] = list(self._source_lines(number - 1)) if number > 0 else [None] * len(ends)
        if len(starts) != len(ends):
            raise CheckpointUnreadable(
                f"{self.location}/offsets/{number} has {len(ends)} sources and the batch before has {len(starts)}: a "
                f"query's sources cannot change; {Remedy.NEW_CHECKPOINT}"
            )
        ranges: list[offsets.OffsetRange] = []
        topic_ids: dict[str, str] = {}
        restarts: list[offsets.Loss] = []
        for start_line, end_line in zip(starts, ends, strict=True):
            if end_line == _NO_OFFSETS:
                continue
            if start_line == _NO_OFFSETS:
                raise CheckpointUnreadable(
                    f"{self.location}/offsets/{number}: a source appears that had no offsets in the batch before, so "
                    f"its first offset is unknown; {Remedy.NEW_CHECKPOINT}"
                )
            start = None if start_line is None else self._parsed(number - 1, start_line)
            end = self._parsed(number, end_line)
            topic_ids |= end.topic_ids
            ranges += offsets.ranges(start, end)
            restarts += [] if start is None else offsets.restarts(start, end)
        self._refuse_topic_twice(number, ranges)
        return Batch(query, number, tuple(sorted(ranges)), plan, plan_version, topic_ids, tuple(restarts))

    def _parsed(self, number: int, line: str) -> offsets.Offsets:
        try:
            return offsets.parse(line)
        except offsets.MalformedOffsets as error:
            raise offsets.MalformedOffsets(
                f"{self.location}/offsets/{number} is damaged, or of a source other than format('onceflow'), which "
                f"every source of a sink's query must be: {Remedy.ROWS_THROUGH_KAFKA} ({error})"
            ) from error

    def reached(self, number: int) -> offsets.Offsets:
        """Return the end of batch `number` for every source. Raises CheckpointUnreadable, offsets.MalformedOffsets."""
        ends = [self._parsed(number, line) for line in self._source_lines(number) if line != _NO_OFFSETS]
        return offsets.Offsets(
            {topic: partitions for end in ends for topic, partitions in end.by_topic.items()},
            {topic: topic_id for end in ends for topic, topic_id in end.topic_ids.items()},
        )

    def _source_lines(self, number: int) -> list[str]:
        text = self.read_text(f"offsets/{number}")
        lines = (text or "").splitlines()
        if len(lines) < 3 or lines[0] != "v1":
            content = "missing" if text is None else repr(text[:40])
            raise CheckpointUnreadable(
                f"{self.location}/offsets/{number} is {content}; expected version v1, metadata and one line per "
                f"source: {Remedy.OWN_CHECKPOINT}"
            )
        return lines[2:]

    def _refuse_topic_twice(self, number: int, ranges: list[offsets.OffsetRange]) -> None:
        partitions = [(part.topic, part.partition) for part in ranges]
        if len(set(partitions)) < len(partitions):
            topics = sorted({topic for topic, _ in partitions})
            raise CheckpointUnreadable(
                f"{self.location}/offsets/{number}: two sources of the query read {', '.join(topics)}; "
                f"{Remedy.ONE_SOURCE_PER_TOPIC}"
            )


def sync_path(path: Path) -> None:
    """Call fsync on one file or directory."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class LocalCheckpoint(Checkpoint):
    """A checkpoint on a file system of the driver's machine."""

    def __init__(self, directory: Path, *, sync: Callable[[Path], None] = sync_path) -> None:
        self.directory = directory.absolute()
        self.location = str(self.directory)
        self._sync = sync
        self._state_synced: set[Path] = set()
        self._ancestors_synced = False

    def read_text(self, name: str) -> str | None:
        try:
            return (self.directory / name).read_text("utf-8", "surrogateescape")
        except FileNotFoundError:
            return None

    def names(self, folder: str) -> list[str]:
        try:
            return os.listdir(self.directory / folder)
        except FileNotFoundError:
            return []

    def prepare(self, number: int) -> None:
        """Sync `metadata`, `offsets/number`, the commit and the state of the batch before, and their directories.

        Raises CheckpointNotSynced, and CheckpointUnreadable if a file is missing: nothing may be written then.
        """
        try:
            self._sync_batch(number)
        except OSError as error:
            raise CheckpointNotSynced(
                f"{self.directory} could not be synced to disk ({error}); batch {number} was not written: "
                f"{Remedy.LOOK_AT_DISK}, then {Remedy.START_AGAIN}"
            ) from error

    def _sync_batch(self, number: int) -> None:
        names = [METADATA, f"offsets/{number}"]
        # A power cut may have lost the commit and kept the offsets; the marker then says what was written.
        commit = f"commits/{number - 1}"
        names += [commit] if (self.directory / commit).exists() else []
        directories = {self.directory}
        for name in names:
            path = self.directory / name
            if not path.exists():
                raise CheckpointUnreadable(
                    f"{path} is missing before batch {number} is written: {Remedy.OWN_CHECKPOINT}"
                )
            self._sync_file(path)
            directories.add(path.parent)
        for directory in sorted(directories | self._sync_state(), reverse=True):
            self._sync(directory)
        self._sync_ancestors()

    def _sync_file(self, path: Path) -> None:
        # With Hadoop's checksumming file system, a lost `.k.crc` would make `k` unreadable.
        checksum = path.with_name(f".{path.name}.crc")
        for file in (path, checksum) if checksum.exists() else (path,):
            self._sync(file)

    def _sync_state(self) -> set[Path]:
        """Sync each new file below `state`; return the directories of the new files."""
        present = set(self._state_files())
        new = present - self._state_synced
        directories: set[Path] = set()
        for path in sorted(new):
            try:
                self._sync(path)
            except FileNotFoundError:
                continue  # Spark's clean-up removed it meanwhile; nothing rests on it any more.
            directories |= {parent for parent in path.parents if self.directory in parent.parents}
        self._state_synced = present
        return directories

    def _state_files(self) -> Iterator[Path]:
        for folder, _, files in os.walk(self.directory / STATE):
            yield from (Path(folder) / file for file in files if not file.endswith(".tmp"))

    def _sync_ancestors(self) -> None:
        """Sync the directories above the checkpoint once: Spark may have created those that we can read."""
        if not self._ancestors_synced:
            for ancestor in self.directory.parents:
                if os.access(ancestor, os.R_OK):
                    self._sync(ancestor)
            self._ancestors_synced = True

    def set_aside(self, name: str) -> str:
        path = self.directory / name
        # In another folder, since Spark refuses a non-empty folder `offsets` at batch 0.
        kept = self.directory / TORN / name.replace("/", "-")
        kept.parent.mkdir(exist_ok=True)
        path.replace(kept)
        # Hadoop would compare Spark's next file with this checksum.
        path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
        if name == METADATA and self.newest_batch("offsets") == 0:
            # The plan of a query that no longer has an id.
            self.set_aside("offsets/0")
        return str(kept)


class RemoteCheckpoint(Checkpoint):
    """A checkpoint on another file system, read through the JVM. Its storage decides what survives a power cut."""

    def __init__(self, session: Any, path: Any, file_system: Any) -> None:
        self.location = str(path.toString())
        self._session = session
        self._path = path
        self._file_system = file_system

    def read_text(self, name: str) -> str | None:
        path = java_class(self._session, _PATH)(self._path, name)
        if not self._file_system.exists(path):
            return None
        stream = self._file_system.open(path)
        try:
            return str(java_class(self._session, "org.apache.commons.io.IOUtils").toString(stream, "UTF-8"))
        finally:
            stream.close()

    def names(self, folder: str) -> list[str]:
        path = java_class(self._session, _PATH)(self._path, folder)
        if not self._file_system.exists(path):
            return []
        return [str(status.getPath().getName()) for status in self._file_system.listStatus(path)]

    def prepare(self, number: int) -> None:
        """Do nothing: an object store or HDFS keeps a closed file by its own rules."""


def checkpoint_at(session: Any, location: str) -> Checkpoint:
    """Return the checkpoint at `location`, resolved to a file system as Spark resolves its `checkpointLocation`."""
    path = java_class(session, _PATH)(location)
    file_system = path.getFileSystem(session._jsc.hadoopConfiguration())
    qualified = file_system.makeQualified(path)
    uri = qualified.toUri()
    if uri.getScheme() == "file":
        return LocalCheckpoint(Path(str(uri.getPath())))
    return RemoteCheckpoint(session, qualified, file_system)


def local_path(location: str) -> str | None:
    """Return the local path of a checkpoint given as `/x`, `file:/x` or `file:///x`; None for any other."""
    if location.startswith("file:"):
        return "/" + location.removeprefix("file:").lstrip("/")
    return None if "://" in location else location


def checkpoint_words(checkpoint: str | None) -> list[str]:
    """Return the option --checkpoint of a command; empty for a checkpoint that is not on this machine."""
    path = None if checkpoint is None else local_path(checkpoint)
    return [] if path is None else ["--checkpoint", path]
