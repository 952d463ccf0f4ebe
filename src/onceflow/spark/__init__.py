"""Spark: the source for any Kafka, the exactly-once sinks, and a session tuned for small micro-batches.

The source: Spark loads `source`. In `reader`, `options` parses the options, `stream` plans the `offsets` of each
micro-batch with `positions`, `read_task` fetches them in the workers, and `data_loss` handles deleted offsets.
`pushdown` decodes JSON values to typed columns and aggregates them.

The sinks: `sink` is their public base. It calls a `Sink` for each batch. `exactly_once` locks and syncs the checkpoint
and decides from the proof in the target whether a batch is written.

`messages` and `install_excepthook` reduce Spark's long errors to the connector's own message.

`kafka` and `redis` hold the parts of the Kafka and the Redis sink; `kafka_sink` and `redis_sink` are the callables that
`foreachBatch` takes.
"""

from onceflow.spark.failure import install_excepthook, messages

__all__ = ["install_excepthook", "messages"]
