"""Decisions about topics, and their replay from records."""

import itertools
import uuid

import pytest

from onceflow.broker.topics import records as metadata_records
from onceflow.broker.topics.records import (
    ConfigRecord,
    MetadataRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RemoveTopicRecord,
    TopicRecord,
    UnknownRecord,
)
from onceflow.broker.topics.topics import MorePartitions, NewTopic, TopicRefused, Topics
from onceflow.remedies import Remedy
from onceflow.wire.errors import ErrorCode
from tests import remedies

TOPIC_ID = uuid.UUID(int=7)


PARTITIONS_MAX = 20


def topics() -> Topics:
    numbers = itertools.count(1)
    return Topics(1, 1, PARTITIONS_MAX, make_uuid=lambda: uuid.UUID(int=next(numbers)))


def carry_out(state: Topics, records: list[MetadataRecord]) -> list[bytes]:
    encoded = [metadata_records.encode(record) for record in records]
    for value in encoded:
        state.replay(metadata_records.decode(value))
    return encoded


def test_replay_restores_the_topics() -> None:
    state, log = topics(), []
    log += carry_out(state, state.decide_create(NewTopic("kept", 3, configs={"segment.bytes": "2000000"})))
    log += carry_out(state, state.decide_create(NewTopic("deleted", -1)))
    log += carry_out(state, state.decide_producer_ids())
    log += carry_out(state, state.decide_delete(state.by_name["deleted"]))
    log += carry_out(state, state.decide_producer_ids())
    again = topics()
    for value in log:
        again.replay(metadata_records.decode(value))
    assert again.by_name == state.by_name
    assert again.by_name["kept"].partition_count == 3
    assert again.by_name["kept"].configs == {"segment.bytes": "2000000"}
    assert list(again.removed.values()) == ["deleted"]
    assert again.next_producer_id == 2000


@pytest.mark.remedy(Remedy.TRY_AGAIN)
def test_name_is_reserved_until_files_are_deleted() -> None:
    state = topics()
    carry_out(state, state.decide_create(NewTopic("t", 1)))
    carry_out(state, state.decide_delete(state.by_name["t"]))
    state.being_deleted.add("t")
    with pytest.raises(TopicRefused, match="being deleted") as raised:
        state.decide_create(NewTopic("t", 1))
    remedies.find(Remedy.TRY_AGAIN, raised.value)
    state.being_deleted.clear()
    carry_out(state, state.decide_create(NewTopic("t", 1)))
    assert state.by_name["t"].topic_id == uuid.UUID(int=2)


@pytest.mark.parametrize(
    ("new", "error_code"),
    [
        (NewTopic("", 1), ErrorCode.invalid_topic_exception),
        (NewTopic("..", 1), ErrorCode.invalid_topic_exception),
        (NewTopic("a\0b", 1), ErrorCode.invalid_topic_exception),
        (NewTopic("a\n", 1), ErrorCode.invalid_topic_exception),
        (NewTopic("__cluster_metadata", 1), ErrorCode.invalid_request),
        (NewTopic("t", PARTITIONS_MAX + 1), ErrorCode.invalid_partitions),
        (NewTopic("t", 1, 3), ErrorCode.invalid_replication_factor),
        (NewTopic("t", 1, 0), ErrorCode.invalid_replication_factor),
        (NewTopic("t", -1, -1, assignments=[(0, (2,))]), ErrorCode.invalid_replica_assignment),
        (NewTopic("t", -1, -1, assignments=[(0, (1, 2))]), ErrorCode.invalid_replica_assignment),
        (NewTopic("t", -1, -1, assignments=[(0, (1, 1))]), ErrorCode.invalid_replica_assignment),
        (NewTopic("t", -1, -1, assignments=[(0, ())]), ErrorCode.invalid_replica_assignment),
        (NewTopic("t", -1, -1, assignments=[(1, (1,))]), ErrorCode.invalid_replica_assignment),
        (NewTopic("t", -1, -1, assignments=[(0, (1,)), (0, (1,))]), ErrorCode.invalid_replica_assignment),
        (NewTopic("t", 1, -1, assignments=[(0, (1,))]), ErrorCode.invalid_request),
        (NewTopic("t", -1, 1, assignments=[(0, (1,))]), ErrorCode.invalid_request),
    ],
)
def test_invalid_topics_are_refused(new: NewTopic, error_code: ErrorCode) -> None:
    with pytest.raises(TopicRefused) as refused:
        topics().decide_create(new)
    assert refused.value.error_code == error_code


def test_names_with_same_metric_name_collide() -> None:
    state = topics()
    carry_out(state, state.decide_create(NewTopic("a.b_c", 1)))
    with pytest.raises(TopicRefused, match=r"collides with existing topic: a\.b_c"):
        state.decide_create(NewTopic("a_b.c", 1))
    carry_out(state, state.decide_delete(state.by_name["a.b_c"]))
    assert state.decide_create(NewTopic("a_b.c", 1))


