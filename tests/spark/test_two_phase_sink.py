"""The life cycle of a two-phase sink: the example that writes to Kafka, at a real broker."""

import runpy
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from onceflow.client.admin import Admin
from onceflow.client.cluster import Cluster
from onceflow.remedies import Remedy
from onceflow.spark.exactly_once.batch import Batch
from onceflow.spark.exactly_once.checkpoint import LocalCheckpoint
from onceflow.spark.exactly_once.proof import proof_of
from onceflow.spark.offsets import OffsetRange
from onceflow.spark.sink import SinkStopped, write_batch
from onceflow.spark.two_phase_sink import TwoPhaseSink
from onceflow.testing import Broker, ManualClock
from tests import remedies
from tests.client.test_transactional import visible
from tests.spark.conftest import RunExample, Send

ROOT = Path(__file__).parents[2]
EXAMPLE = "examples/spark/two_phase_sink.py"
TwoPhaseKafkaSink: Any = runpy.run_path(str(ROOT / EXAMPLE), run_name="two_phase_sink")["TwoPhaseKafkaSink"]
QUERY = "query-1"

Start = Callable[[], Any]


def batch(number: int) -> Batch:
    return Batch(QUERY, number, (OffsetRange("in", 0, max(0, number - 1), number),), "two-phase", 1)


@pytest.fixture
def start(bootstrap: str, cluster: Cluster, topic: str, tmp_path: Path) -> Start:
    """Return a function that creates the sink of one start of the query."""
    cluster.create_topic(topic, 1)
    return lambda: TwoPhaseKafkaSink(bootstrap, topic, tmp_path / "state.db")


@pytest.fixture
def rows(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame([("a",), ("b",)], "value string")


def flush(sink: TwoPhaseSink, rows: DataFrame) -> None:
    """Take the steps of batch 0 up to its flush."""
    assert sink.recover(QUERY) is None
    sink.prepare(batch(0), None)
    sink.write(rows)


PROOF = proof_of(batch(0), "two-phase", None)
BOTH = [b"a", b"b"]


def test_the_state_survives_a_power_cut(start: Start) -> None:
    """SQLite syncs the directory, too, after it has removed its journal; FULL, its default, does not."""
    extra = 3
    with start()._file() as file:
        assert file.execute("PRAGMA synchronous").fetchone() == (extra,)


def test_flushed_rows_are_hidden_until_commit(start: Start, rows: DataFrame, cluster: Cluster, topic: str) -> None:
    """Readers of uncommitted records see them at once, readers of committed ones after the last step."""
    sink = start()
    flush(sink, rows)
    sink.snapshot_state(PROOF)
    assert visible(cluster, topic, read_committed=False) == BOTH
    assert visible(cluster, topic) == []
    sink.notify_checkpoint_complete()
    assert visible(cluster, topic) == BOTH


@pytest.mark.parametrize("is_committed", [False, True])
def test_next_start_commits_the_pending(
    start: Start, rows: DataFrame, cluster: Cluster, topic: str, is_committed: bool
) -> None:
    """The driver died after its snapshot, before or after its commit; an abort on the way out changes nothing."""
    sink = start()
    flush(sink, rows)
    sink.snapshot_state(PROOF)
    if is_committed:
        ((pending, _),) = sink._state.pending.values()
        sink.commit_transaction(pending)
    sink.abort()
    for _ in range(2):
        assert start().recover(QUERY) == PROOF
        assert visible(cluster, topic) == BOTH


@pytest.mark.remedy(Remedy.STOP_ONE_QUERY)
def test_next_start_aborts_the_open(start: Start, rows: DataFrame, cluster: Cluster, topic: str) -> None:
    """The frozen driver wakes up afterwards, and can neither declare its transaction pending nor write into it."""
    frozen = start()
    flush(frozen, rows)
    flush(start(), rows)
    with pytest.raises(SinkStopped, match="another start of the query has taken over sink 'two-phase'") as raised:
        frozen.commit(PROOF)
    remedies.find(Remedy.STOP_ONE_QUERY, raised.value)
    successor = start()
    assert write_batch(successor, rows, batch(0), LocalCheckpoint(Path("nowhere")))
    assert visible(cluster, topic) == BOTH


def test_timed_out_transaction_is_written_again(rows: DataFrame, tmp_path: Path) -> None:
    """Flink loses these rows: its source has moved on. Spark repeats the batch until the sink has returned."""
    clock = ManualClock(time.time_ns() // 1_000_000)
    settings = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": 20}
    with Broker(settings=settings, clock=clock) as broker, Cluster(broker.bootstrap_servers) as cluster:
        broker.create_topic("out")
        sink = TwoPhaseKafkaSink(broker.bootstrap_servers, "out", tmp_path / "state.db")
        flush(sink, rows)
        sink.snapshot_state(PROOF)
        clock.advance_ms(61_000)
        ((pending, _),) = sink._state.pending.values()
        while Admin(cluster).describe_transaction(pending[0]).state != "CompleteAbort":
            time.sleep(0.01)
        assert write_batch(sink, rows, batch(0), LocalCheckpoint(Path("nowhere")))
        assert visible(cluster, "out") == BOTH


def test_the_example_runs(
    run_example: RunExample,
    bootstrap: str,
    topic: str,
    cluster: Cluster,
    send: Send,
    capsys: pytest.CaptureFixture[str],
) -> None:
    cluster.create_topic(topic, 1)
    cluster.create_topic(f"{topic}-copy", 1)
    for begin, end in ((0, 3), (3, 5)):
        send([str(number) for number in range(begin, end)])
        run_example(EXAMPLE, bootstrap, topic)
        assert f"{topic} is copied to {topic}-copy, each record once" in capsys.readouterr().out
        assert visible(cluster, f"{topic}-copy") == [str(number).encode() for number in range(end)]
