"""Fetch requests that wait: the cost of a wake-up, their memory, and the records in their responses."""

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from onceflow.broker.handlers import fetch as fetch_handler
from onceflow.broker.handlers.fetch import PendingFetch
from onceflow.broker.loop.deferred import LARGE_WORK_PER_TURN, DeferredCalls
from onceflow.log.visible import VisibleLog
from onceflow.wire import apis, fetch
from onceflow.wire.batch import batches
from onceflow.wire.fetch import FetchPartition
from tests.broker.driven_broker import DrivenBroker, eventually
from tests.broker.handlers.test_admin_apis import create
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
    client.send_fetch([("t", partition, 0) for partition in partitions], wait_ms=WAIT_MS, min_bytes=min_bytes)
    eventually(lambda: parked_partitions(broker) == before + len(set(partitions)), "the fetch waits")


def test_a_wake_up_reads_one_partition(broker: DrivenBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """One read for each new record; one of all partitions once there is enough."""
    read: list[str] = []
    really_read = VisibleLog.read

    def counted(log: VisibleLog, *arguments: Any, **options: Any) -> Any:
        read.append(log.name)
        return really_read(log, *arguments, **options)

    batch = batch_of(b"x" * 1000)
    with connected(broker.bootstrap) as reader, connected(broker.bootstrap) as writer:
        park(broker, reader, range(PARTITIONS), min_bytes=3 * len(batch))
        monkeypatch.setattr(VisibleLog, "read", counted)
        writer.produce("t", 3, batch)
        writer.produce("t", 7, batch)
        eventually(lambda: read == ["t-3", "t-7"], "a look at each of the two")
        writer.produce("t", 3, batch)
        fetched = reader.receive_fetched()
    assert read[2:] == ["t-3", *(f"t-{partition}" for partition in range(PARTITIONS))]
    assert [len(list(batches(partition.records))) for partition in fetched if len(partition.records)] == [2, 1]
    assert parked_partitions(broker) == 0


def test_an_error_ends_a_waiting_fetch(broker: DrivenBroker) -> None:
    with connected(broker.bootstrap) as reader, connected(broker.bootstrap) as writer:
        park(broker, reader, [0, 1])
        writer.produce("t", 0, batch_of(b"x"))
        broker.call(lambda node: node.partitions.withdraw("t"))
        assert [result.error_code for result in reader.receive_fetched()] == [3, 3]


def test_a_partition_named_twice_is_fetched_once(broker: DrivenBroker) -> None:
    """Like Apache Kafka: the first position with the last values."""
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


def test_the_largest_fetches_are_ended_early(broker: DrivenBroker) -> None:
    """Beyond the limit, the largest are ended first, until three quarters of it are left."""
    with (
        connected(broker.bootstrap) as small,
        connected(broker.bootstrap) as large,
        connected(broker.bootstrap) as larger,
        connected(broker.bootstrap) as last,
    ):
        park(broker, small, range(2))
        park(broker, large, range(18))
        park(broker, larger, range(19))
        last.send_fetch([("t", number, 0) for number in range(10)], wait_ms=WAIT_MS)
        assert [result.error_code for result in larger.receive_fetched()] == [0] * 19
        eventually(lambda: parked_partitions(broker) == 2 + 18 + 10, "the others wait")


@pytest.mark.parametrize("behind", [0, 50])
def test_a_disconnected_consumer_frees_its_partitions(broker: DrivenBroker, behind: int) -> None:
    """Also if further requests fill the buffer, so that the end of the stream stays in the socket."""
    with connected(broker.bootstrap) as client:
        park(broker, client, range(PARTITIONS))
        for _ in range(behind):
            client.send_fetch([("t", number, 0) for number in range(PARTITIONS)], wait_ms=WAIT_MS)
    eventually(lambda: parked_partitions(broker) == 0, "the partitions are free")
    assert not any(broker.call(lambda node: [partition.watchers for partition in node.partitions]))


def test_a_stop_responds_to_waiting_fetches(broker: DrivenBroker) -> None:
    with connected(broker.bootstrap) as client:
        park(broker, client, [0])
        broker.stop()
        assert [result.error_code for result in client.receive_fetched()] == [0]
        broker.start()


def test_large_fetches_are_read_over_turns(broker: DrivenBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """One record that completes several fetches does not make all of them read at once."""
    monkeypatch.setattr(fetch_handler, "LARGE_REQUEST_BYTES", 0)
    monkeypatch.setattr(fetch_handler, "WORK_PER_PARTITION", LARGE_WORK_PER_TURN // 4)
    looks = [0]
    really_look = PendingFetch._read_one

    def counted(*arguments: Any) -> Any:
        looks[-1] += 1
        return really_look(*arguments)

    def count() -> None:
        looks.append(0)
        asyncio.get_running_loop().call_soon(count)

    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(connected(broker.bootstrap)) for _ in range(4)]
        monkeypatch.setattr(PendingFetch, "_read_one", counted)
        broker.call(lambda _: count())
        for client in clients:
            park(broker, client, range(8), min_bytes=1)
        with connected(broker.bootstrap) as writer:
            assert writer.produce("t", 0, batch_of(b"x")).error_code == 0
        for client in clients:
            assert [len(list(batches(partition.records))) for partition in client.receive_fetched()] == [1] + [0] * 7
    assert max(looks) == 4
    assert sum(looks) == 4 * (8 + 1 + 8)


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> list[Iterator[int]]:
    """Large work that is done when a test says so; every fetch is large."""
    due: list[Iterator[int]] = []
    monkeypatch.setattr(fetch_handler, "LARGE_REQUEST_BYTES", 0)
    monkeypatch.setattr(DeferredCalls, "add_large", lambda _turn, work, **_options: due.append(work))
    return due


def park_large(broker: DrivenBroker, client: RawClient, large: list[Iterator[int]], min_bytes: int) -> None:
    """Park a fetch of the partitions 0 and 1, and read both."""
    park(broker, client, [0, 1], min_bytes=min_bytes)
    eventually(lambda: large, "the fetch asks for its turn")
    broker.call(lambda _: list(large.pop()))


def test_a_topic_created_during_a_large_fetch(broker: DrivenBroker, large: list[Iterator[int]]) -> None:
    """Between its start and its turn: the topic is unknown to it, since nothing would wake it for new records."""
    with connected(broker.bootstrap) as reader, connected(broker.bootstrap) as other:
        reader.send_fetch([("t", 0, 0), ("made", 0, 0)], wait_ms=WAIT_MS, min_bytes=1)
        eventually(lambda: large, "the fetch asks for its turn")
        assert create(other, "made").error_code == 0
        broker.call(lambda _: list(large.pop()))
        assert [result.error_code for result in reader.receive_fetched()] == [0, 3]


def test_a_large_fetch_times_out_early(broker: DrivenBroker, large: list[Iterator[int]]) -> None:
    """It gets a response, though the records that woke it were not enough."""
    with connected(broker.bootstrap) as reader, connected(broker.bootstrap) as writer:
        park_large(broker, reader, large, min_bytes=50)
        assert writer.produce("t", 0, batch_of(b"x")).error_code == 0
        eventually(lambda: large, "the fetch asks for its turn")
        (pending,) = broker.call(lambda node: list(node.parked_fetches._counts))
        broker.call(lambda _: setattr(pending, "_wanted_bytes", 10_000))
        broker.call(lambda _: pending.respond_soon())
        assert len(large) == 1
        broker.call(lambda _: list(large.pop()))
        assert [len(list(batches(partition.records))) for partition in reader.receive_fetched()] == [1, 0]


def test_a_record_during_a_large_fetch(broker: DrivenBroker, large: list[Iterator[int]]) -> None:
    """The fetch has read this partition already, and does not forget the record."""
    batch = batch_of(b"x" * 1000)
    with connected(broker.bootstrap) as reader, connected(broker.bootstrap) as writer:
        park_large(broker, reader, large, min_bytes=2 * len(batch))
        for partition in (0, 1):
            assert writer.produce("t", partition, batch).error_code == 0
        eventually(lambda: large, "the fetch asks for its turn")
        (pending,) = broker.call(lambda node: list(node.parked_fetches._counts))
        broker.call(lambda _: setattr(pending, "_wanted_bytes", 3 * len(batch)))
        gathering = large.pop()
        broker.call(lambda _: next(gathering))
        assert writer.produce("t", 0, batch).error_code == 0
        broker.call(lambda _: list(gathering))
        eventually(lambda: large, "the fetch asks for its turn again")
        broker.call(lambda _: list(large.pop()))
        assert [len(list(batches(partition.records))) for partition in reader.receive_fetched()] == [2, 1]


def test_a_stop_during_a_large_fetch(broker: DrivenBroker, large: list[Iterator[int]]) -> None:
    """A stopping broker sends the response; dropping the rest of the work does not close the connection."""
    with connected(broker.bootstrap) as reader:
        park(broker, reader, [0, 1])
        eventually(lambda: large, "the fetch asks for its turn")
        broker.call(lambda _: next(large[0]))
        (pending,) = broker.call(lambda node: list(node.parked_fetches._counts))
        broker.call(lambda _: pending.respond_now())  # type: ignore[attr-defined]
        broker.call(lambda _: large.clear())
        assert [result.error_code for result in reader.receive_fetched()] == [0, 0]
        assert not reader.ask(apis.API_VERSIONS, 0).error_code


def test_a_failing_read_closes_the_connection(broker: DrivenBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    with connected(broker.bootstrap) as reader, connected(broker.bootstrap) as writer:
        park(broker, reader, [0])
        monkeypatch.setattr(PendingFetch, "_read_one", lambda *_arguments: 1 // 0)
        assert writer.produce("t", 0, batch_of(b"x")).error_code == 0
        assert reader.receive_frame() == b""
        assert parked_partitions(broker) == 0
