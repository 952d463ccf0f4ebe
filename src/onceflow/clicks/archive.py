"""The archive: events as Parquet files by day and hour of their time, and the list of the files that belong to it.

    ARCHIVE/dt=2026-02-14/hour=07/….parquet    events (columns: `onceflow.clicks.event_table`)
    ARCHIVE/_onceflow/000000000042.json        version 42 of the archive: its files, and the proof of its last batch

A version is complete and never changes; the highest number is the current one. A micro-batch creates the next version
with its files added. A compaction creates one in which a merged file replaces small ones with the same events. A
version is created as a hard link, which succeeds once per number. The link is the commit, and it fences an older
driver. So a reader of one version sees each event once, whatever is written, merged or killed meanwhile. Files that a
newer version does not list are kept for `KEEP_S`, the time limit of readers. Files in no version are left from failed
attempts.

A version is one JSON object: `format` 1, `proof` (`onceflow.spark.exactly_once.proof`), and `files`, each with its
`path` below ARCHIVE, its `rows`, the first and last event time `min_ms` and `max_ms`, and `at_ms`, when it was added.
"""

import contextlib
import itertools
import json
import os
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from onceflow.clicks.archive_errors import ArchiveUnreadable
from onceflow.clicks.single_event import ArchivedFields
from onceflow.errors import OnceflowError
from onceflow.remedies import Remedy
from onceflow.spark.exactly_once.checkpoint import sync_path
from onceflow.spark.exactly_once.proof import Proof

VERSIONS = "_onceflow"
FORMAT = 1
KEEP_S = 600
"""Time for which the files of an earlier version stay."""
MERGED_FILES = 8
"""Number of files of similar size in one hour that are merged; an event is rewritten once per power of it."""
MERGED_ROWS_MAX = 2_000_000
"""Maximum of rows in a merged file: one merge is in memory."""
QUIET_MS = 3_600_000
"""Time without a new file after which all files of an hour are merged."""
ROW_GROUP_ROWS = 100_000
HOUR_MS = 3_600_000
DAY_HOURS = 24


def clock_ms() -> int:
    """Return the wall clock in ms since 1970."""
    return time.time_ns() // 1_000_000


class VersionTaken(OnceflowError):
    """Another driver has created this version."""


@dataclass(frozen=True, slots=True)
class File:
    """One Parquet file of the archive."""

    path: str
    rows: int
    min_ms: int
    max_ms: int
    at_ms: int

    @property
    def hour(self) -> str:
        """Its directory below the archive."""
        return self.path.rpartition("/")[0]


@dataclass(frozen=True, slots=True)
class Version:
    """One complete state of the archive."""

    number: int
    proof: Proof
    files: tuple[File, ...]

    @property
    def rows(self) -> int:
        """Number of its events."""
        return sum(file.rows for file in self.files)

    @property
    def topic(self) -> str:
        """The topic whose events these are."""
        return str(json.loads(self.proof.plan)["topic"])

    @property
    def fields(self) -> ArchivedFields:
        """The fields of its events."""
        return ArchivedFields(**json.loads(self.proof.plan)["fields"])

    @property
    def ends(self) -> dict[int, int]:
        """The first offset of each partition that is not archived."""
        offsets = (self.proof.offsets or {}).get(self.topic, {})
        return {int(partition): offset for partition, offset in offsets.items()}


def plan_of(topic: str, fields: ArchivedFields) -> str:
    """Return the plan of an archive, in the form stored in the proof."""
    return json.dumps({"archives": "clicks", "topic": topic, "fields": asdict(fields)})


