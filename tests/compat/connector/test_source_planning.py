"""The planning half of the source, called in the order in which Spark calls it."""

from tests.spark.test_source_planning import *  # noqa: F403
from tests.spark.test_source_planning import _each_question_is_asked  # noqa: F401
