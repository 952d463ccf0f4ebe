"""The order of syncs, records and responses, with each round of syncs held in the test's hand."""

from pathlib import Path
from typing import Any

import pytest

from onceflow.broker.groups.records import GroupRemoval, OffsetCommit
from onceflow.broker.transactions.coordinator import InitRequest, ProducerRequest
from onceflow.broker.transactions.requests import ENDED_AT_ONCE
from onceflow.broker.transactions.transaction import Event, TransactionState
from onceflow.wire.batch import Record, encode_batch, read_header
from onceflow.wire.errors import ErrorCode
from onceflow.wire.markers import ProducerMarker
from tests.broker.transactions.simulation import GROUP_OFFSETS, TIMEOUT_MS, World

AT = ("a", 0)
NONE = ErrorCode.none


class Scene:
    """A world with one producer whose every response comes into a list."""

    def __init__(self, root: Path) -> None:
        self.world = World(0, root)
        got = self.init()
        self.sync()
        self.who = ProducerRequest("x", *got[0][1:])

    def sync(self) -> None:
        """Rounds until nothing is left to sync."""
        for _ in range(6):
            self.world.rounds.run(whole=True)

    def init(self) -> list[Any]:
        got: list[Any] = []
        self.world.transactions.init(InitRequest("x", TIMEOUT_MS), lambda *response: got.append(response))
        return got

    def add(self, *partitions: tuple[str, int]) -> list[ErrorCode]:
        got: list[ErrorCode] = []
        self.world.transactions.add(self.who, frozenset(partitions), got.append)
        return got

    def produce(self, value: bytes = b"v", at: tuple[str, int] = AT, sequence: int = 0) -> list[ErrorCode]:
        got: list[ErrorCode] = []
        self.world.produce(self.who, at, value, sequence, got.append)
        return got

    def end(self, event: Event = Event.COMMIT) -> list[ErrorCode]:
        got: list[ErrorCode] = []
        self.world.transactions.end(self.who, event, got.append)
        return got

    def begin(self, *partitions: tuple[str, int]) -> None:
        self.add(*(partitions or (AT,)))
        self.sync()

    def state(self) -> TransactionState:
        return self.world.transactions.coordinator.transactions["x"].state

    def log_end(self, at: tuple[str, int] = AT) -> int:
        partition = self.world.partitions.get(*at)
        assert partition is not None
        return partition.log.log_end_offset

    def round_of(self, *topics: str) -> None:
        """One round that reaches only the partitions of these topics."""
        rounds = self.world.rounds
        others = {item: None for item in rounds._dirty if item.topic not in topics}
        for partition in others:
            rounds.forget(partition)
        rounds.run(whole=True)
        rounds._dirty |= others


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_init_and_add_wait_for_sync(scene: Scene) -> None:
    added, repeated = scene.add(AT), scene.add(AT)
    assert (added, repeated) == ([], []), "nor what it reveals to who repeats it"
    scene.sync()
    assert (added, repeated) == ([NONE], [NONE])
    scene.end(Event.ABORT)
    scene.sync()
    given = scene.init()
    assert given == []
    scene.sync()
    assert given[0][0] == NONE


def test_write_needs_durably_added_partition(scene: Scene) -> None:
    """Else a crash could leave records of a transaction that the coordinator never heard of."""
    scene.begin(("b", 0))
    scene.add(AT)
    assert scene.produce() == [ErrorCode.not_enough_replicas]
    assert scene.produce(at=("b", 0)) == [], "the others go on meanwhile: it waits for its sync alone"
    scene.sync()
    assert scene.produce() == []
    assert scene.log_end() == 1


def test_order_of_a_commit(scene: Scene) -> None:
    scene.begin()
    scene.produce()
    ended = scene.end()
    assert scene.state() is TransactionState.ONGOING, "the records are not durable"
    scene.round_of("a")
    assert scene.state() is TransactionState.PREPARE_COMMIT
    assert scene.log_end() == 1, "the decision is not durable: no marker"
    scene.round_of("__transaction_state")
    assert scene.log_end() == 2
    assert ended == []
    scene.round_of("a")
    assert ended == [NONE]
    assert scene.state() is TransactionState.COMPLETE_COMMIT
    assert [partition.topic for partition in scene.world.rounds.put_off] == ["__transaction_state"], (
        "it has no round of its own"
    )


def is_marked(scene: Scene) -> bool:
    """Return whether the partition's last record is a marker."""
    partition = scene.world.partitions.get(*AT)
    assert partition is not None
    log = partition.log
    piece = log.visible.read_beyond(log.log_end_offset - 1, 1000, at_least_one_batch=True)
    assert piece is not None
    return read_header(piece.read()).is_control


