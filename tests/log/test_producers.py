"""Idempotent producers: duplicates and out-of-order sequences, before and after restarts."""

from pathlib import Path

import pytest
from crc32c import crc32c

from onceflow.log.config import LogConfig
from onceflow.log.errors import EarlierBatchesAwaited, InvalidProducerEpoch, OutOfOrderSequence
from onceflow.log.first_sequences import WAIT_MS
from onceflow.log.partition import PartitionLog
from onceflow.log.producers import Producers
from onceflow.testing import ManualClock
from tests.log.partition_logs import batch, open_log, sync, values

SEQUENCE_MAX = 2**31 - 1
CHECK_MS = LogConfig().producer_id_expiration_check_ms


def send(log: PartitionLog, sequence: int, count: int = 1, *, producer_id: int = 7, epoch: int = 0) -> tuple[int, bool]:
    data = batch(*[b"%d" % sequence] * count, producer_id=producer_id, producer_epoch=epoch, sequence=sequence)
    appended = log.append(data)
    assert appended.last_offset == appended.base_offset + count - 1
    return appended.base_offset, appended.duplicate


def begin(log: PartitionLog, clock: ManualClock, sequence: int, count: int = 1, **producer: int) -> tuple[int, bool]:
    """Send the first batch of a producer, which is not sequence 0, until it is accepted."""
    with pytest.raises(EarlierBatchesAwaited):
        send(log, sequence, count, **producer)
    clock.advance_ms(WAIT_MS)
    return send(log, sequence, count, **producer)


def test_rule_6_last_five_batches_are_known(log: PartitionLog) -> None:
    assert [send(log, 2 * number, 2) for number in range(6)] == [(2 * number, False) for number in range(6)]
    for number in (1, 3, 5, 2):
        assert send(log, 2 * number, 2) == (2 * number, True)
    with pytest.raises(OutOfOrderSequence, match="producer 7 on clicks-0: sequence 0 of epoch 0 arrived, 12 was next"):
        send(log, 0, 2)
    with pytest.raises(OutOfOrderSequence, match="sequence 10"):
        send(log, 10, 1)
    with pytest.raises(OutOfOrderSequence, match="sequence 13"):
        send(log, 13)
    assert (log.log_end_offset, send(log, 12)) == (12, (12, False))


def test_producers_do_not_mix(log: PartitionLog) -> None:
    for sequence in range(3):
        for producer_id in range(4):
            assert not send(log, sequence, producer_id=producer_id)[1]
    assert send(log, 1, producer_id=2) == (6, True)


def test_rule_6_new_epoch_starts_at_zero(log: PartitionLog) -> None:
    send(log, 0)
    with pytest.raises(OutOfOrderSequence, match="sequence 1 of epoch 1 arrived, 0 was next"):
        send(log, 1, epoch=1)
    assert send(log, 0, epoch=1) == (1, False)
    assert send(log, 0, epoch=1) == (1, True)
    with pytest.raises(InvalidProducerEpoch, match="epoch 0 arrived, the current one is 1"):
        send(log, 1)


def test_rule_6_sequences_wrap(log: PartitionLog, clock: ManualClock) -> None:
    assert begin(log, clock, SEQUENCE_MAX - 1) == (0, False)
    assert send(log, SEQUENCE_MAX, 3) == (1, False)
    assert send(log, 2) == (4, False)
    assert send(log, SEQUENCE_MAX, 3) == (1, True)
    send(log, 0, producer_id=8)
    assert begin(log, clock, SEQUENCE_MAX, producer_id=9)[1] is False
    assert send(log, 0, producer_id=9)[1] is False


@pytest.mark.parametrize("clean", [True, False])
def test_rule_6_wrapped_sequences_survive_a_restart(tmp_path: Path, clock: ManualClock, clean: bool) -> None:
    log = open_log(tmp_path / "clicks-0", clock=clock)
    assert begin(log, clock, SEQUENCE_MAX, 3) == (0, False)
    assert [state.last_sequence for state in log.producers.states()] == [1]
    log.close()
    log = open_log(tmp_path / "clicks-0", clean=clean)
    assert send(log, SEQUENCE_MAX, 3) == (0, True)
    assert send(log, 2) == (3, False)


