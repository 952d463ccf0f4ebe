"""A large request takes several turns of the loop; what happens between them must not be overlooked."""

import gc
import socket
import threading
import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from onceflow.broker.handlers.group_offsets import CheckedOffsets
from onceflow.broker.loop import slices
from onceflow.broker.network.request import DecodedRequest
from onceflow.wire import apis
from onceflow.wire.errors import ErrorCode, MalformedFrame
from tests.broker.driven_broker import InnerBroker
from tests.broker.groups.raw_group import RawGroup
from tests.broker.raw_client import RawClient, connected, milliseconds
from tests.broker.transactions.transactional_client import TransactionalClient

GROUP = "large"
PARTITIONS = 20
METADATA = "m" * 500
"""Enough for more than 8 KiB: smaller requests are handled in one turn."""
OUTSIDER: Mapping[str, Any] = {"generation_id_or_member_epoch": -1, "member_id": ""}
VERSION = 8


class Held:
    """Holds every large request before its last turn."""

    def __init__(self) -> None:
        self.began = threading.Event()
        self.released = threading.Event()

    def work(self, work: Iterator[int]) -> Iterator[int]:
        yield from work
        self.began.set()
        while not self.released.is_set():
            yield slices.WORK_PER_TURN


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    holding = Held()
    prepare = DecodedRequest.prepare

    def prepare_held(request: DecodedRequest, work: Iterator[int], done: Callable[[], None]) -> None:
        prepare(request, holding.work(work), done)

    monkeypatch.setattr(DecodedRequest, "prepare", prepare_held)
    yield holding
    holding.released.set()


@pytest.fixture
def broker(tmp_path: Path, held: Held) -> Iterator[InnerBroker]:
    with InnerBroker(tmp_path / "data") as running:
        yield running
        held.released.set()


def offsets(*topics: str, offset: int = 1, count: int = PARTITIONS, metadata: str = METADATA) -> list[dict[str, Any]]:
    entry = {"committed_offset": offset, "committed_leader_epoch": -1, "committed_metadata": metadata}
    return [
        {"name": topic, "partitions": [{"partition_index": index, **entry} for index in range(count)]}
        for topic in topics
    ]


def send(client: RawClient, topics: list[dict[str, Any]], member: Mapping[str, Any] = OUTSIDER) -> None:
    client.send(apis.OFFSET_COMMIT, VERSION, group_id=GROUP, group_instance_id=None, topics=topics, **member)


def codes(client: RawClient, api: int = apis.OFFSET_COMMIT, version: int = VERSION) -> dict[str, set[ErrorCode]]:
    """Return the different errors of each topic in the next response."""
    response = client.receive(api, version)
    return {topic.name: {ErrorCode(entry.error_code) for entry in topic.partitions} for topic in response.topics}


def delete_topic(client: RawClient, name: str) -> None:
    response = client.ask(apis.DELETE_TOPICS, 5, topic_names=[name], timeout=milliseconds(10_000))
    assert [entry.error_code for entry in response.responses] == [0]


def test_a_later_commit_does_not_overtake(broker: InnerBroker, held: Held) -> None:
    """Pipelined commits of one connection are recorded in their order."""
    with connected(broker.bootstrap) as client, RawGroup(broker.bootstrap, GROUP) as group:
        client.create_topic("t", PARTITIONS)
        client.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        send(client, offsets("t", offset=1))
        send(client, offsets("t", offset=2, count=1))
        assert held.began.wait(20)
        assert set(group.offsets([("t", range(PARTITIONS))]).values()) == {(-1, 0)}, "nothing is recorded"
        held.released.set()
        assert [codes(client), codes(client)] == [{"t": {ErrorCode.none}}] * 2
        recorded = group.offsets()
        assert recorded.pop(("t", 0)) == (2, 0)
        assert set(recorded.values()) == {(1, 0)}


def test_another_client_is_served_meanwhile(broker: InnerBroker, held: Held) -> None:
    with connected(broker.bootstrap) as client, RawGroup(broker.bootstrap, GROUP) as group:
        client.create_topic("t", PARTITIONS)
        send(client, offsets("t"))
        assert held.began.wait(20)
        assert group.commit("t", offset=7) == ErrorCode.none, "a request of another connection has no order with it"
        held.released.set()
        assert codes(client) == {"t": {ErrorCode.none}}
        assert group.offsets([("t", [0])]) == {("t", 0): (1, 0)}


