"""Topics and their records alone: what is decided, and that replay gives the same again."""

import itertools
import uuid

import pytest

from onceflow.broker import metadata_records, topic_configs
from onceflow.broker.metadata_records import (
    ConfigRecord,
    MetadataRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RemoveTopicRecord,
    TopicRecord,
    UnknownRecord,
)
from onceflow.broker.topics import PARTITIONS_MAX, NewTopic, TopicRefused, Topics
from onceflow.log.config import LogConfig
from onceflow.wire.errors import ErrorCode

TOPIC_ID = uuid.UUID(int=7)


def topics() -> Topics:
    numbers = itertools.count(1)
    return Topics(1, 1, make_uuid=lambda: uuid.UUID(int=next(numbers)))


def carry_out(state: Topics, records: list[MetadataRecord]) -> list[bytes]:
    encoded = [metadata_records.encode(record) for record in records]
    for value in encoded:
        state.replay(metadata_records.decode(value))
    return encoded


def test_replay_gives_the_topics_again() -> None:
    state, log = topics(), []
    log += carry_out(state, state.decide_create(NewTopic("kept", 3, configs={"segment.bytes": "2000000"})))
    log += carry_out(state, state.decide_create(NewTopic("gone", -1)))
    log += carry_out(state, state.decide_producer_ids())
    log += carry_out(state, state.decide_delete(state.by_name["gone"]))
    log += carry_out(state, state.decide_producer_ids())
    again = topics()
    for value in log:
        again.replay(metadata_records.decode(value))
    assert again.by_name == state.by_name
    assert again.by_name["kept"].partition_count == 3
    assert again.by_name["kept"].configs == {"segment.bytes": "2000000"}
    assert list(again.removed.values()) == ["gone"]
    assert again.next_producer_id == 2000


def test_a_topic_may_come_back_under_its_name_once_its_files_are_gone() -> None:
    state = topics()
    carry_out(state, state.decide_create(NewTopic("t", 1)))
    carry_out(state, state.decide_delete(state.by_name["t"]))
    state.being_deleted.add("t")
    with pytest.raises(TopicRefused, match="being deleted"):
        state.decide_create(NewTopic("t", 1))
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
        (NewTopic("__cluster_metadata", 1), ErrorCode.invalid_topic_exception),
        (NewTopic("t", PARTITIONS_MAX + 1), ErrorCode.invalid_partitions),
        (NewTopic("t", 1, 3), ErrorCode.invalid_replication_factor),
    ],
)
def test_topics_that_cannot_be(new: NewTopic, error_code: ErrorCode) -> None:
    with pytest.raises(TopicRefused) as refused:
        topics().decide_create(new)
    assert refused.value.error_code == error_code


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cleanup.policy", "compact"),
        ("retention.ms", "1000"),
        ("retention.bytes", "1"),
        ("message.timestamp.type", "LogAppendTime"),
        ("segment.bytes", "1_000_000_000"),
        ("segment.bytes", None),
        ("max.message.bytes", "-1"),
        ("unheard.of", "x"),
    ],
)
def test_a_configuration_that_would_be_ignored_is_refused_by_name(name: str, value: str | None) -> None:
    with pytest.raises(topic_configs.InvalidConfig, match=name.replace(".", r"\.")):
        topic_configs.check("t", {name: value})


def test_a_topics_configurations_reach_its_log() -> None:
    configs = {"segment.bytes": "2000000", "segment.ms": "5", "index.interval.bytes": "0", "retention.ms": "-1"}
    topic_configs.check("t", configs)
    config = topic_configs.log_config(LogConfig(), {**configs, "max.message.bytes": "99"})
    assert (config.segment_bytes, config.segment_ms, config.index_interval_bytes) == (2_000_000, 5, 0)
    assert config.message_bytes_max == 99


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
def test_records_come_back_as_they_were(record: MetadataRecord) -> None:
    assert metadata_records.decode(metadata_records.encode(record)) == record


def test_a_record_of_a_later_release_is_refused() -> None:
    value = metadata_records.encode(RemoveTopicRecord(TOPIC_ID))
    with pytest.raises(UnknownRecord, match="API key 99"):
        metadata_records.decode(value[:1] + b"\x63" + value[2:])
    with pytest.raises(UnknownRecord, match="version 5"):
        metadata_records.decode(value[:2] + b"\x05" + value[3:])


def test_kafkas_bytes() -> None:
    """Taken from what Apache Kafka 4.1's DumpLogSegments read as these records."""
    topic_id = uuid.UUID("5f5429cf-5866-4a47-9a78-6b2303bfab5a")
    assert metadata_records.encode(TopicRecord("t", topic_id)).hex() == f"010200027 4{topic_id.hex}00".replace(" ", "")
    expected = f"01030000000000{topic_id.hex}02000000010200000001010100000001000000000000000000"
    assert metadata_records.encode(PartitionRecord(0, topic_id, 1)).hex() == expected
