"""One connection sends requests with as many entries as a request may have, of one API.

Options: --api NAME, --entries COUNT of each request.
"""

import argparse
from collections.abc import Callable
from typing import Any

from onceflow.wire import apis
from tests.broker.attacks.neighbour import is_over, ready
from tests.broker.raw_client import RawClient, milliseconds

TOPIC = "entries"
PARTITIONS = 1000
GROUP = "attacked"
PRODUCER = {"transactional_id": "attack", "producer_id": 0, "producer_epoch": 0}

Asked = tuple[int, int, dict[str, Any]]
"""API key, version and fields."""


def offset_commit(entries: int) -> Asked:
    partitions = [
        {"partition_index": index, "committed_offset": 1, "committed_leader_epoch": -1, "committed_metadata": ""}
        for index in repeated(entries)
    ]
    member = {"generation_id_or_member_epoch": -1, "member_id": "", "group_instance_id": None}
    fields = {"group_id": GROUP, **member, "topics": [{"name": TOPIC, "partitions": partitions}]}
    return apis.OFFSET_COMMIT, 8, fields


def txn_offset_commit(entries: int) -> Asked:
    partitions = [
        {"partition_index": index, "committed_offset": 1, "committed_leader_epoch": -1, "committed_metadata": ""}
        for index in repeated(entries)
    ]
    member = {"generation_id": -1, "member_id": "", "group_instance_id": None}
    fields = {**PRODUCER, "group_id": GROUP, **member, "topics": [{"name": TOPIC, "partitions": partitions}]}
    return apis.TXN_OFFSET_COMMIT, 3, fields


def offset_fetch(entries: int) -> Asked:
    topics = [{"name": TOPIC, "partition_indexes": repeated(entries)}]
    return apis.OFFSET_FETCH, 7, {"group_id": GROUP, "topics": topics, "require_stable": False}


def offset_delete(entries: int) -> Asked:
    topics = [{"name": TOPIC, "partitions": [{"partition_index": index} for index in repeated(entries)]}]
    return apis.OFFSET_DELETE, 0, {"group_id": GROUP, "topics": topics}


def add_partitions(entries: int) -> Asked:
    fields = {f"v3_and_below_{name}": value for name, value in PRODUCER.items()}
    topics = [{"name": TOPIC, "partitions": repeated(entries)}]
    return apis.ADD_PARTITIONS_TO_TXN, 3, {**fields, "v3_and_below_topics": topics}


def delete_records(entries: int) -> Asked:
    partitions = [{"partition_index": index, "offset": 0} for index in repeated(entries)]
    return (
        apis.DELETE_RECORDS,
        2,
        {"topics": [{"name": TOPIC, "partitions": partitions}], "timeout": milliseconds(1000)},
    )


def epoch_ends(entries: int) -> Asked:
    partitions = [{"partition": index, "current_leader_epoch": -1, "leader_epoch": 0} for index in repeated(entries)]
    return apis.OFFSET_FOR_LEADER_EPOCH, 4, {"replica_id": -1, "topics": [{"topic": TOPIC, "partitions": partitions}]}


def alter_configs(entries: int) -> Asked:
    config = {"name": "retention.ms", "config_operation": 0, "value": "1000000"}
    resources = [
        {"resource_type": 2, "resource_name": f"unknown-{number}", "configs": [config]}
        for number in range(entries // 2)
    ]
    return apis.INCREMENTAL_ALTER_CONFIGS, 1, {"resources": resources, "validate_only": True}


def describe_configs(entries: int) -> Asked:
    resources = [
        {"resource_type": 2, "resource_name": f"unknown-{number}", "configuration_keys": None}
        for number in range(entries)
    ]
    return apis.DESCRIBE_CONFIGS, 4, {"resources": resources, "include_synonyms": False, "include_documentation": False}


def describe_groups(entries: int) -> Asked:
    groups = [f"group-{number}" for number in range(entries)]
    return apis.DESCRIBE_GROUPS, 5, {"groups": groups, "include_authorized_operations": False}


def delete_groups(entries: int) -> Asked:
    return apis.DELETE_GROUPS, 2, {"groups_names": [f"group-{number}" for number in range(entries)]}


def describe_producers(entries: int) -> Asked:
    return apis.DESCRIBE_PRODUCERS, 0, {"topics": [{"name": TOPIC, "partition_indexes": repeated(entries)}]}


def describe_transactions(entries: int) -> Asked:
    return apis.DESCRIBE_TRANSACTIONS, 0, {"transactional_ids": [f"id-{number}" for number in range(entries)]}


def metadata(entries: int) -> Asked:
    topics = [{"topic_id": None, "name": f"unknown-{number}"} for number in range(entries)]
    fields = {"allow_auto_topic_creation": False, "include_topic_authorized_operations": False}
    return apis.METADATA, 12, {"topics": topics, **fields}


def find_coordinator(entries: int) -> Asked:
    return (
        apis.FIND_COORDINATOR,
        4,
        {"key_type": 0, "coordinator_keys": [f"group-{number}" for number in range(entries)]},
    )


def leave_group(entries: int) -> Asked:
    members = [
        {"member_id": f"member-{number}", "group_instance_id": None, "reason": None} for number in range(entries)
    ]
    return apis.LEAVE_GROUP, 5, {"group_id": GROUP, "members": members}


def describe_log_dirs(entries: int) -> Asked:
    return apis.DESCRIBE_LOG_DIRS, 4, {"topics": [{"topic": TOPIC, "partitions": repeated(entries)}]}


def repeated(entries: int) -> list[int]:
    return [number % PARTITIONS for number in range(entries)]


REQUESTS: dict[str, Callable[[int], Asked]] = {
    value.__name__: value
    for value in (
        offset_commit,
        txn_offset_commit,
        offset_fetch,
        offset_delete,
        add_partitions,
        delete_records,
        epoch_ends,
        alter_configs,
        describe_configs,
        describe_groups,
        delete_groups,
        describe_producers,
        describe_transactions,
        metadata,
        find_coordinator,
        leave_group,
        describe_log_dirs,
    )
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("bootstrap")
    parser.add_argument("--api", choices=sorted(REQUESTS), required=True)
    parser.add_argument("--entries", type=int, default=19_000)
    options = parser.parse_args()
    client = RawClient(options.bootstrap)
    client.socket.settimeout(60)
    client.create_topic(TOPIC, PARTITIONS)
    api_key, version, fields = REQUESTS[options.api](options.entries)
    ready()
    while not is_over():
        client.send(api_key, version, **fields)
        assert client.receive_frame()


if __name__ == "__main__":
    main()