def test_a_deleted_topic_gets_no_offset(broker: InnerBroker, held: Held) -> None:
    """Its offsets are deleted with it: one recorded later would be that of a new topic with its name."""
    with connected(broker.bootstrap) as client, RawGroup(broker.bootstrap, GROUP) as group:
        for name in ("kept", "gone"):
            client.create_topic(name, PARTITIONS)
        send(client, offsets("kept", "gone"))
        assert held.began.wait(20)
        delete_topic(group.client(), "gone")
        held.released.set()
        assert codes(client) == {"kept": {ErrorCode.none}, "gone": {ErrorCode.unknown_topic_or_partition}}
        assert group.offsets() == {("kept", index): (1, 0) for index in range(PARTITIONS)}


def test_a_topic_created_again_gets_no_offset(broker: InnerBroker, held: Held) -> None:
    """The offset was one of the deleted topic's log."""
    with connected(broker.bootstrap) as client, RawGroup(broker.bootstrap, GROUP) as group:
        for name in ("kept", "new"):
            client.create_topic(name, PARTITIONS)
        send(client, offsets("kept", "new"))
        assert held.began.wait(20)
        delete_topic(group.client(), "new")
        group.client().create_topic("new", PARTITIONS)
        held.released.set()
        assert codes(client) == {"kept": {ErrorCode.none}, "new": {ErrorCode.unknown_topic_or_partition}}
        assert group.offsets() == {("kept", index): (1, 0) for index in range(PARTITIONS)}


def test_a_deleted_topic_gets_no_transactional_offset(broker: InnerBroker, held: Held) -> None:
    with connected(broker.bootstrap) as client, RawGroup(broker.bootstrap, GROUP) as group:
        for name in ("kept", "gone"):
            client.create_topic(name, PARTITIONS)
        producer = TransactionalClient(client, "transactional")
        producer.init_until_done()
        assert producer.add_offsets(GROUP) == ErrorCode.none
        member = {"generation_id": -1, "member_id": "", "group_instance_id": None}
        client.send(
            apis.TXN_OFFSET_COMMIT, 3, **producer._who(), group_id=GROUP, topics=offsets("kept", "gone"), **member
        )
        assert held.began.wait(20)
        delete_topic(group.client(), "gone")
        held.released.set()
        expected = {"kept": {ErrorCode.none}, "gone": {ErrorCode.unknown_topic_or_partition}}
        assert codes(client, apis.TXN_OFFSET_COMMIT, 3) == expected
        assert producer.end(commit=True) == ErrorCode.none
        assert group.offsets(stable=True) == {("kept", index): (1, 0) for index in range(PARTITIONS)}


def test_a_member_that_left_commits_nothing(broker: InnerBroker, held: Held) -> None:
    with connected(broker.bootstrap) as client, RawGroup(broker.bootstrap, GROUP) as group:
        client.create_topic("t", PARTITIONS)
        member_id = group.enter()
        generation = group.joined().generation_id
        group.sync(generation, member_id, assignments={member_id: b""})
        send(client, offsets("t"), {"generation_id_or_member_epoch": generation, "member_id": member_id})
        assert held.began.wait(20)
        assert group.leave((member_id, None)) == [(member_id, None, 0)]
        held.released.set()
        assert codes(client) == {"t": {ErrorCode.unknown_member_id}}
        assert group.offsets() == {}


def test_a_client_that_hung_up_commits(broker: InnerBroker, held: Held) -> None:
    """A whole request has its effect, as with Kafka."""
    with connected(broker.bootstrap) as client, RawGroup(broker.bootstrap, GROUP) as group:
        group.client().create_topic("t", PARTITIONS)
        send(client, offsets("t"))
        assert held.began.wait(20)
        client.socket.shutdown(socket.SHUT_WR)
        held.released.set()
        while client.socket.recv(4096):
            pass
        assert set(group.offsets([("t", range(PARTITIONS))]).values()) == {(1, 0)}


def test_a_stop_does_not_wait_for_it(tmp_path: Path, held: Held, caplog: pytest.LogCaptureFixture) -> None:
    """The client gets no response, and nothing is recorded."""
    with InnerBroker(tmp_path / "data") as broker, connected(broker.bootstrap) as client:
        client.create_topic("t", PARTITIONS)
        send(client, offsets("t"))
        assert held.began.wait(20)
        broker.stop()
        assert client.socket.recv(1) == b""
        assert "did not end within stop.timeout.ms" not in caplog.text
        broker.start()
        with RawGroup(broker.bootstrap, GROUP) as group:
            assert group.offsets() == {}


