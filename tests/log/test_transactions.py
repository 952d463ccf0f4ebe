"""Transactions in a partition: stable offsets, aborted transactions, and that restarts change neither.

Tests named `trap` cover errors of other brokers, tests named `rule` the storage rules that re-implementers get wrong;
docs/limits.md and docs/log-format.md describe them.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from onceflow.log import errors
from onceflow.log.config import LogConfig
from onceflow.log.first_sequences import WAIT_MS
from onceflow.log.partition import PartitionLog
from onceflow.log.producers import ProducerState
from onceflow.log.transactions import AbortedTransaction
from onceflow.remedies import Remedy
from onceflow.testing import ManualClock
from onceflow.wire.batch import Record, batches, encode_batch, patch_offset, read_header
from tests import remedies
from tests.log import golden_transactions as golden
from tests.log.partition_logs import NOW_MS, batch, open_log, open_transactions, sync, values

SEQUENCE_MAX = 2**31 - 1
CHECK_MS = LogConfig().producer_id_expiration_check_ms
ENTRY_BYTES = 34


def transactional(
    *contents: bytes, producer_id: int = 7, epoch: int = 0, sequence: int = 0, timestamp_ms: int = NOW_MS
) -> bytearray:
    records = [Record(i, timestamp_ms, None, content) for i, content in enumerate(contents)]
    return encode_batch(
        records, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, transactional=True
    )


class Session:
    """A transactional producer that counts its sequences."""

    def __init__(self, log: PartitionLog, producer_id: int, epoch: int = 0) -> None:
        self.log = log
        self.producer_id = producer_id
        self.epoch = epoch
        self.sequence = 0

    def send(self, *contents: bytes) -> int:
        contents = contents or (b"%d" % self.sequence,)
        data = transactional(*contents, producer_id=self.producer_id, epoch=self.epoch, sequence=self.sequence)
        appended = self.log.append(data)
        assert not appended.duplicate
        self.sequence += len(contents)
        return appended.base_offset

    def end(self, *, commit: bool) -> int:
        return self.log.append_marker(self.producer_id, self.epoch, commit=commit).base_offset


def reopened(log: PartitionLog, *, clean: bool, **settings: Any) -> PartitionLog:
    """Reopen the log after a stop, or after a kill (records are in the files, the indexes are not)."""
    sync(log)
    if clean:
        log.close()
    return open_log(log.directory, clean=clean, **settings)


def entries(directory: Path) -> list[tuple[int, ...]]:
    """Return all entries of all transaction indexes on the disk, in order."""
    rows: list[tuple[int, ...]] = []
    for path in sorted(directory.glob("*.txnindex")):
        data = path.read_bytes()
        assert len(data) % ENTRY_BYTES == 0
        rows += [
            tuple(int.from_bytes(data[at + begin : at + begin + 8], "big") for begin in (2, 10, 18, 26))
            for at in range(0, len(data), ENTRY_BYTES)
        ]
    return rows


# Kafka's bytes


def replay_golden(directory: Path) -> PartitionLog:
    """Append the same records and markers at the same times to a log of ours."""
    clock = ManualClock(read_header(golden.LOG).max_timestamp)
    log = open_log(directory, clock=clock)
    for position, header in batches(golden.LOG):
        clock.advance_ms(header.max_timestamp - clock.now_ms())
        if header.is_control:
            is_commit = header.base_offset in (2, 12, 13)
            log.append_marker(header.producer_id, header.producer_epoch, commit=is_commit)
        else:
            data = bytearray(golden.LOG[position : position + header.size_bytes])
            patch_offset(data, 0, 0, -1)
            log.append(data)
    sync(log)
    return log


def check_golden(log: PartitionLog) -> None:
    assert (log.visible.last_stable_offset, log.high_watermark) == (golden.LAST_STABLE_OFFSET, 15)
    for offset, aborted in golden.ABORTED_FROM.items():
        fetched = log.visible.read(offset, 1 << 20, offset_end=log.visible.last_stable_offset)
        assert log.visible.aborted_in(offset, fetched) == aborted, offset


def test_our_files_are_kafkas_byte_for_byte(tmp_path: Path) -> None:
    log = replay_golden(tmp_path / "g-0")
    check_golden(log)
    log.close()
    assert (log.directory / f"{0:020d}.log").read_bytes() == golden.LOG
    assert (log.directory / f"{0:020d}.txnindex").read_bytes() == golden.TRANSACTION_INDEX
    ours = (log.directory / f"{15:020d}.snapshot").read_bytes()
    assert last_entries(ours) == last_entries(golden.SNAPSHOT)
    check_golden(open_log(log.directory, clean=True))


def last_entries(snapshot: bytes) -> dict[int, bytes]:
    """Return producer id → its last entry, the one that counts."""
    return {int.from_bytes(snapshot[at : at + 8], "big"): snapshot[at : at + 46] for at in range(10, len(snapshot), 46)}


def test_kafkas_log_and_snapshot_are_taken_over(tmp_path: Path) -> None:
    directory = tmp_path / "g-0"
    directory.mkdir()
    (directory / f"{0:020d}.log").write_bytes(golden.LOG)
    log = open_log(directory)
    check_golden(log)
    log.close()
    assert (directory / f"{0:020d}.txnindex").read_bytes() == golden.TRANSACTION_INDEX
    (directory / f"{15:020d}.snapshot").write_bytes(golden.SNAPSHOT)
    log = open_log(directory, clean=True)
    check_golden(log)
    assert log.append_marker(3, 0, commit=False).base_offset == 15
    sync(log)
    assert (log.visible.last_stable_offset, log.visible.aborted_transactions(14, 16)) == (16, [(3, 14)])


# Rules of storage


def test_rule_6_producer_in_transaction_never_expires(tmp_path: Path) -> None:
    clock = ManualClock(NOW_MS)
    log = open_log(tmp_path / "clicks-0", clock=clock, producer_id_expiration_ms=CHECK_MS)
    writer = Session(log, 7)
    writer.send()
    log.append(batch(b"idempotent", producer_id=8))
    clock.advance_ms(10 * CHECK_MS)
    log.append(batch(b"newcomer", producer_id=9))
    assert [state.producer_id for state in log.producers.states()] == [7, 9]
    writer.end(commit=True)
    clock.advance_ms(10 * CHECK_MS)
    log.append(batch(b"newcomer", producer_id=10))
    assert [state.producer_id for state in log.producers.states()] == [10]


def test_rule_6_snapshot_outlives_its_segment(tmp_path: Path) -> None:
    log = open_log(tmp_path / "clicks-0", segment_bytes=300)
    writer = Session(log, 7)
    for _ in range(9):
        writer.send()
    sync(log)
    writer.send()
    sync(log)
    bases = sorted(int(path.stem) for path in log.directory.glob("*.log"))
    for path in log.directory.glob("*"):
        if path.stem.isdecimal() and int(path.stem) < bases[-1]:
            path.unlink()
    log = open_log(log.directory, segment_bytes=300)
    assert log.log_start_offset == bases[-1] > 0
    assert open_transactions(log).get(7) == 0
    duplicate = log.append(transactional(b"%d" % 6, sequence=6))
    assert (duplicate.base_offset, duplicate.duplicate) == (6, True)


def test_rule_7_the_last_stable_offset(log: PartitionLog) -> None:
    one, two = Session(log, 1), Session(log, 2)
    log.append(batch(b"plain"))
    sync(log)
    assert log.visible.last_stable_offset == log.high_watermark == 1
    assert one.send() == 1
    assert log.visible.last_stable_offset == 1, "nothing behind the high watermark is stable"
    assert two.send() == 2
    log.append(batch(b"plain, too"))
    sync(log)
    assert (log.visible.last_stable_offset, log.high_watermark) == (1, 4)
    two.end(commit=True)
    sync(log)
    assert log.visible.last_stable_offset == 1, "the earliest open transaction holds it"
    one.end(commit=False)
    assert (open_transactions(log).get(1), open_transactions(log).get(2)) == (None, None)
    assert log.visible.last_stable_offset == 1, "a marker that a power cut could take ends nothing"
    sync(log)
    assert log.visible.last_stable_offset == log.high_watermark == 6


def test_rule_7_marker_waits_for_next_sync(log: PartitionLog) -> None:
    one, two = Session(log, 1), Session(log, 2)
    one.send()
    one.end(commit=True)
    point = log.durability.begin_sync()
    assert point is not None
    two.send()
    two.end(commit=True)
    point.run()
    log.durability.end_sync(point)
    assert (log.visible.last_stable_offset, log.high_watermark) == (2, 2)
    sync(log)
    assert log.visible.last_stable_offset == 4


def test_rule_7_marker_at_high_watermark(log: PartitionLog) -> None:
    writer = Session(log, 1)
    writer.send()
    point = log.durability.begin_sync()
    assert point is not None
    writer.end(commit=True)
    point.run()
    log.durability.end_sync(point)
    assert (log.visible.last_stable_offset, log.high_watermark) == (0, 1)
    sync(log)
    assert log.visible.last_stable_offset == 2


def test_rule_7_flush_policy_makes_markers_stable(tmp_path: Path) -> None:
    log = open_log(tmp_path / "clicks-0", flush_messages=1000)
    writer = Session(log, 1)
    writer.send()
    assert (log.visible.last_stable_offset, log.high_watermark) == (0, 1)
    writer.end(commit=True)
    assert log.visible.last_stable_offset == log.high_watermark == 2


def test_rule_7_index_has_later_stable_offset(log: PartitionLog) -> None:
    one, two, three = (Session(log, number) for number in (1, 2, 3))
    for session in (one, two, three):
        session.send()
    assert two.end(commit=False) == 3
    assert one.end(commit=False) == 4
    assert three.end(commit=False) == 5
    log.close()
    assert entries(log.directory) == [(2, 1, 3, 0), (1, 0, 4, 2), (3, 2, 5, 6)]


@pytest.mark.parametrize("clean", [True, False])
def test_rule_8_aborted_index_of_marker_segment(tmp_path: Path, clean: bool) -> None:
    log = open_log(tmp_path / "clicks-0", segment_bytes=250)
    one, two = Session(log, 1), Session(log, 2)
    one.send()
    two.send()
    for _ in range(10):
        log.append(batch(b"plain"))
        sync(log)
    one.end(commit=False)
    for _ in range(10):
        log.append(batch(b"plain"))
        sync(log)
    two.end(commit=False)
    for _ in range(2):
        sync(log)
        assert log.visible.last_stable_offset == 24
        for begin, end, aborted in [(0, 1, [(1, 0)]), (0, 2, [(1, 0), (2, 1)]), (13, 14, [(2, 1)]), (24, 24, [])]:
            assert log.visible.aborted_transactions(begin, end) == aborted, (begin, end)
        fetched = log.visible.read(0, 1, offset_end=log.visible.last_stable_offset)
        assert log.visible.aborted_in(0, fetched) == [(1, 0), (2, 1)]
        log = reopened(log, clean=clean, segment_bytes=250)
    log.close()
    assert [path.name for path in sorted(log.directory.glob("*.txnindex"))] == [
        f"{base:020d}.txnindex" for base in log.segments.bases if base <= 12 < base + 3 or base <= 23 < base + 3
    ]


def test_rule_8_search_ends_at_stable_offset(tmp_path: Path) -> None:
    log = open_log(tmp_path / "clicks-0", segment_bytes=150)
    for number in range(30):
        writer = Session(log, number)
        writer.send()
        writer.end(commit=False)
        sync(log)
    searched: list[int] = []

    class Watched:
        def __init__(self, index: object) -> None:
            self._index = index

        def __getattr__(self, name: str) -> object:
            if name == "since":
                searched.append(1)
            return getattr(self._index, name)

    for segment in log.segments:
        segment.transaction_index = Watched(segment.transaction_index)  # type: ignore[assignment]
    assert log.visible.aborted_transactions(20, 22) == [(10, 20)]
    assert len(searched) == 1, "later segments cannot name records before offset 22"


def test_rule_8_marker_without_records_is_unindexed(log: PartitionLog) -> None:
    writer = Session(log, 1)
    assert writer.end(commit=False) == 0
    writer.send()
    writer.end(commit=False)
    assert writer.end(commit=False) == 3, "a marker may be repeated"
    writer.send()
    writer.end(commit=True)
    log.close()
    assert entries(log.directory) == [(1, 1, 2, 3)]


def test_rule_8_no_aborted_index_without_abort(log: PartitionLog) -> None:
    writer = Session(log, 1)
    writer.send()
    writer.end(commit=True)
    log.close()
    assert not list(log.directory.glob("*.txnindex"))


def test_rule_8_aborted_index_after_truncation(log: PartitionLog) -> None:
    writer = Session(log, 1)
    writer.send()
    writer.end(commit=False)
    log.close()
    path = log.directory / f"{0:020d}.log"
    path.write_bytes(path.read_bytes()[:-1])
    log = open_log(log.directory)
    assert (log.visible.last_stable_offset, log.log_end_offset, open_transactions(log).get(1)) == (0, 1, 0)
    assert log.visible.aborted_transactions(0, 1) == []
    log.close()
    assert not list(log.directory.glob("*.txnindex"))


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda data: data[:-1], id="cut"),
        pytest.param(lambda data: data + bytes(33), id="half an entry"),
        pytest.param(lambda data: data[:18] + b"\xff" + data[19:], id="negative offset"),
        pytest.param(lambda data: data[:25] + b"\x09" + data[26:], id="a marker behind the log's end"),
    ],
)
def test_rule_8_damaged_aborted_index_is_rebuilt(log: PartitionLog, damage: Callable[[bytes], bytes]) -> None:
    writer = Session(log, 1)
    writer.send()
    writer.end(commit=False)
    log.close()
    path = log.directory / f"{0:020d}.txnindex"
    path.write_bytes(damage(path.read_bytes()))
    log = open_log(log.directory, clean=True)
    assert log.visible.aborted_transactions(0, 1) == [(1, 0)]


def test_rule_9_marker_is_a_control_batch(log: PartitionLog) -> None:
    Session(log, 1).send()
    assert log.append_marker(1, 0, commit=True, coordinator_epoch=5) == (1, 1, False, -1)
    sync(log)
    fetched = log.visible.read(1, 1 << 20)
    assert fetched is not None
    header = read_header(fetched.read())
    assert (header.attributes, header.record_count, header.base_sequence, log.log_end_offset) == (0x30, 1, -1, 2)
    assert log.producers.states() == [ProducerState(1, 0, 0, NOW_MS, 5, -1)]


def test_rule_9_marker_may_roll_the_segment(tmp_path: Path) -> None:
    log = open_log(tmp_path / "clicks-0", segment_bytes=100)
    Session(log, 1).send()
    Session(log, 1).end(commit=True)
    assert sorted(path.name for path in log.directory.glob("*.log")) == [f"{base:020d}.log" for base in (0, 1)]


def test_rule_9_clients_cannot_write_markers(log: PartitionLog) -> None:
    marker = encode_batch(
        [Record(0, NOW_MS, bytes(4), bytes(6))],
        producer_id=1, producer_epoch=0, base_sequence=0, transactional=True, control=True,
    )  # fmt: skip
    with pytest.raises(errors.InvalidRecord, match="a control batch; only a broker writes those"):
        log.append(marker)


def test_rule_9_older_coordinator_epoch_is_refused(log: PartitionLog) -> None:
    log.append_marker(1, 3, commit=True, coordinator_epoch=2)
    with pytest.raises(errors.TransactionCoordinatorFenced, match="coordinator epoch 1 arrived after one of 2"):
        log.append_marker(1, 3, commit=True, coordinator_epoch=1)
    with pytest.raises(errors.InvalidProducerEpoch, match="epoch 2 arrived, the current one is 3"):
        log.append_marker(1, 2, commit=True, coordinator_epoch=2)
    assert log.log_end_offset == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"transactional": True}, "a transactional batch without a producer id"),
        ({"producer_id": 1, "producer_epoch": 0, "base_sequence": -1}, "sequence -1; neither is negative"),
        ({"producer_id": 1, "producer_epoch": -1, "base_sequence": 0}, "epoch -1, sequence 0; neither is negative"),
        ({"control": True}, "a control batch"),
    ],
)
def test_rule_12_invalid_batches_are_refused(log: PartitionLog, change: dict[str, int], message: str) -> None:
    with pytest.raises(errors.InvalidRecord, match=message):
        log.append(encode_batch([Record(0, NOW_MS, None, b"v")], **change))  # type: ignore[arg-type]
    with pytest.raises(errors.InvalidRecord, match="base offset 1 arrived; a client sends 0"):
        log.append(encode_batch([Record(1, NOW_MS, None, b"v")]))
    assert log.log_end_offset == 0


def test_a_coordinators_own_transaction_has_no_sequences(log: PartitionLog) -> None:
    def offsets(epoch: int) -> bytearray:
        return transactional(b"committed offset", epoch=epoch, sequence=-1)

    for expected in (0, 1):
        assert log.append(offsets(3), by_coordinator=True).base_offset == expected
    with pytest.raises(errors.InvalidProducerEpoch):
        log.append(offsets(2), by_coordinator=True)
    with pytest.raises(errors.InvalidTransactionState, match="the transaction of epoch 3 from offset 0 is open"):
        log.append(offsets(4), by_coordinator=True)
    with pytest.raises(errors.InvalidRecord, match="sequence -1"):
        log.append(offsets(3))
    for clean in (True, False):
        log = reopened(log, clean=clean)
        assert log.producers.states() == [ProducerState(7, 3, -1, NOW_MS, -1, 0)]
    assert log.append(offsets(3), by_coordinator=True).base_offset == 2


# Traps


def test_trap_01_sequences_wrap_and_restart(log: PartitionLog, clock: ManualClock) -> None:
    first = transactional(b"forgotten producers may begin anywhere", sequence=SEQUENCE_MAX - 1)
    with pytest.raises(errors.EarlierBatchesAwaited):
        log.append(first)
    clock.advance_ms(WAIT_MS)
    log.append(first)
    log.append(transactional(b"a", b"b", sequence=SEQUENCE_MAX))
    log.append(transactional(b"c", sequence=1))
    log.append_marker(7, 0, commit=True)
    for sequence in (0, 1, 3, SEQUENCE_MAX - 1):
        with pytest.raises(errors.OutOfOrderSequence):
            log.append(transactional(b"not the next", b"nor a duplicate", sequence=sequence))
    with pytest.raises(errors.OutOfOrderSequence, match="sequence 2 of epoch 1 arrived, 0 was next"):
        log.append(transactional(b"d", sequence=2, epoch=1))
    log.append(transactional(b"d", sequence=0, epoch=1))


def test_trap_01_new_epoch_after_marker(log: PartitionLog) -> None:
    writer = Session(log, 7)
    writer.send()
    log.append_marker(7, 1, commit=False)
    with pytest.raises(errors.InvalidProducerEpoch, match="epoch 0 arrived, the current one is 1"):
        writer.send()
    for clean in (True, False):
        log = reopened(log, clean=clean)
        assert log.producers.states() == [ProducerState(7, 1, -1, NOW_MS, 0, -1)]
        with pytest.raises(errors.EarlierBatchesAwaited, match="sequence 1 of epoch 1"):
            log.append(transactional(b"", epoch=1, sequence=1))
    assert Session(log, 7, epoch=1).send() == 2


def test_trap_02_duplicates_among_last_five_batches(log: PartitionLog) -> None:
    writer = Session(log, 7)
    for _ in range(6):
        writer.send(b"a", b"b")
    for number in range(1, 6):
        appended = log.append(transactional(b"other", b"content", sequence=2 * number))
        assert (appended.base_offset, appended.duplicate) == (2 * number, True)
    for sequence, contents in ((0, (b"a", b"b")), (10, (b"a",)), (11, (b"b",))):
        with pytest.raises(errors.OutOfOrderSequence):
            log.append(transactional(*contents, sequence=sequence))
    writer.end(commit=True)
    appended = log.append(transactional(b"a", b"b", sequence=10))
    assert (appended.base_offset, appended.duplicate) == (10, True), "a late repetition changes nothing"
    assert open_transactions(log).get(7) is None
    log.append(transactional(b"a", b"b", sequence=0, epoch=1))
    with pytest.raises(errors.InvalidProducerEpoch):
        log.append(transactional(b"a", b"b", sequence=10))


def test_trap_03_sequences_continue_across_transactions(log: PartitionLog) -> None:
    writer = Session(log, 7)
    for number in range(6):
        assert writer.send() == 2 * number
        assert writer.end(commit=number % 2 == 0) == 2 * number + 1
        log = writer.log = reopened(log, clean=number % 2 == 0)
    with pytest.raises(errors.OutOfOrderSequence, match="sequence 0 of epoch 0 arrived, 6 was next"):
        log.append(transactional(b"beginning anew", sequence=0))


def test_trap_04_other_batches_are_refused(log: PartitionLog) -> None:
    writer = Session(log, 7)
    writer.send()
    with pytest.raises(errors.InvalidTransactionState, match="a non-transactional batch of epoch 0 arrived"):
        log.append(batch(b"1", producer_id=7, sequence=1))
    writer.end(commit=True)
    assert log.append(batch(b"1", producer_id=7, sequence=1)).base_offset == 2


@pytest.mark.remedy(Remedy.END_FIRST)
@pytest.mark.parametrize("data", [batch(b"0", producer_id=7, producer_epoch=1), transactional(b"0", epoch=1)])
def test_trap_12_newer_epoch_waits_for_end(log: PartitionLog, data: bytearray) -> None:
    Session(log, 7).send()
    with pytest.raises(
        errors.InvalidTransactionState, match="the transaction of epoch 0 from offset 0 is open"
    ) as raised:
        log.append(data)
    remedies.find(Remedy.END_FIRST, raised.value)
    log.append_marker(7, 1, commit=False)
    assert log.append(data).base_offset == 2
    sync(log)
    assert log.visible.aborted_transactions(0, 3) == [(7, 0)]


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("segment_bytes", [250, 1 << 30])
def test_trap_13_retried_batch_is_a_duplicate(tmp_path: Path, clean: bool, segment_bytes: int) -> None:
    log = open_log(tmp_path / "clicks-0", segment_bytes=segment_bytes)
    writer = Session(log, 7)
    for _ in range(5):
        writer.send()
    writer.end(commit=False)
    for _ in range(2):
        for sequence in range(5):
            appended = log.append(transactional(b"again", sequence=sequence))
            assert (appended.base_offset, appended.duplicate) == (sequence, True)
        log = reopened(log, clean=clean, segment_bytes=segment_bytes)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("segment_bytes", [250, 1 << 30])
def test_trap_16_a_restart_recovers_every_transaction(tmp_path: Path, clean: bool, segment_bytes: int) -> None:
    log = open_log(tmp_path / "clicks-0", segment_bytes=segment_bytes)
    sessions = [Session(log, number) for number in range(5)]
    for session in sessions:
        for _ in range(3):
            session.send()
    sessions[0].end(commit=True)
    sessions[1].end(commit=False)
    log.append_marker(2, 4, commit=False, coordinator_epoch=9)
    sync(log)

    def state() -> tuple[object, ...]:
        visible = log.visible
        return log.producers.states(), visible.last_stable_offset, visible.aborted_transactions(0, 100), values(log)

    before = state()
    assert before[1:3] == (9, [(1, 3), (2, 6)])
    for _ in range(3):
        log = reopened(log, clean=clean, segment_bytes=segment_bytes)
        assert state() == before
    assert [open_transactions(log).get(number) for number in range(5)] == [None, None, None, 9, 12]
    sessions[3].log = log
    sessions[3].end(commit=False)
    sync(log)
    assert (log.visible.last_stable_offset, log.visible.aborted_transactions(9, 10)) == (12, [(1, 3), (2, 6), (3, 9)])


def test_an_entry_names_its_columns() -> None:
    assert AbortedTransaction._fields == (
        "version", "producer_id", "first_offset", "last_offset", "last_stable_offset"
    )  # fmt: skip
