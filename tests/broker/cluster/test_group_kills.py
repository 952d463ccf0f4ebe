"""Brokers killed while they coordinate groups: no acknowledged offset is lost or goes back."""

import random
import threading
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from onceflow.broker.topics.internal import partition_of
from onceflow.testing import BrokerProcess
from tests.broker.cluster.conftest import Tree
from tests.broker.cluster.processes import crash
from tests.broker.cluster.test_replication_kills import brokers_of
from tests.campaigns import RecordProperty

PARTITIONS = 3
GROUPS = {partition_of(f"g{number}", PARTITIONS): f"g{number}" for number in range(10)}
"""A group in each partition."""
KILLS = 30
SEED = 20261126
COMMITS_BETWEEN = 5


class Committer:
    """One group: it commits the next offset again and again, and reads each back."""

    def __init__(self, bootstrap: str, group: str) -> None:
        self.acknowledged = 0
        self.count = 0
        self.wrong: list[str] = []
        self._attempted = 0
        self._consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "reconnect.backoff.max.ms": 500})
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(0.01):
            self._attempted += 1
            try:
                self._consumer.commit(offsets=[TopicPartition("t", 0, self._attempted)], asynchronous=False)
                self.acknowledged = self._attempted
                self.count += 1
                self.check()
            except KafkaException:
                # The outcome is unknown, and the next offset is larger.
                continue

    def check(self) -> None:
        (place,) = self._consumer.committed([TopicPartition("t", 0)], timeout=10)
        if not self.acknowledged <= place.offset <= self._attempted:
            self.wrong.append(f"{place.offset} is not {self.acknowledged} to {self._attempted}")

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(90)
        assert not self._thread.is_alive()
        self.check()
        self._consumer.close()


def kill_coordinators(tree: Tree, directory: Path, kills: int, seed: int) -> int:
    """Kill the coordinator of a group again and again; return the number of acknowledged commits."""
    chance = random.Random(seed)

    def state(index: int) -> Any:
        return tree.json(f"/brokers/topics/__consumer_offsets/partitions/{index}/state")

    def await_replicas() -> None:
        tree.await_that(lambda: all(len(state(index)["isr"]) == 3 for index in GROUPS))

    with brokers_of(tree, directory, "--offsets-topic-num-partitions", str(PARTITIONS)) as brokers:
        bootstrap = ",".join(broker.bootstrap for broker in brokers.values())
        admin = AdminClient({"bootstrap.servers": bootstrap})
        (created,) = admin.create_topics([NewTopic("t", 1, 3)]).values()
        created.result(30)
        committers = [Committer(bootstrap, group) for group in GROUPS.values()]

        def await_more_commits() -> None:
            wanted = [committer.count + COMMITS_BETWEEN for committer in committers]
            tree.await_that(lambda: all(c.count >= count for c, count in zip(committers, wanted, strict=True)))

        for _ in range(kills):
            await_more_commits()
            victim: BrokerProcess = brokers[state(chance.choice(list(GROUPS)))["leader"]]
            crash(victim, chance)
            await_more_commits()
            victim.start()
            await_replicas()
        for committer in committers:
            committer.stop()
        assert [committer.wrong for committer in committers] == [[]] * len(committers)
        return sum(committer.count for committer in committers)


def test_killed_coordinator_loses_no_offset(tree: Tree, tmp_path: Path) -> None:
    assert kill_coordinators(tree, tmp_path, 1, SEED) >= 2 * COMMITS_BETWEEN * len(GROUPS)


@pytest.mark.campaign
def test_many_killed_coordinators(tree: Tree, tmp_path: Path, record_property: RecordProperty) -> None:
    """Acknowledged offsets are there, and never go back, while the coordinators of their groups are killed."""
    record_property("commits", kill_coordinators(tree, tmp_path, KILLS, SEED))
    record_property("kills", KILLS)
