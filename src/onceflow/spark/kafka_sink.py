"""The Kafka sink: `writeStream.foreachBatch(kafka_sink("host:9092", topic="out", checkpoint=…))`.

Executors encode (`kafka_encode`), the driver sends (`kafka_sender`), one micro-batch is one transaction
(`kafka_transaction`) that has its own marker in it, twice (`kafka_marker`). So a batch that Spark repeats after any
crash is there once. docs/kafka-sink.md tells what each option does, docs/exactly-once.md the protocol as a whole.
"""

import contextlib
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Literal, get_args

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame

from onceflow.client.admin import Admin
from onceflow.client.cluster import Cluster
from onceflow.client.errors import RequestRefused, TopicExists
from onceflow.client.security import read_security
from onceflow.errors import OnceflowError
from onceflow.spark.checkpoint import Checkpoint, LocalCheckpoint, checkpoint_at, other_query
from onceflow.spark.checkpoint_lock import CheckpointLock, take_lock
from onceflow.spark.failure import own_sentence
from onceflow.spark.kafka_encode import Encoder, Target, find_target
from onceflow.spark.kafka_marker import Place, SinkStopped
from onceflow.spark.kafka_plain import write_at_least_once, write_once
from onceflow.spark.kafka_rows import DRIVER_BYTES, EncodedFrame, record_columns
from onceflow.spark.kafka_transaction import TRANSACTION_TIMEOUT_MS, Settings, TransactionalWriter
from onceflow.spark.wrong_option import WrongOption
from onceflow.wire.codecs import Codec
from onceflow.wire.column_batches import BATCH_BYTES
from onceflow.wire.murmur2 import partition_for_key

MARKER_TOPIC = "onceflow-markers"
MARKER_CONFIGS = {
    "cleanup.policy": "compact",
    # Small segments, because the newest one is never compacted and a reader passes through all of it.
    "segment.bytes": str(16 * 1024 * 1024),
    "segment.ms": str(60 * 60 * 1000),
    "min.cleanable.dirty.ratio": "0.1",
}
DRIVER_BYTES_MAX = 512 * 1024 * 1024
NAME_CHARACTERS_MAX = 100
FIRST_CONTACT_MS = 10_000

Mode = Literal["exactly-once", "at-least-once", "none"]

__all__ = ["KafkaSink", "SinkStopped", "kafka_sink"]


def kafka_sink(
    bootstrap: str,
    *,
    topic: str | None = None,
    mode: Mode = "exactly-once",
    checkpoint: str | None = None,
    name: str = "kafka",
    plan: str = "",
    plan_version: int = 1,
    partitioner: Column | str | None = None,
    compression: str = "none",
    batch_bytes: int = BATCH_BYTES,
    driver_bytes: int = DRIVER_BYTES,
    transaction_timeout_ms: int = TRANSACTION_TIMEOUT_MS,
    marker_topic: str = MARKER_TOPIC,
    accept_partitions: Mapping[str, int] = MappingProxyType({}),
    kafka: Mapping[str, str] = MappingProxyType({}),
) -> "KafkaSink":
    """What `foreachBatch` gets to write rows to Kafka.

    Columns are those of Spark's own sink: value (binary or string), and as wanted key, topic, partition, headers,
    timestamp; others are left alone. `topic` has precedence over the column. Raises WrongOption.

    mode: "exactly-once", "at-least-once" (a batch that is repeated is there again) or "none" (sent a single time).
    checkpoint: the query's own checkpointLocation; exactly-once alone needs it.
    name: one for each sink of a query; plan, plan_version: what is written, and the version of the code that makes it.
    partitioner: an expression that gives a row's partition; null, or without one: murmur2 of the key as in Java.
    compression: none, gzip, snappy, lz4 or zstd, done in the executors.
    batch_bytes: uncompressed bytes of a record batch; driver_bytes: encoded bytes that the driver holds at a time.
    transaction_timeout_ms: after which the cluster gives a dead driver's transaction up.
    accept_partitions: the new partition count of an output topic that was changed on purpose.
    kafka: security.protocol, sasl.… and ssl.… by Kafka's names.
    """
    codec = _codec(compression)
    security = read_security(kafka)
    options = SinkOptions(
        topic=topic,
        mode=mode,
        checkpoint=checkpoint,
        name=name,
        plan=plan or name,
        plan_version=plan_version,
        partitioner=partitioner,
        driver_bytes=driver_bytes,
        marker_topic=marker_topic,
        accept_partitions=accept_partitions,
        encoder=Encoder(bootstrap, topic, codec, 0, 0, security=security, batch_bytes=batch_bytes),
    )
    _refuse_what_cannot_be_meant(options)
    cluster = Cluster(bootstrap, client_id="onceflow-sink", first_contact_ms=FIRST_CONTACT_MS, security=security)
    return KafkaSink(cluster, options, Settings(transaction_timeout_ms=transaction_timeout_ms))


