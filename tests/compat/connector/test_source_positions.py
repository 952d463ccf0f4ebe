"""The source's positions: what start and end options mean, how often the broker is asked."""

from tests.spark.reader.test_positions import *  # noqa: F403
