"""`onceflow group` with a real broker."""

import json
import subprocess
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer

from onceflow.cli import onceflow
from onceflow.client.admin import Admin
from onceflow.client.cluster import Cluster
from onceflow.remedies import Remedy
from tests import remedies

Run = Callable[..., subprocess.CompletedProcess[str]]
Fill = Callable[..., str]


@pytest.fixture
def group(cluster: Cluster, filled: Fill) -> str:
    """A group that has read two of five records of its topic's partition 1; topic and group have one name."""
    topic = filled([b"%d" % number for number in range(5)], partitions=2, partition=1)
    cluster.commit_offsets(topic, topic, {1: 2})
    return topic


def described(run: Run, group: str) -> dict[str, Any]:
    shown: dict[str, Any] = json.loads(run("group", "describe", group, "--json").stdout)
    return shown


def test_list_shows_groups_and_filters_by_state(run: Run, group: str) -> None:
    assert [row for row in json.loads(run("group", "list", "--json").stdout) if row["group"] == group] == [
        {"group": group, "state": "Empty", "protocol_type": ""}
    ]
    assert [group, "Empty"] in [line.split() for line in run("group", "list").stdout.splitlines()]
    assert group not in run("group", "list", "--state", "Stable").stdout
    assert group in run("group", "list", "--state", "Empty", "--state", "Stable").stdout


def test_marker_groups_are_listed_on_request(run: Run, cluster: Cluster, group: str) -> None:
    marker = "onceflow-00000000-0000-4000-8000-00000000000a-clicks"
    cluster.commit_offsets(marker, group, {0: 0})
    assert marker not in run("group", "list").stdout
    assert marker in run("group", "list", "--internal").stdout


def test_list_sorts_groups_by_lag(run: Run, bootstrap: str, cluster: Cluster, group: str) -> None:
    """Groups that have read all, nothing, and deleted records."""
    cluster.create_topic(f"{group}-2", 1)
    cluster.commit_offsets(f"{group}-ahead", group, {1: 5})
    cluster.commit_offsets(f"{group}-behind", group, {0: 0, 1: 0})
    cluster.commit_offsets(f"{group}-behind", f"{group}-2", {0: 0})
    cluster.commit_offsets(f"{group}-trimmed", group, {1: 1})
    Admin(cluster).delete_records(group, {1: 3})
    listed = json.loads(run("group", "list", "--lag", "--json").stdout)
    assert [row["lag"] for row in listed] == sorted((row["lag"] for row in listed), reverse=True)
    ours = {row["group"]: row["lag"] for row in listed if row["group"].startswith(group)}
    # Offsets 0 to 2 are deleted; only 3 and 4 are left to read.
    assert ours == {group: 2, f"{group}-ahead": 0, f"{group}-behind": 2, f"{group}-trimmed": 2}
    printed = [line.split() for line in run("group", "list", "--lag").stdout.splitlines()]
    assert printed[0] == ["GROUP", "STATE", "LAG"]
    assert [group, "Empty", "2"] in printed


def test_describe_shows_lag_in_messages_and_seconds(run: Run, group: str) -> None:
    shown = described(run, group)
    (row,) = shown["partitions"]
    assert {name: row[name] for name in ("topic", "partition", "committed", "end", "lag", "member")} == {
        "topic": group,
        "partition": 1,
        "committed": 2,
        "end": 5,
        "lag": 3,
        "member": None,
    }
    # The records have timestamps of 1970, so the lag is about the time since the epoch.
    assert row["lag_seconds"] > 1_700_000_000
    assert (shown["state"], shown["lag"], shown["lag_seconds"]) == ("Empty", 3, row["lag_seconds"])
    text = run("group", "describe", group).stdout
    assert "state Empty" in text
    assert f"topic {group}: 3 messages, " in text
    assert "total: 3 messages, " in text


def test_lag_without_leader_is_unknown(offline_partition: str) -> None:
    """Neither list nor describe waits 30 s for a leader; a total with such a partition is unknown too."""

    def shown(*words: str) -> Any:
        ended = CliRunner().invoke(onceflow, ["group", *words, "--bootstrap", offline_partition])
        assert ended.exit_code == 0, ended.output
        return json.loads(ended.stdout) if "--json" in words else ended.stdout

    lags = [(row["group"], row["lag"]) for row in shown("list", "--lag", "--json")]
    assert lags == [("reads-alone", None), ("reads-copied", 2)]
    described = shown("describe", "reads-alone", "--json")
    assert sorted((row["end"] is None, row["lag"]) for row in described["partitions"]) == [(False, 0), (True, None)]
    assert (described["lag"], described["lag_seconds"], described["topics"][0]["lag"]) == (None, None, None)
    assert "total: lag unknown: a partition has no leader" in shown("describe", "reads-alone")


