"""The sink's modes without transaction: what each code and each lost answer leaves in the topic."""

from tests.spark.kafka.test_plain import *  # noqa: F403

# It kills and starts a broker process of ours.
del test_none_goes_on_where_nobody_listens  # noqa: F821
