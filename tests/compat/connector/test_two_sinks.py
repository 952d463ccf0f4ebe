"""A Kafka sink and a Redis sink of one micro-batch, also with a driver killed between them."""

from tests.spark.test_sinks import (  # noqa: F401
    batch,
    files,
    pair,
    test_driver_killed_between_two_sinks,
    test_sink_name_is_unique,
)
