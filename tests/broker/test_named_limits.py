"""Onceflow's own limits: set in each of the three ways, and exact at the boundary."""

import contextlib
import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from onceflow import testing
from onceflow.broker.groups.coordinator import GroupCoordinator
from onceflow.broker.groups.members import JoinResponse
from onceflow.broker.groups.outcome import JoinRequest
from onceflow.client.cluster import Cluster
from onceflow.client.errors import RequestRefused
from onceflow.log.config import LogConfig
from onceflow.log.errors import CorruptBatch, MessageTooLarge
from onceflow.log.validation import check_records
from onceflow.remedies import Remedy
from onceflow.testing import BrokerProcess, ManualClock
from onceflow.wire import apis
from onceflow.wire.batch import Record, encode_batch
from onceflow.wire.codecs import Codec
from onceflow.wire.errors import ErrorCode
from tests import remedies
from tests.broker.driven_broker import DrivenBroker, eventually
from tests.broker.groups.scene import CONFIG, Scene
from tests.broker.handlers.test_admin_apis import BROKER, SET, describe
from tests.broker.raw_client import RawClient, connected, milliseconds
from tests.log.compactions import compact
from tests.log.partition_logs import NOW_MS, batch, open_log, sync

LIMITS = {"request.max.tagged.fields": "2", "batch.unpacked.max.bytes": "1000", "max.partitions": "5"}


@pytest.fixture(params=["option", "environment", "file"])
def limited(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[BrokerProcess]:
    """Start a broker that gets LIMITS in one of the ways."""
    options: list[str] = []
    if request.param == "option":
        options = [word for name, value in LIMITS.items() for word in (f"--{name.replace('.', '-')}", value)]
    elif request.param == "environment":
        for name, value in LIMITS.items():
            monkeypatch.setenv("ONCEFLOW_BROKER_" + name.replace(".", "_").upper(), value)
    else:
        file = tmp_path / "server.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in LIMITS.items()))
        options = ["--config-file", str(file)]
    with BrokerProcess(tmp_path / "data", 0, *options) as broker:
        yield broker


def packed_batch(unpacked_bytes: int, codec: Codec = Codec.GZIP) -> bytearray:
    """Return one record with a key of this size in the decompressed batch."""
    value = bytes(unpacked_bytes - 10)
    return encode_batch([Record(0, NOW_MS, b"k", value)], codec=codec)


def has_response(bootstrap: str, tag_count: int) -> bool:
    """Return whether an ApiVersions request with this number of tagged fields gets a response, not a close."""
    head = struct.pack(">hhih", apis.API_VERSIONS, 3, 1, -1) + bytes((tag_count,)) + bytes((99, 0)) * tag_count
    body = b"\x02n\x02v\x00"
    with connected(bootstrap) as client, contextlib.suppress(ConnectionError):
        client.socket.sendall(struct.pack(">i", len(head + body)) + head + body)
        return client.receive_frame() != b""
    return False


def test_limits_hold_from_every_source(limited: BrokerProcess) -> None:
    assert has_response(limited.bootstrap, 2)
    assert not has_response(limited.bootstrap, 3)
    assert "3 tagged fields, 2 are allowed" in limited.log_path.read_text()
    with connected(limited.bootstrap) as client:
        client.create_topic("t", 1, cleanup_policy="compact")
        assert client.produce("t", 0, packed_batch(1000)).error_code == ErrorCode.none
        refused = client.produce("t", 0, packed_batch(1001))
        assert refused.error_code == ErrorCode.message_too_large
        assert "(batch.unpacked.max.bytes)" in (refused.error_message or "")
        assert creation_error(client, "u", 4) == ErrorCode.none
        assert creation_error(client, "u", 5) == ErrorCode.invalid_partitions


def creation_error(client: RawClient, topic: str, partition_count: int) -> int:
    """Return the result of validating the creation of a topic."""
    wanted = {"name": topic, "num_partitions": partition_count, "replication_factor": 1, "assignments": ()}
    fields = {"topics": [wanted | {"configs": ()}], "timeout": milliseconds(10_000), "validate_only": True}
    return int(client.ask(apis.CREATE_TOPICS, 7, **fields).topics[0].error_code)


@pytest.mark.remedy(Remedy.FEWER_PARTITIONS, Remedy.DELETE_TOPICS)
def test_more_partitions_than_a_broker_serves(tmp_path: Path) -> None:
    with (
        testing.Broker(tmp_path / "data", settings={"max.partitions": "3"}) as broker,
        Cluster(broker.bootstrap_servers) as cluster,
    ):
        cluster.create_topic("t", 2)
        with pytest.raises(RequestRefused, match=r"\(max\.partitions\)") as raised:
            cluster.create_topic("u", 2)
        remedies.find(Remedy.FEWER_PARTITIONS, raised.value)
        cluster.create_topic("u", 1)
        remedies.find(Remedy.DELETE_TOPICS, raised.value)
        cluster.delete_topic("u")
        cluster.delete_topic("t")
        cluster.create_topic("t", 3)


@pytest.mark.remedy(Remedy.SET_AT_START)
def test_clients_cannot_change_broker_settings(tmp_path: Path) -> None:
    name, value = "log.retention.ms", "5000"
    resource = {"resource_type": BROKER, "resource_name": "1"}
    changes = [resource | {"configs": [{"name": name, "config_operation": SET, "value": value}]}]
    with testing.Broker(tmp_path / "data") as broker, connected(broker.bootstrap_servers) as client:
        response = client.ask(apis.INCREMENTAL_ALTER_CONFIGS, 1, resources=changes, validate_only=False)
        remedies.find(Remedy.SET_AT_START, response.responses[0].error_message)
    with (
        testing.Broker(tmp_path / "data", settings={name: value}) as broker,
        connected(broker.bootstrap_servers) as client,
    ):
        assert describe(client, BROKER, "1", name).configs[0].value == value


def test_a_broker_at_its_partition_limit(tmp_path: Path) -> None:
    with testing.Broker(tmp_path / "data", settings={"max.partitions": "1"}) as broker:
        broker.create_topic("t")
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "p"})
        producer.init_transactions(10)
        producer.begin_transaction()
        producer.produce("t", b"x")
        producer.commit_transaction(10)
        consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "g"})
        consumer.commit(offsets=[TopicPartition("t", 0, 1)], asynchronous=False)
        consumer.close()


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_decompressed_size_is_limited(codec: Codec) -> None:
    config = LogConfig(cleanup_compact=True, batch_unpacked_bytes_max=1000)
    check_records("t-0", packed_batch(1000, codec), 0, config, NOW_MS)
    with pytest.raises(MessageTooLarge, match=r"more than the 1000 bytes allowed.*\(batch\.unpacked\.max\.bytes\)"):
        check_records("t-0", packed_batch(1001, codec), 0, config, NOW_MS)


