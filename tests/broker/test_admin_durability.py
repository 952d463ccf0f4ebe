"""Acknowledged administration survives a power cut, a kill and a restart; failures are reported."""

import errno
import logging
import select
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from onceflow.broker.coordinators import UnfinishedDeletion
from onceflow.broker.node import Node
from onceflow.broker.topics.logs import TopicLogs
from onceflow.broker.topics.operations import TopicOperations
from onceflow.log.directory import DataDirectory
from onceflow.log.disk import SyncNotBegun
from onceflow.log.segment import Segment
from onceflow.log.sync import SyncPoint
from onceflow.remedies import Remedy
from onceflow.testing import BrokerProcess
from onceflow.wire import apis
from onceflow.wire.errors import ErrorCode, WireError
from tests import remedies
from tests.broker.driven_broker import PoweredBroker, eventually, hung_up_without_power
from tests.broker.handlers.test_admin_apis import (
    DELETE,
    SET,
    TOPIC,
    add,
    alter,
    configured,
    create,
    partition_count,
)
from tests.broker.raw_client import RawClient, batch_of, connected, milliseconds
from tests.broker.test_durability import commit, committed, is_created, stored_values, topic_ids

POLICY = ("cleanup.policy", SET, "compact")


@pytest.fixture
def client(powered: PoweredBroker) -> Iterator[RawClient]:
    with connected(powered.bootstrap) as opened:
        yield opened


def test_partitions_and_configs_survive_a_power_cut(powered: PoweredBroker) -> None:
    with connected(powered.bootstrap) as client:
        create(client, "t", configs=[("retention.ms", "5"), ("segment.ms", "6")])
        assert add(client, ("t", 3, None)) == [("t", 0)]
        assert client.produce("t", 2, batch_of(b"kept")).error_code == 0
        changes = [("max.message.bytes", SET, "500"), ("retention.ms", DELETE, None)]
        assert alter(client, (TOPIC, "t", changes)) == [0]
    powered.power_cycle(1, drop_all=True)
    with connected(powered.bootstrap) as client:
        assert partition_count(client, "t") == 3
        assert len(client.fetch([("t", 2, 0)])[0].records) > 0
        assert configured(client, "t", "max.message.bytes") == ("500", 1)
        assert configured(client, "t", "retention.ms") == ("604800000", 5)
        assert configured(client, "t", "segment.ms") == ("6", 1)
        assert client.produce("t", 0, batch_of(b"x" * 600)).error_code == ErrorCode.message_too_large


def test_responses_hold_after_any_power_cut(powered: PoweredBroker) -> None:
    with connected(powered.bootstrap) as client:
        create(client, "t")
    partitions, changes = 1, 0
    for operations in range(0, 42, 3):
        acknowledged = []
        with connected(powered.bootstrap) as client:
            powered.disk.cut_power_after(operations)
            with hung_up_without_power(powered.disk, client), suppress(OSError, WireError, AssertionError):
                if add(client, ("t", partitions + 1, None)) == [("t", 0)]:
                    acknowledged.append("partitions")
                if alter(client, (TOPIC, "t", [("segment.ms", SET, str(5000 + operations))])) == [0]:
                    acknowledged.append("config")
        powered.power_cycle(operations, drop_all=True)
        with connected(powered.bootstrap) as client:
            count = partition_count(client, "t")
            assert count in ((partitions + 1,) if "partitions" in acknowledged else (partitions, partitions + 1))
            partitions = count
            if "config" in acknowledged:
                assert configured(client, "t", "segment.ms") == (str(5000 + operations), 1)
                changes += 1
            for index in range(partitions):
                assert client.produce("t", index, batch_of(b"x")).error_code == 0
    assert partitions > 3
    assert changes > 1


def test_a_created_topic_survives_any_power_cut(powered: PoweredBroker) -> None:
    outcomes = set()
    for operations in range(0, 20, 2):
        name, is_acknowledged = f"t{operations}", False
        with connected(powered.bootstrap) as client:
            powered.disk.cut_power_after(operations)
            with hung_up_without_power(powered.disk, client), suppress(OSError, WireError):
                is_acknowledged = not create(client, name).error_code
        powered.power_cycle(operations, drop_all=True)
        with connected(powered.bootstrap) as client:
            is_there = name in topic_ids(client)
        assert is_there or not is_acknowledged, f"after {operations} operations of the disk"
        outcomes.add((is_acknowledged, is_there))
    assert {(True, True), (False, False)} <= outcomes


