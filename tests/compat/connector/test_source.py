"""The source in a real Spark: every record is read once, despite restarts."""

from tests.spark.test_source import *  # noqa: F403
