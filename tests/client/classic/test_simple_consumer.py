"""The simple consumer: fetch, multifetch, out of range, messages larger than requested."""

from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
from confluent_kafka import OFFSET_INVALID, Consumer, TopicPartition

from onceflow.client.addresses import parse_address
from onceflow.client.classic import FetchRequest, SimpleConsumer
from onceflow.client.cluster import EARLIEST, LATEST, Cluster
from onceflow.client.errors import (
    BrokerUnreachable,
    ConnectionLost,
    OffsetOutOfRange,
    RequestRefused,
    ResponseTooLarge,
    UnknownTopic,
    UnsupportedBroker,
)
from onceflow.client.producer import EventWriter
from onceflow.remedies import Remedy
from onceflow.wire import apis
from tests import remedies
from tests.client.proxy import FaultyProxy

Fill = Callable[..., str]


@pytest.fixture
def consumer(bootstrap: str) -> Iterator[SimpleConsumer]:
    with SimpleConsumer(*parse_address(bootstrap), wait_ms=0) as connected:
        yield connected


def test_fetch_from_any_offset(consumer: SimpleConsumer, filled: Fill) -> None:
    topic = filled([b"a", b"b", b"c"])
    messages = consumer.fetch(FetchRequest(topic, 0, 0))
    assert [(message.offset, message.message, message.timestamp_ms) for message in messages] == [
        (0, b"a", 1000),
        (1, b"b", 1001),
        (2, b"c", 1002),
    ]
    assert messages.next_offset == messages.high_watermark == 3
    assert [message.message for message in consumer.fetch(FetchRequest(topic, 0, 2))] == [b"c"]
    assert [message.message for message in consumer.fetch(FetchRequest(topic, 0, 1))] == [b"b", b"c"]
    at_the_end = consumer.fetch(FetchRequest(topic, 0, 3))
    assert list(at_the_end) == []
    assert at_the_end.next_offset == 3


def test_multifetch_keeps_the_order(consumer: SimpleConsumer, bootstrap: str, filled: Fill) -> None:
    topic = filled([b"a", b"b"], partitions=3, partition=2)
    wanted = [
        FetchRequest(topic, 2, 1),
        FetchRequest(topic, 0, 0),
        FetchRequest(topic, 2, 0),
        FetchRequest(topic, 1, 0),
    ]
    results = consumer.multifetch(wanted)
    assert [(result.partition, [message.message for message in result]) for result in results] == [
        (2, [b"b"]),
        (0, []),
        (2, [b"a", b"b"]),
        (1, []),
    ]
    assert consumer.multifetch([]) == []


def test_large_message_arrives_whole(consumer: SimpleConsumer, filled: Fill) -> None:
    topic = filled([b"x" * 100_000])
    assert [len(message.message or b"") for message in consumer.fetch(FetchRequest(topic, 0, 0, max_size=10))] == [
        100_000
    ]


@pytest.mark.remedy(Remedy.LARGER_FETCHES)
def test_cut_message_doubles_the_size(filled: Fill, proxy: FaultyProxy) -> None:
    """Mission C7. Brokers before Kafka 0.10.1 cut the first message at the size asked for; today's never do."""
    topic = filled([b"x" * 1000])
    proxy.cut_batches = True
    with (
        SimpleConsumer(*proxy.address, fetch_bytes_max=1000) as consumer,
        pytest.raises(ResponseTooLarge, match=r"offset 0 of .*-0 is larger than 1000 bytes") as raised,
    ):
        consumer.fetch(FetchRequest(topic, 0, 0, 300))
    assert proxy.asked_bytes == [300, 600, 1000]
    remedies.find(Remedy.LARGER_FETCHES, raised.value)
    proxy.asked_bytes.clear()
    with SimpleConsumer(*proxy.address, fetch_bytes_max=4000) as consumer:
        assert [len(message.message or b"") for message in consumer.fetch(FetchRequest(topic, 0, 0, 300))] == [1000]
        assert proxy.asked_bytes == [300, 600, 1200]


def test_out_of_range_fails_or_resets(bootstrap: str, filled: Fill) -> None:
    topic = filled([b"a", b"b"])
    for choice, expected in (("earliest", [b"a", b"b"]), ("latest", [])):
        with SimpleConsumer(*parse_address(bootstrap), wait_ms=0, on_out_of_range=choice) as consumer:
            assert [message.message for message in consumer.fetch(FetchRequest(topic, 0, 99))] == expected
    with (
        SimpleConsumer(*parse_address(bootstrap)) as consumer,
        pytest.raises(OffsetOutOfRange, match=r"offset 99 of .* starts at 0 and ends at 2"),
    ):
        consumer.fetch(FetchRequest(topic, 0, 99))
    with pytest.raises(ValueError, match="expected fail, earliest or latest"):
        SimpleConsumer(*parse_address(bootstrap), on_out_of_range="guess")


