"""The lag of a running query, in a real Spark and from events of the same form."""

from tests.spark.test_lag_listener import *  # noqa: F403

# It uses no broker.
del test_unreachable_cluster_is_a_warning  # noqa: F821
