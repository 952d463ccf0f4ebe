"""`/metrics` of `onceflow run`."""

import json
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from prometheus_client import generate_latest
from pyspark.sql import SparkSession

from onceflow.clicks.pipeline import ClickPipeline
from onceflow.clicks.restarts import RestartLimits, Restarts
from onceflow.clicks.run_metrics import RunMetrics
from onceflow.client.addresses import Address
from onceflow.client.errors import BrokerUnreachable
from onceflow.metrics_server import registry_of
from tests.clicks.counted import GOOD_AND_BAD, write
from tests.clicks.counting_run import CountingRun
from tests.conftest import RedisProcess
from tests.dashboard.conftest import UNREACHABLE, wait_until
from tests.scrapes import Scraped

QUERY = ClickPipeline.name


def scraped(metrics: RunMetrics) -> Scraped:
    return Scraped(generate_latest(registry_of(metrics.collect)).decode())


def progress(topic: str, batch: int, begin: int | None, end: int) -> SimpleNamespace:
    """Return the progress of a micro-batch as Spark reports it."""
    offsets = [None if offset is None else json.dumps({topic: {"0": offset}}) for offset in (begin, end)]
    source = SimpleNamespace(startOffset=offsets[0], endOffset=offsets[1])
    return SimpleNamespace(
        id="id", name=QUERY, batchId=batch, batchDuration=1500, inputRowsPerSecond=20.0, sources=[source]
    )


def test_progress_and_lag(bootstrap: str, filled: Callable[..., str]) -> None:
    topic = filled([b"x"] * 10)
    metrics = RunMetrics(bootstrap)
    assert scraped(metrics).labels("onceflow_run_batches_total", "query") == []
    metrics.progressed(progress(topic, 0, None, 2))
    metrics.progressed(progress(topic, 1, 2, 6))
    metrics.progressed(progress(topic, 1, 2, 6))
    now = scraped(metrics)
    values = {name.removeprefix("onceflow_run_"): value for (name, labels), value in now.values.items() if labels}
    assert (values["batches_total"], values["messages_total"], values["failures_total"]) == (2, 4, 0)
    assert (values["batch_seconds"], values["input_rows_per_second"]) == (1.5, 20)
    assert values["lag_messages"] == 4
    # The records of `filled` are of 1970.
    assert values["lag_seconds"] > 1_000_000
    assert (values["last_failure_timestamp_seconds"], now.value("onceflow_run_broker_up")) == (0, 1)


def test_lag_is_absent_without_the_broker() -> None:
    metrics = RunMetrics(UNREACHABLE)
    metrics.progressed(progress("visits", 0, None, 2))
    now = scraped(metrics)
    assert now.value("onceflow_run_broker_up") == 0
    assert now.labels("onceflow_run_lag_messages", "query") == []
    assert now.value("onceflow_run_batches_total", query=QUERY) == 1


class FailingPipeline(ClickPipeline):
    """A pipeline whose sink cannot be opened."""

    def sink(self, spark: SparkSession | None) -> Any:
        def fails(_spark: Any, **_options: Any) -> None:
            raise BrokerUnreachable("no broker", Address("127.0.0.1", 1))

        target = SimpleNamespace(batch_done=-1)
        return SimpleNamespace(open=fails, close=lambda: None, target=target, failure=None)


def test_failures_of_a_query(bootstrap: str, tmp_path: Path) -> None:
    metrics = RunMetrics(bootstrap)
    limits = RestartLimits(restarts_max=0)
    failing = metrics.watching(FailingPipeline(bootstrap, "visits", str(tmp_path), restarts=limits))
    with pytest.raises(BrokerUnreachable):
        failing.stream_with_restarts(cast(SparkSession, None), threading.Event(), Restarts(limits))
    now = scraped(metrics)
    assert now.value("onceflow_run_failures_total", query=QUERY) == 1
    assert now.value("onceflow_run_last_failure_timestamp_seconds", query=QUERY) > 1_700_000_000


def test_a_real_query_is_measured(
    bootstrap: str, topic: str, redis_server: RedisProcess, tmp_path: Path, spark: SparkSession
) -> None:
    write(bootstrap, topic, GOOD_AND_BAD)
    metrics = RunMetrics(bootstrap)
    job = metrics.watching(ClickPipeline(bootstrap, topic, ""))
    assert job.on_session is not None
    job.on_session(spark)
    CountingRun(bootstrap, topic, redis_server, tmp_path).count(spark)
    # Spark reports the progress after the query has ended. The first micro-batch is empty.
    read = "onceflow_run_messages_total"
    wait_until(lambda: scraped(metrics).values.get((read, frozenset({("query", QUERY)}))) == 9, "the progress")
    now = scraped(metrics)
    assert now.value("onceflow_run_batch_seconds", query=QUERY) > 0
    assert now.value("onceflow_run_lag_messages", query=QUERY) == 0
    assert now.value("onceflow_run_failures_total", query=QUERY) == 0
