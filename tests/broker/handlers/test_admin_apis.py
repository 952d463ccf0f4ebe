"""Responses to administrative requests, errors above all. All tests pass against Apache Kafka 4.1 too:

ONCEFLOW_TEST_BOOTSTRAP=HOST:PORT pytest tests/broker/handlers/test_admin_apis.py
"""

import dataclasses
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from onceflow.wire import apis
from onceflow.wire.apis import APIS
from onceflow.wire.errors import ErrorCode
from onceflow.wire.frames import request_class
from tests.broker.raw_client import RawClient, batch_of, connected, milliseconds

TIMEOUT = milliseconds(10_000)
TOPIC, BROKER = 2, 4
SET, DELETE, APPEND, SUBTRACT = range(4)
DYNAMIC_TOPIC, DEFAULT = 1, 5
NO_OPERATIONS = {"include_topic_authorized_operations": False, "include_cluster_authorized_operations": False}


@pytest.fixture
def client(bootstrap: str) -> Iterator[RawClient]:
    with connected(bootstrap) as opened:
        yield opened


def fields_of(api_key: int, version: int, values: dict[str, Any]) -> dict[str, Any]:
    known = {field.name for field in dataclasses.fields(request_class(api_key, version))}
    return {name: value for name, value in values.items() if name in known}


def create(client: RawClient, name: str, *, version: int = 7, **fields: Any) -> Any:
    """Create a topic and return its entry in the response; `assignments` is a list of (partition, brokers)."""
    configs = [{"name": name, "value": value} for name, value in fields.pop("configs", ())]
    assigned = fields.pop("assignments", ())
    validate_only = fields.pop("validate_only", False)
    wanted = {
        "name": name,
        "num_partitions": -1 if assigned else 1,
        "replication_factor": -1 if assigned else 1,
        "assignments": [{"partition_index": index, "broker_ids": brokers} for index, brokers in assigned],
        "configs": configs,
        **fields,
    }
    asked = {"topics": [wanted], "timeout": TIMEOUT, "validate_only": validate_only}
    return client.ask(apis.CREATE_TOPICS, version, **asked).topics[0]


def add(client: RawClient, *topics: tuple[str, int, Any], version: int = 3, validate_only: bool = False) -> Any:
    asked = [
        {
            "name": name,
            "count": count,
            "assignments": None if assigned is None else [{"broker_ids": brokers} for brokers in assigned],
        }
        for name, count, assigned in topics
    ]
    response = client.ask(apis.CREATE_PARTITIONS, version, topics=asked, timeout=TIMEOUT, validate_only=validate_only)
    return [(result.name, ErrorCode(result.error_code)) for result in response.results]


def alter(
    client: RawClient, *resources: tuple[int, str, Sequence[tuple[str, int, str | None]]], validate_only: bool = False
) -> list[ErrorCode]:
    asked = [
        {
            "resource_type": kind,
            "resource_name": name,
            "configs": [
                {"name": config, "config_operation": operation, "value": value} for config, operation, value in configs
            ],
        }
        for kind, name, configs in resources
    ]
    response = client.ask(apis.INCREMENTAL_ALTER_CONFIGS, 1, resources=asked, validate_only=validate_only)
    return [ErrorCode(response.error_code) for response in response.responses]


def replace(
    client: RawClient, *configs: tuple[str, str | None], topic: str, kind: int = TOPIC, version: int = 2
) -> ErrorCode:
    named = [{"name": name, "value": value} for name, value in configs]
    resource = {"resource_type": kind, "resource_name": topic, "configs": named}
    response = client.ask(apis.ALTER_CONFIGS, version, resources=[resource], validate_only=False)
    return ErrorCode(response.responses[0].error_code)


def describe(client: RawClient, kind: int, name: str, *keys: str, version: int = 4) -> Any:
    resource = {"resource_type": kind, "resource_name": name, "configuration_keys": keys or None}
    values = {"resources": [resource], "include_synonyms": True, "include_documentation": True}
    response = client.ask(apis.DESCRIBE_CONFIGS, version, **fields_of(apis.DESCRIBE_CONFIGS, version, values))
    return response.results[0]


def configured(client: RawClient, topic: str, name: str) -> tuple[str | None, int]:
    """(value, source)."""
    while describe(client, TOPIC, topic, name).error_code == ErrorCode.unknown_topic_or_partition:
        pass  # Apache Kafka responds to CreateTopics a little too early.
    (entry,) = describe(client, TOPIC, topic, name).configs
    return entry.value, entry.config_source


