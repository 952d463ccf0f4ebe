"""Carries out what the coordinator decides: records, syncs, markers, then answers.

The order of a commit, which a crash may cut anywhere:

1. EndTxn: every partition of the transaction is synced, whatever acks was; meanwhile nothing else happens to the id.
2. PrepareCommit is recorded. Once it is durable the outcome is decided: start-up finishes it, nothing can undo it.
3. A marker goes to every partition, and to the groups' offsets.
4. All markers are durable: the answer is sent, so a reader sees the transaction when its producer knows of it, and
   CompleteCommit is recorded.

An abort begins at 2 with PrepareAbort. Kafka answers after 2; this broker's clients rarely meet the
CONCURRENT_TRANSACTIONS that follows from it. A partition whose topic was deleted has nothing left to sync or mark, but
only once the deletion is durable: a topic that comes back with the next start must not hold an open transaction that
the coordinator has forgotten.

A produce request is let in by `check_produce`, on the loop that decides everything else, and only where the record
that added its partition is durable: after any crash the coordinator knows of every transaction that a log holds.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Protocol

from onceflow.broker.storage.group_commit import GroupCommit
from onceflow.broker.storage.partitions import Partition, Partitions
from onceflow.broker.storage.state_log import StateLog
from onceflow.broker.topics.topics import GROUP_OFFSETS_TOPIC, INTERNAL_TOPICS
from onceflow.broker.transactions import records as transaction_records
from onceflow.broker.transactions.coordinator import Decision, InitRequest, ProducerRequest, TransactionCoordinator
from onceflow.broker.transactions.records import TransactionRecord
from onceflow.broker.transactions.transaction import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    Event,
    TopicPartition,
    Transaction,
    TransactionState,
)
from onceflow.log.errors import InvalidProducerEpoch, LogError, StorageFailed
from onceflow.wire.errors import ErrorCode

logger = logging.getLogger(__name__)

RETRY_SECONDS = 1.0
"""After how long a marker that could not be written is tried again: the disk may have been full."""
ENDED_AT_ONCE = 100
"""Transactions that time out, or ids that expire, in one turn of the loop; the others follow with the next tick."""

Answer = Callable[[ErrorCode], None]
InitResponse = Callable[[ErrorCode, int, int], None]
WhenTopicsSynced = Callable[[Answer], None]
NextProducerId = Callable[[Callable[[ErrorCode, int], None]], None]


class GroupOffsets(Protocol):
    """What is asked of the groups: to end a transaction in their own partition."""

    @property
    def error_code(self) -> ErrorCode:
        """`coordinator_not_available`: their log takes nothing more until the next start."""
        ...

    def complete_transaction(self, producer_id: int, producer_epoch: int, *, commit: bool) -> None:
        """Append the marker, and make the transaction's offsets real or drop them. Raises LogError."""
        ...

    def when_synced(self, settled: Answer) -> None:
        """Call back once that is durable, or never will be."""
        ...


class Syncs:
    """Calls `done` once with the first error, or none, when every partition that it was given is synced.

    A topic that is deleted meanwhile is no error.
    """

    def __init__(self, done: Answer) -> None:
        self._done = done
        self._missing = 1
        self._error_code = ErrorCode.none

    def expect(self, settled: Answer) -> Answer:
        """One thing more to wait for: what is returned has to be called, and calls `settled` first."""
        self._missing += 1

        def both(error_code: ErrorCode) -> None:
            settled(error_code)
            self.settle(error_code)

        return both

    def wait_for(self, partition: Partition, settled: Answer = lambda _code: None) -> None:
        """Everything that is in the partition's log now."""
        partition.when_durable(self.expect(settled))

    def settle(self, error_code: ErrorCode = ErrorCode.none) -> None:
        """One sync less to wait for."""
        if error_code not in (ErrorCode.none, ErrorCode.unknown_topic_or_partition):
            self._error_code = error_code
        self._missing -= 1
        if not self._missing:
            self._done(self._error_code)


@dataclass(frozen=True, slots=True)
class MarkerRequest:
    """A marker that an admin wants written (WriteTxnMarkers)."""

    producer_id: int
    producer_epoch: int
    commit: bool
    coordinator_epoch: int


@dataclass(slots=True)
class Completion:
    """A prepared transaction on its way to its end: the partitions whose marker is not durable yet."""

    unmarked: set[TopicPartition]
    answers: list[Callable[[], None]] = field(default_factory=list)
    is_under_way: bool = False

    def respond(self) -> None:
        answers, self.answers = self.answers, []
        for each in answers:
            each()


