"""Each file in examples/ runs as its first line describes."""

import subprocess
import sys
from pathlib import Path

import pytest

from onceflow import client
from onceflow.client.cluster import LATEST, Cluster
from onceflow.client.records import read_records
from onceflow.errors import installed_from

EXAMPLES = Path(__file__).parents[2] / "examples"
SAYS = {
    "produce.py": "10 messages acknowledged",
    "produce_async.py": "a batch of 5, 4 of them sent",
    "simple_consumer.py": "0 None b'0'\n1 None b'1'\n2 None b'2'\nread on at 3, the partition ends at 3",
    "consumer_group.py": "committed",
    "transaction.py": "committed the transaction of producer",
}


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: str(path.name))
def test_example_without_arguments_shows_usage(path: Path) -> None:
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"usage: python examples/{path.name} HOST:PORT TOPIC\n"


def test_without_librdkafka_it_says_what_to_install() -> None:
    program = "import sys; sys.modules['confluent_kafka'] = None; from onceflow.client import Producer"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    said = (
        "Producer needs the package confluent_kafka, which is not installed; "
        f"install it with: pip install '{installed_from()}[client]'"
    )
    assert (done.returncode, said in done.stderr) == (1, True), done.stderr


def test_star_import_exports_all_names() -> None:
    names: dict[str, object] = {}
    exec("from onceflow.client import *", names)
    assert {name for name in names if not name.startswith("__")} == client._MODULES.keys()


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: str(path.name))
def test_an_example_runs(path: Path, bootstrap: str, cluster: Cluster, topic: str) -> None:
    cluster.create_topic(topic, 1)
    if path.name in ("simple_consumer.py", "consumer_group.py"):
        lines = "0\n1\n2\n"
        command = [sys.executable, "-m", "onceflow", "produce", topic, "--bootstrap", bootstrap]
        subprocess.run(command, input=lines, text=True, check=True, timeout=60, capture_output=True)
    command = [sys.executable, str(path), bootstrap, topic]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert SAYS[path.name] in done.stdout
    written = cluster.list_offsets(topic, {0: LATEST})[0].offset
    seen = [record.value for record in read_records(cluster, topic, 0, 0, written)]
    expected = {"produce.py": 10, "produce_async.py": 5, "transaction.py": 1}.get(path.name, 3)
    assert len(seen) == expected
