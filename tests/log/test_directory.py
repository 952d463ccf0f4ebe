"""The data directory: one broker, one cluster, clean or unclean, and permanent deletions."""

import errno
import os
import re
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from onceflow.log.checkpoint import encode_uuid
from onceflow.log.config import LogConfig
from onceflow.log.directory import DataDirectory
from onceflow.log.disk import RealDisk
from onceflow.log.errors import DataDirectoryRefused
from onceflow.log.offset_checkpoint import LOG_START_FILE
from onceflow.log.partition import PartitionLog
from onceflow.remedies import Remedy
from onceflow.testing import FaultyDisk, ManualClock
from tests import remedies
from tests.log.partition_logs import NOW_MS, batch, open_log, records, sync, values


def open_directory(path: Path, **options: object) -> DataDirectory:
    return DataDirectory.open(path, disk=RealDisk(), **options)  # type: ignore[arg-type]


def test_new_directory_keeps_its_cluster_id(tmp_path: Path) -> None:
    directory = open_directory(tmp_path / "data")
    assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_-]{21}", directory.cluster_id)
    assert not directory.clean
    directory.close(clean=False)
    again = open_directory(tmp_path / "data", cluster_id=directory.cluster_id)
    assert (again.cluster_id, again.node_id) == (directory.cluster_id, 1)
    again.close(clean=False)
    lines = (tmp_path / "data" / "meta.properties").read_text().splitlines()
    assert {line.partition("=")[0] for line in lines} == {"version", "cluster.id", "node.id", "directory.id"}


def test_new_directory_is_its_owners(tmp_path: Path) -> None:
    """The records and the keys of users are in it; the mode of an existing directory stays."""
    before = os.umask(0o022)
    try:
        open_directory(tmp_path / "parent" / "new").close(clean=True)
        (tmp_path / "old").mkdir()
        open_directory(tmp_path / "old").close(clean=True)
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "parent", *tmp_path.rglob("new"))}
    assert modes == {"parent": 0o755, "new": 0o700}
    assert (tmp_path / "old").stat().st_mode & 0o777 == 0o755


def test_failing_disk_does_not_report_missing_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name in a damaged directory is not free: otherwise the log's start would be forgotten and overwritten."""
    directory = open_directory(tmp_path / "data")
    directory.log_start_offsets.advance({("clicks", 0): 7})
    directory.close(clean=False)
    stat = os.stat

    def failing(path: Any, *arguments: Any, **named: Any) -> os.stat_result:
        if str(path).endswith(LOG_START_FILE):
            raise OSError(errno.EIO, "Input/output error")
        return stat(path, *arguments, **named)

    with monkeypatch.context() as damaged:
        damaged.setattr(os, "stat", failing)
        with pytest.raises(OSError, match="Input/output error"):
            open_directory(tmp_path / "data")
    assert not RealDisk().exists(tmp_path / "data" / "meta.properties" / "below a file")
    assert open_directory(tmp_path / "data").log_start_offsets.get("clicks", 0) == 7


def test_a_second_broker_is_refused(tmp_path: Path) -> None:
    directory = open_directory(tmp_path)
    with pytest.raises(DataDirectoryRefused, match=rf"in use by another broker \(pid {os.getpid()}\)"):
        open_directory(tmp_path)
    directory.close(clean=False)
    open_directory(tmp_path).close(clean=False)


@pytest.mark.remedy(Remedy.OTHER_DATA)
def test_another_clusters_directory_is_refused(tmp_path: Path) -> None:
    open_directory(tmp_path, cluster_id="AAAAAAAAAAAAAAAAAAAAAA").close(clean=False)
    for _ in range(2):
        with pytest.raises(DataDirectoryRefused, match=r"belongs to cluster A{22}, not to B") as cluster:
            open_directory(tmp_path, cluster_id="BBBBBBBBBBBBBBBBBBBBBA")
        with pytest.raises(DataDirectoryRefused, match="node 1, not to 2") as node:
            open_directory(tmp_path, node_id=2)
        for raised in (cluster, node):
            remedies.find(Remedy.OTHER_DATA, raised.value)
    open_directory(tmp_path / "other", node_id=2, cluster_id="BBBBBBBBBBBBBBBBBBBBBA").close(clean=False)
    open_directory(tmp_path).close(clean=False)


