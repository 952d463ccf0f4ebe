"""The producer: keys land where Java's client puts them, nothing is lost silently."""

from contextlib import suppress
from typing import Any, cast

import pytest

from onceflow.client.cluster import Cluster
from onceflow.client.errors import BrokerUnreachable, ProduceFailed, UnknownTopic
from onceflow.client.producer import EventWriter, producer
from onceflow.client.records import read_partitions
from onceflow.testing import BrokerProcess
from onceflow.wire.murmur2 import partition_for_key

PARTITIONS = 7
JAVA_PLACES = {
    b"21": 3,
    b"foobar": 0,
    b"a-little-bit-long-string": 1,
    b"user-1": 3,
    b"068b746ed4620d25e26055a9f804385f": 0,
    b"4A4D769EB9679C054DE81B973ED5D768": 6,
    "ö".encode(): 1,
}
"""Key → one of 7 partitions, as Kafka 4.1's own console producer placed them."""


def read_all(cluster: Cluster, topic: str, count: int) -> list[tuple[int, bytes | None, bytes | None]]:
    placed = []
    for partition, record in read_partitions(
        cluster, topic, dict.fromkeys(cluster.topics(topic)[topic].partitions, 0), None
    ):
        placed.append((partition, record.key, record.value))
        if len(placed) == count:
            return placed
    raise AssertionError


def test_keys_land_where_java_puts_them(bootstrap: str, cluster: Cluster, topic: str) -> None:
    cluster.create_topic(topic, PARTITIONS)
    keys = [*JAVA_PLACES, *(b"user-%d" % number for number in range(2, 200)), bytes(range(256))]
    with EventWriter(bootstrap, topic) as writer:
        for key in keys:
            writer.write(key, b"value")
    assert writer.delivered == len(keys)
    placed = {key: partition for partition, key, _ in read_all(cluster, topic, len(keys))}
    assert placed == {key: partition_for_key(key, PARTITIONS) for key in keys}
    assert {key: placed[key] for key in JAVA_PLACES} == JAVA_PLACES


def test_events_without_key_or_with_partition(bootstrap: str, cluster: Cluster, topic: str) -> None:
    cluster.create_topic(topic, 3)
    with EventWriter(bootstrap, topic) as writer:
        writer.write(None, b"chosen", timestamp_ms=5, partition=2)
        writer.write(b"key", None)
    assert sorted(read_all(cluster, topic, 2), key=str) == sorted(
        [(2, None, b"chosen"), (partition_for_key(b"key", 3), b"key", None)], key=str
    )


def test_topic_and_broker_are_required(bootstrap: str, topic: str) -> None:
    with pytest.raises(UnknownTopic, match="onceflow topic create"):
        EventWriter(bootstrap, topic)
    with pytest.raises(BrokerUnreachable):
        EventWriter("127.0.0.1:1", topic)


def test_a_full_queue_makes_the_writer_wait(bootstrap: str, cluster: Cluster, topic: str) -> None:
    cluster.create_topic(topic, 1)
    with EventWriter(bootstrap, topic, linger_ms=0, **cast(Any, {"queue.buffering.max.messages": 10})) as writer:
        for number in range(1000):
            writer.write(None, b"%d" % number)
    assert writer.delivered == 1000
    assert [value for _, _, value in read_all(cluster, topic, 1000)] == [b"%d" % number for number in range(1000)]


def test_too_large_event_is_refused(bootstrap: str, cluster: Cluster, topic: str) -> None:
    cluster.create_topic(topic, 1)
    with (
        pytest.raises(ProduceFailed, match=f"for {topic} at {bootstrap} not acknowledged.*MESSAGE_TOO_LARGE"),
        EventWriter(bootstrap, topic) as writer,
    ):
        writer.write(None, b"x" * 1_100_000)


def test_unaccepted_events_are_an_error(tmp_path_factory: pytest.TempPathFactory, topic: str) -> None:
    with BrokerProcess(tmp_path_factory.mktemp("killed")) as broker:
        with Cluster(broker.bootstrap) as cluster:
            cluster.create_topic(topic, 1)
        waiting = EventWriter(broker.bootstrap, topic)
        waiting.write(None, b"first")
        waiting.flush()
        roomy = hurried(broker.bootstrap, topic)
        crowded = hurried(broker.bootstrap, topic, **{"queue.buffering.max.messages": 10})
        broker.kill()
        waiting.write(None, b"never")
        with pytest.raises(ProduceFailed, match=r"1 event .* not acknowledged by .* within 0\.1 s, 1 acknowledged"):
            waiting.flush(0.1)
        for writer in (roomy, crowded):
            with pytest.raises(ProduceFailed, match=r"\d+ events? for .* not acknowledged, 1 acknowledged"):
                write_and_flush(writer, 100)
            assert writer.delivered == 1


def test_waiting_events_are_notified(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, topic: str
) -> None:
    """Once when the broker is away, once by a flush that takes long, and once when it is back."""
    monkeypatch.setattr("onceflow.client.producer.NOTIFIED_AFTER_S", 0.1)
    texts: list[str] = []
    with BrokerProcess(tmp_path_factory.mktemp("away")) as broker:
        with Cluster(broker.bootstrap) as cluster:
            cluster.create_topic(topic, 1)
        writer = EventWriter(broker.bootstrap, topic, notify=texts.append)
        writer.write(None, b"first")
        writer.flush(60)
        texts.clear()
        broker.kill()
        writer.write(None, b"second")
        with pytest.raises(ProduceFailed):
            writer.flush(2)
        away = f"no broker responds at {broker.bootstrap}; each event waits for one, up to 120 s"
        assert sorted(texts) == [away, f"waiting until {broker.bootstrap} acknowledges 1 event, up to 1.9 s"]
        broker.start()
        writer.flush(60)
        assert (writer.delivered, texts[-1]) == (2, f"{broker.bootstrap} acknowledges events again")


def hurried(bootstrap: str, topic: str, **config: int) -> EventWriter:
    """A writer that soon gives an event up; its first was acknowledged, which on a busy machine may take longer."""
    for timeout_ms in (500, 2_000, 10_000):
        writer = EventWriter(bootstrap, topic, **cast(Any, {"delivery.timeout.ms": timeout_ms, **config}))
        with suppress(ProduceFailed):
            writer.write(None, b"first")
            writer.flush()
            return writer
    raise AssertionError("nothing is acknowledged within 10 s")


def write_and_flush(writer: EventWriter, count: int) -> None:
    for number in range(count):
        writer.write(None, b"%d" % number)
    writer.flush()


def test_unknown_librdkafka_setting_is_refused() -> None:
    with pytest.raises(ProduceFailed, match=r"No such configuration property.*no\.such\.setting"):
        producer("127.0.0.1:1", **{"no.such.setting": 1})
