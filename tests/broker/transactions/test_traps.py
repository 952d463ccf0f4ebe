"""Where others' transactions went wrong, on a real broker: each test is named after its line in the list of traps.

The log's own ones are in tests/log/test_transactions.py, the coordinator's in test_coordinator.py.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from onceflow.broker.transactions.transaction import PRODUCER_EPOCH_MAX, Transaction
from onceflow.testing import FaultyDisk
from onceflow.wire import apis
from onceflow.wire.errors import ErrorCode
from onceflow.wire.produce import encode_request
from tests.broker.driven_broker import DrivenBroker, eventually
from tests.broker.raw_client import RawClient, batch_of, connected, milliseconds
from tests.broker.transactions.responses import offset_fetch
from tests.broker.transactions.transactional_client import TransactionalClient, committed_values, patiently

NONE = ErrorCode.none


@pytest.fixture(scope="module")
def driven(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DrivenBroker]:
    data = tmp_path_factory.mktemp("disk")
    with DrivenBroker(data, disk=FaultyDisk(data), transaction_abort_interval_ms=10) as broker:
        yield broker


@pytest.fixture
def client(driven: DrivenBroker) -> Iterator[RawClient]:
    with connected(driven.bootstrap) as connection:
        yield connection


@pytest.fixture
def producer(client: RawClient, topic: str) -> TransactionalClient:
    """Initialised; `topic` has two partitions."""
    client.create_topic(topic, 2)
    made = TransactionalClient(client, f"id-of-{topic}")
    made.init_until_done()
    return made


def again(producer: TransactionalClient) -> TransactionalClient:
    """Another process with the same transactional id."""
    other = TransactionalClient(producer.client, producer.transactional_id)
    other.init_until_done()
    return other


def test_trap_04_batch_must_match_transaction(producer: TransactionalClient, topic: str) -> None:
    assert producer.add((topic, 0)) == NONE
    assert producer.produce(topic, b"a", named=False) == ErrorCode.transactional_id_authorization_failed
    assert producer.produce(topic, b"a") == NONE
    assert producer.produce(topic, b"b", transactional=False) == ErrorCode.invalid_txn_state
    assert producer.produce(topic, b"b", transactional=False, named=False) == ErrorCode.invalid_txn_state
    assert producer.end(commit=True) == NONE
    assert committed_values(producer.client, topic) == [b"a"]


def test_trap_04_one_batch_per_partition(producer: TransactionalClient, topic: str) -> None:
    """A second batch could not be checked against the first."""
    assert producer.add((topic, 0)) == NONE
    numbers = {"producer_id": producer.producer[0], "producer_epoch": producer.producer[1], "transactional": True}
    two = b"".join(batch_of(b"%d" % number, base_sequence=number, **numbers) for number in (0, 1))
    pieces = encode_request(
        9, 7, "raw", transactional_id=producer.transactional_id, acks=-1, timeout_ms=1000, topics=[(topic, [(0, two)])]
    )
    producer.client.socket.sendall(b"".join(map(bytes, pieces)))
    assert producer.client.receive_produced().error_code == ErrorCode.invalid_record
    assert producer.produce(topic, b"v") == NONE
    assert producer.end(commit=True) == NONE
    assert committed_values(producer.client, topic) == [b"v"]


def test_trap_05_only_first_protocol_is_served(client: RawClient) -> None:
    response = client.ask(apis.API_VERSIONS, 3, client_software_name="t", client_software_version="1")
    versions = {api_key.api_key: api_key.max_version for api_key in response.api_keys}
    ends = {
        apis.PRODUCE: 9,
        apis.ADD_PARTITIONS_TO_TXN: 3,
        apis.ADD_OFFSETS_TO_TXN: 3,
        apis.END_TXN: 3,
        apis.TXN_OFFSET_COMMIT: 3,
        apis.INIT_PRODUCER_ID: 4,
    }
    assert {api: versions[api] for api in ends} == ends
    assert not response.finalized_features, "transaction.version among them would switch clients to the second one"


def test_trap_05_offsets_must_be_added_first(producer: TransactionalClient, topic: str) -> None:
    assert producer.add((topic, 0)) == NONE
    assert producer.commit_offset("g", topic, 5) == ErrorCode.invalid_txn_state
    assert producer.add_offsets("g") == NONE
    assert producer.commit_offset("g", topic, 5) == NONE
    assert offset_fetch(producer, "g", topic, stable=True) == (ErrorCode.unstable_offset_commit, -1)
    assert producer.end(commit=True) == NONE
    assert offset_fetch(producer, "g", topic, stable=True) == (NONE, 5)


def test_trap_06_init_completes_previous_transaction(producer: TransactionalClient, topic: str) -> None:
    assert producer.add((topic, 0)) == NONE
    assert producer.produce(topic, b"lost") == NONE
    newer = TransactionalClient(producer.client, producer.transactional_id)
    assert newer.init() == ErrorCode.concurrent_transactions
    assert patiently(newer.init) == NONE
    assert producer.client.fetch([(topic, 0, 0)], isolation_level=1)[0].last_stable_offset == 2
    assert committed_values(producer.client, topic) == []
    assert newer.state() == "Empty"


def test_trap_07_epoch_must_be_current(producer: TransactionalClient) -> None:
    old = producer.producer
    newer = again(producer)
    assert producer.init(producer=old) == ErrorCode.producer_fenced
    assert producer.init(3, producer=old) == ErrorCode.invalid_producer_epoch
    assert newer.init(producer=newer.producer) == NONE
    assert producer.init() == NONE, "without an epoch the last caller wins"
    assert newer.init(producer=newer.producer) == ErrorCode.producer_fenced


def test_trap_07_fenced_producer_cannot_end(producer: TransactionalClient, topic: str) -> None:
    old = producer.producer
    newer = again(producer)
    newer_works(newer, topic)
    assert producer.init(producer=old) == ErrorCode.producer_fenced
    assert newer.end(commit=True) == NONE
    assert committed_values(producer.client, topic) == [b"new"]


def newer_works(newer: TransactionalClient, topic: str) -> None:
    assert newer.add((topic, 0)) == NONE
    assert newer.produce(topic, b"new") == NONE


def test_trap_08_repeated_end_gets_outcome(producer: TransactionalClient, topic: str) -> None:
    assert producer.end(commit=True) == ErrorCode.invalid_txn_state
    for commit in (True, False):
        producer.run(topic, b"v", commit=commit)
        assert producer.end(commit=commit) == NONE
        assert producer.end(commit=not commit) == ErrorCode.invalid_txn_state
    assert committed_values(producer.client, topic) == [b"v"]


def test_trap_09_timeout_fences_the_epoch(driven: DrivenBroker, client: RawClient, topic: str) -> None:
    client.create_topic(topic)
    producer = TransactionalClient(client, f"id-of-{topic}")
    producer.init_until_done(timeout_ms=1000)
    assert producer.add((topic, 0)) == NONE
    assert producer.produce(topic, b"late") == NONE
    driven.clock.advance_ms(1001)
    eventually(lambda: producer.state() == "CompleteAbort", "the transaction is aborted")
    assert producer.described().producer_epoch == producer.producer[1] + 1
    assert producer.produce(topic, b"later") == ErrorCode.invalid_producer_epoch
    assert producer.end(commit=True) == ErrorCode.producer_fenced
    assert producer.end(commit=True, version=1) == ErrorCode.invalid_producer_epoch
    assert committed_values(client, topic) == []


def at_epoch(driven: DrivenBroker, producer: TransactionalClient, epoch: int) -> None:
    """Set the epoch as if there had been earlier producers."""

    def change(present: Transaction) -> Transaction:
        return present.initialised(60_000, driven.clock.now_ms(), producer_epoch=epoch)

    def put(node: object) -> None:
        coordinator = node.transactions.at(0).coordinator  # type: ignore[attr-defined]
        coordinator.replay(change(coordinator.transactions[producer.transactional_id]))

    driven.call(put)
    producer.producer = (producer.producer[0], epoch)


def test_trap_10_11_new_id_after_exhaustion(driven: DrivenBroker, producer: TransactionalClient, topic: str) -> None:
    at_epoch(driven, producer, PRODUCER_EPOCH_MAX)
    producer.run(topic, b"last")
    newer = again(producer)
    assert newer.producer[1] == 0
    assert newer.producer[0] != producer.producer[0]
    newer_works(newer, topic)
    # To the partition the two are strangers: only the coordinator can tell that the old one is over.
    assert producer.produce(topic, b"old") == ErrorCode.invalid_producer_id_mapping
    assert producer.end(commit=True) == ErrorCode.invalid_producer_id_mapping
    assert newer.end(commit=True) == NONE
    assert committed_values(producer.client, topic) == [b"last", b"new"]


def test_trap_14_next_transaction_starts_immediately(producer: TransactionalClient, topic: str) -> None:
    for number in range(20):
        assert producer.add((topic, 0)) == NONE
        assert producer.produce(topic, b"%d" % number) == NONE
        assert producer.end(commit=True) == NONE
        assert len(committed_values(producer.client, topic)) == number + 1, "acknowledged, so visible"


def test_trap_15_unknown_producer_gets_permanent_error(producer: TransactionalClient, topic: str) -> None:
    for version in (3, 7, 9):
        assert producer.produce(topic, b"v", version=version) == ErrorCode.invalid_txn_state
    producer.run(topic, b"v")
    assert producer.produce(topic, b"v") == ErrorCode.invalid_txn_state
    assert committed_values(producer.client, topic) == [b"v"]
    assert producer.client.fetch([(topic, 0, 0)])[0].last_stable_offset == 2


def test_trap_16_restart_restores_open_transaction(
    driven: DrivenBroker, producer: TransactionalClient, topic: str
) -> None:
    assert producer.add((topic, 0)) == NONE
    assert producer.produce(topic, b"before") == NONE
    assert producer.add_offsets("restarted") == NONE
    assert producer.commit_offset("restarted", topic, 9) == NONE
    driven.power_cycle(1, drop_all=True)
    with connected(driven.bootstrap) as client:
        producer.client = client
        assert producer.state() == "Ongoing"
        assert client.fetch([(topic, 0, 0)], isolation_level=1)[0].last_stable_offset == 0
        assert offset_fetch(producer, "restarted", topic, stable=True) == (ErrorCode.unstable_offset_commit, -1)
        assert producer.produce(topic, b"before", sequence=0) == NONE, "a duplicate"
        assert producer.produce(topic, b"after") == NONE
        assert producer.end(commit=True) == NONE
        assert committed_values(client, topic) == [b"before", b"after"]
        assert offset_fetch(producer, "restarted", topic, stable=True) == (NONE, 9)


def test_trap_17_offsets_are_validated(producer: TransactionalClient, topic: str) -> None:
    assert producer.add_offsets("g17") == NONE
    assert producer.commit_offset("g17", topic, 1, partition=9) == ErrorCode.unknown_topic_or_partition
    assert producer.commit_offset("g17", "nowhere", 1) == ErrorCode.unknown_topic_or_partition
    assert producer.commit_offset("g17", topic, 1, metadata="m" * 4097) == ErrorCode.offset_metadata_too_large
    assert producer.commit_offset("g17", topic, 1, metadata="m" * 4096) == NONE
    assert producer.commit_offset("g17", topic, 1, metadata="\u20ac" * 4096) == NONE, "as Kafka counts, in UTF-16 units"
    assert producer.commit_offset("g17", topic, 1, metadata="\U0001f600" * 2049) == ErrorCode.offset_metadata_too_large
    assert producer.end(commit=True) == NONE


def test_topic_deletion_does_not_block_end(producer: TransactionalClient, topic: str) -> None:
    kept, client = f"{topic}-kept", producer.client
    client.create_topic(kept)
    assert producer.add((topic, 0), (kept, 0)) == NONE
    assert producer.produce(topic, b"gone") == NONE
    assert producer.produce(kept, b"kept") == NONE
    deleted = client.ask(apis.DELETE_TOPICS, 5, topic_names=[topic], timeout=milliseconds(10_000))
    assert deleted.responses[0].error_code == 0
    assert producer.produce(topic, b"gone") == ErrorCode.unknown_topic_or_partition
    assert producer.end(commit=True) == NONE
    assert producer.state() == "CompleteCommit"
    assert committed_values(client, kept) == [b"kept"]


def test_admin_abort_fences_the_producer(producer: TransactionalClient, topic: str) -> None:
    assert producer.add((topic, 0), (topic, 1)) == NONE
    for partition in (0, 1):
        assert producer.produce(topic, b"v", partition=partition) == NONE
    producer_id, epoch = producer.producer
    marker = {
        "producer_id": producer_id,
        "producer_epoch": epoch,
        "transaction_result": False,
        "topics": [{"name": topic, "partition_indexes": [0]}],
        "coordinator_epoch": 0,
    }
    commit = producer.client.ask(apis.WRITE_TXN_MARKERS, 1, markers=[{**marker, "transaction_result": True}])
    assert commit.markers[0].topics[0].partitions[0].error_code == ErrorCode.invalid_txn_state
    abort = producer.client.ask(apis.WRITE_TXN_MARKERS, 1, markers=[marker])
    assert abort.markers[0].topics[0].partitions[0].error_code == NONE
    assert producer.state() == "CompleteAbort"
    assert producer.end(commit=True) == ErrorCode.producer_fenced
    for partition in (0, 1):
        (fetched,) = producer.client.fetch([(topic, partition, 0)], isolation_level=1)
        assert fetched.last_stable_offset == 2
        assert committed_values(producer.client, topic, partition) == []


def test_state_topic_is_internal(producer: TransactionalClient) -> None:
    response = producer.client.ask(
        apis.METADATA,
        8,
        topics=[{"name": "__transaction_state"}],
        allow_auto_topic_creation=False,
        include_cluster_authorized_operations=False,
        include_topic_authorized_operations=False,
    )
    assert [(topic.name, topic.is_internal, len(topic.partitions)) for topic in response.topics] == [
        ("__transaction_state", True, 1)
    ]
    assert producer.produce("__transaction_state", b"v", transactional=False) == ErrorCode.invalid_topic_exception


def test_the_traps_are_all_here() -> None:
    """01 to 17, each with a test that has its number."""
    folder = Path(__file__).parents[2]
    files = [*folder.glob("log/*.py"), *folder.glob("broker/transactions/*.py")]
    text = "\n".join(path.read_text() for path in files)
    missing = [number for number in range(1, 18) if not re.search(f"def test_trap_{number:02}_", text)]
    assert not missing
