"""Spark: the source for any Kafka, the exactly-once sinks, and a session tuned for small micro-batches.

The source, in the order in which a micro-batch passes through it: `source` is what Spark finds, `options` reads what
the user asked for, `stream` plans which `offsets` come next with the help of `positions`, `read_task` fetches them in
the workers, `data_loss` decides what happens when they are gone, `decode` and `aggregate` make typed columns and sums
of them. `failure` takes our sentence out of Spark's errors.
"""
