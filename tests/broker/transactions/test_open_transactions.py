"""Open transactions whose records or topic are deleted: they end, and readers pass them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from onceflow.testing import FaultyDisk
from onceflow.wire import apis
from onceflow.wire.errors import ErrorCode
from tests.broker.driven_broker import DrivenBroker, eventually
from tests.broker.raw_client import RawClient, batch_of, connected, milliseconds
from tests.broker.transactions.transactional_client import TransactionalClient, committed_values

NONE = ErrorCode.none
TIMEOUT = milliseconds(10_000)


@pytest.fixture
def driven(tmp_path: Path) -> Iterator[DrivenBroker]:
    data = tmp_path / "disk"
    data.mkdir()
    with DrivenBroker(data, disk=FaultyDisk(data), transaction_abort_interval_ms=10) as broker:
        yield broker


def begun(client: RawClient, topic: str, *values: bytes, transactional_id: str = "x") -> TransactionalClient:
    """A producer with these values in an open transaction, each a batch of its own."""
    producer = TransactionalClient(client, transactional_id)
    producer.init_until_done()
    assert producer.add((topic, 0)) == NONE
    for value in values:
        assert producer.produce(topic, value) == NONE
    return producer


def delete_topic(client: RawClient, topic: str) -> None:
    deleted = client.ask(apis.DELETE_TOPICS, 5, topic_names=[topic], timeout=TIMEOUT)
    assert deleted.responses[0].error_code == NONE


def delete_records(client: RawClient, topic: str, offset: int) -> None:
    topics = [{"name": topic, "partitions": [{"partition_index": 0, "offset": offset}]}]
    response = client.ask(apis.DELETE_RECORDS, 2, topics=topics, timeout=TIMEOUT)
    assert response.topics[0].partitions[0].error_code == NONE


def offsets(client: RawClient, topic: str, offset: int) -> tuple[int, int]:
    """(last stable offset, high watermark), which a reader of committed data gets."""
    (fetched,) = client.fetch([(topic, 0, offset)], isolation_level=1)
    assert fetched.error_code == NONE
    return fetched.last_stable_offset, fetched.high_watermark


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("deleted_up_to", [1, 3, 4])
@pytest.mark.parametrize("crash", [False, True])
def test_deleted_records_do_not_hold_readers(
    driven: DrivenBroker, commit: bool, deleted_up_to: int, crash: bool
) -> None:
    """Its first records, all of them, and one of another producer behind them."""
    with connected(driven.bootstrap) as client:
        client.create_topic("t", file_delete_delay_ms="0")
        producer = begun(client, "t", b"0", b"1")
        log = driven.log("t")
        driven.call(lambda _node: log.roll())
        assert producer.produce("t", b"2") == NONE
        assert client.produce("t", 0, batch_of(b"plain")).error_code == NONE
        delete_records(client, "t", deleted_up_to)
        assert offsets(client, "t", deleted_up_to) == (deleted_up_to, 4)
    if crash:
        driven.power_cycle(1, drop_all=True)
    with connected(driven.bootstrap) as client:
        producer.client = client
        assert producer.produce("t", b"3", sequence=3) == NONE
        assert producer.end(commit=commit) == NONE
        assert offsets(client, "t", deleted_up_to) == (6, 6)
        left = [b"0", b"1", b"2"][deleted_up_to:] if commit else []
        plain = [b"plain"] if deleted_up_to < 4 else []
        assert committed_values(client, "t", begin=deleted_up_to) == [*left, *plain, *([b"3"] if commit else [])]


@pytest.mark.parametrize("commit", [True, False])
def test_recreated_topic_has_no_old_transaction(driven: DrivenBroker, commit: bool) -> None:
    with connected(driven.bootstrap) as client:
        client.create_topic("t")
        client.create_topic("kept")
        producer = begun(client, "t", b"old")
        assert producer.add(("kept", 0)) == NONE
        assert producer.produce("kept", b"kept") == NONE
        delete_topic(client, "t")
        client.create_topic("t")
        assert client.produce("t", 0, batch_of(b"plain")).error_code == NONE
        assert offsets(client, "t", 0) == (1, 1)
        assert producer.end(commit=commit) == NONE
        assert producer.state() == ("CompleteCommit" if commit else "CompleteAbort")
        assert committed_values(client, "t") == [b"plain"]
        assert committed_values(client, "kept") == ([b"kept"] if commit else [])
        last_stable_offset, high_watermark = offsets(client, "t", 0)
        assert last_stable_offset == high_watermark


def test_transaction_of_deleted_topic_times_out(driven: DrivenBroker) -> None:
    with connected(driven.bootstrap) as client:
        client.create_topic("t")
        producer = begun(client, "t", b"gone")
        delete_topic(client, "t")
        driven.power_cycle(1, drop_all=True)
    with connected(driven.bootstrap) as client:
        producer.client = client
        assert producer.state() == "Ongoing"
        driven.clock.advance_ms(60_001)
        eventually(lambda: producer.state() == "CompleteAbort", "the transaction is aborted")
        client.create_topic("t")
        producer.init_until_done()
        producer.run("t", b"v")
        assert committed_values(client, "t") == [b"v"]


def test_earliest_open_transaction_holds_readers(driven: DrivenBroker) -> None:
    with connected(driven.bootstrap) as client:
        client.create_topic("t")
        producers = [begun(client, "t", b"%d" % number, transactional_id=f"x{number}") for number in range(5)]
        for number in (4, 1, 2):
            assert producers[number].end(commit=number != 2) == NONE
            assert offsets(client, "t", 0) == (0, client.fetch([("t", 0, 0)])[0].high_watermark)
        assert producers[0].end(commit=False) == NONE
        assert offsets(client, "t", 0)[0] == 3, "the next open one is the fourth"
        driven.power_cycle(1, drop_all=True)
    with connected(driven.bootstrap) as client:
        assert offsets(client, "t", 0)[0] == 3
        producers[3].client = client
        assert producers[3].end(commit=True) == NONE
        assert committed_values(client, "t") == [b"1", b"3", b"4"]
