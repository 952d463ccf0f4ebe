"""Producers, the coordinator and real partition logs on a faulty disk, one seed for everything that happens.

Between two steps of a producer, which follows the protocol as clients do, there may be a round of syncs, a leap of
the clock, a killed process, a power cut in the middle of any write, a failed sync, a full disk or a deleted topic.
Some producers share a transactional id and fence each other. At the end the power is off and on once more; then each
transaction must be atomic, with the outcome that its producer received, and nothing may hang.
"""

import random
from collections import Counter
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from onceflow.broker.config import BrokerConfig
from onceflow.broker.groups.coordinator import GroupCoordinator
from onceflow.broker.groups.records import OffsetCommit
from onceflow.broker.groups.requests import GroupRequests
from onceflow.broker.storage.partitions import Partition, Partitions
from onceflow.broker.storage.state_log import StateLog
from onceflow.broker.topics.topics import GROUP_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC
from onceflow.broker.transactions.coordinator import InitRequest, ProducerRequest, TransactionCoordinator
from onceflow.broker.transactions.participants import LocalParticipants
from onceflow.broker.transactions.requests import Transactions
from onceflow.broker.transactions.transaction import PREPARED, Event, TransactionState
from onceflow.client.records import committed_records
from onceflow.log.config import LogConfig
from onceflow.log.errors import LogError
from onceflow.log.partition import PartitionLog
from onceflow.testing import FaultyDisk, ManualClock, PowerCut
from onceflow.wire.batch import Record, batches, encode_batch
from onceflow.wire.errors import ErrorCode
from onceflow.wire.markers import ProducerMarker

TOPICS = {"a": 2, "b": 1, "doomed": 1, GROUP_OFFSETS_TOPIC: 1, TRANSACTION_STATE_TOPIC: 1}
DATA_PARTITIONS = (("a", 0), ("a", 1), ("b", 0), ("doomed", 0))
GROUP_OFFSETS = (GROUP_OFFSETS_TOPIC, 0)
TIMEOUT_MS = 30_000
STEPS = 400
CONFIG = LogConfig(segment_bytes=1500, message_bytes_max=1400)
STATE_CONFIG = LogConfig(segment_bytes=20_000)

FENCED = (
    ErrorCode.producer_fenced,
    ErrorCode.invalid_producer_epoch,
    ErrorCode.invalid_producer_id_mapping,
)
PASSING = (
    ErrorCode.concurrent_transactions,
    ErrorCode.coordinator_not_available,
    ErrorCode.kafka_storage_error,
    ErrorCode.not_enough_replicas,
)

Respond = Callable[[Any], None]
Returned = TypeVar("Returned")
Steps: TypeAlias = Generator[None, None, Returned]
"""Steps of a producer, with a yield wherever anything else may happen in between."""


class Rounds:
    """Stands in for GroupCommit: the test says when a round of syncs happens and which partitions it reaches."""

    def __init__(self, seed: random.Random) -> None:
        self._seed = seed
        self._dirty: dict[Partition, None] = {}
        self.put_off: dict[Partition, None] = {}
        """Partitions that wait for another request, or for their timer."""

    def request(self, partition: Partition, _requester: object = None) -> None:
        self.put_off.pop(partition, None)
        self._dirty[partition] = None

    flush = request

    def request_soon(self, partition: Partition) -> None:
        if partition not in self._dirty:
            self.put_off[partition] = None

    def forget(self, partition: Partition) -> None:
        self.put_off.pop(partition, None)
        self._dirty.pop(partition, None)

    def run(self, *, whole: bool = False) -> None:
        for partition in [item for item in self.put_off if whole or self._seed.random() < 0.2]:
            self.request(partition)
        for partition in [item for item in self._dirty if whole or self._seed.random() < 0.7]:
            del self._dirty[partition]
            point = partition.log.durability.begin_sync()
            if point is None:
                continue
            try:
                point.run()
            except OSError as error:
                partition.log.durability.fail_sync(error)
                partition.fail(ErrorCode.kafka_storage_error)
            else:
                partition.log.durability.end_sync(point)
                partition.settle()


@dataclass
class Attempt:
    """One transaction as its producer saw it."""

    number: int
    name: str
    values: dict[tuple[str, int], list[bytes]] = field(default_factory=dict)
    has_offset: bool = False
    asked: Event | None = None
    is_acknowledged: bool = False


