"""The archive's files and versions: no reader sees an event twice or not at all, also after a power cut."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import duckdb
import pandas
import pytest

from onceflow.clicks import archive as archives
from onceflow.clicks.archive import (
    KEEP_S,
    MERGED_FILES,
    QUIET_MS,
    Archive,
    VersionTaken,
    archive_files,
    clock_ms,
    hour_path,
    write_hours,
)
from onceflow.clicks.archive_errors import ArchiveUnreadable
from onceflow.clicks.event_table import event_table
from onceflow.remedies import Remedy
from tests import remedies
from tests.clicks.archived import FIELDS, HOUR_MS, START_MS, add_batch, event, filled, offsets_in, proof_of
from tests.end_to_end.test_power_cut import SyncedDirectory


def small_batches(count: int) -> list[list[bytes]]:
    """Return batches of two events, in two hours."""
    return [[event("ann", START_MS), event("bob", START_MS + HOUR_MS)] for _ in range(count)]


def test_readers_see_each_event_once(tmp_path: Path) -> None:
    """DuckDB, also from SQL alone, and pandas; another test reads with Spark."""
    filled(tmp_path, [[event("ann", START_MS, clicks=2), b"nonsense"], [event("bob", START_MS + HOUR_MS, page="/")]])
    files = archive_files(tmp_path)
    assert [str(Path(path).relative_to(tmp_path).parent) for path in files] == [
        "dt=2015-04-28/hour=07",
        "dt=2015-04-28/hour=08",
    ]
    assert offsets_in(files) == [0, 2]
    rows = pandas.read_parquet(files)
    assert dict(zip(rows["uid"], rows["clicks"], strict=True)) == {"ann": 2, "bob": 1}
    assert list(rows["extra"]) == [None, '{"page":"/"}']
    with duckdb.connect() as database:
        newest = f"SELECT arg_max(files, filename) FROM read_json('{tmp_path}/_onceflow/*.json', filename = true)"
        database.execute(f"SET VARIABLE files = (SELECT list_transform(({newest}), lambda f: '{tmp_path}/' || f.path))")
        assert database.sql("SELECT sum(clicks) FROM read_parquet(getvariable('files'))").fetchall() == [(3,)]


def test_small_files_are_merged(tmp_path: Path) -> None:
    archive = filled(tmp_path, small_batches(MERGED_FILES - 1))
    before = archive.require()
    assert len(before.files) == 2 * (MERGED_FILES - 1)
    held = archive.paths(before)
    after = add_batch(archive, small_batches(1)[0])
    assert sorted(file.hour for file in after.files) == ["dt=2015-04-28/hour=07", "dt=2015-04-28/hour=08"]
    assert offsets_in(archive.paths(after)) == list(range(2 * MERGED_FILES))
    assert offsets_in(held) == list(range(2 * (MERGED_FILES - 1))), "a reader of the version before can finish"
    assert (after.proof, archive.newest()) == (proof_of(MERGED_FILES - 1, 2 * MERGED_FILES), after)
    assert offsets_in(archive.paths(after, START_MS + HOUR_MS, None)) == list(range(1, 2 * MERGED_FILES, 2))
    assert offsets_in(archive.paths(after, None, START_MS + HOUR_MS)) == list(range(0, 2 * MERGED_FILES, 2))


def test_events_are_not_rewritten_each_time(tmp_path: Path) -> None:
    """A merged file is merged again only with others of its size."""
    archive = filled(tmp_path, small_batches(MERGED_FILES))
    merged = {file.path for file in archive.require().files}
    for values in small_batches(MERGED_FILES - 1):
        add_batch(archive, values)
    assert merged < {file.path for file in archive.require().files}


def test_quiet_hours_become_one_file(tmp_path: Path) -> None:
    archive = filled(tmp_path, small_batches(3))
    later = Archive(tmp_path, now_ms=lambda: clock_ms() + QUIET_MS + 1)
    version = later.compact(archive.require())
    assert len(version.files) == 2
    assert offsets_in(later.paths(version)) == list(range(6))
    assert later.compact(version) is version


def test_merges_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "MERGED_ROWS_MAX", 7)
    archive = filled(tmp_path, [[event("ann", START_MS)] * 3] * MERGED_FILES)
    version = archive.require()
    assert {file.rows for file in version.files} == {3, 6}
    assert offsets_in(archive.paths(version)) == list(range(3 * MERGED_FILES))


def test_one_of_two_drivers_commits(tmp_path: Path) -> None:
    archive = filled(tmp_path, small_batches(MERGED_FILES - 1))
    base = archive.require()
    files = write_hours(event_table(FIELDS, [(event("eve", START_MS), 0, 14, START_MS)]), tmp_path)
    newest = add_batch(archive, small_batches(1)[0])
    with pytest.raises(VersionTaken):
        archive.add(base, proof_of(7, 15), files)
    with pytest.raises(VersionTaken):
        Archive(tmp_path, now_ms=lambda: clock_ms() + QUIET_MS + 1).compact(base)
    assert archive.newest() == newest


def test_replaced_files_are_deleted_later(tmp_path: Path) -> None:
    archive = filled(tmp_path, small_batches(MERGED_FILES))
    held = archive.paths(archive._read(MERGED_FILES - 1))
    write_hours(event_table(FIELDS, [(event("eve", START_MS), 0, 99, START_MS)]), tmp_path)
    archive.clean(archive.require())
    assert all(map(os.path.exists, held))
    for path in tmp_path.rglob("*"):
        age(path)
    version = add_batch(archive, small_batches(1)[0])
    started = write_hours(event_table(FIELDS, [(event("eve", START_MS), 0, 99, START_MS)]), tmp_path)
    Archive(tmp_path, now_ms=lambda: clock_ms() - 1000).clean(version)
    assert not any(map(os.path.exists, held)), "the versions with these files are no longer kept"
    files = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.parquet")}
    assert files == {file.path for file in (*version.files, *started)}
    assert offsets_in(archive_files(tmp_path)) == list(range(2 * MERGED_FILES + 2))


def age(path: Path) -> None:
    """Let a file look as old as if its version had been replaced long ago."""
    old_s = path.stat().st_mtime - 2 * KEEP_S
    os.utime(path, (old_s, old_s))


def test_the_newest_version_is_read_while_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = filled(tmp_path, small_batches(2))
    numbers = iter([[0], [0, 1]])
    (tmp_path / "_onceflow" / "000000000000.json").unlink()
    monkeypatch.setattr(archive, "_numbers", lambda: next(numbers))
    assert archive.require().number == 1


@pytest.mark.remedy(Remedy.OTHER_ARCHIVE)
@pytest.mark.parametrize("damage", ["", '{"format": 2, "proof": "", "files": []}', '{"format": 1}', "[]"])
def test_damaged_version_is_refused(tmp_path: Path, damage: str) -> None:
    filled(tmp_path / "damaged", small_batches(1))
    (tmp_path / "damaged" / "_onceflow" / "000000000000.json").write_text(damage)
    with pytest.raises(ArchiveUnreadable) as raised:
        archive_files(tmp_path / "damaged")
    remedies.find(Remedy.OTHER_ARCHIVE, raised.value)
    filled(tmp_path / "other", small_batches(1))
    assert offsets_in(archive_files(tmp_path / "other")) == [0, 1]


def test_hours_before_1970_and_after_9999() -> None:
    assert hour_path(-1) == "dt=1969-12-31/hour=23"
    assert hour_path(0) == "dt=1970-01-01/hour=00"
    assert hour_path(24 * 11_000_000 + 7) == "dt=32086-12-23/hour=07"


class Disk(SyncedDirectory):
    """A directory's state after a power cut; calls `on_sync` after each fsync. A link shares its file's content."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
        self.on_sync: Callable[[], None] = lambda: None
        super().__init__(monkeypatch, root)
        link = os.link

        def watched_link(source: Path, target: Path) -> None:
            link(source, target)
            if source in self._contents:
                self._contents[target] = self._contents[source]

        monkeypatch.setattr(os, "link", watched_link)

    def _synced(self, path: Path) -> None:
        super()._synced(path)
        self.on_sync()


def test_any_power_cut_leaves_whole_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The archive has whole batches, and each committed one, after each fsync of 17 batches and their merges."""
    root, cut = tmp_path / "archive", tmp_path / "cut"
    root.mkdir()
    batches = 2 * MERGED_FILES + 1
    cuts = committed = 0

    def check(directory: Path) -> None:
        version = Archive(directory).newest()
        written = 0 if version is None else version.proof.batch + 1
        assert committed <= written <= committed + 1
        assert offsets_in([] if version is None else archive_files(directory)) == list(range(2 * written))

    def on_sync() -> None:
        nonlocal cuts
        cuts += 1
        check(root)
        shutil.rmtree(cut, ignore_errors=True)
        for name, content in disk.survivors().items():
            (cut / name).parent.mkdir(parents=True, exist_ok=True)
            (cut / name).write_bytes(content)
        check(cut)

    disk = Disk(monkeypatch, root)
    disk._names[tmp_path] = {"archive"}
    disk.on_sync = on_sync
    archive = Archive(root)
    archive.create()
    for values in small_batches(batches):
        add_batch(archive, values)
        committed += 1
    assert cuts > 10 * batches
    assert len(archive.require().files) == 6
