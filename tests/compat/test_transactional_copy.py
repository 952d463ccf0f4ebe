"""Kafka's test of transactions with its own copier: the output is the input, once and in order, despite bounces."""

import itertools
from pathlib import Path

import pytest

from benchmarks import kafka
from onceflow.testing import BrokerProcess
from tests.compat.conftest import CLIENT_VERSIONS, kafka_jars, tool
from tests.compat.transactional_copy import BROKER_BOUNCES_AT, CLIENT_BOUNCES, SOONER, Cell, Copy, Figures

CELLS = [
    Cell(hard, bounced, ordered, group_metadata)
    for hard, bounced, ordered, group_metadata in itertools.product(
        (True, False), ("broker", "clients"), (True, False), (True, False)
    )
]
ZOMBIE_CELLS = [Cell(True, "zombies", False, group_metadata) for group_metadata in (True, False)]
"""Copiers that are stopped while others replace them, and then continue: not in the original."""
GROUP_CELLS = [Cell(True, bounced, False, True, group_mode=True) for bounced in ("broker", "clients")]
CELLS_ON_KAFKA = [cell for cell in CELLS if cell.hard and cell.group_metadata and not cell.ordered]
SMALL_CELLS = [
    Cell(True, "broker", False, True, messages=6000, transaction_size=100),
    Cell(True, "clients", True, False, messages=6000, transaction_size=100),
]
"""Versions of the Java client."""


@pytest.fixture
def jars(request: pytest.FixtureRequest) -> Path:
    tool("java", "apt install default-jdk-headless")
    return kafka_jars(getattr(request, "param", kafka.VERSION))


def copy(cell: Cell, jars: Path, directory: Path) -> Figures:
    options = [word for name, value in SOONER.items() for word in ("--" + name.replace(".", "-"), value)]
    with BrokerProcess(directory / "data", 0, *options) as broker:
        return Copy(cell, broker, jars, directory).run()


@pytest.mark.parametrize(
    ("jars", "cell"), [*zip(CLIENT_VERSIONS, SMALL_CELLS, strict=True)], ids=str, indirect=["jars"]
)
def test_a_short_copy(cell: Cell, jars: Path, tmp_path: Path) -> None:
    figures = copy(cell, jars, tmp_path)
    print(figures)
    assert figures.bounces > 0 and figures.committed > 0, figures


@pytest.mark.campaign
@pytest.mark.parametrize("cell", CELLS + GROUP_CELLS + ZOMBIE_CELLS, ids=str)
def test_the_whole_copy(cell: Cell, jars: Path, tmp_path: Path) -> None:
    figures = copy(cell, jars, tmp_path)
    print(figures)
    bounces = len(BROKER_BOUNCES_AT) if cell.bounced == "broker" else CLIENT_BOUNCES * cell.copiers
    # A copier of a group may have nothing to do; while a zombie waits for max.block.ms its successor may finish.
    least = 1 if cell.group_mode else cell.copiers if cell.bounced == "zombies" else bounces
    assert figures.aborted > 0 and least <= figures.bounces <= bounces, figures


@pytest.mark.campaign
@pytest.mark.parametrize("cell", CELLS_ON_KAFKA, ids=str)
def test_the_whole_copy_on_apache_kafka(cell: Cell, jars: Path, tmp_path: Path) -> None:
    """Onceflow need not do more than Kafka does; after a kill of Kafka's broker its ConsoleConsumer may read again what
    it had not committed."""
    with kafka.KafkaProcess(tmp_path / "kafka", jars, SOONER) as broker:
        print("Apache Kafka:", Copy(cell, broker, jars, tmp_path, may_read_again=True).run())
