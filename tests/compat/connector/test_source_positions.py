"""The source's positions: what start and end options mean, how often the broker is asked."""

from tests.spark.test_source_positions import *  # noqa: F403
