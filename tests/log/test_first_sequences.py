"""Unknown producers that do not begin with sequence 0: earlier batches come first, or the batch is sent again."""

import pytest

from onceflow.log.errors import EarlierBatchesAwaited, OutOfOrderSequence
from onceflow.log.first_sequences import ABANDONED_MS, WAIT_MS, WAITING_MAX
from onceflow.log.partition import PartitionLog
from onceflow.log.producers import RETRY_MS
from onceflow.testing import ManualClock
from tests.log.partition_logs import batch

SEQUENCE_MAX = 2**31 - 1


def send(log: PartitionLog, sequence: int, *, producer_id: int = 7, epoch: int = 0) -> int:
    """Send a batch of one record, and return its offset."""
    data = batch(b"%d" % sequence, producer_id=producer_id, producer_epoch=epoch, sequence=sequence)
    return log.append(data).base_offset


def refuse(log: PartitionLog, *sequences: int, producer_id: int = 7, epoch: int = 0) -> None:
    end = log.log_end_offset
    for sequence in sequences:
        with pytest.raises(EarlierBatchesAwaited, match=f"producer {producer_id} on clicks-0: .* sequence {sequence} "):
            send(log, sequence, producer_id=producer_id, epoch=epoch)
    assert log.log_end_offset == end


def test_earlier_batches_come_first(log: PartitionLog, clock: ManualClock) -> None:
    """The client sends its second batch, repeats it, and then finds the first one."""
    refuse(log, 1)
    clock.advance_ms(WAIT_MS - 1)
    refuse(log, 1)
    assert [send(log, sequence) for sequence in (0, 1, 2)] == [0, 1, 2]


def test_a_forgotten_producer_continues(log: PartitionLog, clock: ManualClock) -> None:
    refuse(log, 41)
    clock.advance_ms(WAIT_MS)
    assert [send(log, sequence) for sequence in (41, 42)] == [0, 1]
    with pytest.raises(OutOfOrderSequence):
        send(log, 40)


def test_the_lowest_of_several_batches_begins(log: PartitionLog, clock: ManualClock) -> None:
    """A client sends up to five at once, and repeats them in order."""
    refuse(log, 41, 42, 43)
    clock.advance_ms(WAIT_MS - 1)
    refuse(log, 41, 42, 43)
    clock.advance_ms(1)
    refuse(log, 42, 43)
    assert [send(log, sequence) for sequence in (41, 42, 43)] == [0, 1, 2]


def test_a_lower_sequence_waits_again(log: PartitionLog, clock: ManualClock) -> None:
    refuse(log, 41)
    clock.advance_ms(WAIT_MS)
    refuse(log, 40)
    clock.advance_ms(WAIT_MS - 1)
    refuse(log, 40, 41)
    clock.advance_ms(1)
    assert [send(log, sequence) for sequence in (40, 41)] == [0, 1]


def test_sequences_wrap_while_they_wait(log: PartitionLog, clock: ManualClock) -> None:
    refuse(log, SEQUENCE_MAX, 0)
    clock.advance_ms(WAIT_MS)
    refuse(log, 0)
    assert [send(log, sequence) for sequence in (SEQUENCE_MAX, 0)] == [0, 1]


def test_each_producer_and_epoch_waits(log: PartitionLog, clock: ManualClock) -> None:
    refuse(log, 41)
    clock.advance_ms(WAIT_MS)
    refuse(log, 41, producer_id=8)
    refuse(log, 41, epoch=1)
    clock.advance_ms(WAIT_MS)
    assert send(log, 41, producer_id=8) == 0
    assert send(log, 41, epoch=1) == 1


def test_an_abandoned_batch_is_not_awaited(log: PartitionLog, clock: ManualClock) -> None:
    """A client that gave a batch up continues with a later one."""
    refuse(log, 41, 42)
    clock.advance_ms(ABANDONED_MS - 1)
    refuse(log, 42)
    clock.advance_ms(1)
    assert send(log, 45) == 0


def test_a_long_pause_before_the_retry(log: PartitionLog, clock: ManualClock) -> None:
    refuse(log, 41, 42)
    clock.advance_ms(2 * ABANDONED_MS)
    assert [send(log, sequence) for sequence in (41, 42)] == [0, 1]


def test_old_refusals_do_not_count(log: PartitionLog, clock: ManualClock) -> None:
    refuse(log, 41)
    clock.advance_ms(RETRY_MS)
    refuse(log, 41)
    clock.advance_ms(WAIT_MS)
    assert send(log, 41) == 0


def test_a_clock_that_goes_back(log: PartitionLog, clock: ManualClock) -> None:
    refuse(log, 41)
    clock.advance_ms(-RETRY_MS)
    refuse(log, 41)
    clock.advance_ms(WAIT_MS)
    assert send(log, 41) == 0


def test_an_older_epoch_does_not_interrupt(log: PartitionLog, clock: ManualClock) -> None:
    refuse(log, 41, epoch=1)
    clock.advance_ms(WAIT_MS)
    refuse(log, 40)
    assert send(log, 41, epoch=1) == 0


def test_a_transaction_is_aborted_meanwhile(log: PartitionLog, clock: ManualClock) -> None:
    """The marker makes the producer known, but not its sequence."""
    refuse(log, 41)
    log.append_marker(7, 0, commit=False)
    refuse(log, 41)
    clock.advance_ms(WAIT_MS)
    assert [send(log, sequence) for sequence in (41, 42)] == [1, 2]
    log.append_marker(8, 0, commit=False)
    assert send(log, 0, producer_id=8) == 4


def test_few_producers_wait(log: PartitionLog, clock: ManualClock) -> None:
    """Further ones are accepted at once."""
    for producer_id in range(WAITING_MAX):
        refuse(log, 41, producer_id=producer_id)
    assert send(log, 41, producer_id=WAITING_MAX) == 0
    clock.advance_ms(WAIT_MS - 1)
    refuse(log, 41, producer_id=0)
    clock.advance_ms(ABANDONED_MS - WAIT_MS + 1)
    refuse(log, 41, producer_id=WAITING_MAX + 1)
    assert send(log, 41, producer_id=0) == 1
    refuse(log, 41, producer_id=1)
    clock.advance_ms(WAIT_MS)
    assert send(log, 41, producer_id=1) == 2