@dataclass(frozen=True)
class SinkOptions:
    """What `kafka_sink` was given and has checked."""

    topic: str | None
    mode: Mode
    checkpoint: str | None
    name: str
    plan: str
    plan_version: int
    partitioner: Column | str | None
    driver_bytes: int
    marker_topic: str
    accept_partitions: Mapping[str, int]
    encoder: Encoder


def _codec(compression: str) -> Codec:
    codecs = {each.name.lower(): each for each in Codec}
    if compression not in codecs:
        raise WrongOption(f"compression {compression!r} is none of {', '.join(codecs)}")
    return codecs[compression]


def _refuse_what_cannot_be_meant(options: SinkOptions) -> None:
    exactly_once = options.mode == "exactly-once"
    if options.mode not in get_args(Mode):
        raise WrongOption(f"mode {options.mode!r} is none of {', '.join(get_args(Mode))}")
    if exactly_once and options.checkpoint is None:
        raise WrongOption("an exactly-once sink needs checkpoint=, the query's own checkpointLocation")
    of_markers = (
        options.checkpoint,
        options.plan != options.name,
        options.plan_version != 1,
        options.accept_partitions,
    )
    if not exactly_once and any(of_markers):
        raise WrongOption(
            f"mode {options.mode!r} keeps no marker: leave checkpoint, plan, plan_version and accept_partitions out"
        )
    batch_bytes, driver_bytes = options.encoder.batch_bytes, options.driver_bytes
    if not 1024 <= batch_bytes <= driver_bytes <= DRIVER_BYTES_MAX:
        raise WrongOption(
            f"batch_bytes {batch_bytes} and driver_bytes {driver_bytes}: a batch has 1024 bytes at least, and "
            f"the driver holds one at least and {DRIVER_BYTES_MAX} bytes at most"
        )
    if not options.name or not options.name.isprintable() or len(options.name) > NAME_CHARACTERS_MAX:
        raise WrongOption(f"name {options.name!r}: 1 to {NAME_CHARACTERS_MAX} printable characters that stay the same")