def abort_next(scene: Scene, sequence: int) -> None:
    """Begin the next transaction and abort it; it must get its own marker."""
    scene.begin()
    assert scene.produce(sequence=sequence) == []
    assert not is_marked(scene)
    ended = scene.end(Event.ABORT)
    scene.sync()
    assert (ended, is_marked(scene)) == ([NONE], True)


def test_a_new_leader_awaits_each_decision(scene: Scene) -> None:
    """It resumes what it has replayed; an abort that it has decided meanwhile may be synced later than that."""
    scene.begin()
    scene.produce()
    scene.add(("b", 0))
    scene.world.transactions.resume_when_synced()
    state = scene.world.transactions._state_log.partition
    replayed = state.log.durability.begin_sync()
    assert replayed is not None
    ended = scene.end(Event.ABORT)
    replayed.run()
    state.log.durability.end_sync(replayed)
    state.settle()
    scene.round_of("a")
    assert (ended, is_marked(scene)) == ([], False)
    scene.sync()
    assert (ended, is_marked(scene)) == ([NONE], True)
    abort_next(scene, sequence=1)


def test_an_admins_marker_awaits_the_decision(scene: Scene) -> None:
    scene.begin()
    scene.produce()
    ended, marked = scene.end(Event.ABORT), list[ErrorCode]()
    marker = ProducerMarker(scene.who.producer_id, scene.who.producer_epoch, False, None)
    assert scene.world.transactions.take_marker(marker, AT, marked.append)
    scene.round_of("a")
    assert (ended, marked, is_marked(scene)) == ([], [], False)
    scene.sync()
    assert (ended, marked, is_marked(scene)) == ([NONE], [NONE], True)
    abort_next(scene, sequence=1)


def test_abort_does_not_wait_for_records(scene: Scene) -> None:
    scene.begin()
    scene.produce()
    scene.end(Event.ABORT)
    assert scene.state() is TransactionState.PREPARE_ABORT


def test_requests_during_commit_change_nothing(scene: Scene) -> None:
    scene.begin()
    scene.produce()
    ended = scene.end()
    for phase in ("a", "__transaction_state", "a"):
        assert scene.produce(b"late", sequence=1) == [ErrorCode.not_enough_replicas]
        late = [scene.add(("b", 0)), scene.end(), [entry[0] for entry in scene.init()]]
        scene.world.clock.advance_ms(TIMEOUT_MS + 1)
        scene.world.transactions.tick()
        assert scene.log_end() <= 2
        scene.round_of(phase)
        scene.round_of("__transaction_state") if phase == "a" and ended else None
        assert all(item in ([], [ErrorCode.concurrent_transactions]) for item in late), late
    scene.sync()
    assert ended == [NONE]
    assert scene.world.committed(AT) == [b"v"]


def test_unawaited_record_is_committed(scene: Scene) -> None:
    """EndTxn also syncs a record sent with acks=0, so the response covers it."""
    scene.begin()
    scene.produce()
    scene.world.rounds.forget(scene.world.partitions.of_topic("a")[0])
    ended = scene.end()
    scene.sync()
    assert ended == [NONE]
    scene.world.disk.crash(1, drop_all=True)
    scene.world.open()
    scene.sync()
    assert scene.world.committed(AT) == [b"v"]


def test_failed_partition_sync_prevents_commit(scene: Scene) -> None:
    scene.begin(AT, ("b", 0))
    scene.produce()
    scene.produce(at=("b", 0))
    ended = scene.end()
    scene.round_of("b")
    scene.world.disk.fail_next_syncs()
    scene.round_of("a")
    assert ended == [ErrorCode.kafka_storage_error]
    assert scene.state() is TransactionState.ONGOING
    aborted = scene.end(Event.ABORT)
    scene.sync()
    assert aborted == [NONE]
    assert scene.world.committed(("b", 0)) == []
    assert scene.state() is TransactionState.PREPARE_ABORT, "one marker has to wait for the next start"
    scene.world.crash(power=True)
    scene.sync()
    assert scene.state() is TransactionState.COMPLETE_ABORT
    assert scene.world.committed(AT) == []


@pytest.mark.parametrize("is_loaded", [True, False])
def test_transaction_ends_despite_unloadable_groups(scene: Scene, is_loaded: bool) -> None:
    scene.begin(AT, GROUP_OFFSETS)
    scene.produce()
    scene.world.group_requests._on_loaded = None if is_loaded else []
    scene.world.group_requests.fail_loading()
    ended = scene.end()
    scene.sync()
    assert ended == [NONE]
    assert scene.world.committed(AT) == [b"v"]
    end = scene.log_end(GROUP_OFFSETS)
    for _ in range(3):
        scene.world.clock.advance_ms(1001)
        scene.world.transactions.tick()
        scene.sync()
    assert scene.log_end(GROUP_OFFSETS) == end, "no marker again and again"
    scene.world.crash(power=True)
    scene.sync()
    assert scene.state() is TransactionState.COMPLETE_COMMIT