def test_responses_reveal_only_durable_state(powered: PoweredBroker, client: RawClient) -> None:
    create(client, "t")
    before = topic_ids(client).keys()
    powered.disk.fail_next_syncs()
    assert alter(client, (TOPIC, "t", [POLICY])) == [ErrorCode.kafka_storage_error]
    assert add(client, ("t", 4, None)) == [("t", ErrorCode.kafka_storage_error)]
    assert create(client, "u").error_code == ErrorCode.kafka_storage_error
    assert partition_count(client, "t") == 1, "what is not durable is not served"
    assert client.produce("t", 0, batch_of(b"x")).error_code == 0, "the topic's own log is well"
    powered.power_cycle(1, drop_all=True)
    with connected(powered.bootstrap) as again:
        assert (partition_count(again, "t"), topic_ids(again).keys()) == (1, before)
        assert configured(again, "t", "cleanup.policy") == ("delete", 5)


ASKED_CONFIGS = {
    "resources": [{"resource_type": TOPIC, "resource_name": "new", "configuration_keys": ("segment.ms",)}],
    "include_synonyms": False,
    "include_documentation": False,
}
REVEALING: dict[str, tuple[int, int, dict[str, Any]]] = {
    "exists already": (
        apis.CREATE_TOPICS,
        2,
        {
            "topics": [{"name": "new", "num_partitions": 1, "replication_factor": 1, "assignments": (), "configs": ()}],
            "timeout": milliseconds(5000),
            "validate_only": True,
        },
    ),
    "configs": (apis.DESCRIBE_CONFIGS, 4, ASKED_CONFIGS),
    "metadata of all": (apis.METADATA, 1, {"topics": None}),
    "metadata of one": (apis.METADATA, 4, {"topics": [{"name": "new"}], "allow_auto_topic_creation": False}),
    "partitions": (
        apis.CREATE_PARTITIONS,
        0,
        {
            "topics": [{"name": "new", "count": 2, "assignments": None}],
            "timeout": milliseconds(5000),
            "validate_only": True,
        },
    ),
}


@pytest.mark.parametrize("asked", REVEALING.values(), ids=REVEALING)
def test_a_topic_is_visible_when_durable(
    powered: PoweredBroker, client: RawClient, monkeypatch: pytest.MonkeyPatch, asked: tuple[int, int, dict[str, Any]]
) -> None:
    api_key, version, fields = asked
    disk_writes = threading.Event()
    monkeypatch.setattr("onceflow.testing.disk._FaultyFile.sync_data", lambda _file: disk_writes.wait(10))
    new = {"name": "new", "num_partitions": 1, "replication_factor": 1, "assignments": (), "configs": ()}
    client.send(apis.CREATE_TOPICS, 2, topics=[new], timeout=milliseconds(5000), validate_only=False)
    with connected(powered.bootstrap) as other, connected(powered.bootstrap) as third:
        third.ask(apis.API_VERSIONS, 0)
        other.send(api_key, version, **fields)
        third.ask(apis.API_VERSIONS, 0)
        assert select.select([client.socket, other.socket], [], [], 0) == ([], [], []), "both have been read by now"
        disk_writes.set()
        assert client.receive(apis.CREATE_TOPICS, 2).topics[0].error_code == 0
        other.receive(api_key, version)


def test_a_creation_is_acknowledged_after_its_sync(client: RawClient, monkeypatch: pytest.MonkeyPatch) -> None:
    disk_writes = threading.Event()
    monkeypatch.setattr("onceflow.testing.disk._FaultyFile.sync_data", lambda _file: disk_writes.wait(10))
    new = {"name": "new", "num_partitions": 1, "replication_factor": 1, "assignments": (), "configs": ()}
    client.send(apis.CREATE_TOPICS, 2, topics=[new], timeout=milliseconds(5000), validate_only=False)
    assert select.select([client.socket], [], [], 0.3) == ([], [], [])
    disk_writes.set()
    assert client.receive(apis.CREATE_TOPICS, 2).topics[0].error_code == 0