def partition_count(client: RawClient, topic: str, *, wanted: int = 0) -> int:
    """Return the number of listed partitions, once there are `wanted`: Apache Kafka responds a little too early."""
    asked = [{"name": topic, "topic_id": None}]
    while True:
        response = client.ask(apis.METADATA, 12, topics=asked, allow_auto_topic_creation=False, **NO_OPERATIONS)
        if len(response.topics[0].partitions) >= wanted:
            return len(response.topics[0].partitions)


EVERY_FIELD: dict[int, dict[str, Any]] = {
    apis.DESCRIBE_CONFIGS: {
        "resources": [{"resource_type": TOPIC, "resource_name": "no-such", "configuration_keys": None}],
        "include_synonyms": True,
        "include_documentation": True,
    },
    apis.ALTER_CONFIGS: {
        "resources": [{"resource_type": TOPIC, "resource_name": "no-such", "configs": ()}],
        "validate_only": True,
    },
    apis.DESCRIBE_LOG_DIRS: {"topics": None},
    apis.CREATE_PARTITIONS: {
        "topics": [{"name": "no-such", "count": 3, "assignments": None}],
        "timeout": TIMEOUT,
        "validate_only": False,
    },
    apis.ELECT_LEADERS: {"topic_partitions": None, "election_type": 0, "timeout": TIMEOUT},
    apis.INCREMENTAL_ALTER_CONFIGS: {
        "resources": [{"resource_type": TOPIC, "resource_name": "no-such", "configs": ()}],
        "validate_only": True,
    },
    apis.LIST_PARTITION_REASSIGNMENTS: {"topics": None, "timeout": TIMEOUT},
    apis.DESCRIBE_CLUSTER: {
        "include_cluster_authorized_operations": True,
        "endpoint_type": 1,
        "include_fenced_brokers": True,
    },
}


@pytest.mark.parametrize("api_key", EVERY_FIELD)
def test_every_version_has_a_response(client: RawClient, bootstrap: str, api_key: int) -> None:
    offered = client.ask(apis.API_VERSIONS, 0).api_keys
    (version_max,) = (api.max_version for api in offered if api.api_key == api_key)
    api = APIS[api_key]
    for version in range(api.version_min, min(api.version_max, version_max) + 1):
        client.ask(api_key, version, **fields_of(api_key, version, EVERY_FIELD[api_key]))


@pytest.mark.parametrize("version", range(2, 8))
def test_created_configs_in_every_version(client: RawClient, topic: str, version: int) -> None:
    created = create(client, topic, version=version, num_partitions=3, configs=[("retention.ms", "5")])
    assert created.error_code == 0
    if version >= 5:
        assert (created.num_partitions, created.replication_factor) == (3, 1)
        entries = {config.name: (config.value, config.config_source) for config in created.configs}
        assert entries["retention.ms"] == ("5", DYNAMIC_TOPIC)
        assert entries["segment.ms"] == ("604800000", DEFAULT)
    assert configured(client, topic, "retention.ms") == ("5", DYNAMIC_TOPIC)


def test_an_assignment_to_this_broker_is_accepted(client: RawClient, topic: str) -> None:
    assert create(client, topic, assignments=[(1, (1,)), (0, (1,))]).error_code == 0
    assert partition_count(client, topic, wanted=2) == 2


