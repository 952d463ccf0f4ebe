"""The sink's transaction against Apache Kafka: every test of it that asks a broker, run once more."""

import pytest

from benchmarks.kafka import KafkaProcess
from tests.spark.test_kafka_transaction import *  # noqa: F403


@pytest.fixture(scope="module")
def bootstrap(apache_kafka: KafkaProcess) -> str:
    return apache_kafka.bootstrap
