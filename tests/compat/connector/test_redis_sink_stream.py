"""Source, Spark and the Redis sink together: batches that Spark repeats after a crash are counted once."""

from tests.spark.test_redis_sink_stream import job, test_repeated_batches_are_counted_once  # noqa: F401

# The others differ in the content of Redis and the checkpoint, not in the broker.
