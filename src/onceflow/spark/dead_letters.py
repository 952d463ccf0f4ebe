"""Rejected records in a topic of their own, to keep them longer than the log does.

    dead = dead_letter_sink("host:9092", topic="clicks-dead", checkpoint=checkpoint)
    foreachBatch(lambda rows, batch_id: sinks(rows, batch_id, counts, dead))

A dead letter is the original record (key, value, headers, timestamp) with these headers after its own. They are those
of Kafka Connect's dead letter queue (org.apache.kafka.connect.runtime.errors.DeadLetterQueueReporter, KIP-298), so its
readers work here too. A record that was in such a queue before has them twice; the last ones are ours.

| header | UTF-8 text |
|---|---|
| `__connect.errors.topic`, `.partition`, `.offset` | the record's position in the log |
| `__connect.errors.stage` | `VALUE_CONVERTER`, Connect's name for decoding a value |
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
from onceflow.spark.errors import WrongOption
from onceflow.spark.kafka_sink import KafkaSink, PlainKafkaSink, kafka_sink
from onceflow.spark.pushdown.aggregate_plan import REJECTED
from onceflow.spark.pushdown.decode_schema import CORRUPT_REASON
from onceflow.spark.pushdown.options import HEADERS

HEADER_PREFIX = "__connect.errors."
STAGE = "VALUE_CONVERTER"
TOPIC_CONFIGS = {"retention.ms": "-1"}
_NEEDED = ("key", "value", "topic", "partition", "offset")


def dead_letters(rows: DataFrame) -> DataFrame:
    """Return the rejected records of a micro-batch, as rows to write; `rows` come from `decode` or `aggregate`.

    Raises WrongOption if the rows lack columns.
    """
    if REJECTED in rows.columns:
        rejected = rows.where(F.col(REJECTED).isNotNull()).select(f"{REJECTED}.*")
        return _letters(rejected, F.col("reason"))
    if CORRUPT_REASON not in rows.columns:
        raise WrongOption(
            f"the rows have columns {', '.join(rows.columns)} and neither {REJECTED} nor {CORRUPT_REASON}; pass the "
            "unchanged rows of a source with option decode"
        )
    missing = [name for name in _NEEDED if name not in rows.columns]
    if missing:
        raise WrongOption(
            f"the rows have no {', '.join(missing)}, which a dead letter needs; give the source "
            f"option columns='{', '.join(_NEEDED)}, timestamp'"
        )
    return _letters(rows.where(F.col(CORRUPT_REASON).isNotNull()), F.col(CORRUPT_REASON))


def _letters(rejected: DataFrame, reason: Column) -> DataFrame:
    values = {
        "topic": F.col("topic"),
        "partition": F.col("partition"),
        "offset": F.col("offset"),
        "stage": F.lit(STAGE),
        "exception.message": reason,
    }
    headers = F.array(*(_header(HEADER_PREFIX + name, value) for name, value in values.items()))
    if HEADERS.name in rejected.columns:
        own = F.coalesce(F.col(HEADERS.name), F.array().cast(HEADERS.dataType))
        headers = F.concat(own, headers)
    kept = [name for name in ("key", "value", "timestamp") if name in rejected.columns]
    return rejected.select(*kept, headers.alias(HEADERS.name))


def _header(name: str, value: Column) -> Column:
    return F.struct(F.lit(name).alias("key"), value.cast("string").cast("binary").alias("value"))


def dead_letter_sink(
    bootstrap: str, *, topic: str, checkpoint: str, name: str = "dead-letters", **options: Any
) -> "DeadLetterSink":
    """Return a sink for `foreachBatch` or `sinks` that writes the rejected records to `topic`, each exactly once.

    A missing `topic` is created with one partition and without a retention time: dead letters keep the original's
    timestamp, by which retention would delete them. `checkpoint` is the query's own. Other options are those of
    `kafka_sink`, such as `kafka` and `compression`, except `mode`. Raises WrongOption.
    """
    if "mode" in options:
        raise WrongOption(
            f"mode {options['mode']!r}: dead letters are always exactly-once; omit mode, or write dead_letters(rows) "
            "with kafka_sink in another mode"
        )
    sink = kafka_sink(bootstrap, topic=topic, checkpoint=checkpoint, name=name, **options)
    return DeadLetterSink(sink, bootstrap, topic, options.get("kafka", {}))


class DeadLetterSink:
    """Sink returned by `dead_letter_sink`; `open`, `close` and `failure` work as those of a KafkaSink."""

    def __init__(self, sink: KafkaSink | PlainKafkaSink, bootstrap: str, topic: str, kafka: Any) -> None:
        self._sink = sink
        self._bootstrap = bootstrap
        self._topic = topic
        self._security = read_security(kafka)
        self._topic_exists = False

    @property
    def failure(self) -> OnceflowError | None:
        """The reason why this sink stopped the query, if it did."""
        return self._sink.failure

    def open(self, session: Any, *, sleep: Callable[[float], None] = time.sleep) -> None:
        """Create the topic if it is missing, and open the sink. The first batch does this too."""
        self._create_topic()
        self._sink.open(session, sleep=sleep)

    def close(self) -> None:
        """Release the checkpoint and the connections; the query must have ended."""
        self._sink.close()

    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        """Write the rejected records of one micro-batch unless they are already written."""
        self._create_topic()
        self._sink(dead_letters(rows), batch_id)

    def process(self, rows: DataFrame, batch_id: int) -> bool:
        """Do the same for `sinks`; return False if the rejected records were already written."""
        self._create_topic()
        return self._sink.process(dead_letters(rows), batch_id)

    def _create_topic(self) -> None:
        if self._topic_exists:
            return
        with Cluster(self._bootstrap, security=self._security) as cluster:
            if self._topic not in cluster.topics(self._topic):
                with contextlib.suppress(TopicExists):  # Another driver created it first.
                    cluster.create_topic(self._topic, 1, configs=TOPIC_CONFIGS)
        self._topic_exists = True
