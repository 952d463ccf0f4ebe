"""Tools of other projects, and skip messages for missing ones."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import kafka
from onceflow.testing import BrokerProcess
from tests.broker.cluster.conftest import Tree
from tests.broker.cluster.zookeeper_process import ZooKeeperProcess, jars, secured_zookeeper
from tests.client.tls import Authority
from tests.compat.broker_certificates import Certificates, issue
from tests.compat.java_programs import JavaPrograms
from tests.compat.kafka_tools import KafkaTools, Peers
from tests.compat.secured_broker import SecuredBroker, secured_broker

ROOT = Path(__file__).parents[2]
CLIENT_VERSIONS = (kafka.VERSION, "3.9.1")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark the tests of this folder for `make compat`; long ones are marked for `make campaign` already."""
    if item.path.is_relative_to(Path(__file__).parent) and item.get_closest_marker("campaign") is None:
        item.add_marker(pytest.mark.compat)


def tool(name: str, remedy: str) -> str:
    """Return a program's path; skip the test if it is not installed."""
    program = shutil.which(name)
    if program is None:
        pytest.skip(f"{name} is not installed: {remedy}")
    return program


def kafka_jars(version: str) -> Path:
    """Return the jars of one Apache Kafka; skip the test if Maven cannot download them."""
    jars = kafka.jars(version)
    if jars is None:
        pytest.skip(
            f"no jars of Apache Kafka {version}: install Maven (apt install maven) and let it reach Maven Central"
        )
    return jars


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    """One secured broker for a module."""
    with secured_broker(tmp_path_factory.mktemp("secured")) as running:
        yield running


@pytest.fixture(scope="session", params=CLIENT_VERSIONS)
def java(request: pytest.FixtureRequest, bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> JavaPrograms:
    """Compile the programs of tests/compat/java against one version of the Java client."""
    tool("java", "apt install default-jdk-headless")
    javac = tool("javac", "apt install default-jdk-headless")
    jars = kafka_jars(request.param)
    programs = JavaPrograms(bootstrap, jars, tmp_path_factory.mktemp(f"java-{request.param}"))
    programs.compile(javac)
    return programs


@pytest.fixture(scope="session")
def apache_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[kafka.KafkaProcess]:
    """Start an Apache Kafka, to compare responses."""
    tool("java", "apt install default-jdk-headless")
    with kafka.KafkaProcess(tmp_path_factory.mktemp("apache") / "kafka", kafka_jars(kafka.VERSION)) as running:
        yield running


@pytest.fixture(scope="session")
def tools_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Start Onceflow's broker with the one non-default setting of the peer that TopicCommand shows."""
    data = tmp_path_factory.mktemp("ours") / "data"
    with BrokerProcess(data, 0, "--log-segment-delete-delay-ms", "0") as running:
        yield running


@pytest.fixture(scope="session")
def peers(apache_kafka: kafka.KafkaProcess, tools_broker: BrokerProcess) -> Peers:
    """Run Kafka's own tools on Apache Kafka and on Onceflow's broker."""
    jars = kafka_jars(kafka.VERSION)
    return Peers(KafkaTools(apache_kafka.bootstrap, jars), KafkaTools(tools_broker.bootstrap, jars))


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel."""
    directory = tmp_path_factory.mktemp("wheel")
    command = ["-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", str(directory), str(ROOT)]
    subprocess.run([sys.executable, *command], check=True, timeout=120)
    (built,) = directory.glob("onceflow-*.whl")
    return built


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def certificates(authority: Authority) -> Certificates:
    return issue(authority)


def zookeeper_jars() -> Path:
    """Return the jars of ZooKeeper; skip the test if it cannot be run."""
    tool("java", "apt install default-jdk-headless")
    classpath = jars()
    if classpath is None:
        pytest.skip("no jars of ZooKeeper: install Maven (apt install maven) and let it reach Maven Central")
    return classpath


@pytest.fixture
def zookeeper(tmp_path: Path) -> Iterator[ZooKeeperProcess]:
    """Start a ZooKeeper."""
    directory = tmp_path / "zookeeper"
    directory.mkdir()
    with ZooKeeperProcess(directory, zookeeper_jars()) as running:
        yield running


@pytest.fixture
def secured_address(authority: Authority, tmp_path: Path) -> Iterator[str]:
    """Start a ZooKeeper with TLS."""
    directory = tmp_path / "secured-zookeeper"
    directory.mkdir()
    with secured_zookeeper(directory, zookeeper_jars(), authority) as address:
        yield address


@pytest.fixture
def secured_tree(secured_address: str, certificates: Certificates) -> Iterator[Tree]:
    """The nodes below a chroot in a ZooKeeper with TLS, for a client with the brokers' certificate."""
    opened = Tree(secured_address, "/secured", **certificates.kazoo)
    yield opened
    opened.close()
