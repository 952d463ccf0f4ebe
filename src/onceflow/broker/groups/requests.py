"""Between the group coordinator and its log: records are appended and replayed, then answers wait for their sync.

At start-up the log is replayed in slices, so that a long one delays nobody but those who ask about groups: they get
COORDINATOR_LOAD_IN_PROGRESS until it is done. What must come after that waits for `when_loaded`.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice

from onceflow.broker.groups import records as group_records
from onceflow.broker.groups.coordinator import GroupCoordinator
from onceflow.broker.groups.outcome import Outcome
from onceflow.broker.groups.records import GroupRecord, OffsetCommit
from onceflow.broker.storage.state_log import StateBatch, StateLog
from onceflow.log.errors import LogError
from onceflow.wire.errors import ErrorCode

logger = logging.getLogger(__name__)

SLICE_BYTES = 64 * 1024
"""Of the log, read and replayed in one turn of the event loop: some milliseconds."""
LOADED_AT_ONCE_BYTES = 4 * SLICE_BYTES
"""A log this short is replayed before the broker listens."""
RESPONSES_AT_ONCE = 100
"""To members of one group: some milliseconds."""
RECORDS_IN_A_BATCH = 1000
"""Of those that take offsets away: at most some 1.3 KB each, so a batch stays far below the log's bound."""
OFFSETS_CHECKED_AT_ONCE = 5000
COST_OF_RECORD = 10
"""When old offsets are looked for: what one turn of the event loop may cost, a record that takes one away included."""

_TOO_LARGE = (ErrorCode.message_too_large, ErrorCode.record_list_too_large)

Settled = Callable[[ErrorCode], None]


@dataclass(slots=True)
class _Waiting:
    """Somebody who waits for a sync; told once, of its end or that the time is over."""

    deadline_seconds: float
    settled: Settled
    is_done: bool = False

    def settle(self, error_code: ErrorCode) -> None:
        if not self.is_done:
            self.is_done = True
            self.settled(error_code)


