"""The push-downs in a real Spark, stream and batch."""

from tests.spark.pushdown.test_stream import *  # noqa: F403
