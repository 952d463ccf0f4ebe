"""Executes the transaction coordinator's decisions: records, syncs and markers, then responses.

A commit has these steps; a crash may interrupt it anywhere:

1. EndTxn: every partition of the transaction is synced, whatever acks was. Other requests for the id wait meanwhile.
2. PrepareCommit is recorded. Once it is durable, the transaction is committed: a restart completes it.
3. A marker is written to every partition, and to the groups' offsets.
4. All markers are durable: the response is sent, so readers see the transaction by the time its producer knows of it.
   CompleteCommit is recorded, and synced with the next record.

An abort starts at 2 with PrepareAbort. Kafka responds after 2; clients of this broker rarely get the
CONCURRENT_TRANSACTIONS that results from it. A partition of a deleted topic needs no sync and no marker, but only once
the deletion is durable. Otherwise the next start could restore the topic with an open transaction that the coordinator
does not know.

`check_produce` admits a produce request on the same loop that decides everything else, and only if the record that
added its partition is durable. After any crash the coordinator thus knows every transaction in the logs.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice

from onceflow.broker.storage.state_log import StateBatch, StateLog, TooFewReplicas
from onceflow.broker.topics.shards import Shard
from onceflow.broker.transactions import records as transaction_records
from onceflow.broker.transactions.coordinator import Decision, InitRequest, ProducerRequest, TransactionCoordinator
from onceflow.broker.transactions.participants import Participants, Respond
from onceflow.broker.transactions.records import TransactionRecord
from onceflow.broker.transactions.transaction import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    Event,
    Transaction,
    TransactionState,
)
from onceflow.log.errors import LogError, StorageFailed
from onceflow.wire import TopicPartition
from onceflow.wire.errors import ErrorCode
from onceflow.wire.markers import ProducerMarker

logger = logging.getLogger(__name__)

RETRY_SECONDS = 1.0
"""Delay before a marker that could not be written is written again: the disk may have been full."""
ENDED_AT_ONCE = 100
"""Timed-out transactions, or expired ids, handled in one turn of the loop; the rest follows in the next tick."""

_VERIFICATION_ERRORS = {
    ErrorCode.invalid_producer_epoch: ErrorCode.producer_fenced,
    ErrorCode.not_enough_replicas: ErrorCode.concurrent_transactions,
    ErrorCode.invalid_txn_state: ErrorCode.transaction_abortable,
}
"""Error of a Produce response → error for the leader that asks."""
InitResponse = Callable[[ErrorCode, int, int], None]
NextProducerId = Callable[[Callable[[ErrorCode, int], None]], None]


@dataclass(slots=True)
class Completion:
    """A prepared transaction: the partitions without a durable marker, and the waiting responses."""

    unmarked: set[TopicPartition]
    is_decided: bool = False
    """Whether the decision is durable; before that no marker is written."""
    being_marked: set[TopicPartition] = field(default_factory=set)
    responses: list[Callable[[], None]] = field(default_factory=list)

    def respond(self) -> None:
        responses, self.responses = self.responses, []
        for send in responses:
            send()


@dataclass(slots=True)
class PeriodicWork:
    """Work that `tick` does every `interval_seconds`, or in the next tick if `run` returns that there is more."""

    run: Callable[[], bool]
    interval_seconds: float
    due_seconds: float = 0.0


class Transactions(Shard):
    """Transactional requests of the ids in one partition. After a failed sync every response is an error until a
    restart."""

    def __init__(
        self,
        coordinator: TransactionCoordinator,
        state_log: StateLog,
        participants: Participants,
        next_producer_id: NextProducerId,
        *,
        abort_interval_ms: int,
        expiration_interval_ms: int,
    ) -> None:
        super().__init__(state_log)
        self.coordinator = coordinator
        self._participants = participants
        self._next_producer_id = next_producer_id
        self._being_added: set[tuple[str, str, int]] = set()
        """Partitions added by a record that is not durable yet, or never will be."""
        self._completions: dict[str, Completion] = {}
        self._works = [
            PeriodicWork(self._abort_timed_out, abort_interval_ms / 1000),
            PeriodicWork(self._expire, expiration_interval_ms / 1000),
            PeriodicWork(self._retry, RETRY_SECONDS),
        ]

    # Begin and end

    def _replay(self, batch: StateBatch) -> None:
        for record in batch.records:
            assert record.key is not None
            self.coordinator.replay(transaction_records.decode(record.key, record.value))

    def resume_when_synced(self) -> None:
        """Complete every prepared transaction once all in-sync replicas have what a former coordinator appended."""
        replayed = self._await_decisions()

        def synced(_code: ErrorCode) -> None:
            for transactional_id in () if self.error_code else replayed:
                self._decide(transactional_id)

        self._state_log.when_synced(synced)

    def _resign(self) -> None:
        """Leave to the other broker what was decided: it completes that."""
        for completion in self._completions.values():
            completion.respond()

    # Records and responses

    def when_synced(self, respond: Respond) -> None:
        """Respond once the coordinator's current state is durable, or with an error if it cannot be."""

        def synced(code: ErrorCode) -> None:
            respond(ErrorCode.none if not code else self.error_code or ErrorCode.coordinator_not_available)

        self._state_log.when_synced(synced)

    def _record(
        self, records: Sequence[TransactionRecord], *, from_reserve: bool = False, is_awaited: bool = True
    ) -> ErrorCode:
        if self.error_code:
            return self.error_code
        try:
            entries = [transaction_records.encode(record) for record in records]
            self._state_log.append(entries, from_reserve=from_reserve, is_awaited=is_awaited)
        except (StorageFailed, TooFewReplicas):
            # Not logged again: the log, or the leader, has reported it once, and clients retry.
            return ErrorCode.coordinator_not_available
        except LogError as error:
            logger.error("a transaction's record could not be appended: %s", error)
            return ErrorCode.coordinator_not_available
        for record in records:
            self.coordinator.replay(record)
        return ErrorCode.none

    def _execute(self, decision: Decision, respond: Respond) -> None:
        """Record the decision; respond with its error code once everything that it reveals is durable."""
        error_code = self._record([decision.record]) if decision.record is not None else self.error_code
        if error_code:
            respond(error_code)
        else:
            self.when_synced(lambda code: respond(code or decision.error_code))

    # InitProducerId

    def init(self, request: InitRequest, respond: InitResponse) -> None:
        """Assign a producer id and epoch; an ongoing transaction is aborted first, and the client retries."""
        if not self.coordinator.needs_producer_id(request):
            self._init(request, NO_PRODUCER_ID, respond)
            return

        def allocated(error_code: ErrorCode, producer_id: int) -> None:
            if error_code:
                respond(ErrorCode.coordinator_not_available, NO_PRODUCER_ID, NO_PRODUCER_EPOCH)
            else:
                self._init(request, producer_id, respond)

        self._next_producer_id(allocated)

    def _init(self, request: InitRequest, fresh_producer_id: int, respond: InitResponse) -> None:
        decision = self.coordinator.decide_init(request, fresh_producer_id)
        record = decision.record

        def settled(error_code: ErrorCode) -> None:
            if error_code or record is None:
                respond(error_code, NO_PRODUCER_ID, NO_PRODUCER_EPOCH)
            else:
                respond(ErrorCode.none, record.producer_id, record.producer_epoch)

        if record is not None and record.state is TransactionState.PREPARE_ABORT:
            self._prepare(record, lambda code: settled(code or decision.error_code))
        else:
            self._execute(decision, settled)

    # Partitions

    def add(self, request: ProducerRequest, partitions: frozenset[TopicPartition], respond: Respond) -> None:
        """Add partitions, which must exist, to the transaction."""
        decision = self.coordinator.decide_add(request, partitions)
        if decision.record is None:
            self._execute(decision, respond)
            return
        added = partitions - self.coordinator.transactions[request.transactional_id].partitions
        error_code = self._record([decision.record])
        if error_code:
            respond(error_code)
            return
        self._being_added.update((request.transactional_id, *place) for place in added)

        def synced(error_code: ErrorCode) -> None:
            if not self.error_code:
                # Durable, even if replicas have left the in-sync set meanwhile.
                self._being_added.difference_update((request.transactional_id, *place) for place in added)
            respond(error_code)

        self.when_synced(synced)

    def check_produce(
        self, producer_id: int, producer_epoch: int, transactional_id: str | None, topic: str, partition: int
    ) -> ErrorCode:
        """Return the error for a transactional batch for this partition, or `none`. The hot path."""
        if self.is_loading or (self._being_added and (transactional_id, topic, partition) in self._being_added):
            return ErrorCode.not_enough_replicas
        return self.coordinator.write_refusal(transactional_id or "", producer_id, producer_epoch, (topic, partition))

    def verify(self, request: ProducerRequest, place: TopicPartition) -> ErrorCode:
        """Return the error if the transaction does not include a partition of another broker, or `none`.

        The codes are those of TransactionCoordinator.handleVerifyPartitionsInTransaction.
        """
        producer = request.producer_id, request.producer_epoch
        code = self.check_produce(*producer, request.transactional_id, *place)
        return _VERIFICATION_ERRORS.get(code, code)

    # The end

    def end(self, request: ProducerRequest, event: Event, respond: Respond) -> None:
        """Handle EndTxn: `event` is COMMIT or ABORT. Success means that the outcome is durable and visible."""
        refusal = self.coordinator.end_refusal(request, event)
        if refusal is not None:
            self._execute(Decision(refusal), respond)
            return
        transaction = self.coordinator.transactions[request.transactional_id]
        if event is Event.ABORT:
            self._prepare(transaction.after(event, self.coordinator.clock.now_ms()), respond)
        else:
            self._commit(transaction, respond)

    def _commit(self, transaction: Transaction, respond: Respond) -> None:
        """Sync the records, then prepare: a record lost after PrepareCommit would be missing from the transaction."""
        self.coordinator.ending.add(transaction.transactional_id)

        def synced(error_code: ErrorCode) -> None:
            self.coordinator.ending.discard(transaction.transactional_id)
            if error_code:
                logger.error("transaction of %s: a partition cannot be synced", transaction.transactional_id)
                respond(error_code)
            else:
                self._prepare(transaction.after(Event.COMMIT, self.coordinator.clock.now_ms()), respond)

        self._participants.sync(transaction, synced)

    def _prepare(self, prepared: Transaction, respond: Respond) -> None:
        """Decide the outcome; respond when its markers are durable."""
        error_code = self._record([prepared], from_reserve=True)
        if error_code:
            respond(error_code)
            return
        completion = self._completions[prepared.transactional_id] = Completion(set(prepared.partitions))

        def decided(error_code: ErrorCode) -> None:
            if self.error_code:
                respond(error_code)
            else:
                # Decided, even if replicas have left the in-sync set meanwhile.
                completion.responses.append(lambda: respond(error_code))
                self._decide(prepared.transactional_id)

        self.when_synced(decided)

    def _decide(self, transactional_id: str) -> None:
        """Write the markers of a transaction whose decision is durable now."""
        self._completions[transactional_id].is_decided = True
        self._complete(transactional_id)

    def _complete(self, transactional_id: str) -> None:
        """Write the missing markers if the outcome is decided; respond even if one cannot be written."""
        transaction, completion = self.coordinator.transactions[transactional_id], self._completions[transactional_id]
        if not completion.is_decided:
            return
        due = sorted(completion.unmarked - completion.being_marked)
        completion.being_marked.update(due)
        if not completion.being_marked:
            self._marked(transaction, completion)
        marker = self._marker(transaction)
        for place in due:
            self._participants.mark(marker, place, partial(self._on_marked, transaction, completion, place))

    def _marker(self, transaction: Transaction) -> ProducerMarker:
        partition = self._state_log.partition
        epoch = None if partition.replica is None else partition.leader_epoch
        return ProducerMarker(transaction.producer_id, transaction.producer_epoch, transaction.commits, epoch)

    def _on_marked(
        self, transaction: Transaction, completion: Completion, place: TopicPartition, is_done: bool
    ) -> None:
        completion.being_marked.discard(place)
        if is_done:
            completion.unmarked.discard(place)
        if not completion.being_marked:
            self._marked(transaction, completion)

    def _marked(self, transaction: Transaction, completion: Completion) -> None:
        """Record the end after a round of markers, or leave the missing ones to `tick` or the next start."""
        if not completion.unmarked:
            completed = transaction.completed(self.coordinator.clock.now_ms())
            # If a power cut loses this record, the next start writes the markers again.
            if not self._record([completed], from_reserve=True, is_awaited=False):
                del self._completions[transaction.transactional_id]
        completion.respond()

    # Time

    def resume(self) -> None:
        """Complete every prepared transaction at start, when all replayed records are durable."""
        for transactional_id in self._await_decisions():
            self._decide(transactional_id)

    def _await_decisions(self) -> list[str]:
        """Let the prepared transactions in the log wait until they are durable; return their ids."""
        replayed = {transaction.transactional_id: transaction for transaction in self.coordinator.prepared()}
        self._completions |= {name: Completion(set(prepared.partitions)) for name, prepared in replayed.items()}
        return list(replayed)

    def tick(self) -> None:
        """Abort timed-out transactions, expire ids, and retry markers; called often."""
        now_seconds = self.coordinator.clock.monotonic()
        if self.error_code:
            # Nothing is marked any more; the outcomes were decided.
            for completion in self._completions.values():
                completion.respond()
            return
        for work in self._works:
            if now_seconds >= work.due_seconds:
                work.due_seconds = now_seconds + work.interval_seconds
                if work.run():
                    work.due_seconds = now_seconds

    def _abort_timed_out(self) -> bool:
        timed_out = list(islice(self.coordinator.timed_out(), ENDED_AT_ONCE))
        failures: list[ErrorCode] = []
        for transaction in timed_out:
            logger.info("transaction of %s timed out; aborting it", transaction.transactional_id)
            self.abort(transaction, failures.append)
        return len(timed_out) == ENDED_AT_ONCE and not any(failures)

    def _retry(self) -> bool:
        decided = [(name, completion) for name, completion in self._completions.items() if completion.is_decided]
        for transactional_id, completion in decided:
            if self._participants.may_be_away:
                # The outcome is decided; the others may be away for long.
                completion.respond()
            if completion.unmarked != completion.being_marked or not completion.being_marked:
                self._complete(transactional_id)
        return False

    def _expire(self) -> bool:
        expired = list(islice(self.coordinator.expired(), ENDED_AT_ONCE))
        return bool(expired) and not self._record(expired) and len(expired) == ENDED_AT_ONCE

    # Admin requests

    def unmarked(self, transaction: Transaction) -> Iterable[TopicPartition]:
        """Return the transaction's partitions; if it is prepared, those without a durable marker."""
        completion = self._completions.get(transaction.transactional_id)
        return transaction.partitions if completion is None else completion.unmarked

    def take_marker(self, marker: ProducerMarker, place: TopicPartition, respond: Respond) -> bool:
        """Take an admin's marker for one partition; a transaction known to the coordinator is aborted as a whole.

        Return False if the marker concerns no transaction known here: it belongs into the partition alone.
        """
        transaction = self.coordinator.of_producer(marker.producer_id)
        if transaction is not None and marker.producer_epoch > transaction.producer_epoch:
            # It would fence, in this partition only, a producer that may write according to the coordinator.
            respond(ErrorCode.invalid_producer_epoch)
        elif transaction is None or place not in transaction.partitions:
            return False
        elif marker.producer_epoch < transaction.producer_epoch:
            respond(ErrorCode.invalid_producer_epoch)
        elif marker.commit or transaction.transactional_id in self.coordinator.ending:
            respond(ErrorCode.invalid_txn_state)
        elif transaction.state is TransactionState.ONGOING:
            self.abort(transaction, respond)
        else:
            self._await_own_marker(transaction.transactional_id, respond)
        return True

    def _await_own_marker(self, transactional_id: str, respond: Respond) -> None:
        """Respond when a prepared transaction, whose decision may not be durable yet, has its own markers."""

        def decided(error_code: ErrorCode) -> None:
            completion = self._completions.get(transactional_id)
            if error_code or completion is None:
                respond(error_code)
            else:
                completion.responses.append(lambda: respond(ErrorCode.none))
                self._complete(transactional_id)

        self.when_synced(decided)

    def abort(self, transaction: Transaction, respond: Respond) -> None:
        """Abort an ongoing transaction and fence its producer."""
        self._prepare(transaction.fenced(self.coordinator.clock.now_ms()), respond)
