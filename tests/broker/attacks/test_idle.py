"""The remains of attacks cost an idle broker no time."""

import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from onceflow.testing import BrokerProcess
from tests.broker.attacks import neighbour

ATTACKS: Sequence[tuple[str, Sequence[str]]] = (
    ("joins_without_id", ()),
    ("joins_without_id", ("--groups", "100000", "--name-bytes", "900")),
)
"""Attack program and its options; each ends by itself."""
ATTACK_SECONDS_MAX = 300
IDLE_SECONDS = 5
CPU_SHARE_MAX = 0.05
"""Limit of processor time, of one core, in the seconds after the attack."""


@pytest.mark.campaign
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("attack", "options"), ATTACKS)
def test_an_idle_broker_rests(attack: str, options: Sequence[str], tmp_path: Path) -> None:
    """The attack is over and its connection closed; its requests are still within their timeout."""
    with BrokerProcess(tmp_path / "data") as broker:
        before_mib = neighbour.memory_mib(broker.pid)
        with neighbour.attacking(attack, broker.bootstrap, *options) as process:
            process.wait(ATTACK_SECONDS_MAX)
        begin_seconds = neighbour.cpu_seconds(broker.pid)
        time.sleep(IDLE_SECONDS)
        share = (neighbour.cpu_seconds(broker.pid) - begin_seconds) / IDLE_SECONDS
        growth_mib = neighbour.memory_mib(broker.pid) - before_mib
    print(f"{attack} {' '.join(options)}: {share:.0%} of a core while idle, {growth_mib:.0f} MiB more")
    assert share <= CPU_SHARE_MAX
    assert growth_mib <= neighbour.GROWTH_MIB_MAX