def test_timeout_while_groups_load_completes_later(scene: Scene) -> None:
    scene.begin(AT, GROUP_OFFSETS)
    scene.produce()
    scene.world.commit_offset(scene.who, 7, lambda _code: None)
    scene.sync()
    requests = scene.world.group_requests
    requests._on_loaded, requests._slices = [], iter(())
    scene.world.clock.advance_ms(TIMEOUT_MS + 1)
    scene.world.transactions.tick()
    scene.sync()
    assert scene.state() is TransactionState.PREPARE_ABORT
    assert scene.world.committed(AT) == []
    assert scene.log_end() == 2, "readers of the other partitions do not wait for the groups"
    again = scene.init()
    scene.sync()
    assert [item[0] for item in again] == [ErrorCode.concurrent_transactions]
    assert not requests.load_slice()
    scene.sync()
    assert scene.state() is TransactionState.COMPLETE_ABORT
    assert not scene.world.groups.pending.has("x", "a", 0)


def test_marker_is_retried_on_full_disk(scene: Scene) -> None:
    scene.begin(AT, ("b", 0))
    scene.produce()
    ended = scene.end()
    scene.round_of("a")
    scene.world.disk.space_bytes = 10
    scene.sync()
    assert ended == [NONE], "it is decided"
    assert scene.state() is TransactionState.PREPARE_COMMIT
    end = scene.log_end(("b", 0))
    scene.world.disk.space_bytes = None
    for _ in range(3):
        scene.world.clock.advance_ms(1001)
        scene.world.transactions.tick()
        scene.sync()
    assert scene.state() is TransactionState.COMPLETE_COMMIT
    assert scene.world.committed(AT) == [b"v"]
    assert scene.log_end(("b", 0)) == end + 1, "no marker twice where one was enough"


def test_failed_sync_makes_responses_errors(scene: Scene) -> None:
    scene.begin()
    added = scene.add(("b", 0))
    scene.world.disk.fail_next_syncs()
    scene.sync()
    assert added == [ErrorCode.coordinator_not_available]
    assert scene.add(AT) == [ErrorCode.coordinator_not_available]
    assert scene.end() == [ErrorCode.coordinator_not_available]
    assert scene.init()[0][0] == ErrorCode.coordinator_not_available
    revealed: list[ErrorCode] = []
    scene.world.transactions.when_synced(revealed.append)
    assert revealed == [ErrorCode.coordinator_not_available]
    assert scene.produce(at=("b", 0)) == [ErrorCode.not_enough_replicas]


def test_trap_16_restart_completes_prepared_commit(scene: Scene) -> None:
    scene.begin(AT, GROUP_OFFSETS)
    scene.produce()
    scene.world.commit_offset(scene.who, 7, lambda _code: None)
    scene.end()
    scene.round_of("a", "__consumer_offsets")
    scene.round_of("__transaction_state")
    scene.world.clock.advance_ms(10 * TIMEOUT_MS)
    scene.world.crash(power=True)
    scene.sync()
    assert scene.state() is TransactionState.COMPLETE_COMMIT
    assert scene.world.committed(AT) == [b"v"]
    assert scene.world.groups.groups["x"].offsets["a", 0].offset == 7


def test_trap_17_pending_offset_prevents_expiry(scene: Scene) -> None:
    world = scene.world
    world.group_requests.record(
        [OffsetCommit("x", "a", 0, 5, commit_timestamp_ms=world.clock.now_ms())], lambda _code: None
    )
    scene.begin(GROUP_OFFSETS)
    world.commit_offset(scene.who, 7, lambda _code: None)
    world.clock.advance_ms(8 * 24 * 3600 * 1000)
    assert world.groups.decide_expire(world.groups.groups["x"]) == []
    scene.end(Event.ABORT)
    scene.sync()
    records = world.groups.decide_expire(world.groups.groups["x"])
    assert records == [OffsetCommit("x", "a", 0, None), GroupRemoval("x")]


