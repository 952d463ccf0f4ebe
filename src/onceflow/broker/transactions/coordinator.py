"""What each transactional request does: `decide_…` says it, `replay` alone changes state, at run time and start-up.

Nothing here appends, waits or answers: `onceflow.broker.transactions.requests` does. The jump rules and error codes
are those of Apache Kafka 4.1.1 with `transaction.version=0` (TransactionCoordinator, TransactionMetadata), which were
asked one by one; tests/broker/handlers/test_transactions.py holds them.
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
    TopicPartition,
    Transaction,
    TransactionState,
)
from onceflow.log.clock import Clock
from onceflow.wire.errors import ErrorCode


@dataclass(frozen=True, slots=True)
class InitRequest:
    """InitProducerId; from version 3 on a producer may say which id and epoch it has, -1 and -1 if none."""

    transactional_id: str
    timeout_ms: int
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH

    @property
    def names_its_epoch(self) -> bool:
        return self.producer_id != NO_PRODUCER_ID


@dataclass(frozen=True, slots=True)
class ProducerRequest:
    """Who asks in every other request."""

    transactional_id: str
    producer_id: int
    producer_epoch: int


@dataclass(frozen=True, slots=True)
class Decision:
    """The answer's error code, and the change that has to be durable before it is sent."""

    error_code: ErrorCode
    record: Transaction | None = None


