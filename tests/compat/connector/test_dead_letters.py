"""Rejected records become dead letters, each once, with a real Spark."""

from tests.spark.test_dead_letters import *  # noqa: F403

# They use no broker.
del test_rows_that_lack_the_record_are_refused, test_mode_is_refused  # noqa: F821
# It differs only in the use of Redis.
del test_two_sinks_get_their_own_rows  # noqa: F821
