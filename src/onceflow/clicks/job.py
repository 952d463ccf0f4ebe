"""Long-running streaming queries: session, restarts, and stop by a signal.

`onceflow.clicks.pipeline` counts and `onceflow.clicks.archive_job` archives with it; both can share a session.
"""

import abc
import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from onceflow.clicks.restarts import QueryFailed, RestartLimits, Restarts
from onceflow.clicks.stopping import stop_on_signals
from onceflow.client.cluster import Cluster
from onceflow.client.security import read_security
from onceflow.errors import OnceflowError
from onceflow.spark.failure import describe_stop, own_message
from onceflow.spark.reader.options import FAIL_ON_DATA_LOSS, KAFKA
from onceflow.spark.session import await_master, build_session, is_jvm_lost, on_one_machine
from onceflow.spark.sink import ExactlyOnce
from onceflow.spark.source import register

EVENTS_PER_BATCH_MAX = 2_000_000
"""Maximum offsets of a micro-batch, so that results advance during a long backlog and a repeat is short."""

POLL_S = 1
CHECK_S = 30
"""Interval at which an idle query checks that its target still holds what was written."""

AVAILABLE_NOW = "available-now"


@dataclass(frozen=True)
class StreamingJob(abc.ABC):
    """Settings of a run; without a `master` the session configured by spark-submit is used."""

    name: ClassVar[str]
    """Name of the query and of its session."""

    bootstrap: str
    topic: str
    checkpoint: str
    master: str | None = field(default="local[2]", kw_only=True)
    trigger: str = field(default="5 seconds", kw_only=True)
    java_home: str | None = field(default=None, kw_only=True)
    log_file: Path | None = field(default=None, kw_only=True)
    ui_port: int | None = field(default=None, kw_only=True)
    """Port of Spark's own pages on 127.0.0.1; 0 for any free one, None for no pages."""
    on_session: Callable[[SparkSession], None] | None = field(default=None, kw_only=True)
    """Called with each session that the run starts: a second one after the JVM ended."""
    on_failure: Callable[[str], None] | None = field(default=None, kw_only=True)
    """Called with the query's name after each failure, before a restart."""
    kafka: Mapping[str, str] = field(default_factory=dict, repr=False, kw_only=True)
    """TLS and SASL by Kafka's names."""
    accept_data_loss: bool = field(default=False, kw_only=True)
    """Whether this run continues where the log lacks records."""
    restarts: RestartLimits = field(default_factory=RestartLimits, kw_only=True)

    @abc.abstractmethod
    def rows(self, spark: SparkSession) -> DataFrame:
        """Return the stream of the sink's rows."""

    @abc.abstractmethod
    def sink(self, spark: SparkSession) -> ExactlyOnce:
        """Return a sink for one start of the query."""

    @abc.abstractmethod
    def batch_done(self, sink: Any) -> int:
        """Return the last batch that this sink knows to be complete."""

    def check_sink(self, sink: Any) -> None:
        """Check that the target still holds what was written, while the query is idle."""
        del sink

    def check(self) -> None:
        """Check the broker and the topic, which would otherwise fail minutes later in Spark."""
        with Cluster(self.bootstrap, security=read_security(self.kafka)) as cluster:
            cluster.require_topic(self.topic)

    def stream(self, spark: SparkSession, stop: threading.Event) -> None:
        """Run in an existing session until `stop` is set or everything available is written."""
        self._stream_into(self.sink(spark), spark, stop)

    def stream_with_restarts(self, spark: SparkSession, stop: threading.Event, restarts: Restarts) -> bool:
        """Return True when the run is over, False when it needs a new session because the JVM ended."""
        while not stop.is_set():
            sink = self.sink(spark)
            try:
                self._stream_into(sink, spark, stop)
                return True
            except (OnceflowError, PySparkException, Py4JError, OSError) as error:
                if self.on_failure is not None:
                    self.on_failure(self.name)
                restarts.wait(error, self.batch_done(sink), stop)
            if is_jvm_lost():
                return stop.is_set()
        return True

    def _stream_into(self, sink: ExactlyOnce, spark: SparkSession, stop: threading.Event) -> None:
        try:
            sink.open(spark, sleep=functools.partial(_sleep, stop))
            self._wait(self._start(spark, sink), sink, stop)
        except _Stopped:
            return
        finally:
            sink.close()

    @contextlib.contextmanager
    def session(self) -> Iterator[SparkSession]:
        """Return a session with these settings, which stops at the end."""
        if self.master is None:
            spark = SparkSession.builder.appName(self.name).getOrCreate()
            if "spark.sql.shuffle.partitions" not in dict(spark.sparkContext.getConf().getAll()):
                # Spark's default is 200, and each costs a task in every micro-batch.
                spark.conf.set("spark.sql.shuffle.partitions", spark.sparkContext.defaultParallelism)
        else:
            await_master(self.master)
            spark = build_session(
                self.name,
                self.master,
                java_home=self.java_home,
                log_file=self.log_file,
                ui_port=self.ui_port,
            )
        try:
            register(spark)
            if self.on_session is not None:
                self.on_session(spark)
            yield spark
        finally:
            with contextlib.suppress(Py4JError, ConnectionError):  # The JVM may have ended.
                spark.stop()

    def _start(self, spark: SparkSession, sink: ExactlyOnce) -> StreamingQuery:
        writer = (
            self.rows(spark)
            .writeStream.queryName(self.name)
            .option("checkpointLocation", self.checkpoint)
            .foreachBatch(sink)
        )
        if self.trigger == AVAILABLE_NOW:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime=self.trigger).start()

    def events(self, spark: SparkSession) -> DataFrame:
        """Return the stream of the topic's records, from its start."""
        return (
            spark.readStream.format("onceflow")
            .options(**self._stream)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", str(EVENTS_PER_BATCH_MAX))
            .options(**_tasks(spark))
            .load()
        )

    @property
    def _source(self) -> dict[str, str]:
        secured = {f"{KAFKA}{name}": value for name, value in self.kafka.items()}
        return {"kafka.bootstrap.servers": self.bootstrap, **secured}

    @property
    def _stream(self) -> dict[str, str]:
        lossy = {FAIL_ON_DATA_LOSS: "false"} if self.accept_data_loss else {}
        return {**self._source, "subscribe": self.topic, **lossy}

    def _wait(self, query: StreamingQuery, sink: ExactlyOnce, stop: threading.Event) -> None:
        """Wait for the query's end or for `stop`, then stop it. Raises its failure, also one during the stop."""
        failure: Exception | None = None
        try:
            self._watch(query, sink, stop)
            failure = query.exception()
        except (StreamingQueryException, Py4JError, ConnectionError) as error:
            failure = error
        finally:
            failed_in_sink = sink.failure
            with contextlib.suppress(PySparkException, Py4JError, ConnectionError):
                query.stop()
        if failed_in_sink is not None:
            # Its cause decides about a restart; Spark's error ends with the sink's own class.
            raise failed_in_sink from failed_in_sink.__cause__ or failure
        # The JVM's end is part of a stop; an error of ours is a failure all the same.
        if failure is not None and (not stop.is_set() or own_message(failure)):
            raise QueryFailed(describe_stop(failure)) from failure

    def _watch(self, query: StreamingQuery, sink: ExactlyOnce, stop: threading.Event) -> None:
        unchecked_s = 0
        while not stop.is_set() and not query.awaitTermination(POLL_S):
            unchecked_s += POLL_S
            if unchecked_s >= CHECK_S:
                self.check_sink(sink)
                unchecked_s = 0
        if not stop.is_set():
            self.check_sink(sink)


