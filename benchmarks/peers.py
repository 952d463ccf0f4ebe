"""Our broker and Apache Kafka, under the same conditions.

The first touch of a virtual machine's memory is slow, so memory is touched before a measurement. Kafka's JVM is warmed
up, and the topics of a run are deleted at its end.
"""

import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    OffsetSpec,
)

from benchmarks import kafka
from onceflow.testing import BrokerProcess

NEVER = str(10**12)
"""Number of records without a sync; with the default, the largest number, ours syncs before each acknowledgement."""
OURS = "onceflow"


@dataclass(frozen=True)
class Peer:
    """Running broker, with topic configs under which acks=all waits for fsync, or does not."""

    name: str
    bootstrap: str
    pid: int
    synced: Mapping[str, str] = field(default_factory=dict)
    unsynced: Mapping[str, str] = field(default_factory=dict)
    clients: Mapping[str, str] = field(default_factory=dict)
    """Settings of librdkafka's clients that produce and consume, if they use another listener."""
    java_clients: Mapping[str, str] = field(default_factory=dict)
    """The same of Java's."""

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of these clients."""
        return {"bootstrap.servers": self.bootstrap, **self.clients}

    def cpu_seconds(self) -> float:
        """Return user and kernel time of the broker's process since its start."""
        # The clock that clock_getcpuclockid(3) names for a process; /proc counts in hundredths of a second only.
        return time.clock_gettime(~self.pid << 3 | 2)


@contextmanager
def peers(directory: Path) -> Iterator[list[Peer]]:
    """Run ours, and Kafka if its jars are found."""
    with ExitStack() as exits:
        ours = exits.enter_context(BrokerProcess(directory / "onceflow"))
        running = [Peer(OURS, ours.bootstrap, ours.pid, unsynced={"flush.messages": NEVER})]
        classpath = kafka.jars()
        if classpath is None:
            print("no Maven here, or it found no Kafka: ours alone")
        else:
            theirs = exits.enter_context(kafka.KafkaProcess(directory / "kafka", classpath))
            running.append(Peer(theirs.name, theirs.bootstrap, theirs.pid, synced={"flush.messages": "1"}))
        yield running


@contextmanager
def fresh_topic(peer: Peer, name: str, config: Mapping[str, str]) -> Iterator[str]:
    """Create a topic with one partition, and delete it afterwards."""
    admin = AdminClient({"bootstrap.servers": peer.bootstrap})
    settings = {"file.delete.delay.ms": "0", **config}
    admin.create_topics([NewTopic(name, 1, 1, config=settings)])[name].result(30)
    wait_for_leader(admin, name)
    try:
        yield name
    finally:
        admin.delete_topics([name])[name].result(30)


def wait_for_leader(admin: AdminClient, topic: str) -> None:
    """Wait until a topic accepts writes: Kafka responds to CreateTopics earlier."""
    place = TopicPartition(topic, 0)
    deadline = time.monotonic() + 30
    while True:
        try:
            admin.list_offsets({place: OffsetSpec.latest()})[place].result(30)
            return
        except KafkaException:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def configure_topic(peer: Peer, topic: str, config: Mapping[str, str]) -> None:
    """Set configs of an existing topic."""
    entries = [ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in config.items()]
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=entries)
    admin = AdminClient({"bootstrap.servers": peer.bootstrap})
    admin.incremental_alter_configs([resource])[resource].result(30)


def touch_memory(size_bytes: int = 3 << 29) -> None:
    """Write and free page-cache-like memory once, so that no peer pays for the machine's first touch."""
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as file:
        block = bytes(1 << 20)
        for _ in range(size_bytes >> 20):
            file.write(block)
