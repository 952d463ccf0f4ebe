"""Edge cases of Produce, Fetch and ListOffsets with the responses of Apache Kafka 4.1.1, found by tests/conformance.

ONCEFLOW_TEST_BOOTSTRAP=HOST:PORT pytest tests/broker/handlers/test_client_edge_cases.py
"""

from collections.abc import Iterator
from typing import Any

import pytest

from onceflow.wire import apis
from onceflow.wire.codecs import Codec
from onceflow.wire.errors import ErrorCode
from tests.broker.raw_client import RawClient, batch_of, connected
from tests.conformance.produce import request, rewritten
from tests.conformance.side import TIMEOUT
from tests.conformance.valid_requests import fetch_fields

NONE = ErrorCode.none
UNKNOWN = ErrorCode.unknown_topic_or_partition
FAR_FUTURE_MS = 4_000_000_000_000


@pytest.fixture
def client(bootstrap: str) -> Iterator[RawClient]:
    with connected(bootstrap) as opened:
        yield opened


def produced(client: RawClient, topic: str, batch: Any, *, version: int = 9, partition: int = 0, acks: int = -1) -> Any:
    fields = request(topic, (partition, batch), acks=acks)
    return client.ask(apis.PRODUCE, version, **fields).responses[0].partition_responses[0]


def test_impossible_batches_are_corrupt(client: RawClient, topic: str) -> None:
    client.create_topic(topic)
    changes = [{"batch_length": length} for length in (-1, 1, 13, 14, 48)]
    for change in ({"magic": 3}, {"magic": -1}, *changes):
        assert produced(client, topic, rewritten(batch_of(b"a"), **change)).error_code == ErrorCode.corrupt_message
    for change in ({"magic": 1}, {"batch_length": 1000}):
        assert produced(client, topic, rewritten(batch_of(b"a"), **change)).error_code == ErrorCode.invalid_record


def test_refusals_include_the_log_start(client: RawClient, topic: str) -> None:
    client.create_topic(topic)
    batches = [
        rewritten(batch_of(b"a"), record_count=2),
        batch_of(b"a", control=True),
        batch_of(b"a", timestamp_ms=FAR_FUTURE_MS),
        batch_of(b"a") + batch_of(b"b"),
        rewritten(batch_of(b"a"), crc=1),
    ]
    assert [produced(client, topic, batch).log_start_offset for batch in batches] == [0, 0, 0, -1, -1]


def test_zstd_requires_a_recent_version(client: RawClient, topic: str) -> None:
    client.create_topic(topic)
    batch = batch_of(b"a" * 100, codec=Codec.ZSTD)
    codes = [produced(client, topic, batch, version=version).error_code for version in (3, 6, 7, 9)]
    assert codes == [ErrorCode.unsupported_compression_type] * 2 + [NONE] * 2


def test_order_of_produce_checks(client: RawClient, topic: str) -> None:
    client.create_topic(topic)
    batch = batch_of(b"a")
    assert produced(client, topic, batch, partition=7, acks=5).error_code == UNKNOWN
    assert produced(client, topic, b"", acks=5).error_code == ErrorCode.invalid_record
    assert produced(client, "__cluster_metadata", batch).error_code == UNKNOWN
    assert produced(client, "__consumer_offsets", batch, partition=99).error_code == UNKNOWN
    assert produced(client, "__consumer_offsets", batch, acks=5).error_code == ErrorCode.invalid_required_acks


def fetched(client: RawClient, topic: str, **fields: Any) -> Any:
    return client.ask(apis.FETCH, 12, **fetch_fields(topic, (0, 0), **fields)).responses[0].partitions[0]


def test_replicas_and_isolation_levels(client: RawClient, topic: str) -> None:
    client.create_topic(topic)
    assert fetched(client, topic, replica_id=2).error_code == ErrorCode.not_leader_or_follower
    assert fetched(client, topic, isolation_level=2).error_code == ErrorCode.unknown_server_error
    response = client.ask(apis.FETCH, 12, **fetch_fields(topic, (0, 0), isolation_level=-1))
    assert response.error_code == ErrorCode.unknown_server_error
    assert fetched(client, topic, replica_id=-2, isolation_level=1).error_code == NONE


