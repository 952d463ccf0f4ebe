"""Rounds of syncs are bounded and fair: a request to thousands of partitions does not delay other clients."""

import errno
import threading
from collections import Counter
from pathlib import Path

import pytest

from onceflow.broker.storage import group_commit
from onceflow.broker.storage.group_commit import FairQueue
from onceflow.broker.storage.partitions import Partition, close_all
from onceflow.log.config import LogConfig
from onceflow.log.disk import Disk, RealDisk, RealFile, SyncNotBegun
from onceflow.log.partition import PartitionLog
from onceflow.log.sync import run_round
from onceflow.testing import FaultyDisk, ManualClock
from onceflow.wire import produce
from onceflow.wire.errors import ErrorCode
from tests.broker.driven_broker import DrivenBroker, InnerBroker, eventually
from tests.broker.raw_client import PRODUCE_VERSION, RawClient, batch_of, connected

WIDE = 200


def queue_of(**wanted: list[int]) -> tuple[FairQueue, dict[int, Partition]]:
    """A queue in which each requester wants some of ten partitions."""
    partitions = {index: Partition("t", index, None) for index in range(10)}  # type: ignore[arg-type]
    queue = FairQueue()
    for requester, indexes in wanted.items():
        for index in indexes:
            queue.add(partitions[index], requester)
    return queue, partitions


def taken(queue: FairQueue, count_max: int) -> list[int]:
    return [partition.index for partition in queue.take(count_max, lambda _partition: 1)]


def test_requesters_take_turns() -> None:
    queue, _ = queue_of(wide=[0, 1, 2, 3, 4], narrow=[7], other=[8, 9])
    assert taken(queue, 4) == [0, 7, 8, 1]
    assert taken(queue, 4) == [9, 2, 3, 4]
    assert taken(queue, 4) == []


def test_a_new_requester_comes_next() -> None:
    """Those of the round are behind it once: they cannot be overtaken again and again."""
    queue, partitions = queue_of(wide=[0, 1, 2, 3], other=[4, 5])
    assert taken(queue, 2) == [0, 4]
    queue.add(partitions[6], "new")
    queue.add(partitions[3], "wide")
    assert taken(queue, 2) == [6, 1]
    for index in (7, 8, 9):
        queue.add(partitions[index], f"new {index}")
    assert taken(queue, 2) == [5, 7]
    assert taken(queue, 9) == [8, 9, 2, 3]
    assert taken(queue, 9) == []


def test_a_shared_partition_is_taken_once() -> None:
    queue, _ = queue_of(wide=[0, 1, 2, 3], narrow=[3])
    assert taken(queue, 2) == [0, 3]
    assert taken(queue, 9) == [1, 2]


def test_a_discarded_partition_is_not_taken() -> None:
    queue, partitions = queue_of(wide=[0, 1, 2], narrow=[3])
    queue.discard(partitions[0])
    queue.discard(partitions[3])
    assert taken(queue, 9) == [1, 2]
    queue.add(partitions[3], "narrow")
    assert taken(queue, 9) == [3]


def test_what_must_be_first_overtakes() -> None:
    """Also a partition that waits in another place already."""
    queue, partitions = queue_of(wide=[0, 1, 2], narrow=[3])
    assert taken(queue, 1) == [0]
    queue.add_first(partitions[2])
    queue.add_first(partitions[9])
    assert taken(queue, 9) == [9, 2, 3, 1]


def test_a_round_is_bounded_by_its_files() -> None:
    """Partition 1 has as many files to sync as six others, and is taken while there is anything left of the bound."""
    queue, _ = queue_of(wide=[0, 1, 2, 3], narrow=[7, 8])
    rounds = [[partition.index for partition in queue.take(4, lambda p: 6 if p.index == 1 else 1)] for _ in range(3)]
    assert rounds == [[0, 7, 1], [8, 2, 3], []]


def test_only_a_lone_partition_is_taken_uncounted() -> None:
    queue, partitions = queue_of(wide=[0], narrow=[1])
    rounds = [[partition.index for partition in queue.take(4, lambda _partition: 6)] for _ in range(3)]
    assert rounds == [[0], [1], []]
    assert not queue._queues, "no requester stays"
    queue.add(partitions[1], "wide")
    assert taken(queue, 4) == [1]


class HeldDisk(RealDisk):
    """Holds every sync of a log until it is released, and counts those of directories."""

    def __init__(self) -> None:
        self.released = threading.Event()
        self.released.set()
        self.synced: list[str] = []
        self.directories: Counter[Path] = Counter()

    def open(self, path: Path, *, create: bool = False) -> RealFile:
        opened = super().open(path, create=create)
        return HeldFile(self, path, opened) if path.suffix == ".log" else opened

    def sync_directory(self, path: Path) -> None:
        self.directories[path] += 1
        super().sync_directory(path)


