"""The push-downs in a real Spark, stream and batch."""

from tests.spark.test_pushdown_stream import *  # noqa: F403
