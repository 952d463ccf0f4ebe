"""Scenarios of requests in every state of a transaction; Apache Kafka and this broker respond alike.

A scenario yields the responses, step by step. tests/broker/handlers/test_transactions.py holds the responses
of Apache Kafka 4.1.1 with `transaction.version=0`.
"""

from collections.abc import Callable, Iterator
from typing import Any

from onceflow.wire import apis
from onceflow.wire.errors import ErrorCode
from tests.broker.transactions.transactional_client import TransactionalClient, patiently

Said = Iterator[Any]
Scenario = Callable[[TransactionalClient, str], Said]

UNKNOWN_TOPIC = "no-such-topic"


def epochs(
    producer: TransactionalClient, *, version: int = 4, named: tuple[int, int] = (-1, -1), **options: Any
) -> Any:
    """An InitProducerId's response, its producer id relative to the present one; `named`: the id and epoch in it."""
    present = producer.producer[0]
    code, producer_id, epoch = producer.init_response(version, producer=named, **options)
    return code if code else ("same id" if producer_id == present else "new id", epoch)


def settled_epochs(producer: TransactionalClient, **options: Any) -> Any:
    """Return `epochs` once no transaction is being completed."""
    responses: list[Any] = []

    def ask() -> ErrorCode:
        responses.append(epochs(producer, **options))
        return responses[-1] if isinstance(responses[-1], ErrorCode) else ErrorCode.none

    patiently(ask)
    return responses[-1]


def begun(producer: TransactionalClient, topic: str) -> None:
    """An ongoing transaction with one record in partition 0."""
    producer.init_until_done()
    assert producer.add((topic, 0)) == ErrorCode.none
    assert patiently(lambda: producer.produce(topic, b"v")) == ErrorCode.none


def ended(producer: TransactionalClient, topic: str, *, commit: bool) -> None:
    begun(producer, topic)
    assert producer.end(commit=commit) == ErrorCode.none
    wanted = "CompleteCommit" if commit else "CompleteAbort"
    while producer.state() != wanted:
        pass


def init_bad_requests(producer: TransactionalClient, _topic: str) -> Said:
    producer.init_until_done()
    yield epochs(producer, timeout_ms=0)
    yield epochs(producer, timeout_ms=-1)
    yield epochs(producer, timeout_ms=900_000)
    yield epochs(producer, timeout_ms=900_001)
    yield epochs(producer, named=(producer.producer[0], -1))
    yield epochs(producer, named=(-1, 0))
    producer.transactional_id = ""
    yield epochs(producer)


def init_first(producer: TransactionalClient, _topic: str) -> Said:
    yield patiently(lambda: producer.init())
    yield producer.producer[1]
    yield producer.state()
    yield epochs(producer, version=0)
    yield epochs(producer, version=2)


def init_of_an_unknown_id_that_names_an_epoch(producer: TransactionalClient, _topic: str) -> Said:
    yield settled_epochs(producer, named=(12345, 3))


def init_with_epoch(producer: TransactionalClient, _topic: str) -> Said:
    producer_id, _ = producer.init_until_done()
    yield epochs(producer, named=(producer_id, 0))
    yield epochs(producer, named=(producer_id, 0))
    yield epochs(producer, named=(producer_id, 1))
    yield epochs(producer, named=(producer_id, 0))
    yield epochs(producer, version=3, named=(producer_id, 0))
    yield epochs(producer, named=(producer_id + 1, 2))
    yield epochs(producer, named=(producer_id, 7))
    yield epochs(producer)
    yield epochs(producer, named=(producer_id, 2))
    yield epochs(producer, named=(producer_id, 1))


def init_with_epoch_after_a_transaction(producer: TransactionalClient, topic: str) -> Said:
    ended(producer, topic, commit=True)
    producer_id, epoch = producer.producer
    yield epochs(producer, named=(producer_id, epoch + 1))
    yield epochs(producer, named=(producer_id, epoch))
    yield producer.state()


