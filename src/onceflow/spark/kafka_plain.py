"""Batches sent to Kafka without transaction and marker: at least once, or not even that."""

import logging
from datetime import timedelta

from onceflow.client.cluster import Cluster
from onceflow.client.errors import CoordinatorUnavailable
from onceflow.spark import kafka_steps as steps
from onceflow.spark.kafka_marker import SinkStopped
from onceflow.spark.kafka_sender import NOBODY, Producer, Sender
from onceflow.spark.kafka_steps import AttemptEnded, Verdict, code_name, remedy
from onceflow.spark.kafka_transaction import ATTEMPTS_MAX, EncodedRows, Settings
from onceflow.wire.frames import request_class
from onceflow.wire.messages import message_of

_log = logging.getLogger(__name__)


def write_at_least_once(cluster: Cluster, rows: EncodedRows, settings: Settings) -> None:
    """Every record is acknowledged by all in-sync replicas; an attempt that ends is made again from the beginning.

    Within an attempt a leader recognises what it has, so records are in order and once there. Raises SinkStopped.
    """
    reason = ""
    for _ in range(ATTEMPTS_MAX):
        producer = _new_producer(cluster)
        sender = Sender(cluster, producer, again_ms=settings.again_ms, at=settings.at, sleep=settings.sleep)
        try:
            expected = dict(rows.records())
            for blobs in rows.blobs():
                sender.send(blobs)
            if sender.acknowledged != expected:
                raise AttemptEnded(
                    f"{sum(sender.acknowledged.values())} records were acknowledged and "
                    f"{sum(expected.values())} encoded"
                )
        except AttemptEnded as ended:
            reason = str(ended)
            _log.warning("the batch is sent again, so some of it may be there twice: %s", ended)
        else:
            return
    raise SinkStopped(f"the batch could not be sent in {ATTEMPTS_MAX} attempts, the last of which ended: {reason}")


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
            raise CoordinatorUnavailable(f"{cluster.bootstrap} gives no producer ids now: {code_name(code)}; try again")
        if verdict is not Verdict.DONE:
            raise SinkStopped(f"{cluster.bootstrap} gives no producer id: {code_name(code)}; {remedy(code)}")
        return Producer(None, int(answer.producer_id), int(answer.producer_epoch))

    return cluster.retried(attempt)
