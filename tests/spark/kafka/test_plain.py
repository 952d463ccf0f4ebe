"""The modes without a transaction: the topic after error codes and lost responses."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from onceflow.client.addresses import parse_address
from onceflow.client.cluster import Cluster
from onceflow.spark.errors import SinkStopped
from onceflow.spark.kafka.plain import AtLeastOnce, write_once
from onceflow.spark.kafka.transaction import Settings
from onceflow.testing import BrokerProcess
from onceflow.wire import apis
from tests.spark.kafka_driver import Rows, eventually, make_topics, quick_sleep, values_of, visible
from tests.spark.response_proxy import DROPPED, LOST, ResponseProxy

SETTINGS = Settings(retry_timeout_ms=2_000, sleep=quick_sleep)


@pytest.fixture
def proxy(bootstrap: str, topic: str) -> Iterator[ResponseProxy]:
    make_topics(bootstrap, topic)
    with ResponseProxy(parse_address(bootstrap)) as running:
        yield running


@pytest.fixture
def through(proxy: ResponseProxy) -> Iterator[Cluster]:
    with Cluster(proxy.bootstrap, timeout_ms=5_000) as cluster:
        yield cluster


def test_at_least_once_keeps_order_per_attempt(
    proxy: ResponseProxy, through: Cluster, bootstrap: str, topic: str
) -> None:
    faults = [7, LOST, 19, DROPPED, None, LOST]
    proxy.faults = [(apis.INIT_PRODUCER_ID, 15), *((apis.PRODUCE, fault) for fault in faults)]
    AtLeastOnce(through, SETTINGS).write(Rows(topic, values_of(1), blobs_per_pull=100))
    assert proxy.faults == []
    assert visible(bootstrap, topic) == values_of(1)


def test_at_least_once_repeats_an_ended_attempt(
    proxy: ResponseProxy, through: Cluster, bootstrap: str, topic: str
) -> None:
    proxy.faults = [*[(apis.PRODUCE, None)] * 3, (apis.PRODUCE, 59)]
    AtLeastOnce(through, SETTINGS).write(Rows(topic, values_of(1)))
    records = visible(bootstrap, topic)
    assert {partition: set(held) for partition, held in records.items()} == {
        partition: set(held) for partition, held in values_of(1).items()
    }
    # The records sent before the attempt ended are there twice.
    assert len(records[0]) > len(values_of(1)[0])
    proxy.faults = [(apis.PRODUCE, 45)] * 5
    with pytest.raises(SinkStopped, match="in 5 attempts"):
        AtLeastOnce(through, SETTINGS).write(Rows(topic, values_of(2)))


@pytest.mark.parametrize("api_key", [apis.PRODUCE, apis.INIT_PRODUCER_ID])
def test_at_least_once_stops_at_fatal_codes(api_key: int, proxy: ResponseProxy, through: Cluster, topic: str) -> None:
    proxy.faults = [(api_key, 53)]
    with pytest.raises(SinkStopped, match=r"TRANSACTIONAL_ID_AUTHORIZATION_FAILED \(53\)"):
        AtLeastOnce(through, SETTINGS).write(Rows(topic, values_of(1)))


def test_none_sends_once_and_counts_losses(proxy: ResponseProxy, through: Cluster, bootstrap: str, topic: str) -> None:
    assert not any(visible(bootstrap, topic).values()), "read from leaders, which therefore serve the new topic"
    assert write_once(through, Rows(topic, values_of(1)), SETTINGS) == 0
    # With acks=1 the leader responds before its sync; until then consumers cannot read the records.
    eventually(lambda: visible(bootstrap, topic) == values_of(1))
    assert visible(bootstrap, topic) == values_of(1)
    proxy.faults = [(apis.PRODUCE, 7), (apis.PRODUCE, None), (apis.PRODUCE, 45)]
    lost = write_once(through, Rows(topic, values_of(2)), SETTINGS)
    eventually(lambda: sum(map(len, visible(bootstrap, topic).values())) >= 60 - lost)
    records = visible(bootstrap, topic)
    assert lost > 0
    assert sum(map(len, records.values())) == 60 - lost
    for partition, held in values_of(2).items():
        rest = iter(held)
        assert all(value in rest for value in records[partition][len(values_of(1)[partition]) :]), (  # type: ignore[operator]
            "in order, none twice"
        )
    proxy.faults = [(apis.PRODUCE, 29)]
    with pytest.raises(SinkStopped, match=r"TOPIC_AUTHORIZATION_FAILED \(29\)"):
        write_once(through, Rows(topic, values_of(3)), SETTINGS)


def test_none_continues_without_a_listener(tmp_path: Path, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with BrokerProcess(tmp_path / "broker") as running:
        make_topics(running.bootstrap, topic)
        with Cluster(running.bootstrap) as cluster:
            assert write_once(cluster, Rows(topic, values_of(1)), SETTINGS) == 0
            running.kill()
            with monkeypatch.context() as impatient:
                impatient.setattr(cluster.router, "timeout_ms", 1_000)
                assert write_once(cluster, Rows(topic, values_of(2)), SETTINGS) == 30
            running.start()
            assert write_once(cluster, Rows(topic, values_of(3)), SETTINGS) == 0
        eventually(lambda: sum(map(len, visible(running.bootstrap, topic).values())) == 60)
        assert sum(map(len, visible(running.bootstrap, topic).values())) == 60