class GroupRequests:
    """Carries out what the coordinator decided. After a failed sync every answer is an error until restart."""

    def __init__(self, groups: GroupCoordinator, state_log: StateLog) -> None:
        self._groups = groups
        self._state_log = state_log
        self._waiting: deque[_Waiting] = deque()
        self._is_broken = False
        self._on_loaded: list[Callable[[], None]] | None = []
        self._next_check_seconds = groups.clock.monotonic() + self._check_interval_seconds
        self._unchecked: Iterator[str] = iter(())
        self._slices = self._replay_in_slices()
        size_bytes = state_log.partition.log.size_bytes
        while size_bytes <= LOADED_AT_ONCE_BYTES and self.load_slice():
            pass

    # Loading

    @property
    def is_loading(self) -> bool:
        return self._on_loaded is not None

    def load_slice(self) -> bool:
        """Replay a little more of the log; whether there may be more. Raises UnknownRecord, LogError, WireError."""
        if self._on_loaded is None:
            return False
        if next(self._slices, None) is not None:
            return True
        self._groups.begin()
        callbacks, self._on_loaded = self._on_loaded, None
        for callback in callbacks:
            callback()
        return False

    def fail_loading(self) -> None:
        """The log cannot be replayed: answers are errors until a restart."""
        self._is_broken = True

    def when_loaded(self, callback: Callable[[], None]) -> None:
        """Call back once everything in the log has been replayed: now, or after the last slice."""
        if self._on_loaded is None:
            callback()
        else:
            self._on_loaded.append(callback)

    def _replay_in_slices(self) -> Iterator[int]:
        """Yields a number of bytes after each slice."""
        size_bytes = 0
        for batch in self._state_log.batches(SLICE_BYTES):
            self._replay_batch(batch)
            size_bytes += batch.header.size_bytes
            if size_bytes >= SLICE_BYTES:
                yield size_bytes
                size_bytes = 0

    def _replay_batch(self, batch: StateBatch) -> None:
        header, groups = batch.header, self._groups
        if batch.marker is not None:
            groups.replay_marker(header.producer_id, commit=batch.marker.commit)
        for record in batch.records:
            assert record.key is not None
            found = group_records.decode(record.key, record.value, record.offset)
            if header.is_transactional and isinstance(found, OffsetCommit):
                groups.replay_transactional(header.producer_id, found)
            else:
                groups.replay(found)

    # Requests

    @property
    def error_code(self) -> ErrorCode:
        """What every group request gets: `none` while the log is loaded and can be written."""
        if self._is_broken or self._state_log.partition.log.failure is not None:
            return ErrorCode.coordinator_not_available
        return ErrorCode.coordinator_load_in_progress if self.is_loading else ErrorCode.none

    def carry_out(self, outcome: Outcome) -> None:
        """Append and replay an outcome's records, then send its answers, which may reveal them."""
        error_code = self._append(outcome.records)

        def settled(error_code: ErrorCode) -> None:
            refused = [partial(refuse, error_code) for refuse in outcome.refusals]
            _send_in_turns(iter(refused if error_code else outcome.answers))

        if not error_code:
            self.settle_in_time(settled)
            return
        settled(error_code)
        if outcome.undo is not None:
            self.carry_out(outcome.undo())

    def record(self, records: Sequence[GroupRecord], settled: Settled) -> None:
        """Append `records` in one batch and replay them; `settled` is told once they are durable, or the error."""
        error_code = self._append(records)
        if error_code:
            settled(error_code)
        else:
            self.settle_in_time(settled)

    def append_in_batches(self, records: Sequence[GroupRecord], *, from_reserve: bool = False) -> ErrorCode:
        """Append and replay records that need not be in one batch, which bounds their number; ends at an error."""
        for begin in range(0, len(records), RECORDS_IN_A_BATCH):
            error_code = self._append(records[begin : begin + RECORDS_IN_A_BATCH], from_reserve=from_reserve)
            if error_code:
                return error_code
        return ErrorCode.none

    def delete_offsets_of_topics(self, names: Set[str], settled: Settled) -> None:
        """Delete all offsets of deleted topics once the log is loaded, a slice in each turn of the loop.

        No client commits to these topics any more. `settled` is called once that is durable, or with the error.
        """
        self.when_loaded(lambda: self._delete_offsets_of_topics(names, settled))

    def _delete_offsets_of_topics(self, names: Set[str], settled: Settled) -> None:
        slices = self._groups.decide_forget(names.__contains__)
        found = False

        def turn() -> None:
            nonlocal found
            try:
                records = next(slices, None)
                error_code = self.append_in_batches(records or (), from_reserve=True)
            except Exception:
                logger.exception("the offsets of deleted topics could not be removed")
                settled(ErrorCode.unknown_server_error)
                return
            found = found or bool(records)
            if error_code or (records is None and not found):
                settled(error_code)
            elif records is None:
                self.when_synced(settled)
            else:
                asyncio.get_running_loop().call_soon(turn)

        turn()

    def _append(self, records: Sequence[GroupRecord], *, from_reserve: bool = False) -> ErrorCode:
        if self.error_code or not records:
            return self.error_code
        try:
            entries = [group_records.encode(record) for record in records]
            offset = self._state_log.append(entries, from_reserve=from_reserve)
        except LogError as error:
            return _append_error(error)
        for record in _placed(records, offset):
            self._groups.replay(record)
        return ErrorCode.none

    # Transactions

    def record_transactional(
        self, producer_id: int, producer_epoch: int, records: Sequence[OffsetCommit], settled: Settled
    ) -> None:
        """Append the offsets that a transaction commits in one batch of its own; they are pending until it ends.

        `settled` is told once they are durable, or the error; nothing is pending after an error other than a sync's.
        """
        error_code = self.error_code
        if not error_code and records:
            try:
                offset = self._state_log.append(
                    [group_records.encode(record) for record in records],
                    producer_id=producer_id,
                    producer_epoch=producer_epoch,
                )
            except LogError as error:
                settled(_append_error(error))
                return
            for record in _placed(records, offset):
                assert isinstance(record, OffsetCommit)
                self._groups.replay_transactional(producer_id, record)
        if error_code:
            settled(error_code)
        else:
            self.settle_in_time(settled)

    def complete_transaction(self, producer_id: int, producer_epoch: int, *, commit: bool) -> None:
        """End the producer's transaction in the groups' log: its pending offsets become real, or go.

        It may be repeated. Ask `when_synced` for the moment when it is durable. While the log loads it is put off
        until then. Raises LogError; if it was put off, the groups' answers, `when_synced` too, are errors instead
        until a restart.
        """
        if self.is_loading:
            self.when_loaded(lambda: self._complete_late(producer_id, producer_epoch, commit=commit))
        else:
            self._state_log.append_marker(producer_id, producer_epoch, commit=commit)
            self._groups.replay_marker(producer_id, commit=commit)

    def _complete_late(self, producer_id: int, producer_epoch: int, *, commit: bool) -> None:
        try:
            self.complete_transaction(producer_id, producer_epoch, commit=commit)
        except LogError:
            logger.exception("the offsets of producer %d's transaction could not be completed", producer_id)
            self._is_broken = True

    # Time

    def when_synced(self, settled: Settled) -> None:
        """Tell `settled` once all that the coordinator knows is durable, or that it never will be."""

        def synced(error_code: ErrorCode) -> None:
            settled(ErrorCode.coordinator_not_available if error_code or self._is_broken else ErrorCode.none)

        self.when_loaded(lambda: self._state_log.when_synced(synced))

    def settle_in_time(self, settled: Settled) -> None:
        """As `when_synced`, but an error too once `offsets.commit.timeout.ms` is over."""
        timeout_seconds = self._groups.config.offsets_commit_timeout_ms / 1000
        waiting = _Waiting(self._groups.clock.monotonic() + timeout_seconds, settled)
        self.when_synced(waiting.settle)
        if not waiting.is_done:
            while self._waiting and self._waiting[0].is_done:
                self._waiting.popleft()
            self._waiting.append(waiting)

    def expire(self) -> None:
        """Act on every time-out that is over: of members, and of answers that wait for the disk."""
        now_seconds = self._groups.clock.monotonic()
        while self._waiting and (self._waiting[0].is_done or self._waiting[0].deadline_seconds <= now_seconds):
            self._waiting.popleft().settle(ErrorCode.coordinator_not_available)
        if self.is_loading:
            return
        for outcome in self._groups.expire():
            try:
                self.carry_out(outcome)
            except Exception:
                logger.exception("a group's time-out could not be carried out")
        self._expire_offsets(now_seconds)

    @property
    def _check_interval_seconds(self) -> float:
        return self._groups.config.offsets_retention_check_interval_ms / 1000

    def _expire_offsets(self, now_seconds: float) -> None:
        """Once in an interval every group is looked at, some in each call."""
        if self._next_check_seconds <= now_seconds:
            self._next_check_seconds = now_seconds + self._check_interval_seconds
            self._unchecked = iter(list(self._groups.groups))
        seen = 0
        while seen < OFFSETS_CHECKED_AT_ONCE and (group_id := next(self._unchecked, None)) is not None:
            group = self._groups.groups.get(group_id)
            if group is not None:
                records = self._groups.decide_expire(group)
                seen += 1 + len(group.offsets) + COST_OF_RECORD * len(records)
                self.append_in_batches(records)


def _send_in_turns(sends: Iterator[Callable[[], None]]) -> None:
    """Send a rebalance's responses, some in each turn of the loop: a group may have thousands of members."""
    for send in islice(sends, RESPONSES_AT_ONCE):
        try:
            send()
        except Exception:
            logger.exception("a response to a member of a group could not be sent")
    following = next(sends, None)
    if following is not None:
        asyncio.get_running_loop().call_soon(_send_in_turns, chain((following,), sends))


def _placed(records: Sequence[GroupRecord], offset: int) -> Sequence[GroupRecord]:
    """The records, told the offsets that the log gave them, beginning with `offset`."""
    for record_offset, record in enumerate(records, offset):
        if isinstance(record, OffsetCommit):
            record.record_offset = record_offset
    return records


def _append_error(error: LogError) -> ErrorCode:
    """As Kafka answers it: what is too large stays so, whoever asks again (CoordinatorOperationExceptionHelper)."""
    if error.error_code == ErrorCode.kafka_storage_error:
        # The log has reported it, once: groups repeat what is refused.
        return ErrorCode.coordinator_not_available
    logger.error("the groups' records could not be appended: %s", error)
    if error.error_code in _TOO_LARGE:
        return ErrorCode.unknown_server_error
    return error.error_code
