"""Executes the group coordinator's decisions: appends and replays records, then sends responses after their sync.

First the log is replayed in slices, so a long one delays only group requests. They get COORDINATOR_LOAD_IN_PROGRESS
until the log is loaded. Work that must follow uses `when_loaded`.

In a cluster a coordinator ends when another broker leads its log (`close`). Requests that wait, and all later ones, get
NOT_COORDINATOR.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice

from onceflow.broker.groups import records as group_records
from onceflow.broker.groups.coordinator import DUE_AT_ONCE, GroupCoordinator
from onceflow.broker.groups.outcome import Outcome
from onceflow.broker.groups.records import GroupRecord, OffsetCommit
from onceflow.broker.storage.state_log import StateBatch, StateLog
from onceflow.broker.topics.shards import Shard
from onceflow.log.errors import LogError
from onceflow.wire.batch_encoder import BatchEncoder
from onceflow.wire.errors import ErrorCode

logger = logging.getLogger(__name__)

RESPONSES_AT_ONCE = 100
"""Responses to members of one group in one turn: some milliseconds."""
RECORDS_IN_A_BATCH = 1000
"""Records in a batch of offset deletions: at most about 1.3 KB each, so a batch is far below the log's limit."""
OFFSETS_CHECKED_AT_ONCE = 5000
COST_OF_RECORD = 10
"""Cost of a record, in checked offsets, when expired offsets are deleted; OFFSETS_CHECKED_AT_ONCE limits a turn."""

_ERRORS = {
    ErrorCode.unknown_topic_or_partition: ErrorCode.coordinator_not_available,
    ErrorCode.not_enough_replicas: ErrorCode.coordinator_not_available,
    ErrorCode.not_enough_replicas_after_append: ErrorCode.coordinator_not_available,
    ErrorCode.kafka_storage_error: ErrorCode.coordinator_not_available,
    ErrorCode.not_leader_or_follower: ErrorCode.not_coordinator,
    ErrorCode.message_too_large: ErrorCode.unknown_server_error,
    ErrorCode.record_list_too_large: ErrorCode.unknown_server_error,
}
"""Error of the log → that of a group request (CoordinatorOperationExceptionHelper); others stay.

With KAFKA_STORAGE_ERROR Kafka's broker resigns; here it does not.
"""
_EXPECTED = (ErrorCode.kafka_storage_error, ErrorCode.not_enough_replicas, ErrorCode.not_leader_or_follower)
"""Errors of the log that it has reported itself, or that end without an operator."""

Settled = Callable[[ErrorCode], None]


@dataclass(slots=True)
class _Waiting:
    """A callback that waits for a sync; called once, with its result or at the deadline."""

    deadline_seconds: float
    settled: Settled
    is_done: bool = False

    def settle(self, error_code: ErrorCode) -> None:
        if not self.is_done:
            self.is_done = True
            self.settled(error_code)


class GroupBatch:
    """Records to append in one batch, encoded one by one: those of a large request over several turns of the loop."""

    __slots__ = ("encoded", "records")

    def __init__(self, timestamp_ms: int) -> None:
        self.records: list[GroupRecord] = []
        self.encoded = BatchEncoder(timestamp_ms)

    def add(self, record: GroupRecord) -> None:
        self.records.append(record)
        self.encoded.append(*group_records.encode(record))