def init_while_ongoing(producer: TransactionalClient, topic: str) -> Said:
    begun(producer, topic)
    yield epochs(producer)
    yield settled_epochs(producer)
    yield producer.end(commit=True)
    yield producer.end(commit=True, version=1)
    yield producer.add((topic, 0))
    yield producer.add((topic, 0), version=1)
    yield producer.add_offsets("g")
    yield producer.add_offsets("g", version=1)
    yield producer.produce(topic, b"late")


def init_with_epoch_while_ongoing(producer: TransactionalClient, topic: str) -> Said:
    begun(producer, topic)
    producer_id, epoch = producer.producer
    yield epochs(producer, named=(producer_id + 1, 0))
    yield epochs(producer, named=(producer_id, epoch))
    yield settled_epochs(producer, named=(producer_id, epoch))
    yield settled_epochs(producer)


def init_with_an_old_epoch_while_ongoing(producer: TransactionalClient, topic: str) -> Said:
    producer.init_until_done()
    begun(producer, topic)
    producer_id, epoch = producer.producer
    yield epochs(producer, named=(producer_id, epoch - 1))
    yield settled_epochs(producer, named=(producer_id, epoch - 1))
    yield producer.end(commit=True)


def add_bad_requests(producer: TransactionalClient, topic: str) -> Said:
    yield patiently(lambda: producer.add((topic, 0)))
    producer.init_until_done()
    yield set(producer.add_responses((topic, 0), (UNKNOWN_TOPIC, 0)))
    yield set(producer.add_responses((topic, 0), (topic, 99)))
    yield set(producer.add_responses(("__transaction_state", 0), (topic, 0)))
    yield producer.state()
    producer_id, epoch = producer.producer
    producer.producer = (producer_id + 1, epoch)
    yield producer.add((topic, 0))
    producer.producer = (producer_id, epoch + 1)
    yield producer.add((topic, 0))
    yield producer.add((topic, 0), version=0)
    producer.producer = (producer_id, epoch)
    yield producer.add((topic, 0))
    yield producer.state()
    yield producer.add((topic, 0))
    yield producer.add((topic, 1))
    producer.transactional_id = ""
    yield producer.add((topic, 0))


def add_offsets_to_the_groups_own_topic(producer: TransactionalClient, _topic: str) -> Said:
    producer.init_until_done()
    yield producer.add_responses(("__consumer_offsets", 0))
    yield producer.add_offsets("")
    yield producer.add_offsets("g")
    yield producer.state()


def end_when_empty(producer: TransactionalClient, _topic: str) -> Said:
    yield patiently(lambda: producer.end(commit=True))
    producer.init_until_done()
    yield producer.end(commit=True)
    yield producer.end(commit=False)


def end_repeated(producer: TransactionalClient, topic: str) -> Said:
    ended(producer, topic, commit=True)
    yield producer.end(commit=True)
    yield producer.end(commit=False)
    ended(producer, topic, commit=False)
    yield producer.end(commit=False)
    yield producer.end(commit=True)
    producer.producer = (producer.producer[0], producer.producer[1] - 1)
    yield producer.end(commit=False)
    yield producer.end(commit=False, version=1)
    producer.producer = (producer.producer[0], producer.producer[1] + 2)
    yield producer.end(commit=False)
    producer.producer = (producer.producer[0] + 1, 0)
    yield producer.end(commit=False)
    producer.transactional_id = ""
    yield producer.end(commit=False)


def produce_outside_a_transaction(producer: TransactionalClient, topic: str) -> Said:
    producer.init_until_done()
    yield patiently_produced(producer, topic)
    assert producer.add((topic, 0)) == ErrorCode.none
    yield producer.produce(topic, b"v", partition=1)
    yield producer.produce(topic, b"v")
    yield producer.produce(topic, b"v", partition=1, version=7)
    assert producer.end(commit=True) == ErrorCode.none
    while producer.state() != "CompleteCommit":
        pass
    yield producer.produce(topic, b"v")


def patiently_produced(producer: TransactionalClient, topic: str) -> ErrorCode:
    return patiently(lambda: producer.produce(topic, b"v"))


