"""What Spark's checkpoint says of a micro-batch, and making sure that a power cut cannot unsay it.

Spark writes `metadata` (the query id), `offsets/k` before batch k and `commits/k` after it, and syncs none of them.
After a power cut `offsets/k` may be gone while the sink holds batch k: Spark would plan k anew with other offsets.
So `LocalCheckpoint.prepare(k)` syncs what batch k rests on before anything of it is written.

`offsets/k` is text: the line `v1`, one line of Spark's own metadata, then one line of offsets for each source (the
format is in `onceflow.spark.offsets`; `-` for a source that has none).
"""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from onceflow.errors import OnceflowError
from onceflow.remedies import Remedy
from onceflow.spark import offsets
from onceflow.spark.exactly_once.batch import NO_BATCH, Batch

_NO_OFFSETS = "-"
METADATA = "metadata"
"""The file with the query's id."""
TORN = "onceflow.torn"
"""The folder for files that a power cut tore."""
STATE = "state"
"""The folder that stateful operators alone have."""


class CheckpointUnreadable(OnceflowError):
    """The checkpoint lacks a file that Spark has written by then, or holds one that this version cannot read."""


class CheckpointNotSynced(OnceflowError):
    """The file system could not put the checkpoint on disk."""


def other_query(session: Any, batch: Batch, location: str) -> str | None:
    """What is wrong where a sink was given another checkpoint than that of the query that calls it; None if nothing."""
    running = session.sparkContext.getLocalProperty("sql.streaming.queryId")
    if running is None or running == batch.query:
        return None
    return (
        f"the sink was given checkpoint {location} of query {batch.query} and is called by query {running}: "
        f"{Remedy.OWN_CHECKPOINT}"
    )


