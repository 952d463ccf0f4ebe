"""The Kafka sink with a real Spark: columns to records, batches that come again, a driver that is killed."""

from tests.spark.test_kafka_sink import *  # noqa: F403

# They ask no broker.
del test_every_option_is_on_the_page, test_options_that_cannot_be_meant_are_refused  # noqa: F821
# What they try is how Spark's jobs and state go, whichever broker gets the records.
del test_a_batch_like_the_one_before_comes_in_one_job_and_a_larger_one_in_parts  # noqa: F821
del test_a_stateful_query_goes_on_after_a_skipped_batch  # noqa: F821
# It is `test_batches_that_spark_repeats_are_there_once` as a program.
del test_the_example_copies_a_topic  # noqa: F821
