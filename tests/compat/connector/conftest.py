"""The connector's own tests, with an Apache Kafka of each version instead of Onceflow's broker."""

from collections.abc import Iterator

import pytest

from benchmarks import kafka
from tests.compat.conftest import CLIENT_VERSIONS, kafka_jars, tool
from tests.spark.conftest import checkpoint, send  # noqa: F401

SETTINGS = {
    # Some tests have records of 1970: the first retention check, 30 s after the start, would delete them.
    "log.initial.task.delay.ms": "3600000",
    # Shortens the wait of `impatient` in test_kafka_transaction; ten seconds by default.
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "50",
}


@pytest.fixture(scope="session", params=CLIENT_VERSIONS)
def bootstrap(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the address of a running Apache Kafka of the version."""
    tool("java", "apt install default-jdk-headless")
    directory = tmp_path_factory.mktemp(f"kafka-{request.param}") / "kafka"
    with kafka.KafkaProcess(directory, kafka_jars(request.param), SETTINGS) as running:
        yield running.bootstrap
