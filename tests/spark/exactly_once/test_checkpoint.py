"""Reading a checkpoint, and syncing the files that a batch depends on before it is written."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from onceflow.spark.exactly_once.checkpoint import CheckpointNotSynced, CheckpointUnreadable, LocalCheckpoint
from onceflow.spark.offsets import MalformedOffsets, OffsetRange


def offsets_text(*lines: dict[str, object] | str) -> str:
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    return "\n".join(["v1", '{"batchWatermarkMs":0}', *texts])


class SparkFiles:
    """A checkpoint whose files are written as Spark writes them: without a sync."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        (directory / "offsets").mkdir(parents=True)
        (directory / "commits").mkdir()
        (directory / "metadata").write_text('{"id":"query-1"}')

    def plan(self, number: int, *lines: dict[str, object] | str) -> None:
        (self.directory / "offsets" / str(number)).write_text(offsets_text(*lines))

    def commit(self, number: int) -> None:
        (self.directory / "commits" / str(number)).write_text('v1\n{"nextBatchWatermarkMs":0}')


class Disk:
    """A disk that loses in a power cut what was not synced: contents of files and entries of directories."""

    def __init__(self) -> None:
        self.contents: dict[Path, bytes] = {}
        self.entries: dict[Path, set[str]] = {}

    def sync(self, path: Path) -> None:
        if path.is_dir():
            self.entries[path] = {child.name for child in path.iterdir()}
        else:
            self.contents[path] = path.read_bytes()

    def after_power_cut(self, directory: Path, copy: Path, *, keep_unsynced_entries: bool = False) -> Path:
        """Return a copy without unsynced data: files without a synced entry are missing, others are empty."""
        shutil.copytree(directory, copy)
        for path in sorted(directory.rglob("*"), reverse=True):
            twin = copy / path.relative_to(directory)
            if path.name not in self.entries.get(path.parent, set()) and not keep_unsynced_entries:
                shutil.rmtree(twin) if twin.is_dir() else twin.unlink()
            elif path.is_file():
                twin.write_bytes(self.contents.get(path, b""))
        return copy


@pytest.fixture
def files(tmp_path: Path) -> SparkFiles:
    return SparkFiles(tmp_path / "checkpoint")


def test_ranges_of_a_batch(files: SparkFiles) -> None:
    files.plan(0, {"clicks": {"0": 5, "1": 7}, "@ids": {"clicks": "id-1"}})
    files.plan(1, {"clicks": {"0": 9, "1": 7, "2": 4}, "@ids": {"clicks": "id-1"}})
    checkpoint = LocalCheckpoint(files.directory)
    first = checkpoint.batch(0, plan="clicks", plan_version=1)
    assert first.ranges == (OffsetRange("clicks", 0, 5, 5), OffsetRange("clicks", 1, 7, 7))
    second = checkpoint.batch(1, plan="clicks", plan_version=1)
    assert [(part.begin, part.end) for part in second.ranges] == [(5, 9), (7, 7), (4, 4)]
    assert (second.query, second.number, second.topic_ids) == ("query-1", 1, {"clicks": "id-1"})


def test_several_sources(files: SparkFiles) -> None:
    files.plan(0, {"clicks": {"0": 5}}, "-")
    files.plan(1, {"clicks": {"0": 9}}, "-")
    files.plan(2, {"clicks": {"0": 9}}, {"views": {"0": 3}})
    files.plan(3, {"clicks": {"0": 9}}, {"clicks": {"0": 3}})
    checkpoint = LocalCheckpoint(files.directory)
    assert checkpoint.batch(1, plan="p", plan_version=1).ranges == (OffsetRange("clicks", 0, 5, 9),)
    with pytest.raises(CheckpointUnreadable, match="a source appears"):
        checkpoint.batch(2, plan="p", plan_version=1)
    with pytest.raises(CheckpointUnreadable, match="read clicks"):
        checkpoint.batch(3, plan="p", plan_version=1)


