"""Kafka output without transaction and marker: at least once, or without any guarantee."""

import logging
import time
from collections.abc import Callable
from typing import Any

from pyspark.sql import DataFrame

from onceflow.client import requests
from onceflow.client.cluster import Cluster
from onceflow.client.errors import CoordinatorUnavailable
from onceflow.client.requests import ProducerIdentity
from onceflow.remedies import Remedy
from onceflow.spark.errors import AttemptEnded, SinkStopped
from onceflow.spark.kafka import steps
from onceflow.spark.kafka.rows import KafkaOutput
from onceflow.spark.kafka.sender import NO_PRODUCER, Sender
from onceflow.spark.kafka.steps import Verdict, code_name, remedy
from onceflow.spark.kafka.target import EncodedRows
from onceflow.spark.kafka.transaction import Settings
from onceflow.spark.sink import ATTEMPTS_MAX, RecordsFailure

_log = logging.getLogger(__name__)


class AtLeastOnce:
    """Sends each batch with acks=all; an attempt that ends is repeated from the start.

    Within an attempt the leader recognises duplicates, so records are in order and written once. One producer id
    serves all batches of a start. The sequences of an ended attempt are unknown, so the next attempt has a new id.
    """

    def __init__(self, cluster: Cluster, settings: Settings) -> None:
        self._cluster = cluster
        self._settings = settings
        self._sender: Sender | None = None

    def write(self, rows: EncodedRows) -> None:
        """Send a whole batch. Raises SinkStopped."""
        reason = ""
        for _ in range(ATTEMPTS_MAX):
            try:
                self._send(rows)
            except AttemptEnded as ended:
                reason = str(ended)
                _log.warning("sending the batch again, so some of its records may be written twice: %s", ended)
            else:
                return
        raise SinkStopped(
            f"the batch could not be sent in {ATTEMPTS_MAX} attempts, the last of which ended because {reason}"
        )

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
        # Kept only if every batch was acknowledged: the next batch continues its sequences.
        self._sender = sender

    def _new_sender(self) -> Sender:
        settings = self._settings
        producer = _new_producer(self._cluster)
        return _sender(self._cluster, producer, settings)


class PlainKafkaSink(RecordsFailure):
    """The sink of `kafka_sink` for the modes "at-least-once" and "none"; it reads no checkpoint."""

    def __init__(self, cluster: Cluster, output: KafkaOutput, settings: Settings, *, once: bool) -> None:
        super().__init__()
        self.settings = settings
        self.records_lost = 0
        """Records sent in mode "none" without an acknowledgement."""
        self._cluster = cluster
        self._output = output
        self._at_least_once = None if once else AtLeastOnce(cluster, settings)

    def open(self, session: Any, *, sleep: Callable[[float], None] = time.sleep) -> None:
        """Raise UnknownTopic if the output topic does not exist."""
        del session, sleep
        self._output.require()

    def close(self) -> None:
        """Close connections; the query must have ended."""
        self._cluster.close()

    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        """Write one micro-batch. Raises an OnceflowError, kept in `failure`."""
        self.process(rows, batch_id)

    def process(self, rows: DataFrame, batch_id: int) -> bool:
        """Write one micro-batch; return true, since the rows are always read."""
        with self._record_failure():
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
    """Send every record once, with acks=1; return the number of records without an acknowledgement."""
    sender = _sender(cluster, NO_PRODUCER, settings, once=True)
    for blobs in rows.blobs():
        sender.send(blobs)
    if sender.lost:
        _log.warning("%d records were not acknowledged; mode 'none' does not send them again", sender.lost)
    return sender.lost


def _sender(cluster: Cluster, producer: ProducerIdentity, settings: Settings, *, once: bool = False) -> Sender:
    timeout_ms = settings.retry_timeout_ms
    return Sender(cluster, producer, retry_timeout_ms=timeout_ms, once=once, at=settings.at, sleep=settings.sleep)


def _new_producer(cluster: Cluster) -> ProducerIdentity:
    """Return a new producer id, by which leaders recognise duplicates."""
    step = steps.INIT_PRODUCER_ID

    def attempt() -> ProducerIdentity:
        response = cluster.router.ask_any(step.api_key, requests.init_producer_id(NO_PRODUCER), 3)
        code = int(response.error_code)
        verdict = step.verdict(code)
        if verdict is Verdict.RETRY:
            raise CoordinatorUnavailable(
                f"{cluster.bootstrap} cannot assign a producer id now: {code_name(code)}; {Remedy.TRY_AGAIN}"
            )
        if verdict is not Verdict.DONE:
            raise SinkStopped(f"{cluster.bootstrap} refused to assign a producer id: {code_name(code)}; {remedy(code)}")
        return ProducerIdentity(None, int(response.producer_id), int(response.producer_epoch))

    return cluster.router.retry(attempt)