def test_an_uncompressed_batch_is_not_limited() -> None:
    check_records(
        "t-0", packed_batch(5000, Codec.NONE), 0, LogConfig(cleanup_compact=True, batch_unpacked_bytes_max=1000), NOW_MS
    )


@pytest.mark.parametrize(("unpacked_bytes", "is_found"), [(1000, True), (1001, False)])
def test_a_search_by_time_respects_it(unpacked_bytes: int, is_found: bool, tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", batch_unpacked_bytes_max=1000)
    log.append(packed_batch(unpacked_bytes))
    sync(log)
    for search in (log.visible.search_timestamp(NOW_MS), log.visible.search_max_timestamp()):
        if is_found:
            assert search() == (NOW_MS, 0)
        else:
            with pytest.raises(CorruptBatch, match="more than the 1000 bytes allowed"):
                search()


def test_a_compaction_respects_it(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", cleanup_compact=True, segment_bytes=200, batch_unpacked_bytes_max=1000)
    for _ in range(3):
        log.append(packed_batch(1000))
    sync(log)
    compact(log)
    log.reconfigure(replace(log.config, batch_unpacked_bytes_max=999))
    with pytest.raises(CorruptBatch, match="more than the 999 bytes allowed"):
        compact(log)


@pytest.mark.parametrize(("name", "error_code"), [("x" * 20, ErrorCode.none), ("x" * 21, ErrorCode.invalid_group_id)])
def test_group_names_are_limited(name: str, error_code: ErrorCode) -> None:
    groups = GroupCoordinator(ManualClock(), replace(CONFIG, group_name_bytes_max=20))
    assert groups.commit_error(name, "", -1) == error_code
    responses: list[JoinResponse] = []
    request = JoinRequest(name, "", "c", "/h", 10_000, 10_000, "consumer", (("range", b""),), False)
    for response in groups.join(request, responses.append).responses:
        response()
    assert [response.error_code for response in responses] == [error_code]


def test_the_wait_for_members_is_limited() -> None:
    scene = Scene(group_new_member_timeout_ms=20_000)
    scene.two_members()
    scene.join("c")
    for _ in range(4):
        assert scene.member_id("c")
        scene.advance(5_000)
        scene.beat("a", "b")
    assert "c" not in [member.client_id for member in scene.group.members.values()]


def test_interval_of_producer_expiry(tmp_path: Path) -> None:
    clock = ManualClock(NOW_MS)
    intervals: dict[str, Any] = {"producer_id_expiration_ms": 1_000, "producer_id_expiration_check_ms": 5_000}
    log = open_log(tmp_path / "t-0", clock=clock, **intervals)
    log.append(batch(b"x", producer_id=7))
    clock.advance_ms(4_999)
    log.append(batch(b"x", producer_id=8))
    assert len(log.producers) == 2
    clock.advance_ms(1)
    log.append(batch(b"x", producer_id=9))
    assert len(log.producers) == 2, "7 has expired, 8 was used a millisecond ago"


def test_delay_of_the_first_retention_check(tmp_path: Path) -> None:
    with (
        DrivenBroker(tmp_path / "data", retention_check_first_ms=2_000) as broker,
        connected(broker.bootstrap) as client,
    ):
        client.create_topic("t", retention_ms="1000")
        client.produce("t", 0, batch(b"x", timestamp_ms=broker.clock.now_ms()))
        broker.clock.advance_ms(2_000)
        eventually(lambda: broker.log("t").log_start_offset == 1, "what is too old is deleted")
