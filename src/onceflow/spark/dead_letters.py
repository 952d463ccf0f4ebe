"""Rejected records into a topic of their own, for those who need them longer than the log keeps them.

    dead = dead_letter_sink("host:9092", topic="clicks-dead", checkpoint=checkpoint)
    foreachBatch(lambda rows, batch_id: sinks(rows, batch_id, counts, dead))

A dead letter is the original record: key, value, headers and timestamp as they were, and these headers behind its own.
They are those of Kafka Connect's dead letter queue (org.apache.kafka.connect.runtime.errors.DeadLetterQueueReporter,
KIP-298), so that what reads one reads the other; a record that was in such a queue before has them twice, the last
ones being ours.

| header | what, as UTF-8 text |
|---|---|
| `__connect.errors.topic`, `.partition`, `.offset` | where the record is in the log |
| `__connect.errors.stage` | `VALUE_CONVERTER`, Connect's word for reading a value |
| `__connect.errors.exception.message` | why it was rejected, a reason of docs/pushdown.md |
"""

import contextlib
import time
from collections.abc import Callable
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 (Spark's own name for it)

from onceflow.client.cluster import Cluster
from onceflow.client.errors import TopicExists
from onceflow.client.security import read_security
from onceflow.errors import OnceflowError
from onceflow.spark.kafka_sink import KafkaSink, PlainKafkaSink, kafka_sink
from onceflow.spark.pushdown.aggregate_plan import REJECTED
from onceflow.spark.pushdown.decode_schema import CORRUPT_REASON
from onceflow.spark.pushdown.source_columns import HEADERS
from onceflow.spark.wrong_option import WrongOption

HEADER_PREFIX = "__connect.errors."
STAGE = "VALUE_CONVERTER"
TOPIC_CONFIGS = {"retention.ms": "-1"}
_NEEDED = ("key", "value", "topic", "partition", "offset")


def dead_letters(rows: DataFrame) -> DataFrame:
    """The rejected of a micro-batch's rows as records to write, out of what `decode` or `aggregate` gave.

    Raises WrongOption where the rows lack what is to be written.
    """
    if REJECTED in rows.columns:
        found = rows.where(F.col(REJECTED).isNotNull()).select(f"{REJECTED}.*")
        return _letters(found, F.col("reason"))
    if CORRUPT_REASON not in rows.columns:
        raise WrongOption(
            f"the rows have columns {', '.join(rows.columns)} and neither {REJECTED} nor {CORRUPT_REASON}: hand on the "
            "rows of a source with option decode as they are"
        )
    missing = [name for name in _NEEDED if name not in rows.columns]
    if missing:
        raise WrongOption(
            f"the rows have no {', '.join(missing)}, so a dead letter cannot be the record as it was: give the source "
            f"option columns='{', '.join(_NEEDED)}, timestamp'"
        )
    return _letters(rows.where(F.col(CORRUPT_REASON).isNotNull()), F.col(CORRUPT_REASON))


def _letters(found: DataFrame, reason: Column) -> DataFrame:
    told = {
        "topic": F.col("topic"),
        "partition": F.col("partition"),
        "offset": F.col("offset"),
        "stage": F.lit(STAGE),
        "exception.message": reason,
    }
    headers = F.array(*(_header(HEADER_PREFIX + name, value) for name, value in told.items()))
    if HEADERS.name in found.columns:
        own = F.coalesce(F.col(HEADERS.name), F.array().cast(HEADERS.dataType))
        headers = F.concat(own, headers)
    kept = [name for name in ("key", "value", "timestamp") if name in found.columns]
    return found.select(*kept, headers.alias(HEADERS.name))


def _header(name: str, value: Column) -> Column:
    return F.struct(F.lit(name).alias("key"), value.cast("string").cast("binary").alias("value"))


def dead_letter_sink(
    bootstrap: str, *, topic: str, checkpoint: str, name: str = "dead-letters", **options: Any
) -> "DeadLetterSink":
    """What `foreachBatch` or `sinks` gets to write the rejected of each micro-batch to `topic`, each exactly once.

    `topic` is made where it is missing: one partition, and records that are kept for ever, since they have the time
    of the original and would be deleted by it. `checkpoint` is the query's own; other options are those of
    `kafka_sink`, such as `kafka` and `compression`, but `mode`: dead letters are always exactly-once. Raises
    WrongOption.
    """
    if "mode" in options:
        raise WrongOption(
            f"mode {options['mode']!r}: dead letters are always exactly-once, so leave mode out; kafka_sink writes "
            "dead_letters(rows) in the other modes"
        )
    sink = kafka_sink(bootstrap, topic=topic, checkpoint=checkpoint, name=name, **options)
    return DeadLetterSink(sink, bootstrap, topic, options.get("kafka", {}))


class DeadLetterSink:
    """Made by `dead_letter_sink`; opened, closed and asked for its failure as a KafkaSink."""

    def __init__(self, sink: KafkaSink | PlainKafkaSink, bootstrap: str, topic: str, kafka: Any) -> None:
        self._sink = sink
        self._bootstrap = bootstrap
        self._topic = topic
        self._security = read_security(kafka)
        self._topic_is_there = False

    @property
    def failure(self) -> OnceflowError | None:
        """Why the query stopped, if this sink stopped it."""
        return self._sink.failure

    def open(self, session: Any, *, sleep: Callable[[float], None] = time.sleep) -> None:
        """Makes the topic where it is missing, and opens the sink. The first batch calls it, too."""
        self._make_topic()
        self._sink.open(session, sleep=sleep)

    def close(self) -> None:
        """Gives the checkpoint and the connections back; the query must have ended."""
        self._sink.close()

    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        """Writes the rejected of one micro-batch, or finds that they are written."""
        self._make_topic()
        self._sink(dead_letters(rows), batch_id)

    def process(self, rows: DataFrame, batch_id: int) -> bool:
        """As a call, for `sinks`; false where the rows were not read, because their rejected are written."""
        self._make_topic()
        return self._sink.process(dead_letters(rows), batch_id)

    def _make_topic(self) -> None:
        if self._topic_is_there:
            return
        with Cluster(self._bootstrap, security=self._security) as cluster:
            if self._topic not in cluster.topics(self._topic):
                with contextlib.suppress(TopicExists):  # Another driver was quicker, which is as good.
                    cluster.create_topic(self._topic, 1, configs=TOPIC_CONFIGS)
        self._topic_is_there = True