class Checkpoint:
    """Reads one query's checkpoint. Subclasses know where its files are."""

    location: str

    def read_text(self, name: str) -> str | None:
        """Content of the file `name`, such as `offsets/7`; None where there is none."""
        raise NotImplementedError

    def names(self, folder: str) -> list[str]:
        """Names of the files in a folder of the checkpoint; none where it does not exist."""
        raise NotImplementedError

    def prepare(self, number: int) -> None:
        """Makes what batch `number` rests on survive a power cut, as far as this kind of storage lets us."""
        raise NotImplementedError

    def set_aside(self, name: str) -> str:
        """Rename the file `name` so that Spark does not see it; return its new name.

        Raises CheckpointUnreadable where the storage decides what a power cut leaves.
        """
        raise CheckpointUnreadable(f"{self.location}/{name} cannot be read: {Remedy.RESTORE_FILE}")

    def query_id(self) -> str | None:
        """The query's id; None for a checkpoint that no query has used yet."""
        text = self.read_text(METADATA)
        if text is None:
            return None
        try:
            return str(json.loads(text)["id"])
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointUnreadable(f"{self.location}/{METADATA} holds no query id: {text[:80]!r}") from error

    @property
    def is_stateful(self) -> bool:
        """Whether the query keeps state, as seen from its first batch with rows on."""
        return bool(self.names(STATE))

    def newest_batch(self, folder: str) -> int:
        """Number of the newest batch in `offsets` (planned) or `commits` (finished); -1 where there is none."""
        return max((int(name) for name in self.names(folder) if name.isdecimal()), default=NO_BATCH)

    def batch(self, number: int, *, plan: str, plan_version: int) -> Batch:
        """The batch that Spark plans as `number`, from `offsets/number` and the one before.

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
                    f"where it begins is not known; {Remedy.NEW_CHECKPOINT}"
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
                f"{self.location}/offsets/{number} is damaged, or of a source that is not format('onceflow'), and a "
                f"sink takes queries whose sources all are: {Remedy.ROWS_THROUGH_KAFKA} "
                f"({error})"
            ) from error

    def reached(self, number: int) -> offsets.Offsets:
        """Where batch `number` ends, all sources together. Raises CheckpointUnreadable, offsets.MalformedOffsets."""
        ends = [self._parsed(number, line) for line in self._source_lines(number) if line != _NO_OFFSETS]
        return offsets.Offsets(
            {topic: partitions for end in ends for topic, partitions in end.by_topic.items()},
            {topic: topic_id for end in ends for topic, topic_id in end.topic_ids.items()},
        )

    def _source_lines(self, number: int) -> list[str]:
        text = self.read_text(f"offsets/{number}")
        lines = (text or "").splitlines()
        if len(lines) < 3 or lines[0] != "v1":
            found = "missing" if text is None else repr(text[:40])
            raise CheckpointUnreadable(
                f"{self.location}/offsets/{number} is {found}; version v1, metadata and one line for each source were "
                f"expected: {Remedy.OWN_CHECKPOINT}"
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
    """fsync of one file or directory."""
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
        """Syncs `metadata`, `offsets/number`, the commit and the state of the batch before, and their directories.

        Raises CheckpointNotSynced, and CheckpointUnreadable if a file is not there: nothing may be written then.
        """
        try:
            self._sync_batch(number)
        except OSError as error:
            raise CheckpointNotSynced(
                f"{self.directory} could not be synced to disk ({error}): nothing of batch {number} was written; "
                f"{Remedy.LOOK_AT_DISK}, then {Remedy.START_AGAIN}"
            ) from error

    def _sync_batch(self, number: int) -> None:
        names = [METADATA, f"offsets/{number}"]
        # A power cut may have taken the commit and left the offsets; the marker then says what was written.
        commit = f"commits/{number - 1}"
        names += [commit] if (self.directory / commit).exists() else []
        directories = {self.directory}
        for name in names:
            path = self.directory / name
            if not path.exists():
                raise CheckpointUnreadable(
                    f"{path} is missing when batch {number} is about to be written: {Remedy.OWN_CHECKPOINT}"
                )
            self._sync_file(path)
            directories.add(path.parent)
        for directory in sorted(directories | self._sync_state(), reverse=True):
            self._sync(directory)
        self._sync_ancestors()

    def _sync_file(self, path: Path) -> None:
        # With Hadoop's checksumming file system a lost `.k.crc` would make `k` unreadable.
        checksum = path.with_name(f".{path.name}.crc")
        for file in (path, checksum) if checksum.exists() else (path,):
            self._sync(file)

    def _sync_state(self) -> set[Path]:
        """Syncs each file below `state` once, and returns the directories of those that are new."""
        present = set(self._state_files())
        new = present - self._state_synced
        directories: set[Path] = set()
        for path in sorted(new):
            try:
                self._sync(path)
            except FileNotFoundError:
                continue  # Spark's clean-up took it away meanwhile; nothing rests on it any more.
            directories |= {parent for parent in path.parents if self.directory in parent.parents}
        self._state_synced = present
        return directories

    def _state_files(self) -> Iterator[Path]:
        for folder, _, files in os.walk(self.directory / STATE):
            yield from (Path(folder) / file for file in files if not file.endswith(".tmp"))

    def _sync_ancestors(self) -> None:
        """Once: Spark may have made directories above the checkpoint too; those we cannot read it did not make."""
        if not self._ancestors_synced:
            for ancestor in self.directory.parents:
                if os.access(ancestor, os.R_OK):
                    self._sync(ancestor)
            self._ancestors_synced = True

    def set_aside(self, name: str) -> str:
        path = self.directory / name
        # Elsewhere, since Spark refuses a folder `offsets` that is not empty at batch 0.
        kept = self.directory / TORN / name.replace("/", "-")
        kept.parent.mkdir(exist_ok=True)
        path.replace(kept)
        # Hadoop would hold the file that Spark writes next against it.
        path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
        if name == METADATA and self.newest_batch("offsets") == 0:
            # The plan of a query that no longer has an id.
            self.set_aside("offsets/0")
        return str(kept)


class RemoteCheckpoint(Checkpoint):
    """A checkpoint on another file system, read through the JVM. Its storage decides what a power cut leaves."""

    def __init__(self, session: Any, path: Any, file_system: Any) -> None:
        self.location = str(path.toString())
        self._jvm = session._jvm
        self._path = path
        self._file_system = file_system

    def read_text(self, name: str) -> str | None:
        path = self._jvm.org.apache.hadoop.fs.Path(self._path, name)
        if not self._file_system.exists(path):
            return None
        stream = self._file_system.open(path)
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def names(self, folder: str) -> list[str]:
        path = self._jvm.org.apache.hadoop.fs.Path(self._path, folder)
        if not self._file_system.exists(path):
            return []
        return [str(status.getPath().getName()) for status in self._file_system.listStatus(path)]

    def prepare(self, number: int) -> None:
        """Nothing: an object store or HDFS keeps a closed file by its own rules, which we cannot strengthen."""


def checkpoint_at(session: Any, location: str) -> Checkpoint:
    """The checkpoint at `location`, resolved to a file system as Spark resolves its `checkpointLocation`."""
    path = session._jvm.org.apache.hadoop.fs.Path(location)
    file_system = path.getFileSystem(session._jsc.hadoopConfiguration())
    qualified = file_system.makeQualified(path)
    uri = qualified.toUri()
    if uri.getScheme() == "file":
        return LocalCheckpoint(Path(str(uri.getPath())))
    return RemoteCheckpoint(session, qualified, file_system)


def local_path(location: str) -> str | None:
    """The path of a checkpoint on a file system of this machine, as `/x`, `file:/x` or `file:///x`; None for others."""
    if location.startswith("file:"):
        return "/" + location.removeprefix("file:").lstrip("/")
    return None if "://" in location else location


def checkpoint_words(checkpoint: str | None) -> list[str]:
    """Return the option --checkpoint of a command for this machine; empty for a checkpoint elsewhere."""
    path = None if checkpoint is None else local_path(checkpoint)
    return [] if path is None else ["--checkpoint", path]
