"""What the source's tests write to and read from."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from onceflow.client.cluster import Cluster

Send = Callable[..., None]


@pytest.fixture
def cluster(bootstrap: str) -> Iterator[Cluster]:
    with Cluster(bootstrap) as connected:
        yield connected


@pytest.fixture
def send(bootstrap: str, topic: str) -> Send:
    """`send(values, partition=0)`: writes values to the test's topic and waits until they are acknowledged."""
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    own = topic

    def write(
        values: Sequence[str | None], partition: int = 0, key: str | None = None, topic: str = own, **fields: Any
    ) -> None:
        for value in values:
            producer.produce(topic, value=value, key=key, partition=partition, **fields)
        assert producer.flush(20) == 0

    return write


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return tmp_path / "checkpoint"
