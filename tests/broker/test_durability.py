"""Acknowledged data exists once after a killed broker, a power cut and a failed sync."""

import select
import threading
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest
from confluent_kafka import Producer

from onceflow.errors import OnceflowError
from onceflow.remedies import Remedy
from onceflow.testing import BrokerProcess, FaultyDisk, PowerCut
from onceflow.wire import apis
from onceflow.wire.batch import batches, decode_batch
from onceflow.wire.errors import ErrorCode, WireError
from tests import remedies
from tests.broker.driven_broker import PoweredBroker, eventually, hung_up_without_power
from tests.broker.handlers.test_admin_apis import create
from tests.broker.raw_client import RawClient, batch_of, connected, milliseconds

WAIT_SECONDS = 30
T = TypeVar("T")


def stored_values(client: RawClient, topic: str) -> list[bytes]:
    """Return every record's value, in order."""
    values: list[bytes] = []
    while True:
        (fetched,) = client.fetch([(topic, 0, len(values))])
        assert fetched.error_code == 0, fetched
        if not fetched.records:
            return values
        for position, _header in batches(fetched.records):
            records = decode_batch(fetched.records, position)
            values += [record.value or b"" for record in records if record.offset >= len(values)]


def produce_and_kill(broker: BrokerProcess, topic: str, rounds: int) -> tuple[set[bytes], int]:
    """Kill and restart the broker `rounds` times while an idempotent librdkafka producer sends.

    Return the acknowledged values, and how many were sent.
    """
    acknowledged: set[bytes] = set()

    def delivered(error: Any, message: Any) -> None:
        if error is None:
            acknowledged.add(message.value())

    config = {
        "bootstrap.servers": broker.bootstrap,
        "enable.idempotence": True,
        "linger.ms": 1,
        "reconnect.backoff.max.ms": 200,
    }
    producer = Producer(config, logger=Quiet())
    sent = 0
    for _ in range(rounds):
        goal = len(acknowledged) + 300
        deadline = time.monotonic() + WAIT_SECONDS
        while len(acknowledged) < goal and time.monotonic() < deadline:
            for _number in range(50):
                producer.produce(topic, b"%d" % sent, partition=0, callback=delivered)
                sent += 1
            producer.poll(0.005)
        assert len(acknowledged) >= goal
        broker.kill()
        broker.start()
    assert producer.flush(WAIT_SECONDS) == 0
    return acknowledged, sent


class Quiet:
    """A silent logger: librdkafka logs each lost connection."""

    def log(self, *_arguments: object) -> None:
        """Do nothing."""


def check_killed(directory: Path, topic: str, rounds: int) -> None:
    with BrokerProcess(directory / "data") as broker:
        with connected(broker.bootstrap) as client:
            client.create_topic(topic)
        acknowledged, sent = produce_and_kill(broker, topic, rounds)
        with connected(broker.bootstrap) as client:
            values = stored_values(client, topic)
    print(f"{rounds} kills: {sent} records sent, {len(acknowledged)} acknowledged, {len(values)} stored")
    assert len(acknowledged) == sent, "librdkafka repeats what was not acknowledged"
    assert values == [b"%d" % number for number in range(sent)], "all, once, in order"


def test_a_killed_broker_keeps_acknowledged_data(tmp_path: Path, topic: str) -> None:
    check_killed(tmp_path, topic, 5)


