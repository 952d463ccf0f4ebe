"""`onceflow cluster status` on one broker; tests/compat has it on an Apache Kafka of two."""

import json
import subprocess
from collections.abc import Callable

import pytest

from onceflow.cli.kafka.cluster import _print_status
from onceflow.client import admin
from onceflow.client.cluster import Cluster

Run = Callable[..., subprocess.CompletedProcess[str]]


def test_status_of_a_healthy_cluster(run: Run, cluster: Cluster, bootstrap: str, topic: str) -> None:
    cluster.create_topic(topic, 2)
    done = run("cluster", "status", "--json")
    shown = json.loads(done.stdout)
    assert done.returncode == 0
    assert shown["counts"] == {"offline": 0, "below-min-isr": 0, "under-replicated": 0, "not-preferred": 0}
    assert shown["problems"] == []
    (broker,) = shown["brokers"]
    assert broker["address"] == bootstrap
    assert broker["broker"] == shown["controller"]
    assert broker["leads"] == broker["preferred"] == broker["in_sync"] == broker["replicas"] == shown["partitions"]
    printed = run("cluster", "status").stdout.splitlines()
    assert printed[0] == f"cluster {shown['cluster']}   controller {shown['controller']}   1 broker"
    assert "offline 0   below-min-isr 0   under-replicated 0   not-preferred 0" in printed[-1]


def test_many_topics_take_several_requests(cluster: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"{topic}-{number}" for number in range(3)]
    for name in names:
        cluster.create_topic(name, 1)
    monkeypatch.setattr(admin, "DESCRIBED_AT_ONCE", 2)
    assert admin.Admin(cluster).min_insync_replicas([*names, f"{topic}-missing"]) == dict.fromkeys(names, 1)


def test_problems_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    broker = {"leads": 1, "preferred": 1, "in_sync": 1, "replicas": 2}
    problem = {"topic": "visits", "partition": 0, "replicas": [1, 2], "min_insync_replicas": 2}
    _print_status(
        {
            "cluster": "id",
            "controller": 1,
            "brokers": [{"broker": 1, "address": "a:1", **broker}, {"broker": 2, "address": None, **broker}],
            "partitions": 2,
            "counts": {"offline": 1},
            "problems": [{**problem, "leader": -1, "in_sync_replicas": [], "problems": ["offline", "below-min-isr"]}],
        }
    )
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == "cluster id controller 1 1 broker"
    assert lines[3] == "2 not available 1 1 1 2"
    assert lines[-1] == "visits 0 - 1,2 - 2 offline, below-min-isr"
