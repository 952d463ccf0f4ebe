"""Further requests whose permissions differ from those of the valid ones: transactions, followers, brokers, ids."""

from typing import Any

from onceflow.wire import apis
from tests.broker.raw_client import batch_of
from tests.conformance.side import TIMEOUT, Side
from tests.conformance.valid_requests import BROKER, Right, adding, begin, describing, fetch_fields

CLUSTER_OPERATIONS_UNTIL = 10
TOPIC_KINDS = ("transactional", "missing", "by-id")
"""Ends of the names of further topics in a case."""


def produce_in_a_transaction(side: Side, version: int) -> None:
    """Write transactional and plain batches in one request, with the id and without."""
    who = begin(side)
    topic = side.create_topic(2, f"{side.topic}-transactional")
    side.ask_quietly(apis.ADD_PARTITIONS_TO_TXN, 3, **adding(who, (topic, 0)))
    producer = {"producer_id": who["producer_id"], "producer_epoch": who["producer_epoch"], "base_sequence": 0}
    batches = [bytes(batch_of(b"a", transactional=True, **producer)), bytes(batch_of(b"b"))]
    data = [{"index": at, "records": records} for at, records in enumerate(batches)]
    for transactional_id in (None, f"{side.topic}-unknown"):
        side.ask(
            apis.PRODUCE, version, transactional_id=transactional_id, acks=-1, timeout=TIMEOUT,
            topic_data=[{"name": topic, "partition_data": data}],
        )  # fmt: skip


def fetch_as_a_follower(side: Side, version: int) -> None:
    side.ask(apis.FETCH, version, **fetch_fields(side.topic, (0, 0), replica_id=77))


def metadata_of_missing_topics(side: Side, version: int) -> None:
    """Ask for topics that do not exist, creating one, and by id."""
    flags: dict[str, Any] = {"include_topic_authorized_operations": True, "include_cluster_authorized_operations": True}
    absent = [{"name": f"{side.topic}-missing", "topic_id": None}]
    side.ask(apis.METADATA, version, topics=absent, allow_auto_topic_creation=False, **flags)
    side.ask(apis.METADATA, version, topics=absent, allow_auto_topic_creation=True, **flags)
    side.ask(apis.METADATA, CLUSTER_OPERATIONS_UNTIL, topics=(), allow_auto_topic_creation=False, **flags)
    asked = [{"name": None, "topic_id": topic_id_of(side)}]
    side.ask(apis.METADATA, version, topics=asked, allow_auto_topic_creation=False, **flags)


def topic_id_of(side: Side) -> Any:
    asked: dict[str, Any] = {"topics": [{"name": side.topic, "topic_id": None}], "allow_auto_topic_creation": False}
    response = side.ask_quietly(
        apis.METADATA, 12, **asked, include_topic_authorized_operations=False,
        include_cluster_authorized_operations=False,
    )  # fmt: skip
    return response.topics[0].topic_id


def delete_topics_by_id(side: Side, version: int) -> None:
    """Delete a topic by its id and one that does not exist."""
    side.ask_quietly(
        apis.DELETE_TOPICS, 6, topics=[{"name": side.topic, "topic_id": None}], topic_names=[], timeout=TIMEOUT
    )
    topic = side.create_topic(1, f"{side.topic}-by-id")
    asked: dict[str, Any] = {"topics": [{"name": topic, "topic_id": None}], "allow_auto_topic_creation": False}
    flags: dict[str, Any] = {
        "include_topic_authorized_operations": False,
        "include_cluster_authorized_operations": False,
    }
    topic_id = side.ask_quietly(apis.METADATA, 12, **asked, **flags).topics[0].topic_id
    for name, given in ((None, topic_id), (f"{side.topic}-missing", None)):
        side.ask(
            apis.DELETE_TOPICS, version, topics=[{"name": name, "topic_id": given}], topic_names=[], timeout=TIMEOUT
        )


def describe_broker_configs(side: Side, version: int) -> None:
    side.ask(apis.DESCRIBE_CONFIGS, version, **describing(BROKER, "1", "log.roll.ms"))


def alter_broker_configs(side: Side, version: int) -> None:
    resource = {"resource_type": BROKER, "resource_name": "1", "configs": []}
    side.ask(apis.ALTER_CONFIGS, version, resources=[resource], validate_only=True)


def alter_broker_configs_incrementally(side: Side, version: int) -> None:
    resource = {"resource_type": BROKER, "resource_name": "1", "configs": []}
    side.ask(apis.INCREMENTAL_ALTER_CONFIGS, version, resources=[resource], validate_only=True)


def offset_fetch_of_all(side: Side, version: int) -> None:
    fields: dict[str, Any] = {"group_id": side.group, "topics": None, "require_stable": False}
    side.ask(apis.OFFSET_FETCH, version, **fields, groups=[{"group_id": side.group, "topics": None}])


OTHER_REQUESTS: dict[int, Right] = {
    apis.PRODUCE: produce_in_a_transaction,
    apis.FETCH: fetch_as_a_follower,
    apis.METADATA: metadata_of_missing_topics,
    apis.DELETE_TOPICS: delete_topics_by_id,
    apis.DESCRIBE_CONFIGS: describe_broker_configs,
    apis.ALTER_CONFIGS: alter_broker_configs,
    apis.INCREMENTAL_ALTER_CONFIGS: alter_broker_configs_incrementally,
    apis.OFFSET_FETCH: offset_fetch_of_all,
}
