"""The consumer connector: streams, filters, commits, and groups that share or do not share messages."""

import contextlib
import re
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from onceflow.client.classic import (
    Blacklist,
    ConsumerConnector,
    ConsumerTimeout,
    KeyedMessage,
    MessageAndMetadata,
    Producer,
    StringDecoder,
    Whitelist,
)
from onceflow.client.classic.connector import ConsumerFailed
from onceflow.client.classic.streams import MessageStream
from onceflow.client.cluster import Cluster
from onceflow.client.errors import BrokerUnreachable
from onceflow.client.settings import InvalidSetting
from onceflow.client.topic_filter import InvalidFilter
from onceflow.client.transactional import TransactionalProducer
from onceflow.testing import Broker

Message = MessageAndMetadata[Any, Any]


class KeyIsPartition:
    def partition(self, key: object, num_partitions: int) -> int:
        return int(str(key)) % num_partitions


def produce(bootstrap: str, topic: str, messages: list[tuple[str, str]]) -> None:
    config = {
        "metadata.broker.list": bootstrap,
        "serializer.class": "StringEncoder",
        "partitioner.class": KeyIsPartition,
        "enable.idempotence": False,
    }
    with Producer(config) as producer:
        producer.send([KeyedMessage(topic, text, key=key) for key, text in messages])


def settings(bootstrap: str, group: str, **more: Any) -> dict[str, Any]:
    named = {name.replace("_", "."): value for name, value in more.items()}
    return {
        "metadata.broker.list": bootstrap,
        "group.id": group,
        "auto.offset.reset": "smallest",
        "consumer.timeout.ms": 20_000,
        **named,
    }


class Reader:
    """Reader of one stream in a thread of its own, until the stream ends."""

    def __init__(self, stream: MessageStream, enough: Callable[[], bool] = lambda: False) -> None:
        self.messages: list[Message] = []
        self._stream = stream
        self._enough = enough
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        for message in self._stream:
            self.messages.append(message)


