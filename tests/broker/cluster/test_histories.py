"""librdkafka's clients on three brokers under faults and partitions; the checker finds nothing in their history."""

from pathlib import Path

import pytest

from tests.broker.cluster.conftest import Tree
from tests.campaigns import RecordProperty
from tests.histories.checker import anomalies
from tests.histories.cluster import run_on_cluster
from tests.histories.process import run_in_process

SHORT_S = 5
LONG_S = 300
SEEDS = 20
SHOWN_MAX = 20


@pytest.mark.campaign
@pytest.mark.timeout(900)
def test_a_short_run_has_no_anomaly(tree: Tree, tmp_path: Path) -> None:
    """Seconds instead of minutes, with everything in this process."""
    history, figures = run_on_cluster(tmp_path, tree.connect, seed=0, seconds=SHORT_S)
    listed = anomalies(history)
    assert not listed, "\n".join(map(str, listed[:SHOWN_MAX]))
    assert figures["sends"] > 0, figures
    assert any(figures[fault] for fault in ("kill", "lost machine", "freeze", "clock jump", "partition")), figures


@pytest.mark.campaign
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("seed", range(SEEDS))
def test_histories_of_three_brokers_have_no_anomaly(
    tree: Tree, tmp_path: Path, seed: int, record_property: RecordProperty
) -> None:
    """Sends, polls, copies and transactions on three brokers under kills, freezes, clock jumps and partitions."""
    run_in_process(tmp_path, seed, LONG_S, record_property, tree.connect)
