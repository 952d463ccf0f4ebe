"""A producer's repeated request of a known form is not parsed, and gets the same response as the first."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from onceflow.broker.handlers.produce import PendingProduce
from onceflow.log.partition import PartitionLog
from onceflow.wire import apis, produce
from onceflow.wire.batch import Record, decode_batch, encode_batch
from onceflow.wire.batch import batches as batches_of
from onceflow.wire.errors import ErrorCode
from tests.broker.driven_broker import DrivenBroker, eventually
from tests.broker.raw_client import RawClient, batch_of, connected, milliseconds
from tests.broker.transactions.transactional_client import TransactionalClient


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[DrivenBroker]:
    with DrivenBroker(tmp_path / "data") as broker:
        yield broker


@pytest.fixture
def client(broker: DrivenBroker) -> Iterator[RawClient]:
    """Return a client with a topic `clicks`; the form of its first request to partition 0 is known."""
    with connected(broker.bootstrap) as client:
        client.create_topic("clicks", partitions=2)
        assert client.produce("clicks", 0, batch_of(b"the first")).base_offset == 0
        yield client


@pytest.fixture
def unparsed(monkeypatch: pytest.MonkeyPatch, client: RawClient) -> None:
    """Make every further Produce request that is parsed close its connection."""

    def parse_request(*_arguments: object, **_options: object) -> None:
        raise AssertionError("parsed")

    monkeypatch.setattr(produce, "parse_request", parse_request)


@pytest.mark.usefixtures("unparsed")
def test_the_second_request_is_not_parsed(client: RawClient) -> None:
    for number in range(1, 4):
        assert client.produce("clicks", 0, batch_of(b"the next", b"and one more")).base_offset == 2 * number - 1
    (fetched,) = client.fetch([("clicks", 0, 0)])
    assert fetched.high_watermark == 7
    client.send_batch("clicks", 1, batch_of(b"elsewhere"))
    assert client.receive_frame() == b"", "another partition's first request is parsed"


@pytest.mark.usefixtures("unparsed")
def test_refusals_match_the_first_request(client: RawClient) -> None:
    damaged = batch_of(b"damaged")
    damaged[-1] ^= 1
    response = client.produce("clicks", 0, damaged)
    assert (response.error_code, response.base_offset) == (ErrorCode.corrupt_message, -1)
    assert response.error_message is not None
    assert "the bytes changed on their way" in response.error_message
    assert client.produce("clicks", 0, b"").error_code == ErrorCode.invalid_record
    assert client.produce("clicks", 0, b"no batch").error_code != ErrorCode.none
    assert client.produce("clicks", 0, batch_of(b"right")).base_offset == 1


@pytest.mark.usefixtures("unparsed")
def test_deleted_and_recreated_topics(client: RawClient) -> None:
    client.ask(apis.DELETE_TOPICS, 5, topic_names=["clicks"], timeout=milliseconds(10_000))
    assert client.produce("clicks", 0, batch_of(b"nowhere")).error_code == ErrorCode.unknown_topic_or_partition
    wanted = {"name": "clicks", "num_partitions": 1, "replication_factor": 1, "assignments": (), "configs": ()}

    def is_created() -> bool:
        response = client.ask(apis.CREATE_TOPICS, 7, topics=[wanted], timeout=milliseconds(10_000), validate_only=False)
        return bool(response.topics[0].error_code == 0)

    eventually(is_created, "the name is free again")
    assert client.produce("clicks", 0, batch_of(b"somewhere")).base_offset == 0


def test_acks_0_gets_no_response(client: RawClient, caplog: pytest.LogCaptureFixture) -> None:
    client.send_batch("clicks", 0, batch_of(b"silent"), acks=0)
    client.send_batch("clicks", 0, batch_of(b"silent"), acks=0)
    assert client.produce("clicks", 0, batch_of(b"behind both")).base_offset == 3
    client.send_batch("clicks", 0, b"no batch", acks=0)
    assert client.receive_frame() == b""
    assert "acks=0, INVALID_RECORD" in caplog.text


def test_refused_requests_are_not_remembered(broker: DrivenBroker, client: RawClient) -> None:
    def count() -> int:
        return broker.call(lambda node: len(node.known_requests))

    assert count() == 1
    for number in range(10):
        assert client.produce(f"unknown-{number}", 0, batch_of(b"x")).error_code
    assert count() == 1
    assert client.produce("clicks", 1, batch_of(b"x")).error_code == ErrorCode.none
    assert count() == 2


def test_each_acks_is_remembered_separately(client: RawClient, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    expect = PendingProduce.expect

    def counted(pending: PendingProduce, *arguments: Any) -> Any:
        asked.append(pending.acks)
        return expect(pending, *arguments)

    monkeypatch.setattr(PendingProduce, "expect", counted)
    for number, acks in enumerate((1, -1, 1, -1), 1):
        assert client.produce("clicks", 0, batch_of(b"x"), acks=acks).base_offset == number
    assert asked == [-1, -1], "of acks=1 nothing waits for the disk"


def test_every_transactional_batch_is_checked(client: RawClient) -> None:
    producer = TransactionalClient(client, "tx")
    producer.init_until_done()
    assert producer.add(("clicks", 0)) == ErrorCode.none
    for _ in range(3):
        assert producer.produce("clicks", b"inside") == ErrorCode.none
    assert producer.end(commit=True) == ErrorCode.none
    assert producer.produce("clicks", b"too late") == ErrorCode.invalid_txn_state


def test_a_waiting_batch_keeps_its_own_copy(client: RawClient) -> None:
    client.create_topic("table", cleanup_policy="compact")
    batches = [
        encode_batch([Record(number, 1_700_000_000_000, b"key", bytes([letter]) * 50) for number in range(300)])
        for letter in range(20)
    ]
    for batch in batches:
        client.send_batch("table", 0, batch)
    assert [client.receive_produced().base_offset for _ in batches] == [300 * number for number in range(20)]
    (fetched,) = client.fetch([("table", 0, 0)])
    values = [
        record.value
        for position, _header in batches_of(fetched.records)
        for record in decode_batch(fetched.records, position)
    ]
    assert values == [bytes([number // 300]) * 50 for number in range(6000)]


@pytest.mark.parametrize(
    ("failure", "error_code"),
    [
        (OSError("the segment cannot be read"), ErrorCode.kafka_storage_error),
        (KeyError("x"), ErrorCode.unknown_server_error),
    ],
)
def test_an_unappended_batch_is_not_acknowledged(
    client: RawClient, monkeypatch: pytest.MonkeyPatch, failure: Exception, error_code: ErrorCode
) -> None:
    client.create_topic("table", partitions=2, cleanup_policy="compact")

    def append(*_arguments: object, **_options: object) -> None:
        raise failure

    monkeypatch.setattr(PartitionLog, "append", append)
    batch = encode_batch([Record(number, 1_700_000_000_000, b"key", b"value") for number in range(300)])
    response = client.produce("table", 1, batch)
    assert (response.partition, response.error_code, response.base_offset) == (1, error_code, -1)


def test_a_watched_loop_reports_every_request(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with DrivenBroker(tmp_path / "data", loop_block_report_ms=0) as broker, connected(broker.bootstrap) as client:
        client.create_topic("clicks")
        assert [client.produce("clicks", 0, batch_of(b"same")).base_offset for _ in range(3)] == [0, 1, 2]
    assert sum(message.startswith("Produce of ") for message in caplog.messages) == 3