def run_jobs(jobs: Sequence[StreamingJob]) -> None:
    """Run jobs in one session until SIGINT or SIGTERM, or until each has written everything available.

    The session has the settings of the first job. Main thread only; `check` each job first. A query restarts after a
    failure that a restart fixes; any other failure stops all jobs. Raises `QueryFailed` or the error of the source or
    the sink that stopped a query.
    """
    restarts, is_over = [Restarts(job.restarts, job.name) for job in jobs], False
    try:
        while not is_over:
            # Spark installs its own handler for SIGINT when its context starts, so ours is installed later.
            with jobs[0].session() as spark, stop_on_signals() as stop:
                is_over = stream_jobs(jobs, spark, stop, restarts)
    except (PySparkException, Py4JError, OSError) as error:
        raise QueryFailed(describe_stop(error)) from error


def stream_jobs(
    jobs: Sequence[StreamingJob], spark: SparkSession, stop: threading.Event, restarts: Sequence[Restarts]
) -> bool:
    """Run jobs in an existing session, the first one in this thread and each other one in a thread of its own.

    Return True when all are over, False when they need a new session. The first failure sets `stop` and is raised.
    """
    are_over: list[bool] = []
    failures: list[Exception] = []

    def stream(job: StreamingJob, limits: Restarts) -> None:
        try:
            are_over.append(job.stream_with_restarts(spark, stop, limits))
        except Exception as error:  # noqa: BLE001 - raised below, in the caller's thread.
            failures.append(error)
            stop.set()

    others = [
        threading.Thread(target=stream, args=started, name=started[0].name, daemon=True)
        for started in zip(jobs[1:], restarts[1:], strict=True)
    ]
    for thread in others:
        thread.start()
    stream(jobs[0], restarts[0])
    for thread in others:
        thread.join()
    if failures:
        raise failures[0]
    return all(are_over)


def _tasks(spark: SparkSession) -> dict[str, str]:
    """Return the limit of read tasks: as many as run at once, where that is known.

    Each task returns its own groups, so a task for every partition would have Spark add up more rows than needed. On a
    cluster, executors come and go.
    """
    context = spark.sparkContext
    return {"maxPartitions": str(context.defaultParallelism)} if on_one_machine(context.master or "") else {}


class _Stopped(Exception):
    """A stop during the wait for another driver's end."""


def _sleep(stop: threading.Event, seconds: float) -> None:
    if stop.wait(seconds):
        raise _Stopped