def test_describe_shows_members_and_their_partitions(run: Run, bootstrap: str, group: str) -> None:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "client.id": "reader"})
    try:
        consumer.subscribe([group])
        for _ in range(300):
            consumer.poll(0.1)
            if len(consumer.assignment()) == 2:
                break
        shown = described(run, group)
        (member,) = shown["members"]
        assert shown["state"] == "Stable"
        assert (member["client"], member["partitions"]) == ("reader", [[group, 0], [group, 1]])
        rows = {row["partition"]: row for row in shown["partitions"]}
        assert rows[0]["committed"] is None
        assert rows[0]["member"] == rows[1]["member"] == member["member"]
        refused = run("group", "reset", group, "--topic", group, "--to-earliest", "--execute")
        assert refused.returncode == 1
        assert (
            f"group '{group}' has 1 member, whose commits would overwrite the new offsets; {Remedy.STOP_MEMBERS}"
            in refused.stderr
        )
        assert run("group", "delete", group, "--yes").returncode == 1
    finally:
        consumer.close()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--topic", "{0}", "--to-earliest"], {0: 0, 1: 0}),
        (["--topic", "{0}", "--to-latest"], {0: 0, 1: 5}),
        (["--topic", "{0}:1", "--to-offset", "4"], {1: 4}),
        (["--topic", "{0}:1", "--to-offset", "99"], {1: 5}),
        (["--topic", "{0}:1", "--shift-by", "-1"], {1: 1}),
        (["--all-topics", "--shift-by", "2"], {1: 4}),
        (["--topic", "{0}:1", "--to-datetime", "1970-01-01T00:00:01.003"], {1: 3}),
        (["--topic", "{0}:1", "--by-duration", "1h"], {1: 5}),
        (["--topic", "{0}:0,1", "--by-duration", "99999d"], {0: 0, 1: 0}),
    ],
)
def test_reset_changes_offsets_only_with_execute(
    run: Run, cluster: Cluster, group: str, words: list[str], expected: dict[int, int]
) -> None:
    named = [word.format(group) for word in words]
    shown = run("group", "reset", group, *named, "--json")
    assert shown.returncode == 0, shown.stderr
    plan = json.loads(shown.stdout)
    assert {row["partition"]: row["after"] for row in plan["partitions"]} == expected
    assert plan["executed"] is False
    assert cluster.committed_offsets(group, group) == {1: 2}
    planned = run("group", "reset", group, *named)
    remedies.find(Remedy.ADD_EXECUTE, planned.stderr)
    assert run("group", "reset", group, *named, "--execute").stdout.endswith("done\n")
    assert cluster.committed_offsets(group, group) == {1: 2} | expected


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--topic", "{0}"], "specify exactly one reset target"),
        (["--topic", "{0}", "--to-earliest", "--to-offset", "1"], "specify exactly one reset target"),
        (["--topic", "{0}", "--to-earliest", "--to-latest"], "specify exactly one reset target"),
        (["--to-earliest"], "specify the offsets to reset"),
        (["--topic", "{0}:7", "--to-earliest"], "there is no partition 7"),
        (["--topic", "{0}", "--by-duration", "soon"], "'soon' is not a valid duration"),
        (["--topic", "{0}", "--to-datetime", "yesterday"], "'yesterday' is not a valid time"),
    ],
)
def test_ambiguous_resets_are_wrong_usage(run: Run, group: str, words: list[str], message: str) -> None:
    refused = run("group", "reset", group, *(word.format(group) for word in words))
    assert refused.returncode == 2
    assert message in refused.stderr


@pytest.mark.remedy(Remedy.GIVE_OFFSET)
def test_uncommitted_offsets_cannot_be_shifted(run: Run, group: str) -> None:
    refused = run("group", "reset", group, "--topic", f"{group}:0", "--shift-by", "1")
    assert refused.returncode == 1
    assert f"no committed offset of {group}-0" in refused.stderr
    remedies.find(Remedy.GIVE_OFFSET, refused.stderr)
    given = run("group", "reset", group, "--topic", f"{group}:0", "--to-offset", "0", "--execute")
    assert given.returncode == 0, given.stderr


def test_delete_removes_offsets_or_groups(run: Run, cluster: Cluster, group: str) -> None:
    cluster.create_topic(f"{group}-2", 1)
    cluster.commit_offsets(group, f"{group}-2", {0: 0})
    assert run("group", "delete", group, stdin="n\n").returncode == 1
    deleted = run("group", "delete", group, "--topic", group, "--yes", "--json")
    assert json.loads(deleted.stdout) == {"deleted": [group], "topic": group}
    assert cluster.committed_offsets(group, group) == {}
    assert cluster.committed_offsets(group, f"{group}-2") == {0: 0}
    assert run("group", "delete", group, "--yes").stdout == f"deleted group {group}\n"
    missing = run("group", "describe", group)
    assert missing.returncode == 1
    assert f"group '{group}' does not exist" in missing.stderr
    assert run("group", "delete", group, "--yes").returncode == 1
