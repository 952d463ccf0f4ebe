"""Offsets without a row: aborted and open transactions, and their markers."""

from tests.spark.reader.test_data_loss import *  # noqa: F403
from tests.spark.reader.test_data_loss import _nothing_is_waited_for  # noqa: F401

# It drives the clock of Onceflow's broker, so that the log is compacted at once.
del test_a_compacted_log_is_read_across_its_gaps  # noqa: F821
