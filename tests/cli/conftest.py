"""The topic of sinks' markers, and a cluster with a partition without leader."""

from collections.abc import Iterator

import pytest

from onceflow import testing
from onceflow.client.cluster import Cluster
from onceflow.spark.kafka.marker import MARKER_CONFIGS, MARKER_TOPIC
from tests.clicks.counted import write


@pytest.fixture
def marker_topic(cluster: Cluster) -> str:
    """The name; sinks of other tests use the same topic of the same broker."""
    if MARKER_TOPIC not in cluster.topics():
        cluster.create_topic(MARKER_TOPIC, 1, configs=MARKER_CONFIGS)
    return MARKER_TOPIC


@pytest.fixture(scope="module")
def offline_partition() -> Iterator[str]:
    """Bootstrap servers of a broker whose only peer was killed.

    Of the two partitions of `alone` one has no leader, and `copied` has one replica in sync. Each is read by a group.
    """
    with testing.Cluster(2) as brokers:
        brokers.create_topic("copied", 2)
        brokers.create_topic("alone", 2, replication_factor=1)
        with Cluster(brokers.bootstrap_servers) as cluster:
            cluster.commit_offsets("reads-copied", "copied", {0: 0, 1: 0})
            cluster.commit_offsets("reads-alone", "alone", {0: 0, 1: 0})
        # The offsets have one replica.
        brokers.kill(3 - brokers.leader("__consumer_offsets"))
        for partition in (0, 1):
            brokers.leader("copied", partition)
        write(brokers.bootstrap_servers, "copied", {0: [b"1", b"2"]})
        yield brokers.bootstrap_servers
