"""The classic classes while their broker is killed and restarted, and while a group's members join and leave."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from onceflow.client.classic import (
    ConsumerConnector,
    FetchRequest,
    KeyedMessage,
    Producer,
    SimpleConsumer,
    StringDecoder,
)
from onceflow.client.cluster import LATEST, Cluster
from onceflow.client.errors import BrokerUnreachable, ConnectionLost
from onceflow.testing import BrokerProcess

TOPIC = "clicks"
PARTITIONS = range(3)


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data") as broker:
        with Cluster(broker.bootstrap) as cluster:
            cluster.create_topic(TOPIC, len(PARTITIONS))
        yield broker


class Member:
    """A connector with one stream, read in a thread; `texts` are the messages it received."""

    def __init__(self, broker: BrokerProcess) -> None:
        config = {
            "metadata.broker.list": broker.bootstrap,
            "auto.offset.reset": "smallest",
            "session.timeout.ms": 6_000,
        }
        self.connector = ConsumerConnector(config)
        (self.stream,) = self.connector.create_message_streams({TOPIC: 1}, value_decoder=StringDecoder())[TOPIC]
        self.texts: list[str] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        self.texts.extend(str(message.message) for message in self.stream)

    def end(self) -> None:
        self.connector.shutdown()
        self._thread.join()


def wait_until(holds: Callable[[], bool], what: str) -> None:
    pause = threading.Event()
    for _ in range(1200):
        if holds():
            return
        pause.wait(0.05)
    raise AssertionError(f"not within 60 s: {what}")


def send(producer: Producer, numbers: range) -> list[str]:
    texts = [f"m{number}" for number in numbers]
    producer.send([KeyedMessage(TOPIC, text, key=text) for text in texts])
    return texts


def test_clients_continue_after_a_broker_kill(own_broker: BrokerProcess) -> None:
    config = {"metadata.broker.list": own_broker.bootstrap, "producer.type": "async", "queue.time": 10}
    first = Member(own_broker)
    sent: list[str] = []
    with Producer(config | {"serializer.class": "StringEncoder"}) as producer:
        sent += send(producer, range(100))
        wait_until(lambda: len(first.texts) == 100, "the first messages")
        own_broker.kill()
        sent += send(producer, range(100, 200))
        own_broker.start()
        second = Member(own_broker)
        wait_until(lambda: bool(second.stream.owned) and bool(first.stream.owned), "the partitions are shared")
        sent += send(producer, range(200, 300))
    wait_until(lambda: set(first.texts) | set(second.texts) == set(sent), "every message, by one of the two")
    first.end()
    sent += (more := [f"m{number}" for number in range(300, 330)])
    with Producer(config | {"serializer.class": "StringEncoder"}) as producer:
        send(producer, range(300, 330))
    wait_until(lambda: set(more) <= set(second.texts), "the one that is left has all partitions")
    second.end()
    with Cluster(own_broker.bootstrap) as cluster:
        ends = {part: at.offset for part, at in cluster.list_offsets(TOPIC, dict.fromkeys(PARTITIONS, LATEST)).items()}
        assert sum(ends.values()) == len(sent), "none was written twice"
        assert cluster.committed_offsets("default", TOPIC) == ends


def test_a_simple_consumer_connects_again(own_broker: BrokerProcess) -> None:
    with Producer({"metadata.broker.list": own_broker.bootstrap}) as producer:
        producer.send(KeyedMessage(TOPIC, b"x", key=b"k"))
    with SimpleConsumer("127.0.0.1", own_broker.port, wait_ms=0) as consumer:

        def read() -> list[bytes | None]:
            wanted = [FetchRequest(TOPIC, partition, 0) for partition in PARTITIONS]
            return [message.message for messages in consumer.multifetch(wanted) for message in messages]

        assert read() == [b"x"]
        own_broker.kill()
        with pytest.raises(BrokerUnreachable):
            read()
        own_broker.start()
        assert read() == [b"x"]
        own_broker.kill()
        own_broker.start()
        assert sum(consumer.get_offsets_before(TOPIC, part, LATEST, 1)[0] for part in PARTITIONS) == 1
    with pytest.raises(ConnectionLost, match="was closed"):
        read()
