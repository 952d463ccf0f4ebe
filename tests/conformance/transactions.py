"""Transactions: producer identity, adding, writing and ending, and their state as other clients see it."""

from collections.abc import Callable
from typing import Any

from onceflow.wire import apis
from tests.broker.raw_client import batch_of, milliseconds
from tests.conformance.produce import request
from tests.conformance.side import Side
from tests.conformance.valid_requests import adding, begin, transactional_batch

UNKNOWN_TOPIC = "no-such-topic-in-a-transaction"


class Transaction:
    """A transactional producer; with `who` changed its requests are sent in another name."""

    def __init__(self, side: Side, timeout_ms: int = 60_000) -> None:
        self.side = side
        self.topic = side.create_topic(2)
        self.who = begin(side, timeout_ms=timeout_ms)

    def begun(self, partition: int = 0) -> "Transaction":
        """Begin a transaction with a record in a partition."""
        self.side.ask_quietly(apis.ADD_PARTITIONS_TO_TXN, 3, **adding(self.who, (self.topic, partition)))
        transactional_batch(self.side, self.who, self.topic)
        return self

    def ended(self, *, committed: bool) -> "Transaction":
        """End it, including its markers."""
        self.side.ask_quietly(apis.END_TXN, 3, **self.who, committed=committed)
        wanted = "CompleteCommit" if committed else "CompleteAbort"
        self.side.until(lambda response: response.transaction_states[0].transaction_state == wanted, **self.described())
        return self

    def described(self) -> dict[str, Any]:
        return {
            "api_key": apis.DESCRIBE_TRANSACTIONS,
            "version": 0,
            "transactional_ids": [self.who["transactional_id"]],
        }

    def add(self, *partitions: tuple[str, int], version: int = 3) -> None:
        self.side.ask(apis.ADD_PARTITIONS_TO_TXN, version, **adding(self.who, *partitions))

    def add_offsets(self, group: str, version: int = 3) -> None:
        self.side.ask(apis.ADD_OFFSETS_TO_TXN, version, **self.who, group_id=group)

    def produce(self, partition: int = 0, *, sequence: int = 0, named: bool = True, transactional: bool = True) -> None:
        batch = batch_of(
            b"v",
            producer_id=self.who["producer_id"],
            producer_epoch=self.who["producer_epoch"],
            base_sequence=sequence,
            transactional=transactional,
        )
        name = self.who["transactional_id"] if named else None
        self.side.ask(apis.PRODUCE, 9, **request(self.topic, (partition, bytes(batch)), transactional_id=name))

    def commit_offset(self, group: str, version: int = 3, name: str = "", **fields: Any) -> None:
        place = {
            "partition_index": 0,
            "committed_offset": 5,
            "committed_leader_epoch": -1,
            "committed_metadata": "m",
            **fields.pop("place", {}),
        }
        again = [{**place, **other} for other in fields.pop("again", ())]
        topics = [{"name": name or self.topic, "partitions": [place, *again]}]
        self.side.ask(apis.TXN_OFFSET_COMMIT, version, **self.who, group_id=group, topics=topics, **fields)

    def end(self, *, committed: bool, version: int = 3) -> None:
        self.side.ask(apis.END_TXN, version, **self.who, committed=committed)

    def others(self, *, named: bool = True) -> list[dict[str, Any]]:
        """Return other identities: another epoch or producer id, and if `named` another name and none."""
        later, earlier = ({"producer_epoch": self.who["producer_epoch"] + step} for step in (1, -1))
        names = ({"transactional_id": name} for name in (f"{self.side.topic}-unknown", ""))
        others = [later, earlier, {"producer_id": 999_999}, *([{"producer_id": -1}, *names] if named else ())]
        return [{**self.who, **other} for other in others]


def initialised(side: Side, *versions: int, **fields: Any) -> None:
    asked = {
        "transactional_id": side.topic,
        "transaction_timeout": milliseconds(60_000),
        "producer_id": -1,
        "producer_epoch": -1,
        **fields,
    }
    for version in versions or (4,):
        side.ask(apis.INIT_PRODUCER_ID, version, **asked)