@pytest.mark.remedy(Remedy.FIX_META)
@pytest.mark.parametrize(
    "content", ["", "version=1\n", "version=2\ncluster.id=AAAAAAAAAAAAAAAAAAAAAA\nnode.id=1", "\0"]
)
def test_a_damaged_meta_file_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "meta.properties").write_text(content)
    with pytest.raises(DataDirectoryRefused, match=r"meta\.properties is damaged") as raised:
        open_directory(tmp_path)
    remedies.find(Remedy.FIX_META, raised.value)
    (tmp_path / "meta.properties").write_text("version=1\ncluster.id=AAAAAAAAAAAAAAAAAAAAAA\nnode.id=1\n")
    open_directory(tmp_path).close(clean=False)


@pytest.mark.remedy(Remedy.RESTORE_OFFSETS, Remedy.REMOVE_OFFSETS)
@pytest.mark.parametrize(("is_restored", "begin"), [(True, 7), (False, 0)])
def test_a_damaged_file_of_offsets(tmp_path: Path, is_restored: bool, begin: int) -> None:
    directory = open_directory(tmp_path)
    directory.log_start_offsets.advance({("clicks", 0): 7})
    directory.close(clean=False)
    offsets = tmp_path / LOG_START_FILE
    copy = offsets.read_text()
    offsets.write_text("torn")
    with pytest.raises(DataDirectoryRefused, match=f"{LOG_START_FILE} is damaged") as raised:
        open_directory(tmp_path)
    remedies.find(Remedy.RESTORE_OFFSETS, raised.value)
    remedies.find(Remedy.REMOVE_OFFSETS, raised.value)
    if is_restored:
        offsets.write_text(copy)
    else:
        offsets.unlink()
    directory = open_directory(tmp_path)
    assert directory.log_start_offsets.get("clicks", 0) == begin
    directory.close(clean=False)


def test_directory_with_unknown_files_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A home folder, or the parent of the demo's data."""
    demo = tmp_path / ".onceflow"
    for name in ("broker", "redis", "logs"):
        (demo / name).mkdir(parents=True)
    (demo / "broker" / "lost+found").mkdir()
    (demo / "broker" / "meta.properties.tmp").touch()  # As after a crash in the first start.
    open_directory(demo / "broker").close(clean=False)
    assert not caplog.text
    open_directory(demo).close(clean=False)
    (line,) = caplog.messages
    assert line == (
        f"{demo} has no meta.properties but contains broker, logs, redis; the broker creates its files beside them; "
        f"{demo / 'broker'} is a broker's data directory"
    )
    open_directory(demo).close(clean=False)
    assert len(caplog.messages) == 1, "it is the broker's own now"


def test_kafkas_own_meta_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "meta.properties").write_text(
        "#\n#Sat Nov 21 08:52:46 UTC 2026\nnode.id=1\ndirectory.id=J9ncfwOu0m2azT1ZMKQEPw\nversion=1\n"
        "cluster.id=J9ncfwOu0m2azT1ZMKQEPw\n"
    )
    directory = open_directory(tmp_path)
    assert directory.cluster_id == "J9ncfwOu0m2azT1ZMKQEPw"
    directory.close(clean=True)


def test_clean_is_true_once(tmp_path: Path) -> None:
    open_directory(tmp_path).close(clean=True)
    directory = open_directory(tmp_path)
    assert directory.clean
    directory.close(clean=False)
    directory = open_directory(tmp_path)
    assert not directory.clean
    directory.close(clean=False)


