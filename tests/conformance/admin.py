"""Topics, partitions, configs, directories and elections: refused administrative requests."""

import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from onceflow.broker.settings.fixed import FIXED
from onceflow.broker.settings.table import SETTINGS
from onceflow.wire import apis
from tests.broker.handlers.test_admin_apis import REFUSED_CHANGES
from tests.broker.handlers.test_admin_edge_cases import CHANGES, NAMES, VALUES
from tests.conformance.side import TIMEOUT, Side
from tests.conformance.valid_requests import BROKER, TOPIC, describing, topic_fields

SET, DELETE, APPEND, SUBTRACT = range(4)
NO_ID = uuid.UUID(int=5)


def created(side: Side, *topics: dict[str, Any], version: int = 7, **fields: Any) -> None:
    values = {"topics": topics, "timeout": TIMEOUT, "validate_only": True, **fields}
    side.ask(apis.CREATE_TOPICS, version, **values)


def creating(**fields: Any) -> Callable[[Side], None]:
    """Create one topic in the first and last version, first with validation only."""

    def case(side: Side) -> None:
        topic = {**topic_fields(side.topic), **fields}
        for version in (2, 4, 7):
            created(side, topic, version=version)
        created(side, topic, validate_only=False)

    return case


def configs(*named: tuple[str, str | None]) -> dict[str, Any]:
    return {"configs": [{"name": name, "value": value} for name, value in named]}


def assigned(*brokers: tuple[int, Sequence[int]], **fields: Any) -> dict[str, Any]:
    assignments = [{"partition_index": index, "broker_ids": ids} for index, ids in brokers]
    return {"assignments": assignments, "num_partitions": -1, "replication_factor": -1, **fields}


def creating_configured(name: str, value: str) -> Callable[[Side], None]:
    def case(side: Side) -> None:
        created(side, {**topic_fields(side.topic), **configs((name, value))}, validate_only=False)
        created(side, topic_fields(side.topic))

    return case


def creating_twice(side: Side) -> None:
    side.create_topic()
    own, other = topic_fields(side.topic), topic_fields(side.topic + "-2")
    created(side, own)
    created(side, other, other, own)
    created(side)
    created(side, {**other, "name": side.topic.replace("-", ".")})


def creating_in_no_time(side: Side) -> None:
    created(side, topic_fields(side.topic), timeout=TIMEOUT * 0)


def deleted(side: Side, *topics: tuple[str | None, uuid.UUID | None]) -> None:
    named = [{"name": name, "topic_id": topic_id} for name, topic_id in topics]
    side.ask(apis.DELETE_TOPICS, 6, topics=named, timeout=TIMEOUT)


def deleting(side: Side) -> None:
    topic = side.create_topic()
    asked = [{"name": topic, "topic_id": None}]
    response = side.ask_quietly(apis.METADATA, 12, topics=asked, include_topic_authorized_operations=False)
    topic_id = response.topics[0].topic_id
    for topics in (
        [],
        [(None, None)],
        [(topic, NO_ID)],
        [(topic, topic_id)],
        [(topic, None), (None, topic_id)],
        [(None, topic_id), (None, topic_id)],
        [(topic + "-no", None), (topic + "-no", None)],
        [("", None), ("a/b", None), (topic + "-no", None)],
        [(None, NO_ID)],
        [("__cluster_metadata", None)],
        [(None, topic_id)],
        [(None, topic_id), (topic, None)],
    ):
        deleted(side, *topics)
    for names in ([], [topic], [topic, topic], ["", "a/b"]):
        for version in (1, 5):
            side.ask(apis.DELETE_TOPICS, version, topic_names=names, timeout=TIMEOUT)


def adding_partitions(*topics: tuple[str, int, Any], is_made: bool = True) -> Callable[[Side], None]:
    """Send CreatePartitions of (topic, count, brokers of each new one); `own` is the case's, of two partitions."""

    def case(side: Side) -> None:
        if is_made:
            side.create_topic(2)
        asked = [
            {
                "name": name.replace("own", side.topic),
                "count": count,
                "assignments": None if brokers is None else [{"broker_ids": broker} for broker in brokers],
            }
            for name, count, brokers in topics
        ]
        for version in (0, 3):
            side.ask(apis.CREATE_PARTITIONS, version, topics=asked, timeout=TIMEOUT, validate_only=True)
        side.ask(apis.CREATE_PARTITIONS, 3, topics=asked, timeout=TIMEOUT, validate_only=False)

    return case


