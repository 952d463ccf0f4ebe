"""Consumers of a test on the registry of a cluster in this process, and another program that looks at it."""

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from confluent_kafka import Producer

from onceflow.client.classic import Blacklist, ConsumerConnector, Whitelist
from onceflow.client.classic.streams import MessageStream
from onceflow.testing import Cluster
from onceflow.testing.registry import MemoryRegistry, MemorySession
from onceflow.wire import TopicPartition
from onceflow.zookeeper.session import Put

TOPIC = "clicks"
PARTITIONS = 4
WITHIN_S = 240
"""Limit, with other tests keeping processors and disk busy."""


class Tool:
    """Another program that reads and writes the registry."""

    def __init__(self, registry: MemoryRegistry) -> None:
        self._registry = registry
        self.session = registry.session()
        self.session.open()

    def names(self, path: str) -> list[str]:
        (names,) = self.session.children_of_all([path])
        return names or []

    def text(self, path: str) -> str | None:
        value = self._registry.value(path)
        return None if value is None else value.decode()

    def write(self, path: str, value: str) -> None:
        self.session.ensure(path.rpartition("/")[0])
        self.session.commit([Put(path, value.encode())])

    def owners(self, group: str, topic: str = TOPIC) -> dict[int, str | None]:
        path = f"/consumers/{group}/owners/{topic}"
        return {int(name): self.text(f"{path}/{name}") for name in self.names(path)}

    def offsets(self, group: str, topic: str = TOPIC) -> dict[int, int]:
        path = f"/consumers/{group}/offsets/{topic}"
        return {int(name): int(self.text(f"{path}/{name}") or -1) for name in self.names(path)}


class Member:
    """A consumer whose streams are read in threads; each message counts as processed after `process`."""

    def __init__(
        self,
        registry: MemoryRegistry,
        group: str,
        process: Callable[[], object],
        on_message: Callable[[TopicPartition, int], object] = lambda _place, _offset: None,
        **more: Any,
    ) -> None:
        self.session: MemorySession = registry.session()
        named = {name.replace("_", "."): value for name, value in more.items()}
        config = {
            "zookeeper.connect": "in this process",
            "group.id": group,
            "auto.offset.reset": "smallest",
            # A reader that waits for a processor is not passed over.
            "rebalance.backoff.ms": 60_000,
            "offsets.channel.backoff.ms": 50,
            "offsets.commit.max.retries": 1_000,
            **named,
        }
        self.connector = ConsumerConnector(config, session=self.session)
        self.read: list[tuple[str, int, int]] = []
        self.errors: list[Exception] = []
        self._process = process
        self._on_message = on_message
        self._is_killed = False
        self._threads: list[threading.Thread] = []

    def start(self, streams: int = 1, topic_filter: Whitelist | Blacklist | None = None) -> "Member":
        if topic_filter is None:
            self.streams = self.connector.create_message_streams({TOPIC: streams})[TOPIC]
        else:
            self.streams = self.connector.create_message_streams_by_filter(topic_filter, streams)
        self._threads = [threading.Thread(target=self._run, args=(stream,), daemon=True) for stream in self.streams]
        for thread in self._threads:
            thread.start()
        return self

    def _run(self, stream: MessageStream) -> None:
        try:
            for message in stream:
                if self._is_killed:
                    return
                self._on_message((message.topic, message.partition), message.offset)
                self.read.append((message.topic, message.partition, message.offset))
                self._process()
        except Exception as error:  # noqa: BLE001 - the test looks at it
            self.errors.append(error)

    @property
    def owned(self) -> set[int]:
        return {partition for stream in self.streams for _, partition in stream.owned}

    def kill(self) -> None:
        """End the session and read nothing more, without a commit."""
        self._is_killed = True
        self.session.disconnect()

    def stop(self) -> None:
        self.connector.shutdown()
        for thread in self._threads:
            thread.join(WITHIN_S)


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def send(brokers: Cluster, count: int, topic: str = TOPIC, partitions: int = PARTITIONS) -> None:
    """Send that many messages to each partition."""
    producer = Producer({"bootstrap.servers": brokers.bootstrap_servers})
    for number in range(count):
        for partition in range(partitions):
            producer.produce(topic, str(number).encode(), partition=partition)
    assert producer.flush(WITHIN_S) == 0


Read = tuple[int, int, int]
"""Number of a member, and partition and offset of a message that it has read."""


def check_reads(reads: Iterable[Read], broken: Collection[int], ends: Mapping[int, int]) -> int:
    """Check that a group read each partition in order, and a message twice only if a member broke.

    Returns the number of repeated messages.
    """
    readers: dict[tuple[int, int], set[int]] = defaultdict(set)
    expected = dict.fromkeys(ends, 0)
    repeated = 0
    for number, partition, offset in reads:
        assert offset <= expected[partition], f"{partition}: {offset} was read before {expected[partition]}"
        if offset < expected[partition]:
            assert {*broken} & {number, *readers[partition, offset]}, f"{partition}: {offset} was read twice"
            repeated += 1
        expected[partition] = max(expected[partition], offset + 1)
        readers[partition, offset].add(number)
    assert expected == ends
    return repeated
