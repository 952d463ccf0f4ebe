"""The coordinator alone: decisions and replay, time moved by hand."""

import itertools
from collections.abc import Callable, Iterator

import pytest

from onceflow.broker.transactions import records
from onceflow.broker.transactions.coordinator import Decision, InitRequest, ProducerRequest, TransactionCoordinator
from onceflow.broker.transactions.transaction import (
    NEXT_STATES,
    PRODUCER_EPOCH_MAX,
    RESPONSES,
    Event,
    Transaction,
    TransactionState,
)
from onceflow.testing import ManualClock
from onceflow.wire.errors import ErrorCode

EXPIRATION_MS = 7 * 24 * 3600 * 1000
PARTITIONS = frozenset({("t", 0)})


class Scene:
    """A coordinator whose decisions are replayed at once, from their bytes."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.coordinator = self.fresh()
        self.log: list[tuple[bytes, bytes | None]] = []
        self.producer_ids = itertools.count(100)

    def fresh(self) -> TransactionCoordinator:
        return TransactionCoordinator(self.clock, timeout_max_ms=900_000, expiration_ms=EXPIRATION_MS)

    def replayed(self) -> TransactionCoordinator:
        """Return the coordinator after a restart, replayed from the log."""
        coordinator = self.fresh()
        for key, value in self.log:
            coordinator.replay(records.decode(key, value))
        return coordinator

    def carry_out(self, decision: Decision) -> ErrorCode:
        if decision.record is not None:
            self.put(decision.record)
        return decision.error_code

    def put(self, record: Transaction | str) -> None:
        self.log.append(records.encode(record))
        self.coordinator.replay(records.decode(*self.log[-1]))

    def init(self, producer_id: int = -1, producer_epoch: int = -1) -> ErrorCode:
        asked = InitRequest("x", 60_000, producer_id, producer_epoch)
        fresh = next(self.producer_ids) if self.coordinator.needs_producer_id(asked) else -1
        return self.carry_out(self.coordinator.decide_init(asked, fresh))

    def who(self) -> ProducerRequest:
        return ProducerRequest("x", *self.producer)

    @property
    def transaction(self) -> Transaction:
        return self.coordinator.transactions["x"]

    @property
    def producer(self) -> tuple[int, int]:
        return self.transaction.producer_id, self.transaction.producer_epoch

    def begin(self) -> None:
        assert self.carry_out(self.coordinator.decide_add(self.who(), PARTITIONS)) == ErrorCode.none

    def move(self, *events: Event) -> None:
        for event in events:
            self.put(self.transaction.after(event, self.clock.now_ms()))

    def complete(self) -> None:
        self.put(self.transaction.completed(self.clock.now_ms()))

    def at_epoch(self, epoch: int) -> None:
        """Set the state after `epoch` earlier producers."""
        self.init()
        self.put(self.transaction.initialised(60_000, self.clock.now_ms(), producer_epoch=epoch))


def test_every_request_in_every_state_is_decided() -> None:
    requests = (Event.INIT, Event.ADD, Event.COMMIT, Event.ABORT)
    for state, event in itertools.product(TransactionState, requests):
        if state is not TransactionState.DEAD and (state, event) != (TransactionState.ONGOING, Event.INIT):
            assert (event in NEXT_STATES[state]) != (event in RESPONSES.get(state, {})), (state, event)


def test_only_dead_is_final() -> None:
    reached = {after for moves in NEXT_STATES.values() for after in moves.values()}
    assert reached == set(TransactionState)
    assert [state for state, moves in NEXT_STATES.items() if not moves] == [TransactionState.DEAD]


def test_restart_restores_every_transaction() -> None:
    scene = Scene()
    steps: list[Callable[[], object]] = [
        lambda: scene.init(),
        lambda: scene.init(*scene.producer),
        scene.begin,
        lambda: scene.put(scene.transaction.fenced(5)),
        scene.complete,
        lambda: scene.init(),
        scene.begin,
        lambda: scene.move(Event.COMMIT),
        scene.complete,
        lambda: scene.put("x"),
    ]
    for step in steps:
        step()
        assert scene.replayed().transactions == scene.coordinator.transactions


def test_retried_bump_survives_restart() -> None:
    scene = Scene()
    scene.init()
    before = scene.producer
    assert scene.init(*before) == ErrorCode.none
    after = scene.producer
    scene.coordinator = scene.replayed()
    assert scene.init(*before) == ErrorCode.none
    assert scene.producer == after


@pytest.mark.parametrize("names_its_epoch", [False, True])
def test_trap_10_exhaustion_assigns_new_id(names_its_epoch: bool) -> None:
    scene = Scene()
    scene.at_epoch(PRODUCER_EPOCH_MAX - 1)
    before = scene.producer
    assert scene.init(*(before if names_its_epoch else (-1, -1))) == ErrorCode.none
    assert scene.producer == (before[0], PRODUCER_EPOCH_MAX)
    exhausted = scene.producer
    assert scene.init(*(exhausted if names_its_epoch else (-1, -1))) == ErrorCode.none
    assert scene.producer == (before[0] + 1, 0)
    assert scene.transaction.previous_producer_id == before[0]
    assert scene.coordinator.of_producer(before[0]) is None
    assert scene.coordinator.of_producer(before[0] + 1) is scene.transaction
    if names_its_epoch:
        rotated = scene.producer
        assert scene.init(*exhausted) == ErrorCode.none, "the request again, whose response was lost"
        assert scene.producer == rotated
    assert scene.init(*before) == ErrorCode.producer_fenced


def test_trap_10_fenced_epoch_is_never_negative() -> None:
    scene = Scene()
    scene.at_epoch(PRODUCER_EPOCH_MAX)
    scene.begin()
    exhausted = scene.producer
    assert scene.init() == ErrorCode.concurrent_transactions
    assert (scene.producer, scene.transaction.state) == (
        (exhausted[0], PRODUCER_EPOCH_MAX + 1),
        TransactionState.PREPARE_ABORT,
    )
    assert scene.init() == ErrorCode.concurrent_transactions
    scene.complete()
    assert scene.init(*exhausted) == ErrorCode.producer_fenced
    assert scene.init() == ErrorCode.none
    assert scene.producer == (exhausted[0] + 1, 0)


def test_trap_10_reserved_epoch_is_refused() -> None:
    """Else who guesses it begins a transaction that no epoch is left to fence, and that never ends."""
    scene = Scene()
    scene.at_epoch(PRODUCER_EPOCH_MAX)
    scene.begin()
    scene.init()
    scene.complete()
    assert scene.producer[1] == PRODUCER_EPOCH_MAX + 1
    assert scene.coordinator.decide_add(scene.who(), PARTITIONS) == Decision(ErrorCode.producer_fenced)
    assert scene.coordinator.end_refusal(scene.who(), Event.ABORT) == ErrorCode.producer_fenced


def test_trap_10_epochs_are_unique() -> None:
    scene = Scene()
    asked = InitRequest("x", 60_000)
    given: set[tuple[int, int]] = set()
    for _ in range(40_000):
        fresh = 1 if scene.coordinator.needs_producer_id(asked) and given else 0
        record = scene.coordinator.decide_init(asked, fresh).record
        assert record is not None
        assert 0 <= record.producer_epoch <= PRODUCER_EPOCH_MAX
        scene.coordinator.replay(record)
        given.add((record.producer_id, record.producer_epoch))
    assert len(given) == 40_000
    assert len({producer_id for producer_id, _epoch in given}) == 2


def test_trap_08_repeated_end_gets_same_response() -> None:
    wanted = {
        TransactionState.EMPTY: (ErrorCode.invalid_txn_state, ErrorCode.invalid_txn_state),
        TransactionState.ONGOING: (None, None),
        TransactionState.PREPARE_COMMIT: (ErrorCode.concurrent_transactions, ErrorCode.invalid_txn_state),
        TransactionState.COMPLETE_COMMIT: (ErrorCode.none, ErrorCode.invalid_txn_state),
        TransactionState.PREPARE_ABORT: (ErrorCode.invalid_txn_state, ErrorCode.concurrent_transactions),
        TransactionState.COMPLETE_ABORT: (ErrorCode.invalid_txn_state, ErrorCode.none),
    }
    scene = Scene()

    def responses() -> tuple[ErrorCode | None, ...]:
        return tuple(scene.coordinator.end_refusal(scene.who(), event) for event in (Event.COMMIT, Event.ABORT))

    for event in (Event.COMMIT, Event.ABORT):
        scene.init()
        assert responses() == wanted[scene.transaction.state]
        scene.begin()
        assert responses() == wanted[scene.transaction.state]
        scene.move(event)
        assert responses() == wanted[scene.transaction.state]
        scene.complete()
        assert responses() == wanted[scene.transaction.state]


def test_trap_08_end_needs_current_epoch() -> None:
    scene = Scene()
    scene.init()
    scene.init()
    scene.begin()
    producer_id, epoch = scene.producer
    for other in (epoch - 1, epoch + 1):
        asked = ProducerRequest("x", producer_id, other)
        assert scene.coordinator.end_refusal(asked, Event.COMMIT) == ErrorCode.producer_fenced
    asked = ProducerRequest("x", producer_id + 1, epoch)
    assert scene.coordinator.end_refusal(asked, Event.COMMIT) == ErrorCode.invalid_producer_id_mapping


def test_trap_09_epoch_is_checked_before_state() -> None:
    scene = Scene()
    scene.init()
    scene.begin()
    producer_id, epoch = scene.producer
    scene.put(scene.transaction.fenced(scene.clock.now_ms()))
    check = scene.coordinator.write_refusal
    assert check("x", producer_id, epoch, ("t", 0)) == ErrorCode.invalid_producer_epoch
    scene.complete()
    assert check("x", producer_id, epoch, ("t", 0)) == ErrorCode.invalid_producer_epoch
    assert check("x", producer_id, epoch + 1, ("t", 0)) == ErrorCode.invalid_txn_state


def test_trap_11_exhausted_id_is_refused() -> None:
    scene = Scene()
    scene.at_epoch(PRODUCER_EPOCH_MAX)
    scene.begin()
    old = scene.producer
    scene.move(Event.COMMIT)
    scene.complete()
    scene.init()
    scene.begin()
    assert scene.producer[0] != old[0]
    assert scene.coordinator.write_refusal("x", *old, ("t", 0)) == ErrorCode.invalid_producer_id_mapping
    asked = ProducerRequest("x", *old)
    assert scene.coordinator.end_refusal(asked, Event.COMMIT) == ErrorCode.invalid_producer_id_mapping


def test_trap_15_temporary_errors_are_retriable() -> None:
    scene = Scene()
    scene.init()
    scene.begin()
    scene.coordinator.ending.add("x")
    assert scene.coordinator.write_refusal("x", *scene.producer, ("t", 0)) == ErrorCode.not_enough_replicas
    scene.coordinator.ending.clear()
    scene.move(Event.COMMIT)
    assert scene.coordinator.write_refusal("x", *scene.producer, ("t", 0)) == ErrorCode.not_enough_replicas
    scene.complete()
    assert scene.coordinator.write_refusal("x", *scene.producer, ("t", 0)) == ErrorCode.invalid_txn_state


def test_other_requests_wait_for_syncing_commit() -> None:
    scene = Scene()
    scene.init()
    scene.begin()
    scene.coordinator.ending.add("x")
    scene.clock.advance_ms(60_001)
    assert not list(scene.coordinator.timed_out())
    assert scene.init() == ErrorCode.concurrent_transactions
    assert scene.init(*scene.producer) == ErrorCode.concurrent_transactions
    for event in (Event.COMMIT, Event.ABORT):
        assert scene.coordinator.end_refusal(scene.who(), event) == ErrorCode.concurrent_transactions
    asked = scene.coordinator.decide_add(scene.who(), PARTITIONS)
    assert asked == Decision(ErrorCode.concurrent_transactions)


def test_timeout_counts_from_first_partition() -> None:
    scene = Scene()
    scene.init()
    scene.clock.advance_ms(60_001)
    assert not list(scene.coordinator.timed_out())
    scene.begin()
    scene.clock.advance_ms(60_000)
    scene.carry_out(scene.coordinator.decide_add(scene.who(), frozenset({("t", 1)})))
    assert not list(scene.coordinator.timed_out())
    scene.clock.advance_ms(1)
    assert list(scene.coordinator.timed_out()) == [scene.transaction]


def test_timeouts_and_expiry_are_found_cheaply() -> None:
    """The loop's work must not grow with the ids that lie there for a week."""

    class Counted(dict[str, Transaction]):
        looks = 0

        def __getitem__(self, key: str) -> Transaction:
            self.looks += 1
            return super().__getitem__(key)

        def values(self) -> Iterator[Transaction]:  # type: ignore[override]
            for value in super().values():
                self.looks += 1
                yield value

    scene = Scene()
    coordinator = scene.coordinator
    coordinator.transactions = counted = Counted()
    for number in range(100):
        record = coordinator.decide_init(InitRequest(f"id-{number}", 60_000), number).record
        assert record is not None
        coordinator.replay(record if number else record.with_partitions(PARTITIONS, 0))
    scene.clock.advance_ms(60_001)
    counted.looks = 0
    assert [item.transactional_id for item in coordinator.timed_out()] == ["id-0"]
    assert not list(coordinator.expired())
    assert not list(coordinator.prepared())
    assert counted.looks <= 4
    scene.clock.advance_ms(EXPIRATION_MS)
    coordinator.replay(counted["id-1"].initialised(60_000, scene.clock.now_ms()))
    assert list(coordinator.expired()) == [f"id-{number}" for number in range(2, 100)], "the oldest first"


def test_an_unused_id_expires_between_transactions_alone() -> None:
    scene = Scene()
    scene.init()
    scene.clock.advance_ms(EXPIRATION_MS - 1)
    assert not list(scene.coordinator.expired())
    scene.clock.advance_ms(1)
    assert list(scene.coordinator.expired()) == ["x"]
    scene.begin()
    scene.clock.advance_ms(EXPIRATION_MS)
    assert not list(scene.coordinator.expired())
    scene.move(Event.COMMIT)
    scene.clock.advance_ms(EXPIRATION_MS)
    assert not list(scene.coordinator.expired())
    scene.complete()
    scene.clock.advance_ms(EXPIRATION_MS)
    assert list(scene.coordinator.expired()) == ["x"]
    producer_id = scene.transaction.producer_id
    scene.put("x")
    assert scene.coordinator.of_producer(producer_id) is None
    assert scene.replayed().transactions == {}