def test_a_killed_broker_remembers_partitions_and_configs(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        with connected(broker.bootstrap) as client:
            create(client, "t", configs=[("segment.ms", "6")])
            add(client, ("t", 2, None))
            alter(client, (TOPIC, "t", [POLICY]))
        broker.kill()
        broker.start()
        with connected(broker.bootstrap) as client:
            assert partition_count(client, "t") == 2
            assert [configured(client, "t", value)[0] for value in ("cleanup.policy", "segment.ms")] == ["compact", "6"]


@pytest.mark.remedy(Remedy.SMALLER_BATCHES, Remedy.RAISE_SETTING)
def test_a_changed_config_applies_at_once(client: RawClient) -> None:
    create(client, "t", num_partitions=2)
    large = batch_of(b"x" * 600)
    assert client.produce("t", 1, large).error_code == 0
    alter(client, (TOPIC, "t", [("max.message.bytes", SET, "500")]))
    assert [client.produce("t", index, batch_of(b"x" * 600)).error_code for index in (0, 1)] == [
        ErrorCode.message_too_large
    ] * 2
    add(client, ("t", 3, None))
    refused = client.produce("t", 2, batch_of(b"x" * 600))
    assert refused.error_code == ErrorCode.message_too_large
    remedies.find(Remedy.SMALLER_BATCHES, refused.error_message)
    assert client.produce("t", 2, batch_of(b"x" * 300)).error_code == 0
    remedies.find(Remedy.RAISE_SETTING, refused.error_message)
    alter(client, (TOPIC, "t", [("max.message.bytes", DELETE, None)]))
    assert client.produce("t", 1, batch_of(b"x" * 600)).error_code == 0


def test_config_change_while_partitions_open(
    powered: PoweredBroker, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(client, "t")
    is_changed, opens = threading.Event(), threading.Event()
    try_open = TopicOperations._try_open

    def open_later(operations: TopicOperations, opening: Any) -> Any:
        opens.set()
        assert is_changed.wait(10)
        return try_open(operations, opening)

    monkeypatch.setattr(TopicOperations, "_try_open", open_later)
    more = {"topics": [{"name": "t", "count": 2, "assignments": None}], "timeout": milliseconds(5000)}
    client.send(apis.CREATE_PARTITIONS, 3, validate_only=False, **more)
    assert opens.wait(10)
    with connected(powered.bootstrap) as other:
        assert alter(other, (TOPIC, "t", [("max.message.bytes", SET, "500")])) == [0]
    is_changed.set()
    assert client.receive(apis.CREATE_PARTITIONS, 3).results[0].error_code == 0
    assert client.produce("t", 1, batch_of(b"x" * 600)).error_code == ErrorCode.message_too_large


def test_partitions_added_during_a_deletion(client: RawClient) -> None:
    create(client, "t")
    more = {"topics": [{"name": "t", "count": 3, "assignments": None}], "timeout": milliseconds(5000)}
    client.send(apis.CREATE_PARTITIONS, 3, validate_only=False, **more)
    client.send(apis.DELETE_TOPICS, 5, topic_names=["t"], timeout=milliseconds(5000))
    added = client.receive(apis.CREATE_PARTITIONS, 3).results[0]
    assert client.receive(apis.DELETE_TOPICS, 5).responses[0].error_code == 0
    assert added.error_code in (ErrorCode.none, ErrorCode.unknown_topic_or_partition)
    assert partition_count(client, "t") == 0
    assert create(client, "t").error_code == 0
    assert stored_values(client, "t") == []


@pytest.mark.remedy(Remedy.RESTART_BROKER)
def test_an_unremovable_directory_keeps_its_name(
    powered: PoweredBroker, client: RawClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(_directory: DataDirectory, _topic: str, _partition: int) -> None:
        raise OSError(5, "EIO")

    create(client, "t")
    with monkeypatch.context() as broken, caplog.at_level(logging.ERROR):
        broken.setattr(DataDirectory, "delete_partition", full)
        response = client.ask(apis.DELETE_TOPICS, 5, topic_names=["t"], timeout=milliseconds(5000))
    assert response.responses[0].error_code == ErrorCode.kafka_storage_error
    assert "t-0 could not be deleted: [Errno 5] EIO" in caplog.text
    assert create(client, "t").error_code == ErrorCode.topic_already_exists
    remedies.find(Remedy.RESTART_BROKER, response.responses[0].error_message)
    powered.stop()
    powered.start()
    with connected(powered.bootstrap) as again:
        eventually(partial(is_created, again, "t"), "the deletion is finished, the name free again")


@pytest.mark.parametrize("where", ["in the thread", "on the loop"])
@pytest.mark.parametrize("what", ["create", "add", "delete", "metadata"])
def test_an_unexpected_error_closes_the_connection(
    client: RawClient, monkeypatch: pytest.MonkeyPatch, what: str, where: str
) -> None:
    def fail(*_arguments: Any, **_named: Any) -> None:
        raise ZeroDivisionError("unforeseen")

    create(client, "t")
    in_thread = (TopicLogs, "delete_files") if what == "delete" else (TopicOperations, "_try_open")
    on_loop = (TopicOperations, "_release_names" if what == "delete" else "_install")
    owner, name = in_thread if where == "in the thread" else on_loop
    monkeypatch.setattr(owner, name, fail)
    remove = {"topic_names": ["t"], "timeout": milliseconds(5000)}
    asked = {"topics": [{"name": "new"}], "allow_auto_topic_creation": True}
    requests: dict[str, Callable[[], Any]] = {
        "create": lambda: create(client, "u"),
        "add": lambda: add(client, ("t", 3, None)),
        "delete": lambda: client.ask(apis.DELETE_TOPICS, 5, **remove),
        "metadata": lambda: client.ask(apis.METADATA, 7, **asked),
    }
    with pytest.raises(WireError):
        requests[what]()


@pytest.mark.remedy(Remedy.LOOK_ABOVE, Remedy.FREE_DISK, Remedy.START_BROKER_AGAIN)
def test_start_with_an_unfinishable_deletion(
    powered: PoweredBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_room(segment: Segment, *_arguments: object) -> None:
        assert "__consumer_offsets" in str(segment.path)
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as crashing, connected(powered.bootstrap) as client:
        powered.call(lambda node: crashing.setattr(node.topic_operations, "_delete_offsets", lambda *_arguments: None))
        create(client, "t")
        assert commit(client, "g", "t", 5) == 0
        client.send(apis.DELETE_TOPICS, 5, topic_names=["t"], timeout=milliseconds(5000))
        with connected(powered.bootstrap) as other:
            while "t" in topic_ids(other):
                pass
    powered.stop()
    with monkeypatch.context() as full:
        full.setattr(Segment, "write", no_room)
        with pytest.raises(UnfinishedDeletion) as raised:
            powered.start()
    remedies.find(Remedy.LOOK_ABOVE, raised.value)
    assert "No space left on device" in caplog.text
    remedies.find(Remedy.FREE_DISK, caplog.text)
    remedies.find(Remedy.FREE_DISK, raised.value)
    remedies.find(Remedy.START_BROKER_AGAIN, raised.value)
    powered.start()
    with connected(powered.bootstrap) as client:
        eventually(partial(is_created, client, "t"), "the deletion is finished, the name free again")
        assert committed(client, "g", "t") == -1


def test_a_postponed_sync_of_topics_is_reported(powered: PoweredBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller takes what it has recorded for durable."""

    def record_and_sync(node: Node) -> None:
        node.metadata.record(node.topics.decide_producer_ids())
        node.metadata.sync()

    def twice_in_one_turn(node: Node) -> None:
        """Otherwise the broker's own round, which the record has requested, may run between the two."""
        postponed = SyncNotBegun(errno.EMFILE, "too many open files")
        with monkeypatch.context() as short:
            short.setattr(SyncPoint, "run", lambda point: point.postpone(postponed))
            with pytest.raises(SyncNotBegun):
                record_and_sync(node)
        record_and_sync(node)

    powered.call(twice_in_one_turn)


def test_internal_topics_are_listed_and_unchangeable(client: RawClient) -> None:
    for name in ("__consumer_offsets", "__transaction_state"):
        response = client.ask(apis.METADATA, 7, topics=[{"name": name}], allow_auto_topic_creation=False)
        assert response.topics[0].is_internal
        assert client.produce(name, 0, batch_of(b"x")).error_code == ErrorCode.invalid_topic_exception
        assert add(client, (name, 60, None)) == [(name, ErrorCode.invalid_partitions)]
        assert alter(client, (TOPIC, name, [POLICY])) == [ErrorCode.invalid_request]
        deleted = client.ask(apis.DELETE_TOPICS, 5, topic_names=[name], timeout=milliseconds(5000))
        assert deleted.responses[0].error_code == ErrorCode.invalid_request
        assert create(client, name).error_code == ErrorCode.topic_already_exists
        assert configured(client, name, "segment.bytes")[1] == 1
