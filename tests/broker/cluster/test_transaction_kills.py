"""Brokers killed while they coordinate transactions or lead their partitions: each transaction is whole, and once."""

import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from onceflow.broker.topics.internal import partition_of
from onceflow.broker.topics.topics import GROUP_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC
from onceflow.testing import BrokerProcess
from tests.broker.cluster import copier
from tests.broker.cluster.conftest import Tree
from tests.broker.cluster.copier import COPY, INPUT
from tests.broker.cluster.processes import crash
from tests.campaigns import RecordProperty

BROKERS = (1, 2, 3)
TOPIC = "t"
PARTITIONS = 3
STATE_PARTITIONS = 5
TRANSACTIONAL_IDS = ("ann", "anna")
SEED = 20261126
KILLS = 30
COMMITS_BETWEEN = 10
COPIED_BETWEEN = 60
HANG_SECONDS = 15
"""librdkafka 2.16 does not ask for another group coordinator after Metadata has dropped the one that it knows, and its
transaction never ends (its issue 5511). kafka-python 3.0.12 drops a request that it cannot send to the coordinator."""
ABORTED_EVERY = 5


class Writer:
    """A transactional producer: each of its transactions has one number, which it writes to every partition.

    After an error it starts again, which settles the outcome of its last transaction; its number is not used again.
    """

    def __init__(self, bootstrap: str, transactional_id: str) -> None:
        self.transactional_id = transactional_id
        self.committed: list[bytes] = []
        self.aborted: list[bytes] = []
        self.unclear: list[bytes] = []
        self._bootstrap = bootstrap
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _new_producer(self) -> Producer:
        while True:
            producer = Producer(
                {
                    "bootstrap.servers": self._bootstrap,
                    "transactional.id": self.transactional_id,
                    "linger.ms": 0,
                    "reconnect.backoff.max.ms": 500,
                }
            )
            try:
                producer.init_transactions(60)
            except KafkaException:
                continue
            return producer

    def _run(self) -> None:
        producer = self._new_producer()
        number = 0
        while not self._stop.is_set():
            number += 1
            value = f"{self.transactional_id} {number:06d}".encode()
            is_aborted = number % ABORTED_EVERY == 0
            try:
                self._transact(producer, value, commit=not is_aborted)
            except KafkaException:
                (self.aborted if is_aborted else self.unclear).append(value)
                producer = self._new_producer()
            else:
                (self.aborted if is_aborted else self.committed).append(value)

    def _transact(self, producer: Producer, value: bytes, *, commit: bool) -> None:
        failures: list[Any] = []
        producer.begin_transaction()
        for partition in range(PARTITIONS):
            producer.produce(
                TOPIC,
                value,
                partition=partition,
                on_delivery=lambda error, _m: failures.append(error) if error else None,
            )
        producer.flush(60)
        if any(failures):
            raise KafkaException(next(filter(None, failures)))
        if commit:
            producer.commit_transaction(60)
        else:
            producer.abort_transaction(60)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(150)
        assert not self._thread.is_alive()


