"""Leader epochs of a replica's log: assigned, durable before they are visible, and recovered after a crash."""

import random
from collections import Counter
from pathlib import Path

import pytest

from onceflow.log import recovery
from onceflow.log.checkpoint import LEADER_EPOCH
from onceflow.log.epochs import EPOCHS_FILE, UNKNOWN_END, LeaderEpochs, parse_epochs
from onceflow.log.errors import OffsetOutOfRange
from onceflow.log.partition import PartitionLog
from onceflow.testing import FaultyDisk, PowerCut
from onceflow.testing import disk as faulty_disk
from onceflow.wire.batch import batches
from tests.campaigns import RecordProperty, tell
from tests.log.partition_logs import batch, open_log, sync, values

SEEDS = 60
SEEDS_CAMPAIGN = 3_000


def epochs_of_batches(log: PartitionLog) -> list[tuple[int, int]]:
    """Return (epoch, offset of its first batch) as the log's batches say."""
    epochs = LeaderEpochs()
    offset = log.log_start_offset
    while (piece := log.visible.read(offset, 1 << 20)) is not None:
        for _, header in batches(piece.read()):
            epochs.assign(header.partition_leader_epoch, header.base_offset)
            offset = header.last_offset + 1
    return epochs.entries()


def lines(directory: Path) -> list[str]:
    return (directory / EPOCHS_FILE).read_text().splitlines()


@pytest.mark.parametrize(
    ("epoch", "expected"),
    [(-2, (-2, 0)), (-1, UNKNOWN_END), (0, (0, 0)), (1, (1, 10)), (2, (1, 10)), (3, (3, 20)), (5, (5, 30))],
)
def test_ends_of_epochs_as_in_kafka(epoch: int, expected: tuple[int, int]) -> None:
    epochs = LeaderEpochs([(1, 0), (3, 10), (5, 20)])
    assert epochs.end_of(epoch, 0, 30) == expected
    assert epochs.end_of(6, 0, 30) == UNKNOWN_END
    assert LeaderEpochs().end_of(0, 0, 0) == UNKNOWN_END


def test_deleted_epochs_end_at_log_start() -> None:
    """Kafka removes the entries of deleted records, and keeps the last of them at the log's start."""
    epochs = LeaderEpochs([(1, 0), (3, 10), (5, 20)])
    assert [epochs.end_of(epoch, 15, 30) for epoch in (1, 2, 3, 4)] == [(1, 15), (2, 15), (3, 20), (3, 20)]
    assert epochs.encode(15) == b"0\n2\n3 15\n5 20\n"
    assert [epochs.end_of(epoch, 15, 30) for epoch in (1, 2, 3, 4)] == [(1, 15), (2, 15), (3, 20), (3, 20)]


def test_conflicting_entries_are_removed() -> None:
    epochs = LeaderEpochs([(1, 0), (3, 10), (5, 20)])
    epochs.assign(5, 25)
    assert not epochs.is_changed, "a later batch of the same epoch"
    epochs.assign(6, 10)
    assert epochs.entries() == [(1, 0), (6, 10)]
    epochs.assign(4, 30)
    assert epochs.entries() == [(1, 0), (4, 30)]
    epochs.truncate_from_end(30)
    assert epochs.entries() == [(1, 0)]
    assert [epochs.epoch_at(offset) for offset in (0, 99)] == [1, 1]
    assert LeaderEpochs([(1, 5)]).epoch_at(4) == -1


def test_epoch_continues_after_an_empty_one() -> None:
    """A leader without a record of its own copies the rest of the epoch before from the next leader."""
    epochs = LeaderEpochs([(0, 0), (1, 2)])
    epochs.assign(0, 2)
    assert (epochs.entries(), epochs.is_changed) == ([(0, 0)], True)


@pytest.mark.parametrize(
    "content", [b"", b"\0\0\0", b"1\n0\n", b"0\n2\n1 0\n", b"0\n2\n1 0\n1 5\n", b"0\n2\n1 5\n2 5\n", b"0\n1\n1 x\n"]
)
def test_damaged_files_are_recognized(content: bytes) -> None:
    assert parse_epochs(content) is None


def test_epochs_are_durable_before_visible(scratch: Path) -> None:
    log = open_log(scratch / "t-0", is_replica=True)
    assert lines(log.directory) == ["0", "0"]
    log.begin_epoch(4)
    log.append(batch(b"a"))
    log.append(batch(b"b"))
    assert lines(log.directory) == ["0", "0"]
    sync(log)
    assert lines(log.directory) == ["0", "1", "4 0"]
    log.begin_epoch(7)
    log.append_marker(9, 0, commit=True)
    sync(log)
    assert lines(log.directory) == ["0", "2", "4 0", "7 2"]
    assert epochs_of_batches(log) == log.epochs.entries() == [(4, 0), (7, 2)]
    assert (log.end_of_epoch(4), log.end_of_epoch(7)) == ((4, 2), (7, 3))


