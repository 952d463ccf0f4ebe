"""The Kafka sink: `writeStream.foreachBatch(kafka_sink("host:9092", topic="out", checkpoint=…))`.

Executors encode (`kafka.encode`), the driver sends (`kafka.sender`), and one micro-batch is one transaction
(`kafka.transaction`) that includes two copies of its marker (`kafka.marker`). So a batch that Spark repeats after any
crash is written once. docs/kafka-sink.md describes each option, docs/exactly-once.md the protocol as a whole.
"""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Literal, get_args

from pyspark.sql import Column

from onceflow.client.cluster import Cluster
from onceflow.client.security import read_security
from onceflow.spark.errors import SinkStopped, WrongOption
from onceflow.spark.kafka.encode import Encoder
from onceflow.spark.kafka.marker import MARKER_TOPIC, marker_location
from onceflow.spark.kafka.plain import PlainKafkaSink
from onceflow.spark.kafka.rows import DRIVER_BYTES, KafkaOutput
from onceflow.spark.kafka.target import KafkaTarget
from onceflow.spark.kafka.transaction import TRANSACTION_TIMEOUT_MS, Settings
from onceflow.spark.sink import ExactlyOnce
from onceflow.wire.codecs import Codec
from onceflow.wire.column_batches import BATCH_BYTES

DRIVER_BYTES_MAX = 512 * 1024 * 1024
NAME = "kafka"
NAME_CHARACTERS_MAX = 100
FIRST_CONTACT_MS = 10_000

Mode = Literal["exactly-once", "at-least-once", "none"]

__all__ = ["KafkaSink", "PlainKafkaSink", "SinkStopped", "kafka_sink"]


def kafka_sink(
    bootstrap: str,
    *,
    topic: str | None = None,
    mode: Mode = "exactly-once",
    checkpoint: str | None = None,
    name: str = NAME,
    plan: str = "",
    plan_version: int = 1,
    partitioner: Column | str | None = None,
    compression: str = "none",
    batch_bytes: int = BATCH_BYTES,
    driver_bytes: int = DRIVER_BYTES,
    transaction_timeout_ms: int = TRANSACTION_TIMEOUT_MS,
    marker_topic: str = MARKER_TOPIC,
    accept_partitions: Mapping[str, int] = MappingProxyType({}),
    accept_data_loss: Mapping[str, str] | None = None,
    kafka: Mapping[str, str] = MappingProxyType({}),
) -> "KafkaSink | PlainKafkaSink":
    """Return a sink for `foreachBatch` that writes rows to Kafka.

    Columns are those of Spark's own sink: value (binary or string), and optionally key, topic, partition, headers,
    timestamp; others are ignored. `topic` has precedence over the column. Raises WrongOption.

    mode: "exactly-once", "at-least-once" (a repeated batch is written again) or "none" (sent once, without retries).
    checkpoint: the query's own checkpointLocation; required for exactly-once only.
    name: unique within the query; plan, plan_version: what is written, and the version of the code that produces it.
    partitioner: expression for a row's partition; if null or not given, murmur2 of the key as in Java.
    compression: none, gzip, snappy, lz4 or zstd; done in the executors.
    batch_bytes: uncompressed bytes of a record batch; driver_bytes: encoded bytes that the driver holds at a time.
    transaction_timeout_ms: time after which the cluster aborts a dead driver's transaction.
    accept_partitions: the new partition count of an output topic that was changed on purpose.
    accept_data_loss: the options of a stream with failOnDataLoss=false, to continue past missing records.
    kafka: security.protocol, sasl.… and ssl.… by Kafka's names.
    """
    options = _Options(
        mode=mode,
        checkpoint=checkpoint,
        name=name,
        plan=plan or name,
        plan_version=plan_version,
        batch_bytes=batch_bytes,
        driver_bytes=driver_bytes,
        transaction_timeout_ms=transaction_timeout_ms,
        marker_topic=marker_topic,
        accept_partitions=accept_partitions,
        accept_data_loss=accept_data_loss,
    )
    codec = _codec(compression)
    security = read_security(kafka)
    _validate(options)
    cluster = Cluster(bootstrap, client_id="onceflow-sink", first_contact_ms=FIRST_CONTACT_MS, security=security)
    encoder = Encoder(bootstrap, topic, codec, 0, 0, security=security, batch_bytes=batch_bytes)
    output = KafkaOutput(cluster, encoder, partitioner=partitioner, driver_bytes=driver_bytes)
    settings = Settings(transaction_timeout_ms=transaction_timeout_ms)
    if mode != "exactly-once":
        return PlainKafkaSink(cluster, output, settings, once=mode == "none")
    return KafkaSink(cluster, output, settings, options)


