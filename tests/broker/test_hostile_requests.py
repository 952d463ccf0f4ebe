"""Requests that a broker must survive: each of them once affected more than its own client."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from onceflow.broker.network import connection
from onceflow.broker.storage.partitions import Partition
from onceflow.broker.topics import logs
from onceflow.log.config import LogConfig
from onceflow.testing import FaultyDisk, disk
from onceflow.wire import apis, produce
from onceflow.wire.errors import ErrorCode
from onceflow.wire.frames import encode_request, request_class
from tests.broker.driven_broker import PoweredBroker, eventually
from tests.broker.raw_client import RawClient, batch_of, connected, milliseconds
from tests.broker.test_durability import committed, topic_ids
from tests.wire.messages import build

TIMEOUT = milliseconds(5000)


@pytest.fixture
def client(powered: PoweredBroker) -> Iterator[RawClient]:
    with connected(powered.bootstrap) as opened:
        yield opened


def wanted(name: str) -> dict[str, Any]:
    return {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": (), "configs": ()}


def send_together(client: RawClient, *requests: tuple[int, int, dict[str, Any]]) -> None:
    """Send both in one piece, so that the broker sees them in the same turn of its loop."""
    frames = [
        encode_request(key, version, 1, "raw", build(request_class(key, version), fields))
        for key, version, fields in requests
    ]
    client.socket.sendall(b"".join(frames))


def delete(client: RawClient, *entries: tuple[str | None, Any]) -> list[tuple[ErrorCode, str | None]]:
    topics = [{"name": name, "topic_id": topic_id} for name, topic_id in entries]
    response = client.ask(apis.DELETE_TOPICS, 6, topics=topics, timeout=TIMEOUT)
    return [(response.error_code, response.error_message) for response in response.responses]


def test_a_huge_name_stops_no_acknowledgement(client: RawClient) -> None:
    client.create_topic("t")
    topics = [("t", [(0, batch_of(b"a"))]), ("x" * 32767, [(0, batch_of(b"a"))])]
    pieces = produce.encode_request(8, 9, "raw", transactional_id=None, acks=-1, timeout_ms=1000, topics=topics)
    client.socket.sendall(b"".join(map(bytes, pieces)))
    _correlation_id, responses, _throttle_ms = produce.parse_response(8, client.receive_frame())
    codes = [partitions[0].error_code for _name, partitions in responses]
    assert codes == [ErrorCode.none, ErrorCode.unknown_topic_or_partition]
    assert client.produce("t", 0, batch_of(b"b")).error_code == 0


def test_a_failing_response_closes_one_connection(
    powered: PoweredBroker, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.create_topic("t")
    with monkeypatch.context() as broken, connected(powered.bootstrap) as unlucky:
        broken.setattr(produce, "encode_response", lambda *_arguments: 1 // 0)
        unlucky.send_batch("t", 0, batch_of(b"a"))
        assert unlucky.receive_frame() == b""
    assert client.produce("t", 0, batch_of(b"b")).base_offset == 1


def test_a_failing_watcher_leaves_the_others(caplog: pytest.LogCaptureFixture) -> None:
    partition = Partition("t", 0, None)  # type: ignore[arg-type]
    seen: list[int] = []
    wakers = (lambda _: seen.append(1), lambda _: seen.append(1 // 0), lambda _: seen.append(1))
    partition.watchers.update(dict.fromkeys(wakers))
    partition.wake()
    assert seen == [1, 1]
    assert "ZeroDivisionError" in caplog.text


def test_a_topic_given_twice_is_kept(powered: PoweredBroker, client: RawClient) -> None:
    """Codes and messages are those of Apache Kafka 4.1."""
    client.create_topic("t")
    topic_id = topic_ids(client)["t"]
    refused = ErrorCode.invalid_request
    supplied = "The provided topic name maps to an ID that was already supplied."
    assert delete(client, ("t", None), ("t", None)) == [(refused, "Duplicate topic name.")]
    assert delete(client, (None, topic_id), (None, topic_id)) == [(refused, "Duplicate topic id.")]
    assert delete(client, ("t", None), (None, topic_id)) == [(refused, supplied)]
    assert delete(client, ("t", topic_id)) == [(refused, "You may not specify both topic name and topic id.")]
    assert delete(client, (None, None)) == [(refused, "Neither topic name nor id were specified.")]
    response = client.ask(apis.DELETE_TOPICS, 5, topic_names=["t", "t"], timeout=TIMEOUT)
    assert [response.error_code for response in response.responses] == [refused]
    powered.power_cycle(1, drop_all=True)
    with connected(powered.bootstrap) as again:
        assert topic_ids(again)["t"] == topic_id


def test_a_topic_deleted_during_its_creation(client: RawClient) -> None:
    create = {"topics": [wanted("t")], "timeout": TIMEOUT, "validate_only": False}
    remove = {"topic_names": ["t"], "timeout": TIMEOUT}
    send_together(client, (apis.CREATE_TOPICS, 7, create), (apis.DELETE_TOPICS, 5, remove))
    created = client.receive(apis.CREATE_TOPICS, 7).topics[0]
    assert created.error_code == ErrorCode.unknown_topic_or_partition
    assert client.receive(apis.DELETE_TOPICS, 5).responses[0].error_code == 0
    assert client.produce("t", 0, batch_of(b"lost")).error_code == ErrorCode.unknown_topic_or_partition


def test_deleting_offsets_of_many_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "STATE_LOG_CONFIG", LogConfig(message_bytes_max=1_200_000))
    data = tmp_path / "disk"
    data.mkdir()
    groups = [f"{number}".rjust(1000, "g") for number in range(30)]
    with PoweredBroker(FaultyDisk(data), data) as broker, connected(broker.bootstrap) as client:
        client.create_topic("t", 50)
        partitions = [
            {"partition_index": number, "committed_offset": 5, "committed_metadata": ""} for number in range(50)
        ]
        for group in groups:
            topics = [{"name": "t", "partitions": partitions}]
            client.ask(
                apis.OFFSET_COMMIT, 8, group_id=group, generation_id_or_member_epoch=-1, member_id="", topics=topics
            )
        assert committed(client, groups[0], "t") == 5
        assert delete(client, ("t", None)) == [(ErrorCode.none, None)]
        assert {committed(client, group, "t") for group in groups} == {-1}


def test_a_deletion_without_its_offsets_fails(powered: PoweredBroker, client: RawClient) -> None:
    client.create_topic("t")
    partition = {"partition_index": 0, "committed_offset": 5, "committed_metadata": ""}
    fields = {"group_id": "g", "generation_id_or_member_epoch": -1, "member_id": ""}
    asked = [{"name": "t", "partitions": [partition]}]
    client.ask(apis.OFFSET_COMMIT, 8, topics=asked, **fields)
    powered.disk.fail_next_syncs()
    client.ask(apis.OFFSET_COMMIT, 8, topics=asked, **fields)
    assert delete(client, ("t", None))[0][0] == ErrorCode.kafka_storage_error
    again = client.ask(apis.CREATE_TOPICS, 7, topics=[wanted("t")], timeout=TIMEOUT, validate_only=False)
    assert again.topics[0].error_code == ErrorCode.topic_already_exists
    powered.power_cycle(1, drop_all=True)
    with connected(powered.bootstrap) as restarted:

        def is_created() -> bool:
            """The name is not free while the sync that removes the old topic's offsets is running."""
            made = restarted.ask(apis.CREATE_TOPICS, 7, topics=[wanted("t")], timeout=TIMEOUT, validate_only=False)
            assert made.topics[0].error_code in (ErrorCode.none, ErrorCode.topic_already_exists)
            return bool(made.topics[0].error_code == ErrorCode.none)

        eventually(is_created, "the name is free again")
        assert committed(restarted, "g", "t") == -1


