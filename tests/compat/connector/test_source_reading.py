"""The reading half of the source: exact ranges as Arrow, and what is gone from the log."""

from tests.spark.reader.test_read_task import *  # noqa: F403

# It asks no broker.
del test_reading_goes_on_after_what_is_gone  # noqa: F821
