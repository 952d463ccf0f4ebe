"""The pytest plugin in a user's test suite, in a process of its own."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SUITE = """
import socket

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

seen = set()


@pytest.mark.parametrize("name", ["first", "wéird / name"])
def test_a_topic_is_new_and_empty(onceflow_broker, onceflow_topic, name):
    assert onceflow_topic not in seen
    seen.add(onceflow_topic)
    producer = Producer({"bootstrap.servers": onceflow_broker.bootstrap_servers})
    producer.produce(onceflow_topic, b"ann")
    assert not producer.flush(10)
    consumer = Consumer(
        {"bootstrap.servers": onceflow_broker.bootstrap_servers, "group.id": "g", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([onceflow_topic])
    assert consumer.poll(10).value() == b"ann"
    consumer.close()


@pytest.mark.onceflow_topic(partitions=3, configs={"retention.ms": "-1"})
def test_a_topic_as_asked_for(onceflow_broker, onceflow_topic):
    metadata = AdminClient({"bootstrap.servers": onceflow_broker.bootstrap_servers}).list_topics(onceflow_topic, 10)
    assert len(metadata.topics[onceflow_topic].partitions) == 3


@pytest.mark.onceflow_cluster(brokers=2, settings={"num.partitions": 5})
def test_a_cluster_with_faults(onceflow_cluster, onceflow_broker, onceflow_faults):
    onceflow_cluster.create_topic("visits")
    assert len(onceflow_cluster.brokers) == 2
    assert onceflow_faults is onceflow_broker.faults
    onceflow_faults.close("Produce")


def test_faults_end_with_their_test(onceflow_faults):
    assert not onceflow_faults._rules


def test_settings(onceflow_broker):
    topic = onceflow_broker.create_topic("default", -1)
    metadata = AdminClient({"bootstrap.servers": onceflow_broker.bootstrap_servers}).list_topics(topic, 10)
    assert len(metadata.topics[topic].partitions) == 3
"""


def run_pytest(directory: Path, suite: str, *arguments: str, ini: str = "") -> tuple[int, str]:
    """Return (exit code, output) of a suite of one file."""
    directory.mkdir(exist_ok=True)
    (directory / "test_theirs.py").write_text(suite)
    (directory / "pytest.ini").write_text(f"[pytest]\naddopts = --strict-markers -W error\n{ini}")
    # A separate base directory: at its end pytest removes what old runs left in the usual one, which takes long.
    base = ["--basetemp", str(directory / "temporary")]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *base, *arguments]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    return done.returncode, done.stdout + done.stderr


def test_fixtures_work_in_xdist_workers(tmp_path: Path) -> None:
    data = tmp_path / "data"
    ini = "onceflow_settings =\n    num.partitions=3\n    log.retention.hours=1\n"
    code, output = run_pytest(tmp_path / "theirs", SUITE, "-n", "2", "--onceflow-data", str(data), ini=ini)
    assert code == 0, output
    assert "6 passed" in output
    assert {path.name for path in data.iterdir()} <= {"gw0", "gw1"}
    assert len(list(data.glob("gw*/test_a_topic_is_new_and_empty-first-*-0/*.log"))) == 1


ONE_BROKER = "def test_it(onceflow_broker):\n    assert onceflow_broker.create_topic('t', 2)\n"


def test_settings_come_from_the_ini_file(tmp_path: Path) -> None:
    code, output = run_pytest(tmp_path, ONE_BROKER, ini="onceflow_settings =\n    num.partition=3\n")
    assert code == 1 and "did you mean num.partitions?" in output
    code, output = run_pytest(tmp_path, ONE_BROKER, ini="onceflow_settings = many\n")
    assert code == 1 and "onceflow_settings: line 1 is not NAME=VALUE" in output


def test_the_ini_file_has_users(tmp_path: Path) -> None:
    suite = (
        "def test_it(onceflow_broker):\n"
        "    settings = onceflow_broker.client_settings('ada')\n"
        "    assert settings['security.protocol'] == 'SASL_SSL'\n"
        "    assert settings['sasl.password'] == 'a=b'\n"
    )
    code, output = run_pytest(tmp_path, suite, ini="onceflow_users =\n    ada=a=b\nonceflow_tls = true\n")
    assert code == 0, output
    code, output = run_pytest(tmp_path, suite, ini="onceflow_users = hush\n")
    assert code == 1 and "hush" not in output.replace("onceflow_users = hush", "")


def test_disabled_plugin_has_no_effect(tmp_path: Path) -> None:
    suite = "import sys\n\n\ndef test_nothing():\n    assert not [m for m in sys.modules if m.startswith('onceflow')]\n"
    assert run_pytest(tmp_path, suite, "-p", "no:onceflow")[0] == 0
    code, output = run_pytest(tmp_path, "def test_it(onceflow_topic):\n    pass\n", "-p", "no:onceflow")
    assert code == 1 and "fixture 'onceflow_topic' not found" in output


def test_a_wrong_marker_is_refused(tmp_path: Path) -> None:
    suite = "import pytest\n\n\n@pytest.mark.onceflow_topic(3)\ndef test_it(onceflow_topic):\n    pass\n"
    code, output = run_pytest(tmp_path, suite)
    assert code == 1 and "takes partitions=N and configs=" in output


def test_a_suite_that_uses_nothing_pays_nothing(tmp_path: Path) -> None:
    suite = """
import sys


def test_it():
    assert not {name for name in sys.modules if name.startswith(("onceflow.broker", "onceflow.wire", "kio"))}
"""
    code, output = run_pytest(tmp_path, suite)
    assert code == 0, output


def test_this_suite_and_the_plugin_go_together(onceflow_broker, onceflow_topic: str, bootstrap: str) -> None:  # type: ignore[no-untyped-def]
    assert onceflow_broker.bootstrap_servers != bootstrap
    assert re.fullmatch(r"test_this_suite_and_the_plugin_go_together-[0-9a-f]{8}", onceflow_topic)


def test_options_are_in_help_and_docs() -> None:
    page = (Path(__file__).parents[2] / "docs" / "testing.md").read_text()
    command = [sys.executable, "-m", "pytest", "--help", "-p", "no:cacheprovider"]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    for option in ("--onceflow-data", "onceflow_settings", "onceflow_users", "onceflow_tls", "-p no:onceflow"):
        assert option in page
        assert option in shown or option.startswith("-p")


def examples(name: str = "testing.md") -> list[str]:
    page = (Path(__file__).parents[2] / "docs" / name).read_text()
    return re.findall(r"```python\n(.*?)```", page, re.DOTALL)


@pytest.mark.parametrize("number", range(len(examples())))
def test_the_pages_examples_run(tmp_path: Path, number: int) -> None:
    example = examples()[number]
    if "import pytest" in example or "onceflow_topic" in example:
        code, output = run_pytest(tmp_path, example)
        assert code == 0, output
        return
    (tmp_path / "program.py").write_text(example)
    done = subprocess.run(
        [sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr


def test_five_tests_of_a_failing_network_pass(tmp_path: Path) -> None:
    """The tests of the page use the program that it begins with."""
    code, output = run_pytest(tmp_path, "\n".join(examples("testing-faults.md")))
    assert code == 0, output
    assert "5 passed" in output