class KafkaSink:
    """Made by `kafka_sink`; one serves one start of one query.

    `open` before `start()` stops a query early that cannot work, `close` gives lock and connections back when it has
    ended; `failure` says in one sentence why this sink stopped the query, if it did.
    """

    def __init__(self, cluster: Cluster, options: SinkOptions, settings: Settings) -> None:
        self.failure: OnceflowError | None = None
        self.records_lost = 0
        """Records that mode "none" sent and nobody acknowledged."""
        self.settings = settings
        self._cluster = cluster
        self._options = options
        self._owner = uuid.uuid4().hex
        self._checkpoint: Checkpoint | None = None
        self._lock: CheckpointLock | None = None
        self._writer: TransactionalWriter | None = None
        self._limits: dict[str, int] = {}

    def open(self, session: Any, *, sleep: Callable[[float], None] = time.sleep) -> None:
        """Locks the checkpoint, finds the output topic and makes the marker topic. The first batch calls it, too.

        Raises CheckpointInUse, UnknownTopic, SinkStopped and other errors of the client.
        """
        self._targets()
        if self._options.mode != "exactly-once" or self._checkpoint is not None:
            return
        assert self._options.checkpoint is not None
        checkpoint = checkpoint_at(session, self._options.checkpoint)
        if isinstance(checkpoint, LocalCheckpoint):
            if self._lock is None:
                self._lock = take_lock(session, checkpoint.directory, sleep=sleep)
            checkpoint.drop_torn()
        self._checkpoint = checkpoint

    def close(self) -> None:
        """Gives the checkpoint and the connections back; the query must have ended."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None
        self._checkpoint = None
        self._writer = None
        self._cluster.close()

    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        """Writes one micro-batch, or finds that it is written. Raises an OnceflowError, kept in `failure`."""
        try:
            self.open(rows.sparkSession)
            if self._options.mode == "exactly-once":
                self._write_exactly_once(rows, batch_id)
            else:
                self._write_plain(rows, batch_id)
        except OnceflowError as error:
            self.failure = error
            raise
        except PySparkException as error:
            said = own_sentence(error)
            if said is None:
                raise
            # A task has stopped the query, and Spark tells it in pages.
            self.failure = SinkStopped(said)
            raise self.failure from error

    def _write_exactly_once(self, rows: DataFrame, batch_id: int) -> None:
        assert self._checkpoint is not None
        checkpoint = self._checkpoint
        batch = checkpoint.batch(batch_id, plan=self._options.plan, plan_version=self._options.plan_version)
        strange = other_query(rows.sparkSession, batch, str(self._options.checkpoint))
        if strange is not None:
            raise SinkStopped(strange)
        encoded: list[EncodedFrame] = []

        def encode() -> EncodedFrame:
            # Nothing of the batch may be visible before a power cut can no longer unsay its offsets.
            checkpoint.prepare(batch_id)
            encoded.append(self._encode(rows, batch_id))
            return encoded[0]

        try:
            self._transactional(batch.query).write(batch, encode)
        finally:
            for frame in encoded:
                frame.close()
        if not encoded:
            # Returning without reading the rows would make a stateful query's checkpoint unusable.
            rows.write.format("noop").mode("append").save()

    def _write_plain(self, rows: DataFrame, batch_id: int) -> None:
        frame = self._encode(rows, batch_id)
        try:
            if self._options.mode == "at-least-once":
                write_at_least_once(self._cluster, frame, self.settings)
            else:
                self.records_lost += write_once(self._cluster, frame, self.settings)
        finally:
            frame.close()

    def _encode(self, rows: DataFrame, batch_id: int) -> EncodedFrame:
        columns = record_columns(rows, self._options.topic, self._options.partitioner)
        now_ms = time.time_ns() // 1_000_000
        encoder = replace(self._options.encoder, now_ms=now_ms, turn=batch_id, targets=self._targets())
        return EncodedFrame(columns, encoder, self._options.driver_bytes)

    def _targets(self) -> dict[str, Target]:
        """The output topic as it is now, where one is given; its limit is asked for once."""
        if self._options.topic is None:
            return {}
        if self._options.topic not in self._limits:
            self._limits[self._options.topic] = find_target(self._cluster, self._options.topic).message_bytes_max
        count = len(self._cluster.require_topic(self._options.topic).partitions)
        return {self._options.topic: Target(count, self._limits[self._options.topic])}

    def _transactional(self, query: str) -> TransactionalWriter:
        if self._writer is None:
            name = f"onceflow-{query}-{self._options.name}"
            partition = partition_for_key(name.encode(), self._marker_partitions())
            self._writer = TransactionalWriter(
                self._cluster,
                Place(name, self._options.marker_topic, partition),
                sink=self._options.name,
                owner=self._owner,
                settings=self.settings,
                accepted=self._options.accept_partitions,
            )
        return self._writer

    def _marker_partitions(self) -> int:
        """How many the marker topic has; made where it is missing. Raises SinkStopped where it would forget markers."""
        topic = self._options.marker_topic
        found = self._cluster.topics(topic).get(topic)
        if found is None:
            with contextlib.suppress(TopicExists):
                self._cluster.create_topic(topic, 1, configs=MARKER_CONFIGS)
            found = self._cluster.require_topic(topic)
        with contextlib.suppress(RequestRefused):  # A user who may not read configs has to be believed.
            policy = Admin(self._cluster).describe_topic_configs(topic)["cleanup.policy"].value
            if policy != "compact":
                raise SinkStopped(
                    f"marker topic {topic} has cleanup.policy {policy!r} and would forget markers: set it to 'compact'"
                )
        return len(found.partitions)
