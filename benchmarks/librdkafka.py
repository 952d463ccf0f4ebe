"""Work through librdkafka (confluent-kafka), the client of most programs in Python."""

import statistics
import threading
import time
from collections.abc import Mapping
from types import MappingProxyType

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from benchmarks.peers import Peer, configure_topic

NO_PAUSE = MappingProxyType({"fetch.queue.backoff.ms": 1})
"""librdkafka asks for nothing for a second once its queue holds 100,000 records, however empty it is by then."""
OWN_PAUSE: Mapping[str, int] = MappingProxyType({})
"""The client's default, `fetch.queue.backoff.ms=1000`."""
TRANSACTION_STATE = "__transaction_state"


def value_of(size_bytes: int) -> bytes:
    """Bytes that a codec can compress, but not to nothing."""
    return (bytes(range(256)) * (size_bytes // 256 + 1))[:size_bytes]


def produce(peer: Peer, topic: str, size_bytes: int, count: int, codec: str = "none") -> tuple[float]:
    """Records per second until the last acknowledgement."""
    producer = Producer(
        {
            **peer.settings,
            "acks": "all",
            "linger.ms": 5,
            "queue.buffering.max.messages": 2_000_000,
            "compression.type": codec,
        }
    )
    value = value_of(size_bytes)
    started = time.perf_counter()
    for number in range(count):
        producer.produce(topic, value, partition=0)
        if number % 1000 == 0:
            producer.poll(0)
    left = producer.flush(120)
    assert left == 0, f"{left} records were not acknowledged"
    return (count / (time.perf_counter() - started),)


def consume(
    peer: Peer, topic: str, count: int, settings: Mapping[str, int] = NO_PAUSE, offset: int = OFFSET_BEGINNING
) -> float:
    """Records per second until the last record is in the program."""
    consumer = Consumer({**peer.settings, "group.id": "benchmark", "enable.auto.commit": False, **settings})
    # Or the search for the partition's leader, which librdkafka does once a second, is most of what is measured.
    consumer.list_topics(topic, 30)
    consumer.assign([TopicPartition(topic, 0, offset)])
    seen = 0
    started = time.perf_counter()
    while seen < count:
        messages = consumer.consume(10_000, timeout=30)
        assert messages, f"only {seen} of {count} records came"
        seen += sum(1 for message in messages if message.error() is None)
    rate = count / (time.perf_counter() - started)
    consumer.close()
    return rate


def produce_and_consume(
    peer: Peer, topic: str, size_bytes: int, count: int, settings: Mapping[str, int] = NO_PAUSE
) -> tuple[float]:
    """Records per second of reading what was produced a moment ago."""
    produce(peer, topic, size_bytes, count)
    return (consume(peer, topic, count, settings),)


def three_and_three(peer: Peer, topic: str, size_bytes: int, count: int) -> tuple[float]:
    """Records per second that three producers write while three consumers each read all of them."""
    work = [threading.Thread(target=produce, args=(peer, topic, size_bytes, count)) for _ in range(3)]
    rates: list[float] = []
    work += [threading.Thread(target=lambda: rates.append(consume(peer, topic, 3 * count))) for _ in range(3)]
    started = time.perf_counter()
    for thread in work:
        thread.start()
    for thread in work:
        thread.join()
    assert len(rates) == 3, "a consumer did not come to the end"
    return (3 * count / (time.perf_counter() - started),)


def end_to_end(
    peer: Peer, topic: str, rate: int, seconds: float, offset: int = OFFSET_BEGINNING
) -> tuple[float, float]:
    """Median and 99th percentile, in ms, from `produce` to the consumer's hand, at `rate` records per second."""
    count = int(rate * seconds)
    consumer = Consumer(
        {
            "bootstrap.servers": peer.bootstrap,
            "group.id": "benchmark",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 500,
        }
    )
    consumer.assign([TopicPartition(topic, 0, offset)])
    taken: list[float] = []

    def read() -> None:
        while len(taken) < count:
            message = consumer.poll(10)
            assert message is not None, f"only {len(taken)} of {count} records came"
            if message.error() is None:
                taken.append(1000 * (time.perf_counter() - float(message.value() or 0)))

    reader = threading.Thread(target=read)
    reader.start()
    producer = Producer({"bootstrap.servers": peer.bootstrap, "acks": "all", "linger.ms": 0})
    begin = time.perf_counter()
    for number in range(count):
        time.sleep(max(0.0, begin + number / rate - time.perf_counter()))
        producer.produce(topic, repr(time.perf_counter()).encode(), partition=0)
        producer.poll(0)
    producer.flush(30)
    reader.join()
    consumer.close()
    settled = taken[len(taken) // 5 :]
    return statistics.median(settled), statistics.quantiles(settled, n=100)[98]


def transactions(peer: Peer, topic: str, count: int) -> tuple[float]:
    """Transactions of 100 records of 100 bytes per second, one after the other."""
    producer = Producer({"bootstrap.servers": peer.bootstrap, "transactional.id": topic, "linger.ms": 1})
    producer.init_transactions(30)
    if peer.synced:
        configure_topic(peer, TRANSACTION_STATE, peer.synced)
    value = value_of(100)
    started = time.perf_counter()
    for _ in range(count):
        producer.begin_transaction()
        for _ in range(100):
            producer.produce(topic, value, partition=0)
        producer.commit_transaction(30)
    return (count / (time.perf_counter() - started),)
