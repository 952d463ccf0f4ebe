"""Any number of segments with few descriptors."""

import multiprocessing
import resource
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from onceflow.log import swap
from onceflow.log.disk import RealDisk
from onceflow.log.errors import StorageFailed
from onceflow.testing import FaultyDisk
from tests.log.partition_logs import NOW_MS, batch, open_log, sync, values
from tests.log.test_partition import ShortDisk

DESCRIPTORS = 70
SEGMENTS = 150
LOGS = 120


def with_few_descriptors(run: Callable[..., None], *arguments: object) -> None:
    """Run in a separate process, where no other files are open."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"), initializer=limit_descriptors) as pool:
        pool.submit(run, *arguments).result(60)


def limit_descriptors() -> None:
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, hard))


def read_many_segments(directory: Path, clean: bool) -> None:
    log = open_log(directory, clean=clean)
    assert len(values(log)) == SEGMENTS
    assert log.visible.search_timestamp(NOW_MS)() == (NOW_MS, 0)
    for offset in range(SEGMENTS):
        fetched = log.visible.read(offset, 1)
        assert fetched is not None
        assert b"%03d" % offset * 10 in fetched.read()


@pytest.mark.parametrize("clean", [True, False])
def test_many_segments_need_few_descriptors(clean: bool, tmp_path: Path) -> None:
    log = open_log(tmp_path / "clicks-0", segment_bytes=150, index_interval_bytes=1)
    for number in range(SEGMENTS):
        log.append(batch(b"%03d" % number * 10))
        sync(log)
    log.close()
    with_few_descriptors(read_many_segments, tmp_path / "clicks-0", clean)


def write_many_logs(directory: Path) -> None:
    logs = [open_log(directory / f"clicks-{number}") for number in range(LOGS)]
    for _ in range(2):
        for log in logs:
            log.append(batch(b"x" * 31))
            sync(log)
    for log in logs:
        log.close()
    again = [open_log(directory / f"clicks-{number}", clean=True) for number in range(LOGS)]
    assert all(len(values(log)) == 2 for log in again)


def test_many_logs_need_few_descriptors(tmp_path: Path) -> None:
    with_few_descriptors(write_many_logs, tmp_path)


def test_file_with_unsynced_bytes_stays_open(tmp_path: Path) -> None:
    """A later descriptor might not report that the write failed."""
    disk = FaultyDisk(tmp_path)
    log = open_log(tmp_path / "clicks-0", disk=disk)
    active = log.segments.active
    log.append(batch(b"a"))
    written = active.file
    point = log.durability.begin_sync()
    assert point is not None
    assert not active.release_if_idle()
    assert not active.release_if_idle()
    point.run()
    log.append(batch(b"b"))
    log.durability.end_sync(point)
    assert not active.release_if_idle(), "the second batch came during the round"
    assert active.file is written
    sync(log)
    assert not active.release_if_idle(), "it was used"
    assert active.release_if_idle()
    assert values(log) == [b"a", b"b"]
    assert active.file is not written


def test_renamed_segment_stays_readable(tmp_path: Path) -> None:
    """Another file has the name by then."""
    log = open_log(tmp_path / "clicks-0", segment_bytes=150)
    for value in (b"a" * 31, b"b" * 31):
        log.append(batch(value))
    sync(log)
    fetched, search = log.visible.read(0, 1000), log.visible.search_timestamp(NOW_MS)
    assert fetched is not None
    sealed = log.segments.in_order[0]
    while not sealed.release_if_idle():
        pass
    retired = swap.retire(RealDisk(), log.directory, [sealed])
    for path in (sealed.path, sealed.offset_index.path, sealed.time_index.path):
        path.write_bytes(b"another's")
    assert not sealed.release_if_idle()
    swap.remove_retired(RealDisk(), retired)
    assert search() == (NOW_MS, 0)
    assert b"a" * 31 in fetched.read()


def test_missing_descriptor_refuses_one_append(tmp_path: Path) -> None:
    disk = ShortDisk()
    log = open_log(tmp_path / "clicks-0", disk=disk)
    log.append(batch(b"a"))
    sync(log)
    while not log.segments.active.release_if_idle():
        pass
    disk.refused = (".log",)
    with pytest.raises(StorageFailed, match="could not be written"):
        log.append(batch(b"b"))
    disk.refused = ()
    log.append(batch(b"b"))
    sync(log)
    assert values(log) == [b"a", b"b"]