def test_a_group_with_a_new_member_remains(broker: InnerBroker, held: Held) -> None:
    with connected(broker.bootstrap) as client, RawGroup(broker.bootstrap, GROUP) as group:
        client.create_topic("t", 1)
        assert group.commit("t", offset=7) == ErrorCode.none
        names = [GROUP, *(f"absent-{number}" for number in range(1000))]
        client.send(apis.DELETE_GROUPS, 2, groups_names=names)
        assert held.began.wait(20)
        group.enter()
        assert group.joined().error_code == 0
        held.released.set()
        codes_of = {result.group_id: result.error_code for result in client.receive(apis.DELETE_GROUPS, 2).results}
        assert codes_of.pop(GROUP) == ErrorCode.non_empty_group
        assert set(codes_of.values()) == {ErrorCode.group_id_not_found}
        assert group.offsets() == {("t", 0): (7, 0)}


@pytest.mark.parametrize("error", [ValueError("planted"), MalformedFrame("planted")])
@pytest.mark.parametrize("step", ["_error", "take"])
def test_a_failure_closes_only_its_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, step: str
) -> None:
    def fail(*_arguments: object) -> None:
        raise error

    with InnerBroker(tmp_path / "data") as broker, connected(broker.bootstrap) as client:
        client.create_topic("t", PARTITIONS)
        with RawGroup(broker.bootstrap, GROUP) as group, monkeypatch.context() as patch:
            patch.setattr(CheckedOffsets, step, fail)
            send(group.client(), offsets("t"))
            assert group.client().socket.recv(1) == b""
        send(client, offsets("t"))
        assert codes(client) == {"t": {ErrorCode.none}}


@contextmanager
def peak_bytes() -> Iterator[list[int]]:
    """Give the most memory that was allocated meanwhile, broker and client together."""
    peak: list[int] = []
    gc.collect()
    tracemalloc.start()
    try:
        yield peak
        peak.append(tracemalloc.get_traced_memory()[1])
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("is_transactional", [False, True])
def test_a_refused_commit_is_not_encoded(tmp_path: Path, is_transactional: bool) -> None:
    """Its group id would be in each record: 64 MB in place of 70 KB."""
    with InnerBroker(tmp_path / "data") as broker, connected(broker.bootstrap) as client:
        client.create_topic("t", 1)
        fields = {"group_id": "g" * 32_000, "topics": repeated(2000), "member_id": "", "group_instance_id": None}
        with peak_bytes() as peak:
            if is_transactional:
                producer = TransactionalClient(client, "transactional")
                producer.init_until_done()
                assert producer.add_offsets(GROUP) == ErrorCode.none
                client.send(apis.TXN_OFFSET_COMMIT, 3, **producer._who(), generation_id=-1, **fields)
                refused = codes(client, apis.TXN_OFFSET_COMMIT, 3)
            else:
                client.send(apis.OFFSET_COMMIT, VERSION, generation_id_or_member_epoch=-1, **fields)
                refused = codes(client)
        assert ErrorCode.none not in refused["t"]
        assert peak[0] < 16e6


def test_a_batch_too_large_is_not_encoded(tmp_path: Path) -> None:
    """The largest batch has 16 MiB."""
    with InnerBroker(tmp_path / "data", group_name_bytes_max=30_000) as broker, connected(broker.bootstrap) as client:
        client.create_topic("t", 1)
        fields = {"group_id": "g" * 30_000, "topics": repeated(4000), "group_instance_id": None, **OUTSIDER}
        with peak_bytes() as peak:
            client.send(apis.OFFSET_COMMIT, VERSION, **fields)
            assert codes(client) == {"t": {ErrorCode.unknown_server_error}}, "that of Kafka's coordinator, too"
        assert peak[0] < 80e6, "in place of 240 MB"


def repeated(count: int) -> list[dict[str, Any]]:
    """Return the same partition many times: one request may name it more than once."""
    (topic,) = offsets("t", count=1, metadata="")
    return [{**topic, "partitions": topic["partitions"] * count}]
