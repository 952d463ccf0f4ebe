"""`onceflow status` against a real broker and a real Redis, and with either of them away."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from click.testing import CliRunner

from onceflow.cli import onceflow
from onceflow.cli.internal import is_internal_topic, is_marker_group
from onceflow.client.admin import Admin
from onceflow.client.cluster import LATEST, Cluster, OffsetAt
from tests.clicks.counted import GOOD_AND_BAD, count, write
from tests.conftest import RedisProcess

Run = Callable[..., subprocess.CompletedProcess[str]]
DEAD = "redis://127.0.0.1:1/1"


@pytest.fixture
def hash_key(topic: str) -> str:
    return f"status::{topic}"


def test_a_count_with_lag(run: Run, bootstrap: str, topic: str, redis_server: RedisProcess, hash_key: str) -> None:
    write(bootstrap, topic, GOOD_AND_BAD)
    count(redis_server.url, hash_key, topic, GOOD_AND_BAD)
    write(bootstrap, topic, {0: [b'{"uid":"ada","click_count":1}'] * 3})

    ended = run("status", "--redis", redis_server.url, "--hash-key", hash_key, "--json")

    assert ended.returncode == 0, ended.stderr
    status = json.loads(ended.stdout)
    assert status["kafka"]["bootstrap"] == bootstrap
    assert {"topic": topic, "partitions": 2, "messages": 12, "without_leader": 0} in status["kafka"]["topics"]
    assert status["kafka"]["problems"] == {"offline": 0, "under-replicated": 0, "not-preferred": 0}
    assert status["redis"]["server"].startswith(("Valkey ", "Redis "))
    assert status["redis"]["appendfsync"] in {"always", "everysec"}
    assert (status["count"]["events"], status["count"]["bad"], status["count"]["batch"]) == (9, 4, 1)
    assert status["count"]["offsets"] == {topic: {"0": 4, "1": 5}}
    assert status["count"]["lag"]["messages"] == 3

    text = run("status", "--redis", redis_server.url, "--hash-key", hash_key).stdout
    assert "batch 1 complete" in text
    assert "lag 3 messages" in text
    assert topic in text


def test_groups_have_their_lag(run: Run, bootstrap: str, cluster: Cluster, topic: str) -> None:
    write(bootstrap, topic, GOOD_AND_BAD)
    cluster.commit_offsets(topic, topic, {0: 1, 1: 5})
    ended = run("status", "--redis", DEAD, "--json")
    groups = {group["group"]: group for group in json.loads(ended.stdout)["kafka"]["groups"]}
    assert groups[topic]["state"] == "Empty"
    assert groups[topic]["topics"] == [topic]
    assert groups[topic]["lag"]["messages"] == 3


def test_groups_share_the_ends_of_topics(
    bootstrap: str, cluster: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both ends of a topic are requested once, however many groups or partitions there are."""
    write(bootstrap, topic, GOOD_AND_BAD)
    for number in range(3):
        cluster.commit_offsets(f"{topic}-{number}", topic, {0: 1, 1: number})
    requested: list[str] = []
    list_offsets = Cluster.list_offsets

    def counted(self: Cluster, name: str, timestamps: Mapping[int, int]) -> dict[int, OffsetAt]:
        requested.append(name)
        return list_offsets(self, name, timestamps)

    monkeypatch.setattr(Cluster, "list_offsets", counted)

    def shown(*words: str) -> Any:
        requested.clear()
        return json.loads(CliRunner().invoke(onceflow, [*words, "--bootstrap", bootstrap, "--json"]).stdout)

    groups = {group["group"]: group for group in shown("status", "--redis", DEAD)["kafka"]["groups"]}
    assert [groups[f"{topic}-{number}"]["lag"]["messages"] for number in range(3)] == [8, 7, 6]
    assert requested.count(topic) == 2
    lags = {group["group"]: group["lag"] for group in shown("group", "list", "--lag")}
    assert [lags[f"{topic}-{number}"] for number in range(3)] == [8, 7, 6]
    assert requested.count(topic) == 2
    assert [row["lag"] for row in shown("group", "describe", f"{topic}-0")["partitions"]] == [3, 5]
    assert requested.count(topic) == 2


