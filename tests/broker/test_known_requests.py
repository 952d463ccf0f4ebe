"""A producer's second request is not parsed any more, and answered as the first one would be."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from onceflow.wire import apis, produce
from onceflow.wire.errors import ErrorCode
from tests.broker.driven_broker import DrivenBroker, eventually
from tests.broker.raw_client import RawClient, batch_of, connected, milliseconds


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[DrivenBroker]:
    with DrivenBroker(tmp_path / "data") as broker:
        yield broker


@pytest.fixture
def client(broker: DrivenBroker) -> Iterator[RawClient]:
    """Of a topic `clicks`; its first request to partition 0 is known."""
    with connected(broker.bootstrap) as client:
        client.create_topic("clicks", partitions=2)
        assert client.produce("clicks", 0, batch_of(b"the first")).base_offset == 0
        yield client


@pytest.fixture
def unparsed(monkeypatch: pytest.MonkeyPatch, client: RawClient) -> None:
    """From now on a Produce request that is parsed closes its connection."""

    def parse_request(*_arguments: object, **_options: object) -> None:
        raise AssertionError("parsed")

    monkeypatch.setattr(produce, "parse_request", parse_request)


@pytest.mark.usefixtures("unparsed")
def test_the_second_request_is_answered_without_being_parsed(client: RawClient) -> None:
    for number in range(1, 4):
        assert client.produce("clicks", 0, batch_of(b"the next", b"and one more")).base_offset == 2 * number - 1
    (fetched,) = client.fetch([("clicks", 0, 0)])
    assert fetched.high_watermark == 7
    client.send_batch("clicks", 1, batch_of(b"elsewhere"))
    assert client.receive_frame() == b"", "another partition's first request is parsed"


@pytest.mark.usefixtures("unparsed")
def test_it_is_refused_as_the_first_would_be(client: RawClient) -> None:
    damaged = batch_of(b"damaged")
    damaged[-1] ^= 1
    answer = client.produce("clicks", 0, damaged)
    assert (answer.error_code, answer.base_offset) == (ErrorCode.corrupt_message, -1)
    assert answer.error_message is not None
    assert "the bytes changed on their way" in answer.error_message
    assert client.produce("clicks", 0, b"").error_code == ErrorCode.invalid_record
    assert client.produce("clicks", 0, b"no batch").error_code != ErrorCode.none
    assert client.produce("clicks", 0, batch_of(b"right")).base_offset == 1


@pytest.mark.usefixtures("unparsed")
def test_a_topic_that_is_gone_is_not_known_any_more_and_a_new_one_of_its_name_is_another(client: RawClient) -> None:
    client.ask(apis.DELETE_TOPICS, 5, topic_names=["clicks"], timeout=milliseconds(10_000))
    assert client.produce("clicks", 0, batch_of(b"nowhere")).error_code == ErrorCode.unknown_topic_or_partition
    wanted = {"name": "clicks", "num_partitions": 1, "replication_factor": 1, "assignments": (), "configs": ()}

    def is_created() -> bool:
        answer = client.ask(apis.CREATE_TOPICS, 7, topics=[wanted], timeout=milliseconds(10_000), validate_only=False)
        return bool(answer.topics[0].error_code == 0)

    eventually(is_created, "the name is free again")
    assert client.produce("clicks", 0, batch_of(b"somewhere")).base_offset == 0


def test_acks_0_gets_no_answer_and_an_error_closes(client: RawClient, caplog: pytest.LogCaptureFixture) -> None:
    client.send_batch("clicks", 0, batch_of(b"silent"), acks=0)
    client.send_batch("clicks", 0, batch_of(b"silent"), acks=0)
    assert client.produce("clicks", 0, batch_of(b"behind both")).base_offset == 3
    client.send_batch("clicks", 0, b"no batch", acks=0)
    assert client.receive_frame() == b""
    assert "acks=0, invalid_record" in caplog.text


def test_a_watched_loop_tells_of_every_request(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with DrivenBroker(tmp_path / "data", loop_block_report_ms=0) as broker, connected(broker.bootstrap) as client:
        client.create_topic("clicks")
        assert [client.produce("clicks", 0, batch_of(b"same")).base_offset for _ in range(3)] == [0, 1, 2]
    assert caplog.text.count(" Produce of ") == 3
