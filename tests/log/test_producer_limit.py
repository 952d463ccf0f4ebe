"""The number of producers that a partition remembers: which are forgotten, when a new one is refused, the cost."""

import tracemalloc
from dataclasses import replace
from pathlib import Path

import pytest

from onceflow.log.errors import OutOfOrderSequence, TooManyProducers
from onceflow.log.partition import PartitionLog
from onceflow.log.producers import RETRY_MS, Snapshot, read_snapshot
from onceflow.remedies import Remedy
from onceflow.testing import ManualClock
from onceflow.wire.batch import Record, encode_batch
from tests import remedies
from tests.log.partition_logs import NOW_MS, batch, open_log, sync, values

LIMIT = 3


@pytest.fixture
def log(tmp_path: Path, clock: ManualClock) -> PartitionLog:
    return open_log(tmp_path / "clicks-0", clock=clock, producer_ids_max=LIMIT)


def send(log: PartitionLog, producer_id: int, sequence: int = 0) -> bool:
    """Return whether the batch is a duplicate."""
    return log.append(batch(b"%d" % sequence, producer_id=producer_id, sequence=sequence)).duplicate


def known(log: PartitionLog) -> list[int]:
    return [state.producer_id for state in log.producers.states()]


def transactional(producer_id: int, sequence: int = 0) -> bytearray:
    return encode_batch(
        [Record(0, NOW_MS, None, b"t")],
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=sequence,
        transactional=True,
    )


@pytest.mark.remedy(Remedy.FEWER_PRODUCERS, Remedy.MORE_PRODUCER_IDS)
def test_a_full_partition_refuses_new_producers(log: PartitionLog, clock: ManualClock) -> None:
    """Known producers continue, retries are recognized, and nothing of a refused batch is stored."""
    for producer_id in range(LIMIT):
        send(log, producer_id)
    clock.advance_ms(RETRY_MS - 1)
    with pytest.raises(TooManyProducers, match="producer 7 on clicks-0: 3 producers are known") as raised:
        send(log, 7)
    assert (log.log_end_offset, known(log)) == (LIMIT, [0, 1, 2])
    assert [send(log, producer_id) for producer_id in range(LIMIT)] == [True] * LIMIT
    log.append(batch(b"no producer"))
    remedies.find(Remedy.FEWER_PRODUCERS, raised.value)
    assert not send(log, 1, 1)
    remedies.find(Remedy.MORE_PRODUCER_IDS, raised.value)
    log.reconfigure(replace(log.config, producer_ids_max=LIMIT + 1))
    assert not send(log, 7)


def test_the_longest_silent_producer_is_forgotten(log: PartitionLog, clock: ManualClock) -> None:
    for producer_id in range(LIMIT):
        send(log, producer_id)
    clock.advance_ms(1)
    send(log, 0, 1)
    clock.advance_ms(RETRY_MS - 1)
    send(log, 7)
    assert known(log) == [2, 0, 7]
    send(log, 8)
    assert known(log) == [0, 7, 8]
    with pytest.raises(TooManyProducers):
        send(log, 9)


def test_an_open_transaction_is_never_forgotten(log: PartitionLog, clock: ManualClock) -> None:
    log.append(transactional(0))
    send(log, 1)
    send(log, 2)
    clock.advance_ms(RETRY_MS)
    send(log, 7)
    assert known(log) == [0, 2, 7]
    send(log, 8)
    with pytest.raises(TooManyProducers):
        send(log, 9)
    log.append_marker(0, 0, commit=True)
    clock.advance_ms(RETRY_MS)
    send(log, 9)
    assert 0 in known(log)


def test_a_coordinators_marker_is_never_refused(log: PartitionLog) -> None:
    for producer_id in range(LIMIT):
        send(log, producer_id)
    log.append_marker(7, 0, commit=False)
    with pytest.raises(TooManyProducers):
        log.append_marker(8, 0, commit=False, coordinator_epoch=0, by_client=True)


@pytest.mark.parametrize("clean", [True, False])
def test_known_producers_survive_a_restart(tmp_path: Path, clock: ManualClock, clean: bool) -> None:
    """Recovery reads batches of forgotten producers again but remembers no more than before."""
    log = open_log(tmp_path / "clicks-0", clock=clock, producer_ids_max=LIMIT)
    for producer_id in range(2 * LIMIT):
        clock.advance_ms(RETRY_MS)
        send(log, producer_id)
    send(log, 3, 1)
    before = known(log)
    sync(log)
    if clean:
        log.close()
    log = open_log(tmp_path / "clicks-0", clock=clock, clean=clean, producer_ids_max=LIMIT)
    assert known(log) == before == [4, 5, 3]
    assert send(log, 3, 1)
    with pytest.raises(OutOfOrderSequence):
        send(log, 3, 3)


def test_a_roll_encodes_no_snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sync thread encodes it, without what was appended since."""
    log = open_log(tmp_path / "clicks-0", segment_bytes=250)
    encoded: list[Snapshot] = []
    encode = Snapshot.encode

    def counted(snapshot: Snapshot) -> bytes:
        encoded.append(snapshot)
        return encode(snapshot)

    monkeypatch.setattr(Snapshot, "encode", counted)
    send(log, 7)
    log.append(transactional(8))
    log.roll()
    send(log, 7, 1)
    send(log, 9)
    log.append_marker(8, 0, commit=True)
    assert not encoded
    sync(log)
    assert encoded
    entries = read_snapshot((tmp_path / "clicks-0" / f"{2:020d}.snapshot").read_bytes())
    assert entries is not None
    assert [(entry.producer_id, entry.last_sequence, entry.first_offset) for entry in entries] == [
        (7, 0, -1),
        (8, 0, 1),
    ]


def test_a_producer_takes_little_memory(tmp_path: Path) -> None:
    log = open_log(tmp_path / "clicks-0")
    count = 5000
    tracemalloc.start()
    try:
        for producer_id in range(1_000_000, 1_000_000 + count):
            send(log, producer_id)
        current_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(log.producers) == count
    assert current_bytes / count < 400
    assert len(values(log)) == 0