class World:
    """The broker's transactions without sockets and loop, and the responses that its producers received."""

    def __init__(self, seed_number: int, root: Path) -> None:
        self.seed = random.Random(seed_number)
        self.root = root
        self.clock = ManualClock()
        self.disk = FaultyDisk(root)
        self.attempts: list[Attempt] = []
        self.given: Counter[tuple[str, int, int]] = Counter()
        self.deleted: set[str] = set()
        self.generation = 0
        self.needs_power_cut = False
        self.is_off = False
        self._producer_ids = 1000
        self.crashes = 0
        self.open()

    def open(self) -> None:
        """Restart the broker on the content of the disk."""
        self.generation += 1
        self.rounds = Rounds(self.seed)
        group_commit: Any = self.rounds
        self.partitions = Partitions()
        for topic, count in TOPICS.items():
            if topic not in self.deleted:
                self.partitions.install(topic, [self._open_log(topic, index) for index in range(count)])
        config = BrokerConfig(self.root)
        self.groups = GroupCoordinator(self.clock, config)
        self.group_requests = GroupRequests(self.groups, self._state_log(GROUP_OFFSETS_TOPIC))
        self.group_requests.load()
        coordinator = TransactionCoordinator(self.clock, timeout_max_ms=900_000, expiration_ms=10**12)
        self.participants = LocalParticipants(
            self.partitions, group_commit, lambda _index: self.group_requests, lambda synced: synced(ErrorCode.none)
        )
        self.transactions = Transactions(
            coordinator,
            self._state_log(TRANSACTION_STATE_TOPIC),
            self.participants,
            self._next_producer_id,
            abort_interval_ms=1000,
            expiration_interval_ms=10**9,
        )
        self.transactions.load()
        self.transactions.resume()

    def _open_log(self, topic: str, index: int) -> PartitionLog:
        config = STATE_CONFIG if topic.startswith("__") else CONFIG
        return PartitionLog.open(self.root / f"{topic}-{index}", config, disk=self.disk, clock=self.clock, clean=False)

    def _state_log(self, topic: str) -> StateLog:
        partition = self.partitions.get(topic, 0)
        assert partition is not None
        rounds: Any = self.rounds
        return StateLog(partition, self.clock, rounds)

    def _next_producer_id(self, response: Callable[[ErrorCode, int], None]) -> None:
        self._producer_ids += 1
        response(ErrorCode.none, self._producer_ids)

    def crash(self, *, power: bool) -> None:
        """The process is killed, or the machine loses its power; either may happen again while it starts."""
        self.crashes += 1
        self.is_off = False
        while True:
            if power or self.needs_power_cut:
                self.disk.crash(self.seed.randrange(2**32), drop_all=self.seed.random() < 0.3)
            else:
                self.disk.kill()
            self.disk.space_bytes = None
            self.disk.fail_next_syncs(0)
            self.needs_power_cut = False
            try:
                self.open()
            except PowerCut:
                power = True
            else:
                return

    def produce(
        self, who: ProducerRequest, at: tuple[str, int], value: bytes, sequence: int, response: Respond
    ) -> None:
        """Produce like the Produce handler."""
        partition = self.partitions.get(*at)
        if partition is None:
            response(ErrorCode.unknown_topic_or_partition)
            return
        code = self.transactions.check_produce(who.producer_id, who.producer_epoch, who.transactional_id, *at)
        if code:
            response(code)
            return
        batch = encode_batch(
            [Record(0, self.clock.now_ms(), None, value)],
            producer_id=who.producer_id,
            producer_epoch=who.producer_epoch,
            base_sequence=sequence,
            transactional=True,
        )
        try:
            appended = partition.log.append(batch)
        except LogError as error:
            response(error.error_code)
            return
        self.rounds.request(partition)
        partition.when_synced(appended.last_offset + 1, response)

    def commit_offset(self, who: ProducerRequest, offset: int, response: Respond) -> None:
        """Commit like the TxnOffsetCommit handler; each transactional id has a group of its own."""
        code = self.transactions.check_produce(
            who.producer_id, who.producer_epoch, who.transactional_id, *GROUP_OFFSETS
        )
        if code:
            response(code)
        else:
            records = [OffsetCommit(who.transactional_id, "a", 0, offset)]
            self.group_requests.record_transactional(who.producer_id, who.producer_epoch, records, response)

    def write_marker(self, marker: ProducerMarker, at: tuple[str, int], respond: Respond) -> None:
        """Write an admin's marker like the WriteTxnMarkers handler."""
        partition = self.partitions.get(*at)
        if partition is None:
            respond(ErrorCode.unknown_topic_or_partition)
        elif not self.transactions.take_marker(marker, at, respond):
            try:
                self.participants.write(marker, partition, respond, by_client=True)
            except LogError as error:
                respond(error.error_code)

    def delete_topic(self) -> None:
        self.deleted.add("doomed")
        for partition in self.partitions.withdraw("doomed"):
            self.rounds.forget(partition)

    # At the end

    def settle(self) -> None:
        """Let everything come to its end without producers: time-outs, markers, syncs."""
        self.disk.space_bytes = None
        self.crash(power=True)
        for _ in range(10):
            self.rounds.run(whole=True)
            self.clock.advance_ms(TIMEOUT_MS)
            self.transactions.tick()

    def committed(self, at: tuple[str, int]) -> list[bytes]:
        """Return what a reader of committed data finds."""
        partition = self.partitions.get(*at)
        assert partition is not None
        log = partition.log
        values: list[bytes] = []
        offset = log.log_start_offset
        while (piece := log.visible.read(offset, 10**6, offset_end=log.visible.last_stable_offset)) is not None:
            data = piece.read()
            end = list(batches(data))[-1][1].last_offset + 1
            fetched: Any = type("Fetched", (), {"records": data, "aborted": log.visible.aborted_in(offset, piece)})
            values += [record.value or b"" for record in committed_records(fetched, offset, end)]
            offset = end
        return values


