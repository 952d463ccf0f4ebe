"""Batches sent to Kafka without transaction and marker: at least once, or not even that."""

import logging
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from pyspark.sql import DataFrame

from onceflow.client.cluster import Cluster
from onceflow.client.errors import CoordinatorUnavailable
from onceflow.remedies import Remedy
from onceflow.spark.exactly_once.sink_errors import AttemptEnded, SinkStopped
from onceflow.spark.kafka import steps
from onceflow.spark.kafka.rows import KafkaOutput
from onceflow.spark.kafka.sender import NOBODY, Producer, Sender
from onceflow.spark.kafka.steps import Verdict, code_name, remedy
from onceflow.spark.kafka.target import EncodedRows
from onceflow.spark.kafka.transaction import Settings
from onceflow.spark.sink import ATTEMPTS_MAX, FailureKept
from onceflow.wire.frames import request_class
from onceflow.wire.messages import message_of

_log = logging.getLogger(__name__)


class AtLeastOnce:
    """Every record is acknowledged by all in-sync replicas; an attempt that ends is made again from the beginning.

    Within an attempt a leader recognises what it has, so records are in order and once there. One producer id serves
    all batches of a start; an attempt that ended leaves sequences that nobody knows, so the next one has its own.
    """

    def __init__(self, cluster: Cluster, settings: Settings) -> None:
        self._cluster = cluster
        self._settings = settings
        self._sender: Sender | None = None

    def write(self, rows: EncodedRows) -> None:
        """Sends all of a batch. Raises SinkStopped."""
        reason = ""
        for _ in range(ATTEMPTS_MAX):
            try:
                self._send(rows)
            except AttemptEnded as ended:
                reason = str(ended)
                _log.warning("the batch is sent again, so some of it may be there twice: %s", ended)
            else:
                return
        raise SinkStopped(f"the batch could not be sent in {ATTEMPTS_MAX} attempts, the last of which ended: {reason}")

    def _send(self, rows: EncodedRows) -> None:
        sender, self._sender = self._sender or self._new_sender(), None
        expected = dict(rows.records())
        sender.acknowledged.clear()
        for blobs in rows.blobs():
            sender.send(blobs)
        if sender.acknowledged != expected:
            raise AttemptEnded(
                f"{sum(sender.acknowledged.values())} records were acknowledged and {sum(expected.values())} encoded"
            )
        # Kept only where every batch was answered: the next one's sequences follow on.
        self._sender = sender

    def _new_sender(self) -> Sender:
        settings = self._settings
        producer = _new_producer(self._cluster)
        return Sender(self._cluster, producer, again_ms=settings.again_ms, at=settings.at, sleep=settings.sleep)


class PlainKafkaSink(FailureKept):
    """Made by `kafka_sink` for the modes "at-least-once" and "none"; it looks at no checkpoint."""

    def __init__(self, cluster: Cluster, output: KafkaOutput, settings: Settings, *, once: bool) -> None:
        super().__init__()
        self.settings = settings
        self.records_lost = 0
        """Records that mode "none" sent and nobody acknowledged."""
        self._cluster = cluster
        self._output = output
        self._at_least_once = None if once else AtLeastOnce(cluster, settings)

    def open(self, session: Any, *, sleep: Callable[[float], None] = time.sleep) -> None:
        """Raises UnknownTopic where there is nothing to write to."""
        del session, sleep
        self._output.require()

    def close(self) -> None:
        """Gives connections back; the query must have ended."""
        self._cluster.close()

    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        """Writes one micro-batch. Raises an OnceflowError, kept in `failure`."""
        self.process(rows, batch_id)

    def process(self, rows: DataFrame, batch_id: int) -> bool:
        """As a call; true, since the rows are read each time."""
        with self._failure_kept():
            encoded = self._output.encode(rows, batch_id)
            try:
                if self._at_least_once is not None:
                    self._at_least_once.write(encoded)
                else:
                    self.records_lost += write_once(self._cluster, encoded, self.settings)
            finally:
                encoded.close()
        return True


def write_once(cluster: Cluster, rows: EncodedRows, settings: Settings) -> int:
    """Every record is sent a single time, to its leader alone; returns how many were not acknowledged."""
    sender = Sender(cluster, NOBODY, again_ms=settings.again_ms, once=True, at=settings.at, sleep=settings.sleep)
    for blobs in rows.blobs():
        sender.send(blobs)
    if sender.lost:
        _log.warning("%d records were not acknowledged and are not sent again (mode 'none')", sender.lost)
    return sender.lost


def _new_producer(cluster: Cluster) -> Producer:
    """A producer id, with which leaders know what they have got already."""
    step = steps.INIT_PRODUCER_ID
    values = {
        "transactional_id": None,
        "transaction_timeout": timedelta(),
        "producer_id": -1,
        "producer_epoch": -1,
    }

    def attempt() -> Producer:
        answer = cluster.ask_any(
            step.api_key, lambda _schema, version: message_of(request_class(step.api_key, version), values), 3
        )
        code = int(answer.error_code)
        verdict = step.verdict(code)
        if verdict is Verdict.AGAIN:
            raise CoordinatorUnavailable(
                f"{cluster.bootstrap} gives no producer ids now: {code_name(code)}; {Remedy.TRY_AGAIN}"
            )
        if verdict is not Verdict.DONE:
            raise SinkStopped(f"{cluster.bootstrap} gives no producer id: {code_name(code)}; {remedy(code)}")
        return Producer(None, int(answer.producer_id), int(answer.producer_epoch))

    return cluster.retried(attempt)
