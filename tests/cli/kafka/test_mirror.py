"""`onceflow mirror` between two brokers of this process."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from onceflow.client.cluster import Cluster
from onceflow.remedies import Remedy
from onceflow.testing import Broker
from tests import remedies

Run = Callable[..., subprocess.CompletedProcess[str]]
Fill = Callable[..., str]


@pytest.fixture(scope="module")
def target_broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


@pytest.fixture
def target(target_broker: Broker) -> str:
    return target_broker.bootstrap_servers


def end_of(bootstrap: str, topic: str) -> int:
    with Cluster(bootstrap) as cluster:
        return cluster.list_offsets(topic, {0: -1})[0].offset if topic in cluster.topics() else 0


def test_once_copies_and_reports(run: Run, bootstrap: str, filled: Fill, target: str) -> None:
    topic = filled([b"a", b"b"])
    words = ("mirror", "--from", bootstrap, "--to", target, "--topics", topic, "--name", topic, "--once")
    result = run(*words, "--json", "-q")
    assert (result.returncode, result.stderr) == (0, "")
    report = json.loads(result.stdout.splitlines()[-1])
    assert {name: report[name] for name in ("records", "transactions", "lag")} == {
        "records": 2,
        "transactions": 1,
        "lag": {"messages": 0, "topics": {topic: 0}},
    }
    assert "2 records in 1 transaction, lag 0 messages" not in run(*words).stderr
    listed = json.loads(run("group", "list", "--lag", "--json").stdout)
    assert {row["group"]: row["lag"] for row in listed}[f"onceflow-mirror.{topic}"] == 0


def test_its_lag_is_in_the_status(run: Run, bootstrap: str, filled: Fill, target: str, cluster: Cluster) -> None:
    topic = filled([b"a"])
    run("mirror", "--from", bootstrap, "--to", target, "--topics", topic, "--name", topic, "--once")
    cluster.commit_offsets(f"onceflow-mirror.{topic}", topic, {0: 0})
    status = json.loads(run("status", "--json").stdout)
    (group,) = [row for row in status["kafka"]["groups"] if row["group"] == f"onceflow-mirror.{topic}"]
    assert group["lag"]["messages"] == 1


def test_groups_are_translated_at_the_end(
    run: Run, bootstrap: str, filled: Fill, target: str, cluster: Cluster
) -> None:
    topic = filled([b"a", b"b", b"c"])
    cluster.commit_offsets(topic, topic, {0: 2})
    words = ("mirror", "--from", bootstrap, "--to", target, "--topics", topic, "--name", topic, "--once")
    result = run(*words, "--groups", topic, "--groups-every", "100")
    assert result.returncode == 0, result.stderr
    with Cluster(target) as connected:
        assert connected.committed_offsets(topic, topic) == {0: 2}


def test_an_error_of_groups_stops_it(run: Run, bootstrap: str, filled: Fill, target_broker: Broker) -> None:
    topic = filled([b"a"])
    with Cluster(bootstrap) as cluster:
        cluster.commit_offsets(topic, topic, {0: 1})
    target_broker.faults.fail("OffsetCommit", "GROUP_AUTHORIZATION_FAILED", times=None)
    words = ("mirror", "--from", bootstrap, "--to", target_broker.bootstrap_servers, "--topics", topic, "--name", topic)
    result = run(*words, "--groups", topic, "--groups-every", "0.1")
    target_broker.faults.clear()
    assert result.returncode == 1
    assert "GROUP_AUTHORIZATION_FAILED" in result.stderr


def test_wrong_options_are_usage_errors(run: Run, bootstrap: str, target: str, tmp_path: Path) -> None:
    def refused(*words: str) -> str:
        result = run("mirror", "--from", bootstrap, "--to", target, *words)
        assert result.returncode == 2
        return result.stderr

    wrong = tmp_path / "client.properties"
    wrong.write_text("bootstrap=127.0.0.1:9092\n")
    protocol = tmp_path / "protocol.properties"
    protocol.write_text("security.protocol=TLS\n")
    assert "is not a valid regular expression" in refused("--topics", "(")
    assert "'' matches no name; '.*' matches every one" in refused("--topics", "")
    assert "is not a valid name" in refused("--topics", "a", "--name", "a b")
    assert "unknown setting bootstrap" in refused("--topics", "a", "--from-config", str(wrong))
    assert "security.protocol" in refused("--topics", "a", "--to-config", str(protocol))
    missing = refused("--topics", "a", "--from-config", str(tmp_path / "none"))
    assert missing.endswith(f"cannot read the configuration file {tmp_path / 'none'}: No such file or directory\n")


@pytest.mark.remedy(Remedy.FEWER_REPLICAS)
def test_too_many_replicas_are_refused(run: Run, bootstrap: str, filled: Fill, target: str) -> None:
    """The message names the option, and is not preceded by a report of nothing."""
    words = ("mirror", "--from", bootstrap, "--to", target, "--topics", filled([b"a"]), "--once")
    result = run(*words, "--replication-factor", "2")
    assert result.returncode == 1
    assert result.stderr.startswith(f"onceflow: --replication-factor 2: more than the brokers of {target}; ")
    remedies.find(Remedy.FEWER_REPLICAS, result.stderr)
    assert run(*words, "--replication-factor", "1").returncode == 0


def test_each_side_has_its_own_security(run: Run, bootstrap: str, filled: Fill, tmp_path: Path) -> None:
    topic = filled([b"a"])
    login = tmp_path / "to.properties"
    login.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-256\nsasl.jaas.config="
        'org.apache.kafka.common.security.scram.ScramLoginModule required username="ann" password="secret";\n'
    )
    login.chmod(0o600)
    with Broker(users={"ann": "secret"}) as secured:
        words = ("mirror", "--from", bootstrap, "--to", secured.bootstrap_servers, "--topics", topic, "--once")
        assert run(*words).returncode == 1
        result = run(*words, "--to-config", str(login))
        assert result.returncode == 0, result.stderr
        assert "1 record in 1 transaction" in result.stderr


def test_ctrl_c_ends_after_the_transaction(bootstrap: str, filled: Fill, target: str) -> None:
    topic = filled([b"a"])
    command = [sys.executable, "-m", "onceflow", "mirror", "--from", bootstrap, "--to", target, "--topics", topic]
    with subprocess.Popen([*command, "--name", topic, "--json"], stdout=subprocess.PIPE, text=True) as process:
        while process.poll() is None and end_of(target, topic) < 2:
            pass
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert json.loads(output.splitlines()[-1])["records"] == 1
