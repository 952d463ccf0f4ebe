"""Verification of transactional batches by their coordinator, where that is another broker (KIP-890, part 1).

The first batch of a transaction in a partition waits until the coordinator has confirmed that the transaction includes
the partition (AddPartitionsToTxn, verify only; kafka.server.AddPartitionsToTxnManager). Later batches need no
confirmation: the transaction is open in the log, so its end will bring a marker. A marker that arrives before the
response ends the *guard* of the verification, so that no batch can follow the marker that should have ended it.

The batches of a producer that wait are kept in their order. Each holds its request, so that their number is bounded by
the limits of connections.
"""

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from onceflow.broker.cluster.batches import BrokerQueues
from onceflow.broker.cluster.view import ClusterView
from onceflow.broker.storage.partitions import Partition
from onceflow.wire.apis import ADD_PARTITIONS_TO_TXN
from onceflow.wire.errors import ErrorCode
from onceflow.wire.frames import request_class
from onceflow.wire.inter_broker import NO_LEADER
from onceflow.wire.messages import message_of

VERSION = 4

Verified = Callable[[ErrorCode], None]
CoordinatorOf = Callable[[str], int]
"""Returns the broker that coordinates a transactional id, -1 if it is unknown."""

_RETRIABLE = frozenset(
    {
        ErrorCode.concurrent_transactions,
        ErrorCode.network_exception,
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.coordinator_not_available,
        ErrorCode.not_coordinator,
    }
)
_FOR_PRODUCERS = {
    ErrorCode.producer_fenced: ErrorCode.invalid_producer_epoch,
    ErrorCode.transaction_abortable: ErrorCode.invalid_txn_state,
    ErrorCode.cluster_authorization_failed: ErrorCode.invalid_txn_state,
    **dict.fromkeys(_RETRIABLE, ErrorCode.not_enough_replicas),
}
"""Coordinator's error → error of a Produce response up to version 9 (AddPartitionsToTxnManager, ReplicaManager)."""


class Claim(NamedTuple):
    """A producer's claim that a partition is in its transaction."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    topic: str
    partition: int

    @property
    def producer(self) -> tuple[int, int]:
        return self.producer_id, self.producer_epoch


class _Question(NamedTuple):
    claim: Claim
    respond: Verified


class _Waiting:
    """The batches of one producer for one partition that wait for the response."""

    def __init__(self, claim: Claim, guard: object) -> None:
        self.claim = claim
        self.guard = guard
        self.batches: deque[Verified] = deque()


class Verifications:
    """Requests to the coordinators, and the batches that wait for them."""

    def __init__(self, broker_id: int, view: ClusterView, coordinator_of: CoordinatorOf) -> None:
        self._coordinator_of = coordinator_of
        self._queues: BrokerQueues[_Question] = BrokerQueues(
            f"broker-{broker_id}-txn-verification", view, _request, _settle
        )
        self._waiting: dict[tuple[Partition, int], _Waiting] = {}

    def is_needed(self, partition: Partition, producer_id: int, *, is_coordinated_here: bool) -> bool:
        """Return whether a producer's batch must be verified: it would begin a transaction, or others wait."""
        if (partition, producer_id) in self._waiting:
            return True
        return not is_coordinated_here and producer_id not in partition.log.producers.transactions

    def verify(self, partition: Partition, claimed: tuple[str, int, int, str, int], verified: Verified) -> None:
        """Call `verified`, after those of earlier batches, with the error of a Produce response, or `none`.

        Then the batch must be appended at once.
        """
        claim = Claim(*claimed)
        key = partition, claim.producer_id
        waiting = self._waiting.get(key)
        if waiting is not None:
            if waiting.claim == claim:
                waiting.batches.append(verified)
            else:
                # Another epoch of the producer: the client retries after the first response.
                verified(ErrorCode.not_enough_replicas)
            return
        transactions = partition.log.producers.transactions
        waiting = self._waiting[key] = _Waiting(claim, transactions.begin_verification(claim.producer_id))
        waiting.batches.append(verified)
        self.ask(claim, partial(self._on_response, partition, waiting))

    def ask(self, claim: Claim, respond: Verified) -> None:
        """Call `respond` once with the coordinator's error."""
        coordinator = self._coordinator_of(claim.transactional_id)
        if coordinator == NO_LEADER or not self._queues.add(coordinator, _Question(claim, respond)):
            respond(ErrorCode.coordinator_not_available)

    def _on_response(self, partition: Partition, waiting: _Waiting, error_code: ErrorCode) -> None:
        producer_id = waiting.claim.producer_id
        transactions = partition.log.producers.transactions
        if not error_code and not transactions.is_verifying(producer_id, waiting.guard):
            # A marker has ended the transaction meanwhile.
            error_code = ErrorCode.invalid_txn_state
        code = _FOR_PRODUCERS.get(error_code, error_code)
        try:
            while waiting.batches:
                waiting.batches.popleft()(code)
        finally:
            del self._waiting[partition, producer_id]
            transactions.end_verification(producer_id, waiting.guard)

    def forget_dead(self) -> None:
        """End the requests to brokers that are not alive any more; called often."""
        self._queues.forget_dead()

    async def close(self) -> None:
        """Send nothing more."""
        await self._queues.close()


def _request(questions: Sequence[_Question]) -> Any:
    transactions: dict[tuple[str, int, int], dict[str, list[int]]] = {}
    producers = _producers(questions)
    for claim, _respond in questions:
        if claim.producer == producers[claim.transactional_id]:
            topics = transactions.setdefault((claim.transactional_id, *claim.producer), {})
            topics.setdefault(claim.topic, []).append(claim.partition)
    return message_of(
        request_class(ADD_PARTITIONS_TO_TXN, VERSION),
        {
            "transactions": [
                {
                    "transactional_id": transactional_id,
                    "producer_id": producer_id,
                    "producer_epoch": producer_epoch,
                    "verify_only": True,
                    "topics": [{"name": topic, "partitions": indexes} for topic, indexes in topics.items()],
                }
                for (transactional_id, producer_id, producer_epoch), topics in transactions.items()
            ]
        },
    )


def _producers(questions: Sequence[_Question]) -> dict[str, tuple[int, int]]:
    """Return the first producer of each transactional id: a request has each id once."""
    producers: dict[str, tuple[int, int]] = {}
    for claim, _respond in questions:
        producers.setdefault(claim.transactional_id, claim.producer)
    return producers


def _settle(questions: Sequence[_Question], response: Any) -> None:
    whole = ErrorCode.network_exception if response is None else ErrorCode(response.error_code)
    codes: dict[tuple[str, str, int], ErrorCode] = {}
    for transaction in () if whole else response.results_by_transaction:
        for topic in transaction.topic_results:
            for partition in topic.results_by_partition:
                key = transaction.transactional_id, topic.name, partition.partition_index
                codes[key] = ErrorCode(partition.partition_error_code)
    producers = _producers(questions)
    for claim, respond in questions:
        key = claim.transactional_id, claim.topic, claim.partition
        was_asked = claim.producer == producers[claim.transactional_id]
        code = codes.get(key, ErrorCode.network_exception) if was_asked else ErrorCode.network_exception
        respond(whole or code)