@dataclass(slots=True)
class PeriodicWork:
    """Something that `tick` does every `interval_seconds`, or in the next tick if `run` says that there is more."""

    run: Callable[[], bool]
    interval_seconds: float
    due_seconds: float = 0.0


class Transactions:
    """The transactional requests of one broker. After a failed sync every answer is an error until restart."""

    def __init__(
        self,
        coordinator: TransactionCoordinator,
        state_log: StateLog,
        partitions: Partitions,
        group_commit: GroupCommit,
        groups: GroupOffsets,
        next_producer_id: NextProducerId,
        when_topics_synced: WhenTopicsSynced,
        *,
        abort_interval_ms: int,
        expiration_interval_ms: int,
    ) -> None:
        self.coordinator = coordinator
        self._state_log = state_log
        self._partitions = partitions
        self._group_commit = group_commit
        self._groups = groups
        self._next_producer_id = next_producer_id
        self._when_topics_synced = when_topics_synced
        self._being_added: set[tuple[str, str, int]] = set()
        """Partitions that were added by a record that is in the log and not durable yet, or never will be."""
        self._completions: dict[str, Completion] = {}
        self._works = [
            PeriodicWork(self._abort_timed_out, abort_interval_ms / 1000),
            PeriodicWork(self._expire, expiration_interval_ms / 1000),
            PeriodicWork(self._retry, RETRY_SECONDS),
        ]
        for record in state_log.records():
            assert record.key is not None
            coordinator.replay(transaction_records.decode(record.key, record.value))

    # Records and answers

    @property
    def error_code(self) -> ErrorCode:
        """What every transactional request gets: `none` while the log can be written."""
        failed = self._state_log.partition.log.failure is not None
        return ErrorCode.coordinator_not_available if failed else ErrorCode.none

    def when_synced(self, answer: Answer) -> None:
        """Tell `answer` once all that the coordinator knows is durable, or that it never will be."""
        self._state_log.when_synced(
            lambda code: answer(ErrorCode.coordinator_not_available if code else ErrorCode.none)
        )

    def _record(self, records: Sequence[TransactionRecord], *, from_reserve: bool = False) -> ErrorCode:
        if self.error_code:
            return self.error_code
        try:
            entries = [transaction_records.encode(record) for record in records]
            self._state_log.append(entries, from_reserve=from_reserve)
        except StorageFailed:
            # The log has reported it, once: clients repeat what is refused.
            return ErrorCode.coordinator_not_available
        except LogError as error:
            logger.error("a transaction's record could not be appended: %s", error)
            return ErrorCode.coordinator_not_available
        for record in records:
            self.coordinator.replay(record)
        return ErrorCode.none

    def _execute(self, decision: Decision, answer: Answer) -> None:
        """Record the decision; `answer` gets its error code once everything that it reveals is durable."""
        error_code = self._record([decision.record]) if decision.record is not None else self.error_code
        if error_code:
            answer(error_code)
        else:
            self.when_synced(lambda code: answer(code or decision.error_code))

    # InitProducerId

    def init(self, asked: InitRequest, answer: InitResponse) -> None:
        """Give a producer id and epoch; an ongoing transaction is aborted first, and the client asks again."""
        if not self.coordinator.needs_producer_id(asked):
            self._init(asked, NO_PRODUCER_ID, answer)
            return

        def allocated(error_code: ErrorCode, producer_id: int) -> None:
            if error_code:
                answer(ErrorCode.coordinator_not_available, NO_PRODUCER_ID, NO_PRODUCER_EPOCH)
            else:
                self._init(asked, producer_id, answer)

        self._next_producer_id(allocated)

    def _init(self, asked: InitRequest, fresh_producer_id: int, answer: InitResponse) -> None:
        decision = self.coordinator.decide_init(asked, fresh_producer_id)
        record = decision.record

        def settled(error_code: ErrorCode) -> None:
            if error_code or record is None:
                answer(error_code, NO_PRODUCER_ID, NO_PRODUCER_EPOCH)
            else:
                answer(ErrorCode.none, record.producer_id, record.producer_epoch)

        if record is not None and record.state is TransactionState.PREPARE_ABORT:
            self._prepare(record, lambda code: settled(code or decision.error_code))
        else:
            self._execute(decision, settled)

    # Partitions

    def add(self, asked: ProducerRequest, partitions: frozenset[TopicPartition], answer: Answer) -> None:
        """Let the transaction write to partitions, all of which exist."""
        decision = self.coordinator.decide_add(asked, partitions)
        if decision.record is None:
            self._execute(decision, answer)
            return
        added = partitions - self.coordinator.transactions[asked.transactional_id].partitions
        error_code = self._record([decision.record])
        if error_code:
            answer(error_code)
            return
        self._being_added.update((asked.transactional_id, *each) for each in added)

        def synced(error_code: ErrorCode) -> None:
            if not error_code:
                self._being_added.difference_update((asked.transactional_id, *each) for each in added)
            answer(error_code)

        self.when_synced(synced)

    def check_produce(
        self, producer_id: int, producer_epoch: int, transactional_id: str | None, topic: str, partition: int
    ) -> ErrorCode:
        """What a transactional batch for this partition is refused with, or `none`. The hot path."""
        if self._being_added and (transactional_id, topic, partition) in self._being_added:
            return ErrorCode.not_enough_replicas
        return self.coordinator.write_refusal(transactional_id or "", producer_id, producer_epoch, (topic, partition))

    # The end

    def end(self, asked: ProducerRequest, event: Event, answer: Answer) -> None:
        """EndTxn: `event` is COMMIT or ABORT. Success says that the outcome is decided, durable and visible."""
        refusal = self.coordinator.end_refusal(asked, event)
        if refusal is not None:
            self._execute(Decision(refusal), answer)
            return
        transaction = self.coordinator.transactions[asked.transactional_id]
        if event is Event.ABORT:
            self._prepare(transaction.after(event, self.coordinator.clock.now_ms()), answer)
        else:
            self._commit(transaction, answer)

    def _commit(self, transaction: Transaction, answer: Answer) -> None:
        """Sync what was written, then prepare: a record lost after PrepareCommit would be a hole in the transaction."""
        self.coordinator.ending.add(transaction.transactional_id)

        def synced(error_code: ErrorCode) -> None:
            self.coordinator.ending.discard(transaction.transactional_id)
            if error_code:
                logger.error("transaction of %s: a partition cannot be synced", transaction.transactional_id)
                answer(error_code)
            else:
                self._prepare(transaction.after(Event.COMMIT, self.coordinator.clock.now_ms()), answer)

        syncs = Syncs(synced)
        for topic, index in sorted(transaction.partitions):
            partition = self._partitions.get(topic, index)
            if partition is None:
                self._when_topics_synced(syncs.expect(lambda _code: None))
            else:
                self._group_commit.flush(partition, transaction.transactional_id)
                syncs.wait_for(partition)
        syncs.settle()

    def _prepare(self, prepared: Transaction, answer: Answer) -> None:
        """Decide the outcome; `answer` is told when its markers are durable."""
        error_code = self._record([prepared], from_reserve=True)
        if error_code:
            answer(error_code)
            return

        def decided(error_code: ErrorCode) -> None:
            if error_code:
                answer(error_code)
            else:
                self._complete(prepared.transactional_id, lambda: answer(ErrorCode.none))

        self.when_synced(decided)

    def _complete(self, transactional_id: str, answer: Callable[[], None] | None = None) -> None:
        """Write the missing markers; `answer` comes even if one cannot be written, for the outcome is decided."""
        transaction = self.coordinator.transactions[transactional_id]
        completion = self._completions.get(transactional_id)
        if completion is None:
            completion = self._completions[transactional_id] = Completion(set(transaction.partitions))
        if answer is not None:
            completion.answers.append(answer)
        if completion.is_under_way:
            return
        completion.is_under_way = True
        syncs = Syncs(lambda _code: self._marked(transaction, completion))
        for each in sorted(completion.unmarked):
            self._mark(transaction, each, completion, syncs)
        syncs.settle()

    def _mark(self, transaction: Transaction, at: TopicPartition, completion: Completion, syncs: Syncs) -> None:
        partition = self._partitions.get(*at)
        if partition is None:
            self._forget(at, completion, syncs)
            return
        is_groups = at[0] == GROUP_OFFSETS_TOPIC
        if partition.log.failure or (is_groups and self._groups.error_code is ErrorCode.coordinator_not_available):
            # It was told when it failed, and takes no marker before the next start.
            return
        producer = transaction.producer_id, transaction.producer_epoch
        try:
            if is_groups:
                self._groups.complete_transaction(*producer, commit=transaction.commits)
            else:
                partition.log.append_marker(*producer, commit=transaction.commits)
        except InvalidProducerEpoch as error:
            # Only a batch outside transactions, under a stolen id, can have raised the epoch; no data waits for this.
            logger.warning("%s: no marker of %s: %s", partition, transaction.transactional_id, error)
            completion.unmarked.discard(at)
            return
        except StorageFailed:
            # The log has reported it, once: the marker is repeated every second.
            return
        except LogError as error:
            logger.error("%s: no marker of %s yet: %s", partition, transaction.transactional_id, error)
            return

        def synced(error_code: ErrorCode) -> None:
            if error_code == ErrorCode.none:
                completion.unmarked.discard(at)
            elif error_code == ErrorCode.unknown_topic_or_partition:
                self._forget(at, completion, syncs)

        if is_groups:
            # Not the partition's: while the groups are being loaded, the marker is not in the log yet.
            self._groups.when_synced(syncs.expect(synced))
        else:
            self._group_commit.flush(partition, transaction.transactional_id)
            syncs.wait_for(partition, synced)

    def _forget(self, at: TopicPartition, completion: Completion, syncs: Syncs) -> None:
        """The partition's topic was deleted: it needs no marker once that is durable."""

        def synced(error_code: ErrorCode) -> None:
            if not error_code:
                completion.unmarked.discard(at)

        self._when_topics_synced(syncs.expect(synced))

    def _marked(self, transaction: Transaction, completion: Completion) -> None:
        """A round of markers is over: record the end, or leave what is missing to `tick` or the next start."""
        completion.is_under_way = False
        if not completion.unmarked:
            completed = transaction.completed(self.coordinator.clock.now_ms())
            if not self._record([completed], from_reserve=True):
                del self._completions[transaction.transactional_id]
        completion.respond()

    # Time

    def resume(self) -> None:
        """At start-up, when all that was replayed is durable: finish every transaction whose outcome is decided."""
        for transaction in list(self.coordinator.prepared()):
            self._complete(transaction.transactional_id)

    def tick(self) -> None:
        """Act on the time-outs that are over, and on markers that could not be written; called often."""
        now_seconds = self.coordinator.clock.monotonic()
        for work in () if self.error_code else self._works:
            if now_seconds >= work.due_seconds:
                work.due_seconds = now_seconds + work.interval_seconds
                if work.run():
                    work.due_seconds = now_seconds

    def _abort_timed_out(self) -> bool:
        timed_out = list(islice(self.coordinator.timed_out(), ENDED_AT_ONCE))
        failures: list[ErrorCode] = []
        for transaction in timed_out:
            logger.info("transaction of %s timed out and is aborted", transaction.transactional_id)
            self.abort(transaction, failures.append)
        return len(timed_out) == ENDED_AT_ONCE and not any(failures)

    def _retry(self) -> bool:
        for transactional_id, completion in list(self._completions.items()):
            if not completion.is_under_way:
                self._complete(transactional_id)
        return False

    def _expire(self) -> bool:
        expired = list(islice(self.coordinator.expired(), ENDED_AT_ONCE))
        return bool(expired) and not self._record(expired) and len(expired) == ENDED_AT_ONCE

    # Admins

    def unmarked(self, transaction: Transaction) -> Iterable[TopicPartition]:
        """The transaction's partitions; of a prepared one those that have no durable marker yet."""
        completion = self._completions.get(transaction.transactional_id)
        return transaction.partitions if completion is None else completion.unmarked

    def write_marker(self, asked: MarkerRequest, at: TopicPartition, answer: Answer) -> None:
        """End a transaction in one partition for an admin; of one that the coordinator knows, all of it is aborted."""
        partition = self._partitions.get(*at)
        if partition is None or at[0] in INTERNAL_TOPICS:
            answer(ErrorCode.unknown_topic_or_partition)
            return
        transaction = self.coordinator.of_producer(asked.producer_id)
        if transaction is not None and asked.producer_epoch > transaction.producer_epoch:
            # It would fence a producer in this partition alone of whom the coordinator says that it may write.
            answer(ErrorCode.invalid_producer_epoch)
        elif transaction is None or at not in transaction.partitions:
            self._write_stray_marker(asked, partition, answer)
        elif asked.producer_epoch < transaction.producer_epoch:
            answer(ErrorCode.invalid_producer_epoch)
        elif asked.commit or transaction.transactional_id in self.coordinator.ending:
            answer(ErrorCode.invalid_txn_state)
        elif transaction.state is TransactionState.ONGOING:
            self.abort(transaction, answer)
        else:
            # It is prepared: its own marker is on the way.
            self._complete(transaction.transactional_id, lambda: answer(ErrorCode.none))

    def _write_stray_marker(self, asked: MarkerRequest, partition: Partition, answer: Answer) -> None:
        try:
            partition.log.append_marker(
                asked.producer_id,
                asked.producer_epoch,
                commit=asked.commit,
                coordinator_epoch=asked.coordinator_epoch,
            )
        except LogError as error:
            answer(error.error_code)
            return
        self._group_commit.flush(partition)
        partition.when_durable(answer)

    def abort(self, transaction: Transaction, answer: Answer) -> None:
        """Abort an ongoing transaction in its producer's stead, who is fenced."""
        self._prepare(transaction.fenced(self.coordinator.clock.now_ms()), answer)