def produce_as_another_producer(producer: TransactionalClient, topic: str) -> Said:
    begun(producer, topic)
    producer_id, epoch = producer.producer
    assert producer.add((topic, 1)) == ErrorCode.none
    for other in ((producer_id, epoch + 1), (producer_id, epoch - 1), (producer_id + 1, epoch)):
        producer.producer = other
        for partition in (0, 1):
            yield producer.produce(topic, b"v", partition=partition, sequence=0)
    producer.producer = (producer_id, epoch)
    name = producer.transactional_id
    producer.transactional_id = "somebody-else"
    yield producer.produce(topic, b"v", partition=1)
    producer.transactional_id = name
    yield producer.produce(topic, b"v", partition=1, named=False)


def produce_plainly_in_a_transaction(producer: TransactionalClient, topic: str) -> Said:
    begun(producer, topic)
    yield producer.produce(topic, b"v", transactional=False)
    yield producer.produce(topic, b"v", transactional=False, named=False)
    yield producer.produce(topic, b"v", partition=1, transactional=False)


def produce_after_another_took_over(producer: TransactionalClient, topic: str) -> Said:
    begun(producer, topic)
    newer = TransactionalClient(producer.client, producer.transactional_id)
    newer.init_until_done()
    yield producer.produce(topic, b"v")
    yield producer.produce(topic, b"v", partition=1)
    assert newer.add((topic, 0)) == ErrorCode.none
    yield producer.produce(topic, b"v")
    yield newer.produce(topic, b"new")
    yield producer.produce(topic, b"v")
    yield newer.end(commit=True)


def timed_out(producer: TransactionalClient, topic: str) -> Said:
    name = producer.transactional_id
    # Where the machine is so busy that the time is over before anything was written, the next one has more of it.
    for timeout_ms in (100, 1_000, 10_000):
        producer.transactional_id = f"{name}-{timeout_ms}"
        producer.init_until_done(timeout_ms=timeout_ms)
        assert producer.add((topic, 0)) == ErrorCode.none
        if not patiently(lambda: producer.produce(topic, b"v")):
            break
    else:
        raise AssertionError("nothing was written in time, not within 10 s either")
    while producer.state() != "CompleteAbort":
        pass
    yield producer.produce(topic, b"v")
    yield producer.produce(topic, b"v", partition=1)
    yield producer.add((topic, 0))
    yield producer.end(commit=True)
    yield producer.end(commit=True, version=1)
    yield producer.end(commit=False)
    yield epochs(producer, named=producer.producer)
    yield epochs(producer)


def commit_offsets(producer: TransactionalClient, topic: str) -> Said:
    producer.init_until_done()
    group = f"group-of-{topic}"
    yield producer.commit_offset(group, topic, 5)
    assert producer.add((topic, 0)) == ErrorCode.none
    yield producer.commit_offset(group, topic, 5)
    yield patiently(lambda: producer.add_offsets(group))
    yield patiently(lambda: producer.commit_offset(group, topic, 5))
    yield producer.commit_offset(group, topic, 6, version=0)
    yield producer.commit_offset(group, UNKNOWN_TOPIC, 5)
    yield producer.commit_offset(group, topic, 5, partition=99)
    yield producer.commit_offset(group, topic, 5, metadata="m" * 4096)
    yield producer.commit_offset(group, topic, 5, metadata="m" * 4097)
    yield producer.commit_offset(group, topic, 5, member_id="stranger", generation_id=3)
    yield producer.commit_offset(group, topic, 5, member_id="stranger")
    yield producer.commit_offset(group, topic, 5, generation_id=3)
    producer_id, epoch = producer.producer
    for other in ((producer_id, epoch + 1), (producer_id, epoch - 1), (producer_id + 1, epoch)):
        producer.producer = other
        yield producer.commit_offset(group, topic, 5)
        yield producer.commit_offset(group, topic, 5, version=1)
    producer.producer = (producer_id, epoch)
    yield offset_fetch(producer, group, topic, stable=True)
    yield offset_fetch(producer, group, topic, stable=False)
    yield producer.end(commit=True)
    while producer.state() != "CompleteCommit":
        pass
    yield offset_fetch(producer, group, topic, stable=True)
    yield producer.commit_offset(group, topic, 7)


