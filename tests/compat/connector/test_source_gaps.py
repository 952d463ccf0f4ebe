"""Offsets without a row: aborted and open transactions, and their markers."""

from tests.spark.reader.test_data_loss import *  # noqa: F403
from tests.spark.reader.test_data_loss import _no_waiting  # noqa: F401

# It drives the clock of Onceflow's broker, so that the log is compacted at once.
del test_compacted_log_is_read_across_gaps  # noqa: F821
