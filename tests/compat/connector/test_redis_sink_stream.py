"""Source, Spark and the Redis sink together: what Spark repeats after a crash is counted once."""

from tests.spark.test_redis_sink_stream import job, test_batches_that_spark_repeats_are_counted_once  # noqa: F401

# The others differ in what Redis and the checkpoint hold, whichever broker has the log.
