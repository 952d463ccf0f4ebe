"""Event-time alignment of partitions."""

from tests.spark.reader.test_alignment import *  # noqa: F403

# With a real Spark: what its watermark makes of the planned batches, whichever broker has the log.
del test_a_partition_that_is_an_hour_behind_loses_its_rows_without_and_keeps_them_with_alignment  # noqa: F821
del test_a_watermark_that_punctuations_alone_move  # noqa: F821
