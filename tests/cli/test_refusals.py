"""Refusals of the command line: messages with a remedy, not bare error codes."""

import json
import subprocess
from collections.abc import Callable

import click
import pytest
from confluent_kafka import Consumer

from onceflow.client.cluster import EARLIEST, Cluster
from onceflow.client.transactional import TransactionalProducer
from onceflow.remedies import Remedy
from tests import remedies

Run = Callable[..., subprocess.CompletedProcess[str]]
Fill = Callable[..., str]


def refused(run: Run, *words: str, code: int = 1) -> str:
    """Return the message on standard error of a command that exits with `code` and prints nothing else."""
    ended = run(*words)
    assert (ended.returncode, ended.stdout) == (code, ""), ended
    return ended.stderr


def test_a_finished_transaction_is_not_open(run: Run, bootstrap: str, cluster: Cluster, topic: str) -> None:
    cluster.create_topic(topic, 1)
    with TransactionalProducer(bootstrap, topic) as producer:
        producer.begin()
        producer.send(topic, b"committed", partition=0)
        producer.commit()
        shown = json.loads(run("transaction", "describe", topic, "--json").stdout)
        assert shown["state"] in ("PrepareCommit", "CompleteCommit")
        # The commit is decided; its markers may not be written yet.
        while shown["state"] != "CompleteCommit":
            shown = json.loads(run("transaction", "describe", topic, "--json").stdout)
        assert (shown["age_seconds"], shown["start_time_ms"]) == (None, None)
        assert "not open" in run("transaction", "describe", topic).stdout
    done = run("transaction", "abort", topic, "--yes")
    assert done.returncode == 0, done.stderr
    assert f"{topic} was CompleteCommit: there was no open transaction to abort; producer " in done.stdout


@pytest.mark.remedy(Remedy.LIST_TRANSACTIONS)
@pytest.mark.parametrize("words", [("describe",), ("abort", "--yes")])
def test_unknown_transactional_ids_are_refused(run: Run, topic: str, words: tuple[str, ...]) -> None:
    message = refused(run, "transaction", words[0], topic, *words[1:])
    assert f"transactional id '{topic}' does not exist at" in message
    remedies.find(Remedy.LIST_TRANSACTIONS, message)
    assert run("transaction", "list").returncode == 0
    assert "NOT_FOUND" not in message


@pytest.mark.remedy(Remedy.LIST_GROUPS, Remedy.SHOW_MEMBERS, Remedy.STOP_MEMBERS)
def test_unknown_and_used_groups_are_not_deleted(run: Run, bootstrap: str, filled: Fill, cluster: Cluster) -> None:
    topic = filled([b"one"])
    message = refused(run, "group", "delete", f"{topic}-unknown", "--yes")
    assert f"group '{topic}-unknown' does not exist at" in message
    remedies.find(Remedy.LIST_GROUPS, message)
    remedies.find(Remedy.LIST_GROUPS, refused(run, "group", "describe", f"{topic}-unknown"))
    assert run("group", "list").returncode == 0
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": topic})
    try:
        consumer.subscribe([topic])
        for _ in range(300):
            consumer.poll(0.1)
            if consumer.assignment():
                break
        used = refused(run, "group", "delete", topic, "--yes")
        assert f"group '{topic}' has members" in used
        named = remedies.find(Remedy.SHOW_MEMBERS, used)["group"]
        assert json.loads(run("group", "describe", named, "--json").stdout)["members"]
        topic_used = refused(run, "group", "delete", topic, "--topic", topic, "--yes")
        assert f"group '{topic}' has members that read {topic}; {Remedy.STOP_MEMBERS}" in topic_used
        resetting = refused(run, "group", "reset", topic, "--topic", topic, "--to-earliest", "--execute")
    finally:
        consumer.close()
    for message in (used, topic_used, resetting):
        remedies.find(Remedy.STOP_MEMBERS, message)
    assert run("group", "reset", topic, "--topic", topic, "--to-earliest", "--execute").returncode == 0
    assert run("group", "delete", topic, "--topic", topic, "--yes").returncode == 0


def test_invalid_topic_names_are_explained(run: Run) -> None:
    message = run("produce", "bad topic", stdin="a\n").stderr
    assert (
        "'bad topic' is not a valid topic name; expected at most 249 ASCII letters, digits, '.', '_' and '-'" in message
    )
    assert "INVALID_TOPIC" not in message