class Archive:
    """The directory of one archive."""

    def __init__(self, directory: Path, *, now_ms: Callable[[], int] = clock_ms) -> None:
        self.directory = directory.absolute()
        self.versions = self.directory / VERSIONS
        self._now_ms = now_ms

    def create(self) -> None:
        """Create the directory if it is missing."""
        self.versions.mkdir(parents=True, exist_ok=True)
        sync_path(self.directory)
        sync_path(self.directory.parent)

    def newest(self) -> Version | None:
        """Return the newest version; None where nothing is archived yet. Raises ArchiveUnreadable."""
        while True:
            numbers = self._numbers()
            if not numbers:
                return None
            # A reader that was suspended for `KEEP_S` finds its version deleted, and a newer one.
            with contextlib.suppress(FileNotFoundError):
                return self._read(numbers[-1])

    def require(self) -> Version:
        """Return the newest version. Raises ArchiveUnreadable, also where there is none."""
        version = self.newest()
        if version is None:
            raise ArchiveUnreadable(
                f"{self.directory} has no archive; {Remedy.START_ARCHIVE.format(directory=self.directory)}"
            )
        return version

    def paths(self, version: Version, begin_ms: int | None = None, end_ms: int | None = None) -> list[str]:
        """Return the files that may have events in [begin_ms, end_ms)."""
        return [
            str(self.directory / file.path)
            for file in version.files
            if (begin_ms is None or file.max_ms >= begin_ms) and (end_ms is None or file.min_ms < end_ms)
        ]

    def add(self, base: Version | None, proof: Proof, files: Iterable[File]) -> Version:
        """Create the version after `base`, with the files of a micro-batch. Raises VersionTaken."""
        before = () if base is None else base.files
        return self._create(Version(0 if base is None else base.number + 1, proof, (*before, *files)))

    def compact(self, version: Version) -> Version:
        """Merge small files, at most about `MERGED_ROWS_MAX` rows; return the new version, or `version` if none is due.

        Raises VersionTaken.
        """
        merges = _bounded(_due(version.files, self._now_ms()))
        if not merges:
            return version
        merged_away = {file.path for merge in merges for file in merge}
        kept = [file for file in version.files if file.path not in merged_away]
        created = [file for merge in merges for file in write_hours(self._merged(merge), self.directory, self._now_ms)]
        return self._create(Version(version.number + 1, version.proof, (*kept, *created)))

    def clean(self, version: Version) -> None:
        """Delete versions that were replaced more than `KEEP_S` ago, and files that no other version lists.

        Call it with the version that this driver has just created. An attempt that may still succeed starts from that
        version, so its files are newer.
        """
        numbers = self._numbers()
        oldest_s = self._now_ms() / 1000 - KEEP_S
        created_s = {number: self._path(number).stat().st_mtime for number in numbers}
        replaced = [old for old, new in itertools.pairwise(numbers) if created_s[new] < oldest_s]
        if not replaced or version.number != numbers[-1]:
            return
        for number in replaced:
            self._path(number).unlink()
        listed = {file.path for number in set(numbers) - set(replaced) for file in self._read(number).files}
        for path in (*self.directory.glob("dt=*/hour=*/*.parquet"), *self.versions.glob("*.unfinished")):
            is_left = path.stat().st_mtime < min(oldest_s, created_s[version.number])
            if is_left and str(path.relative_to(self.directory)) not in listed:
                path.unlink()

    def _numbers(self) -> list[int]:
        try:
            names = os.listdir(self.versions)
        except FileNotFoundError:
            return []
        return sorted(int(name[:-5]) for name in names if name.endswith(".json") and name[:-5].isdecimal())

    def _path(self, number: int) -> Path:
        return self.versions / f"{number:012d}.json"

    def _read(self, number: int) -> Version:
        path = self._path(number)
        text = path.read_text()
        try:
            document = json.loads(text)
            if document["format"] != FORMAT:
                raise ValueError(f"format {document['format']!r} instead of {FORMAT}")
            files = tuple(File(**file) for file in document["files"])
        except (ValueError, KeyError, TypeError) as error:
            raise ArchiveUnreadable(
                f"{path} is not a version of an archive: {error}; {Remedy.OTHER_ARCHIVE}"
            ) from error
        return Version(number, Proof.parse(str(path), document["proof"]), files)

    def _create(self, version: Version) -> Version:
        unfinished = self.versions / f"{uuid.uuid4()}.unfinished"
        files = [asdict(file) for file in version.files]
        try:
            unfinished.write_text(json.dumps({"format": FORMAT, "proof": version.proof.text(), "files": files}))
            sync_path(unfinished)
            os.link(unfinished, self._path(version.number))
        except FileExistsError as error:
            raise VersionTaken(f"version {version.number} of {self.directory} exists already: {error}") from error
        finally:
            unfinished.unlink(missing_ok=True)
        sync_path(self.versions)
        return version

    def _merged(self, files: Sequence[File]) -> pa.Table:
        # Not `read_table`: it would add columns for dt= and hour=.
        tables = [pq.ParquetFile(self.directory / file.path).read() for file in files]
        return pa.concat_tables(tables).sort_by([(name, "ascending") for name in ("event_time", "partition", "offset")])


