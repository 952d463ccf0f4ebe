"""Decisions about transactional requests; only `replay` changes state, at run time and at start.

`onceflow.broker.transactions.requests` appends, waits and responds. Transitions and error codes are those of Apache
Kafka 4.1.1 with `transaction.version=0` (TransactionCoordinator, TransactionMetadata), observed one by one;
tests/broker/handlers/test_transactions.py has them.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from onceflow.broker.transactions.records import TransactionRecord
from onceflow.broker.transactions.transaction import (
    NEXT_STATES,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    PREPARED,
    UNFINISHED,
    Event,
    Transaction,
    TransactionState,
)
from onceflow.log.clock import Clock
from onceflow.wire import TopicPartition
from onceflow.wire.errors import ErrorCode


@dataclass(frozen=True, slots=True)
class InitRequest:
    """An InitProducerId request; from version 3 on it has the producer's current id and epoch, or -1 and -1."""

    transactional_id: str
    timeout_ms: int
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH

    @property
    def has_epoch(self) -> bool:
        return self.producer_id != NO_PRODUCER_ID


@dataclass(frozen=True, slots=True)
class ProducerRequest:
    """The producer in every other transactional request."""

    transactional_id: str
    producer_id: int
    producer_epoch: int


@dataclass(frozen=True, slots=True)
class Decision:
    """The response's error code, and the change that must be durable before it is sent."""

    error_code: ErrorCode
    record: Transaction | None = None


class TransactionCoordinator:
    """All transactional ids. Single-threaded: the event loop serializes access to it and to all partitions."""

    def __init__(self, clock: Clock, *, timeout_max_ms: int, expiration_ms: int) -> None:
        self.clock = clock
        self.transactions: dict[str, Transaction] = {}
        """Transactions by transactional id, in the order of their last change, which compaction preserves."""
        self.unfinished: dict[str, None] = {}
        """Ids with an ongoing or prepared transaction: few among hundreds of thousands."""
        self._ids_of_producers: dict[int, str] = {}
        """Transactional ids by producer id."""
        self.ending: set[str] = set()
        """Ids whose partitions are being synced for a commit: until it is prepared, other requests must wait."""
        self._timeout_max_ms = timeout_max_ms
        self._expiration_ms = expiration_ms

    def replay(self, record: TransactionRecord) -> None:
        """Apply one record."""
        transactional_id = record if isinstance(record, str) else record.transactional_id
        before = self.transactions.pop(transactional_id, None)
        if before is not None:
            self._ids_of_producers.pop(before.producer_id, None)
        self.unfinished.pop(transactional_id, None)
        if isinstance(record, str):
            return
        self.transactions[transactional_id] = record
        self._ids_of_producers[record.producer_id] = transactional_id
        if record.state in UNFINISHED:
            self.unfinished[transactional_id] = None

    # InitProducerId

    def needs_producer_id(self, request: InitRequest) -> bool:
        """Return whether `decide_init` needs a new producer id: the first one, or the next after exhaustion."""
        if self._init_refusal(request):
            return False
        transaction = self.transactions.get(request.transactional_id)
        if transaction is None:
            return True
        return (
            Event.INIT in NEXT_STATES[transaction.state]
            and transaction.is_exhausted
            and _may_bump(transaction, request)
        )

    def decide_init(self, request: InitRequest, fresh_producer_id: int = NO_PRODUCER_ID) -> Decision:
        """Decide an InitProducerId, which fences all earlier producers."""
        refusal = self._init_refusal(request)
        if refusal:
            return Decision(refusal)
        now_ms = self.clock.now_ms()
        transaction = self.transactions.get(request.transactional_id)
        if transaction is None:
            empty = TransactionState.EMPTY
            fresh = Transaction(
                request.transactional_id, fresh_producer_id, 0, request.timeout_ms, empty, frozenset(), now_ms
            )
            return Decision(ErrorCode.none, fresh)
        if transaction.state is TransactionState.ONGOING:
            return Decision(ErrorCode.concurrent_transactions, transaction.fenced(now_ms))
        return Decision(ErrorCode.none, _initialised(transaction, request, fresh_producer_id, now_ms))

    def _init_refusal(self, request: InitRequest) -> ErrorCode:
        if not request.transactional_id or (request.producer_id == NO_PRODUCER_ID) != (
            request.producer_epoch == NO_PRODUCER_EPOCH
        ):
            return ErrorCode.invalid_request
        if not 0 < request.timeout_ms <= self._timeout_max_ms:
            return ErrorCode.invalid_transaction_timeout
        transaction = self.transactions.get(request.transactional_id)
        if transaction is None:
            return ErrorCode.none
        if request.transactional_id in self.ending:
            return ErrorCode.concurrent_transactions
        if not (_may_bump(transaction, request) or _is_repeated(transaction, request)):
            return ErrorCode.producer_fenced
        return transaction.response_to(Event.INIT) or ErrorCode.none

    # Partitions and the end

    def decide_add(self, request: ProducerRequest, partitions: frozenset[TopicPartition]) -> Decision:
        """Decide to add `partitions`, which must exist; the first ones start the transaction."""
        transaction = self.transactions.get(request.transactional_id)
        refusal = self._refusal(transaction, request, Event.ADD)
        if refusal is not None:
            return Decision(refusal)
        assert transaction is not None
        if transaction.state is TransactionState.ONGOING and partitions <= transaction.partitions:
            return Decision(ErrorCode.none)
        return Decision(ErrorCode.none, transaction.with_partitions(partitions, self.clock.now_ms()))

    def end_refusal(self, request: ProducerRequest, event: Event) -> ErrorCode | None:
        """Return the immediate response to EndTxn; None if the transaction can be prepared for `event`."""
        return self._refusal(self.transactions.get(request.transactional_id), request, event)

    def _refusal(self, transaction: Transaction | None, request: ProducerRequest, event: Event) -> ErrorCode | None:
        if not request.transactional_id:
            return ErrorCode.invalid_request
        if transaction is None or transaction.producer_id != request.producer_id:
            return ErrorCode.invalid_producer_id_mapping
        if transaction.producer_epoch != request.producer_epoch or transaction.is_permanently_fenced:
            return ErrorCode.producer_fenced
        if request.transactional_id in self.ending:
            return ErrorCode.concurrent_transactions
        return transaction.response_to(event)

    def write_refusal(
        self, transactional_id: str, producer_id: int, producer_epoch: int, partition: TopicPartition
    ) -> ErrorCode:
        """Return the error if the transaction may not write to this partition now, or `none`.

        The codes are those of Kafka's responses to Produce up to version 9 (AddPartitionsToTxnManager, ReplicaManager):
        a temporary error is NOT_ENOUGH_REPLICAS.
        """
        transaction = self.transactions.get(transactional_id)
        if transaction is None or transaction.producer_id != producer_id:
            return ErrorCode.invalid_producer_id_mapping if transactional_id else ErrorCode.invalid_request
        if transaction.producer_epoch != producer_epoch:
            return ErrorCode.invalid_producer_epoch
        if transaction.state in PREPARED or transactional_id in self.ending:
            return ErrorCode.not_enough_replicas
        if partition not in transaction.partitions:
            return ErrorCode.invalid_txn_state
        return ErrorCode.none

    def of_producer(self, producer_id: int) -> Transaction | None:
        """Return the transaction of the transactional id that has this producer id now."""
        return self.transactions.get(self._ids_of_producers.get(producer_id, ""))

    # Time

    def timed_out(self) -> Iterator[Transaction]:
        """Yield ongoing transactions that exceed their timeout."""
        now_ms = self.clock.now_ms()
        for transactional_id in self.unfinished:
            transaction = self.transactions[transactional_id]
            if (
                transaction.state is TransactionState.ONGOING
                and transaction.started_ms + transaction.timeout_ms < now_ms
                and transactional_id not in self.ending
            ):
                yield transaction

    def expired(self) -> Iterator[str]:
        """Yield ids without a transaction, unused for `transactional.id.expiration.ms`, the oldest first."""
        latest_ms = self.clock.now_ms() - self._expiration_ms
        for transaction in self.transactions.values():
            if transaction.updated_ms > latest_ms:
                return
            if Event.EXPIRE in NEXT_STATES[transaction.state]:
                yield transaction.transactional_id

    def prepared(self) -> Iterator[Transaction]:
        """Return the transactions whose outcome is decided and whose markers are not all durable yet."""
        unfinished = (self.transactions[transactional_id] for transactional_id in self.unfinished)
        return (transaction for transaction in unfinished if transaction.state in PREPARED)