class HeldFile(RealFile):
    def __init__(self, disk: HeldDisk, path: Path, opened: RealFile) -> None:
        super().__init__(opened.fileno())
        opened._descriptor = -1
        self._disk = disk
        self._name = path.parent.name

    def sync_data(self) -> None:
        assert self._disk.released.wait(20)
        super().sync_data()
        self._disk.synced.append(self._name)

    __slots__ = ("_disk", "_name")


def send_wide(client: RawClient, topic: str, partitions: int) -> None:
    """Return a request with one record for each partition."""
    batch = batch_of(b"wide")
    topics = [(topic, [(index, batch) for index in range(partitions)])]
    pieces = produce.encode_request(
        PRODUCE_VERSION, 1, "raw", transactional_id=None, acks=-1, timeout_ms=10_000, topics=topics
    )
    client.socket.sendall(b"".join(map(bytes, pieces)))


def test_a_neighbour_is_in_the_next_round(tmp_path: Path) -> None:
    """Its only partition is synced before the rest of the wide request, which gets its whole response."""
    disk = HeldDisk()
    broker = InnerBroker(tmp_path / "data", disk=disk)
    with broker, connected(broker.bootstrap) as wide, connected(broker.bootstrap) as narrow:
        wide.create_topic("wide", partitions=WIDE)
        narrow.create_topic("narrow")
        disk.synced.clear()
        disk.released.clear()
        send_wide(wide, "wide", WIDE)
        eventually(lambda: broker.log("wide", WIDE - 1).log_end_offset, "the wide request is in the logs")
        narrow.send_batch("narrow", 0, batch_of(b"narrow"))
        eventually(lambda: broker.log("narrow").log_end_offset, "the narrow one, too")
        disk.released.set()
        assert not narrow.receive_produced().error_code
        _correlation_id, topics, _throttle_ms = produce.parse_response(PRODUCE_VERSION, wide.receive_frame())
        assert [topic.error_code for topic in topics[0][1]] == [0] * WIDE
        assert disk.synced.index("narrow-0") <= group_commit.ROUND_FILES_MAX, "it waits for the round under way"
        assert sorted(disk.synced) == sorted(["narrow-0", *(f"wide-{index}" for index in range(WIDE))])


