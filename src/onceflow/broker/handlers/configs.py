"""DescribeConfigs, AlterConfigs and IncrementalAlterConfigs, for topics and for the broker.

Topics' configurations change at once. The broker's settings can be read only; they change in its file or options and
with a restart. Error codes and messages are Kafka's (kafka.server.ConfigAdminManager, kafka.server.ConfigHelper,
org.apache.kafka.controller.ConfigurationControlManager).
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from onceflow.broker.handlers.config_entries import broker_entries, topic_entries
from onceflow.broker.handlers.sliced_responses import Element, encoded, respond_in_slices, tags_of
from onceflow.broker.loop.background import reporting_failure
from onceflow.broker.network.request import Request
from onceflow.broker.node import Node
from onceflow.broker.security.authorizer import Access
from onceflow.broker.topics.configs import TOPIC_CONFIGS, ConfigType, list_items
from onceflow.broker.topics.operations import Changed, Wish
from onceflow.broker.topics.topics import Topic, TopicRefused, check_name
from onceflow.remedies import Remedy
from onceflow.wire import apis
from onceflow.wire.acls import AclOperation, ResourceType
from onceflow.wire.errors import ErrorCode

TOPIC = 2
BROKER = 4
RESOURCE_TYPES_KNOWN = (TOPIC, BROKER, 8, 16, 32)
"""ConfigResource.Type: topic, broker, and those that do not exist here: broker logger, client metrics, group."""

SET, DELETE, APPEND, SUBTRACT = range(4)
"""AlterConfigOp.OpType."""
OPERATION_NAMES = {APPEND: "APPEND", SUBTRACT: "SUBTRACT"}

NEVER_SET = (
    "leader.replication.throttled.rate",
    "follower.replication.throttled.rate",
    "replica.alter.log.dirs.io.max.bytes.per.second",
)
"""Dynamic settings that kafka-reassign-partitions.sh --verify deletes; they are not supported, and never set."""

NO_THROTTLE_TIME = bytes(4)
WORK_PER_FOUND = 8
WORK_PER_RESULT = 8
WORK_PER_CONFIG = 15

Change = Callable[[Node, Topic, Any], dict[str, str | None]]
"""Maps (node, topic, the request's resource) to the topic's new configurations. Raises TopicRefused."""


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A resource of the request, with its change or error."""

    resource_type: int
    resource_name: str
    topic: Topic | None = None
    configs: Mapping[str, str | None] | None = None
    refused: TopicRefused | None = None


def handle_describe(node: Node, request: Request) -> None:
    """Serve one DescribeConfigs request, once the present configurations are durable."""
    body = request.decode()
    resources: list[tuple[Any, Topic | TopicRefused | None]] = []
    access = node.access(request)

    def find() -> Iterator[int]:
        for resource in body.resources:
            resources.append((resource, _wanted_topic(node, access, resource)))
            yield WORK_PER_FOUND

    def results() -> Iterator[Element]:
        for resource, topic in resources:
            result = _described(node, resource, topic, body)
            yield encoded(request, "results", result), WORK_PER_RESULT + WORK_PER_CONFIG * len(result["configs"])

    def synced(_error_code: ErrorCode) -> None:
        respond_in_slices(request, NO_THROTTLE_TIME, results(), tags_of(request))

    request.in_slices(
        find(), lambda: node.metadata.when_synced(reporting_failure(request.reply.close_connection, synced))
    )


def _wanted_topic(node: Node, access: Access, resource: Any) -> Topic | TopicRefused | None:
    """Return a copy of the topic taken before the wait for durability, or the resource's error; None for a broker."""
    try:
        _check_access(access, AclOperation.DESCRIBE_CONFIGS, resource)
        if resource.resource_type != TOPIC:
            return None
        topic = _topic(node, resource.resource_name)
    except TopicRefused as error:
        # Thousands of tracebacks would keep all their frames, and slow down the garbage collector.
        return error.with_traceback(None)
    return replace(topic, configs=dict(topic.configs))


def _check_access(access: Access, operation: AclOperation, resource: Any) -> None:
    """Raise TopicRefused if the client may not do the operation; other types of resources have no configuration."""
    if resource.resource_type == TOPIC and not access.may(operation, ResourceType.TOPIC, resource.resource_name):
        raise TopicRefused(ErrorCode.topic_authorization_failed, "Topic authorization failed.")
    if resource.resource_type == BROKER and not access.may_on_cluster(operation):
        raise TopicRefused(ErrorCode.cluster_authorization_failed, "Cluster authorization failed.")


def _described(node: Node, resource: Any, topic: Topic | TopicRefused | None, body: Any) -> dict[str, Any]:
    response = {"resource_type": resource.resource_type, "resource_name": resource.resource_name, "configs": ()}
    try:
        entries = _entries(node, resource, topic)
    except TopicRefused as error:
        message = "" if error.error_code == ErrorCode.unknown_topic_or_partition else str(error)
        return {**response, "error_code": error.error_code, "error_message": message}
    for entry in entries:
        if not body.include_synonyms:
            entry["synonyms"] = ()
        if not getattr(body, "include_documentation", False):
            entry["documentation"] = None
    return {**response, "error_code": ErrorCode.none, "error_message": "", "configs": entries}


def _entries(node: Node, resource: Any, topic: Topic | TopicRefused | None) -> list[dict[str, Any]]:
    # Kafka treats an empty list of names as all names.
    names = resource.configuration_keys or None
    if isinstance(topic, TopicRefused):
        raise topic
    if topic is not None:
        return topic_entries(topic, node.logs.config_of(topic), node.config.log, names)
    if resource.resource_type != BROKER:
        raise _unknown_type(resource.resource_type)
    _check_broker(node, resource.resource_name, "Broker id", " or empty string,")
    # The empty name asks for dynamic defaults of all brokers, which cannot be set here.
    return broker_entries(node.config, names if resource.resource_name else ())


def _topic(node: Node, name: str) -> Topic:
    topic = node.topics.by_name.get(name)
    if topic is None:
        check_name(name)
        raise TopicRefused(ErrorCode.unknown_topic_or_partition, f"The topic '{name}' does not exist.")
    return topic


def _check_broker(node: Node, name: str, what: str, or_else: str) -> None:
    if not name:
        return
    try:
        broker_id = int(name)
    except ValueError as error:
        raise TopicRefused(ErrorCode.invalid_request, f"{what} must be an integer, but it is: {name[:100]}") from error
    if broker_id != node.node_id:
        message = f"Unexpected broker id, expected {node.node_id}{or_else} but received {broker_id}"
        raise TopicRefused(ErrorCode.invalid_request, message)


def _unknown_type(resource_type: int) -> TopicRefused:
    if resource_type in RESOURCE_TYPES_KNOWN:
        message = f"resources of type {resource_type} have no configuration here; topics and the broker have"
    else:
        message = f"Unknown resource type {resource_type}"
    return TopicRefused(ErrorCode.invalid_request, message)


def handle_alter(node: Node, request: Request) -> None:
    """Serve one AlterConfigs request: configurations that it does not name return to their defaults."""
    _alter(node, request, _replaced)


def handle_incremental_alter(node: Node, request: Request) -> None:
    """Serve one IncrementalAlterConfigs request."""
    _alter(node, request, _changed)


def _alter(node: Node, request: Request, change: Change) -> None:
    body = request.decode()
    counts = Counter((resource.resource_type, resource.resource_name) for resource in body.resources)
    all_wanted: list[_Wanted] = []
    access = node.access(request)

    def find() -> list[Wish]:
        all_wanted.extend(_wanted(node, access, resource, counts, change) for resource in body.resources)
        return [
            (resource.topic, resource.configs)
            for resource in all_wanted
            if resource.topic is not None and resource.configs is not None
        ]

    def respond(changed: Sequence[Changed]) -> None:
        outcomes = iter(changed)
        request.respond(responses=[_response(resource, outcomes) for resource in all_wanted])

    failed = request.reply.close_connection
    node.topic_operations.alter_configs(find, respond, failed=failed, validate_only=body.validate_only)


def _wanted(
    node: Node, access: Access, resource: Any, counts: Mapping[tuple[int, str], int], change: Change
) -> _Wanted:
    key = (resource.resource_type, resource.resource_name)
    try:
        _check_resource(resource, counts[key])
        _check_access(access, AclOperation.ALTER_CONFIGS, resource)
        if resource.resource_type != TOPIC:
            _check_unchanged(node, resource)
            return _Wanted(*key)
        if not resource.resource_name:
            raise TopicRefused(ErrorCode.invalid_request, "Default topic resources are not allowed.")
        topic = _topic(node, resource.resource_name)
        return _Wanted(*key, topic, change(node, topic, resource))
    except TopicRefused as error:
        return _Wanted(*key, refused=error.with_traceback(None))


def _check_resource(resource: Any, count: int) -> None:
    if count > 1:
        raise TopicRefused(ErrorCode.invalid_request, "Each resource must appear at most once.")
    names = [config.name for config in resource.configs]
    if len(set(names)) < len(names):
        raise TopicRefused(ErrorCode.invalid_request, "Error due to duplicate config keys")
    for config in resource.configs:
        if config.value is None and getattr(config, "config_operation", SET) != DELETE:
            raise TopicRefused(ErrorCode.invalid_request, f"Null value not supported for : {config.name[:100]}")


def _check_unchanged(node: Node, resource: Any) -> None:
    """Refuse changes of the broker's settings; accept a request that changes nothing."""
    if resource.resource_type != BROKER:
        raise _unknown_type(resource.resource_type)
    _check_broker(node, resource.resource_name, "Node id", ",")
    changed = [
        config.name
        for config in resource.configs
        if config.name not in NEVER_SET or getattr(config, "config_operation", SET) != DELETE
    ]
    names = ", ".join(changed)[:1000]
    if names:
        raise TopicRefused(
            ErrorCode.invalid_request, f"Cannot update these configs dynamically: {names}; {Remedy.SET_AT_START}"
        )


def _replaced(_node: Node, _topic: Topic, resource: Any) -> dict[str, str | None]:
    return {config.name: config.value for config in resource.configs}


def _changed(node: Node, topic: Topic, resource: Any) -> dict[str, str | None]:
    configs: dict[str, str | None] = dict(topic.configs)
    for config in resource.configs:
        if config.config_operation == SET:
            configs[config.name] = config.value
        elif config.config_operation == DELETE:
            configs.pop(config.name, None)
        elif config.config_operation in OPERATION_NAMES:
            configs[config.name] = _changed_list(node, topic, config)
        else:
            raise TopicRefused(ErrorCode.invalid_request, f"Unknown operation type {config.config_operation}")
    return configs


def _changed_list(node: Node, topic: Topic, alteration: Any) -> str:
    row = TOPIC_CONFIGS.get(alteration.name)
    operation = OPERATION_NAMES[alteration.config_operation]
    if row is None or row.type is not ConfigType.LIST:
        message = f"Can't {operation} to key {alteration.name[:100]} because its type is not LIST."
        raise TopicRefused(ErrorCode.invalid_config, message)
    items = list_items(topic.configs.get(alteration.name, row.write(node.config.log)))
    named = list_items(alteration.value)
    if alteration.config_operation == APPEND:
        items += [item for item in named if item not in items]
    else:
        items = [item for item in items if item not in named]
    return ",".join(items)


def _response(wanted: _Wanted, outcomes: Any) -> dict[str, Any]:
    code, message = ErrorCode.none, None
    if wanted.refused is not None:
        code, message = wanted.refused.error_code, str(wanted.refused)
    elif wanted.topic is not None:
        outcome: Changed = next(outcomes)
        code, message = outcome.error_code, outcome.error_message
    return {
        "error_code": code,
        "error_message": message,
        "resource_type": wanted.resource_type,
        "resource_name": wanted.resource_name,
    }


HANDLERS = {
    apis.DESCRIBE_CONFIGS: handle_describe,
    apis.ALTER_CONFIGS: handle_alter,
    apis.INCREMENTAL_ALTER_CONFIGS: handle_incremental_alter,
}