REFUSED_TOPICS: dict[str, tuple[dict[str, Any], ErrorCode]] = {
    "another broker": ({"assignments": [(0, (2,))]}, ErrorCode.invalid_replica_assignment),
    "two replicas": ({"assignments": [(0, (1, 2))]}, ErrorCode.invalid_replica_assignment),
    "a broker twice": ({"assignments": [(0, (1, 1))]}, ErrorCode.invalid_replica_assignment),
    "a broker below 0": ({"assignments": [(0, (-1,))]}, ErrorCode.invalid_replica_assignment),
    "no broker": ({"assignments": [(0, ())]}, ErrorCode.invalid_replica_assignment),
    "a gap": ({"assignments": [(1, (1,))]}, ErrorCode.invalid_replica_assignment),
    "a partition twice": ({"assignments": [(0, (1,)), (0, (1,))]}, ErrorCode.invalid_replica_assignment),
    "assignment and count": ({"assignments": [(0, (1,))], "num_partitions": 1}, ErrorCode.invalid_request),
    "assignment and factor": ({"assignments": [(0, (1,))], "replication_factor": 1}, ErrorCode.invalid_request),
    "factor 2": ({"replication_factor": 2}, ErrorCode.invalid_replication_factor),
    "factor 0": ({"replication_factor": 0}, ErrorCode.invalid_replication_factor),
    "no partitions": ({"num_partitions": 0}, ErrorCode.invalid_partitions),
    "unknown config": ({"configs": [("no.such", "1")]}, ErrorCode.invalid_config),
    "null config": ({"configs": [("retention.ms", None)]}, ErrorCode.invalid_config),
    "config of no number": ({"configs": [("retention.ms", "x")]}, ErrorCode.invalid_config),
    "config below its range": ({"configs": [("segment.bytes", "12")]}, ErrorCode.invalid_config),
    "config above its range": ({"configs": [("segment.bytes", "2147483648")]}, ErrorCode.invalid_config),
    "unknown policy": ({"configs": [("cleanup.policy", "x")]}, ErrorCode.invalid_config),
    "lags that contradict": (
        {"configs": [("min.compaction.lag.ms", "10"), ("max.compaction.lag.ms", "5")]},
        ErrorCode.invalid_config,
    ),
}


@pytest.mark.parametrize(("fields", "expected"), REFUSED_TOPICS.values(), ids=REFUSED_TOPICS)
@pytest.mark.parametrize("validate_only", [False, True])
def test_topics_that_are_refused(
    client: RawClient, topic: str, fields: dict[str, Any], expected: ErrorCode, validate_only: bool
) -> None:
    assert create(client, topic, validate_only=validate_only, **fields).error_code == expected
    assert partition_count(client, topic) == 0


def test_a_validated_topic_is_not_created(client: RawClient, topic: str) -> None:
    response = create(client, topic, num_partitions=4, validate_only=True)
    assert (response.error_code, response.num_partitions) == (0, 4)
    assert partition_count(client, topic) == 0


def test_colliding_and_internal_names(client: RawClient, topic: str) -> None:
    assert create(client, topic + ".x").error_code == 0
    assert create(client, topic + "_x").error_code == ErrorCode.invalid_topic_exception
    assert create(client, "__cluster_metadata").error_code == ErrorCode.invalid_request
    assert create(client, "__consumer_offsets").error_code in (0, ErrorCode.topic_already_exists)


@pytest.mark.parametrize("version", range(4))
def test_partitions_are_added(client: RawClient, topic: str, version: int) -> None:
    client.create_topic(topic, 2)
    client.produce(topic, 1, batch_of(b"kept"))
    assert add(client, (topic, 5, None), version=version, validate_only=True) == [(topic, ErrorCode.none)]
    assert partition_count(client, topic) == 2
    assert add(client, (topic, 5, [(1,), (1,), (1,)]), version=version) == [(topic, ErrorCode.none)]
    assert partition_count(client, topic, wanted=5) == 5
    while client.fetch([(topic, 4, 0)])[0].error_code:
        pass  # Apache Kafka responds too early here, too.
    assert client.produce(topic, 4, batch_of(b"new"))[1:3] == (0, 0)
    assert client.produce(topic, 1, batch_of(b"more"))[1:3] == (0, 1)


def test_partitions_that_are_refused(client: RawClient, topic: str) -> None:
    client.create_topic(topic, 2)
    cases: list[tuple[str, int, Any, ErrorCode]] = [
        (topic, 2, None, ErrorCode.invalid_partitions),
        (topic, 1, None, ErrorCode.invalid_partitions),
        (topic, 0, None, ErrorCode.invalid_partitions),
        (topic, -1, None, ErrorCode.invalid_partitions),
        (topic + "-no", 3, None, ErrorCode.unknown_topic_or_partition),
        ("no/good", 3, None, ErrorCode.unknown_topic_or_partition),
        (topic, 4, [(1,)], ErrorCode.invalid_replica_assignment),
        (topic, 3, [], ErrorCode.invalid_replica_assignment),
        (topic, 3, [(2,)], ErrorCode.invalid_replica_assignment),
        (topic, 3, [(1, 2)], ErrorCode.invalid_replica_assignment),
        (topic, 3, [(1, 1)], ErrorCode.invalid_replica_assignment),
        (topic, 3, [()], ErrorCode.invalid_replica_assignment),
    ]
    for name, count, assigned, expected in cases:
        assert add(client, (name, count, assigned)) == [(name, expected)], (name, count, assigned)
    assert add(client, (topic, 3, None), (topic, 4, None)) == [(topic, ErrorCode.invalid_request)]
    assert partition_count(client, topic) == 2


