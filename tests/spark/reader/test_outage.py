"""A broker that is killed and restarted during a query: planning and reading both retry."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Producer
from pyspark.sql.streaming.datasource import ReadAllAvailable

from onceflow.client.cluster import Cluster
from onceflow.client.security import Security
from onceflow.spark import connections
from onceflow.spark.reader.options import SourceOptions
from onceflow.spark.reader.stream import StreamReader
from onceflow.spark.reader.subscription import subscribed
from onceflow.testing import BrokerProcess


@contextmanager
def away_for_a_moment(broker: BrokerProcess) -> Iterator[None]:
    broker.kill()
    back = threading.Timer(0.2, broker.start)
    back.start()
    try:
        yield
    finally:
        back.join()


def test_query_survives_short_broker_outage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        with Cluster(broker.bootstrap) as cluster:
            cluster.create_topic("t", 1)
        reader = StreamReader(SourceOptions(broker.bootstrap, subscribed("t"), "latest"))
        start = reader.initialOffset()
        reader.partitions(start, start)
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        producer.produce("t", value="a")
        assert producer.flush(20) == 0

        with away_for_a_moment(broker):
            end = reader.latestOffset(start, ReadAllAvailable())
            (task,) = reader.partitions(start, end)

        of_new_worker = dict[tuple[str, Security, int], Cluster]()
        monkeypatch.setattr(connections, "_clusters", of_new_worker)
        with away_for_a_moment(broker):
            rows = [value for batch in reader.read(task) for value in batch["value"].to_pylist()]
        assert rows == [b"a"]
