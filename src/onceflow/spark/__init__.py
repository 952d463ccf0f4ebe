"""Spark: the source for any Kafka, the exactly-once sinks, and a session tuned for small micro-batches.

The source, in the order in which a micro-batch passes through it: `source` is what Spark finds, `options` reads what
the user asked for, `stream` plans which `offsets` come next with the help of `positions`, `read_task` fetches them in
the workers, `data_loss` decides what happens when they are gone, `decode` and `aggregate` make typed columns and sums
of them.

The sinks: `sink` is their public base, which calls a `Sink` for each `batch`, locks and syncs the `checkpoint`, and
goes by the `decision` that the `proof` in the sink asks for.

The Kafka sink: `kafka_sink` is what `foreachBatch` gets, `kafka_target` its Sink; `kafka_encode` works in executors,
`kafka_rows` holds what they made, `kafka_transaction` takes the steps of `kafka_steps` with `kafka_sender` and
`kafka_marker`; `kafka_plain` has the modes without transaction. The Redis sink: `redis_sink`, `redis_target`,
`redis_batch` with `redis_chunks` and `redis_scripts`, `redis_marker`, `repair`. `failure` takes our sentence out of
Spark's errors.
"""
