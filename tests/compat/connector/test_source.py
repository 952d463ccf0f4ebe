"""The source in a real Spark: what is read, once each, whatever happens between."""

from tests.spark.test_source import *  # noqa: F403
