"""Members of groups and transactional producers of the simulated broker."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from onceflow.wire import apis
from onceflow.wire.batch import encode_batch
from onceflow.wire.errors import ErrorCode
from tests.broker.raw_client import milliseconds
from tests.broker.simulation.clients import Producer, commit, values_of
from tests.broker.simulation.ledger import Ledger
from tests.broker.simulation.world import ANCHOR, MAY_HAVE_BEEN_DONE, Steps, World

SESSION_MS = 6_000
TRANSACTION_MS = 8_000
ASK_AGAIN = (
    ErrorCode.coordinator_not_available,
    ErrorCode.coordinator_load_in_progress,
    ErrorCode.not_coordinator,
    ErrorCode.concurrent_transactions,
    ErrorCode.not_enough_replicas,
    *MAY_HAVE_BEEN_DONE,
)
FENCED = (ErrorCode.producer_fenced, ErrorCode.invalid_producer_epoch, ErrorCode.invalid_producer_id_mapping)
REJOIN = (ErrorCode.rebalance_in_progress, ErrorCode.illegal_generation, ErrorCode.unknown_member_id)


class Member:
    """Joins, is assigned, commits, leaves or falls silent."""

    def __init__(self, world: World, group: str, known: dict[int, int]) -> None:
        self.world = world
        self.group = group
        self.member_id = ""
        self.generation = -1
        self.known = known
        """Life of the broker → the newest generation that a member received in it."""

    def life(self) -> Steps[None]:
        while True:
            yield
            if not (yield from self.join()):
                continue
            for _ in range(self.world.seed.randrange(1, 6)):
                yield
                if not (yield from self.work()):
                    break
            else:
                if self.world.seed.random() < 0.3:
                    yield from self.leave()

    def join(self) -> Steps[bool]:
        known = self.known.get(self.world.life, -1)
        life = self.world.life
        response = yield from self.world.ask(
            apis.JOIN_GROUP,
            9,
            group_id=self.group,
            session_timeout=milliseconds(SESSION_MS),
            rebalance_timeout=milliseconds(10_000),
            member_id=self.member_id,
            group_instance_id=None,
            protocol_type="consumer",
            protocols=[{"name": "range", "metadata": b"m"}],
            reason=None,
        )
        if response is None:
            return False
        if response.error_code == ErrorCode.member_id_required:
            self.member_id = response.member_id
            return False
        if response.error_code == ErrorCode.unknown_member_id:
            self.member_id = ""
            return False
        assert response.error_code in (ErrorCode.none, *ASK_AGAIN, *REJOIN), response
        if response.error_code:
            return False
        assert life != self.world.life or response.generation_id >= known, f"{self.group}: {response} after {known}"
        self.known[life] = max(response.generation_id, self.known.get(life, -1))
        self.member_id, self.generation = response.member_id, response.generation_id
        members = [member.member_id for member in response.members] if response.leader == response.member_id else []
        return (yield from self.sync(members))

    def sync(self, members: list[str]) -> Steps[bool]:
        assignments = [{"member_id": member, "assignment": self._share(member)} for member in members]
        response = yield from self.world.ask(
            apis.SYNC_GROUP,
            5,
            group_id=self.group,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=None,
            protocol_type="consumer",
            protocol_name="range",
            assignments=assignments,
        )
        if response is None:
            return False
        assert response.error_code in (ErrorCode.none, *ASK_AGAIN, *REJOIN), response
        if not response.error_code:
            assert bytes(response.assignment) == self._share(self.member_id), f"{self.member_id}: {response}"
        return not response.error_code

    def _share(self, member_id: str) -> bytes:
        return f"{self.generation}/{member_id}".encode()

    def work(self) -> Steps[bool]:
        """A heartbeat or a commit, sometimes of a generation that is over; False to join again."""
        seed = self.world.seed
        if seed.random() < 0.4:
            response = yield from self.world.ask(
                apis.HEARTBEAT,
                4,
                group_id=self.group,
                generation_id=self.generation,
                member_id=self.member_id,
                group_instance_id=None,
            )
            return response is not None and self._may_go_on(ErrorCode(response.error_code))
        is_over = seed.random() < 0.2
        generation = self.generation - is_over
        is_over = is_over or generation < self.known.get(self.world.life, -1)
        code = yield from commit(self.world, self.group, generation, self.member_id)
        if is_over and generation >= 0:
            assert code != ErrorCode.none, f"{self.group}: generation {generation} committed after its end"
        return code is not None and self._may_go_on(code)

    def _may_go_on(self, code: ErrorCode) -> bool:
        if code == ErrorCode.unknown_member_id:
            self.member_id = ""
        return code not in REJOIN

    def leave(self) -> Steps[None]:
        members = [{"member_id": self.member_id, "group_instance_id": None, "reason": None}]
        yield from self.world.ask(apis.LEAVE_GROUP, 5, group_id=self.group, members=members)
        self.member_id = ""


@dataclass(eq=False)
class Attempt:
    """One transaction as its producer saw it."""

    number: int
    group: str
    values: dict[Ledger, list[bytes]] = field(default_factory=dict)
    offset: int = -1
    asked_to_commit: bool = False
    is_acknowledged: bool = False


class TransactionalProducer(Producer):
    """Transactions of records and offsets; producers with one id fence each other."""

    def __init__(self, world: World, number: int, name: str, attempts: list[Attempt]) -> None:
        super().__init__(world, number)
        self.name = name
        self.attempts = attempts
        self.producer = (-1, -1)
        self.sequences: Counter[Ledger] = Counter()

    def who(self, prefix: str = "") -> dict[str, Any]:
        names = ("transactional_id", "producer_id", "producer_epoch")
        return {prefix + name: value for name, value in zip(names, (self.name, *self.producer), strict=True)}

    def life(self) -> Steps[None]:
        while True:
            yield
            response = yield from self.world.ask(
                apis.INIT_PRODUCER_ID,
                4,
                transactional_id=self.name,
                transaction_timeout=milliseconds(TRANSACTION_MS),
                producer_id=-1,
                producer_epoch=-1,
            )
            if response is None or response.error_code:
                assert response is None or response.error_code in ASK_AGAIN, response
                continue
            self.producer = (response.producer_id, response.producer_epoch)
            self.sequences.clear()
            for _ in range(self.world.seed.randrange(1, 6)):
                if not (yield from self.transaction()):
                    break

    def transaction(self) -> Steps[bool]:
        """Whether the next one may follow under the same epoch."""
        attempt = Attempt(len(self.attempts), f"of {self.name}")
        self.attempts.append(attempt)
        for _ in range(self.world.seed.randrange(1, 4)):
            ledger = self.world.pick()
            if ledger is not None and not (yield from self.send(attempt, ledger)):
                return False
        if self.world.seed.random() < 0.5 and not (yield from self.send_offset(attempt)):
            return False
        return (yield from self.end(attempt))

    def until_settled(self, key: int, version: int, fields: dict[str, Any], code_of: Any) -> Steps[ErrorCode | None]:
        """Retry while the response is lost or a temporary error; return the last error code."""
        code: ErrorCode | None = None
        for _ in range(15):
            response = yield from self.world.ask(key, version, **fields)
            code = None if response is None else ErrorCode(code_of(response))
            if code is not None and code not in ASK_AGAIN:
                break
            yield
        return code

    def send(self, attempt: Attempt, ledger: Ledger) -> Steps[bool]:
        topics = [{"name": ledger.topic, "partitions": [ledger.index]}]
        code = yield from self.until_settled(
            apis.ADD_PARTITIONS_TO_TXN,
            3,
            {**self.who("v3_and_below_"), "v3_and_below_topics": topics},
            lambda response: response.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code,
        )
        if code:
            assert code in (ErrorCode.unknown_topic_or_partition, *FENCED, *ASK_AGAIN), f"{self.name}: {code}"
            return code == ErrorCode.unknown_topic_or_partition
        if code is None or not self.world.is_there(ledger):
            return False
        return (yield from self.produce(attempt, ledger))

    def produce(self, attempt: Attempt, ledger: Ledger) -> Steps[bool]:
        records = self.records(ledger, count=self.world.seed.randrange(1, 3), is_transactional=True)
        producer_id, producer_epoch = self.producer
        batch = encode_batch(
            records,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=self.sequences[ledger],
            transactional=True,
        )
        frame = self.request(ledger, batch, transactional_id=self.name)
        code: ErrorCode | None = None
        for _ in range(15):
            if not self.world.is_there(ledger):
                return False
            code = self.settled(ledger, values_of(records), (yield from self.world.exchange(frame)))
            if code is not None and code not in ASK_AGAIN:
                break
            yield
        assert code in (None, ErrorCode.none, ErrorCode.unknown_topic_or_partition, *FENCED, *ASK_AGAIN), (
            f"{self.name} to {ledger}: {code}"
        )
        if code == ErrorCode.none:
            self.sequences[ledger] += len(records)
            attempt.values.setdefault(ledger, []).extend(values_of(records))
        return code == ErrorCode.none

    def send_offset(self, attempt: Attempt) -> Steps[bool]:
        code = yield from self.until_settled(
            apis.ADD_OFFSETS_TO_TXN,
            3,
            {**self.who(), "group_id": attempt.group},
            lambda response: response.error_code,
        )
        assert code in (None, ErrorCode.none, *FENCED, *ASK_AGAIN), f"{self.name}: {code}"
        if code != ErrorCode.none:
            return False
        place = {"partition_index": 0, "committed_offset": attempt.number, "committed_leader_epoch": -1}
        topics = [{"name": ANCHOR, "partitions": [{**place, "committed_metadata": ""}]}]
        member = {"generation_id": -1, "member_id": "", "group_instance_id": None}
        code = yield from self.until_settled(
            apis.TXN_OFFSET_COMMIT,
            3,
            {**self.who(), "group_id": attempt.group, "topics": topics, **member},
            lambda response: response.topics[0].partitions[0].error_code,
        )
        assert code in (None, ErrorCode.none, *FENCED, *ASK_AGAIN), f"{self.name}: {code}"
        if code == ErrorCode.none:
            attempt.offset = attempt.number
        return code == ErrorCode.none

    def end(self, attempt: Attempt) -> Steps[bool]:
        if not attempt.values and attempt.offset < 0:
            return False
        attempt.asked_to_commit = self.world.seed.random() < 0.7
        code = yield from self.until_settled(
            apis.END_TXN,
            3,
            {**self.who(), "committed": attempt.asked_to_commit},
            lambda response: response.error_code,
        )
        assert code in (None, ErrorCode.none, *FENCED, *ASK_AGAIN), f"{self.name}: {code}"
        attempt.is_acknowledged = code == ErrorCode.none
        return attempt.is_acknowledged
