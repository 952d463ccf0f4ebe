"""The source's positions: the meaning of start and end options, and the number of requests."""

from tests.spark.reader.test_positions import *  # noqa: F403