def test_raised_epoch_does_not_block_end(scene: Scene) -> None:
    """A batch outside transactions under a stolen producer id, in a partition without records of the transaction."""
    scene.begin(AT, ("b", 0))
    scene.produce()
    stolen = encode_batch(
        [Record(0, 0, None, b"stolen")], producer_id=scene.who.producer_id, producer_epoch=999, base_sequence=0
    )
    scene.world.partitions.of_topic("b")[0].log.append(stolen)
    ended = scene.end()
    scene.sync()
    assert ended == [NONE]
    assert scene.state() is TransactionState.COMPLETE_COMMIT


def test_marker_of_unknown_transaction_is_written(scene: Scene) -> None:
    got: list[ErrorCode] = []
    scene.world.write_marker(ProducerMarker(77, 0, commit=False, coordinator_epoch=0), AT, got.append)
    assert got == []
    scene.sync()
    assert got == [NONE]
    assert scene.log_end() == 1
    scene.world.write_marker(ProducerMarker(77, -1, commit=False, coordinator_epoch=0), AT, got.append)
    scene.world.write_marker(ProducerMarker(77, 0, commit=False, coordinator_epoch=-1), AT, got.append)
    scene.world.write_marker(ProducerMarker(77, 0, commit=False, coordinator_epoch=0), ("none", 0), got.append)
    assert got[1:] == [
        ErrorCode.invalid_producer_epoch,
        ErrorCode.transaction_coordinator_fenced,
        ErrorCode.unknown_topic_or_partition,
    ]


def test_later_admin_marker_does_not_block(scene: Scene) -> None:
    """Otherwise the transaction is reported as committed and readers never pass it."""
    got: list[ErrorCode] = []
    marker = ProducerMarker(scene.who.producer_id, scene.who.producer_epoch, commit=False, coordinator_epoch=7)
    scene.world.write_marker(marker, AT, got.append)
    scene.sync()
    assert got == [NONE]
    scene.begin(AT, GROUP_OFFSETS)
    scene.produce()
    scene.sync()
    ended = scene.end()
    scene.sync()
    assert ended == [NONE]
    assert scene.state() is TransactionState.COMPLETE_COMMIT
    assert scene.world.committed(AT) == [b"v"]


def test_admin_marker_cannot_fence_one_partition(scene: Scene) -> None:
    got: list[ErrorCode] = []
    marker = ProducerMarker(scene.who.producer_id, scene.who.producer_epoch + 1, commit=False, coordinator_epoch=0)
    scene.world.write_marker(marker, AT, got.append)
    assert got == [ErrorCode.invalid_producer_epoch]
    scene.begin()
    produced = scene.produce()
    scene.world.write_marker(marker, AT, got.append)
    scene.sync()
    assert got[1:] == [ErrorCode.invalid_producer_epoch]
    assert produced == [NONE]
    assert scene.state() is TransactionState.ONGOING


def test_failed_add_does_not_block_others(scene: Scene) -> None:
    scene.begin()
    scene.world.disk.space_bytes = 10
    assert scene.add(AT, ("b", 0)) == [ErrorCode.coordinator_not_available]
    scene.world.disk.space_bytes = None
    assert scene.produce() == [], "it was added before"
    assert scene.produce(at=("b", 0)) == [ErrorCode.invalid_txn_state]
    scene.begin(("b", 0))
    assert scene.produce(at=("b", 0)) == []


def test_timeouts_and_expiry_run_in_slices(scene: Scene) -> None:
    """One turn of the loop may not be as long as all of them take."""
    transactions, clock = scene.world.transactions, scene.world.clock
    count = 2 * ENDED_AT_ONCE + 1
    for number in range(count):
        transactions.init(InitRequest(f"id-{number}", TIMEOUT_MS), lambda *_response: None)
    known = transactions.coordinator.transactions
    for number in range(count):
        who = ProducerRequest(f"id-{number}", known[f"id-{number}"].producer_id, 0)
        transactions.add(who, frozenset({AT}), lambda _code: None)
    scene.sync()
    clock.advance_ms(TIMEOUT_MS + 1)

    def left() -> int:
        return len(list(transactions.coordinator.timed_out()))

    for wanted in (ENDED_AT_ONCE + 1, 1, 0):
        transactions.tick()
        assert left() == wanted
        scene.sync()
    clock.advance_ms(10**12 + 1)
    for wanted in (ENDED_AT_ONCE + 2, 2, 0):
        transactions.tick()
        assert len(known) == wanted


def test_unused_ids_are_forgotten_and_stay_so(scene: Scene) -> None:
    transactions = scene.world.transactions
    scene.world.clock.advance_ms(10**12)
    transactions.tick()
    scene.sync()
    assert transactions.coordinator.transactions == {}
    scene.world.crash(power=True)
    assert scene.world.transactions.coordinator.transactions == {}
    assert scene.add(AT) == [ErrorCode.invalid_producer_id_mapping]
