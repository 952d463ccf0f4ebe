"""`onceflow run` restarts its query after transient failures, in one process, and counts exactly once."""

import os
import re
import signal
import stat
import time
import urllib.request
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from onceflow.clicks.plan import parse_plan
from onceflow.clicks.results import Results
from tests.end_to_end.pipeline import HASH_KEY, TOPIC, Pipeline
from tests.end_to_end.test_kills import Writer, counted
from tests.processes import MARK, jvms_of
from tests.scrapes import scrape

WITHIN_S = 180
SLOW_START_S = 15
"""Longer than the 10 s that Spark allows a worker of a streaming source."""

SLOW_ONCE = """#!/bin/sh
# The first worker of the streaming source starts slowly.
case "$*" in *python_streaming_source_runner*) mkdir '{once}' 2>/dev/null && sleep {pause_s} ;; esac
exec '{python}' "$@"
"""


def wait_for(done: Callable[[], bool], pipeline: Pipeline) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not done():
        assert time.monotonic() < deadline, pipeline.log.read_text()[-4000:]
        assert pipeline.driver is not None and pipeline.driver.poll() is None, pipeline.log.read_text()[-4000:]
        time.sleep(0.2)


def restarts(pipeline: Pipeline) -> list[str]:
    """Return the reason of each restart in the log."""
    return re.findall(r"([^:\n]+): restart \d+ of at most \d+ of onceflow clicks in ", pipeline.log.read_text())


@pytest.mark.timeout(600)
def test_query_survives_each_part(tmp_path: Path, java_home: str, spark_python: Path) -> None:
    """Each part fails until the query has failed because of it; it is restarted by the same driver.

    The driver is killed last, together with Redis. It serves its pages, it is verified while it counts, and an
    interrupt ends it.
    """
    mark = f"restarts-{uuid.uuid4()}"
    python = python_that_starts_slowly_once(tmp_path, spark_python)
    with Pipeline(tmp_path, java_home, environment={MARK: mark, "PYSPARK_PYTHON": str(python)}) as pipeline:
        pipeline.onceflow("topic", "create", TOPIC, "--partitions", "4", "--bootstrap", pipeline.broker.bootstrap)
        writer = Writer(pipeline.broker.bootstrap, seed=1)
        writer.start()
        pipeline.start_driver("--ui-port", "0", "--metrics-port", "0", "--nice", "1")
        wait_for(lambda: pipeline.batch() >= 2, pipeline)
        assert restarts(pipeline) == ["a Python worker of Spark started too slowly"]
        check_pages(pipeline)
        with Results(pipeline.redis.url) as results:
            assert results.announced() == (parse_plan(pipeline.marker()["plan"]), TOPIC), "for readers before a marker"

        (jvm,) = jvms_of(mark)
        assert os.getpriority(os.PRIO_PROCESS, jvm) == 1
        os.kill(jvm, signal.SIGKILL)
        wait_for(lambda: "Spark's JVM ended" in restarts(pipeline), pipeline)
        await_next_batch(pipeline)

        pipeline.redis.kill()
        wait_for(lambda: "Redis is unreachable" in restarts(pipeline), pipeline)
        pipeline.redis.start()
        await_next_batch(pipeline)

        pipeline.broker.kill()
        wait_for(lambda: "the broker is unreachable" in restarts(pipeline), pipeline)
        pipeline.broker.start()
        await_next_batch(pipeline)

        pipeline.kill_driver(only_python=True)
        pipeline.redis.kill()
        pipeline.redis.start()
        pipeline.start_driver()
        writer.stopping.set()
        writer.join(timeout=90)
        assert not writer.is_alive()
        wait_for(lambda: counted(pipeline) == writer.events, pipeline)
        verified = pipeline.verify()
        assert (verified["events"], verified["clicks"]) == (writer.events, sum(writer.clicks.values()))

        assert pipeline.driver is not None
        pipeline.driver.send_signal(signal.SIGINT)
        assert pipeline.driver.wait(timeout=WITHIN_S) == 0
        log = pipeline.log.read_text()
        assert f"{writer.events:,} events · {verified['clicks']:,} clicks · {len(writer.clicks)} users · 0 bad" in log
        assert "'onceflow clicks' and 'onceflow dashboard' show the counts, with" in log


def python_that_starts_slowly_once(directory: Path, spark_python: Path) -> Path:
    """Write a Python for Spark's workers; the first one of the source does not connect in time."""
    python = directory / "python"
    python.write_text(SLOW_ONCE.format(once=directory / "once", pause_s=SLOW_START_S, python=spark_python))
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    return python


def await_next_batch(pipeline: Pipeline) -> None:
    before = pipeline.batch()
    wait_for(lambda: pipeline.batch() > before, pipeline)


def check_pages(pipeline: Pipeline) -> None:
    """Read the pages whose addresses the driver has printed, and nothing else."""
    log = pipeline.log.read_text()
    bootstrap, redis_url = pipeline.broker.bootstrap, pipeline.redis.url
    assert f"counting {TOPIC} at {bootstrap} into {HASH_KEY} at {redis_url}; Ctrl-C stops" in log
    assert "Traceback" not in log
    pages = re.search(r"Spark's UI is at (http://127\.0\.0\.1:\d+)", log)
    assert pages is not None, log
    with urllib.request.urlopen(f"{pages[1]}/StreamingQuery/", timeout=WITHIN_S) as page:
        assert "onceflow clicks" in page.read().decode()
    metrics = re.search(r"metrics are at (\S+)", log)
    assert metrics is not None, log
    assert scrape(metrics[1]).value("onceflow_run_broker_up") == 1