@pytest.mark.parametrize(
    ("number", "content", "error", "message"),
    [
        (3, None, CheckpointUnreadable, "offsets/3 is missing.*checkpointLocation"),
        (1, "", CheckpointUnreadable, "offsets/1 is ''.*v1"),
        (1, "v2\n{}\n{}", CheckpointUnreadable, "v2.*v1"),
        (
            1,
            offsets_text({"logOffset": 3}),
            MalformedOffsets,
            "offsets/1 is damaged, .*logOffset",
        ),
        (1, offsets_text("23"), MalformedOffsets, r"or of a source other than format\('onceflow'\), which"),
        (1, offsets_text({"clicks": {"0": 9}}, {"views": {"0": 1}}), CheckpointUnreadable, "2 sources.*has 1"),
    ],
)
def test_unreadable_offsets_are_refused(
    files: SparkFiles, number: int, content: str | None, error: type[Exception], message: str
) -> None:
    files.plan(0, {"clicks": {"0": 5}})
    if content is not None:
        (files.directory / "offsets" / str(number)).write_text(content)
    with pytest.raises(error, match=message):
        LocalCheckpoint(files.directory).batch(number, plan="p", plan_version=1)


def test_unused_checkpoint_has_no_metadata(tmp_path: Path) -> None:
    checkpoint = LocalCheckpoint(tmp_path / "none")
    assert checkpoint.query_id() is None
    assert checkpoint.newest_batch("offsets") == -1
    with pytest.raises(CheckpointUnreadable, match="has no metadata"):
        checkpoint.batch(0, plan="p", plan_version=1)


def test_prepare_refuses_a_missing_batch(files: SparkFiles) -> None:
    files.plan(0, {"clicks": {"0": 5}})
    files.plan(1, {"clicks": {"0": 6}})
    with pytest.raises(CheckpointUnreadable, match="offsets/2 is missing before batch 2"):
        LocalCheckpoint(files.directory).prepare(2)


def test_lost_commit_does_not_stop_prepare(files: SparkFiles) -> None:
    files.plan(0, {"clicks": {"0": 5}})
    files.plan(1, {"clicks": {"0": 6}})
    LocalCheckpoint(files.directory).prepare(1)


def test_failed_sync_stops_the_batch(files: SparkFiles) -> None:
    files.plan(0, {"clicks": {"0": 5}})

    def broken(path: Path) -> None:
        raise OSError(5, "Input/output error", str(path))

    with pytest.raises(CheckpointNotSynced, match=r"Input/output error.*batch 0 was not written"):
        LocalCheckpoint(files.directory, sync=broken).prepare(0)


def run_batches(files: SparkFiles, prepare: Callable[[int], None], on_write: Callable[[int], None]) -> None:
    """Run three batches as Spark does; `on_write(k)` is called when the sink starts to write batch k."""
    for number in range(3):
        files.plan(number, {"clicks": {"0": 5 + number}})
        state = files.directory / "state" / "0" / "0"
        state.mkdir(parents=True, exist_ok=True)
        prepare(number)
        on_write(number)
        (state / f"{number + 1}.delta").write_text("state")
        files.commit(number)


def test_planned_batches_survive_power_cuts(files: SparkFiles, tmp_path: Path) -> None:
    disk = Disk()
    disk.sync(files.directory.parent)
    checkpoint = LocalCheckpoint(files.directory, sync=disk.sync)

    def check(number: int) -> None:
        survived = LocalCheckpoint(disk.after_power_cut(files.directory, tmp_path / f"cut-{number}"))
        assert survived.query_id() == "query-1"
        assert survived.batch(number, plan="p", plan_version=1) == checkpoint.batch(number, plan="p", plan_version=1)
        assert survived.newest_batch("offsets") == number
        assert survived.newest_batch("commits") == number - 1
        states = sorted(path.name for path in (survived.directory / "state").rglob("*.delta"))
        assert states == [f"{version}.delta" for version in range(1, number + 1)]
        assert all(path.read_text() for path in survived.directory.rglob("*") if path.is_file())

    run_batches(files, checkpoint.prepare, check)


def test_each_state_file_is_synced_once(files: SparkFiles) -> None:
    synced: list[Path] = []
    checkpoint = LocalCheckpoint(files.directory, sync=synced.append)
    run_batches(files, checkpoint.prepare, lambda number: None)
    assert [path.name for path in synced if path.suffix == ".delta"] == ["1.delta", "2.delta"]


def test_checksums_are_synced_too(files: SparkFiles) -> None:
    files.plan(0, {"clicks": {"0": 5}})
    (files.directory / "offsets" / ".0.crc").write_bytes(b"crc")
    synced: list[Path] = []
    LocalCheckpoint(files.directory, sync=synced.append).prepare(0)
    assert files.directory / "offsets" / ".0.crc" in synced