@pytest.mark.parametrize("segment_bytes", [250, 1 << 30])
@pytest.mark.parametrize("clean", [True, False])
def test_rule_6_five_batches_survive_a_restart(
    tmp_path: Path, clock: ManualClock, clean: bool, segment_bytes: int
) -> None:
    log = open_log(tmp_path / "clicks-0", clock=clock, segment_bytes=segment_bytes)
    for number in range(9):
        send(log, 2 * number, 2)
        if number:
            send(log, number + SEQUENCE_MAX - 4 & SEQUENCE_MAX, producer_id=8)
        else:
            begin(log, clock, SEQUENCE_MAX - 4, producer_id=8)
        sync(log)
    if clean:
        log.close()
    del log
    log = open_log(tmp_path / "clicks-0", segment_bytes=segment_bytes, clean=clean)
    assert len(log.producers) == 2
    for number in range(4, 9):
        assert send(log, 2 * number, 2) == (3 * number, True)
        assert send(log, number + SEQUENCE_MAX - 4 & SEQUENCE_MAX, producer_id=8) == (3 * number + 2, True)
    with pytest.raises(OutOfOrderSequence, match=r"sequence 6 .* 18 was next"):
        send(log, 6, 2)
    assert send(log, 18) == (27, False)


def test_rule_6_inactive_producers_expire(tmp_path: Path, clock: ManualClock) -> None:
    log = open_log(tmp_path / "clicks-0", clock=clock, producer_id_expiration_ms=CHECK_MS)
    old_event = batch(b"0", timestamp_ms=1_000, producer_id=7)
    log.append(old_event)
    clock.advance_ms(CHECK_MS - 1)
    assert send(log, 0, producer_id=8) == (1, False)
    assert len(log.producers) == 2
    clock.advance_ms(1)
    send(log, 0, producer_id=9)
    assert len(log.producers) == 2, "7 is gone, 8 was heard of a millisecond ago"
    assert begin(log, clock, 55) == (3, False)


def test_the_snapshots_bytes(tmp_path: Path) -> None:
    log = open_log(tmp_path / "clicks-0")
    send(log, 0, 2)
    send(log, 2, epoch=0)
    log.close()
    content = (tmp_path / "clicks-0" / f"{3:020d}.snapshot").read_bytes()
    entries = [
        "0000000000000007 0000 00000001 0000000000000001 00000001 0000018bcfe56800 ffffffff ffffffffffffffff",
        "0000000000000007 0000 00000002 0000000000000002 00000000 0000018bcfe56800 ffffffff ffffffffffffffff",
    ]
    body = bytes.fromhex("00000002" + "".join(entries))
    assert content == b"\x00\x01" + crc32c(body).to_bytes(4, "big") + body


def test_a_damaged_snapshot_is_none(tmp_path: Path) -> None:
    log = open_log(tmp_path / "clicks-0")
    send(log, 0)
    log.close()
    content = (tmp_path / "clicks-0" / f"{1:020d}.snapshot").read_bytes()
    producers = Producers("clicks-0", LogConfig(producer_id_expiration_ms=1))
    assert producers.load(content)
    for position in range(len(content)):
        assert not producers.load(content[:position])
        damaged = bytearray(content)
        damaged[position] ^= 1
        assert not producers.load(bytes(damaged))
    assert not producers.load(content + b"\0")
    assert len(producers) == 1


def test_clean_log_without_snapshot_is_scanned(tmp_path: Path) -> None:
    log = open_log(tmp_path / "clicks-0")
    send(log, 0)
    log.close()
    (tmp_path / "clicks-0" / f"{1:020d}.snapshot").unlink()
    log = open_log(tmp_path / "clicks-0", clean=True)
    assert send(log, 0) == (0, True)
    assert values(log) == [b"0"]
