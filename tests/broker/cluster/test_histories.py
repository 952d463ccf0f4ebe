"""librdkafka's clients on three brokers under faults and partitions; the checker finds nothing in their history."""

from pathlib import Path

import pytest

from tests.broker.cluster.conftest import Tree
from tests.campaigns import RecordProperty
from tests.histories.process import run_in_process

LONG_S = 300
SEEDS = 20


@pytest.mark.campaign
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("seed", range(SEEDS))
def test_histories_of_three_brokers_have_no_anomaly(
    tree: Tree, tmp_path: Path, seed: int, record_property: RecordProperty
) -> None:
    """Sends, polls, copies and transactions on three brokers under kills, freezes, clock jumps and partitions."""
    run_in_process(tmp_path, seed, LONG_S, record_property, tree.connect)
