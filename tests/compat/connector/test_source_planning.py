"""The planning half of the source, called in the order in which Spark calls it."""

from tests.spark.reader.test_stream import *  # noqa: F403
from tests.spark.reader.test_stream import _short_pauses  # noqa: F401