def test_a_missing_partition_has_no_aborted_transactions(client: RawClient, topic: str) -> None:
    partition = fetched(client, topic + "-no")
    assert (partition.error_code, partition.aborted_transactions) == (UNKNOWN, ())


def listed(client: RawClient, topic: str, *timestamps: int, version: int = 7, epoch: int = -1, **fields: Any) -> Any:
    asked = [{"partition_index": 0, "timestamp": time, "current_leader_epoch": epoch} for time in timestamps]
    topics = [{"name": topic, "partitions": asked}]
    values = {"replica_id": -1, "isolation_level": 0, "topics": topics, **fields}
    return client.ask(apis.LIST_OFFSETS, version, **values).topics[0].partitions


def test_list_offsets_at_its_edges(client: RawClient, topic: str) -> None:
    client.create_topic(topic)
    assert [result.error_code for result in listed(client, topic, -1, -2)] == [ErrorCode.invalid_request]
    assert listed(client, topic, -3, version=6)[0].error_code == ErrorCode.unsupported_version
    assert listed(client, topic, -1, isolation_level=5)[0].error_code == ErrorCode.unknown_server_error


def test_tiered_offsets_are_the_logs(client: RawClient, topic: str) -> None:
    client.create_topic(topic)
    client.produce(topic, 0, batch_of(b"a", b"b"))
    too_early = ErrorCode.unsupported_version
    for version, time, expected in (
        (7, -4, (too_early, -1)),
        (8, -4, (NONE, 0)),
        (8, -5, (too_early, -1)),
        (9, -5, (NONE, -1)),
        (10, -4, (NONE, 0)),
        (10, -6, (too_early, -1)),
    ):
        (partition,) = listed(client, topic, time, version=version, timeout=TIMEOUT)
        assert (partition.error_code, partition.offset) == expected, (version, time)


def test_an_older_leader_epoch_is_fenced(client: RawClient, topic: str) -> None:
    client.create_topic(topic)
    fenced = ErrorCode.fenced_leader_epoch
    assert listed(client, topic, -1, epoch=-2)[0].error_code == fenced
    asked = {"partition": 0, "current_leader_epoch": -2, "leader_epoch": 0}
    topics = [{"topic": topic, "partitions": [asked]}]
    response = client.ask(apis.OFFSET_FOR_LEADER_EPOCH, 4, replica_id=-1, topics=topics)
    assert response.topics[0].partitions[0].error_code == fenced
    fields = fetch_fields(topic, (0, 0))
    fields["topics"][0]["partitions"][0]["current_leader_epoch"] = -2
    assert client.ask(apis.FETCH, 12, **fields).responses[0].partitions[0].error_code == NONE, "means none there"


def test_fetches_without_a_session_are_complete(client: RawClient, topic: str) -> None:
    client.create_topic(topic)
    fields = fetch_fields(topic, (0, 0))
    not_found = ErrorCode.fetch_session_id_not_found
    for session, epoch, expected in ((77, 0, NONE), (77, -1, NONE), (77, 1, not_found), (0, 5, not_found)):
        response = client.ask(apis.FETCH, 12, **{**fields, "session_id": session, "session_epoch": epoch})
        assert (response.error_code, len(response.responses)) == (expected, 0 if expected else 1)


def test_coordinator_messages_are_kafkas(client: RawClient, topic: str) -> None:
    fields = {"key": topic, "key_type": 0, "coordinator_keys": [topic]}
    while client.ask(apis.FIND_COORDINATOR, 4, **fields).coordinators[0].error_code:
        pass  # Apache Kafka creates the topic first.
    assert [client.ask(apis.FIND_COORDINATOR, version, **fields).error_message for version in (1, 3)] == ["NONE"] * 2
    assert client.ask(apis.FIND_COORDINATOR, 4, **fields).coordinators[0].error_message == ""