def altering(*resources: tuple[int, str | None, Sequence[tuple[str, int, str | None]]]) -> Callable[[Side], None]:
    """Send IncrementalAlterConfigs of (type, name or the case's topic, (config, operation, value))."""

    def case(side: Side) -> None:
        topic = side.create_topic(cleanup_policy="delete", retention_ms="99")
        asked = [
            {
                "resource_type": kind,
                "resource_name": topic if name is None else name,
                "configs": [
                    {"name": config, "config_operation": operation, "value": value}
                    for config, operation, value in changes
                ],
            }
            for kind, name, changes in resources
        ]
        for validate_only in (True, False):
            side.ask(apis.INCREMENTAL_ALTER_CONFIGS, 1, resources=asked, validate_only=validate_only)
        side.await_changes()
        side.ask(apis.DESCRIBE_CONFIGS, 4, **describing(TOPIC, topic, "cleanup.policy", "flush.messages"))

    return case


def replacing(*named: tuple[str, str | None], kind: int = TOPIC, name: str | None = None) -> Callable[[Side], None]:
    """Send AlterConfigs of one resource."""

    def case(side: Side) -> None:
        topic = side.create_topic(retention_ms="99")
        resource = {"resource_type": kind, "resource_name": topic if name is None else name, **configs(*named)}
        for version in (0, 2):
            side.ask(apis.ALTER_CONFIGS, version, resources=[resource], validate_only=True)
        side.ask(apis.ALTER_CONFIGS, 2, resources=[resource], validate_only=False)

    return case


def describing_what(kind: int, name: str | None, *keys: str) -> Callable[[Side], None]:
    def case(side: Side) -> None:
        topic = side.create_topic()
        for version in (1, 4):
            side.ask(apis.DESCRIBE_CONFIGS, version, **describing(kind, topic if name is None else name, *keys))

    return case


def describing_lists(side: Side) -> None:
    topic = side.create_topic()
    resource = {"resource_type": TOPIC, "resource_name": topic, "configuration_keys": ["flush.messages"]}
    for resources in ((), (resource, resource), ({**resource, "configuration_keys": ["no.such", ""]},)):
        for flag in (False, True):
            fields: dict[str, Any] = {"include_synonyms": flag, "include_documentation": flag}
            side.ask(apis.DESCRIBE_CONFIGS, 4, resources=resources, **fields)


def settings_of_the_broker(side: Side) -> None:
    """Describe the settings that both have; Kafka's are listed in tests/broker/settings/kafka_settings.txt."""
    kafkas = (Path(__file__).parents[1] / "broker" / "settings" / "kafka_settings.txt").read_text().split()
    own = {*SETTINGS, *FIXED}
    side.ask(apis.DESCRIBE_CONFIGS, 4, **describing(BROKER, "1", *(name for name in kafkas if name in own)))


def log_dirs(side: Side) -> None:
    topic = side.create_topic(2)
    for name, partitions in ((topic, (0, 1, 9)), (topic, ()), (topic, (0, 0)), ("no-such-topic-in-dirs", (0,))):
        for version in (1, 4):
            side.ask(apis.DESCRIBE_LOG_DIRS, version, topics=[{"topic": name, "partitions": partitions}])
    side.ask(apis.DESCRIBE_LOG_DIRS, 4, topics=())


def electing(side: Side) -> None:
    topic = side.create_topic(2)
    for partitions in ((0,), (0, 1), (0, 9), (-1,), (0, 0), ()):
        for kind in (0, 1, 5, -1):
            asked = [{"topic": topic, "partitions": partitions}]
            side.ask(apis.ELECT_LEADERS, 2, election_type=kind, topic_partitions=asked, timeout=TIMEOUT)
    for name in ("no-such-topic-to-lead", "a/b", ""):
        asked = [{"topic": name, "partitions": (0,)}]
        side.ask(apis.ELECT_LEADERS, 0, topic_partitions=asked, timeout=TIMEOUT)
        side.ask(apis.ELECT_LEADERS, 2, election_type=0, topic_partitions=asked, timeout=TIMEOUT)
    side.ask(apis.ELECT_LEADERS, 2, election_type=0, topic_partitions=(), timeout=TIMEOUT)