def test_configs_are_set_and_deleted(client: RawClient, topic: str) -> None:
    client.create_topic(topic)
    changes = [("retention.ms", SET, " +77 "), ("segment.ms", SET, "88")]
    assert alter(client, (TOPIC, topic, changes)) == [ErrorCode.none]
    assert configured(client, topic, "retention.ms") == ("77", DYNAMIC_TOPIC)
    assert alter(client, (TOPIC, topic, [("retention.ms", DELETE, None), ("no.such", DELETE, None)])) == [0]
    assert configured(client, topic, "retention.ms") == ("604800000", DEFAULT)
    assert configured(client, topic, "segment.ms") == ("88", DYNAMIC_TOPIC)
    assert alter(client, (TOPIC, topic, [("segment.ms", SET, "99")]), validate_only=True) == [0]
    assert configured(client, topic, "segment.ms") == ("88", DYNAMIC_TOPIC)


def test_a_list_grows_and_shrinks(client: RawClient, topic: str) -> None:
    client.create_topic(topic)
    seen = []
    for operation, value in ((APPEND, "compact"), (APPEND, "delete"), (SUBTRACT, "delete"), (SUBTRACT, "compact")):
        assert alter(client, (TOPIC, topic, [("cleanup.policy", operation, value)])) == [ErrorCode.none]
        seen.append(configured(client, topic, "cleanup.policy")[0])
    assert seen == ["delete,compact", "delete,compact", "compact", ""]


def test_alter_configs_replaces_all(client: RawClient, topic: str) -> None:
    client.create_topic(topic)
    for version in range(3):
        assert replace(client, ("retention.ms", "77"), ("segment.ms", "88"), topic=topic, version=version) == 0
        assert replace(client, ("segment.ms", "99"), topic=topic, version=version) == 0
        assert configured(client, topic, "retention.ms") == ("604800000", DEFAULT)
        assert configured(client, topic, "segment.ms") == ("99", DYNAMIC_TOPIC)
        assert replace(client, topic=topic, version=version) == 0
        assert configured(client, topic, "segment.ms") == ("604800000", DEFAULT)
    assert replace(client, ("segment.ms", "x"), topic=topic) == ErrorCode.invalid_config
    assert replace(client, ("segment.ms", None), topic=topic) == ErrorCode.invalid_request
    assert replace(client, ("segment.ms", "1"), ("segment.ms", "2"), topic=topic) == ErrorCode.invalid_request
    assert replace(client, ("segment.ms", "1"), topic=topic + "-no") == ErrorCode.unknown_topic_or_partition
    assert replace(client, ("log.dirs", "/x"), topic="1", kind=BROKER) == ErrorCode.invalid_request


REFUSED_CHANGES: dict[str, tuple[tuple[int, str | None, Sequence[tuple[str, int, str | None]]], ErrorCode]] = {
    "unknown topic": ((TOPIC, "no-such", [("retention.ms", SET, "1")]), ErrorCode.unknown_topic_or_partition),
    "impossible topic": ((TOPIC, "no/good", [("retention.ms", SET, "1")]), ErrorCode.invalid_topic_exception),
    "no topic": ((TOPIC, "", [("retention.ms", SET, "1")]), ErrorCode.invalid_request),
    "unknown config": ((TOPIC, None, [("no.such", SET, "1")]), ErrorCode.invalid_config),
    "bad value": ((TOPIC, None, [("retention.ms", SET, "x")]), ErrorCode.invalid_config),
    "one bad of two": ((TOPIC, None, [("retention.ms", SET, "1"), ("segment.ms", SET, "0")]), ErrorCode.invalid_config),
    "null": ((TOPIC, None, [("retention.ms", SET, None)]), ErrorCode.invalid_request),
    "null appended": ((TOPIC, None, [("cleanup.policy", APPEND, None)]), ErrorCode.invalid_request),
    "no list to append to": ((TOPIC, None, [("retention.ms", APPEND, "1")]), ErrorCode.invalid_config),
    "no list to subtract from": ((TOPIC, None, [("retention.ms", SUBTRACT, "1")]), ErrorCode.invalid_config),
    "unknown config appended": ((TOPIC, None, [("no.such", APPEND, "1")]), ErrorCode.invalid_config),
    "bad item": ((TOPIC, None, [("cleanup.policy", APPEND, "x")]), ErrorCode.invalid_config),
    "config twice": ((TOPIC, None, [("flush.ms", SET, "1"), ("flush.ms", SET, "2")]), ErrorCode.invalid_request),
    "another broker": ((BROKER, "2", [("log.retention.ms", SET, "1")]), ErrorCode.invalid_request),
    "no broker": ((BROKER, "x", [("log.retention.ms", SET, "1")]), ErrorCode.invalid_request),
    "read-only": ((BROKER, "1", [("log.dirs", SET, "/x")]), ErrorCode.invalid_request),
    "throttle": ((BROKER, "1", [("leader.replication.throttled.rate", SET, "1")]), ErrorCode.invalid_request),
    "unknown type": ((99, "x", [("a", SET, "1")]), ErrorCode.invalid_request),
    "type 0": ((0, "x", [("a", SET, "1")]), ErrorCode.invalid_request),
}


