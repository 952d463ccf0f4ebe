"""One transactional id: its producer id and epoch, its transaction, and the table of its states.

The table is data: `NEXT_STATES` says what happens, `ANSWERS` what a request gets where nothing happens. The picture
in docs/transactions.md is drawn from it (`python -m onceflow.broker.transactions.page`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from types import MappingProxyType

from onceflow.wire.errors import ErrorCode

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
PRODUCER_EPOCH_MAX = 32766
"""The last epoch that a producer is given: one more is kept, so that it can always be fenced."""

TopicPartition = tuple[str, int]


class TransactionState(Enum):
    """Kafka's states, with its names; the numbers are those of its records (`STATE_IDS`)."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"
    DEAD = "Dead"


class Event(Enum):
    """What can happen to a transactional id; the values are the words of the picture."""

    INIT = "InitProducerId"
    ADD = "AddPartitionsToTxn, AddOffsetsToTxn"
    COMMIT = "EndTxn commit, its partitions are synced"
    ABORT = "EndTxn abort"
    FENCE = "InitProducerId, time-out or admin's abort: epoch + 1"
    MARKED = "every marker is durable"
    EXPIRE = "transactional.id.expiration.ms"


_BETWEEN_TRANSACTIONS = {
    Event.INIT: TransactionState.EMPTY,
    Event.ADD: TransactionState.ONGOING,
    Event.EXPIRE: TransactionState.DEAD,
}

NEXT_STATES: Mapping[TransactionState, Mapping[Event, TransactionState]] = MappingProxyType(
    {
        TransactionState.EMPTY: _BETWEEN_TRANSACTIONS,
        TransactionState.ONGOING: {
            Event.ADD: TransactionState.ONGOING,
            Event.COMMIT: TransactionState.PREPARE_COMMIT,
            Event.ABORT: TransactionState.PREPARE_ABORT,
            Event.FENCE: TransactionState.PREPARE_ABORT,
        },
        TransactionState.PREPARE_COMMIT: {Event.MARKED: TransactionState.COMPLETE_COMMIT},
        TransactionState.PREPARE_ABORT: {Event.MARKED: TransactionState.COMPLETE_ABORT},
        TransactionState.COMPLETE_COMMIT: _BETWEEN_TRANSACTIONS,
        TransactionState.COMPLETE_ABORT: _BETWEEN_TRANSACTIONS,
        TransactionState.DEAD: {},
    }
)
"""What each state becomes. DEAD is never stored: a tombstone takes the transactional id away."""

_WAIT = ErrorCode.concurrent_transactions
_WRONG = ErrorCode.invalid_txn_state

ANSWERS: Mapping[TransactionState, Mapping[Event, ErrorCode]] = MappingProxyType(
    {
        TransactionState.EMPTY: {Event.COMMIT: _WRONG, Event.ABORT: _WRONG},
        TransactionState.PREPARE_COMMIT: {
            Event.INIT: _WAIT,
            Event.ADD: _WAIT,
            Event.COMMIT: _WAIT,
            Event.ABORT: _WRONG,
        },
        TransactionState.PREPARE_ABORT: {
            Event.INIT: _WAIT,
            Event.ADD: _WAIT,
            Event.COMMIT: _WRONG,
            Event.ABORT: _WAIT,
        },
        TransactionState.COMPLETE_COMMIT: {Event.COMMIT: ErrorCode.none, Event.ABORT: _WRONG},
        TransactionState.COMPLETE_ABORT: {Event.COMMIT: _WRONG, Event.ABORT: ErrorCode.none},
    }
)
"""What a request gets that changes nothing; `none` is the answer to a repeated EndTxn whose first one was lost."""

PREPARED = frozenset({TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT})
UNFINISHED = PREPARED | {TransactionState.ONGOING}


@dataclass(frozen=True, slots=True)
class Transaction:
    """The whole state of one transactional id, which is also what its record holds; a change makes a new one.

    `last_producer_epoch` is the epoch that a producer gave when it asked for the present one: with it a repeated
    request is told from another producer's (KIP-360). `previous_producer_id` is the one before exhaustion.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: TransactionState
    partitions: frozenset[TopicPartition]
    updated_ms: int
    started_ms: int = -1
    previous_producer_id: int = NO_PRODUCER_ID
    last_producer_epoch: int = NO_PRODUCER_EPOCH

    @property
    def is_exhausted(self) -> bool:
        """Whether the producer id has no epoch left that a producer may be given."""
        return self.producer_epoch >= PRODUCER_EPOCH_MAX

    @property
    def is_fenced_for_good(self) -> bool:
        """Whether the epoch is the one that no producer is given: a next one to fence with does not exist."""
        return self.producer_epoch > PRODUCER_EPOCH_MAX

    @property
    def commits(self) -> bool:
        """Whether a prepared transaction ends with commit markers."""
        return self.state is TransactionState.PREPARE_COMMIT

    def response_to(self, event: Event) -> ErrorCode | None:
        """What a request for `event` gets without a change; None: `after` says what it becomes."""
        return ANSWERS.get(self.state, {}).get(event)

    def after(self, event: Event, now_ms: int) -> "Transaction":
        """The same id in the state that `event` leads to."""
        state = NEXT_STATES[self.state].get(event)
        assert state is not None, f"transactional id {self.transactional_id}: {event.name} in {self.state.value}"
        return replace(self, state=state, updated_ms=now_ms)

    def with_partitions(self, added: frozenset[TopicPartition], now_ms: int) -> "Transaction":
        """Ongoing with these partitions too; a new transaction begins now."""
        started_ms = self.started_ms if self.state is TransactionState.ONGOING else now_ms
        partitions = self.partitions | added
        return replace(self.after(Event.ADD, now_ms), partitions=partitions, started_ms=started_ms)

    def initialised(self, timeout_ms: int, now_ms: int, **changes: int) -> "Transaction":
        """Empty, with a producer id and epoch for whoever asked."""
        empty = self.after(Event.INIT, now_ms)
        return replace(empty, timeout_ms=timeout_ms, partitions=frozenset(), started_ms=-1, **changes)  # type: ignore[arg-type]

    def fenced(self, now_ms: int) -> "Transaction":
        """To be aborted, under an epoch that no producer was given."""
        fenced = self.after(Event.FENCE, now_ms)
        return replace(fenced, producer_epoch=self.producer_epoch + 1, last_producer_epoch=NO_PRODUCER_EPOCH)

    def completed(self, now_ms: int) -> "Transaction":
        """All its markers are durable."""
        return replace(self.after(Event.MARKED, now_ms), partitions=frozenset())
