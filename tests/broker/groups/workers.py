"""Consumers of three client libraries as members of a group, each in a thread of its own, ended gracefully.

They commit what they have handed out whenever partitions are taken from them and when they close, so that in a group
whose members come and go without crashing each record is handed out once.
"""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

HEARTBEAT_MS = 100
SESSION_MS = 6000
NEVER_MS = 600_000
Take = Callable[[bytes, bytes | None], None]


class Worker:
    """One consumer that passes each record's value and key to `take` until `stop`."""

    def __init__(self, client: str, bootstrap: str, topic: str, group: str, assignor: str, take: Take) -> None:
        self.keys: list[bytes | None] = []
        self._take = take
        self._stopping = threading.Event()
        consume = {"librdkafka": _librdkafka, "kafka-python": _kafka_python, "aiokafka": _aiokafka}[client]
        self._thread = ThreadPoolExecutor(1)
        self._end = self._thread.submit(consume, bootstrap, topic, group, assignor, self._got, self._stopping)

    def _got(self, value: bytes, key: bytes | None) -> None:
        self.keys.append(key)
        self._take(value, key)

    @property
    def has_records(self) -> bool:
        """Raises what ended it."""
        if self._end.done():
            self._end.result()
        return bool(self.keys)

    def stop(self) -> None:
        """Leave the group; raises what went wrong."""
        self._stopping.set()
        self._end.result(30)
        self._thread.shutdown()


def _librdkafka(bootstrap: str, topic: str, group: str, assignor: str, take: Take, stopping: threading.Event) -> None:
    from confluent_kafka import Consumer

    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "partition.assignment.strategy": assignor,
            "auto.offset.reset": "earliest",
            "heartbeat.interval.ms": HEARTBEAT_MS,
            "session.timeout.ms": SESSION_MS,
            "auto.commit.interval.ms": NEVER_MS,
        }
    )
    try:
        consumer.subscribe([topic])
        while not stopping.is_set():
            message = consumer.poll(0.05)
            if message is not None:
                assert message.error() is None, message.error()
                take(message.value() or b"", message.key())
    finally:
        consumer.close()


def _kafka_python(bootstrap: str, topic: str, group: str, assignor: str, take: Take, stopping: threading.Event) -> None:
    from kafka import KafkaConsumer
    from kafka.coordinator.assignors import cooperative_sticky, range, roundrobin
    from kafka.coordinator.assignors.sticky import sticky_assignor

    assignors: dict[str, Any] = {
        "range": range.RangePartitionAssignor,
        "roundrobin": roundrobin.RoundRobinPartitionAssignor,
        "sticky": sticky_assignor.StickyPartitionAssignor,
        "cooperative-sticky": cooperative_sticky.CooperativeStickyAssignor,
    }
    consumer = KafkaConsumer(
        topic,
        bootstrap_servers=bootstrap,
        group_id=group,
        partition_assignment_strategy=[assignors[assignor]],
        auto_offset_reset="earliest",
        heartbeat_interval_ms=HEARTBEAT_MS,
        session_timeout_ms=SESSION_MS,
        auto_commit_interval_ms=NEVER_MS,
    )
    try:
        while not stopping.is_set():
            # Its poll must outlast a rebalance: an assignment that comes after the time-out is lost (kafka-python 3).
            for messages in consumer.poll(timeout_ms=1000).values():
                for message in messages:
                    take(message.value, message.key)
    finally:
        consumer.close()


def _aiokafka(bootstrap: str, topic: str, group: str, assignor: str, take: Take, stopping: threading.Event) -> None:
    asyncio.run(_consume_with_aiokafka(bootstrap, topic, group, assignor, take, stopping))


async def _consume_with_aiokafka(
    bootstrap: str, topic: str, group: str, assignor: str, take: Take, stopping: threading.Event
) -> None:
    from aiokafka import AIOKafkaConsumer
    from aiokafka.coordinator.assignors.range import RangePartitionAssignor
    from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
    from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

    assignors = {
        "range": RangePartitionAssignor,
        "roundrobin": RoundRobinPartitionAssignor,
        "sticky": StickyPartitionAssignor,
    }
    consumer = AIOKafkaConsumer(
        topic,
        bootstrap_servers=bootstrap,
        group_id=group,
        partition_assignment_strategy=(assignors[assignor],),
        auto_offset_reset="earliest",
        heartbeat_interval_ms=HEARTBEAT_MS,
        session_timeout_ms=SESSION_MS,
        auto_commit_interval_ms=NEVER_MS,
    )
    await consumer.start()
    try:
        while not stopping.is_set():
            for messages in (await consumer.getmany(timeout_ms=50)).values():
                for message in messages:
                    take(message.value, message.key)
    finally:
        await consumer.stop()
