"""The Kafka sink with a real Spark: columns to records, repeated batches, a killed driver."""

from tests.spark.test_kafka_sink import *  # noqa: F403

# They use no broker.
del test_every_option_is_on_the_page, test_invalid_options_are_refused  # noqa: F821
# They test Spark's jobs and state, which do not depend on the broker.
del test_only_large_batches_come_in_parts  # noqa: F821
del test_stateful_query_continues_after_skipped_batch  # noqa: F821
# It is `test_repeated_batches_are_written_once` as a program.
del test_example_copies_a_topic  # noqa: F821
