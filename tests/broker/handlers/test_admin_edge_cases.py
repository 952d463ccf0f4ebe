"""Edge cases of administrative requests, each compared with Apache Kafka 4.1:

ONCEFLOW_TEST_BOOTSTRAP=HOST:PORT pytest tests/broker/handlers/test_admin_edge_cases.py
"""

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from onceflow.wire import apis
from onceflow.wire.errors import ErrorCode
from tests.broker.handlers.test_admin_apis import (
    BROKER,
    DELETE,
    DYNAMIC_TOPIC,
    NO_OPERATIONS,
    SET,
    SUBTRACT,
    TIMEOUT,
    TOPIC,
    add,
    alter,
    configured,
    create,
    describe,
    partition_count,
    replace,
)
from tests.broker.raw_client import RawClient, batch_of, connected, milliseconds

NONE = ErrorCode.none
UNKNOWN = ErrorCode.unknown_topic_or_partition
INVALID = ErrorCode.invalid_request
INVALID_CONFIG = ErrorCode.invalid_config


@pytest.fixture
def client(bootstrap: str) -> Iterator[RawClient]:
    with connected(bootstrap) as opened:
        yield opened


NAMES: dict[str, ErrorCode] = {
    "": ErrorCode.invalid_topic_exception,
    ".": ErrorCode.invalid_topic_exception,
    "..": ErrorCode.invalid_topic_exception,
    "...": NONE,
    "-": NONE,
    "_": NONE,
    "a b": ErrorCode.invalid_topic_exception,
    "a/b": ErrorCode.invalid_topic_exception,
    "a\0b": ErrorCode.invalid_topic_exception,
    "ä": ErrorCode.invalid_topic_exception,
    "x" * 249: NONE,
    "x" * 250: ErrorCode.invalid_topic_exception,
    "__cluster_metadata": INVALID,
}


@pytest.mark.parametrize("name", NAMES, ids=repr)
def test_valid_topic_names(client: RawClient, name: str) -> None:
    assert create(client, name, validate_only=True).error_code == NAMES[name]


COUNTS: dict[str, tuple[dict[str, int], ErrorCode]] = {
    "default partitions": ({"num_partitions": -1}, NONE),
    "default factor": ({"replication_factor": -1}, NONE),
    "-2 partitions": ({"num_partitions": -2}, ErrorCode.invalid_partitions),
    "factor -2": ({"replication_factor": -2}, ErrorCode.invalid_replication_factor),
    "the factor is looked at first": (
        {"replication_factor": 0, "num_partitions": 0},
        ErrorCode.invalid_replication_factor,
    ),
    "the count before a factor that is too large": (
        {"replication_factor": 2, "num_partitions": 0},
        ErrorCode.invalid_partitions,
    ),
}


@pytest.mark.parametrize(("counts", "expected"), COUNTS.values(), ids=COUNTS)
def test_valid_partition_and_replica_counts(
    client: RawClient, topic: str, counts: dict[str, int], expected: ErrorCode
) -> None:
    response = create(client, topic, validate_only=True, **counts)
    assert response.error_code == expected
    if not expected:
        assert (response.num_partitions, response.replication_factor) == (1, 1)


def test_order_of_checks(client: RawClient, topic: str) -> None:
    client.create_topic(topic)
    bad: dict[str, Any] = {"configs": [("no.such", "1")], "replication_factor": 7}
    exists = ErrorCode.topic_already_exists
    assert create(client, topic, validate_only=True).error_code == exists
    assert create(client, topic, **bad).error_code == exists
    assert create(client, topic + "-new", **bad).error_code == INVALID_CONFIG
    assert create(client, "a b", **bad).error_code == ErrorCode.invalid_topic_exception


