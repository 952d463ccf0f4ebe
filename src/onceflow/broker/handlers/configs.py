"""DescribeConfigs, AlterConfigs and IncrementalAlterConfigs, for topics and for the broker.

Topics' configurations change at once. The broker's settings can be read; they change in its file or options and with
a restart, and a wish to change one is refused. Codes and words are Kafka's (kafka.server.ConfigAdminManager,
kafka.server.ConfigHelper, org.apache.kafka.controller.ConfigurationControlManager).
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from onceflow.broker.handlers.config_entries import broker_entries, topic_entries
from onceflow.broker.handlers.sliced_responses import Element, encoded, respond_in_slices
from onceflow.broker.loop.background import reporting_failure
from onceflow.broker.network.request import Request
from onceflow.broker.node import Node
from onceflow.broker.topics.configs import TOPIC_CONFIGS, ConfigType, list_items
from onceflow.broker.topics.operations import Changed, Wish
from onceflow.broker.topics.topics import Topic, TopicRefused, check_name
from onceflow.remedies import Remedy
from onceflow.wire import apis
from onceflow.wire.errors import ErrorCode

TOPIC = 2
BROKER = 4
RESOURCE_TYPES_KNOWN = (TOPIC, BROKER, 8, 16, 32)
"""ConfigResource.Type: topic, broker, and those that are not here: broker logger, client metrics, group."""

SET, DELETE, APPEND, SUBTRACT = range(4)
"""AlterConfigOp.OpType."""
OPERATION_NAMES = {APPEND: "APPEND", SUBTRACT: "SUBTRACT"}

NO_THROTTLE_TIME = bytes(4)
NO_TAGS = b"\x00"
WORK_PER_FOUND = 8
WORK_PER_RESULT = 8
WORK_PER_CONFIG = 15

Change = Callable[[Node, Topic, Any], dict[str, str | None]]
"""(node, topic, the request's resource) → the configurations that the topic is to have. Raises TopicRefused."""


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A resource of the request, and what it comes to."""

    resource_type: int
    resource_name: str
    topic: Topic | None = None
    configs: Mapping[str, str | None] | None = None
    refused: TopicRefused | None = None


def handle_describe(node: Node, request: Request) -> None:
    """Serve one DescribeConfigs request, once the configurations of now are durable."""
    asked = request.decode()
    resources: list[tuple[Any, Topic | TopicRefused | None]] = []

    def find() -> Iterator[int]:
        for each in asked.resources:
            resources.append((each, _wanted_topic(node, each)))
            yield WORK_PER_FOUND

    def results() -> Iterator[Element]:
        for resource, topic in resources:
            result = _described(node, resource, topic, asked)
            yield encoded(request, "results", result), WORK_PER_RESULT + WORK_PER_CONFIG * len(result["configs"])

    def synced(_error_code: ErrorCode) -> None:
        tail = NO_TAGS if request.version >= request.header.api.flexible_from else b""
        respond_in_slices(request, NO_THROTTLE_TIME, results(), tail)

    request.in_slices(
        find(), lambda: node.metadata.when_synced(reporting_failure(request.reply.close_connection, synced))
    )


def _wanted_topic(node: Node, resource: Any) -> Topic | TopicRefused | None:
    """A copy of the topic as it is before the wait for its durability, or why there is none; None for a broker."""
    if resource.resource_type != TOPIC:
        return None
    try:
        topic = _topic(node, resource.resource_name)
    except TopicRefused as error:
        # Thousands of tracebacks would hold all their frames, and the garbage collector would walk them.
        return error.with_traceback(None)
    return replace(topic, configs=dict(topic.configs))


def _described(node: Node, resource: Any, topic: Topic | TopicRefused | None, asked: Any) -> dict[str, Any]:
    answer = {"resource_type": resource.resource_type, "resource_name": resource.resource_name, "configs": ()}
    try:
        entries = _entries(node, resource, topic)
    except TopicRefused as error:
        message = "" if error.error_code == ErrorCode.unknown_topic_or_partition else str(error)
        return {**answer, "error_code": error.error_code, "error_message": message}
    for each in entries:
        if not asked.include_synonyms:
            each["synonyms"] = ()
        if not getattr(asked, "include_documentation", False):
            each["documentation"] = None
    return {**answer, "error_code": ErrorCode.none, "error_message": "", "configs": entries}


def _entries(node: Node, resource: Any, topic: Topic | TopicRefused | None) -> list[dict[str, Any]]:
    # Kafka takes no names for all names.
    names = resource.configuration_keys or None
    if isinstance(topic, TopicRefused):
        raise topic
    if topic is not None:
        return topic_entries(topic, node.logs.config_of(topic), node.config.log, names)
    if resource.resource_type != BROKER:
        raise _unknown_type(resource.resource_type)
    _check_broker(node, resource.resource_name, "Broker id", " or empty string,")
    # The empty name asks for what was set for all brokers dynamically: nothing can be.
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
    """Serve one AlterConfigs request: what it does not name goes back to its default."""
    _alter(node, request, _replaced)


def handle_incremental_alter(node: Node, request: Request) -> None:
    """Serve one IncrementalAlterConfigs request."""
    _alter(node, request, _changed)


def _alter(node: Node, request: Request, change: Change) -> None:
    asked = request.decode()
    counts = Counter((each.resource_type, each.resource_name) for each in asked.resources)
    all_wanted: list[_Wanted] = []

    def find() -> list[Wish]:
        all_wanted.extend(_wanted(node, each, counts, change) for each in asked.resources)
        return [
            (each.topic, each.configs) for each in all_wanted if each.topic is not None and each.configs is not None
        ]

    def answer(changed: Sequence[Changed]) -> None:
        outcomes = iter(changed)
        request.respond(responses=[_response(each, outcomes) for each in all_wanted])

    failed = request.reply.close_connection
    node.topic_operations.alter_configs(find, answer, failed=failed, validate_only=asked.validate_only)


def _wanted(node: Node, resource: Any, counts: Mapping[tuple[int, str], int], change: Change) -> _Wanted:
    key = (resource.resource_type, resource.resource_name)
    try:
        _check_resource(resource, counts[key])
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
    names = [each.name for each in resource.configs]
    if len(set(names)) < len(names):
        raise TopicRefused(ErrorCode.invalid_request, "Error due to duplicate config keys")
    for each in resource.configs:
        if each.value is None and getattr(each, "config_operation", SET) != DELETE:
            raise TopicRefused(ErrorCode.invalid_request, f"Null value not supported for : {each.name[:100]}")


def _check_unchanged(node: Node, resource: Any) -> None:
    """A broker that is asked to change nothing is asked for nothing wrong."""
    if resource.resource_type != BROKER:
        raise _unknown_type(resource.resource_type)
    _check_broker(node, resource.resource_name, "Node id", ",")
    names = ", ".join(each.name for each in resource.configs)[:1000]
    if names:
        raise TopicRefused(
            ErrorCode.invalid_request, f"Cannot update these configs dynamically: {names}; {Remedy.SET_AT_START}"
        )


def _replaced(_node: Node, _topic: Topic, resource: Any) -> dict[str, str | None]:
    return {each.name: each.value for each in resource.configs}


def _changed(node: Node, topic: Topic, resource: Any) -> dict[str, str | None]:
    configs: dict[str, str | None] = dict(topic.configs)
    for each in resource.configs:
        if each.config_operation == SET:
            configs[each.name] = each.value
        elif each.config_operation == DELETE:
            configs.pop(each.name, None)
        elif each.config_operation in OPERATION_NAMES:
            configs[each.name] = _changed_list(node, topic, each)
        else:
            raise TopicRefused(ErrorCode.invalid_request, f"Unknown operation type {each.config_operation}")
    return configs


def _changed_list(node: Node, topic: Topic, asked: Any) -> str:
    row = TOPIC_CONFIGS.get(asked.name)
    operation = OPERATION_NAMES[asked.config_operation]
    if row is None or row.type is not ConfigType.LIST:
        message = f"Can't {operation} to key {asked.name[:100]} because its type is not LIST."
        raise TopicRefused(ErrorCode.invalid_config, message)
    items = list_items(topic.configs.get(asked.name, row.write(node.config.log)))
    named = list_items(asked.value)
    if asked.config_operation == APPEND:
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
