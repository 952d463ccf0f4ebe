"""Fetch requests that wait: what a wake-up costs, what they cost together, and which records they are answered with."""

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from onceflow.broker import fetch_handler
from onceflow.broker.fetch_handler import PendingFetch
from onceflow.broker.turn import LARGE_BYTES_PER_TURN, Turn
from onceflow.log.partition import PartitionLog
from onceflow.wire import fetch
from onceflow.wire.batch import batches
from onceflow.wire.fetch import FetchPartition
from tests.broker.driven_broker import DrivenBroker, eventually
from tests.broker.raw_client import FETCH_VERSION, RawClient, batch_of, connected, fetch_request

WAIT_MS = 60_000
PARTITIONS = 20
PARTITIONS_MAX = 40


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[DrivenBroker]:
    with DrivenBroker(tmp_path / "data", parked_fetch_partitions_max=PARTITIONS_MAX) as driven:
        with connected(driven.bootstrap) as client:
            client.create_topic("t", PARTITIONS)
        yield driven


def parked_partitions(broker: DrivenBroker) -> int:
    return broker.call(lambda node: node.parked_fetches.partition_count)


def park(broker: DrivenBroker, client: RawClient, partitions: Sequence[int], min_bytes: int = 1_000_000) -> None:
    """Send a Fetch of these partitions, and wait until the broker waits for their records."""
    before = parked_partitions(broker)
    client.send_fetch([("t", each, 0) for each in partitions], wait_ms=WAIT_MS, min_bytes=min_bytes)
    eventually(lambda: parked_partitions(broker) == before + len(set(partitions)), "the fetch waits")