def _due(files: Sequence[File], now_ms: int) -> Iterator[list[File]]:
    """Yield the files to merge in each hour."""
    hours: dict[str, list[File]] = defaultdict(list)
    for file in files:
        if file.rows < MERGED_ROWS_MAX:
            hours[file.hour].append(file)
    for small in hours.values():
        if max(file.at_ms for file in small) < now_ms - QUIET_MS:
            yield _fitting(small)
            continue
        tiers: dict[int, list[File]] = defaultdict(list)
        for file in small:
            tiers[_tier(file.rows)].append(file)
        for tier in tiers.values():
            if len(tier) >= MERGED_FILES:
                yield _fitting(tier)


def _bounded(merges: Iterable[list[File]]) -> list[list[File]]:
    """Return the first merges until they have `MERGED_ROWS_MAX` rows; later versions have the others."""
    chosen: list[list[File]] = []
    rows = 0
    for merge in merges:
        if merge and rows < MERGED_ROWS_MAX:
            chosen.append(merge)
            rows += sum(file.rows for file in merge)
    return chosen


def _tier(rows: int) -> int:
    tier = 0
    while rows >= MERGED_FILES:
        rows //= MERGED_FILES
        tier += 1
    return tier


def _fitting(files: Sequence[File]) -> list[File]:
    """Return the smallest of these files that fit into one; none if that is a single file."""
    fitting: list[File] = []
    rows = 0
    for file in sorted(files, key=lambda file: file.rows):
        rows += file.rows
        if rows > MERGED_ROWS_MAX:
            break
        fitting.append(file)
    return fitting if len(fitting) > 1 else []


def write_hours(events: pa.Table, directory: Path, now_ms: Callable[[], int] = clock_ms) -> list[File]:
    """Write events to one new file for each hour, and sync it; return the files. Readers see them in no version yet."""
    times_ms = events["event_time"].cast(pa.int64())
    hours = pc.floor(pc.divide(times_ms.cast(pa.float64()), HOUR_MS)).cast(pa.int64())
    return [
        _write_hour(events.filter(pc.equal(hours, hour)), hour.as_py(), directory, now_ms) for hour in pc.unique(hours)
    ]


def _write_hour(events: pa.Table, hour: int, directory: Path, now_ms: Callable[[], int]) -> File:
    folder = directory / hour_path(hour)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{uuid.uuid4()}.parquet"
    pq.write_table(events, path, compression="zstd", row_group_size=ROW_GROUP_ROWS)
    for step in (path, folder, folder.parent, directory):
        sync_path(step)
    span = pc.min_max(events["event_time"].cast(pa.int64())).as_py()
    return File(str(path.relative_to(directory)), events.num_rows, span["min"], span["max"], now_ms())


def hour_path(hour: int) -> str:
    """Return the directory of an hour, counted from 1970: `dt=2026-02-14/hour=07`."""
    day, hour_of_day = divmod(hour, DAY_HOURS)
    # Arrow's days reach beyond the year 9999, to which a record's timestamp is not limited.
    return f"dt={pa.scalar(day, pa.int32()).cast(pa.date32()).cast(pa.string()).as_py()}/hour={hour_of_day:02d}"


def archive_files(directory: str | Path) -> list[str]:
    """Return the files of the newest version, for `pandas.read_parquet`, `spark.read.parquet(*…)` and others.

    Raises ArchiveUnreadable.
    """
    archive = Archive(Path(directory))
    return archive.paths(archive.require())