def init_with(*versions: int, **fields: Any) -> Callable[[Side], None]:
    def case(side: Side) -> None:
        begin(side)
        initialised(side, *versions, **fields)

    return case


def init_as_oneself(side: Side) -> None:
    who = begin(side)
    for epoch in (0, 0, 1, 0, 7, -1):
        initialised(side, 3, 4, producer_id=who["producer_id"], producer_epoch=epoch)
    initialised(side, producer_id=999_999, producer_epoch=1)
    initialised(side, producer_id=-1, producer_epoch=1)


def init_while_open(side: Side) -> None:
    own = Transaction(side).begun()
    for other in (own.who["producer_id"] + 1, own.who["producer_id"]):
        initialised(side, producer_id=other, producer_epoch=0)
    side.until(lambda response: response.transaction_states[0].transaction_state == "CompleteAbort", **own.described())
    own.end(committed=True)
    own.add((own.topic, 0))
    own.produce(sequence=1)
    initialised(side)


def add_what_cannot_be(side: Side) -> None:
    own = Transaction(side)
    for places in (
        ((UNKNOWN_TOPIC, 0),),
        ((own.topic, 9),),
        ((own.topic, -1),),
        ((own.topic, 0), (UNKNOWN_TOPIC, 0)),
        (("__transaction_state", 0),),
        (("__consumer_offsets", 0),),
        (("a/b", 0), ("", 0)),
        ((own.topic, 0), (own.topic, 0)),
        (),
    ):
        for version in (0, 3):
            own.add(*places, version=version)
    side.ask(**own.described())


def as_others(
    ask: Callable[[Transaction], None], *, is_open: bool = True, named: bool = True
) -> Callable[[Side], None]:
    """Send a request in other names, while a transaction of the case's producer is open or not."""

    def case(side: Side) -> None:
        own = Transaction(side)
        begin(side)
        own.who = begin(side)
        if is_open:
            own.begun()
        for who in own.others(named=named):
            own.who = who
            ask(own)

    return case


def add_as(own: Transaction) -> None:
    for version in (0, 3):
        own.add((own.topic, 0), version=version)


def add_offsets_as(own: Transaction) -> None:
    for version in (0, 3):
        own.add_offsets(own.side.group, version)


def end_as(own: Transaction) -> None:
    for version in (0, 3):
        own.end(committed=True, version=version)


def produce_as(own: Transaction) -> None:
    for partition in (0, 1):
        own.produce(partition)


def produce_under_other_names(side: Side) -> None:
    own = Transaction(side).begun()
    for name in (f"{side.topic}-unknown", ""):
        own.who["transactional_id"] = name
        for partition in (0, 1):
            own.produce(partition, sequence=1 - partition)


def produce_without_identity(side: Side) -> None:
    own = Transaction(side).begun()
    own.who["producer_id"] = -1
    own.produce(1)


def commit_offset_as(own: Transaction) -> None:
    for version in (0, 3):
        own.commit_offset(own.side.group, version)


def end_when_empty(side: Side) -> None:
    own = Transaction(side)
    for committed in (True, False):
        own.end(committed=committed)
    side.ask(**own.described())


def end_again(committed: bool) -> Callable[[Side], None]:
    def case(side: Side) -> None:
        own = Transaction(side).begun().ended(committed=committed)
        for wanted in (committed, not committed):
            for version in (0, 3):
                own.end(committed=wanted, version=version)
        side.ask(**own.described())

    return case


def produce_out_of_place(side: Side) -> None:
    own = Transaction(side)
    own.produce()
    own.begun()
    own.produce(1)
    own.produce(sequence=7)
    own.produce(sequence=1, named=False)
    own.produce(sequence=1, transactional=False)
    own.produce(sequence=0)
    own.produce(sequence=1)
    own.ended(committed=True)
    own.produce(sequence=2)
    own.produce(sequence=2, transactional=False)