def test_rule_4_clean_file_is_removed_first(tmp_path: Path) -> None:
    root = tmp_path / "data"
    root.mkdir()
    disk = FaultyDisk(root)
    DataDirectory.open(root, disk=disk).close(clean=True)
    directory = DataDirectory.open(root, disk=disk)
    assert directory.clean
    disk.crash(1, drop_all=True)
    again = DataDirectory.open(root, disk=disk)
    assert (again.clean, again.cluster_id) == (False, directory.cluster_id)
    for opened in (directory, again):
        opened.close(clean=False)


def test_partitions_are_found_and_deleted(tmp_path: Path) -> None:
    root = tmp_path / "data"
    root.mkdir()
    disk = FaultyDisk(root)
    directory = DataDirectory.open(root, disk=disk)
    expected = [("__consumer_offsets", 0), ("a-b.c_d", 3), ("a-b.c_d", 12)]
    for topic, partition in [*expected, ("gone", 0)]:
        log = open_log(directory.partition_path(topic, partition), disk=disk)
        log.append(batch(b"x"))
        log.close()
    (root / "not a partition").mkdir()
    directory.delete_partition("gone", 0)
    directory.delete_partition("gone", 0)
    assert sorted(directory.partitions()) == sorted(expected)
    directory.close(clean=False)
    for seed in range(20):
        disk.crash(seed)
        directory = DataDirectory.open(root, disk=disk)
        assert sorted(directory.partitions()) == sorted(expected)
        assert not list(root.glob("*-delete"))
        directory.close(clean=False)


def test_deletion_is_durable_after_failed_sync(tmp_path: Path) -> None:
    """Repeated, it finds no directory; the deleted one must not return instead of the next topic's."""
    disk = FaultyDisk(tmp_path)
    directory = DataDirectory.open(tmp_path, disk=disk)
    log = open_log(tmp_path / "t-0", disk=disk)
    log.append(batch(b"deleted"))
    sync(log)
    log.close()
    disk.fail_next_directory_syncs()
    with pytest.raises(OSError):
        directory.delete_partition("t", 0)
    directory.delete_partition("t", 0)
    disk.crash(1, drop_all=True)
    directory.close(clean=False)
    assert list(DataDirectory.open(tmp_path, disk=disk).partitions()) == []


def test_offsets_are_only_lowered(tmp_path: Path) -> None:
    disk = FaultyDisk(tmp_path)
    directory = DataDirectory.open(tmp_path, disk=disk)
    directory.log_start_offsets.advance({("t", 0): 5})
    directory.high_watermarks.advance({("t", 0): 9})
    directory.cleaner_offsets.advance({("t", 0): 6})
    for offset, expected in ((7, (5, 6, 7)), (8, (5, 6, 7)), (3, (3, 3, 3))):
        directory.lower_offsets("t", 0, offset)
        disk.crash(1, drop_all=True)
        directory.close(clean=False)
        directory = DataDirectory.open(tmp_path, disk=disk)
        files = (directory.log_start_offsets, directory.cleaner_offsets, directory.high_watermarks)
        assert tuple(offsets.get("t", 0) for offsets in files) == expected
    directory.close(clean=False)


@pytest.mark.remedy(Remedy.MOVE_AWAY)
def test_topic_id_belongs_to_the_log(tmp_path: Path) -> None:
    def open_with(topic_id: int) -> PartitionLog:
        clock = ManualClock(NOW_MS)
        path = tmp_path / "clicks-0"
        return PartitionLog.open(
            path, LogConfig(), disk=RealDisk(), clock=clock, clean=False, topic_id=UUID(int=topic_id)
        )

    open_with(1)
    open_with(1)
    assert (tmp_path / "clicks-0" / "partition.metadata").read_text() == (
        "version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ"
    )
    assert (tmp_path / "clicks-0" / "leader-epoch-checkpoint").read_text() == "0\n1\n0 0\n"
    with pytest.raises(DataDirectoryRefused, match=r"AAAAAAAAAAAAAAAAAAAAAQ.*AAAAAAAAAAAAAAAAAAAAAg") as raised:
        open_with(2)
    remedies.find(Remedy.MOVE_AWAY, raised.value)
    (tmp_path / "clicks-0").rename(tmp_path / "away")
    open_with(2)