def wait_until(holds: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(600):
        if holds():
            return
        pause.wait(0.05)
    raise AssertionError("not within 30 s")


def committed(bootstrap: str, group: str, topic: str) -> dict[int, int]:
    with Cluster(bootstrap) as cluster:
        return cluster.committed_offsets(group, topic)


def test_each_partition_belongs_to_one_stream(bootstrap: str, topic: str) -> None:
    with Cluster(bootstrap) as cluster:
        cluster.create_topic(topic, 5)
    sent = [(str(number % 5), f"m{number}") for number in range(200)]
    produce(bootstrap, topic, sent)
    with ConsumerConnector(settings(bootstrap, topic)) as connector:
        streams = connector.create_message_streams({topic: 2}, StringDecoder(), StringDecoder())[topic]
        readers = [Reader(stream) for stream in streams]
        wait_until(lambda: sum(len(reader.messages) for reader in readers) >= 200)
    for reader in readers:
        reader.thread.join(30)
    partitions = [{message.partition for message in reader.messages} for reader in readers]
    assert partitions == [{0, 1, 2}, {3, 4}]
    seen = [(message.key, message.message) for reader in readers for message in reader.messages]
    assert Counter(seen) == Counter(sent)
    for reader in readers:
        for partition in range(5):
            offsets = [message.offset for message in reader.messages if message.partition == partition]
            assert offsets == sorted(offsets)


def test_the_articles_groups(bootstrap: str, topic: str) -> None:
    """Mission D8: group1 of 1 and group2 of 3 consumers, keys 1, 2, 3: group1 gets all, each of group2 one."""
    with Cluster(bootstrap) as cluster:
        cluster.create_topic(topic, 3)
    groups = [f"{topic}-1", *[f"{topic}-2"] * 3]
    connectors = [ConsumerConnector(settings(bootstrap, group)) for group in groups]
    streams = [connector.create_message_streams({topic: 1})[topic][0] for connector in connectors]
    readers = [Reader(stream) for stream in streams]
    wait_until(lambda: sorted(len(stream.owned) for stream in streams) == [1, 1, 1, 3])
    produce(bootstrap, topic, [(key, f"message {key}") for key in ("1", "2", "3")])
    wait_until(lambda: [len(reader.messages) for reader in readers] == [3, 1, 1, 1])
    for connector in connectors:
        connector.shutdown()
    assert {message.key for message in readers[0].messages} == {b"1", b"2", b"3"}
    assert {message.key for reader in readers[1:] for message in reader.messages} == {b"1", b"2", b"3"}


def test_commit_covers_returned_messages_only(bootstrap: str, topic: str) -> None:
    with Cluster(bootstrap) as cluster:
        cluster.create_topic(topic, 1)
    produce(bootstrap, topic, [("0", f"m{number}") for number in range(10)])
    with ConsumerConnector(settings(bootstrap, topic, auto_commit_enable=False)) as connector:
        stream = connector.create_message_streams({topic: 1})[topic][0]
        assert [next(stream).offset for _ in range(4)] == [0, 1, 2, 3]
        assert committed(bootstrap, topic, topic) == {}
        connector.commit_offsets()
        assert committed(bootstrap, topic, topic) == {0: 4}
        assert next(stream).offset == 4
    assert committed(bootstrap, topic, topic) == {0: 4}, "without auto-commit a shutdown commits nothing"
    with ConsumerConnector(settings(bootstrap, topic)) as connector:
        stream = connector.create_message_streams({topic: 1})[topic][0]
        assert [next(stream).offset for _ in range(3)] == [4, 5, 6]
    assert committed(bootstrap, topic, topic) == {0: 7}


def test_periodic_commit_excludes_current_message(bootstrap: str, topic: str) -> None:
    with Cluster(bootstrap) as cluster:
        cluster.create_topic(topic, 1)
    produce(bootstrap, topic, [("0", f"m{number}") for number in range(10)])
    with ConsumerConnector(settings(bootstrap, topic, auto_commit_interval_ms=20)) as connector:
        stream = connector.create_message_streams({topic: 1})[topic][0]
        assert [next(stream).offset for _ in range(3)] == [0, 1, 2]
        wait_until(lambda: committed(bootstrap, topic, topic) == {0: 2})
    assert committed(bootstrap, topic, topic) == {0: 3}


def test_no_lag_after_a_transaction_marker(bootstrap: str, topic: str) -> None:
    """Offsets 0 and 1 are messages, 2 is their commit; 3 was aborted by 4, so 5 is the next offset to read."""
    with Cluster(bootstrap) as cluster:
        cluster.create_topic(topic, 1)
    with TransactionalProducer(bootstrap, topic) as producer:
        producer.begin()
        producer.send(topic, b"m0")
        producer.send(topic, b"m1")
        producer.commit()
    with ConsumerConnector(settings(bootstrap, topic)) as connector:
        stream = connector.create_message_streams({topic: 1})[topic][0]
        assert [next(stream).offset, next(stream).offset] == [0, 1]
        connector.commit_offsets()
        assert committed(bootstrap, topic, topic) == {0: 2}, "the message after message 1 was not requested"
        stream._timeout_ms = 500

        def is_read_up_to(end: int) -> bool:
            """Return whether the end of the partition was reached, after which no message arrives."""
            with pytest.raises(ConsumerTimeout):
                next(stream)
            return stream.consumed(while_working=False) == {(topic, 0): end}

        wait_until(lambda: is_read_up_to(3))
        connector.commit_offsets()
        assert committed(bootstrap, topic, topic) == {0: 3}
        with TransactionalProducer(bootstrap, topic) as producer:
            producer.begin()
            producer.send(topic, b"never seen")
            producer.flush()
            producer.abort()
        wait_until(lambda: is_read_up_to(5))
    assert committed(bootstrap, topic, topic) == {0: 5}


@pytest.mark.parametrize("committed_offset", [99, None], ids=["beyond", "none"])
@pytest.mark.parametrize("reset", ["smallest", "largest", "fail"])
def test_missing_offset_resets_or_fails(bootstrap: str, topic: str, reset: str, committed_offset: int | None) -> None:
    """Mission C7."""
    with Cluster(bootstrap) as cluster:
        cluster.create_topic(topic, 1)
        if committed_offset is not None:
            cluster.commit_offsets(topic, topic, {0: committed_offset})
    produce(bootstrap, topic, [("0", f"m{number}") for number in range(3)])
    with ConsumerConnector(settings(bootstrap, topic, auto_offset_reset=reset)) as connector:
        stream = connector.create_message_streams({topic: 1})[topic][0]
        if reset == "fail":
            with pytest.raises(ConsumerFailed, match=r"the consumer ended: .*[Oo]ffset"):
                next(stream)
            return
        reader = Reader(stream)
        for _ in range(100):
            produce(bootstrap, topic, [("0", "late")])
            reader.thread.join(0.1)
            if reader.messages:
                break
        assert reader.messages[0].message == (b"m0" if reset == "smallest" else b"late")


def test_a_filter_picks_up_topics_made_later(bootstrap: str, topic: str) -> None:
    with Cluster(bootstrap) as cluster:
        cluster.create_topic(f"{topic}-a", 1)
        produce(bootstrap, f"{topic}-a", [("0", "early")])
        config = settings(bootstrap, topic, topic_metadata_refresh_interval_ms=50)
        with ConsumerConnector(config) as connector:
            allowed = Whitelist(f"{re.escape(topic)}-a,{re.escape(topic)}-b")
            (stream,) = connector.create_message_streams_by_filter(allowed)
            assert next(stream).message == b"early"
            for name in ("b", "c"):
                cluster.create_topic(f"{topic}-{name}", 1)
                produce(bootstrap, f"{topic}-{name}", [("0", f"late {name}")])
            seen = next(stream)
            assert (seen.topic, seen.message) == (f"{topic}-b", b"late b")
            assert {name for name, _ in stream.owned} == {f"{topic}-a", f"{topic}-b"}


def test_blacklist_follows_all_other_topics() -> None:
    with Broker() as broker, Cluster(broker.bootstrap_servers) as cluster:
        config = settings(broker.bootstrap_servers, "group", topic_metadata_refresh_interval_ms=50)
        with ConsumerConnector(config) as connector:
            streams = connector.create_message_streams_by_filter(Blacklist("secret.*"), 2)
            readers = [Reader(stream) for stream in streams]
            for name in ("clicks", "secrets", "views"):
                cluster.create_topic(name, 2)
                produce(broker.bootstrap_servers, name, [("0", f"{name} 0"), ("1", f"{name} 1")])
            wait_until(lambda: sum(len(reader.messages) for reader in readers) >= 4)
            assert [len(stream.owned) for stream in streams] == [2, 2]
        for reader in readers:
            reader.thread.join(30)
    assert {(message.topic, message.partition) for reader in readers for message in reader.messages} == {
        (name, partition) for name in ("clicks", "views") for partition in (0, 1)
    }
    assert "secrets" not in {name for stream in streams for name, _ in stream.owned}


def test_unread_stream_does_not_block_others(bootstrap: str, topic: str) -> None:
    with Cluster(bootstrap) as cluster:
        cluster.create_topic(topic, 2)
    produce(bootstrap, topic, [(str(number % 2), f"m{number}") for number in range(2000)])
    with ConsumerConnector(settings(bootstrap, topic, queued_max_messages=10)) as connector:
        idle, busy = connector.create_message_streams({topic: 2})[topic]
        assert [next(busy).offset for _ in range(1000)] == list(range(1000))
        assert [next(idle).offset for _ in range(1000)] == list(range(1000)), "nothing was lost while it waited"


def test_consumer_waits_for_a_new_topic(bootstrap: str, topic: str, caplog: pytest.LogCaptureFixture) -> None:
    config = settings(bootstrap, topic, consumer_timeout_ms=500, topic_metadata_refresh_interval_ms=50)
    with Cluster(bootstrap) as cluster, ConsumerConnector(config) as connector:
        stream = connector.create_message_streams({topic: 1})[topic][0]

        def is_reported() -> bool:
            with pytest.raises(ConsumerTimeout):
                next(stream)
            return "stay empty" in caplog.text

        wait_until(is_reported)
        assert re.search(rf"{topic}.*; its streams stay empty until it is created", caplog.text)
        assert topic not in cluster.topics()
        cluster.create_topic(topic, 1)
        produce(bootstrap, topic, [("0", "first")])
        for _ in range(60):
            with contextlib.suppress(ConsumerTimeout):
                assert next(stream).message == b"first"
                return
    raise AssertionError("not within 30 s")


def test_a_consumer_timeout_and_an_end(bootstrap: str, topic: str) -> None:
    with Cluster(bootstrap) as cluster:
        cluster.create_topic(topic, 1)
    connector = ConsumerConnector(settings(bootstrap, topic, consumer_timeout_ms=50))
    stream = connector.create_message_streams({topic: 1})[topic][0]
    with pytest.raises(ConsumerTimeout, match="no message within 50 ms"):
        next(stream)
    connector.shutdown()
    connector.shutdown()
    assert list(stream) == []
    with pytest.raises(InvalidSetting, match="was shut down"):
        connector.create_message_streams({topic: 1})


@pytest.mark.parametrize("where", ["settings", "streams", "broker", "filter"])
def test_invalid_use_is_refused(bootstrap: str, where: str) -> None:
    if where == "settings":
        with pytest.raises(InvalidSetting, match=r"did you mean auto\.offset\.reset"):
            ConsumerConnector({"metadata.broker.list": bootstrap, "auto.offset.rest": "smallest"})
        with pytest.raises(InvalidSetting, match=r"metadata\.broker\.list is required"):
            ConsumerConnector({})
        with pytest.raises(
            InvalidSetting, match=r"autocommit\.interval\.ms=5 has no effect with auto\.commit\.enable=f"
        ):
            ConsumerConnector(
                {**settings(bootstrap, "group"), "autocommit.enable": "false", "autocommit.interval.ms": 5}
            )
        with pytest.raises(InvalidSetting, match=r"librdkafka refused .*ssl\.nothing"):
            ConsumerConnector({**settings(bootstrap, "group"), "ssl.nothing": "1"})
    elif where == "streams":
        with (
            ConsumerConnector(settings(bootstrap, "group")) as connector,
            pytest.raises(InvalidSetting, match="one topic with one stream"),
        ):
            connector.create_message_streams({"topic": 0})
    elif where == "broker":
        config = settings("127.0.0.1:1", "group", socket_timeout_ms=200)
        with ConsumerConnector(config) as connector, pytest.raises(BrokerUnreachable, match=r"127\.0\.0\.1:1"):
            connector.create_message_streams({"topic": 1})
    else:
        with pytest.raises(InvalidFilter, match="not a regular expression"):
            Whitelist("clicks(")


def test_filters() -> None:
    assert [name for name in ("clicks", "views-1", "orders") if Whitelist("clicks,views-.*").allows(name)] == [
        "clicks",
        "views-1",
    ]
    assert Blacklist("clicks").allows("clicks2")
    assert not Blacklist("clicks.*").allows("clicks2")
