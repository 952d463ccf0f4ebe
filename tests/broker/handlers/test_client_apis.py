"""Responses to the requests of producers and consumers, errors above all. All tests pass against Apache Kafka too:

ONCEFLOW_TEST_BOOTSTRAP=HOST:PORT pytest tests/broker/handlers/test_client_apis.py
"""

import dataclasses
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from onceflow.broker.config import BrokerConfig
from onceflow.wire import apis, fetch
from onceflow.wire.batch import batches, decode_batch
from onceflow.wire.errors import ErrorCode
from onceflow.wire.fetch import READ_COMMITTED
from onceflow.wire.frames import request_class
from tests.broker.raw_client import FETCH_VERSION, RawClient, batch_of, connected, fetch_request, milliseconds

SESSION = {"session_timeout": milliseconds(10_000), "rebalance_timeout": milliseconds(10_000)}
NO_AUTHORIZED_OPERATIONS = {
    "include_cluster_authorized_operations": False,
    "include_topic_authorized_operations": False,
}


@pytest.fixture
def client(bootstrap: str) -> Iterator[RawClient]:
    with connected(bootstrap) as opened:
        yield opened


def metadata(client: RawClient, *names: str, create: bool = False) -> Any:
    asked = [{"name": name, "topic_id": None} for name in names]
    return client.ask(apis.METADATA, 12, topics=asked, allow_auto_topic_creation=create, **NO_AUTHORIZED_OPERATIONS)


def list_offset(client: RawClient, topic: str, timestamp: int, partition: int = 0) -> Any:
    asked = [{"partition_index": partition, "timestamp": timestamp}]
    response = client.ask(
        apis.LIST_OFFSETS, 7, replica_id=-1, isolation_level=0, topics=[{"name": topic, "partitions": asked}]
    )
    return response.topics[0].partitions[0]


def join(
    client: RawClient, group: str, member_id: str = "", protocols: tuple[str, ...] = ("range",), **fields: Any
) -> Any:
    values = {**SESSION, "protocol_type": "consumer", "reason": None, **fields}
    named = [{"name": name, "metadata": b"m"} for name in protocols]
    return client.ask(apis.JOIN_GROUP, 9, group_id=group, member_id=member_id, protocols=named, **values)


def sync(client: RawClient, group: str, member_id: str, generation: int, assignments: dict[str, bytes]) -> Any:
    given = [{"member_id": value, "assignment": assignment} for value, assignment in assignments.items()]
    return client.ask(
        apis.SYNC_GROUP, 5, group_id=group, generation_id=generation, member_id=member_id, assignments=given,
        protocol_type="consumer", protocol_name="range",
    )  # fmt: skip


def heartbeat(client: RawClient, group: str, member_id: str, generation: int) -> ErrorCode:
    response = client.ask(apis.HEARTBEAT, 4, group_id=group, generation_id=generation, member_id=member_id)
    return ErrorCode(response.error_code)


def leave(client: RawClient, group: str, *member_ids: str) -> list[ErrorCode]:
    members = [{"member_id": member_id, "group_instance_id": None} for member_id in member_ids]
    response = client.ask(apis.LEAVE_GROUP, 5, group_id=group, members=members)
    return [member.error_code for member in response.members]


def commit(client: RawClient, group: str, topic: str, offset: int, **fields: Any) -> ErrorCode:
    partition = {
        "partition_index": fields.pop("partition", 0),
        "committed_offset": offset,
        "committed_metadata": fields.pop("metadata", ""),
    }
    values = {"generation_id_or_member_epoch": -1, "member_id": "", **fields}
    response = client.ask(
        apis.OFFSET_COMMIT, 8, group_id=group, topics=[{"name": topic, "partitions": [partition]}], **values
    )
    return ErrorCode(response.topics[0].partitions[0].error_code)


def committed(client: RawClient, group: str, topic: str, version: int = 8) -> int:
    topics = [{"name": topic, "partition_indexes": [0]}]
    if version >= 8:
        response = client.ask(apis.OFFSET_FETCH, version, groups=[{"group_id": group, "topics": topics}]).groups[0]
    else:
        response = client.ask(apis.OFFSET_FETCH, version, group_id=group, topics=topics)
    return int(response.topics[0].partitions[0].committed_offset)


