"""Copies a topic in transactions that include its group's offsets: `python -m tests.broker.cluster.copier BOOTSTRAP`.

After an error it continues from the committed offsets. It prints the number of records up to the last ones after each
commit, and ends at the end of its input.
"""

import sys
import threading
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

INPUT = "input"
OUTPUT = "t"
PARTITIONS = 3
COPY = "copy"
"""Transactional id and group."""
COPIED_AT_ONCE = 10


def copy(bootstrap: str, stop: threading.Event) -> None:
    """Copy until the stop. Raises KafkaException."""
    settings = {"bootstrap.servers": bootstrap, "reconnect.backoff.max.ms": 500}
    producer = Producer({**settings, "transactional.id": COPY, "linger.ms": 0})
    producer.init_transactions(60)
    consumer = Consumer(
        {**settings, "group.id": COPY, "enable.auto.commit": False, "isolation.level": "read_committed"}
    )
    places = [TopicPartition(INPUT, partition) for partition in range(PARTITIONS)]
    starts = [
        TopicPartition(INPUT, place.partition, max(place.offset, 0)) for place in consumer.committed(places, timeout=60)
    ]
    consumer.assign(starts)
    copied = sum(start.offset for start in starts)
    while not stop.is_set():
        print(copied, flush=True)
        messages = consumer.consume(COPIED_AT_ONCE, 0.1)
        if errors := [error for message in messages if (error := message.error()) is not None]:
            raise KafkaException(errors[0])
        if messages:
            _copy_some(producer, consumer, messages)
            copied += len(messages)


def _copy_some(producer: Producer, consumer: Consumer, messages: list[Any]) -> None:
    producer.begin_transaction()
    offsets: dict[int, int] = {}
    for message in messages:
        producer.produce(OUTPUT, message.value(), partition=message.partition())
        offsets[message.partition()] = message.offset() + 1
    positions = [TopicPartition(INPUT, partition, offset) for partition, offset in offsets.items()]
    producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata(), 60)
    producer.commit_transaction(60)


def main() -> None:
    """Copy until the end of standard input, or an error."""
    stop = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), stop.set()), daemon=True).start()
    copy(sys.argv[1], stop)


if __name__ == "__main__":
    main()