def offsets_in_a_transaction(side: Side) -> None:
    own, group = Transaction(side), side.group
    own.commit_offset(group)
    own.begun()
    own.commit_offset(group)
    own.add_offsets("")
    own.add_offsets(group)
    for version in range(4):
        own.commit_offset(group, version)
    own.commit_offset(group, name=UNKNOWN_TOPIC)
    for place in ({"partition_index": 9}, {"committed_offset": -1}, {"committed_metadata": None}):
        own.commit_offset(group, place=place)
    for size in (4096, 4097):
        own.commit_offset(group, place={"committed_metadata": "m" * size})
    for again in ({"committed_offset": 6}, {"committed_metadata": "m" * 4097}, {"partition_index": 9}):
        own.commit_offset(group, again=(again, {"committed_offset": 7}))
        own.commit_offset(group, place={"committed_metadata": "m" * 4097}, again=({"committed_metadata": "m"}, again))
    for member in (
        {"member_id": "stranger", "generation_id": 3},
        {"member_id": "stranger"},
        {"generation_id": 3},
        {"group_instance_id": "i"},
        {"generation_id": -5},
    ):
        own.commit_offset(group, **member)
    own.commit_offset("")
    pending(side, group)
    own.ended(committed=True)
    pending(side, group)
    own.commit_offset(group)


def pending(side: Side, group: str) -> None:
    """Show a group's offsets to other clients."""
    for topics in (None, [{"name": side.topic, "partition_indexes": [0, 1]}]):
        for stable in (False, True):
            side.ask(apis.OFFSET_FETCH, 8, groups=[{"group_id": group, "topics": topics}], require_stable=stable)
            side.ask(apis.OFFSET_FETCH, 7, group_id=group, topics=topics, require_stable=stable)


def offsets_that_are_aborted(side: Side) -> None:
    own = Transaction(side)
    side.ask_quietly(apis.ADD_OFFSETS_TO_TXN, 3, **own.who, group_id=side.group)
    own.commit_offset(side.group)
    side.ask(apis.DELETE_GROUPS, 2, groups_names=[side.group])
    own.ended(committed=False)
    pending(side, side.group)


def described(side: Side) -> None:
    own = Transaction(side).begun()
    for names in ([], [side.topic], [side.topic, side.topic], ["unknown", ""], [side.topic, "unknown"]):
        side.ask(apis.DESCRIBE_TRANSACTIONS, 0, transactional_ids=names)
    for places in ([0], [1], [9, -1], [0, 0], []):
        side.ask(apis.DESCRIBE_PRODUCERS, 0, topics=[{"name": own.topic, "partition_indexes": places}])
    for name in (UNKNOWN_TOPIC, "a/b", "", "__consumer_offsets"):
        side.ask(apis.DESCRIBE_PRODUCERS, 0, topics=[{"name": name, "partition_indexes": [9]}])
    side.ask(apis.DESCRIBE_PRODUCERS, 0, topics=())


def listed(side: Side) -> None:
    own = Transaction(side).begun()
    everything: dict[str, Any] = {"state_filters": (), "producer_id_filters": (), "duration_filter": -1}
    for filters in (
        {},
        {"state_filters": ["Ongoing"]},
        {"state_filters": ["ongoing"]},
        {"state_filters": ["Empty", "Nonsense"]},
        {"state_filters": ["Ongoing", "", "Ongoing"]},
        {"producer_id_filters": [own.who["producer_id"]]},
        {"producer_id_filters": [-5]},
        {"producer_id_filters": [own.who["producer_id"]], "state_filters": ["Empty"]},
        {"duration_filter": 0},
        {"duration_filter": 60_000},
        {"duration_filter": -7},
    ):
        side.ask_about_own(apis.LIST_TRANSACTIONS, 1, **{**everything, **filters})


def marking(side: Side, own: Transaction, *places: tuple[str, int], **fields: Any) -> None:
    """Send one WriteTxnMarkers."""
    topics = [{"name": name, "partition_indexes": [index]} for name, index in places]
    marker = {
        "producer_id": own.who["producer_id"],
        "producer_epoch": own.who["producer_epoch"],
        "transaction_result": False,
        "topics": topics,
        "coordinator_epoch": 0,
        **fields,
    }
    side.ask(apis.WRITE_TXN_MARKERS, 1, markers=[marker])


