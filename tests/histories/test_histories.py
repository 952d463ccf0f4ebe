"""librdkafka's clients send, poll, copy and run transactions under faults; the checker finds nothing in the history."""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from onceflow.client.cluster import Cluster
from tests.campaigns import RecordProperty
from tests.histories.broker_with_clock import SkewedBroker
from tests.histories.checker import anomalies
from tests.histories.run import BROKER, FIGURES, await_copies, run
from tests.histories.workers import COPIES, PARTITIONS, Copier, Run, Sender

SHORT_S = 8
LONG_S = 300
SEEDS = 20
SHOWN_MAX = 20
ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(900)
def test_a_short_run_has_no_anomaly(tmp_path: Path) -> None:
    history, figures = run(tmp_path, seed=0, seconds=SHORT_S)
    listed = anomalies(history)
    assert not listed, "\n".join(map(str, listed[:SHOWN_MAX]))
    assert figures["ok transactions"] > 0, figures
    assert figures["kill"] + figures["freeze"] + figures["clock jump"] > 0, figures


def test_copies_are_awaited_while_broker_is_frozen(tmp_path: Path) -> None:
    """A reader that receives nothing for a while has not reached the end."""
    with SkewedBroker(tmp_path, *BROKER) as broker:
        with Cluster(broker.bootstrap) as cluster:
            for topic, count in PARTITIONS.items():
                cluster.create_topic(topic, count)
        work = Run(broker.bootstrap, seed=0)
        sender = Sender(work, "sender", work.stopping)
        sender.open()
        sender.step()
        copier = Copier(work, "copier", work.copied)
        os.kill(broker.pid, signal.SIGSTOP)
        timers = [threading.Timer(3, os.kill, (broker.pid, signal.SIGCONT)), threading.Timer(4, copier.start)]
        for timer in timers:
            timer.start()
        try:
            await_copies(work)
        finally:
            for timer in timers:
                timer.join()
            work.copied.set()
            copier.join()
        polled = [poll.key for operation in work.operations for poll in operation.polls]
        assert any(key.startswith(COPIES) for key in polled)


@pytest.mark.campaign
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(SEEDS))
def test_histories_under_faults_have_no_anomaly(tmp_path: Path, seed: int, record_property: RecordProperty) -> None:
    """Sends, polls, copies and transactions of librdkafka under kills, freezes and clock jumps, checked like Jepsen.

    Each run is a process: the threads of the clients that a run abandons end with it.
    """
    command = [sys.executable, "-m", "tests.histories", str(seed), str(LONG_S), str(tmp_path)]
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    try:
        output, _ = process.communicate()
    except BaseException:  # Including the test's timeout; the group has the broker too.
        os.killpg(process.pid, signal.SIGKILL)
        raise
    assert process.returncode == 0, f"seed {seed}:\n{output}"
    record_property("seeds", str(seed))
    for name, count in json.loads((tmp_path / FIGURES).read_text()).items():
        record_property(name, count)