def reassignments(side: Side) -> None:
    topic = side.create_topic()
    for name, indexes in ((topic, (0,)), (topic, (9,)), (topic, ()), ("no-such-topic-moving", (0,)), ("", (-1,))):
        asked = [{"name": name, "partition_indexes": indexes}]
        side.ask(apis.LIST_PARTITION_REASSIGNMENTS, 0, topics=asked, timeout=TIMEOUT)
    side.ask(apis.LIST_PARTITION_REASSIGNMENTS, 0, topics=(), timeout=TIMEOUT)


def cluster(side: Side) -> None:
    for kind in (1, 2, 0, 9):
        for version in (1, 2):
            fields: dict[str, Any] = {"include_cluster_authorized_operations": False, "include_fenced_brokers": True}
            side.ask(apis.DESCRIBE_CLUSTER, version, endpoint_type=kind, **fields)


LAGS = configs(("min.compaction.lag.ms", "10"), ("max.compaction.lag.ms", "5"))

CASES: dict[str, Callable[[Side], None]] = {
    **{f"create a topic named {name[:20]!r} of {len(name)}": creating(name=name) for name in NAMES},
    "create a topic named as the groups'": creating(name="__consumer_offsets"),
    "create a topic": creating(),
    "create a topic with defaults": creating(num_partitions=-1, replication_factor=-1),
    "create a topic of no partitions": creating(num_partitions=0),
    "create a topic of -2 partitions": creating(num_partitions=-2),
    "create a topic of no replicas": creating(replication_factor=0),
    "create a topic of -2 replicas": creating(replication_factor=-2),
    "create a topic of two replicas": creating(replication_factor=2),
    "create a topic of no replicas and partitions": creating(replication_factor=0, num_partitions=0),
    "create a topic of two replicas and no partitions": creating(replication_factor=2, num_partitions=0),
    "create an assigned topic": creating(**assigned((0, [1]), (1, [1]))),
    "create an assigned topic with a gap": creating(**assigned((0, [1]), (2, [1]))),
    "create an assigned topic from 1": creating(**assigned((1, [1]))),
    "create an assigned topic below 0": creating(**assigned((-1, [1]))),
    "create a topic assigned to no broker": creating(**assigned((0, []))),
    "create a topic assigned to a stranger": creating(**assigned((0, [7]))),
    "create a topic assigned twice": creating(**assigned((0, [1, 1]))),
    "create a topic with a partition assigned twice": creating(**assigned((0, [1]), (0, [1]))),
    "create a topic assigned unevenly": creating(**assigned((0, [1]), (1, [1, 2]))),
    "create an assigned topic with counts": creating(**assigned((0, [1]), num_partitions=1)),
    "create an assigned topic with a factor": creating(**assigned((0, [1]), replication_factor=1)),
    "create a topic with an unknown config": creating(**configs(("no.such", "1"))),
    "create a topic with a null config": creating(**configs(("retention.ms", None))),
    "create a topic with a config twice": creating(**configs(("retention.ms", "1"), ("retention.ms", "2"))),
    "create a topic with lags that contradict": creating(**LAGS),
    "create a topic with much that is wrong": creating(replication_factor=7, **configs(("no.such", "1"))),
    "create a topic twice": creating_twice,
    "create a topic in no time": creating_in_no_time,
    **{f"configure {name!r} as {value[:20]!r}": creating_configured(name, value) for name, value in VALUES},
    "delete topics": deleting,
    "add partitions": adding_partitions(("own", 4, None)),
    "add partitions assigned": adding_partitions(("own", 4, [[1], [1]])),
    "add no partitions": adding_partitions(("own", 2, None)),
    "add fewer partitions": adding_partitions(("own", 1, None)),
    "add 0 partitions": adding_partitions(("own", 0, None)),
    "add -1 partitions": adding_partitions(("own", -1, None)),
    "add partitions with too few assigned": adding_partitions(("own", 4, [[1]])),
    "add partitions with too many assigned": adding_partitions(("own", 3, [[1], [1]])),
    "add partitions assigned to no broker": adding_partitions(("own", 3, [[]])),
    "add partitions with none assigned": adding_partitions(("own", 3, [])),
    "add partitions assigned to a stranger": adding_partitions(("own", 3, [[7]])),
    "add partitions assigned twice": adding_partitions(("own", 3, [[1, 1]])),
    "add partitions to what is not there": adding_partitions(("own", 3, None), ("a/b", 3, None), is_made=False),
    "add partitions to what has no name": adding_partitions(("", 3, None)),
    "add partitions twice": adding_partitions(("own", 3, None), ("own", 4, None), ("no-such-topic-2", 3, None)),
    "add partitions to nothing": adding_partitions(),
    **{
        f"alter, refused: {name}": altering((kind, of, list(changes)))
        for name, ((kind, of, changes), _) in REFUSED_CHANGES.items()
    },
    **{f"alter, at the edge: {name}": altering((TOPIC, None, [change])) for name, (change, _) in CHANGES.items()},
    "alter nothing": altering(),
    "alter nothing of a topic": altering((TOPIC, None, [])),
    "alter a topic twice": altering((TOPIC, None, [("flush.ms", SET, "1")]), (TOPIC, None, [("flush.ms", SET, "2")])),
    "alter with an unknown operation": altering((TOPIC, None, [("flush.ms", 9, "1")])),
    "alter with a negative operation": altering((TOPIC, None, [("flush.ms", -1, "1")])),
    "append to a list": altering((TOPIC, None, [("cleanup.policy", APPEND, "compact")])),
    "append to a list what it has": altering((TOPIC, None, [("cleanup.policy", APPEND, "delete")])),
    "append several to a list": altering((TOPIC, None, [("cleanup.policy", APPEND, "compact,delete")])),
    "subtract from a list": altering((TOPIC, None, [("cleanup.policy", SUBTRACT, "delete")])),
    "subtract from a list what it has not": altering((TOPIC, None, [("cleanup.policy", SUBTRACT, "compact")])),
    "delete a config": altering((TOPIC, None, [("retention.ms", DELETE, None)])),
    "delete a config that is a default": altering((TOPIC, None, [("flush.ms", DELETE, None)])),
    "set and delete a config": altering((TOPIC, None, [("flush.ms", SET, "1"), ("flush.ms", DELETE, None)])),
    "alter one of two that is wrong": altering(
        (TOPIC, None, [("flush.ms", SET, "5")]), (TOPIC, "no-such-topic-to-alter", [("flush.ms", SET, "5")])
    ),
    "replace configs": replacing(("flush.ms", "5")),
    "replace configs by none": replacing(),
    "replace configs, one unknown": replacing(("flush.ms", "5"), ("no.such", "1")),
    "replace configs, one wrong": replacing(("flush.ms", "x")),
    "replace configs, one null": replacing(("flush.ms", None)),
    "replace configs, one twice": replacing(("flush.ms", "1"), ("flush.ms", "2")),
    "replace configs of an unknown topic": replacing(("flush.ms", "1"), name="no-such-topic-to-replace"),
    "replace configs of an impossible topic": replacing(("flush.ms", "1"), name="a/b"),
    "replace configs of no topic": replacing(("flush.ms", "1"), name=""),
    "replace configs of another broker": replacing(("flush.ms", "1"), kind=BROKER, name="9"),
    "replace configs of no broker": replacing(("flush.ms", "1"), kind=BROKER, name="x"),
    "replace configs of an unknown type": replacing(("flush.ms", "1"), kind=99, name="x"),
    "describe configs of an unknown topic": describing_what(TOPIC, "no-such-topic-to-describe"),
    "describe configs of an impossible topic": describing_what(TOPIC, "a/b"),
    "describe configs of no topic": describing_what(TOPIC, ""),
    "describe configs of the cluster's topic": describing_what(TOPIC, "__cluster_metadata"),
    "describe configs of another broker": describing_what(BROKER, "9"),
    "describe configs of no broker": describing_what(BROKER, "x"),
    "describe configs of all brokers": describing_what(BROKER, ""),
    "describe configs of an unknown type": describing_what(99, "x"),
    "describe configs of type 0": describing_what(0, "x"),
    "describe configs by name": describing_what(TOPIC, None, "flush.messages", "flush.messages", "no.such"),
    "describe a broker's configs by name": describing_what(BROKER, "1", "num.partitions", "no.such"),
    "describe lists of configs": describing_lists,
    "describe the broker's settings": settings_of_the_broker,
    "describe log directories": log_dirs,
    "elect leaders": electing,
    "list reassignments": reassignments,
    "describe the cluster": cluster,
}