def create(client: RawClient, name: str, partitions: int = 1, factor: int = 1, **configs: str) -> Any:
    wanted = {
        "name": name,
        "num_partitions": partitions,
        "replication_factor": factor,
        "assignments": (),
        "configs": [{"name": config.replace("_", "."), "value": value} for config, value in configs.items()],
    }
    response = client.ask(apis.CREATE_TOPICS, 7, topics=[wanted], timeout=milliseconds(10_000), validate_only=False)
    return response.topics[0]


def join_alone(client: RawClient, group: str) -> tuple[str, int]:
    """Join one member to a stable group; return (member id, generation)."""
    member_id = join(client, group).member_id
    joined = join(client, group, member_id)
    assert joined.error_code == 0
    assert joined.leader == member_id
    assert [member.member_id for member in joined.members] == [member_id]
    assert sync(client, group, member_id, joined.generation_id, {member_id: b"mine"}).assignment == b"mine"
    return member_id, joined.generation_id


def test_unsupported_api_versions_request_gets_version_0(client: RawClient) -> None:
    no_tagged_fields = b"\x00"
    frame = struct.pack(">hhih", apis.API_VERSIONS, 99, 7, -1) + no_tagged_fields
    client.socket.sendall(struct.pack(">i", len(frame)) + frame)
    response = client.receive(apis.API_VERSIONS, 0)
    assert response.error_code == ErrorCode.unsupported_version
    assert [key.api_key for key in response.api_keys] == [apis.API_VERSIONS]


@pytest.mark.parametrize("version", range(4))
def test_api_versions_offers_what_clients_need(client: RawClient, version: int) -> None:
    response = client.ask(apis.API_VERSIONS, version, client_software_name="raw", client_software_version="1")
    offered = {key.api_key: (key.min_version, key.max_version) for key in response.api_keys}
    assert offered[apis.PRODUCE][0] == 0, "librdkafka before 2.11 compresses only then"
    assert all(offered[api.key][1] >= api.version_max for api in apis.APIS.values())


TIMEOUT = milliseconds(5000)
EVERY_FIELD: dict[int, dict[str, Any]] = {
    apis.LIST_OFFSETS: {"replica_id": -1, "isolation_level": 0, "timeout": TIMEOUT},
    apis.METADATA: {"topics": [{"name": "no-such", "topic_id": None}], "allow_auto_topic_creation": False},
    apis.OFFSET_COMMIT: {"generation_id_or_member_epoch": -1, "member_id": "", "retention_time": milliseconds(-1)},
    apis.OFFSET_FETCH: {"require_stable": False},
    apis.FIND_COORDINATOR: {"key": "g", "key_type": 0, "coordinator_keys": ["g"]},
    apis.JOIN_GROUP: {"session_timeout": TIMEOUT, "rebalance_timeout": TIMEOUT, "protocol_type": "consumer"},
    apis.HEARTBEAT: {"generation_id": 1},
    apis.LEAVE_GROUP: {"members": [{"member_id": "m", "group_instance_id": None}]},
    apis.SYNC_GROUP: {"generation_id": 1, "assignments": ()},
    apis.API_VERSIONS: {"client_software_name": "raw", "client_software_version": "1"},
    apis.CREATE_TOPICS: {"timeout": TIMEOUT, "validate_only": False},
    apis.DELETE_TOPICS: {"timeout": TIMEOUT, "topic_names": ["no-such"]},
    apis.INIT_PRODUCER_ID: {"transactional_id": None, "transaction_timeout": TIMEOUT},
}
IN_A_GROUP = {"group_id": "g", "member_id": "m", "protocols": [{"name": "range", "metadata": b""}]}
OTHERS = {"topics": (), "groups": (), **NO_AUTHORIZED_OPERATIONS, **IN_A_GROUP}


@pytest.mark.parametrize("api_key", EVERY_FIELD)
def test_every_version_has_a_response(client: RawClient, api_key: int) -> None:
    api = apis.APIS[api_key]
    for version in range(api.version_min, min(api.version_max, 3 if api_key == apis.API_VERSIONS else 99) + 1):
        known = {field.name for field in dataclasses.fields(request_class(api_key, version))}
        fields = {name: value for name, value in {**OTHERS, **EVERY_FIELD[api_key]}.items() if name in known}
        client.ask(api_key, version, **fields)


