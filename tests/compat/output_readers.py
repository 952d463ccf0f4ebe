"""Readers of a topic with a value for each (partition, offset): Kafka's ConsoleConsumer and librdkafka's consumer."""

import threading
import time
from collections import Counter
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from tests.compat.copiers import END_SECONDS, JavaTool

Position = tuple[int, int]
Read = list[tuple[Position, int]]


class ConsoleReader(JavaTool):
    """ConsoleConsumer in a group of its own, reading committed records while they are written."""

    def __init__(self, bootstrap: str, topic: str, jars: Path, directory: Path) -> None:
        shown = [word for name in ("partition", "offset") for word in ("--property", f"print.{name}=true")]
        where = ("--bootstrap-server", bootstrap, "--topic", topic, "--group", "concurrent", "--from-beginning")
        arguments = (*where, "--isolation-level", "read_committed", *shown)
        super().__init__("concurrent", jars, directory, "consumer.ConsoleConsumer", *arguments)

    @property
    def count(self) -> int:
        return self.printed.count(b"\n")

    @property
    def read(self) -> Read:
        """Return the records in the order of their arrival."""
        whole, _, _ = self.printed.rpartition(b"\n")
        rows = [line.split("\t") for line in whole.decode().splitlines()]
        return [((int(row[0].partition(":")[2]), int(row[1].partition(":")[2])), int(row[2])) for row in rows]


def open_consumer(bootstrap: str, topic: str, partitions: int, isolation: str) -> Consumer:
    """Read from the start of every partition to its known end."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"reader-{isolation}",
            "isolation.level": isolation,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "reconnect.backoff.max.ms": 500,
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
    return consumer


class UncommittedReader(threading.Thread):
    """Reads everything while it is written, through every restart of the broker."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        super().__init__()
        self.read: Read = []
        self.error: KafkaError | None = None
        self._consumer = open_consumer(bootstrap, topic, partitions, "read_uncommitted")
        self._end = threading.Event()

    def run(self) -> None:
        while not self._end.is_set():
            self._take(self._consumer.consume(1000, timeout=0.01))
        self._consumer.close()

    def _take(self, messages: list[Message]) -> None:
        for message in messages:
            error = message.error()
            if error is None:
                self.read.append(((message.partition() or 0, message.offset() or 0), int(message.value() or b"")))
            elif error.code() not in (KafkaError._PARTITION_EOF, KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN):
                self.error = error

    def lacks(self, everything: Read) -> str:
        """Return the number of missing records, the first and the last of them, and the errors."""
        missing = sorted(set(everything) - set(self.read))
        return f"{len(missing)} records were not read, {missing[:1]} to {missing[-1:]}; {self.error}"

    def finish(self) -> Read:
        """Return the records; the caller has checked that it has all."""
        self._end.set()
        self.join()
        assert self.error is None, self.error
        return self.read


def read_to_end(bootstrap: str, topic: str, partitions: int, isolation: str) -> tuple[Read, dict[int, int]]:
    """Return all records of this isolation level, and the end of each partition."""
    consumer = open_consumer(bootstrap, topic, partitions, isolation)
    read: Read = []
    ends: dict[int, int] = {}
    try:
        deadline = time.monotonic() + END_SECONDS
        while len(ends) < partitions:
            assert time.monotonic() < deadline, f"{isolation}: of {partitions} partitions only {sorted(ends)} ended"
            for message in consumer.consume(1000, timeout=0.1):
                error = message.error()
                if error is None:
                    read.append(((message.partition() or 0, message.offset() or 0), int(message.value() or b"")))
                    continue
                assert error.code() == KafkaError._PARTITION_EOF, error
                ends[message.partition() or 0] = message.offset() or 0
    finally:
        consumer.close()
    return read, ends


def by_partition(read: Read) -> dict[int, list[int]]:
    """Return each partition's values in order, after a check that offsets only increase."""
    values: dict[int, list[int]] = {}
    last: dict[int, int] = {}
    for (partition, offset), value in read:
        assert offset > last.get(partition, -1), (partition, last[partition], offset)
        last[partition] = offset
        values.setdefault(partition, []).append(value)
    return values


def once(read: Read) -> Read:
    """Return the records without those that were read again at their position, after a check that they are the same.

    A consumer reads again what it had not committed when it lost its place in the group: automatic commits are at
    least once.
    """
    values: dict[Position, int] = {}
    for position, value in read:
        assert values.setdefault(position, value) == value, (position, values[position], value)
    return list(values.items())


def twice(read: Read) -> list[int]:
    """Return repeated values."""
    return [value for value, count in Counter(value for _, value in read).items() if count > 1]