class Copies:
    """A copier in a process of its own, which continues from the committed offsets after an error or a kill."""

    def __init__(self, bootstrap: str) -> None:
        self.copied = 0
        """Number of records up to the last committed offsets."""
        self.restarts = 0
        self.hangs = 0
        self._bootstrap = bootstrap
        self._is_stopped = False
        self._progress_s = 0.0
        self._process = self._new_process()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _new_process(self) -> subprocess.Popen[str]:
        self._progress_s = time.monotonic()
        return subprocess.Popen(
            [sys.executable, "-m", copier.__name__, self._bootstrap],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def _run(self) -> None:
        while True:
            with self._process as process:
                assert process.stdout is not None
                for line in process.stdout:
                    if int(line) != self.copied:
                        self.copied, self._progress_s = int(line), time.monotonic()
            if self._is_stopped:
                return
            self.restarts += 1
            self._process = self._new_process()

    def await_count(self, tree: Tree, count: int) -> None:
        """Wait until that number of records is copied; kill a process that hangs."""

        def is_copied() -> bool:
            if self.copied < count and time.monotonic() - self._progress_s > HANG_SECONDS:
                self.hangs += 1
                self._progress_s = time.monotonic()
                self._process.kill()
            return self.copied >= count

        tree.await_that(is_copied)

    def stop(self) -> None:
        """End the process and wait for it."""
        self._is_stopped = True
        self._process.kill()
        self._thread.join(60)
        assert not self._thread.is_alive()


@contextmanager
def brokers_of(tree: Tree, directory: Path) -> Iterator[dict[int, BrokerProcess]]:
    options = {
        "zookeeper-connect": tree.connect,
        "zookeeper-session-timeout-ms": "2000",
        "min-insync-replicas": "2",
        "transaction-state-log-num-partitions": str(STATE_PARTITIONS),
        "offsets-topic-num-partitions": str(STATE_PARTITIONS),
    }
    given = [word for name, value in options.items() for word in (f"--{name}", value)]
    brokers = {
        broker_id: BrokerProcess(directory / str(broker_id), 0, *given, "--broker-id", str(broker_id))
        for broker_id in BROKERS
    }
    with ExitStack() as stack:
        for broker in brokers.values():
            stack.enter_context(broker)
        yield brokers


def read_committed(bootstrap: str, partition: int, topic: str = TOPIC) -> list[bytes]:
    """Read up to the partition's end, which no open transaction may hide."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    place = TopicPartition(topic, partition, 0)
    _start, end = consumer.get_watermark_offsets(place, timeout=60)
    consumer.assign([place])
    values: list[bytes] = []
    deadline = time.monotonic() + 60
    while True:
        messages = consumer.consume(1000, 0.1)
        assert time.monotonic() < deadline, f"partition {partition}: a transaction is open below {end}"
        values += [message.value() or b"" for message in messages if message.error() is None]
        if any(message.error() is not None and (message.offset() or 0) >= end for message in messages):
            consumer.close()
            return values


class Cluster:
    """Three brokers, and who of them leads what."""

    def __init__(self, tree: Tree, brokers: dict[int, BrokerProcess]) -> None:
        self._tree = tree
        self._brokers = brokers
        self.bootstrap = ",".join(broker.bootstrap for broker in brokers.values())

    def _state(self, topic: str, partition: int) -> Any:
        return self._tree.json(f"/brokers/topics/{topic}/partitions/{partition}/state")

    def coordinator(self, transactional_id: str) -> int:
        state = self._state(TRANSACTION_STATE_TOPIC, partition_of(transactional_id, STATE_PARTITIONS))
        return int(state["leader"])

    def leader(self, partition: int) -> int:
        return int(self._state(TOPIC, partition)["leader"])

    def _are_replicas_full(self) -> bool:
        places = [(TOPIC, index) for index in range(PARTITIONS)]
        places += [(TRANSACTION_STATE_TOPIC, index) for index in range(STATE_PARTITIONS)]
        return all(len(self._state(*place)["isr"]) == len(BROKERS) for place in places)

    def await_replicas(self) -> None:
        self._tree.await_that(self._are_replicas_full)

    def crash(self, broker_id: int, chance: random.Random) -> None:
        crash(self._brokers[broker_id], chance)

    def start(self, broker_id: int) -> None:
        self._brokers[broker_id].start()

    def group_coordinator(self, group_id: str) -> int:
        return int(self._state(GROUP_OFFSETS_TOPIC, partition_of(group_id, STATE_PARTITIONS))["leader"])

    def victims(self, chance: random.Random) -> set[int]:
        """Return a coordinator, a partition's leader, or both."""
        coordinator = self.coordinator(chance.choice(TRANSACTIONAL_IDS))
        leader = self.leader(chance.randrange(PARTITIONS))
        return chance.choice([{coordinator}, {leader}, {coordinator, leader}])

    def victims_of_copy(self, chance: random.Random) -> set[int]:
        """Return the coordinator of the copy's transactions, that of its group, or a partition's leader."""
        return {
            chance.choice(
                [self.coordinator(COPY), self.group_coordinator(COPY), self.leader(chance.randrange(PARTITIONS))]
            )
        }


def kill_brokers(tree: Tree, directory: Path, kills: int, seed: int) -> dict[str, int]:
    """Kill coordinators and leaders again and again; return the numbers of transactions by their outcome."""
    chance = random.Random(seed)
    with brokers_of(tree, directory) as brokers:
        cluster = Cluster(tree, brokers)
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        (created,) = admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3)]).values()
        created.result(30)
        writers = [Writer(cluster.bootstrap, transactional_id) for transactional_id in TRANSACTIONAL_IDS]

        def count() -> int:
            return min(len(writer.committed) for writer in writers)

        def await_more_commits() -> None:
            wanted = count() + COMMITS_BETWEEN
            tree.await_that(lambda: count() >= wanted)

        for _ in range(kills):
            await_more_commits()
            victims = cluster.victims(chance)
            for victim in victims:
                cluster.crash(victim, chance)
            if len(victims) == 1:
                await_more_commits()
            for victim in victims:
                cluster.start(victim)
            cluster.await_replicas()
        await_more_commits()
        for writer in writers:
            writer.stop()
        committed = [value for writer in writers for value in writer.committed]
        unclear = {value for writer in writers for value in writer.unclear}
        by_partition = [read_committed(cluster.bootstrap, partition) for partition in range(PARTITIONS)]
        for values in by_partition:
            assert sorted(values) == sorted(by_partition[0]), "a transaction is in some partitions only"
            assert len(set(values)) == len(values)
            assert set(values) - unclear == set(committed)
        return {"committed": len(committed), "unclear": len(unclear)}


