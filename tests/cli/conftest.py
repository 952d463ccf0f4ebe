"""The topic of sinks' markers, as a Kafka sink creates it."""

import pytest

from onceflow.client.cluster import Cluster
from onceflow.spark.kafka.marker import MARKER_CONFIGS, MARKER_TOPIC


@pytest.fixture
def marker_topic(cluster: Cluster) -> str:
    """The name; sinks of other tests use the same topic of the same broker."""
    if MARKER_TOPIC not in cluster.topics():
        cluster.create_topic(MARKER_TOPIC, 1, configs=MARKER_CONFIGS)
    return MARKER_TOPIC