def test_partitions_and_configurations_are_replayed() -> None:
    state, log = topics(), []
    log += carry_out(state, state.decide_create(NewTopic("t", 2, configs={"retention.ms": "5", "segment.ms": "7"})))
    topic = state.by_name["t"]
    log += carry_out(state, state.decide_more_partitions(MorePartitions("t", 4, [(1,), (1,)])))
    log += carry_out(state, state.decide_configs(topic, {"segment.ms": "7", "cleanup.policy": "compact, delete"}))
    again = topics()
    for value in log:
        again.replay(metadata_records.decode(value))
    assert again.by_name == state.by_name
    assert (topic.partition_count, again.partition_count) == (4, 4)
    assert topic.configs == {"segment.ms": "7", "cleanup.policy": "compact,delete"}
    assert state.decide_configs(topic, topic.configs) == [], "an unchanged configuration needs no record"


@pytest.mark.parametrize(
    ("more", "error_code"),
    [
        (MorePartitions("t", 2), ErrorCode.invalid_partitions),
        (MorePartitions("t", 1), ErrorCode.invalid_partitions),
        (MorePartitions("t", -1), ErrorCode.invalid_partitions),
        (MorePartitions("t", PARTITIONS_MAX + 1), ErrorCode.invalid_partitions),
        (MorePartitions("no", 3), ErrorCode.unknown_topic_or_partition),
        (MorePartitions("__consumer_offsets", 3), ErrorCode.invalid_partitions),
        (MorePartitions("t", 4, [(1,)]), ErrorCode.invalid_replica_assignment),
        (MorePartitions("t", 3, []), ErrorCode.invalid_replica_assignment),
        (MorePartitions("t", 3, [(2,)]), ErrorCode.invalid_replica_assignment),
        (MorePartitions("t", 3, [(1, 2)]), ErrorCode.invalid_replica_assignment),
        (MorePartitions("t", 3, [()]), ErrorCode.invalid_replica_assignment),
    ],
)
def test_invalid_partitions_are_refused(more: MorePartitions, error_code: ErrorCode) -> None:
    state = topics()
    carry_out(state, state.decide_create(NewTopic("t", 2)))
    carry_out(state, state.decide_create(NewTopic("__consumer_offsets", 1)))
    with pytest.raises(TopicRefused) as refused:
        state.decide_more_partitions(more)
    assert refused.value.error_code == error_code


def test_stale_deletion_is_refused() -> None:
    state = topics()
    carry_out(state, state.decide_create(NewTopic("t", 1)))
    old = state.by_name["t"]
    carry_out(state, state.decide_delete(old))
    with pytest.raises(TopicRefused, match="deleted already"):
        state.decide_delete(old)
    carry_out(state, state.decide_create(NewTopic("t", 1)))
    with pytest.raises(TopicRefused, match="deleted already"):
        state.decide_delete(old)
    with pytest.raises(TopicRefused, match="does not exist"):
        state.decide_configs(old, {})


def test_second_removal_has_no_effect() -> None:
    state = topics()
    carry_out(state, state.decide_create(NewTopic("t", 3)))
    removal = state.decide_delete(state.by_name["t"])
    carry_out(state, removal)
    carry_out(state, removal)
    assert (state.by_name, state.by_id, state.partition_count) == ({}, {}, 0)
    assert list(state.removed.values()) == ["t"]


@pytest.mark.parametrize(
    "record",
    [
        TopicRecord("t" * 249, TOPIC_ID),
        PartitionRecord(300, TOPIC_ID, 1),
        ConfigRecord("t", "name", "value"),
        ConfigRecord("t", "name", ""),
        ConfigRecord("t", "name", None),
        RemoveTopicRecord(TOPIC_ID),
        ProducerIdsRecord(1, 2**40),
    ],
)
def test_records_round_trip(record: MetadataRecord) -> None:
    assert metadata_records.decode(metadata_records.encode(record)) == record


def test_record_of_later_release_is_refused() -> None:
    value = metadata_records.encode(RemoveTopicRecord(TOPIC_ID))
    with pytest.raises(UnknownRecord, match="API key 99"):
        metadata_records.decode(value[:1] + b"\x63" + value[2:])
    with pytest.raises(UnknownRecord, match="version 5"):
        metadata_records.decode(value[:2] + b"\x05" + value[3:])


def test_bytes_are_kafkas() -> None:
    """The bytes are those that Apache Kafka 4.1's DumpLogSegments reads as these records."""
    topic_id = uuid.UUID("5f5429cf-5866-4a47-9a78-6b2303bfab5a")
    assert metadata_records.encode(TopicRecord("t", topic_id)).hex() == f"010200027 4{topic_id.hex}00".replace(" ", "")
    expected = f"01030000000000{topic_id.hex}02000000010200000001010100000001000000000000000000"
    assert metadata_records.encode(PartitionRecord(0, topic_id, 1)).hex() == expected