@pytest.mark.parametrize(
    "words",
    [("config", "unset", "TOPIC", "retentoin.ms"), ("topic", "alter", "TOPIC", "--delete-config", "retentoin.ms")],
)
def test_misspelled_configs_cannot_be_unset(run: Run, cluster: Cluster, topic: str, words: tuple[str, ...]) -> None:
    cluster.create_topic(topic, 1)
    message = refused(run, *(topic if word == "TOPIC" else word for word in words))
    assert "unknown config 'retentoin.ms'; did you mean retention.ms?" in message


def test_misspelled_configs_cannot_be_set(run: Run, cluster: Cluster, topic: str) -> None:
    cluster.create_topic(topic, 1)
    assert "did you mean retention.ms?" in refused(run, "config", "set", topic, "retentoin.ms=1")
    assert "did you mean retention.ms?" in refused(run, "topic", "alter", topic, "--config", "retentoin.ms=1")


@pytest.mark.remedy(Remedy.LIST_CONFIGS)
def test_unknown_configs_name_the_list(run: Run, cluster: Cluster, topic: str) -> None:
    cluster.create_topic(topic, 1)
    message = refused(run, "config", "unset", topic, "xyz")
    named = remedies.find(Remedy.LIST_CONFIGS, message)["topic"]
    assert "retention.ms" in run("config", "topic", named, "--all").stdout


def test_states_are_case_insensitive_and_checked(run: Run, cluster: Cluster, filled: Fill) -> None:
    topic = filled([b"one"])
    cluster.commit_offsets(topic, topic, {0: 1})
    assert topic in run("group", "list", "--state", "stable,EMPTY").stdout
    for noun, known in (("group", "PreparingRebalance"), ("transaction", "CompleteAbort")):
        message = refused(run, noun, "list", "--state", "Empty,foo", code=2)
        assert "'foo' is not a valid state" in message
        assert known in message


@pytest.mark.parametrize("asked", ["@1h", "@1h:end", "@1h:2h", "@:1h"])
def test_durations_without_minus_are_refused(run: Run, filled: Fill, asked: str) -> None:
    message = refused(run, "consume", filled([b"one"]), "--offset", asked, "--exit-at-end", code=2)
    assert "1h is in the future; write -1h for 1h ago" in message


@pytest.mark.remedy(Remedy.TRIM_ALL)
def test_trims_beyond_the_end_are_explained(run: Run, filled: Fill, cluster: Cluster) -> None:
    topic = filled([b"one", b"two"])
    message = refused(run, "topic", "trim", topic, "--before", "500", "--yes")
    assert f"nothing was deleted: offset 500 is outside {topic}-0, which has offsets 0 to 2" in message
    remedies.find(Remedy.TRIM_ALL, message)
    assert cluster.list_offsets(topic, {0: EARLIEST})[0].offset == 0
    assert run("topic", "trim", topic, "--before", "end", "--yes").returncode == 0
    assert cluster.list_offsets(topic, {0: EARLIEST})[0].offset == 2
    no_place = refused(run, "topic", "trim", topic, "--before", "foo", code=2)
    assert "'foo' is not a valid offset; expected end, 47, +47, -47 or @TIME\n" in no_place
    assert "is a range; --before takes one offset" in refused(run, "topic", "trim", topic, "--before", ":1", code=2)


def test_unknown_brokers_list_the_known(run: Run, bootstrap: str) -> None:
    assert f"broker 7 is not in the cluster at {bootstrap}, which has broker 1" in refused(run, "config", "broker", "7")


@pytest.mark.remedy(Remedy.SKIP_QUESTION)
@pytest.mark.parametrize("typed", ["", "n\n"])
def test_unconfirmed_commands_change_nothing(run: Run, filled: Fill, cluster: Cluster, typed: str) -> None:
    topic = filled([b"one"])
    cluster.commit_offsets(topic, topic, {0: 1})
    for words in (("topic", "delete", topic), ("topic", "trim", topic, "--before", "1"), ("group", "delete", topic)):
        ended = run(*words, stdin=typed)
        assert (ended.returncode, ended.stdout) == (1, "")
        remedies.find(Remedy.SKIP_QUESTION, ended.stderr)
    assert run("consume", topic, "--exit-at-end").stdout == "one\n"
    assert run("topic", "delete", topic, "--yes").returncode == 0


def test_counts_have_singular_nouns(run: Run) -> None:
    assert "1 event for __consumer_offsets" in run("produce", "__consumer_offsets", stdin="a\n").stderr


def test_interrupted_prompts_exit_with_130(
    run: Run, cluster: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.create_topic(topic, 1)

    def interrupted(prompt: str) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(click.termui, "visible_prompt_func", interrupted)
    ended = run("topic", "delete", topic)
    assert (ended.returncode, ended.stderr.strip().endswith("onceflow: interrupted")) == (130, True)
