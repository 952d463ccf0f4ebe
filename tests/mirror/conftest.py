"""Two clusters, and what a mirror between them is compared by."""

import itertools
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from onceflow.client.cluster import EARLIEST, LATEST, Cluster
from onceflow.client.records import read_records
from onceflow.client.transactional import TransactionalProducer
from onceflow.mirror.run import Mirror
from onceflow.mirror.session import Settings
from onceflow.testing import Broker
from onceflow.wire.batch import Record

_numbers = itertools.count()


class Clusters:
    """A source and a target in this process; `topic` is a new name for each test."""

    def __init__(self, source: Broker, target: Broker) -> None:
        self.source_broker = source
        self.target_broker = target
        self.source = Cluster(source.bootstrap_servers, timeout_ms=10_000)
        self.target = Cluster(target.bootstrap_servers, timeout_ms=10_000)
        self.topic = f"visits{next(_numbers)}"

    def close(self) -> None:
        self.source_broker.faults.clear()
        self.target_broker.faults.clear()
        self.source.close()
        self.target.close()

    def settings(self, **changes: Any) -> Settings:
        settings = Settings(self.topic, re.compile(rf"{self.topic}(-\w+)?"), interval_ms=0, refresh_s=0.05)
        return replace(settings, **changes)

    def mirror(self, **changes: Any) -> Mirror:
        return Mirror(self.source, self.target, self.settings(**changes), sleep=lambda _s: None)

    def run_once(self, **changes: Any) -> Mirror:
        """Mirror what the source has."""
        mirror = self.mirror(**changes)
        mirror.run(lambda: False, once=True)
        return mirror

    def write(self, *values: str, topic: str | None = None, partition: int = 0, commit: bool = True) -> None:
        """Write values to the source in one transaction."""
        name = topic or self.topic
        with TransactionalProducer(self.source_broker.bootstrap_servers, name) as producer:
            producer.begin()
            for value in values:
                producer.send(name, value.encode(), partition=partition)
            producer.flush()
            producer.commit() if commit else producer.abort()

    def copied(self, topic: str | None = None, partition: int = 0) -> list[str]:
        """Return the values in the target; none if the topic does not exist."""
        if (topic or self.topic) not in self.target.topics():
            return []
        return [(record.value or b"").decode() for record in records(self.target, topic or self.topic, partition)]


def records(cluster: Cluster, topic: str, partition: int = 0) -> list[Record]:
    """Return the committed records of a partition."""
    start = cluster.list_offsets(topic, {partition: EARLIEST})[partition].offset
    end = cluster.list_offsets(topic, {partition: LATEST})[partition].offset
    return list(read_records(cluster, topic, partition, start, end))


def contents(cluster: Cluster, topic: str, partition: int = 0) -> list[Record]:
    """Return the committed records with their numbers in place of their offsets."""
    return [record._replace(offset=number) for number, record in enumerate(records(cluster, topic, partition))]


@pytest.fixture(scope="session")
def two_brokers() -> Iterator[tuple[Broker, Broker]]:
    with Broker() as source, Broker() as target:
        yield source, target


@pytest.fixture
def clusters(two_brokers: tuple[Broker, Broker]) -> Iterator[Clusters]:
    opened = Clusters(*two_brokers)
    yield opened
    opened.close()