def test_epochs_not_written_delay_visibility(scratch: Path) -> None:
    disk = FaultyDisk(scratch)
    log = open_log(scratch / "t-0", disk=disk, is_replica=True)
    log.begin_epoch(1)
    log.append(batch(b"a"))
    disk.space_bytes = 0
    sync(log)
    assert (log.high_watermark, log.durability.failure) == (0, None)
    disk.space_bytes = None
    sync(log)
    assert (log.high_watermark, lines(log.directory)) == (1, ["0", "1", "1 0"])


def test_divergence_of_a_reader(scratch: Path) -> None:
    log = open_log(scratch / "t-0", is_replica=True)
    for epoch in (1, 3):
        log.begin_epoch(epoch)
        log.append(batch(b"a", b"b"))
    assert [log.divergence(offset, 1) for offset in (1, 2, 3)] == [None, None, (1, 2)]
    assert [log.divergence(offset, 3) for offset in (4, 5)] == [None, (3, 4)]
    assert log.divergence(2, 2) == (1, 2), "an epoch without records here"
    for offset, epoch in ((4, 4), (-1, 1)):
        with pytest.raises(OffsetOutOfRange):
            log.divergence(offset, epoch)


def test_clean_start_keeps_epochs(scratch: Path) -> None:
    log = open_log(scratch / "t-0", is_replica=True)
    for epoch in (2, 5):
        log.begin_epoch(epoch)
        log.append(batch(b"a"))
    log.begin_epoch(8)
    log.close()
    reopened = open_log(scratch / "t-0", clean=True, is_replica=True)
    assert reopened.epochs.entries() == [(2, 0), (5, 1)], "an epoch without a batch is forgotten"
    assert not reopened.epochs.is_changed


@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("content", [None, b"0\n2\n1 0\n"])
def test_lost_file_is_rebuilt_from_batches(scratch: Path, clean: bool, content: bytes | None) -> None:
    log = open_log(scratch / "t-0", is_replica=True, segment_bytes=300)
    for epoch in (1, 1, 4, 4, 6):
        log.begin_epoch(epoch)
        for _ in range(4):
            log.append(batch(b"a" * 50))
    log.close()
    path = log.directory / EPOCHS_FILE
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    reopened = open_log(scratch / "t-0", clean=clean, is_replica=True)
    assert reopened.epochs.entries() == [(1, 0), (4, 8), (6, 16)]
    assert lines(log.directory) == ["0", "3", "1 0", "4 8", "6 16"]


def test_log_without_replicas_has_one_epoch(scratch: Path) -> None:
    log = open_log(scratch / "t-0")
    log.append(batch(b"a"))
    assert (log.leader_epoch, log.end_of_epoch(LEADER_EPOCH)) == (0, (0, 1))
    log.close()
    assert lines(log.directory) == ["0", "1", "0 0"]


def live(root: Path, seed: int) -> int:
    """Let one replica lead in ever later epochs over power cuts and kills; return how many epochs survived."""
    root.mkdir()
    source, disk = random.Random(seed), FaultyDisk(root)
    epoch, promised = 0, 0
    for _ in range(4):
        try:
            log = open_log(root / "t-0", disk=disk, is_replica=True, segment_bytes=700)
            recovered = epochs_of_batches(log)
            assert len(values(log)) >= promised
            assert log.epochs.entries() == recovered
            assert parse_epochs((root / "t-0" / EPOCHS_FILE).read_bytes()) is not None
            disk.cut_power_after(source.randrange(1, 60))
            log.begin_epoch(epoch := epoch + 1)
            while True:
                if source.random() < 0.3:
                    log.begin_epoch(epoch := epoch + source.randrange(1, 3))
                log.append(batch(bytes(source.randrange(200))))
                if source.random() < 0.5:
                    sync(log)
                    promised = log.high_watermark
        except PowerCut:
            if source.random() < 0.3:
                disk.kill()
            else:
                disk.crash(source.randrange(1 << 30), drop_all=source.random() < 0.2)
    log = open_log(root / "t-0", disk=disk, is_replica=True, segment_bytes=700)
    assert log.epochs.entries() == epochs_of_batches(log)
    return len(log.epochs.entries())


def run_seeds(scratch: Path, seeds: range, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    survived = 0
    # A batch's CRC does not cover its leader epoch: recovery cannot see a flipped bit there.
    monkeypatch.setattr(faulty_disk, "FLIPPED_SUFFIXES", ())
    for seed in seeds:
        # Half of the lives recover from the newest snapshot, below which the file alone has the epochs.
        monkeypatch.setattr(recovery, "RECHECK_BYTES", 0 if seed % 2 else 1 << 26)
        try:
            survived += live(scratch / str(seed), seed)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error!r}") from error
    return Counter({"leader epochs kept": survived})


def test_epochs_survive_crashes(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_seeds(scratch, range(SEEDS), monkeypatch).total() > SEEDS


@pytest.mark.campaign
def test_many_crashes_of_replicas(
    scratch: Path, monkeypatch: pytest.MonkeyPatch, record_property: RecordProperty
) -> None:
    """The leader epochs of a log are those of its batches after power cuts and kills."""
    seeds = range(SEEDS, SEEDS + SEEDS_CAMPAIGN)
    tell(record_property, seeds, run_seeds(scratch, seeds, monkeypatch))
