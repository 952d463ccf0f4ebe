"""The Java client's admin calls; each expected response is that of Apache Kafka 4.1.1 to the same program."""

from typing import Any

from tests.compat.java_programs import JavaPrograms


def test_topics(java: JavaPrograms, topic: str) -> None:
    """Dry run, create, list, describe by name and id, grow, delete by name and id, and refusals."""
    assert java.run("AdminCalls", topic, "topics") == [
        {"dryRun": 3, "exists": False},
        {"partitions": 3, "replicas": 1, "retention": "1234567"},
        {"listed": True},
        {"described": 3, "sameId": True, "byId": True, "internal": False, "leaders": [True] * 3},
        {"grown": "none", "partitions": 5},
        {"deleted": "none", "listed": False},
        {
            "errors": {
                "again": "TopicExistsException",
                "delete again": "UnknownTopicOrPartitionException",
                "describe deleted": "UnknownTopicOrPartitionException",
                "fewer partitions": "InvalidPartitionsException",
                "no partitions": "InvalidPartitionsException",
                "other broker": "InvalidReplicaAssignmentException",
                "two replicas": "InvalidReplicationFactorException",
                "unknown config": "InvalidConfigurationException",
                "unknown topic": "UnknownTopicOrPartitionException",
                "wrong name": "InvalidTopicException",
                "wrong value": "InvalidConfigurationException",
            }
        },
        {"newId": True, "listed": False},
    ]


def config(step: str, value: str, kind: str, *synonyms: str) -> dict[str, Any]:
    return {
        "step": step,
        "value": value,
        "source": "DYNAMIC_TOPIC_CONFIG" if len(synonyms) > 1 else "DEFAULT_CONFIG",
        "type": kind,
        "readOnly": False,
        "sensitive": False,
        "synonyms": list(synonyms),
    }


def test_configs(java: JavaPrograms, topic: str) -> None:
    """Append, subtract, set and delete, each with its source and synonyms; the broker's own settings."""
    policy, size = "log.cleanup.policy=delete", "log.segment.bytes=1073741824"
    done = {"error": "none"}
    assert java.run("AdminCalls", topic, "configs") == [
        config("default", "delete", "LIST", policy),
        done,
        config("appended", "delete,compact", "LIST", "cleanup.policy=delete,compact", policy),
        done,
        config("subtracted", "compact", "LIST", "cleanup.policy=compact", policy),
        done,
        config("set", "2000000", "INT", "segment.bytes=2000000", size),
        done,
        config("deleted", "1073741824", "INT", size),
        {
            "errors": {
                "append to a number": "InvalidConfigurationException",
                "unknown": "InvalidConfigurationException",
                "unknown topic": "UnknownTopicOrPartitionException",
                "wrong": "InvalidConfigurationException",
            }
        },
        {"broker": "1048588", "retention": "168"},
    ]


def test_offsets_and_deleted_records(java: JavaPrograms, topic: str) -> None:
    """Every specification of ListOffsets, before and after records are deleted."""
    assert java.run("AdminCalls", topic, "offsets") == [
        {"spec": "earliest", "offset": 0, "timestamp": -1},
        {"spec": "latest", "offset": 3, "timestamp": -1},
        {"spec": "max timestamp", "offset": 1, "timestamp": 9},
        {"spec": "timestamp", "offset": 1, "timestamp": 9},
        {"spec": "later", "offset": -1, "timestamp": -1},
        {"low": 2},
        {"spec": "earliest", "offset": 2, "timestamp": -1},
        {"beyond": "OffsetOutOfRangeException"},
        {"low": 3},
        {"spec": "earliest", "offset": 3, "timestamp": -1},
    ]


def test_groups(java: JavaPrograms, topic: str) -> None:
    """List, describe, set, delete offsets and delete, with members and without."""
    partitions = [f"{topic}-0", f"{topic}-1"]
    committed = {"committed": {partitions[0]: "3 three", partitions[1]: "4 "}}
    absence = "none" if java.version.startswith("3.") else "GroupIdNotFoundException"
    assert java.run("AdminCalls", topic, "groups") == [
        {
            "state": "Stable",
            "assignor": "range",
            "coordinator": 1,
            "listed": [f"{topic} Stable simple=false"],
            "members": [["reader", "/127.0.0.1", "instance", partitions]],
        },
        committed,
        {
            "delete": "GroupNotEmptyException",
            "deleteOffsets": "GroupSubscribedToTopicException",
            "alterOffsets": "UnknownMemberIdException",
        },
        {
            "state": "Empty",
            "assignor": "",
            "coordinator": 1,
            "listed": [f"{topic} Empty simple=false"],
            "members": [],
        },
        committed,
        {"committed": {partitions[0]: "1 set", partitions[1]: "4 "}},
        {"deleteOffsets": "none"},
        {"committed": {partitions[1]: "4 "}},
        {"delete": "none", "listed": []},
        {"again": "GroupIdNotFoundException", "describe": absence},
    ]


def test_the_cluster(java: JavaPrograms, topic: str) -> None:
    """One node, which is the controller; its log directory; no reassignments, no election needed."""
    assert java.run("AdminCalls", topic, "cluster") == [
        {"nodes": 1, "controller": True, "id": True, "address": java.bootstrap},
        {"error": True, "partition": True, "large": True, "lag": 0, "future": False, "volume": True},
        {"reassignments": 0, "elect": "ElectionNotNeededException"},
    ]