def test_metadata_of_unknown_and_invalid_topics(client: RawClient, topic: str) -> None:
    codes = [entry.error_code for entry in metadata(client, topic, "no/good", ".").topics]
    assert codes == [ErrorCode.unknown_topic_or_partition] + [ErrorCode.invalid_topic_exception] * 2


def test_metadata_by_name_and_id(client: RawClient, topic: str) -> None:
    client.create_topic(topic, 3)
    (by_name,) = metadata(client, topic).topics
    assert sorted(partition.partition_index for partition in by_name.partitions) == [0, 1, 2]
    asked = [{"name": None, "topic_id": by_name.topic_id}]
    (by_id,) = client.ask(apis.METADATA, 12, topics=asked, **NO_AUTHORIZED_OPERATIONS).topics
    assert by_id.name == topic


@pytest.mark.parametrize("version", range(13))
def test_every_metadata_version_lists_the_topics(client: RawClient, topic: str, version: int) -> None:
    client.create_topic(topic)
    response = client.ask(apis.METADATA, version, topics=() if version == 0 else None, **NO_AUTHORIZED_OPERATIONS)
    assert topic in [topic.name for topic in response.topics]
    assert len(response.brokers) == 1


def test_a_topic_is_created_once(client: RawClient, topic: str) -> None:
    created = create(client, topic, 2, max_message_bytes="5000")
    assert (created.error_code, created.num_partitions, created.replication_factor) == (0, 2, 1)
    assert ("max.message.bytes", "5000") in [(config.name, config.value) for config in created.configs]
    assert create(client, topic).error_code == ErrorCode.topic_already_exists


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"name": "no/good"}, ErrorCode.invalid_topic_exception),
        ({"name": "x" * 250}, ErrorCode.invalid_topic_exception),
        ({"partitions": 0}, ErrorCode.invalid_partitions),
        ({"partitions": -2}, ErrorCode.invalid_partitions),
        ({"factor": 2}, ErrorCode.invalid_replication_factor),
        ({"segment_bytes": "12"}, ErrorCode.invalid_config),
        ({"segment_bytes": "many"}, ErrorCode.invalid_config),
        ({"no_such_thing": "1"}, ErrorCode.invalid_config),
    ],
)
def test_topics_that_cannot_be_created(client: RawClient, topic: str, fields: dict[str, Any], expected: int) -> None:
    assert create(client, **{"name": topic, **fields}).error_code == expected
    assert metadata(client, topic).topics[0].error_code == ErrorCode.unknown_topic_or_partition


def test_a_repeated_topic_is_refused(client: RawClient, topic: str) -> None:
    wanted = {"name": topic, "num_partitions": 1, "replication_factor": 1, "assignments": (), "configs": ()}
    response = client.ask(apis.CREATE_TOPICS, 7, topics=[wanted, wanted], timeout=milliseconds(10_000))
    assert {topic.error_code for topic in response.topics} == {ErrorCode.invalid_request}


def test_deleting_topics_by_name_and_id(client: RawClient, topic: str) -> None:
    client.create_topic(topic)
    topic_id = metadata(client, topic).topics[0].topic_id
    named = [{"name": None, "topic_id": topic_id}, {"name": topic + "-no", "topic_id": None}]
    response = client.ask(apis.DELETE_TOPICS, 6, topics=named, timeout=milliseconds(10_000))
    assert sorted(response.error_code for response in response.responses) == [0, ErrorCode.unknown_topic_or_partition]
    response = client.ask(apis.DELETE_TOPICS, 5, topic_names=[topic], timeout=milliseconds(10_000))
    assert response.responses[0].error_code == ErrorCode.unknown_topic_or_partition


def test_produced_records_are_fetched(client: RawClient, topic: str) -> None:
    client.create_topic(topic)
    assert client.produce(topic, 0, batch_of(b"a", b"b"))[1:3] == (0, 0)
    assert client.produce(topic, 0, batch_of(b"c"))[1:3] == (0, 2)
    (fetched,) = client.fetch([(topic, 0, 1)], isolation_level=READ_COMMITTED)
    assert (fetched.high_watermark, fetched.last_stable_offset, fetched.log_start_offset) == (3, 3, 0)
    records = [record for at, _header in batches(fetched.records) for record in decode_batch(fetched.records, at)]
    assert [(record.offset, record.value) for record in records] == [(0, b"a"), (1, b"b"), (2, b"c")]