@pytest.mark.parametrize("command", [["status", "--redis", DEAD], ["group", "list", "--lag"]], ids=["status", "list"])
def test_lag_of_a_topic_that_grows(
    bootstrap: str, cluster: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    """Records arrive, and a group commits some, after another group was asked for its offsets."""
    write(bootstrap, topic, GOOD_AND_BAD)
    first, second = f"{topic}-1", f"{topic}-2"
    for group in (first, second):
        cluster.commit_offsets(group, topic, {0: 0})
    group_offsets = Admin.group_offsets

    def growing(self: Admin, group_id: str) -> Any:
        if group_id == second:
            write(bootstrap, topic, GOOD_AND_BAD)
            end = cluster.list_offsets(topic, {0: LATEST})[0].offset
            cluster.commit_offsets(second, topic, {0: end - 1})
        return group_offsets(self, group_id)

    monkeypatch.setattr(Admin, "group_offsets", growing)
    shown = json.loads(CliRunner().invoke(onceflow, [*command, "--bootstrap", bootstrap, "--json"]).stdout)
    groups = shown if isinstance(shown, list) else shown["kafka"]["groups"]
    (lag,) = [group["lag"] for group in groups if group["group"] == second]
    assert (lag if isinstance(lag, int) else lag["messages"]) == 1


def test_a_group_of_a_deleted_topic(run: Run, cluster: Cluster, filled: Callable[..., str], topic: str) -> None:
    """Its offsets name a partition that is not there any more; the screen is shown all the same."""
    filled([b"a"])
    cluster.commit_offsets(topic, topic, {0: 0})
    cluster.delete_topic(topic)
    status = json.loads(run("status", "--redis", DEAD, "--json").stdout)
    assert topic not in [group["group"] for group in status["kafka"]["groups"] if group["lag"]["messages"]]


def test_marker_state_only_on_request(run: Run, cluster: Cluster, topic: str, marker_topic: str) -> None:
    group = "onceflow-00000000-0000-4000-8000-000000000000-a"
    cluster.create_topic(topic, 1)
    cluster.commit_offsets(group, topic, {0: 0})

    def names(*words: str) -> tuple[set[str], set[str]]:
        kafka = json.loads(run("status", "--redis", DEAD, "--json", *words).stdout)["kafka"]
        return {entry["topic"] for entry in kafka["topics"]}, {entry["group"] for entry in kafka["groups"]}

    topics, groups = names()
    assert not {marker_topic, "__consumer_offsets"} & topics
    assert group not in groups
    topics, groups = names("--internal")
    assert {marker_topic, "__consumer_offsets"} <= topics
    assert group in groups


def test_redis_is_away(run: Run, bootstrap: str) -> None:
    """The rest is shown, and the exit code says that something is missing."""
    ended = run("status", "--redis", DEAD)
    assert ended.returncode == 1
    assert f"redis   {DEAD}   not available: " in ended.stdout
    assert f"kafka   {bootstrap}   cluster " in ended.stdout


def test_broker_is_away(run: Run, topic: str, redis_server: RedisProcess, hash_key: str) -> None:
    count(redis_server.url, hash_key, topic, GOOD_AND_BAD)
    address = "127.0.0.1:1"
    ended = run("status", "--bootstrap", address, "--redis", redis_server.url, "--hash-key", hash_key)
    assert ended.returncode == 1
    assert f"kafka   {address}   not available: " in ended.stdout
    assert f"count   {hash_key}   9 events   batch 1 complete" in ended.stdout


def test_before_the_first_batch(run: Run, redis_server: RedisProcess, hash_key: str) -> None:
    ended = run("status", "--redis", redis_server.url, "--hash-key", hash_key)
    assert ended.returncode == 0
    assert f"count   {hash_key}   nothing counted" in ended.stdout


def test_password_is_not_shown(run: Run) -> None:
    ended = run("status", "--redis", "redis://ann:secret@127.0.0.1:1/1", "--json")
    assert "secret" not in ended.stdout + ended.stderr


def test_watch_repeats_until_interrupted(bootstrap: str, redis_server: RedisProcess) -> None:
    words = ["status", "--bootstrap", bootstrap, "--redis", redis_server.url, "--watch", "0.1", "--json"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        [sys.executable, "-m", "onceflow", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    ) as process:
        assert process.stdout is not None
        times = [json.loads(process.stdout.readline())["at_ms"] for _ in range(3)]
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130
    assert times == sorted(set(times))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("onceflow-0b5a2c4e-1d2f-4a6b-8c9d-0123456789ab-clicks", True),
        ("onceflow-workers", False),
        ("counting", False),
    ],
)
def test_names_of_marker_groups(name: str, expected: bool) -> None:
    assert is_marker_group(name) is expected


def test_internal_topics() -> None:
    assert is_internal_topic("__consumer_offsets", True)
    assert is_internal_topic("onceflow-markers", False)
    assert not is_internal_topic("visits", False)


def test_partitions_with_problems_are_counted(offline_partition: str) -> None:
    """One of two replicas of a killed broker is led by the other, one has no leader."""
    arguments = ["status", "--bootstrap", offline_partition, "--redis", DEAD]
    shown = json.loads(CliRunner().invoke(onceflow, [*arguments, "--json"]).stdout)
    assert shown["kafka"]["problems"] == {"offline": 1, "under-replicated": 2, "not-preferred": 1}
    printed = CliRunner().invoke(onceflow, arguments).stdout
    assert "partitions: offline 1, under-replicated 2, not-preferred 1 ('onceflow cluster status'" in printed


def test_status_does_not_wait_for_leaders(offline_partition: str, redis_server: RedisProcess, hash_key: str) -> None:
    """A group's lag is null and the count's lag an error, where the client would wait 30 s for a leader."""
    count(redis_server.url, hash_key, "alone", GOOD_AND_BAD)
    arguments = ["status", "--bootstrap", offline_partition, "--redis", redis_server.url, "--hash-key", hash_key]
    shown = json.loads(CliRunner().invoke(onceflow, [*arguments, "--json"]).stdout)
    assert {group["group"]: group["lag"]["messages"] for group in shown["kafka"]["groups"]} == {
        "reads-alone": None,
        "reads-copied": 2,
    }
    assert {topic["topic"]: topic["messages"] for topic in shown["kafka"]["topics"]} == {"alone": None, "copied": 2}
    assert shown["count"]["lag"]["error"].endswith("no leader: are all brokers up?")
    assert ["reads-alone", "Empty", "-", "-"] in [
        line.split() for line in CliRunner().invoke(onceflow, arguments).stdout.splitlines()
    ]