def _may_bump(transaction: Transaction, request: InitRequest) -> bool:
    """Return whether the request may bump the epoch: without an epoch always, otherwise only with the current one."""
    current = (transaction.producer_id, transaction.producer_epoch)
    return not request.has_epoch or (request.producer_id, request.producer_epoch) == current


def _is_repeated(transaction: Transaction, request: InitRequest) -> bool:
    """Return whether this is a retry of a request whose response was lost (KIP-360)."""
    if transaction.state is not TransactionState.EMPTY or request.producer_epoch != transaction.last_producer_epoch:
        return False
    rotated = transaction.producer_epoch == 0 and request.producer_id == transaction.previous_producer_id
    return rotated or request.producer_id == transaction.producer_id


def _initialised(transaction: Transaction, request: InitRequest, fresh_producer_id: int, now_ms: int) -> Transaction:
    last_epoch = transaction.producer_epoch if request.has_epoch else NO_PRODUCER_EPOCH
    if not _may_bump(transaction, request):
        return transaction.initialised(request.timeout_ms, now_ms)
    if transaction.is_exhausted:
        return transaction.initialised(
            request.timeout_ms,
            now_ms,
            producer_id=fresh_producer_id,
            producer_epoch=0,
            previous_producer_id=transaction.producer_id,
            last_producer_epoch=last_epoch,
        )
    return transaction.initialised(
        request.timeout_ms,
        now_ms,
        producer_epoch=transaction.producer_epoch + 1,
        last_producer_epoch=last_epoch,
    )