def test_offsets_before_are_where_segments_begin(bootstrap: str, cluster: Cluster, topic: str) -> None:
    cluster.create_topic(topic, 1, configs={"segment.bytes": str(1024 * 1024)})
    with EventWriter(bootstrap, topic, **cast(Any, {"batch.size": 1000, "linger.ms": 0})) as writer:
        # 3.4 to 3.6 segments, whether a batch has one record or several.
        for number in range(3500):
            writer.write(None, b"x" * 1000, 1000 + number)
    with SimpleConsumer(*parse_address(bootstrap)) as consumer:
        assert consumer.get_offsets_before(topic, 0, LATEST, 1) == [3500]
        assert consumer.get_offsets_before(topic, 0, EARLIEST, 1) == [0]
        if not consumer._connection.serves(apis.LIST_OFFSETS, 0):
            with pytest.raises(UnsupportedBroker, match=r"like Apache Kafka from 4\.0 on"):
                consumer.get_offsets_before(topic, 0, LATEST, 2)
            return
        offsets = consumer.get_offsets_before(topic, 0, LATEST, 100)
        assert offsets[0] == 3500
        assert offsets[-1] == 0
        assert len(offsets) == 5
        assert offsets == sorted(offsets, reverse=True)
        assert consumer.get_offsets_before(topic, 0, LATEST, 2) == offsets[:2]
        assert consumer.get_offsets_before(topic, 0, EARLIEST, 9) == [0]
        assert consumer.get_offsets_before(topic, 0, 1000 + offsets[2] - 2, 9) == [0], "the second one's last is later"
        assert consumer.get_offsets_before(topic, 0, 1000 + offsets[2] - 1, 9) == [offsets[3], 0]
        assert consumer.get_offsets_before(topic, 0, 999, 9) == []
        assert consumer.get_offsets_before(topic, 0, LATEST, 0) == []
        with pytest.raises(UnknownTopic):
            consumer.get_offsets_before(topic, 1, LATEST, 1)


def test_what_does_not_exist_is_said(consumer: SimpleConsumer, cluster: Cluster, topic: str) -> None:
    with pytest.raises(UnknownTopic, match=f"no partition 0 of a topic '{topic}' at .*topic list"):
        consumer.fetch(FetchRequest(topic, 0, 0))
    with pytest.raises(BrokerUnreachable):
        SimpleConsumer("127.0.0.1", 1)


def test_offsets_are_committed_and_fetched(consumer: SimpleConsumer, cluster: Cluster, topic: str) -> None:
    """Article C: offset commit and fetch of the simple consumer; any client of the group reads them."""
    other = f"{topic}-other"
    cluster.create_topic(topic, 2)
    cluster.create_topic(other, 1)
    places = [(topic, 0), (topic, 1), (other, 0)]
    assert consumer.fetch_offsets(topic, places) == {}
    consumer.commit_offsets(topic, {(topic, 1): 7, (other, 0): 2**40})
    assert consumer.fetch_offsets(topic, places) == {(topic, 1): 7, (other, 0): 2**40}
    assert consumer.fetch_offsets(topic, [(other, 0)]) == {(other, 0): 2**40}
    assert consumer.fetch_offsets(f"{topic}-group", places) == {}
    with pytest.raises(UnknownTopic):
        consumer.fetch_offsets(topic, [(f"{topic}-none", 0)])
    with pytest.raises(RequestRefused, match="UNKNOWN_TOPIC_OR_PARTITION"):
        consumer.commit_offsets(topic, {(topic, 2): 1})
    theirs = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": topic, "enable.auto.commit": False})
    try:
        read = theirs.committed([TopicPartition(*place) for place in places], timeout=30)
        assert [partition.offset for partition in read] == [OFFSET_INVALID, 7, 2**40]
        theirs.commit(offsets=[TopicPartition(topic, 0, 3)], asynchronous=False)
    finally:
        theirs.close()
    assert consumer.fetch_offsets(topic, places) == {(topic, 0): 3, (topic, 1): 7, (other, 0): 2**40}


def test_offsets_follow_a_moved_coordinator(proxy: FaultyProxy, cluster: Cluster, topic: str) -> None:
    cluster.create_topic(topic, 1)
    with SimpleConsumer(*proxy.address) as consumer:
        consumer.commit_offsets(topic, {(topic, 0): 1})
        proxy.faults = [(apis.OFFSET_COMMIT, "not_coordinator")]
        consumer.commit_offsets(topic, {(topic, 0): 2})
        assert proxy.coordinators_asked == 2
        assert consumer.fetch_offsets(topic, [(topic, 0)]) == {(topic, 0): 2}
    with pytest.raises(ConnectionLost, match="was closed"):
        consumer.fetch_offsets(topic, [(topic, 0)])
    with pytest.raises(ConnectionLost, match="was closed"):
        consumer.commit_offsets(topic, {})
