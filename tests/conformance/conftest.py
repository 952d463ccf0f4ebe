"""Apache Kafka and Onceflow's broker with the same settings, and the figures at the end of the run."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import kafka
from onceflow.testing import BrokerProcess
from onceflow.wire import apis
from tests.compat.conftest import kafka_jars, tool
from tests.conformance.comparison import Figures
from tests.conformance.side import Side
from tests.conformance.valid_requests import begin, commit_fields

SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    "log.segment.delete.delay.ms": "0",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "50",
}
"""Settings of both."""

KAFKAS = {"offsets.topic.num.partitions": "1", "transaction.state.log.num.partitions": "1"}
"""Settings of Kafka only; Onceflow's broker always has them."""

FIGURES = pytest.StashKey[Figures]()


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark the tests of this folder: only `make conformance` runs them."""
    if item.path.is_relative_to(Path(__file__).parent):
        item.add_marker(pytest.mark.conformance)


@pytest.fixture(scope="session")
def figures(request: pytest.FixtureRequest) -> Figures:
    return request.config.stash.setdefault(FIGURES, Figures())


@pytest.fixture(scope="session")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the address of Apache Kafka."""
    tool("java", "apt install default-jdk-headless")
    directory = tmp_path_factory.mktemp("apache") / "kafka"
    with kafka.KafkaProcess(directory, kafka_jars(kafka.VERSION), {**SETTINGS, **KAFKAS}) as running:
        await_coordinators(running.bootstrap)
        yield running.bootstrap


@pytest.fixture(scope="session")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the address of Onceflow's broker."""
    options = [word for name, value in SETTINGS.items() for word in (f"--{name.replace('.', '-')}", value)]
    with BrokerProcess(tmp_path_factory.mktemp("ours") / "data", 0, *options) as running:
        yield running.bootstrap


def await_coordinators(bootstrap: str) -> None:
    """Look up coordinators, for which Kafka creates the topics of groups and transactions."""
    side = Side(bootstrap, "until the coordinators are there")
    topic = side.create_topic()
    for kind in (0, 1):
        side.until(
            lambda response: response.coordinators[0].error_code == 0,
            apis.FIND_COORDINATOR,
            4,
            key_type=kind,
            coordinator_keys=[side.topic],
        )
    fields = commit_fields(side.group, topic)
    side.until(lambda response: response.topics[0].partitions[0].error_code == 0, apis.OFFSET_COMMIT, 8, **fields)
    begin(side)
    side.close()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the run's figures."""
    if FIGURES in config.stash:
        terminalreporter.section("conformance")
        terminalreporter.write_line(str(config.stash[FIGURES]))
