"""librdkafka's clients send, poll, copy and run transactions under faults; the checker finds nothing in the history."""

from pathlib import Path

import pytest

from tests.campaigns import RecordProperty
from tests.histories.checker import anomalies
from tests.histories.run import run

SHORT_S = 8
LONG_S = 300
SEEDS = 20
SHOWN_MAX = 20


@pytest.mark.timeout(900)
def test_a_short_run_has_no_anomaly(tmp_path: Path) -> None:
    history, figures = run(tmp_path, seed=0, seconds=SHORT_S)
    listed = anomalies(history)
    assert not listed, "\n".join(map(str, listed[:SHOWN_MAX]))
    assert figures["ok transactions"] > 0, figures
    assert figures["kill"] + figures["freeze"] + figures["clock jump"] > 0, figures


@pytest.mark.campaign
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(SEEDS))
def test_histories_under_faults_have_no_anomaly(tmp_path: Path, seed: int, record_property: RecordProperty) -> None:
    """Sends, polls, copies and transactions of librdkafka under kills, freezes and clock jumps, checked like Jepsen."""
    history, figures = run(tmp_path, seed, LONG_S)
    listed = anomalies(history)
    record_property("seeds", str(seed))
    for name, count in {**figures, "anomalies": len(listed)}.items():
        record_property(name, count)
    assert not listed, f"seed {seed}:\n" + "\n".join(map(str, listed[:SHOWN_MAX]))