@dataclass(frozen=True)
class _Options:
    """Options of `kafka_sink`."""

    mode: Mode
    checkpoint: str | None
    name: str
    plan: str
    plan_version: int
    batch_bytes: int
    driver_bytes: int
    transaction_timeout_ms: int
    marker_topic: str
    accept_partitions: Mapping[str, int]
    accept_data_loss: Mapping[str, str] | None


class KafkaSink(ExactlyOnce):
    """The exactly-once sink of `kafka_sink`; one instance serves one start of one query."""

    def __init__(self, cluster: Cluster, output: KafkaOutput, settings: Settings, options: _Options) -> None:
        self.target = KafkaTarget(
            cluster,
            options.name,
            output=output,
            marker_location=partial(marker_location, cluster, options.name, options.marker_topic, options.checkpoint),
            owner=uuid.uuid4().hex,
            settings=settings,
            accepted=options.accept_partitions,
        )
        assert options.checkpoint is not None
        super().__init__(
            self.target,
            checkpoint=options.checkpoint,
            plan=options.plan,
            plan_version=options.plan_version,
            accept_data_loss=options.accept_data_loss,
        )

    @property
    def settings(self) -> Settings:
        """Settings of the transactions."""
        return self.target.settings

    @settings.setter
    def settings(self, settings: Settings) -> None:
        self.target.settings = settings


def _codec(compression: str) -> Codec:
    codecs = {codec.name.lower(): codec for codec in Codec}
    if compression not in codecs:
        raise WrongOption(f"compression {compression!r} is not one of {', '.join(codecs)}")
    return codecs[compression]


def _validate(options: _Options) -> None:
    exactly_once = options.mode == "exactly-once"
    if options.mode not in get_args(Mode):
        raise WrongOption(f"mode {options.mode!r} is not one of {', '.join(get_args(Mode))}")
    if exactly_once and options.checkpoint is None:
        raise WrongOption("an exactly-once sink needs checkpoint=, the query's own checkpointLocation")
    given = [] if exactly_once else _marker_options(options)
    if given:
        raise WrongOption(f"mode {options.mode!r} has neither marker nor transaction: omit {', '.join(given)}")
    if not 1024 <= options.batch_bytes <= options.driver_bytes <= DRIVER_BYTES_MAX:
        raise WrongOption(
            f"batch_bytes {options.batch_bytes} and driver_bytes {options.driver_bytes}: batch_bytes must be at least "
            f"1024, and driver_bytes from batch_bytes to {DRIVER_BYTES_MAX}"
        )
    if not options.name or not options.name.isprintable() or len(options.name) > NAME_CHARACTERS_MAX:
        raise WrongOption(f"name {options.name!r}: must have 1 to {NAME_CHARACTERS_MAX} printable characters")


def _marker_options(options: _Options) -> list[str]:
    """Return the given options that apply to exactly-once sinks only."""
    given = {
        "checkpoint": options.checkpoint is not None,
        "name": options.name != NAME,
        "plan": options.plan != options.name,
        "plan_version": options.plan_version != 1,
        "transaction_timeout_ms": options.transaction_timeout_ms != TRANSACTION_TIMEOUT_MS,
        "marker_topic": options.marker_topic != MARKER_TOPIC,
        "accept_partitions": bool(options.accept_partitions),
        "accept_data_loss": options.accept_data_loss is not None,
    }
    return [option for option, is_given in given.items() if is_given]