def damaged(**change: int) -> bytearray:
    """Return a batch with the byte `at` changed to `to`."""
    batch = batch_of(b"value")
    batch[change["at"]] = change["to"]
    return batch


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        (damaged(at=65, to=255), ErrorCode.corrupt_message),
        (damaged(at=16, to=1), ErrorCode.invalid_record),
        (batch_of(b"a") + batch_of(b"b"), ErrorCode.invalid_record),
        (batch_of(b"a", control=True), ErrorCode.invalid_record),
        (batch_of(b"x" * 1_100_000), ErrorCode.message_too_large),
        (batch_of(b"a", timestamp_ms=4_000_000_000_000), ErrorCode.invalid_timestamp),
    ],
    ids=["CRC", "magic", "two batches", "control", "too large", "future"],
)
def test_batches_that_are_refused(client: RawClient, topic: str, batch: bytearray, expected: ErrorCode) -> None:
    client.create_topic(topic)
    assert client.produce(topic, 0, batch).error_code == expected
    assert list_offset(client, topic, -1).offset == 0


def test_produce_to_missing_partitions(client: RawClient, topic: str) -> None:
    client.create_topic(topic)
    assert client.produce(topic, 1, batch_of(b"a")).error_code == ErrorCode.unknown_topic_or_partition
    assert client.produce(topic + "-no", 0, batch_of(b"a")).error_code == ErrorCode.unknown_topic_or_partition
    assert client.produce(topic, 0, batch_of(b"a"), acks=7).error_code == ErrorCode.invalid_required_acks
    assert client.produce("__consumer_offsets", 0, batch_of(b"a")).error_code == ErrorCode.invalid_topic_exception


def test_rule_18_acks_0_and_1(client: RawClient, topic: str) -> None:
    client.create_topic(topic)
    client.send_batch(topic, 0, batch_of(b"silent"), acks=0)
    assert client.produce(topic, 0, batch_of(b"early"), acks=1).base_offset == 1
    (fetched,) = client.fetch([(topic, 0, 0)], wait_ms=60_000, min_bytes=140)
    assert fetched.high_watermark == 2


def test_rule_18_acks_0_errors_close(bootstrap: str, client: RawClient, topic: str) -> None:
    client.create_topic(topic)
    other = RawClient(bootstrap)
    other.send_batch(topic, 7, batch_of(b"nowhere"), acks=0)
    assert other.receive_frame() == b""
    other.close()


def test_rule_15_segment_end_responds_at_once(client: RawClient, topic: str) -> None:
    client.create_topic(topic, segment_bytes=str(1024 * 1024))
    for _ in range(2):
        client.produce(topic, 0, batch_of(b"x" * 900_000))
    (fetched,) = client.fetch([(topic, 0, 0)], wait_ms=60_000, min_bytes=1_500_000, max_bytes=5_000_000)
    assert len(fetched.records) < 1_000_000, "of the older segment alone, although more was asked for"


def test_idempotent_batches_are_deduplicated(client: RawClient, topic: str) -> None:
    client.create_topic(topic)
    asked = {"transactional_id": None, "transaction_timeout": milliseconds(1000)}
    ids = [client.ask(apis.INIT_PRODUCER_ID, 4, **asked) for _ in range(2)]
    assert ids[0].producer_id != ids[1].producer_id
    assert [producer.producer_epoch for producer in ids] == [0, 0]

    def send(sequence: int, epoch: int = 0) -> tuple[int, int]:
        producer = {"producer_id": ids[0].producer_id, "producer_epoch": epoch, "base_sequence": sequence}
        response = client.produce(topic, 0, batch_of(b"a", b"b", **producer))
        return response.error_code, response.base_offset

    assert [send(0), send(2), send(0), send(2)] == [(0, 0), (0, 2), (0, 0), (0, 2)]
    assert send(9) == (ErrorCode.out_of_order_sequence_number, -1)
    assert send(0, epoch=1) == (0, 4)
    assert send(4)[0] == ErrorCode.invalid_producer_epoch