def test_killed_coordinators_lose_no_transaction(tree: Tree, tmp_path: Path) -> None:
    assert kill_brokers(tree, tmp_path, 1, SEED)["committed"] >= 2 * COMMITS_BETWEEN


@pytest.mark.campaign
def test_many_killed_coordinators(tree: Tree, tmp_path: Path, record_property: RecordProperty) -> None:
    """Acknowledged commits are read once, in all partitions, after kills of coordinators, leaders and both; no aborted
    or half transaction is read, and none stays open."""
    for name, count in kill_brokers(tree, tmp_path, KILLS, SEED).items():
        record_property(name, count)
    record_property("kills", KILLS)


class Input:
    """The topic to copy: values sent to the partitions in turn."""

    def __init__(self, bootstrap: str) -> None:
        self.values: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "reconnect.backoff.max.ms": 500}
        )

    @property
    def count(self) -> int:
        return sum(map(len, self.values))

    def add(self, count: int) -> None:
        for number in range(self.count, self.count + count):
            value = b"%06d" % number
            self._producer.produce(INPUT, value, partition=number % PARTITIONS)
            self.values[number % PARTITIONS].append(value)
        assert self._producer.flush(60) == 0


def copy_while_brokers_die(tree: Tree, directory: Path, kills: int, seed: int) -> dict[str, int]:
    """Read, process and write while brokers are killed; return the number of records, and of the copier's restarts."""
    chance = random.Random(seed)
    with brokers_of(tree, directory) as brokers:
        cluster = Cluster(tree, brokers)
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        for created in admin.create_topics([NewTopic(name, PARTITIONS, 3) for name in (TOPIC, INPUT)]).values():
            created.result(30)
        source = Input(cluster.bootstrap)
        copies = Copies(cluster.bootstrap)

        def copy_more() -> None:
            source.add(COPIED_BETWEEN)
            copies.await_count(tree, source.count)

        try:
            copy_more()
            for _ in range(kills):
                source.add(COPIED_BETWEEN)
                (victim,) = cluster.victims_of_copy(chance)
                cluster.crash(victim, chance)
                copy_more()
                cluster.start(victim)
                cluster.await_replicas()
            copy_more()
        finally:
            copies.stop()
        for partition, expected in enumerate(source.values):
            assert read_committed(cluster.bootstrap, partition) == expected
        return {"records": source.count, "restarts": copies.restarts, "hangs": copies.hangs}


@pytest.mark.campaign
def test_copy_survives_killed_coordinators(tree: Tree, tmp_path: Path, record_property: RecordProperty) -> None:
    """Each record is copied once and in order, with offsets in transactions, while brokers are killed: the coordinators
    of the transactions and of the group, and leaders of partitions."""
    for name, count in copy_while_brokers_die(tree, tmp_path, KILLS, SEED).items():
        record_property(name, count)
    record_property("kills", KILLS)