@pytest.mark.parametrize(("resource", "expected"), REFUSED_CHANGES.values(), ids=REFUSED_CHANGES)
def test_changes_that_are_refused(client: RawClient, topic: str, resource: Any, expected: ErrorCode) -> None:
    client.create_topic(topic)
    kind, name, configs = resource
    assert alter(client, (kind, topic if name is None else name, configs)) == [expected]
    assert {config.config_source for config in describe(client, TOPIC, topic).configs} <= {3, 4, 5}


def test_deleted_throttles_are_accepted(client: RawClient) -> None:
    """The tool kafka-reassign-partitions deletes those that it may have set."""
    names = ("leader.replication.throttled.rate", "replica.alter.log.dirs.io.max.bytes.per.second")
    assert alter(client, (BROKER, "1", [(name, DELETE, None) for name in names])) == [ErrorCode.none]


def test_a_repeated_resource_is_refused(client: RawClient, topic: str) -> None:
    client.create_topic(topic)
    resource = (TOPIC, topic, [("retention.ms", SET, "1")])
    assert alter(client, resource, resource) == [ErrorCode.invalid_request] * 2


@pytest.mark.parametrize("version", range(1, 5))
def test_a_topics_configs_in_every_version(client: RawClient, topic: str, version: int) -> None:
    create(client, topic, configs=[("retention.ms", "5")])
    assert configured(client, topic, "retention.ms") == ("5", DYNAMIC_TOPIC)
    result = describe(client, TOPIC, topic, version=version)
    entries = {config.name: config for config in result.configs}
    entry = entries["max.message.bytes"]
    assert (entry.value, entry.read_only, entry.is_sensitive, entry.config_source) == ("1048588", False, False, DEFAULT)
    synonyms = [(synonym.name, synonym.value, synonym.source) for synonym in entries["max.message.bytes"].synonyms]
    assert synonyms == [("message.max.bytes", "1048588", DEFAULT)]
    own = entries["retention.ms"].synonyms[0]
    assert (own.name, own.value, own.source) == ("retention.ms", "5", DYNAMIC_TOPIC)
    if version >= 3:
        assert (entry.config_type, entries["cleanup.policy"].config_type) == (3, 7)
        assert entry.documentation


def test_descriptions_that_are_refused(client: RawClient, topic: str) -> None:
    client.create_topic(topic)
    expected = {
        (TOPIC, topic + "-no"): ErrorCode.unknown_topic_or_partition,
        (TOPIC, "no/good"): ErrorCode.invalid_topic_exception,
        (TOPIC, ""): ErrorCode.invalid_topic_exception,
        (BROKER, "2"): ErrorCode.invalid_request,
        (BROKER, "x"): ErrorCode.invalid_request,
        (99, "x"): ErrorCode.invalid_request,
    }
    assert {asked: describe(client, *asked).error_code for asked in expected} == expected
    assert describe(client, TOPIC, topic, "no.such").configs == ()


def test_the_brokers_settings(client: RawClient) -> None:
    result = describe(client, BROKER, "1")
    entries = {config.name: config for config in result.configs}
    assert result.error_code == 0
    assert (entries["log.segment.bytes"].value, entries["log.segment.bytes"].config_type) == ("1073741824", 3)
    assert entries["log.dirs"].read_only
    (named,) = describe(client, BROKER, "1", "log.dirs").configs
    assert named.value == entries["log.dirs"].value


