"""`onceflow config`, `topic alter`, `topic trim` and `transaction`, against a real broker."""

import json
import subprocess
from collections.abc import Callable

import pytest

from onceflow.client.cluster import EARLIEST, LATEST, Cluster
from onceflow.client.errors import ProducerFenced
from onceflow.client.transactional import TransactionalProducer

Run = Callable[..., subprocess.CompletedProcess[str]]
Fill = Callable[..., str]


def set_configs(run: Run, topic: str) -> dict[str, str]:
    shown = json.loads(run("config", "topic", topic, "--json").stdout)
    return {row["name"]: row["value"] for row in shown if row["source"] == "DYNAMIC_TOPIC_CONFIG"}


def test_topic_configs_are_set_shown_unset(run: Run, cluster: Cluster, topic: str) -> None:
    assert run("topic", "create", topic, "--config", "retention.ms=3600000").returncode == 0
    assert set_configs(run, topic) == {"retention.ms": "3600000"}
    done = run("config", "set", topic, "segment.bytes=10485760", "cleanup.policy=compact,delete")
    assert done.returncode == 0, done.stderr
    assert set_configs(run, topic) == {
        "retention.ms": "3600000",
        "segment.bytes": "10485760",
        "cleanup.policy": "compact,delete",
    }
    assert run("config", "unset", topic, "retention.ms", "cleanup.policy").returncode == 0
    assert set_configs(run, topic) == {"segment.bytes": "10485760"}
    text = run("config", "topic", topic, "--all").stdout
    assert "max.message.bytes" in text
    assert "DEFAULT_CONFIG" in text


@pytest.mark.parametrize(
    ("setting", "code", "message"),
    [
        ("retention.ms=soon", 1, "retention.ms"),
        ("no.such.setting=1", 1, "no.such.setting"),
        ("retention.ms", 2, "is not NAME=VALUE"),
    ],
)
def test_invalid_configs_are_refused(
    run: Run, cluster: Cluster, topic: str, setting: str, code: int, message: str
) -> None:
    cluster.create_topic(topic, 1)
    refused = run("config", "set", topic, setting)
    assert refused.returncode == code
    assert message in refused.stderr
    assert set_configs(run, topic) == {}


def test_a_brokers_settings_are_shown(run: Run) -> None:
    shown = {row["name"]: row for row in json.loads(run("config", "broker", "--all", "--json").stdout)}
    assert shown["num.partitions"]["value"] == "1"
    assert shown["message.max.bytes"]["value"] == "1048588"


def test_alter_adds_partitions_and_changes_configs(run: Run, cluster: Cluster, topic: str) -> None:
    cluster.create_topic(topic, 1, configs={"retention.ms": "1000000"})
    done = run(
        "topic", "alter", topic, "--partitions", "3", "--config", "segment.ms=60000", "--delete-config", "retention.ms"
    )
    assert done.returncode == 0, done.stderr
    assert len(cluster.require_topic(topic).partitions) == 3
    assert set_configs(run, topic) == {"segment.ms": "60000"}
    assert run("topic", "alter", topic).returncode == 2
    fewer = run("topic", "alter", topic, "--partitions", "2")
    assert fewer.returncode == 1
    assert "the partitions were not created" in fewer.stderr


def test_trim_deletes_the_first_records(run: Run, cluster: Cluster, filled: Fill) -> None:
    topic = filled([b"%d" % number for number in range(10)], partitions=2, partition=1)
    assert run("topic", "trim", topic, "--before", "4", "--partition", "1", stdin="n\n").returncode == 1
    done = run("topic", "trim", topic, "--before", "4", "--partition", "1", "--yes")
    assert done.stdout == f"{topic}-1 starts at 4\n"
    assert cluster.list_offsets(topic, {0: EARLIEST, 1: EARLIEST})[1].offset == 4
    assert run("topic", "trim", topic, "--before", "@1970-01-01T00:00:01.006", "--yes").returncode == 0
    assert cluster.list_offsets(topic, {1: EARLIEST})[1].offset == 6
    assert run("consume", topic, "--exit-at-end").stdout == "6\n7\n8\n9\n"
    assert run("topic", "trim", topic, "--before", "3:5", "--yes").returncode == 2


def test_transactions_are_listed_described_and_aborted(run: Run, bootstrap: str, cluster: Cluster, topic: str) -> None:
    cluster.create_topic(topic, 1)
    producer = TransactionalProducer(bootstrap, topic)
    producer.begin()
    producer.send(topic, b"left open", partition=0)
    producer.flush()
    listed = json.loads(run("transaction", "list", "--state", "Ongoing", "--json").stdout)
    assert {"transactional_id": topic, "producer_id": producer.producer_id, "state": "Ongoing"} in listed
    shown = json.loads(run("transaction", "describe", topic, "--json").stdout)
    assert (shown["state"], shown["partitions"]) == ("Ongoing", [{"topic": topic, "partition": 0}])
    assert shown["age_seconds"] >= 0
    assert "open for" in run("transaction", "describe", topic).stdout
    assert cluster.list_offsets(topic, {0: LATEST})[0].offset == 0
    assert run("transaction", "abort", topic, stdin="n\n").returncode == 1
    done = run("transaction", "abort", topic, "--yes")
    assert done.returncode == 0, done.stderr
    assert f"{topic} was Ongoing" in done.stdout
    with pytest.raises(ProducerFenced):
        producer.commit()
    producer.close()
    assert cluster.list_offsets(topic, {0: LATEST})[0].offset > 0