def test_rule_11_fetch_outside_the_log(client: RawClient, topic: str) -> None:
    client.create_topic(topic)
    client.produce(topic, 0, batch_of(b"a"))
    (at_end,) = client.fetch([(topic, 0, 1)])
    assert (at_end.error_code, at_end.high_watermark, bytes(at_end.records)) == (0, 1, b"")
    for offset in (2, -5):
        (outside,) = client.fetch([(topic, 0, offset)], wait_ms=5000)
        assert (outside.error_code, outside.high_watermark) == (ErrorCode.offset_out_of_range, -1)
    (missing,) = client.fetch([(topic, 9, 0)], wait_ms=5000)
    assert missing.error_code == ErrorCode.unknown_topic_or_partition


def test_a_later_leader_epoch_is_refused(client: RawClient, topic: str) -> None:
    client.create_topic(topic)
    client.produce(topic, 0, batch_of(b"a"))
    for epoch, error_code in ((0, ErrorCode.none), (1, ErrorCode.unknown_leader_epoch)):
        request = fetch_request([(topic, 0, 0)])
        ((_topic, (asked,)),) = request.topics
        request = request._replace(topics=[(topic, [asked._replace(current_leader_epoch=epoch)])])
        client.socket.sendall(fetch.encode_request(FETCH_VERSION, 1, "raw", request))
        (fetched,) = fetch.parse_response(FETCH_VERSION, client.receive_frame()).partitions
        assert fetched.error_code == error_code


def test_rule_14_fetch_limits_are_soft(client: RawClient, topic: str) -> None:
    client.create_topic(topic, 2)
    size_bytes = len(batch_of(b"x" * 1000))
    for partition in (0, 0, 1):
        client.produce(topic, partition, batch_of(b"x" * 1000))
    asked = [(topic, 0, 0), (topic, 1, 0)]
    assert [len(partition.records) for partition in client.fetch(asked, max_bytes=10)] == [size_bytes, 0]
    assert [len(partition.records) for partition in client.fetch(asked, partition_max_bytes=10)] == [size_bytes, 0]
    both = client.fetch(asked, max_bytes=2 * size_bytes + 10)
    assert [len(partition.records) for partition in both] == [2 * size_bytes, 0]


def test_list_offsets(client: RawClient, topic: str) -> None:
    client.create_topic(topic)
    latest = list_offset(client, topic, -1)
    assert (latest.error_code, latest.offset) == (0, 0)
    client.produce(topic, 0, batch_of(b"a", b"b", b"c", timestamp_ms=1_700_000_000_000))
    offsets = {at: list_offset(client, topic, at) for at in (-1, -2, -3, 1_700_000_000_001, 1_800_000_000_000)}
    assert [(result.offset, result.timestamp) for result in offsets.values()] == [
        (3, -1),
        (0, -1),
        (2, 1_700_000_000_002),
        (1, 1_700_000_000_001),
        (-1, -1),
    ]
    assert list_offset(client, topic, -1, partition=5).error_code == ErrorCode.unknown_topic_or_partition


@pytest.mark.parametrize("version", range(5))
def test_the_coordinator_of_a_group(client: RawClient, topic: str, version: int) -> None:
    response = client.ask(apis.FIND_COORDINATOR, version, key=topic, key_type=0, coordinator_keys=[topic])
    coordinator = response.coordinators[0] if version >= 4 else response
    assert coordinator.error_code in (ErrorCode.none, ErrorCode.coordinator_not_available)


def test_one_member_from_join_to_leave(client: RawClient, topic: str) -> None:
    member_id, generation = join_alone(client, topic)
    assert heartbeat(client, topic, member_id, generation) == ErrorCode.none
    assert heartbeat(client, topic, member_id, generation + 1) == ErrorCode.illegal_generation
    assert heartbeat(client, topic, "stranger", generation) == ErrorCode.unknown_member_id
    assert heartbeat(client, topic + "-no", member_id, generation) == ErrorCode.unknown_member_id
    assert sync(client, topic, member_id, generation + 1, {}).error_code == ErrorCode.illegal_generation
    assert leave(client, topic, "stranger", member_id) == [ErrorCode.unknown_member_id, ErrorCode.none]
    assert heartbeat(client, topic, member_id, generation) == ErrorCode.unknown_member_id