class TransactionCoordinator:
    """All transactional ids. Single-threaded: the event loop is its lock, and that of every partition."""

    def __init__(self, clock: Clock, *, timeout_max_ms: int, expiration_ms: int) -> None:
        self.clock = clock
        self.transactions: dict[str, Transaction] = {}
        """By transactional id, in the order of their last change: that of the log, which compaction keeps."""
        self.unfinished: dict[str, None] = {}
        """Ids with a transaction that is ongoing or prepared, few among hundreds of thousands."""
        self._ids_of_producers: dict[int, str] = {}
        """Producer id → transactional id."""
        self.ending: set[str] = set()
        """Ids whose partitions are being synced for a commit: until it is prepared, nothing else may happen to them."""
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

    def needs_producer_id(self, asked: InitRequest) -> bool:
        """Whether `decide_init` will want a fresh producer id: the first one of an id, or the next after exhaustion."""
        if self._init_refusal(asked):
            return False
        transaction = self.transactions.get(asked.transactional_id)
        if transaction is None:
            return True
        return (
            Event.INIT in NEXT_STATES[transaction.state] and transaction.is_exhausted and _may_bump(transaction, asked)
        )

    def decide_init(self, asked: InitRequest, fresh_producer_id: int = NO_PRODUCER_ID) -> Decision:
        """A producer id and epoch for who asks, which fences everybody who asked before."""
        refusal = self._init_refusal(asked)
        if refusal:
            return Decision(refusal)
        now_ms = self.clock.now_ms()
        transaction = self.transactions.get(asked.transactional_id)
        if transaction is None:
            empty = TransactionState.EMPTY
            fresh = Transaction(
                asked.transactional_id, fresh_producer_id, 0, asked.timeout_ms, empty, frozenset(), now_ms
            )
            return Decision(ErrorCode.none, fresh)
        if transaction.state is TransactionState.ONGOING:
            return Decision(ErrorCode.concurrent_transactions, transaction.fenced(now_ms))
        return Decision(ErrorCode.none, _initialised(transaction, asked, fresh_producer_id, now_ms))

    def _init_refusal(self, asked: InitRequest) -> ErrorCode:
        if not asked.transactional_id or (asked.producer_id == NO_PRODUCER_ID) != (
            asked.producer_epoch == NO_PRODUCER_EPOCH
        ):
            return ErrorCode.invalid_request
        if not 0 < asked.timeout_ms <= self._timeout_max_ms:
            return ErrorCode.invalid_transaction_timeout
        transaction = self.transactions.get(asked.transactional_id)
        if transaction is None:
            return ErrorCode.none
        if asked.transactional_id in self.ending:
            return ErrorCode.concurrent_transactions
        if not (_may_bump(transaction, asked) or _is_repeated(transaction, asked)):
            return ErrorCode.producer_fenced
        return transaction.response_to(Event.INIT) or ErrorCode.none

    # Partitions and the end

    def decide_add(self, asked: ProducerRequest, partitions: frozenset[TopicPartition]) -> Decision:
        """Let the transaction write to `partitions`, which exist; the first ones begin it."""
        transaction = self.transactions.get(asked.transactional_id)
        refusal = self._refusal(transaction, asked, Event.ADD)
        if refusal is not None:
            return Decision(refusal)
        assert transaction is not None
        if transaction.state is TransactionState.ONGOING and partitions <= transaction.partitions:
            return Decision(ErrorCode.none)
        return Decision(ErrorCode.none, transaction.with_partitions(partitions, self.clock.now_ms()))

    def end_refusal(self, asked: ProducerRequest, event: Event) -> ErrorCode | None:
        """What EndTxn gets at once; None: the transaction is ongoing and may be prepared for `event`."""
        return self._refusal(self.transactions.get(asked.transactional_id), asked, event)

    def _refusal(self, transaction: Transaction | None, asked: ProducerRequest, event: Event) -> ErrorCode | None:
        if not asked.transactional_id:
            return ErrorCode.invalid_request
        if transaction is None or transaction.producer_id != asked.producer_id:
            return ErrorCode.invalid_producer_id_mapping
        if transaction.producer_epoch != asked.producer_epoch or transaction.is_fenced_for_good:
            return ErrorCode.producer_fenced
        if asked.transactional_id in self.ending:
            return ErrorCode.concurrent_transactions
        return transaction.response_to(event)

    def write_refusal(
        self, transactional_id: str, producer_id: int, producer_epoch: int, partition: TopicPartition
    ) -> ErrorCode:
        """Whether the transaction may write to this partition now; `none`: it may.

        The codes are those that Kafka's partition gives to Produce up to 9, which knows no others (its
        AddPartitionsToTxnManager and ReplicaManager translate them): what passes by itself is NOT_ENOUGH_REPLICAS.
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
        """The state of the transactional id that has this producer id now."""
        return self.transactions.get(self._ids_of_producers.get(producer_id, ""))

    # Time

    def timed_out(self) -> Iterator[Transaction]:
        """Ongoing transactions that are older than their producers allowed."""
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
        """Ids without a transaction that nobody used for `transactional.id.expiration.ms`, the oldest first."""
        latest_ms = self.clock.now_ms() - self._expiration_ms
        for transaction in self.transactions.values():
            if transaction.updated_ms > latest_ms:
                return
            if Event.EXPIRE in NEXT_STATES[transaction.state]:
                yield transaction.transactional_id

    def prepared(self) -> Iterator[Transaction]:
        """Transactions whose outcome is decided and whose markers are not all durable yet."""
        unfinished = (self.transactions[each] for each in self.unfinished)
        return (each for each in unfinished if each.state in PREPARED)


def _may_bump(transaction: Transaction, asked: InitRequest) -> bool:
    """A request without epoch always may: the last caller wins. One with it must know the present one."""
    present = (transaction.producer_id, transaction.producer_epoch)
    return not asked.names_its_epoch or (asked.producer_id, asked.producer_epoch) == present


def _is_repeated(transaction: Transaction, asked: InitRequest) -> bool:
    """Whether this very request was carried out and its answer lost (KIP-360)."""
    if transaction.state is not TransactionState.EMPTY or asked.producer_epoch != transaction.last_producer_epoch:
        return False
    rotated = transaction.producer_epoch == 0 and asked.producer_id == transaction.previous_producer_id
    return rotated or asked.producer_id == transaction.producer_id


def _initialised(transaction: Transaction, asked: InitRequest, fresh_producer_id: int, now_ms: int) -> Transaction:
    last_epoch = transaction.producer_epoch if asked.names_its_epoch else NO_PRODUCER_EPOCH
    if not _may_bump(transaction, asked):
        return transaction.initialised(asked.timeout_ms, now_ms)
    if transaction.is_exhausted:
        return transaction.initialised(
            asked.timeout_ms,
            now_ms,
            producer_id=fresh_producer_id,
            producer_epoch=0,
            previous_producer_id=transaction.producer_id,
            last_producer_epoch=last_epoch,
        )
    return transaction.initialised(
        asked.timeout_ms,
        now_ms,
        producer_epoch=transaction.producer_epoch + 1,
        last_producer_epoch=last_epoch,
    )
