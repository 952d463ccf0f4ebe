"""State of a transactional id: producer id, epoch, transaction, and the state table.

`NEXT_STATES` has the transitions, `RESPONSES` the error codes of requests without a transition. The diagram in
docs/transactions.md is generated from them (`python -m onceflow.broker.transactions.page`).
"""

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import NamedTuple

from onceflow.wire import TopicPartition
from onceflow.wire.errors import ErrorCode

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
PRODUCER_EPOCH_MAX = 32766
"""The last epoch assigned to a producer: one more is reserved, so that the producer can be fenced."""


class TransactionState(Enum):
    """Kafka's states, in the order of their numbers in its records (`STATE_IDS`)."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"
    DEAD = "Dead"


class Event(Enum):
    """Events of a transactional id; the values are the labels of the diagram."""

    INIT = "InitProducerId"
    ADD = "AddPartitionsToTxn, AddOffsetsToTxn"
    COMMIT = "EndTxn commit, its partitions are synced"
    ABORT = "EndTxn abort"
    FENCE = "InitProducerId, timeout or abort by an admin: epoch + 1"
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
"""Next state by state and event. DEAD is never stored: a tombstone deletes the transactional id."""

_WAIT = ErrorCode.concurrent_transactions
_WRONG = ErrorCode.invalid_txn_state

RESPONSES: Mapping[TransactionState, Mapping[Event, ErrorCode]] = MappingProxyType(
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
"""Error codes of requests that change nothing; `none` is the response to a repeated EndTxn."""

PREPARED = frozenset({TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT})
UNFINISHED = PREPARED | {TransactionState.ONGOING}


class Transaction(NamedTuple):
    """Immutable state of one transactional id, as stored in its record.

    `last_producer_epoch` is the epoch in the request for the current one; it distinguishes a retry from another
    producer's request (KIP-360). `previous_producer_id` is the one before exhaustion.
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
        """Whether the producer id has no epoch left to assign."""
        return self.producer_epoch >= PRODUCER_EPOCH_MAX

    @property
    def is_permanently_fenced(self) -> bool:
        """Whether the epoch is the reserved one, which is never assigned and cannot be fenced again."""
        return self.producer_epoch > PRODUCER_EPOCH_MAX

    @property
    def commits(self) -> bool:
        """Whether a prepared transaction ends with commit markers."""
        return self.state is TransactionState.PREPARE_COMMIT

    def response_to(self, event: Event) -> ErrorCode | None:
        """Return the response to `event` if it changes nothing; None if `after` applies."""
        return RESPONSES.get(self.state, {}).get(event)

    def after(self, event: Event, now_ms: int) -> "Transaction":
        """Return the state after `event`."""
        state = NEXT_STATES[self.state].get(event)
        assert state is not None, f"transactional id {self.transactional_id}: {event.name} in {self.state.value}"
        return self._replace(state=state, updated_ms=now_ms)

    def with_partitions(self, added: frozenset[TopicPartition], now_ms: int) -> "Transaction":
        """Return the transaction, ongoing, with `added`; a new one starts now."""
        started_ms = self.started_ms if self.state is TransactionState.ONGOING else now_ms
        partitions = self.partitions | added
        return self.after(Event.ADD, now_ms)._replace(partitions=partitions, started_ms=started_ms)

    def initialised(self, timeout_ms: int, now_ms: int, **changes: int) -> "Transaction":
        """Return the empty state after InitProducerId."""
        empty = self.after(Event.INIT, now_ms)
        return empty._replace(timeout_ms=timeout_ms, partitions=frozenset(), started_ms=-1, **changes)  # type: ignore[arg-type]

    def fenced(self, now_ms: int) -> "Transaction":
        """Return the transaction prepared for abort, with an epoch that no producer has."""
        fenced = self.after(Event.FENCE, now_ms)
        return fenced._replace(producer_epoch=self.producer_epoch + 1, last_producer_epoch=NO_PRODUCER_EPOCH)

    def completed(self, now_ms: int) -> "Transaction":
        """Return the completed state, after all markers are durable."""
        return self.after(Event.MARKED, now_ms)._replace(partitions=frozenset())