def test_a_killed_broker_remembers_its_state(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        with connected(broker.bootstrap) as client:
            client.create_topic("kept", 2, max_message_bytes="2000")
            client.create_topic("gone")
            response = client.ask(apis.DELETE_TOPICS, 5, topic_names=["gone"], timeout=milliseconds(5000))
            assert response.responses[0].error_code == 0
            kept_id = topic_ids(client)["kept"]
            commit(client, "group", "kept", 7)
            first_id = producer_id(client)
        broker.kill()
        broker.start()
        with connected(broker.bootstrap) as client:
            assert topic_ids(client).keys() == {"kept", "__consumer_offsets", "__transaction_state"}
            assert topic_ids(client)["kept"] == kept_id
            assert client.produce("kept", 1, batch_of(b"x" * 3000)).error_code == ErrorCode.message_too_large
            assert committed(client, "group", "kept") == 7
            assert producer_id(client) > first_id
        assert not list((tmp_path / "data").glob("gone*"))


def topic_ids(client: RawClient) -> dict[str, Any]:
    response = client.ask(
        apis.METADATA,
        12,
        topics=None,
        include_cluster_authorized_operations=False,
        include_topic_authorized_operations=False,
    )
    return {topic.name: topic.topic_id for topic in response.topics}


def commit(client: RawClient, group: str, topic: str, offset: int) -> int:
    partition = {"partition_index": 0, "committed_offset": offset, "committed_metadata": ""}
    response = client.ask(
        apis.OFFSET_COMMIT,
        8,
        group_id=group,
        generation_id_or_member_epoch=-1,
        member_id="",
        topics=[{"name": topic, "partitions": [partition]}],
    )
    return int(response.topics[0].partitions[0].error_code)


def committed(client: RawClient, group: str, topic: str) -> int:
    topics = [{"name": topic, "partition_indexes": [0]}]
    response = client.ask(apis.OFFSET_FETCH, 8, groups=[{"group_id": group, "topics": topics}])
    return int(response.groups[0].topics[0].partitions[0].committed_offset)


def is_created(client: RawClient, topic: str) -> bool:
    """Create the topic again after a start that finishes a deletion: the name is free once that is durable."""
    return not create(client, topic).error_code


def producer_id(client: RawClient) -> int:
    response = client.ask(apis.INIT_PRODUCER_ID, 4, transactional_id=None, transaction_timeout=milliseconds(1000))
    return int(response.producer_id)


class OneProducer:
    """Sends numbers one by one, idempotently; unacknowledged ones are sent again after the next start."""

    def __init__(self, client: RawClient) -> None:
        self.producer_id = producer_id(client)
        self.acknowledged = 0

    def send_until_the_power_is_off(self, client: RawClient) -> None:
        for _ in range(1000):
            batch = batch_of(
                b"%d" % self.acknowledged,
                producer_id=self.producer_id,
                producer_epoch=0,
                base_sequence=self.acknowledged,
            )
            try:
                response = client.produce("t", 0, batch)
            except (OSError, WireError):
                return
            if response.error_code:
                assert response.error_code in (ErrorCode.kafka_storage_error, ErrorCode.unknown_server_error), response
                return
            self.acknowledged += 1
        raise AssertionError("the power never went off")


def lost_after_power_cuts(powered: PoweredBroker, rounds: int, *, drop_all: bool) -> list[str]:
    """Return the data that did not survive `rounds` power cuts at different times; empty if all did."""
    lost = []
    with connected(powered.bootstrap) as client:
        client.create_topic("t", segment_ms="1")
        producer = OneProducer(client)
    offset = -1
    for number in range(rounds):
        with connected(powered.bootstrap) as client:
            offset = offset if commit(client, "g", "t", producer.acknowledged) else producer.acknowledged
            powered.disk.cut_power_after(3 + 7 * number % 41)
            producer.send_until_the_power_is_off(client)
        powered.power_cycle(number, drop_all=drop_all)
        with connected(powered.bootstrap) as client:
            values = stored_values(client, "t") if "t" in topic_ids(client) else []
            expected = [b"%d" % number for number in range(len(values))]
            if values != expected or len(values) < producer.acknowledged:
                lost.append(f"power cut {number}: {producer.acknowledged} acknowledged, {len(values)} stored")
                return lost
            if committed(client, "g", "t") != offset:
                lost.append(f"power cut {number}: offset {offset} became {committed(client, 'g', 't')}")
    assert producer.acknowledged > 3 * rounds, producer.acknowledged
    return lost


@pytest.mark.parametrize("drop_all", [True, False], ids=["all unsynced lost", "some unsynced lost"])
def test_power_cuts_lose_nothing_acknowledged(powered: PoweredBroker, drop_all: bool) -> None:
    assert lost_after_power_cuts(powered, 60, drop_all=drop_all) == []


@pytest.mark.parametrize("call", ["sync_data", "sync_directory"])
def test_power_cuts_reveal_a_missing_sync(tmp_path: Path, call: str) -> None:
    data = tmp_path / "disk"
    data.mkdir()
    disk = FaultyDisk(data)
    with PoweredBroker(disk, data) as powered:
        setattr(disk, f"ignores_{call}", True)
        try:
            lost = lost_after_power_cuts(powered, 60, drop_all=True)
        except (AssertionError, OSError, OnceflowError) as error:
            lost = [str(error)]
    assert lost


def test_a_failed_sync_is_final(powered: PoweredBroker) -> None:
    with connected(powered.bootstrap) as client:
        client.create_topic("t", 2)
        assert client.produce("t", 0, batch_of(b"good")).error_code == 0
        powered.disk.fail_next_syncs()
        assert client.produce("t", 0, batch_of(b"lost")).error_code == ErrorCode.kafka_storage_error
        assert client.produce("t", 0, batch_of(b"no")).error_code == ErrorCode.kafka_storage_error
        assert client.produce("t", 1, batch_of(b"other")).error_code == 0
        assert stored_values(client, "t") == [b"good"]
    powered.power_cycle(1, drop_all=True)
    with connected(powered.bootstrap) as client:
        assert stored_values(client, "t") == [b"good"]
        assert client.produce("t", 0, batch_of(b"again")).base_offset == 1


def test_a_duplicate_waits_for_the_first_sync(powered: PoweredBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A retry on another connection must not be acknowledged before the records that it repeats are durable."""
    with connected(powered.bootstrap) as first, connected(powered.bootstrap) as second:
        first.create_topic("t")
        batch = batch_of(b"a", producer_id=producer_id(first), producer_epoch=0, base_sequence=0)
        disk_syncs = threading.Event()
        with monkeypatch.context() as slow:
            slow.setattr("onceflow.testing.disk._FaultyFile.sync_data", lambda _file: disk_syncs.wait(10))
            first.send_batch("t", 0, batch)
            first_read = powered.log("t")
            eventually(lambda: first_read.log_end_offset == 1, "the batch is appended")
            second.send_batch("t", 0, batch)
            with connected(powered.bootstrap) as third:
                third.ask(apis.API_VERSIONS, 0)
            assert select.select([first.socket, second.socket], [], [], 0.2) == ([], [], [])
            disk_syncs.set()
            assert [value.receive_produced().base_offset for value in (first, second)] == [0, 0]


def test_producer_ids_stay_unique_after_power_cuts(powered: PoweredBroker) -> None:
    given = []
    for seed in range(3):
        with connected(powered.bootstrap) as client:
            given.append(producer_id(client))
        powered.power_cycle(seed, drop_all=True)
    assert len(set(given)) == 3


def test_power_cut_during_the_first_start(tmp_path: Path) -> None:
    for operations in range(0, 60, 2):
        data = tmp_path / str(operations)
        data.mkdir()
        disk = FaultyDisk(data)
        disk.cut_power_after(operations)
        broker = PoweredBroker(disk, data)
        try:
            broker.start()
        except PowerCut:
            disk.crash(operations)
            broker.start()
        else:
            broker.power_cycle(operations)
        with connected(broker.bootstrap) as client:
            client.create_topic("t")
            assert client.produce("t", 0, batch_of(b"a")).error_code == 0
        broker.stop()


@pytest.mark.remedy(Remedy.LOOK_AT_DISK, Remedy.RESTART_BROKER)
def test_a_stop_with_an_unclosable_log(powered: PoweredBroker) -> None:
    """The next start scans then, and keeps the acknowledged records."""
    with connected(powered.bootstrap) as client:
        client.create_topic("t")
        assert client.produce("t", 0, batch_of(b"good")).error_code == 0
        powered.disk.fail_next_syncs()
        assert client.produce("t", 0, batch_of(b"lost")).error_code == ErrorCode.kafka_storage_error
        refused = client.produce("t", 0, batch_of(b"no"))
    remedies.find(Remedy.LOOK_AT_DISK, refused.error_message)
    assert "could not be synced: [Errno 5]" in str(refused.error_message)
    remedies.find(Remedy.RESTART_BROKER, refused.error_message)
    powered.stop()
    powered.start()
    assert not powered.call(lambda node: node.directory.clean)
    with connected(powered.bootstrap) as client:
        assert client.produce("t", 0, batch_of(b"again")).error_code == 0
        assert stored_values(client, "t")[0] == b"good"


@pytest.mark.remedy(Remedy.ASK_ALONE)
def test_producers_beside_a_failed_sync(powered: PoweredBroker) -> None:
    def described(client: RawClient, *indexes: int) -> list[tuple[int, str | None, int]]:
        asked = [{"name": "t", "partition_indexes": indexes}]
        (topic,) = client.ask(apis.DESCRIBE_PRODUCERS, 0, topics=asked).topics
        return [
            (partition.error_code, partition.error_message, len(partition.active_producers))
            for partition in topic.partitions
        ]

    with connected(powered.bootstrap) as client:
        client.create_topic("t", 2, flush_messages="1000")
        number = producer_id(client)
        for index in (0, 1):
            batch = batch_of(b"a", producer_id=number, producer_epoch=0, base_sequence=0)
            assert client.produce("t", index, batch).error_code == 0
        powered.disk.fail_next_syncs()
        for code, message, _count in described(client, 0, 1):
            assert code == ErrorCode.kafka_storage_error
            remedies.find(Remedy.ASK_ALONE, message)
        alone = [described(client, index)[0] for index in (0, 1)]
        assert sorted((code, count) for code, _message, count in alone) == [(0, 1), (ErrorCode.kafka_storage_error, 0)]


def test_a_failed_group_sync_lasts_until_restart(powered: PoweredBroker) -> None:
    with connected(powered.bootstrap) as client:
        client.create_topic("t")
        assert commit(client, "g", "t", 1) == 0
        powered.disk.fail_next_syncs()
        assert commit(client, "g", "t", 2) == ErrorCode.coordinator_not_available
        assert commit(client, "g", "t", 3) == ErrorCode.coordinator_not_available
        groups = [{"group_id": "g", "topics": None}]
        response = client.ask(apis.OFFSET_FETCH, 8, groups=groups).groups[0]
        assert response.error_code == ErrorCode.coordinator_not_available
    powered.power_cycle(1, drop_all=True)
    with connected(powered.bootstrap) as client:
        assert committed(client, "g", "t") == 1


@pytest.mark.remedy(Remedy.FREE_DISK)
def test_a_full_disk_is_reported_and_passes(powered: PoweredBroker) -> None:
    with connected(powered.bootstrap) as client:
        client.create_topic("t")
        assert client.produce("t", 0, batch_of(b"good")).error_code == 0
        powered.disk.space_bytes = 30
        refused = client.produce("t", 0, batch_of(b"too much"))
        assert refused.error_code == ErrorCode.kafka_storage_error
        remedies.find(Remedy.FREE_DISK, refused.error_message)
        powered.disk.space_bytes = None
        assert client.produce("t", 0, batch_of(b"again")).base_offset == 1
        assert stored_values(client, "t") == [b"good", b"again"]


def test_an_interrupted_deletion_is_finished(powered: PoweredBroker) -> None:
    for operations in range(12):
        is_acknowledged = False
        with connected(powered.bootstrap) as client:
            eventually(partial(is_created, client, "t"), "the deletion before is finished, the name free again")
            assert commit(client, "g", "t", 5) == 0
            powered.disk.cut_power_after(operations)
            with hung_up_without_power(powered.disk, client), suppress(OSError, WireError):
                response = client.ask(apis.DELETE_TOPICS, 5, topic_names=["t"], timeout=milliseconds(5000))
                is_acknowledged = not response.responses[0].error_code
        powered.power_cycle(operations, drop_all=True)
        with connected(powered.bootstrap) as client:
            if "t" in topic_ids(client):
                assert not is_acknowledged
                assert committed(client, "g", "t") == 5
                response = client.ask(apis.DELETE_TOPICS, 5, topic_names=["t"], timeout=milliseconds(5000))
                assert response.responses[0].error_code == 0
            assert committed(client, "g", "t") == -1
        assert not list(powered.data.glob("t-0*"))