def test_unknown_topics_are_not_cached(client: RawClient) -> None:
    client.create_topic("t", 20)
    asked = {"topics": [{"name": "t"}], "allow_auto_topic_creation": True}
    remove = {"topic_names": ["t"], "timeout": TIMEOUT}
    send_together(client, (apis.DELETE_TOPICS, 5, remove), (apis.METADATA, 7, asked))
    assert client.receive(apis.DELETE_TOPICS, 5).responses[0].error_code == 0
    assert client.receive(apis.METADATA, 7).topics[0].error_code == ErrorCode.unknown_topic_or_partition
    assert client.ask(apis.METADATA, 7, **asked).topics[0].error_code == 0


def test_an_unrevertible_write_fails_its_waiters(
    powered: PoweredBroker, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_truncate(_file: object, _size_bytes: int) -> None:
        raise OSError(5, "EIO")

    client.create_topic("t")
    first = batch_of(b"A")
    with monkeypatch.context() as broken:
        broken.setattr(disk._FaultyFile, "truncate", no_truncate)
        broken.setattr(connection, "TURN_SECONDS", 60.0)  # Both before the sync.
        powered.disk.space_bytes = len(first) + 10
        client.socket.sendall(client.produce_request("t", 0, first) + client.produce_request("t", 0, batch_of(b"B")))
        codes = [client.receive_produced().error_code for _ in range(2)]
        powered.disk.space_bytes = None
    assert codes == [ErrorCode.kafka_storage_error] * 2


@pytest.mark.parametrize("version", [1, 2])
def test_offsets_at_risk_are_errors(powered: PoweredBroker, client: RawClient, version: int) -> None:
    client.create_topic("t")
    powered.disk.fail_next_syncs()
    partition = {"partition_index": 0, "committed_offset": 5, "committed_metadata": ""}
    fields = {"group_id": "g", "generation_id_or_member_epoch": -1, "member_id": ""}
    client.ask(apis.OFFSET_COMMIT, 8, topics=[{"name": "t", "partitions": [partition]}], **fields)
    asked = [{"name": "t", "partition_indexes": [0]}]
    fetched = client.ask(apis.OFFSET_FETCH, version, group_id="g", topics=asked).topics[0].partitions[0]
    assert (fetched.committed_offset, fetched.error_code) == (-1, ErrorCode.coordinator_not_available)


def test_remaining_files_keep_a_deleted_name(
    powered: PoweredBroker, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(*_arguments: object) -> None:
        raise OSError(28, "no space left")

    client.create_topic("t")
    assert client.produce("t", 0, batch_of(b"a")).error_code == 0
    with monkeypatch.context() as full:
        full.setattr("onceflow.log.directory.DataDirectory.delete_partition", no_room)
        assert delete(client, ("t", None))[0][0] == ErrorCode.kafka_storage_error
        again = client.ask(apis.CREATE_TOPICS, 7, topics=[wanted("t")], timeout=TIMEOUT, validate_only=False)
        assert again.topics[0].error_code == ErrorCode.topic_already_exists
    powered.power_cycle(1)
    with connected(powered.bootstrap) as restarted:
        restarted.create_topic("t")
        assert restarted.produce("t", 0, batch_of(b"b")).base_offset == 0
