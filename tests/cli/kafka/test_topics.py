"""`onceflow topic` on a real broker."""

import json
import subprocess
from collections.abc import Callable

import pytest

from onceflow.client.cluster import Cluster

Run = Callable[..., subprocess.CompletedProcess[str]]


def test_create_describe_list_delete(run: Run, topic: str) -> None:
    created = run("topic", "create", topic, "--partitions", "3")
    assert (created.returncode, created.stdout) == (0, f"created topic {topic} with 3 partitions\n")

    described = run("topic", "describe", topic)
    lines = described.stdout.splitlines()
    assert lines[0].startswith(f"topic {topic}   id ")
    assert lines[1].split() == ["PARTITION", "LEADER", "REPLICAS", "IN", "SYNC", "START", "END"]
    assert [line.split()[0] for line in lines[2:]] == ["0", "1", "2"]

    assert [topic, "3"] in [line.split() for line in run("topic", "list").stdout.splitlines()]
    deleted = run("topic", "delete", topic, "--yes")
    assert (deleted.returncode, deleted.stdout) == (0, f"deleted topic {topic}\n")
    assert topic not in run("topic", "list").stdout


def test_results_as_json(run: Run, topic: str) -> None:
    created = json.loads(run("topic", "create", topic, "--partitions", "2", "--json").stdout)
    assert (created["topic"], created["partitions"], created["created"]) == (topic, 2, True)
    run("produce", topic, stdin="a\n")
    (described,) = json.loads(run("topic", "describe", topic, "--json").stdout)
    assert described["topic_id"] == created["topic_id"]
    assert sum(row["offset_end"] - row["offset_start"] for row in described["partitions"]) == 1
    altered = run("topic", "alter", topic, "--partitions", "3", "--config", "retention.ms=7", "--json")
    assert json.loads(altered.stdout) == {"topic": topic, "partitions": 3, "set": {"retention.ms": "7"}, "unset": []}
    changed = run("config", "set", topic, "retention.ms=8", "--json")
    assert json.loads(changed.stdout) == {"topic": topic, "set": {"retention.ms": "8"}, "unset": []}
    changed = run("config", "unset", topic, "retention.ms", "--json")
    assert json.loads(changed.stdout) == {"topic": topic, "set": {}, "unset": ["retention.ms"]}
    trimmed = run("topic", "trim", topic, "--before", "end", "--partition", "2", "--yes", "--json")
    assert json.loads(trimmed.stdout) == {"topic": topic, "partitions": [{"partition": 2, "offset_start": 0}]}
    listed = json.loads(run("topic", "list", "--json").stdout)
    assert {"topic": topic, "topic_id": created["topic_id"], "internal": False, "partitions": 3} in listed
    assert json.loads(run("topic", "delete", topic, "--yes", "--json").stdout) == {"deleted": [topic]}


def test_internal_topics_are_listed_when_asked_for(run: Run, cluster: Cluster, topic: str, marker_topic: str) -> None:
    run("topic", "create", topic)
    cluster.commit_offsets(topic, topic, {0: 0})
    shown = {line.split()[0] for line in run("topic", "list").stdout.splitlines()}
    with_internal = {line.split()[0] for line in run("topic", "list", "--internal").stdout.splitlines()}
    assert topic in shown
    assert with_internal - shown - {"__transaction_state"} == {"__consumer_offsets", marker_topic}


def test_existing_topics(run: Run, topic: str) -> None:
    run("topic", "create", topic)
    again = run("topic", "create", topic)
    assert again.returncode == 1
    assert again.stderr.startswith(f"onceflow: topic {topic} already exists at ")
    kept = run("topic", "create", topic, "--partitions", "9", "--if-not-exists")
    assert (kept.returncode, kept.stdout) == (0, f"unchanged: topic {topic} with 1 partition\n")


@pytest.mark.parametrize(
    ("typed", "code", "exists"), [("n\n", 1, True), ("y\n", 0, False), ("", 1, True)], ids=["no", "yes", "end"]
)
def test_delete_asks_for_confirmation(run: Run, topic: str, typed: str, code: int, exists: bool) -> None:
    run("topic", "create", topic)
    deleted = run("topic", "delete", topic, stdin=typed)
    assert deleted.returncode == code
    assert f"Delete {topic} with all records at " in deleted.stderr
    assert (topic in run("topic", "list").stdout) is exists


@pytest.mark.parametrize("words", [["describe", "{}"], ["delete", "{}", "--yes"]])
def test_an_unknown_topic(run: Run, topic: str, words: list[str]) -> None:
    result = run("topic", *(word.format(topic) for word in words))
    assert result.returncode == 1
    assert result.stderr.startswith(f"onceflow: topic '{topic}' does not exist at ")


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["topic", "list", "--bootstrap", "localhost"], 2, "'localhost' is not a broker address; write HOST:PORT"),
        (["topic", "list", "--bootstrap", "127.0.0.1:1"], 1, "onceflow: no Kafka broker responds at 127.0.0.1:1"),
        (["topic", "create", "x", "--partitions", "0"], 2, "0 is not in the range x>=1"),
        (
            ["topic", "create", "no/slash"],
            1,
            "onceflow: topic 'no/slash' was not created: the broker returned INVALID_",
        ),
        (["topic", "describe"], 2, "Missing argument 'NAME...'"),
        (["topic", "descibe", "x"], 2, "No such command 'descibe'. Did you mean 'describe'?"),
        (["config", "xyzzy"], 2, "No such command 'xyzzy'. Commands: "),
        (["topic", "describe", "\udcff"], 1, "onceflow: "),
        (["topic", "create", "\udcff"], 1, "onceflow: "),
        (["group", "describe", "\udcff"], 1, "onceflow: "),
    ],
)
def test_wrong_usage_and_failures_differ(run: Run, words: list[str], code: int, says: str) -> None:
    result = run(*words)
    assert result.returncode == code
    assert says in result.stderr
