"""Power cuts at every step of a transaction, over a real socket: it is atomic, with the reported outcome."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from onceflow.broker.storage import group_commit
from onceflow.broker.transactions.transaction import TransactionState
from onceflow.testing import FaultyDisk
from onceflow.wire import apis
from onceflow.wire.errors import ErrorCode, WireError
from tests.broker.driven_broker import DrivenBroker, PoweredBroker, eventually, hung_up_without_power
from tests.broker.raw_client import batch_of, connected, milliseconds
from tests.broker.transactions.responses import offset_fetch
from tests.broker.transactions.transactional_client import TransactionalClient, committed_values, patiently

TOPICS = ("left", "right")
GROUP = "group"
NONE = ErrorCode.none


class Acknowledged:
    """Responses to the producer of one transaction before the power cut."""

    def __init__(self) -> None:
        self.producers: set[tuple[int, int]] = set()
        self.end = False
        self.is_over = False


def one_transaction(producer: TransactionalClient, acknowledged: Acknowledged, number: int, *, commit: bool) -> None:
    """All its requests, each recorded with its response."""
    producer.init_until_done()
    acknowledged.producers.add(producer.producer)
    for topic in TOPICS:
        assert producer.add((topic, 0)) == NONE
        assert producer.produce(topic, b"%d" % number) == NONE
    assert producer.add_offsets(GROUP) == NONE
    assert producer.commit_offset(GROUP, TOPICS[0], number) == NONE
    acknowledged.end = producer.end(commit=commit) == NONE
    acknowledged.is_over = True


def outcome(broker: DrivenBroker, number: int) -> set[bool]:
    """Whether each part of the transaction is there, once nothing of it is open any more."""
    with connected(broker.bootstrap) as client:
        producer = TransactionalClient(client, "x")
        producer.init_until_done()
        parts = {b"%d" % number in committed_values(client, topic) for topic in TOPICS}
        for topic in TOPICS:
            (fetched,) = client.fetch([(topic, 0, 0)])
            assert fetched.last_stable_offset == fetched.high_watermark, "nothing hangs"
            values = committed_values(client, topic)
            assert len(values) == len(set(values)), "nothing is there twice"
        error_code, offset = offset_fetch(producer, GROUP, TOPICS[0], stable=True)
        assert error_code == NONE
        return parts | {offset == number}


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
@pytest.mark.parametrize("drop_all", [True, False], ids=["all unsynced lost", "some unsynced lost"])
def test_power_cut_leaves_transaction_atomic(tmp_path: Path, commit: bool, drop_all: bool) -> None:
    data = tmp_path / "disk"
    data.mkdir()
    given: set[tuple[int, int]] = set()
    with DrivenBroker(data, disk=FaultyDisk(data), stop_timeout_ms=1) as broker:
        assert isinstance(broker.disk, FaultyDisk)
        with connected(broker.bootstrap) as client:
            for topic in TOPICS:
                client.create_topic(topic)
        seen = set()
        for operations in range(60):
            acknowledged = Acknowledged()
            with connected(broker.bootstrap) as client, hung_up_without_power(broker.disk, client):
                broker.disk.cut_power_after(operations)
                try:
                    one_transaction(TransactionalClient(client, "x"), acknowledged, operations, commit=commit)
                except (AssertionError, OSError, WireError):
                    assert not acknowledged.is_over
            broker.power_cycle(operations, drop_all=drop_all)
            assert not given & acknowledged.producers, "an epoch was given twice"
            given |= acknowledged.producers
            (is_there,) = outcome(broker, operations)
            seen.add(is_there)
            assert is_there == commit or not acknowledged.end
            assert not is_there or commit
            if acknowledged.is_over and acknowledged.end:
                print(f"{operations} crash points")
                break
        else:
            raise AssertionError("the transaction never came to its end")
    assert seen == {False, True} if commit else {False}


@contextmanager
def nothing_is_synced() -> Iterator[None]:
    """The disk takes its time meanwhile; a power cut would take all that is written now."""
    is_over = threading.Event()
    run = group_commit._run

    def held(points: group_commit.Round, is_in_place: Callable[[], bool] | None) -> group_commit.FinishedRound:
        assert is_over.wait(20)
        return run(points, is_in_place)

    with mock.patch.object(group_commit, "_run", held):
        try:
            yield
        finally:
            is_over.set()


def test_no_response_reveals_undurable_state(tmp_path: Path) -> None:
    with DrivenBroker(tmp_path / "data") as broker, ExitStack() as stack, ThreadPoolExecutor(8) as pool:

        def client_of(producer: tuple[int, int]) -> TransactionalClient:
            client = TransactionalClient(stack.enter_context(connected(broker.bootstrap)), "x")
            client.producer = producer
            return client

        def state() -> TransactionState:
            return broker.call(lambda node: node.transactions.at(0).coordinator.transactions["x"].state)

        first = client_of((-1, -1))
        first.client.create_topic("t")
        old = first.init_until_done()
        assert first.add(("t", 0)) == NONE
        assert first.add_offsets(GROUP) == NONE
        with nothing_is_synced():
            produced = pool.submit(client_of(old).produce, "t", b"v")
            eventually(lambda: broker.log("t").log_end_offset, "the batch is in the log")
            described = pool.submit(client_of(old).open_transactions, "t")
            fenced = [pool.submit(client_of(old).init)]
            eventually(lambda: state() is TransactionState.PREPARE_ABORT, "the producer is fenced")
            fenced += [
                pool.submit(client_of(old).produce, "t", b"v"),
                pool.submit(client_of(old).commit_offset, GROUP, "t", 1),
                pool.submit(client_of(old).end, commit=True),
                pool.submit(client_of(old).add, ("t", 0)),
            ]
            shown = pool.submit(client_of(old).state)
            early: set[Future[Any]] = wait([produced, described, shown, *fenced], timeout=0.3).done  # type: ignore[arg-type]
            assert not early
        assert produced.result() == NONE
        assert described.result() == [(*old, 0)]
        assert shown.result() == "PrepareAbort"
        assert [item.result() for item in fenced] == [
            ErrorCode.concurrent_transactions,
            ErrorCode.invalid_producer_epoch,
            ErrorCode.invalid_producer_epoch,
            ErrorCode.producer_fenced,
            ErrorCode.producer_fenced,
        ]


def test_clean_stop_keeps_transaction_open(tmp_path: Path) -> None:
    with DrivenBroker(tmp_path / "data") as broker, connected(broker.bootstrap) as client:
        client.create_topic("t")
        producer = TransactionalClient(client, "x")
        producer.init_until_done()
        assert producer.add(("t", 0)) == NONE
        assert producer.produce("t", b"v") == NONE
    with DrivenBroker(tmp_path / "data", clock=broker.clock) as broker, connected(broker.bootstrap) as client:
        producer.client = client
        assert producer.state() == "Ongoing"
        assert producer.end(commit=True) == NONE
        assert committed_values(client, "t") == [b"v"]


def test_flush_policy_does_not_apply_to_transactions(tmp_path: Path) -> None:
    data = tmp_path / "disk"
    data.mkdir()
    with DrivenBroker(data, disk=FaultyDisk(data)) as broker:
        with connected(broker.bootstrap) as client:
            client.create_topic("lazy", flush_messages="1000000")
            producer = TransactionalClient(client, "x")
            producer.init_until_done()
            assert producer.add(("lazy", 0)) == NONE
            assert producer.produce("lazy", b"early?", acks=1) == NONE
        broker.power_cycle(1, drop_all=True)
        with connected(broker.bootstrap) as client:
            producer.client = client
            assert producer.end(commit=True) == NONE
            eventually(lambda: producer.state() == "CompleteCommit", "that its markers are durable is recorded")
        broker.power_cycle(2, drop_all=True)
        with connected(broker.bootstrap) as client:
            assert committed_values(client, "lazy") == [b"early?"]
            assert patiently(TransactionalClient(client, "x").init) == NONE


@pytest.mark.parametrize("acks", [1, -1])
def test_transactional_record_waits_for_sync(tmp_path: Path, acks: int) -> None:
    with DrivenBroker(tmp_path / "data") as broker, connected(broker.bootstrap) as client:
        client.create_topic("lazy", flush_messages="1000000")
        producer = TransactionalClient(client, "x")
        producer.init_until_done()
        assert producer.add(("lazy", 0)) == NONE
        with ThreadPoolExecutor(1) as pool:
            with nothing_is_synced():
                produced = pool.submit(producer.produce, "lazy", b"v", acks=acks)
                eventually(lambda: broker.log("lazy").high_watermark, "the flush policy shows the record")
                assert not wait([produced], timeout=0.3).done
            assert produced.result() == NONE


def test_restored_topic_has_no_open_transaction(powered: PoweredBroker) -> None:
    with connected(powered.bootstrap) as client:
        client.create_topic("t")
        client.create_topic("u")
        producer, other = TransactionalClient(client, "x"), TransactionalClient(client, "y")
        producer.init_until_done()
        other.init_until_done()
        assert patiently(lambda: producer.add(("t", 0))) == ErrorCode.none
        assert producer.produce("t", b"aborted") == ErrorCode.none
        powered.disk.fail_next_syncs()
        deleted = client.ask(apis.DELETE_TOPICS, 5, topic_names=["t"], timeout=milliseconds(5000))
        assert deleted.responses[0].error_code == ErrorCode.kafka_storage_error
        assert producer.end(commit=False) == ErrorCode.none
        # Its record is synced with all that are before it: that the abort is complete must not be one of them.
        assert patiently(lambda: other.add(("u", 0))) == ErrorCode.none
    powered.power_cycle(1, drop_all=True)
    with connected(powered.bootstrap) as client:
        producer = TransactionalClient(client, "x")
        eventually(lambda: producer.state() == "CompleteAbort", "the transaction is over")
        assert producer.open_transactions("t") == []
        assert committed_values(client, "t") == []


def test_a_new_topic_gets_no_old_marker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of a transaction is durable before the deletion of a topic that it wrote to."""
    monkeypatch.setattr(group_commit, "SOON_S", 3600)
    data = tmp_path / "disk"
    data.mkdir()
    with DrivenBroker(data, disk=FaultyDisk(data)) as broker:
        with connected(broker.bootstrap) as client:
            client.create_topic("left")
            producer = TransactionalClient(client, "x")
            producer.init_until_done()
            producer.run("left", b"old")
            deleted = client.ask(apis.DELETE_TOPICS, 5, topic_names=["left"], timeout=milliseconds(5000))
            assert not deleted.responses[0].error_code
            client.create_topic("left")
            assert not client.produce("left", 0, batch_of(b"new")).error_code
        broker.power_cycle(1, drop_all=True)
        with connected(broker.bootstrap) as client:
            TransactionalClient(client, "x").init_until_done()
        assert broker.log("left").log_end_offset == 1
