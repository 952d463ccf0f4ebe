"""The order of syncs, records and answers, with each round of syncs held in the test's hand."""

from pathlib import Path
from typing import Any

import pytest

from onceflow.broker.groups.records import GroupRemoval, OffsetCommit
from onceflow.broker.transactions.coordinator import InitRequest, ProducerRequest
from onceflow.broker.transactions.requests import ENDED_AT_ONCE, MarkerRequest
from onceflow.broker.transactions.transaction import Event, TransactionState
from onceflow.wire.batch import Record, encode_batch
from onceflow.wire.errors import ErrorCode
from tests.broker.transactions.simulation import GROUP_OFFSETS, TIMEOUT_MS, World

AT = ("a", 0)
NONE = ErrorCode.none


class Scene:
    """A world with one producer whose every answer comes into a list."""

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
        self.world.transactions.init(InitRequest("x", TIMEOUT_MS), lambda *answer: got.append(answer))
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
        others = {each: None for each in rounds._dirty if each.topic not in topics}
        for partition in others:
            rounds.forget(partition)
        rounds.run(whole=True)
        rounds._dirty |= others


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_init_and_add_are_answered_when_their_records_are_durable(scene: Scene) -> None:
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


def test_nothing_is_written_before_its_partition_was_added_durably(scene: Scene) -> None:
    """Else a crash could leave records of a transaction that the coordinator never heard of."""
    scene.begin(("b", 0))
    scene.add(AT)
    assert scene.produce() == [ErrorCode.not_enough_replicas]
    assert scene.produce(at=("b", 0)) == [], "the others go on meanwhile: it waits for its sync alone"
    scene.sync()
    assert scene.produce() == []
    assert scene.log_end() == 1


def test_a_commit_syncs_the_records_then_decides_then_marks_then_answers(scene: Scene) -> None:
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


def test_an_abort_does_not_wait_for_the_records(scene: Scene) -> None:
    scene.begin()
    scene.produce()
    scene.end(Event.ABORT)
    assert scene.state() is TransactionState.PREPARE_ABORT


def test_what_is_asked_during_a_commit_waits_or_is_refused_and_changes_nothing(scene: Scene) -> None:
    scene.begin()
    scene.produce()
    ended = scene.end()
    for phase in ("a", "__transaction_state", "a"):
        assert scene.produce(b"late", sequence=1) == [ErrorCode.not_enough_replicas]
        late = [scene.add(("b", 0)), scene.end(), [each[0] for each in scene.init()]]
        scene.world.clock.advance_ms(TIMEOUT_MS + 1)
        scene.world.transactions.tick()
        assert scene.log_end() <= 2
        scene.round_of(phase)
        scene.round_of("__transaction_state") if phase == "a" and ended else None
        assert all(each in ([], [ErrorCode.concurrent_transactions]) for each in late), late
    scene.sync()
    assert ended == [NONE]
    assert scene.world.committed(AT) == [b"v"]


def test_a_record_that_nobody_waited_for_is_part_of_the_commit(scene: Scene) -> None:
    """As with acks=0: EndTxn syncs it, so the answer holds for it too."""
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


def test_a_partition_that_cannot_be_synced_keeps_the_commit_from_being_decided(scene: Scene) -> None:
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
def test_groups_that_cannot_be_loaded_keep_nobody_from_the_end_of_a_transaction(scene: Scene, is_loaded: bool) -> None:
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


def test_a_time_out_while_the_groups_are_loaded_is_finished_after_that(scene: Scene) -> None:
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
    assert [each[0] for each in again] == [ErrorCode.concurrent_transactions]
    assert not requests.load_slice()
    scene.sync()
    assert scene.state() is TransactionState.COMPLETE_ABORT
    assert not scene.world.groups.pending.has("x", "a", 0)


def test_a_marker_that_the_disk_has_no_room_for_is_written_later(scene: Scene) -> None:
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


def test_after_a_failed_sync_of_its_own_log_every_answer_is_an_error(scene: Scene) -> None:
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


def test_trap_16_a_restart_finishes_a_decided_commit_and_never_aborts_it(scene: Scene) -> None:
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


def test_trap_17_a_committed_offset_does_not_expire_while_another_is_pending_in_its_place(scene: Scene) -> None:
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
    gone = world.groups.decide_expire(world.groups.groups["x"])
    assert gone == [OffsetCommit("x", "a", 0, None), GroupRemoval("x")]


def test_an_epoch_raised_outside_transactions_does_not_hang_the_end(scene: Scene) -> None:
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


def test_an_admins_marker_for_a_transaction_that_nobody_knows_is_written(scene: Scene) -> None:
    got: list[ErrorCode] = []
    scene.world.transactions.write_marker(MarkerRequest(77, 0, commit=False, coordinator_epoch=0), AT, got.append)
    assert got == []
    scene.sync()
    assert got == [NONE]
    assert scene.log_end() == 1
    scene.world.transactions.write_marker(MarkerRequest(77, -1, commit=False, coordinator_epoch=0), AT, got.append)
    scene.world.transactions.write_marker(MarkerRequest(77, 0, commit=False, coordinator_epoch=-1), AT, got.append)
    scene.world.transactions.write_marker(
        MarkerRequest(77, 0, commit=False, coordinator_epoch=0), ("none", 0), got.append
    )
    assert got[1:] == [
        ErrorCode.invalid_producer_epoch,
        ErrorCode.transaction_coordinator_fenced,
        ErrorCode.unknown_topic_or_partition,
    ]


def test_an_admins_marker_of_a_later_coordinator_does_not_keep_the_own_markers_out(scene: Scene) -> None:
    """Else the transaction is told to be committed and readers never get past it."""
    got: list[ErrorCode] = []
    marker = MarkerRequest(scene.who.producer_id, scene.who.producer_epoch, commit=False, coordinator_epoch=7)
    scene.world.transactions.write_marker(marker, AT, got.append)
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


def test_an_admins_marker_cannot_shut_a_producer_out_of_one_partition(scene: Scene) -> None:
    got: list[ErrorCode] = []
    marker = MarkerRequest(scene.who.producer_id, scene.who.producer_epoch + 1, commit=False, coordinator_epoch=0)
    scene.world.transactions.write_marker(marker, AT, got.append)
    assert got == [ErrorCode.invalid_producer_epoch]
    scene.begin()
    produced = scene.produce()
    scene.world.transactions.write_marker(marker, AT, got.append)
    scene.sync()
    assert got[1:] == [ErrorCode.invalid_producer_epoch]
    assert produced == [NONE]
    assert scene.state() is TransactionState.ONGOING


def test_a_partition_that_could_not_be_added_shuts_no_other_one(scene: Scene) -> None:
    scene.begin()
    scene.world.disk.space_bytes = 10
    assert scene.add(AT, ("b", 0)) == [ErrorCode.coordinator_not_available]
    scene.world.disk.space_bytes = None
    assert scene.produce() == [], "it was added before"
    assert scene.produce(at=("b", 0)) == [ErrorCode.invalid_txn_state]
    scene.begin(("b", 0))
    assert scene.produce(at=("b", 0)) == []


def test_many_time_outs_and_expired_ids_are_ended_some_in_each_tick(scene: Scene) -> None:
    """One turn of the loop may not be as long as all of them take."""
    transactions, clock = scene.world.transactions, scene.world.clock
    count = 2 * ENDED_AT_ONCE + 1
    for number in range(count):
        transactions.init(InitRequest(f"id-{number}", TIMEOUT_MS), lambda *_answer: None)
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
