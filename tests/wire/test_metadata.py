"""Hand-written Metadata responses read by kio: every version, every kind of topic."""

import uuid
from typing import Any

import pytest

from onceflow.wire import apis, metadata
from onceflow.wire.errors import ErrorCode
from onceflow.wire.frames import decode_response, encode_joined
from onceflow.wire.primitives import append_count

TOPIC_ID = uuid.UUID(int=77)
VERSIONS = range(metadata.VERSION_MAX + 1)


def response(version: int, *topics: bytes, operations: int = metadata.OPERATIONS_NOT_REQUESTED) -> Any:
    head = metadata.encode_head(version, [(7, "hôst", 9092, None)], "cluster", 7)
    tail = metadata.encode_tail(version, operations)
    count, flexible = bytearray(), version >= metadata.FLEXIBLE_FROM
    append_count(count, len(topics), flexible=flexible)
    frame = encode_joined(5, (head, bytes(count), *topics, tail), flexible=flexible)
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    correlation_id, payload = decode_response(apis.METADATA, version, frame[4:])
    assert correlation_id == 5
    return payload


def served_topic(version: int, partition_count: int) -> bytes:
    return metadata.encode_topic(
        version, 0, "t.öpic", TOPIC_ID, is_internal=True, partition_count=partition_count, broker_id=7, leader_epoch=3,
        operations=3576,
    )  # fmt: skip


@pytest.mark.parametrize("version", VERSIONS)
def test_a_topic_comes_back_field_by_field(version: int) -> None:
    payload = response(version, served_topic(version, 300), operations=8096)
    (broker,) = payload.brokers
    assert (broker.node_id, broker.host, broker.port, getattr(broker, "rack", None)) == (7, "hôst", 9092, None)
    expected = {"controller_id": 7, "cluster_id": "cluster", "cluster_authorized_operations": 8096}
    assert {name: getattr(payload, name, value) for name, value in expected.items()} == expected
    (topic,) = payload.topics
    expected = {
        "error_code": 0,
        "name": "t.öpic",
        "topic_id": TOPIC_ID,
        "is_internal": True,
        "topic_authorized_operations": 3576,
    }
    assert {name: getattr(topic, name, value) for name, value in expected.items()} == expected
    assert [partition.partition_index for partition in topic.partitions] == list(range(300))
    for partition in topic.partitions:
        assert (partition.error_code, partition.leader_id, getattr(partition, "leader_epoch", 3)) == (0, 7, 3)
        assert (partition.replica_nodes, partition.isr_nodes) == ((7,), (7,))
        assert getattr(partition, "offline_replicas", ()) == ()


@pytest.mark.parametrize("version", VERSIONS)
def test_refused_and_nameless_topics(version: int) -> None:
    unknown = metadata.encode_topic(version, ErrorCode.unknown_topic_or_partition, "no", None)
    by_id = metadata.encode_topic(version, ErrorCode.unknown_topic_id, None, TOPIC_ID)
    first, second = response(version, unknown, by_id).topics
    assert (first.error_code, first.name, first.partitions) == (ErrorCode.unknown_topic_or_partition, "no", ())
    assert second.name == (None if version >= 12 else "")
    assert getattr(second, "topic_id", TOPIC_ID) == TOPIC_ID
    assert response(version).topics == ()


@pytest.mark.parametrize("version", VERSIONS)
def test_versions_of_one_layout_share_their_bytes(version: int) -> None:
    assert served_topic(metadata.LAYOUTS[version], 3) == served_topic(version, 3)
