"""Event-time alignment of partitions."""

from tests.spark.reader.test_alignment import *  # noqa: F403

# With a real Spark it tests the watermark of the planned batches, which does not depend on the broker.
del test_slow_partition_keeps_rows_with_alignment  # noqa: F821
del test_watermark_moved_by_punctuations_only  # noqa: F821