def test_every_new_directory_is_made_durable(tmp_path: Path) -> None:
    synced: list[Path] = []

    class Watched(RealDisk):
        def sync_directory(self, path: Path) -> None:
            synced.append(path)
            super().sync_directory(path)

    DataDirectory.open(tmp_path / "a" / "b" / "c", disk=Watched()).close(clean=True)
    assert {tmp_path, tmp_path / "a", tmp_path / "a" / "b"} <= set(synced)


class SyncCount(RealDisk):
    """A disk that counts syncs of files and directories."""

    def __init__(self) -> None:
        self.count = 0

    def sync_directory(self, path: Path) -> None:
        self.count += 1
        super().sync_directory(path)


def test_creating_logs_syncs_no_names(tmp_path: Path) -> None:
    disk = SyncCount()
    logs = [open_log(tmp_path / f"t-{number}", disk=disk) for number in range(20)]
    assert disk.count == 0
    logs[3].append(batch(b"a"))
    sync(logs[3])
    assert disk.count == 2, "the log's directory and the one above it"
    logs[3].append(batch(b"b"))
    sync(logs[3])
    assert disk.count == 2


@pytest.mark.parametrize("is_written", [True, False], ids=["after its first record", "before"])
@pytest.mark.parametrize("seed", range(30))
def test_a_power_cut_of_a_new_log(seed: int, is_written: bool, scratch: Path) -> None:
    """Its names and its id may be lost or torn until its first record is durable, but not afterwards."""
    disk = FaultyDisk(scratch)
    topic_id = UUID(int=7)

    def opened() -> PartitionLog:
        return PartitionLog.open(
            scratch / "t-0", LogConfig(), disk=disk, clock=ManualClock(), clean=False, topic_id=topic_id
        )

    log = opened()
    sent = [b"a"] if is_written else []
    for value in sent:
        log.append(batch(value))
        sync(log)
    disk.crash(seed, drop_all=seed == 0)
    log = opened()
    assert values(log) == sent
    log.append(batch(b"b"))
    sync(log)
    disk.crash(seed, drop_all=True)
    assert values(opened()) == [*sent, b"b"]
    assert (scratch / "t-0" / "partition.metadata").read_text() == f"version: 0\ntopic_id: {encode_uuid(topic_id)}"
    assert (scratch / "t-0" / "leader-epoch-checkpoint").read_text() == "0\n1\n0 0\n"


def test_roll_before_the_first_sync(scratch: Path) -> None:
    """A power cut may keep any names: later records without the first ones would leave a gap in the log."""
    for seed in range(100):
        directory, disk = scratch / str(seed), FaultyDisk(scratch)
        log = open_log(directory, disk=disk, segment_bytes=200)
        while len(log.segments.in_order) < 3:
            log.append(batch(b"a" * 50))
        disk.crash(seed)
        log = open_log(directory, disk=disk, segment_bytes=200)
        assert log.log_start_offset == 0
        assert [record.offset for record in records(log)] == list(range(log.log_end_offset))
        log.close()


def test_log_closed_empty_keeps_first_record(scratch: Path) -> None:
    """A clean stop of an empty log syncs none of its names; the first record after the next start must."""
    disk = FaultyDisk(scratch)
    open_log(scratch / "t-0", disk=disk).close()
    log = open_log(scratch / "t-0", disk=disk, clean=True)
    log.append(batch(b"a"))
    sync(log)
    disk.crash(0, drop_all=True)
    assert values(open_log(scratch / "t-0", disk=disk)) == [b"a"]


def test_epochs_of_other_nodes_are_rewritten(scratch: Path) -> None:
    log = open_log(scratch / "t-0")
    log.append(batch(b"a"))
    log.close()
    (scratch / "t-0" / "leader-epoch-checkpoint").write_text("0\n1\n0  \n")
    assert values(open_log(scratch / "t-0")) == [b"a"]
    assert (scratch / "t-0" / "leader-epoch-checkpoint").read_text() == "0\n1\n0 0\n"
