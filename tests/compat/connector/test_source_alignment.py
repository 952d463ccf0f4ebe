"""Event-time alignment of partitions."""

from tests.spark.reader.test_alignment import *  # noqa: F403

# With a real Spark it tests the watermark of the planned batches, which does not depend on the broker.
del test_a_partition_that_is_an_hour_behind_loses_its_rows_without_and_keeps_them_with_alignment  # noqa: F821
del test_a_watermark_that_punctuations_alone_move  # noqa: F821