def test_joins_that_are_refused(client: RawClient, topic: str) -> None:
    required = join(client, topic)
    assert required.error_code == ErrorCode.member_id_required
    assert required.member_id.startswith("raw-")
    assert join(client, topic, "stranger").error_code == ErrorCode.unknown_member_id
    assert join(client, "").error_code == ErrorCode.invalid_group_id
    brief = join(client, topic, session_timeout=milliseconds(10))
    assert brief.error_code == ErrorCode.invalid_session_timeout
    join_alone(client, topic)
    assert join(client, topic, protocols=("other",)).error_code == ErrorCode.inconsistent_group_protocol
    assert join(client, topic, protocol_type="connect").error_code == ErrorCode.inconsistent_group_protocol


def test_a_second_member_causes_a_rebalance(client: RawClient, bootstrap: str, topic: str) -> None:
    first, generation = join_alone(client, topic)
    with connected(bootstrap) as other:
        second = join(other, topic).member_id
        named = [{"name": "range", "metadata": b"m"}]
        fields = {**SESSION, "protocol_type": "consumer", "protocols": named}
        other.send(apis.JOIN_GROUP, 9, group_id=topic, member_id=second, **fields)
        while heartbeat(client, topic, first, generation) != ErrorCode.rebalance_in_progress:
            pass
        assert sync(client, topic, first, generation, {}).error_code == ErrorCode.rebalance_in_progress
        joined = join(client, topic, first)
        followed = other.receive(apis.JOIN_GROUP, 9)
        assert joined.generation_id == followed.generation_id == generation + 1
        assert joined.leader == followed.leader == first
        assert {member.member_id for member in joined.members} == {first, second}
        assert followed.members == ()
        assert commit(client, topic, topic, 1, member_id=first, generation_id_or_member_epoch=generation + 1) in (
            ErrorCode.rebalance_in_progress,
            ErrorCode.unknown_topic_or_partition,
        )
        other.send(
            apis.SYNC_GROUP, 5, group_id=topic, generation_id=generation + 1, member_id=second, assignments=(),
            protocol_type="consumer", protocol_name="range",
        )  # fmt: skip
        assert sync(client, topic, first, generation + 1, {first: b"1", second: b"2"}).assignment == b"1"
        assert other.receive(apis.SYNC_GROUP, 5).assignment == b"2"


def test_offsets_are_committed_and_fetched(client: RawClient, topic: str) -> None:
    client.create_topic(topic)
    assert committed(client, topic, topic) == -1
    assert commit(client, topic, topic, 42) == ErrorCode.none
    assert [committed(client, topic, topic, version) for version in range(1, 9)] == [42] * 8
    assert commit(client, topic, topic, 1, partition=7) == ErrorCode.unknown_topic_or_partition
    assert commit(client, topic, topic, 1, metadata="m" * 4097) == ErrorCode.offset_metadata_too_large
    assert commit(client, topic, topic, 42, metadata="\u20ac" * 4096) == ErrorCode.none, "counted in UTF-16 units"
    assert commit(client, topic, topic, 1, metadata="\U0001f600" * 2049) == ErrorCode.offset_metadata_too_large
    assert (
        commit(client, topic, topic, 1, generation_id_or_member_epoch=3, member_id="x") == ErrorCode.unknown_member_id
    )
    assert committed(client, topic, topic) == 42


def test_only_members_commit_to_active_groups(client: RawClient, topic: str) -> None:
    client.create_topic(topic)
    member_id, generation = join_alone(client, topic)
    assert commit(client, topic, topic, 7) == ErrorCode.unknown_member_id
    fields = {"member_id": member_id, "generation_id_or_member_epoch": generation}
    assert commit(client, topic, topic, 7, **fields) == ErrorCode.none
    assert commit(client, topic, topic, 7, member_id=member_id, generation_id_or_member_epoch=99) == (
        ErrorCode.illegal_generation
    )
    assert commit(client, topic, topic, 7, member_id="stranger", generation_id_or_member_epoch=generation) == (
        ErrorCode.unknown_member_id
    )
    assert commit(client, topic + "-none", topic, 7, **fields) == ErrorCode.illegal_generation


def test_an_impossible_frame_size_closes(client: RawClient) -> None:
    client.socket.sendall(struct.pack(">i", BrokerConfig(Path()).produce_request_bytes_max + 1))
    assert client.receive_frame() == b""


def test_an_unsupported_api_closes_the_connection(client: RawClient) -> None:
    frame = struct.pack(">hhih", 4, 0, 7, -1)
    client.socket.sendall(struct.pack(">i", len(frame)) + frame)
    assert client.receive_frame() == b""
