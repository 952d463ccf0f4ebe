"""The offered versions: no client mistakes the broker for a later Apache Kafka than the one it is compared with.

kafka-python infers a release from ApiVersions. librdkafka, aiokafka and kafkajs choose the version of each API
separately, and infer none.
"""

import pytest

from onceflow.wire.apis import APIS

COMPARED_WITH = (4, 1)
"""Release in tests/conformance, where its own ApiVersions response is compared."""

pytestmark = pytest.mark.filterwarnings("ignore:.* is deprecated. Use files:DeprecationWarning")
"""kafka-python's, at its first import."""


def test_no_version_is_above_kafka_4_1() -> None:
    from kafka.protocol.broker_version_data import BrokerVersionData

    kafkas = BrokerVersionData(COMPARED_WITH).api_versions
    assert {api.name: api.version_max for api in APIS.values() if api.version_max > kafkas[api.key][1]} == {}


def test_kafka_python_infers_no_later_release(bootstrap: str) -> None:
    from kafka import KafkaConsumer

    consumer = KafkaConsumer(bootstrap_servers=bootstrap)
    try:
        assert consumer._client.get_broker_version() == (4, 0)
    finally:
        consumer.close()