def test_configs_without_a_broker_setting(client: RawClient, topic: str) -> None:
    client.create_topic(topic)
    resource = {"resource_type": 2, "resource_name": topic, "configuration_keys": ["remote.storage.enable"]}
    fields = {"resources": [resource], "include_synonyms": True, "include_documentation": False}
    (entry,) = client.ask(apis.DESCRIBE_CONFIGS, 4, **fields).results[0].configs
    assert (entry.value, entry.config_source, entry.synonyms) == ("false", 5, ())


def test_an_invalid_client_name_gets_no_versions(client: RawClient) -> None:
    for name, version in (("", "1"), ("a b", "1"), ("raw-", "1"), ("raw", ".1"), ("ä", "1")):
        for api_version in (3, 4):
            fields = {"client_software_name": name, "client_software_version": version}
            response = client.ask(apis.API_VERSIONS, api_version, **fields)
            assert (response.error_code, response.api_keys) == (ErrorCode.invalid_request, ())
    response = client.ask(apis.API_VERSIONS, 3, client_software_name="a-b.c", client_software_version="1.0-rc")
    assert response.error_code == NONE


def test_a_topic_by_name_and_id(client: RawClient, topic: str) -> None:
    client.create_topic(topic)
    flags = {"allow_auto_topic_creation": False, "include_topic_authorized_operations": False}
    by_name = {"name": topic, "topic_id": None}
    (metadata,) = client.ask(apis.METADATA, 12, topics=[by_name], **flags).topics
    by_id = {"name": None, "topic_id": metadata.topic_id}
    assert client.ask(apis.METADATA, 12, topics=[by_id, by_name], **flags).topics == (metadata,)


def test_impossible_topics_have_no_producers(client: RawClient) -> None:
    for name, code in (("a/b", ErrorCode.invalid_topic_exception), ("", ErrorCode.invalid_topic_exception)):
        response = client.ask(apis.DESCRIBE_PRODUCERS, 0, topics=[{"name": name, "partition_indexes": [0]}])
        assert response.topics[0].partitions[0].error_code == code


def test_transactional_offsets_need_group_and_id(client: RawClient, topic: str) -> None:
    client.create_topic(topic)
    place = {"partition_index": 0, "committed_offset": 5, "committed_leader_epoch": -1, "committed_metadata": ""}
    fields = {"producer_id": 5, "producer_epoch": 0, "topics": [{"name": topic, "partitions": [place]}]}
    for group, name, code in (("", topic, ErrorCode.invalid_group_id), ("g", "", ErrorCode.invalid_request)):
        response = client.ask(apis.TXN_OFFSET_COMMIT, 3, transactional_id=name, group_id=group, **fields)
        assert response.topics[0].partitions[0].error_code == code


def test_a_transaction_needs_an_id(client: RawClient, topic: str) -> None:
    client.create_topic(topic)
    batch = batch_of(b"a", producer_id=5, producer_epoch=0, base_sequence=0, transactional=True)
    fields = request(topic, (0, bytes(batch)), transactional_id="")
    response = client.ask(apis.PRODUCE, 9, **fields)
    assert response.responses[0].partition_responses[0].error_code == ErrorCode.invalid_request


def test_broker_settings_have_types_and_defaults(client: RawClient) -> None:
    resource = {"resource_type": 4, "resource_name": "1", "configuration_keys": None}
    fields = {"resources": [resource], "include_synonyms": True, "include_documentation": False}
    entries = {config.name: config for config in client.ask(apis.DESCRIBE_CONFIGS, 4, **fields).results[0].configs}
    types = {
        "unclean.leader.election.enable": 1,
        "compression.type": 2,
        "min.insync.replicas": 3,
        "offsets.commit.timeout.ms": 3,
        "offsets.topic.replication.factor": 4,
        "log.roll.jitter.ms": 5,
        "group.coordinator.rebalance.protocols": 7,
    }
    assert {name: entries[name].config_type for name in types} == types
    assert [synonym.source for synonym in entries["listeners"].synonyms] == [4, 5]
    assert [synonym.source for synonym in entries["log.dirs"].synonyms] == [4], "it has no default"
    assert [synonym.source for synonym in entries["num.partitions"].synonyms] == [5]