def test_expired_logs_let_a_neighbour_pass(tmp_path: Path) -> None:
    """Retention seals the segments of all partitions at once; a neighbour waits for few of their syncs."""
    disk = HeldDisk()
    broker = DrivenBroker(tmp_path / "data", disk=disk)
    with broker, connected(broker.bootstrap) as wide, connected(broker.bootstrap) as narrow:
        wide.create_topic("wide", partitions=WIDE, retention_ms="1000")
        narrow.create_topic("narrow", retention_ms="-1")
        send_wide(wide, "wide", WIDE)
        wide.receive_frame()
        assert not narrow.produce("narrow", 0, batch_of(b"first")).error_code
        totals = broker.call(lambda node: node.group_commit.totals)
        rounds_before = totals.rounds
        disk.synced.clear()
        disk.released.clear()
        broker.clock.advance_ms(300_000)
        logs = [broker.log("wide", index) for index in range(WIDE)]
        eventually(lambda: all(log.segments.active.base_offset for log in logs), "all segments are sealed")
        narrow.send_batch("narrow", 0, batch_of(b"narrow"))
        eventually(lambda: broker.log("narrow").log_end_offset == 2, "the neighbour's record is in its log")
        disk.released.set()
        assert not narrow.receive_produced().error_code
        assert disk.synced.index("narrow-0") <= 4, "it waits for the round under way, of two logs with two files each"
        eventually(lambda: len(disk.synced) == 1 + 2 * WIDE, "the rest is synced too")
        eventually(lambda: totals.rounds - rounds_before >= WIDE // 2, "a round takes two logs with a sealed segment")


def test_many_timers_let_a_neighbour_pass(tmp_path: Path) -> None:
    """The timers of a topic's partitions end at once; their syncs are those of one requester."""
    disk = HeldDisk()
    broker = InnerBroker(tmp_path / "data", disk=disk)
    with broker, connected(broker.bootstrap) as wide, connected(broker.bootstrap) as narrow:
        wide.create_topic("wide", partitions=WIDE, flush_ms="500")
        narrow.create_topic("narrow")
        assert not narrow.produce("narrow", 0, batch_of(b"first")).error_code
        disk.released.clear()
        send_wide(wide, "wide", WIDE)
        wide.receive_frame()
        disk.synced.clear()
        eventually(lambda: broker.call(lambda node: not node.group_commit._timers), "the timers have ended")
        narrow.send_batch("narrow", 0, batch_of(b"narrow"))
        eventually(lambda: broker.log("narrow").log_end_offset == 2, "the neighbour's record is in its log")
        disk.released.set()
        assert not narrow.receive_produced().error_code
        assert disk.synced.index("narrow-0") <= group_commit.ROUND_FILES_MAX, "it waits for the round under way"


def test_a_round_syncs_the_data_directory_once(tmp_path: Path) -> None:
    disk = HeldDisk()
    broker = InnerBroker(tmp_path / "data", disk=disk)
    with broker, connected(broker.bootstrap) as wide:
        wide.create_topic("wide", partitions=WIDE)
        disk.directories.clear()
        send_wide(wide, "wide", WIDE)
        wide.receive_frame()
        rounds = -(-WIDE // group_commit.ROUND_FILES_MAX)
        assert disk.directories[broker.data] <= rounds + 1
        assert all(disk.directories[broker.data / f"wide-{index}"] == 1 for index in range(WIDE))


def logs(root: Path, disk: Disk, count: int) -> list[PartitionLog]:
    """Return new logs with one record each."""
    present = [
        PartitionLog.open(root / f"t-{index}", LogConfig(), disk=disk, clock=ManualClock(), clean=False)
        for index in range(count)
    ]
    for log in present:
        log.append(batch_of(b"v"))
    return present


def test_new_logs_survive_a_power_cut(tmp_path: Path) -> None:
    """One sync of their common directory is enough for all, and necessary."""
    for skips_parent in (False, True):
        root = tmp_path / str(skips_parent)
        root.mkdir()
        disk = FaultyDisk(root)
        points = [point for log in logs(root, disk, 5) if (point := log.durability.begin_sync()) is not None]
        if skips_parent:
            for point in points:
                point.run_below()
        else:
            assert run_round(points) == [None] * 5
        disk.crash(0, drop_all=True)
        assert len(disk.names(root)) == (0 if skips_parent else 5)


def test_a_failed_directory_sync_fails_new_logs(tmp_path: Path) -> None:
    """Their own directories are synced: only the common one fails."""

    class FailingDisk(RealDisk):
        error: OSError = OSError(errno.EIO, "EIO")

        def sync_directory(self, path: Path) -> None:
            if path == tmp_path:
                raise self.error
            super().sync_directory(path)

    disk = FailingDisk()
    points = [point for log in logs(tmp_path, disk, 3) if (point := log.durability.begin_sync()) is not None]
    assert run_round(points) == [disk.error] * 3
    disk.error = SyncNotBegun(errno.EMFILE, "EMFILE")
    assert run_round(points) == [None] * 3
    assert not any(point.is_durable for point in points)


def test_unexpected_errors_do_not_end_the_thread(tmp_path: Path) -> None:
    """An exception other than OSError fails the sync too, of a file and of the common directory."""
    for operations in range(4):
        root = tmp_path / str(operations)
        root.mkdir()
        disk = FaultyDisk(root)
        points = [point for log in logs(root, disk, 1) if (point := log.durability.begin_sync()) is not None]
        disk.cut_power_after(operations)
        (error,) = run_round(points)
        assert (error is None) == (operations == 3)


def test_one_failed_sync_fails_one_partition(tmp_path: Path) -> None:
    disk = FaultyDisk(tmp_path)
    points = [point for log in logs(tmp_path, disk, 3) if (point := log.durability.begin_sync()) is not None]
    disk.fail_next_syncs()
    errors = run_round(points)
    assert [error is None for error in errors] == [False, True, True]


def test_many_logs_are_closed_by_several_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them are durable afterwards; a failing one is reported and the others are closed."""
    monkeypatch.setattr("onceflow.broker.storage.partitions.LOGS_PER_CLOSING_THREAD", 2)
    for fails in (False, True):
        root = tmp_path / str(fails)
        root.mkdir()
        disk = FaultyDisk(root)
        partitions = [Partition("t", index, log) for index, log in enumerate(logs(root, disk, 12))]
        if fails:
            disk.fail_next_syncs()
        assert close_all(partitions) is not fails
        disk.crash(0, drop_all=True)
        ends = [
            PartitionLog.open(root / f"t-{index}", LogConfig(), disk=disk, clock=ManualClock(), clean=not fails)
            for index in range(12)
        ]
        assert sum(log.log_end_offset for log in ends) >= 12 - fails


def test_a_failing_partition_in_a_wide_request(tmp_path: Path) -> None:
    """The error is in its own entry of the response."""
    data = tmp_path / "data"
    data.mkdir()
    disk = FaultyDisk(data)
    broker = InnerBroker(data, disk=disk, reserve_bytes=4096)
    with broker, connected(broker.bootstrap) as wide:
        wide.create_topic("wide", partitions=40)
        disk.fail_next_syncs()
        send_wide(wide, "wide", 40)
        _correlation_id, topics, _throttle_ms = produce.parse_response(PRODUCE_VERSION, wide.receive_frame())
        codes = Counter(topic.error_code for topic in topics[0][1])
        assert codes == {0: 39, ErrorCode.kafka_storage_error: 1}