class GroupRequests(Shard):
    """Executes outcomes. After a failed sync every response is an error until a restart."""

    def __init__(self, groups: GroupCoordinator, state_log: StateLog) -> None:
        super().__init__(state_log)
        self.groups = groups
        self._waiting: deque[_Waiting] = deque()
        self._next_check_seconds = groups.clock.monotonic() + self._check_interval_seconds
        self._unchecked: Iterator[str] = iter(())
        groups.pending_ids.on_withdrawn = lambda group: self.execute(groups.pending_id_withdrawn(group))
        self.when_loaded(groups.begin)

    # Begin and end

    @property
    def batch_bytes_max(self) -> int:
        """Size of the largest batch that the log takes."""
        return self._state_log.partition.log.config.message_bytes_max

    def _resign(self) -> None:
        _send_in_turns(iter(self.groups.resign().responses))

    def _replay(self, batch: StateBatch) -> None:
        header, groups = batch.header, self.groups
        if batch.marker is not None:
            groups.replay_marker(header.producer_id, commit=batch.marker.commit)
        for record in batch.records:
            assert record.key is not None
            decoded = group_records.decode(record.key, record.value, record.offset)
            if header.is_transactional and isinstance(decoded, OffsetCommit):
                groups.replay_transactional(header.producer_id, decoded)
            else:
                groups.replay(decoded)

    # Requests

    def execute(self, outcome: Outcome) -> None:
        """Append and replay an outcome's records, then send its responses, which may reveal them."""
        error_code = self._append(outcome.records)

        def settled(error_code: ErrorCode) -> None:
            refused = [partial(refuse, error_code) for refuse in outcome.refusals]
            _send_in_turns(iter(refused if error_code else outcome.responses))

        if not error_code:
            self.settle_in_time(settled)
            return
        settled(error_code)
        if outcome.undo is not None:
            self.execute(outcome.undo())

    def record(self, records: Sequence[GroupRecord] | GroupBatch, settled: Settled) -> None:
        """Append `records` in one batch and replay them; call `settled` once they are durable, or with the error."""
        error_code = self._append(records)
        if error_code:
            settled(error_code)
        else:
            self.settle_in_time(settled)

    def append_in_batches(self, records: Sequence[GroupRecord], *, from_reserve: bool = False) -> ErrorCode:
        """Append and replay records in batches of bounded size; stop at an error."""
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
        slices = self.groups.decide_delete_topic_offsets(names.__contains__)
        has_records = False

        def turn() -> None:
            nonlocal has_records
            try:
                records = next(slices, None)
                error_code = self.append_in_batches(records or (), from_reserve=True)
            except Exception:
                logger.exception("the offsets of deleted topics could not be deleted")
                settled(ErrorCode.unknown_server_error)
                return
            has_records = has_records or bool(records)
            if error_code or (records is None and not has_records):
                settled(error_code)
            elif records is None:
                self.when_synced(settled)
            else:
                asyncio.get_running_loop().call_soon(turn)

        turn()

    def _append(self, records: Sequence[GroupRecord] | GroupBatch, *, from_reserve: bool = False) -> ErrorCode:
        if self.error_code:
            return self.error_code
        batch = self._batch_of(records)
        if not batch.records:
            return ErrorCode.none
        try:
            offset = self._state_log.append(batch.encoded, from_reserve=from_reserve)
        except LogError as error:
            return _append_error(error)
        for record in _placed(batch.records, offset):
            self.groups.replay(record)
        return ErrorCode.none

    def _batch_of(self, records: Sequence[GroupRecord] | GroupBatch) -> GroupBatch:
        if isinstance(records, GroupBatch):
            return records
        batch = GroupBatch(self.groups.clock.now_ms())
        for record in records:
            batch.add(record)
        return batch

    # Transactions

    def record_transactional(
        self, producer_id: int, producer_epoch: int, records: Sequence[GroupRecord] | GroupBatch, settled: Settled
    ) -> None:
        """Append the offsets that a transaction commits, in one batch; they are pending until it ends.

        `settled` is called once they are durable, or with the error. After any error but a sync's, none is pending.
        """
        if self.error_code:
            settled(self.error_code)
            return
        batch = self._batch_of(records)
        if batch.records:
            try:
                offset = self._state_log.append(batch.encoded, producer_id=producer_id, producer_epoch=producer_epoch)
            except LogError as error:
                settled(_append_error(error))
                return
            for record in _placed(batch.records, offset):
                assert isinstance(record, OffsetCommit)
                self.groups.replay_transactional(producer_id, record)
        self.settle_in_time(settled)

    def complete_transaction(
        self, producer_id: int, producer_epoch: int, *, commit: bool, coordinator_epoch: int | None = None
    ) -> None:
        """End the producer's transaction in the groups' log: its pending offsets are committed or dropped.

        Without `coordinator_epoch` this broker coordinates the transaction. It can be repeated; `when_synced` reports
        when it is durable. While the log is loading, it is postponed. Raises LogError. If a postponed one fails, all
        group responses, and `when_synced`, are errors until a restart.
        """
        if self.is_loading:
            self.when_loaded(
                lambda: self._complete_late(
                    producer_id, producer_epoch, commit=commit, coordinator_epoch=coordinator_epoch
                )
            )
        else:
            self._state_log.append_marker(
                producer_id, producer_epoch, commit=commit, coordinator_epoch=coordinator_epoch
            )
            self.groups.replay_marker(producer_id, commit=commit)

    def _complete_late(
        self, producer_id: int, producer_epoch: int, *, commit: bool, coordinator_epoch: int | None
    ) -> None:
        if self._is_closed:
            return
        try:
            self.complete_transaction(producer_id, producer_epoch, commit=commit, coordinator_epoch=coordinator_epoch)
        except LogError:
            logger.exception("the offsets of the transaction of producer %d could not be completed", producer_id)
            self._is_broken = True

    # Time

    def when_synced(self, settled: Settled) -> None:
        """Call `settled` once the coordinator's current state is durable, or with an error if it cannot be.

        In a cluster all in-sync replicas must have it.
        """

        def synced(error_code: ErrorCode) -> None:
            if self._is_closed or error_code is ErrorCode.not_leader_or_follower:
                settled(ErrorCode.not_coordinator)
            else:
                settled(ErrorCode.coordinator_not_available if error_code or self._is_broken else ErrorCode.none)

        self.when_loaded(lambda: self._state_log.when_synced(synced))

    def settle_in_time(self, settled: Settled) -> None:
        """Call `settled` like `when_synced`, but with an error after `offsets.commit.timeout.ms`."""
        timeout_seconds = self.groups.config.offsets_commit_timeout_ms / 1000
        waiting = _Waiting(self.groups.clock.monotonic() + timeout_seconds, settled)
        self.when_synced(waiting.settle)
        if not waiting.is_done:
            while self._waiting and self._waiting[0].is_done:
                self._waiting.popleft()
            self._waiting.append(waiting)

    def expire(self, due_max: int = DUE_AT_ONCE) -> int:
        """Act on expired timeouts, at most `due_max` of members, and those of responses that wait for the disk.

        Return the number of those of members.
        """
        now_seconds = self.groups.clock.monotonic()
        while self._waiting and (self._waiting[0].is_done or self._waiting[0].deadline_seconds <= now_seconds):
            self._waiting.popleft().settle(ErrorCode.coordinator_not_available)
        if self.is_loading:
            return 0
        outcomes = self.groups.expire(due_max)
        for outcome in outcomes:
            try:
                self.execute(outcome)
            except Exception:
                logger.exception("a group timeout failed")
        self._expire_offsets(now_seconds)
        return self.groups.deadlines.taken_count

    @property
    def _check_interval_seconds(self) -> float:
        return self.groups.config.offsets_retention_check_interval_ms / 1000

    def _expire_offsets(self, now_seconds: float) -> None:
        """Delete expired offsets: check every group once per interval, some in each call."""
        if self._next_check_seconds <= now_seconds:
            self._next_check_seconds = now_seconds + self._check_interval_seconds
            self._unchecked = iter(list(self.groups.groups))
        seen = 0
        while seen < OFFSETS_CHECKED_AT_ONCE and (group_id := next(self._unchecked, None)) is not None:
            group = self.groups.groups.get(group_id)
            if group is not None:
                records = self.groups.decide_expire(group)
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
    """Set the records' offsets in the log, from `offset` on, and return them."""
    for record_offset, record in enumerate(records, offset):
        if isinstance(record, OffsetCommit):
            record.record_offset = record_offset
    return records


def _append_error(error: LogError) -> ErrorCode:
    """Return the error of a group request."""
    if error.error_code not in _EXPECTED:
        logger.error("the groups' records could not be appended: %s", error)
    return _ERRORS.get(error.error_code, error.error_code)