def offset_fetch(producer: TransactionalClient, group: str, topic: str, *, stable: bool) -> tuple[ErrorCode, int]:
    """(error code, offset) of partition 0."""
    groups = [{"group_id": group, "topics": [{"name": topic, "partition_indexes": [0]}]}]
    response = producer.client.ask(apis.OFFSET_FETCH, 8, groups=groups, require_stable=stable)
    partition = response.groups[0].topics[0].partitions[0]
    return ErrorCode(partition.error_code), int(partition.committed_offset)


def describe(producer: TransactionalClient, topic: str) -> Said:
    yield ErrorCode(producer.described().error_code)
    begun(producer, topic)
    description = producer.described()
    timeout_ms = round(description.transaction_timeout.total_seconds() * 1000)
    yield description.transaction_state, timeout_ms, description.producer_epoch
    yield [(item.topic == topic, tuple(item.partitions)) for item in description.topics]
    (partition,) = (
        producer.client.ask(apis.DESCRIBE_PRODUCERS, 0, topics=[{"name": topic, "partition_indexes": [0]}])
        .topics[0]
        .partitions
    )
    for state in partition.active_producers:
        yield state.producer_epoch, state.last_sequence, state.coordinator_epoch, state.current_txn_start_offset
    response = producer.client.ask(
        apis.DESCRIBE_PRODUCERS, 0, topics=[{"name": UNKNOWN_TOPIC, "partition_indexes": [0]}]
    )
    yield ErrorCode(response.topics[0].partitions[0].error_code)
    yield listed(producer, state_filters=["Ongoing"])
    yield listed(producer, state_filters=["Empty", "Nonsense"])
    yield listed(producer, producer_id_filters=[producer.producer[0]])
    yield listed(producer, producer_id_filters=[producer.producer[0]], duration_filter=60_000)
    producer.transactional_id = ""
    yield ErrorCode(producer.described().error_code)


def listed(producer: TransactionalClient, **filters: Any) -> tuple[bool, tuple[str, ...]]:
    """Whether the id is in the list, and the filters that were not known."""
    fields = {"state_filters": (), "producer_id_filters": (), "duration_filter": -1, **filters}
    response = producer.client.ask(apis.LIST_TRANSACTIONS, 1, **fields)
    assert response.error_code == 0
    ids = {transaction_state.transactional_id for transaction_state in response.transaction_states}
    return producer.transactional_id in ids, tuple(response.unknown_state_filters)


def write_markers(producer: TransactionalClient, topic: str) -> Said:
    producer.init_until_done()
    ended(producer, topic, commit=True)
    yield marker(producer, topic, epoch=producer.producer[1])
    yield marker(producer, topic, epoch=producer.producer[1] - 1)
    yield marker(producer, topic, epoch=producer.producer[1], coordinator_epoch=-1)
    yield marker(producer, UNKNOWN_TOPIC, epoch=producer.producer[1])
    begun(producer, topic)
    yield marker(producer, topic, epoch=producer.producer[1] - 1)
    yield marker(producer, topic, epoch=producer.producer[1])


def marker(producer: TransactionalClient, topic: str, *, epoch: int, coordinator_epoch: int = 0) -> ErrorCode:
    """One abort marker by WriteTxnMarkers, as an admin's abort sends it."""
    marker = {
        "producer_id": producer.producer[0],
        "producer_epoch": epoch,
        "transaction_result": False,
        "topics": [{"name": topic, "partition_indexes": [0]}],
        "coordinator_epoch": coordinator_epoch,
    }
    response = producer.client.ask(apis.WRITE_TXN_MARKERS, 1, markers=[marker])
    return ErrorCode(response.markers[0].topics[0].partitions[0].error_code)


SCENARIOS: tuple[Scenario, ...] = (
    init_bad_requests,
    init_first,
    init_of_an_unknown_id_that_names_an_epoch,
    init_with_epoch,
    init_with_epoch_after_a_transaction,
    init_while_ongoing,
    init_with_epoch_while_ongoing,
    init_with_an_old_epoch_while_ongoing,
    add_bad_requests,
    add_offsets_to_the_groups_own_topic,
    end_when_empty,
    end_repeated,
    produce_outside_a_transaction,
    produce_as_another_producer,
    produce_plainly_in_a_transaction,
    produce_after_another_took_over,
    timed_out,
    commit_offsets,
    describe,
    write_markers,
)