def test_the_cluster(client: RawClient) -> None:
    for version in range(3):
        values = {"include_cluster_authorized_operations": True, "endpoint_type": 1, "include_fenced_brokers": False}
        response = client.ask(apis.DESCRIBE_CLUSTER, version, **fields_of(apis.DESCRIBE_CLUSTER, version, values))
        assert (response.error_code, response.controller_id, response.cluster_authorized_operations) == (0, 1, 8096)
        assert [broker.broker_id for broker in response.brokers] == [1]
    values = {"include_cluster_authorized_operations": False, "endpoint_type": 2}
    assert client.ask(apis.DESCRIBE_CLUSTER, 1, **values).error_code == ErrorCode.mismatched_endpoint_type
    values["endpoint_type"] = 9
    assert client.ask(apis.DESCRIBE_CLUSTER, 1, **values).error_code == ErrorCode.unsupported_endpoint_type


@pytest.mark.parametrize("version", range(1, 5))
def test_the_sizes_of_logs(client: RawClient, topic: str, version: int) -> None:
    client.create_topic(topic, 2)
    batch = batch_of(b"x" * 1000)
    client.produce(topic, 1, batch)
    asked = [{"topic": topic, "partitions": (0, 1, 9)}, {"topic": topic + "-no", "partitions": (0,)}]
    (directory,) = client.ask(apis.DESCRIBE_LOG_DIRS, version, topics=asked).results
    (described,) = directory.topics
    assert described.name == topic
    sizes = {
        partition.partition_index: (partition.partition_size, partition.offset_lag)
        for partition in described.partitions
    }
    assert sizes == {0: (0, 0), 1: (len(batch), 0)}
    assert version < 4 or directory.total_bytes > directory.usable_bytes > 0


def test_no_reassignment_and_no_election(client: RawClient, topic: str) -> None:
    client.create_topic(topic)
    for asked in (None, [{"name": topic, "partition_indexes": (0,)}]):
        response = client.ask(apis.LIST_PARTITION_REASSIGNMENTS, 0, topics=asked, timeout=TIMEOUT)
        assert (response.error_code, response.topics) == (0, ())
    wanted = [{"topic": topic, "partitions": (0, 7)}, {"topic": topic + "-no", "partitions": (0,)}]

    def elected(election_type: int) -> tuple[int, list[int]]:
        asked = {"election_type": election_type, "topic_partitions": wanted, "timeout": TIMEOUT}
        response = client.ask(apis.ELECT_LEADERS, 2, **asked)
        results = [
            partition.error_code
            for result in response.replica_election_results
            for partition in result.partition_result
        ]
        return response.error_code, sorted(results)

    unknown = ErrorCode.unknown_topic_or_partition
    assert elected(0) == elected(1) == (0, [unknown, unknown, ErrorCode.election_not_needed])
    assert elected(5) == (ErrorCode.invalid_request, [ErrorCode.invalid_request] * 3)


def test_deletions_that_are_refused(client: RawClient, topic: str) -> None:
    client.create_topic(topic)
    some_id = uuid.UUID(int=5)
    cases = [
        ((topic + "-no", None), ErrorCode.unknown_topic_or_partition),
        ((None, some_id), ErrorCode.unknown_topic_id),
        ((None, None), ErrorCode.invalid_request),
        ((topic, some_id), ErrorCode.invalid_request),
    ]
    for (name, topic_id), expected in cases:
        asked = [{"name": name, "topic_id": topic_id}]
        response = client.ask(apis.DELETE_TOPICS, 6, topics=asked, timeout=TIMEOUT)
        assert response.responses[0].error_code == expected, (name, topic_id)
    assert partition_count(client, topic) == 1


def test_metadata_by_id_and_of_repeated_topics(client: RawClient, topic: str) -> None:
    client.create_topic(topic)
    twice = [{"name": topic, "topic_id": None}] * 2
    asked = {"allow_auto_topic_creation": False, **NO_OPERATIONS}
    assert len(client.ask(apis.METADATA, 12, topics=twice, **asked).topics) == 1
    by_both = [{"name": topic, "topic_id": uuid.UUID(int=5)}]
    (metadata,) = client.ask(apis.METADATA, 12, topics=by_both, **asked).topics
    assert (metadata.error_code, metadata.name) == (ErrorCode.unknown_topic_id, None)
    asked["include_topic_authorized_operations"] = True
    (metadata,) = client.ask(apis.METADATA, 12, topics=twice[:1], **asked).topics
    assert metadata.topic_authorized_operations == 3576