VALUES: dict[tuple[str, str], str | None] = {
    ("retention.ms", "-1"): "-1",
    ("retention.ms", "0"): "0",
    ("retention.ms", "-2"): None,
    ("retention.ms", ""): None,
    ("retention.ms", "5.0"): None,
    ("retention.ms", "0x10"): None,
    ("retention.ms", "1_000"): None,
    ("retention.ms", "1e3"): None,
    ("retention.ms", "9223372036854775807"): "9223372036854775807",
    ("retention.ms", "9223372036854775808"): None,
    ("segment.bytes", "1048575"): None,
    ("segment.bytes", "1048576"): "1048576",
    ("segment.index.bytes", "3"): None,
    ("segment.ms", "0"): None,
    ("index.interval.bytes", "-1"): None,
    ("max.message.bytes", "-1"): None,
    ("max.message.bytes", "0"): "0",
    ("delete.retention.ms", "-1"): None,
    ("min.compaction.lag.ms", "-1"): None,
    ("max.compaction.lag.ms", "0"): None,
    ("file.delete.delay.ms", "-1"): None,
    ("flush.messages", "0"): None,
    ("flush.ms", "-1"): None,
    ("message.timestamp.before.max.ms", "-1"): None,
    ("message.timestamp.type", "createtime"): None,
    ("message.timestamp.type", ""): None,
    ("cleanup.policy", "COMPACT"): None,
    ("cleanup.policy", "compact,"): None,
    ("cleanup.policy", ","): None,
    ("cleanup.policy", "none"): None,
    ("cleanup.policy", "compact,delete"): "compact,delete",
    ("cleanup.policy", ""): "",
    ("min.cleanable.dirty.ratio", ".5"): "0.5",
    ("min.cleanable.dirty.ratio", "1."): "1.0",
    ("min.cleanable.dirty.ratio", "1e-1"): "0.1",
    ("min.cleanable.dirty.ratio", "1.1"): None,
    ("min.cleanable.dirty.ratio", "-0.1"): None,
    ("min.cleanable.dirty.ratio", ""): None,
    ("preallocate", "yes"): None,
    ("compression.type", "none"): None,
    ("Retention.ms", "1"): None,
    (" retention.ms", "1"): None,
    ("", "1"): None,
    ("message.format.version", "3.0"): None,
}
"""Value as it is described, by (config, given value); None: it is refused."""


@pytest.mark.parametrize(("config", "given"), VALUES, ids=lambda part: repr(part))
def test_valid_config_values(client: RawClient, topic: str, config: str, given: str) -> None:
    shown = VALUES[config, given]
    response = create(client, topic, configs=[(config, given)])
    assert response.error_code == (INVALID_CONFIG if shown is None else NONE)
    if shown is not None:
        assert configured(client, topic, config) == (shown, DYNAMIC_TOPIC)


def test_the_last_of_two_values_counts(client: RawClient, topic: str) -> None:
    create(client, topic, configs=[("retention.ms", "1"), ("retention.ms", "2")])
    assert configured(client, topic, "retention.ms") == ("2", DYNAMIC_TOPIC)


