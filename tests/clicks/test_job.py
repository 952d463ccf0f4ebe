"""Jobs that share a session: all run until the last is over, and a failure of one stops the others."""

import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from onceflow.clicks.job import StreamingJob, stream_jobs
from onceflow.clicks.restarts import BROKER_UNREACHABLE, RestartLimits, Restarts, restart_reason
from onceflow.errors import OnceflowError
from onceflow.spark.errors import SinkStopped
from tests.clicks.test_restarts import carried, in_spark

SESSION = cast("SparkSession", None)
WAIT_S = 30


class Job:
    """A job whose query ends when the test says so."""

    name = "job"

    def __init__(self, result: bool | Exception | None) -> None:
        """Take what the job ends with at once; None: it ends when it is stopped."""
        self.result = result
        self.was_stopped = False

    def stream_with_restarts(self, spark: Any, stop: threading.Event, restarts: Restarts) -> bool:
        if self.result is None:
            self.was_stopped = stop.wait(WAIT_S)
            return True
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


def stream(*jobs: Job, stop: threading.Event | None = None) -> bool:
    given = cast("tuple[StreamingJob, ...]", jobs)
    return stream_jobs(given, SESSION, stop or threading.Event(), [Restarts(RestartLimits()) for _ in jobs])


@pytest.mark.parametrize("fails", [0, 1])
def test_failure_of_one_job_stops_all(fails: int) -> None:
    jobs = [Job(None), Job(None), Job(None)]
    jobs[fails].result = OnceflowError("broken")
    with pytest.raises(OnceflowError, match="broken"):
        stream(*jobs)
    assert [job.was_stopped for job in jobs] == [number != fails for number in range(3)]


def test_a_stop_ends_all_jobs() -> None:
    jobs, stop = [Job(None), Job(None)], threading.Event()
    threading.Timer(0.05, stop.set).start()
    assert stream(*jobs, stop=stop)
    assert all(job.was_stopped for job in jobs)


@pytest.mark.parametrize(
    ("results", "are_over"), [((True, True), True), ((True, False), False), ((False, True), False)]
)
def test_lost_jvm_needs_new_session(results: tuple[bool, bool], are_over: bool) -> None:
    assert stream(*map(Job, results)) is are_over


def test_failed_sink_task_is_restarted() -> None:
    """The broker died while a task read a micro-batch: Spark's error names the task's failure, and then the sink's."""
    failed = carried(in_spark("onceflow.client.errors.BrokerUnreachable"), SinkStopped)
    query = SimpleNamespace(exception=lambda: in_spark("onceflow.spark.errors.SinkStopped"), stop=lambda: None)
    job, sink = SimpleNamespace(_watch=lambda *_: None), SimpleNamespace(failure=failed)
    with pytest.raises(SinkStopped) as raised:
        StreamingJob._wait(cast("Any", job), cast("Any", query), cast("Any", sink), threading.Event())
    assert restart_reason(raised.value) == BROKER_UNREACHABLE
