"""librdkafka's clients send, poll, copy and run transactions under faults; the checker finds nothing in the history."""

import os
import signal
import threading
from pathlib import Path

import pytest

from tests.campaigns import RecordProperty
from tests.histories.broker_with_clock import SkewedBroker
from tests.histories.checker import anomalies
from tests.histories.process import run_in_process
from tests.histories.run import BROKER, await_copies, create_topics, run
from tests.histories.workers import COPIES, Copier, Run, Sender

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


def test_copies_are_awaited_while_broker_is_frozen(tmp_path: Path) -> None:
    """A reader that receives nothing for a while has not reached the end."""
    with SkewedBroker(tmp_path, *BROKER) as broker:
        create_topics(broker.bootstrap)
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
    """Sends, polls, copies and transactions of librdkafka under kills, freezes and clock jumps, checked like Jepsen."""
    run_in_process(tmp_path, seed, LONG_S, record_property)
