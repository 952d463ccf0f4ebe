"""The sink's modes without transaction: the topic's content after each code and each lost response."""

from tests.spark.kafka.test_plain import *  # noqa: F403

# It kills and starts a process of Onceflow's broker.
del test_none_continues_without_a_listener  # noqa: F821