class Producer:
    """One client: `life` is what it does, a yield at each moment where anything else may happen."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.who = ProducerRequest(name, -1, -1)
        self.sequences: Counter[tuple[str, int]] = Counter()
        self.response: Any = None

    def life(self) -> Steps[None]:
        while True:
            yield from self.init()
            for _ in range(self.world.seed.randrange(1, 5)):
                ok = yield from self.transaction()
                if not ok:
                    break

    def ask(self, send: Callable[[World, Respond], None]) -> Steps[None]:
        """Send; the response is in `self.response` afterwards, None where a crash lost it."""
        world = self.world
        box: list[Any] = []
        generation = world.generation
        try:
            send(world, box.append)
        except PowerCut:
            world.is_off = True
            yield
        while not box and world.generation == generation:
            yield
        self.response = box[0] if box else None

    def ask_until_settled(self, send: Callable[[World, Respond], None]) -> Steps[None]:
        """Again while the response is lost or passes by itself, which ends with luck or after some tries."""
        for _ in range(12):
            yield from self.ask(send)
            if self.response is not None and self.response not in PASSING:
                return
            yield

    def init(self) -> Steps[None]:
        self.sequences.clear()
        asked = InitRequest(self.name, TIMEOUT_MS)
        while True:
            yield from self.ask(lambda world, response: world.transactions.init(asked, lambda *got: response(got)))
            if self.response is not None and not self.response[0]:
                _code, producer_id, epoch = self.response
                self.world.given[self.name, producer_id, epoch] += 1
                self.who = ProducerRequest(self.name, producer_id, epoch)
                return
            yield

    def transaction(self) -> Steps[bool]:
        """One transaction; returns whether the next one may follow under the same epoch."""
        world, seed = self.world, self.world.seed
        attempt = Attempt(len(world.attempts), self.name)
        world.attempts.append(attempt)
        for _ in range(seed.randrange(1, 5)):
            at = seed.choice(DATA_PARTITIONS)
            if not (yield from self.send(attempt, at)):
                return False
        if seed.random() < 0.5 and not (yield from self.send_offset(attempt)):
            return False
        return (yield from self.end(attempt))

    def add(self, at: tuple[str, int]) -> Steps[bool]:
        who = self.who
        yield from self.ask_until_settled(
            lambda world, response: world.transactions.add(who, frozenset({at}), response)
        )
        assert self.response in (None, ErrorCode.none, *FENCED, *PASSING), self.response
        return bool(self.response == ErrorCode.none)

    def send(self, attempt: Attempt, at: tuple[str, int]) -> Steps[bool]:
        if at[0] in self.world.deleted:
            return True
        if not (yield from self.add(at)):
            return False
        who, sequence = self.who, self.sequences[at]
        value = b"%d.%d.%d" % (attempt.number, at[1], sequence)
        yield from self.ask_until_settled(lambda world, response: world.produce(who, at, value, sequence, response))
        if self.response == ErrorCode.unknown_topic_or_partition:
            return True
        # The partition was added, durably: only another producer's epoch can prevent it, never a lost state.
        assert self.response in (None, ErrorCode.none, *FENCED, *PASSING), self.response
        if self.response == ErrorCode.none:
            self.sequences[at] += 1
            attempt.values.setdefault(at, []).append(value)
        return bool(self.response == ErrorCode.none)

    def send_offset(self, attempt: Attempt) -> Steps[bool]:
        if not (yield from self.add(GROUP_OFFSETS)):
            return False
        who = self.who
        yield from self.ask_until_settled(lambda world, response: world.commit_offset(who, attempt.number, response))
        assert self.response in (None, ErrorCode.none, *FENCED, *PASSING), self.response
        attempt.has_offset = bool(self.response == ErrorCode.none)
        return attempt.has_offset

    def end(self, attempt: Attempt) -> Steps[bool]:
        if not attempt.values and not attempt.has_offset:
            return False
        who = self.who
        attempt.asked = self.world.seed.choice((Event.COMMIT, Event.COMMIT, Event.ABORT))
        event = attempt.asked
        yield from self.ask_until_settled(lambda world, response: world.transactions.end(who, event, response))
        assert self.response in (None, ErrorCode.none, *FENCED, *PASSING), self.response
        attempt.is_acknowledged = bool(self.response == ErrorCode.none)
        return attempt.is_acknowledged


def simulate(seed_number: int, root: Path) -> World:
    """Run one seed. Raises AssertionError where a promise was broken."""
    world = World(seed_number, root)
    seed = world.seed
    names = seed.choice((("x",), ("x", "y"), ("x", "x"), ("x", "y", "x")))
    lives = [Producer(world, name).life() for name in names]
    for _ in range(STEPS):
        try:
            step(world, seed, lives)
        except PowerCut:
            world.is_off = True
        if world.is_off:
            world.crash(power=True)
    world.settle()
    check(world)
    return world


def step(world: World, seed: random.Random, lives: list[Steps[None]]) -> None:
    chance = seed.random()
    if chance < 0.66:
        next(seed.choice(lives))
    elif chance < 0.95:
        world.rounds.run()
    elif chance < 0.965:
        world.clock.advance_ms(seed.choice((100, 1000, TIMEOUT_MS + 1)))
        world.transactions.tick()
    elif chance < 0.975:
        world.crash(power=False)
    elif chance < 0.986:
        world.disk.cut_power_after(seed.randrange(25))
    elif chance < 0.988:
        world.disk.fail_next_syncs()
        world.needs_power_cut = True
    elif chance < 0.992:
        world.disk.space_bytes = seed.randrange(300)
    elif chance < 0.997:
        world.disk.space_bytes = None
    elif seed.random() < 0.5 and "doomed" not in world.deleted:
        world.delete_topic()


def check(world: World) -> None:
    """Check that every transaction is atomic, with the acknowledged outcome, exactly once, and none is open."""
    assert max(world.given.values(), default=1) == 1, f"an epoch was given twice: {world.given.most_common(1)}"
    committed = {at: world.committed(at) for at in DATA_PARTITIONS if at[0] not in world.deleted}
    for at, values in committed.items():
        assert len(values) == len(set(values)), f"{at}: a value is there twice"
        partition = world.partitions.get(*at)
        assert partition is not None
        assert partition.log.visible.last_stable_offset == partition.log.log_end_offset, f"{at}: something hangs"
    for transaction in world.transactions.coordinator.transactions.values():
        assert transaction.state not in {*PREPARED, TransactionState.ONGOING}, transaction
    assert not list(world.groups.pending), "offsets are still pending"
    offsets = {name: _offset(world, name) for name in ("x", "y")}
    last_committed = dict.fromkeys(offsets, -1)
    for attempt in world.attempts:
        is_committed = check_attempt(attempt, committed)
        only_offset_tells = is_committed is None and offsets[attempt.name] == attempt.number
        if (is_committed and attempt.has_offset) or only_offset_tells:
            last_committed[attempt.name] = attempt.number
    assert offsets == last_committed


def _offset(world: World, name: str) -> int:
    group = world.groups.groups.get(name)
    commit = group.offsets.get(("a", 0)) if group is not None else None
    return -1 if commit is None or commit.offset is None else commit.offset


def check_attempt(attempt: Attempt, committed: dict[tuple[str, int], list[bytes]]) -> bool | None:
    """Whether it was committed; None where nothing but its offset could tell."""
    seen = [value in committed[at] for at, values in attempt.values.items() if at in committed for value in values]
    assert len(set(seen)) <= 1, f"half of {attempt}"
    if attempt.asked is not Event.COMMIT:
        assert not any(seen), f"it was not committed: {attempt}"
        return False
    if attempt.is_acknowledged:
        assert all(seen), f"it was committed: {attempt}"
        return True
    return seen[0] if seen else None
