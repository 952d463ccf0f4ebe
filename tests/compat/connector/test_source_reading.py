"""The reading half of the source: exact ranges as Arrow, and records deleted from the log."""

from tests.spark.reader.test_read_task import *  # noqa: F403

# It uses no broker.
del test_reading_continues_after_deleted_offsets  # noqa: F821