def test_a_wake_up_reads_the_partition_that_moved(broker: DrivenBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """One read for each record that arrives; all partitions again once, when there is enough."""
    read: list[str] = []
    really_read = PartitionLog.read

    def counted(log: PartitionLog, *arguments: Any, **options: Any) -> Any:
        read.append(log.name)
        return really_read(log, *arguments, **options)

    batch = batch_of(b"x" * 1000)
    with connected(broker.bootstrap) as reader, connected(broker.bootstrap) as writer:
        park(broker, reader, range(PARTITIONS), min_bytes=3 * len(batch))
        monkeypatch.setattr(PartitionLog, "read", counted)
        writer.produce("t", 3, batch)
        writer.produce("t", 7, batch)
        eventually(lambda: read == ["t-3", "t-7"], "a look at each of the two")
        writer.produce("t", 3, batch)
        fetched = reader.receive_fetched()
    assert read[2:] == ["t-3", *(f"t-{partition}" for partition in range(PARTITIONS))]
    assert [len(list(batches(each.records))) for each in fetched if len(each.records)] == [2, 1]
    assert parked_partitions(broker) == 0


def test_an_error_wakes_a_fetch_that_has_not_enough(broker: DrivenBroker) -> None:
    with connected(broker.bootstrap) as reader, connected(broker.bootstrap) as writer:
        park(broker, reader, [0, 1])
        writer.produce("t", 0, batch_of(b"x"))
        broker.call(lambda node: node.partitions.withdraw("t"))
        assert [each.error_code for each in reader.receive_fetched()] == [3, 3]


def test_a_partition_named_twice_is_fetched_once(broker: DrivenBroker) -> None:
    """Apache Kafka keeps the first place and the last values."""
    with connected(broker.bootstrap) as client:
        for value in (b"a", b"b"):
            client.produce("t", 0, batch_of(value))
        first, second = client.fetch([("t", 0, 0), ("t", 1, 0), ("t", 0, 1)])
        assert (first.partition, second.partition) == (0, 1)
        assert [header.base_offset for _, header in batches(first.records)] == [1]
        request = fetch_request([], wait_ms=WAIT_MS, min_bytes=1_000_000)
        request.topics.append(("t", [FetchPartition(0, -1, 2, -1, 1000)] * 8_000))
        client.socket.sendall(fetch.encode_request(FETCH_VERSION, 1, "raw", request))
        eventually(lambda: parked_partitions(broker), "the first fetch waits")
        assert parked_partitions(broker) == 1


def test_the_fetches_that_name_most_are_answered_early(broker: DrivenBroker) -> None:
    """Beyond the limit, the largest first, until three quarters of it are left."""
    with (
        connected(broker.bootstrap) as small,
        connected(broker.bootstrap) as large,
        connected(broker.bootstrap) as larger,
        connected(broker.bootstrap) as last,
    ):
        park(broker, small, range(2))
        park(broker, large, range(18))
        park(broker, larger, range(19))
        last.send_fetch([("t", each, 0) for each in range(10)], wait_ms=WAIT_MS)
        assert [each.error_code for each in larger.receive_fetched()] == [0] * 19
        eventually(lambda: parked_partitions(broker) == 2 + 18 + 10, "the others wait")


@pytest.mark.parametrize("behind", [0, 50])
def test_a_consumer_that_leaves_frees_its_partitions(broker: DrivenBroker, behind: int) -> None:
    """Also where further requests of its fill the buffer, so that its end stays in the socket."""
    with connected(broker.bootstrap) as client:
        park(broker, client, range(PARTITIONS))
        for _ in range(behind):
            client.send_fetch([("t", each, 0) for each in range(PARTITIONS)], wait_ms=WAIT_MS)
    eventually(lambda: parked_partitions(broker) == 0, "the partitions are free")
    assert not any(broker.call(lambda node: [each.watchers for each in node.partitions]))


def test_a_stop_answers_waiting_fetches(broker: DrivenBroker) -> None:
    with connected(broker.bootstrap) as client:
        park(broker, client, [0])
        broker.stop()
        assert [each.error_code for each in client.receive_fetched()] == [0]
        broker.start()


def test_large_fetches_are_answered_in_turns_of_their_own(
    broker: DrivenBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One record that completes several of them does not gather them all at once."""
    monkeypatch.setattr(fetch_handler, "SMALL_PARTITIONS_MAX", 5)
    monkeypatch.setattr(fetch_handler, "ENTRY_BYTES", LARGE_BYTES_PER_TURN)
    turn = [0]
    gathered: list[int] = []
    really_gather = PendingFetch._gather

    def counted(pending: PendingFetch) -> Any:
        gathered.append(turn[0])
        return really_gather(pending)

    def count() -> None:
        turn[0] += 1
        asyncio.get_running_loop().call_soon(count)

    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(connected(broker.bootstrap)) for _ in range(4)]
        for client in clients:
            park(broker, client, range(8), min_bytes=1)
        broker.call(lambda _: count())
        monkeypatch.setattr(PendingFetch, "_gather", counted)
        with connected(broker.bootstrap) as writer:
            assert writer.produce("t", 0, batch_of(b"x")).error_code == 0
        for client in clients:
            assert [len(list(batches(each.records))) for each in client.receive_fetched()] == [1] + [0] * 7
    assert len(gathered) == len(set(gathered)) == 4


def test_a_large_fetch_whose_time_ends_while_it_waits_for_its_turn(
    broker: DrivenBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is answered, though the records that woke it were not enough."""
    monkeypatch.setattr(fetch_handler, "SMALL_PARTITIONS_MAX", 0)
    due: list[Any] = []
    with connected(broker.bootstrap) as reader, connected(broker.bootstrap) as writer:
        park(broker, reader, [0, 1], min_bytes=50)
        monkeypatch.setattr(Turn, "admits", lambda _turn, _size, work: due.append(work))
        assert writer.produce("t", 0, batch_of(b"x")).error_code == 0
        eventually(lambda: due, "the fetch asks for its turn")
        (pending,) = broker.call(lambda node: list(node.parked_fetches._counts))
        broker.call(lambda _: setattr(pending, "_wanted_bytes", 10_000))
        broker.call(lambda _: pending.answer_soon())
        assert len(due) == 1
        broker.call(lambda _: due[0]())
        assert [len(list(batches(each.records))) for each in reader.receive_fetched()] == [1, 0]


def test_a_fetch_that_cannot_be_read_again_closes_its_connection(
    broker: DrivenBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    with connected(broker.bootstrap) as reader, connected(broker.bootstrap) as writer:
        park(broker, reader, [0])
        monkeypatch.setattr(PendingFetch, "_look", lambda *_arguments: 1 // 0)
        assert writer.produce("t", 0, batch_of(b"x")).error_code == 0
        assert reader.receive_frame() == b""
        assert parked_partitions(broker) == 0