def markers(side: Side) -> None:
    begin(side)
    own = Transaction(side).begun().ended(committed=True)
    epoch = own.who["producer_epoch"]
    marking(side, own, (own.topic, 0), producer_epoch=epoch - 1)
    marking(side, own, (own.topic, 0), coordinator_epoch=-1)
    marking(side, own, (own.topic, 0))
    for name, index in ((UNKNOWN_TOPIC, 0), (own.topic, 9), ("a/b", 0), ("", 0)):
        marking(side, own, (name, index))
    marking(side, own, (own.topic, 0), (UNKNOWN_TOPIC, 0))
    side.ask(apis.WRITE_TXN_MARKERS, 1, markers=())


def markers_nowhere(side: Side) -> None:
    marking(side, Transaction(side))


def timed_out(side: Side) -> None:
    own = Transaction(side, timeout_ms=100)
    side.ask_quietly(apis.ADD_PARTITIONS_TO_TXN, 3, **adding(own.who, (own.topic, 0)))
    side.until(lambda response: response.transaction_states[0].transaction_state == "CompleteAbort", **own.described())
    for ask in (add_as, add_offsets_as, produce_as, commit_offset_as, end_as):
        ask(own)
    own.end(committed=False)
    side.ask(**own.described())


def init_after_a_time_out(side: Side) -> None:
    own = Transaction(side, timeout_ms=100)
    side.ask_quietly(apis.ADD_PARTITIONS_TO_TXN, 3, **adding(own.who, (own.topic, 0)))
    side.until(lambda response: response.transaction_states[0].transaction_state == "CompleteAbort", **own.described())
    initialised(side, producer_id=own.who["producer_id"], producer_epoch=own.who["producer_epoch"])


CASES: dict[str, Callable[[Side], None]] = {
    "initialise without a time-out": init_with(transaction_timeout=milliseconds(0)),
    "initialise with a negative time-out": init_with(transaction_timeout=milliseconds(-1)),
    "initialise with the longest time-out": init_with(transaction_timeout=milliseconds(900_000)),
    "initialise with a longer time-out": init_with(0, 4, transaction_timeout=milliseconds(900_001)),
    "initialise without a name": init_with(0, 4, transactional_id=""),
    "initialise no transaction": init_with(0, 4, transactional_id=None),
    "initialise no transaction with an identity": init_with(
        3, 4, transactional_id=None, producer_id=5, producer_epoch=0
    ),
    "initialise no transaction with a negative time-out": init_with(
        transactional_id=None, transaction_timeout=milliseconds(-5)
    ),
    "initialise as oneself": init_as_oneself,
    "initialise a new name with an identity": lambda side: initialised(side, producer_id=12_345, producer_epoch=3),
    "initialise while a transaction is open": init_while_open,
    "add what cannot be added": add_what_cannot_be,
    "add as others": as_others(add_as),
    "add as others to nothing": as_others(add_as, is_open=False),
    "add offsets as others": as_others(add_offsets_as),
    "end as others": as_others(end_as),
    "end as others nothing": as_others(end_as, is_open=False),
    "produce as others in a transaction": as_others(produce_as, named=False),
    "produce under other names in a transaction": produce_under_other_names,
    "produce without identity in a transaction": produce_without_identity,
    "commit offsets as others in a transaction": as_others(commit_offset_as),
    "end an empty transaction": end_when_empty,
    "end again what was committed": end_again(True),
    "end again what was aborted": end_again(False),
    "produce out of place in a transaction": produce_out_of_place,
    "offsets in a transaction": offsets_in_a_transaction,
    "offsets that are aborted": offsets_that_are_aborted,
    "describe transactions and producers": described,
    "list transactions": listed,
    "write markers": markers,
    "write markers nowhere": markers_nowhere,
    "a transaction that timed out": timed_out,
    "initialise after a time-out": init_after_a_time_out,
}