def create_all(client: RawClient, *names: str) -> list[tuple[str, ErrorCode]]:
    topics = [
        {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": (), "configs": ()} for name in names
    ]
    response = client.ask(apis.CREATE_TOPICS, 7, topics=topics, timeout=TIMEOUT, validate_only=True)
    return sorted((topic.name, topic.error_code) for topic in response.topics)


def test_empty_requests_and_repeated_topics(client: RawClient, topic: str) -> None:
    assert create_all(client) == []
    assert create_all(client, topic, topic, topic + "-x") == [(topic, INVALID), (topic + "-x", NONE)]
    assert create_all(client, "a/b", "a/b") == [("a/b", INVALID)]
    assert add(client) == []
    assert add(client, (topic, 3, None), (topic, 3, None)) == [(topic, INVALID)], "whether it exists or not"
    assert add(client, ("", 3, None)) == [("", UNKNOWN)]
    assert alter(client) == []
    resource_lists: list[tuple[int, dict[str, Any]]] = [
        (apis.DESCRIBE_CONFIGS, {"resources": (), "include_synonyms": True, "include_documentation": False}),
        (apis.DESCRIBE_LOG_DIRS, {"topics": ()}),
    ]
    assert client.ask(resource_lists[0][0], 4, **resource_lists[0][1]).results == ()
    assert [result.topics for result in client.ask(resource_lists[1][0], 4, **resource_lists[1][1]).results] == [()]


def delete(client: RawClient, *entries: tuple[str | None, uuid.UUID | None]) -> list[ErrorCode]:
    asked = [{"name": name, "topic_id": topic_id} for name, topic_id in entries]
    response = client.ask(apis.DELETE_TOPICS, 6, topics=asked, timeout=TIMEOUT)
    return [ErrorCode(response.error_code) for response in response.responses]


def test_a_topic_is_deleted_once_by_id(client: RawClient, topic: str) -> None:
    client.create_topic(topic)
    asked = [{"name": topic, "topic_id": None}]
    response = client.ask(apis.METADATA, 12, topics=asked, allow_auto_topic_creation=False, **NO_OPERATIONS)
    topic_id = response.topics[0].topic_id
    assert delete(client) == []
    assert delete(client, (topic, None), (None, topic_id)) == [INVALID], "one topic, named in two ways"
    assert delete(client, (topic, topic_id)) == [INVALID]
    assert delete(client, (None, topic_id), (None, topic_id)) == [INVALID]
    assert delete(client, (topic + "-no", None), (topic + "-no", None)) == [INVALID]
    assert delete(client, ("", None)) == [UNKNOWN]
    assert delete(client, ("a/b", None)) == [UNKNOWN]
    assert delete(client, (None, topic_id)) == [NONE]
    assert delete(client, (None, topic_id)) == [ErrorCode.unknown_topic_id]


CHANGES: dict[str, tuple[tuple[str, int, str | None], ErrorCode]] = {
    "a deletion with a value": (("retention.ms", DELETE, "nonsense"), NONE),
    "a deletion of what is unknown": (("no.such", DELETE, None), NONE),
    "an empty number": (("retention.ms", SET, ""), INVALID_CONFIG),
    "an empty list": (("cleanup.policy", SET, ""), NONE),
    "what is not there subtracted": (("cleanup.policy", SUBTRACT, "nonsense"), NONE),
}


@pytest.mark.parametrize(("change", "expected"), CHANGES.values(), ids=CHANGES)
def test_changes_at_the_edge(client: RawClient, topic: str, change: Any, expected: ErrorCode) -> None:
    client.create_topic(topic)
    assert alter(client, (TOPIC, topic, [change])) == [expected]


def test_an_empty_change_is_accepted(client: RawClient, topic: str) -> None:
    client.create_topic(topic)
    assert alter(client, (TOPIC, topic, []), (BROKER, "1", []), (BROKER, "", [])) == [NONE] * 3
    assert alter(client, (TOPIC, topic + "-no", [])) == [UNKNOWN]
    assert replace(client, topic="1", kind=BROKER) == NONE
    assert alter(client, (TOPIC, topic, [("retention.ms", SET, "1"), ("retention.ms", DELETE, None)])) == [INVALID]


def test_contradicting_compaction_lags(client: RawClient, topic: str) -> None:
    create(client, topic, configs=[("min.compaction.lag.ms", "10")])
    assert configured(client, topic, "min.compaction.lag.ms") == ("10", DYNAMIC_TOPIC)
    assert alter(client, (TOPIC, topic, [("max.compaction.lag.ms", SET, "5")])) == [INVALID_CONFIG]
    assert replace(client, ("max.compaction.lag.ms", "5"), topic=topic) == NONE, "the old way takes the other back"


def test_one_of_several_resources_is_refused(client: RawClient, topic: str) -> None:
    client.create_topic(topic)
    change = [("retention.ms", SET, "77")]
    responses = alter(client, (TOPIC, topic, change), (TOPIC, topic + "-no", change), (99, "x", []))
    assert sorted(responses) == [NONE, UNKNOWN, INVALID]
    while configured(client, topic, "retention.ms") != ("77", DYNAMIC_TOPIC):
        pass  # Apache Kafka responds a little too early.


def test_descriptions_at_the_edge(client: RawClient, topic: str) -> None:
    client.create_topic(topic)
    (entry,) = describe(client, TOPIC, topic, "max.message.bytes", "max.message.bytes").configs
    assert entry.name == "max.message.bytes"
    assert describe(client, TOPIC, topic, "").configs == ()
    assert describe(client, TOPIC, "__cluster_metadata").error_code == UNKNOWN
    assert describe(client, BROKER, "-1").error_code == INVALID
    assert describe(client, BROKER, "1", "no.such").configs == ()
    plain = {"resources": [{"resource_type": TOPIC, "resource_name": topic, "configuration_keys": ()}]}
    response = client.ask(
        apis.DESCRIBE_CONFIGS, 4, include_synonyms=False, include_documentation=False, **plain
    ).results[0]
    assert len(response.configs) > 20, "no names are all names"
    assert {(config.synonyms, config.documentation) for config in response.configs} == {((), None)}


def deleted(client: RawClient, topic: str, partition: int, offset: int) -> tuple[int, ErrorCode]:
    partitions = [{"partition_index": partition, "offset": offset}]
    response = client.ask(
        apis.DELETE_RECORDS, 2, topics=[{"name": topic, "partitions": partitions}], timeout=milliseconds(5000)
    )
    (result,) = response.topics[0].partitions
    return result.low_watermark, ErrorCode(result.error_code)


def test_valid_offsets_for_deletion(client: RawClient, topic: str) -> None:
    client.create_topic(topic)
    for _ in range(5):
        client.produce(topic, 0, batch_of(b"x"))
    out_of_range = (-1, ErrorCode.offset_out_of_range)
    asked: list[tuple[int, tuple[int, ErrorCode]]] = [
        (-2, out_of_range),
        (6, out_of_range),
        (2, (2, NONE)),
        (1, (2, NONE)),
        (5, (5, NONE)),
        (-1, (5, NONE)),
    ]
    assert [deleted(client, topic, 0, offset) for offset, _expected in asked] == [value for _offset, value in asked]
    assert deleted(client, topic, 7, 0) == (-1, UNKNOWN)
    for name in (topic + "-no", "a/b", "__cluster_metadata"):
        assert deleted(client, name, 0, 0) == (-1, UNKNOWN)


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("compact", (-1, ErrorCode.policy_violation)),
        ("", (-1, ErrorCode.policy_violation)),
        ("compact,delete", (0, NONE)),
    ],
)
def test_deletion_requires_the_delete_policy(
    client: RawClient, topic: str, policy: str, expected: tuple[int, ErrorCode]
) -> None:
    create(client, topic, configs=[("cleanup.policy", policy)])
    partition_count(client, topic, wanted=1)
    while (result := deleted(client, topic, 0, 0)) in ((-1, UNKNOWN), (-1, ErrorCode.not_leader_or_follower)):
        pass  # Apache Kafka responds too early here, too.
    assert result == expected


def found_in_metadata(client: RawClient, name: str, **fields: Any) -> ErrorCode:
    asked = {"allow_auto_topic_creation": False, **NO_OPERATIONS, **fields}
    response = client.ask(apis.METADATA, 12, topics=[{"name": name, "topic_id": None}], **asked)
    return ErrorCode(response.topics[0].error_code)


def test_metadata_of_missing_topics(client: RawClient, topic: str) -> None:
    ask: Callable[..., ErrorCode] = found_in_metadata
    assert ask(client, topic + "-no") == UNKNOWN
    assert ask(client, "a/b") == ErrorCode.invalid_topic_exception
    assert ask(client, "") == ErrorCode.invalid_topic_exception
    assert ask(client, "a/b", allow_auto_topic_creation=True) == ErrorCode.invalid_topic_exception
    assert ask(client, "__cluster_metadata", allow_auto_topic_creation=True) == UNKNOWN
    response = client.ask(apis.METADATA, 12, topics=(), allow_auto_topic_creation=False, **NO_OPERATIONS)
    assert response.topics == ()
