"""Consumers through ZooKeeper that come, go, freeze and are killed, while brokers are killed."""

import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from onceflow.client.cluster import LATEST
from onceflow.client.cluster import Cluster as Client
from tests.broker.cluster.conftest import Tree
from tests.broker.cluster.test_replication_kills import brokers_of
from tests.campaigns import RecordProperty
from tests.client.classic.zookeeper_members import check_reads
from tests.compat.conftest import kafka_jars
from tests.compat.test_zookeeper_nodes import VERSION

GROUPS = ("counting", "archiving")
TOPIC = "clicks"
PARTITIONS = 12
MEMBERS = 10
"""Consumers of each group."""
SECONDS = 600
BETWEEN_BROKERS_S = 20
FROZEN_S = 5
"""Longer than the session of a member."""
SEED = 20261127
WITHIN_S = 120


class MemberProcess:
    """A consumer in a process of its own."""

    def __init__(self, connect: str, group: str, number: int, log: Path) -> None:
        self.number = number
        self.group = group
        self.read: list[tuple[int, int, int, int]] = []
        """Time, number of the member, partition and offset of each message."""
        self.is_broken = False
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.broker.cluster.storm_member", connect, group, TOPIC],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.endswith("\n"):
                at, partition, offset = map(int, line.split())
                self.read.append((at, self.number, partition, offset))

    def freeze(self) -> None:
        self.is_broken = True
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self.is_broken = True
        self._end(signal.SIGKILL)

    def leave(self) -> None:
        """Stop it; the signal kills a member that has just started."""
        code = self._end(signal.SIGTERM)
        assert code in (0, -signal.SIGTERM)
        self.is_broken |= code != 0

    def end(self) -> None:
        """End the process at once if it still runs, after the storm."""
        self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> int:
        if self._process.poll() is None:
            self._process.send_signal(number)
        code = self._process.wait(WITHIN_S)
        self._thread.join(WITHIN_S)
        assert self._process.stdout is not None
        self._process.stdout.close()
        return code


class Storm:
    """The members of both groups, and all that have ended."""

    def __init__(self, connect: str, directory: Path, seed: int) -> None:
        self.chance = random.Random(seed)
        self.members: list[MemberProcess] = []
        self.all: list[MemberProcess] = []
        self._connect = connect
        self._directory = directory

    def join(self, group: str) -> None:
        log = self._directory / f"member-{len(self.all)}.log"
        member = MemberProcess(self._connect, group, len(self.all), log)
        self.members.append(member)
        self.all.append(member)

    def act(self) -> str:
        """Let a member leave, be killed or be frozen; one joins for each that ends."""
        member = self.chance.choice(self.members)
        action = self.chance.choice(["leave", "kill", "freeze"])
        if action == "freeze":
            member.freeze()
            time.sleep(FROZEN_S)
            member.thaw()
            return action
        self.members.remove(member)
        if action == "kill":
            member.kill()
        else:
            member.leave()
        self.join(member.group)
        return action

    def read_by(self, group: str) -> list[tuple[int, int, int]]:
        """Return what a group has read, in the order of time."""
        events = sorted(event for member in self.all if member.group == group for event in member.read)
        return [event[1:] for event in events]


def send(bootstrap: str, stop: threading.Event) -> None:
    """Send messages to all partitions until the event; those that fail are not counted on."""
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "log_level": 0})
    while not stop.wait(0.05):
        for partition in range(PARTITIONS):
            producer.produce(TOPIC, b"m", partition=partition)
        producer.poll(0)
    producer.flush(WITHIN_S)


def run_storm(tree: Tree, directory: Path, members: int, seconds: float, seed: int) -> dict[str, int]:
    """Return figures of a storm, in which each group read every message in order."""
    with brokers_of(tree, directory) as brokers:
        bootstrap = ",".join(broker.bootstrap for broker in brokers.values())
        admin = AdminClient({"bootstrap.servers": bootstrap})
        (created,) = admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3)]).values()
        created.result(WITHIN_S)
        storm = Storm(tree.connect, directory, seed)
        stop = threading.Event()
        sender = threading.Thread(target=send, args=(bootstrap, stop))
        sender.start()
        try:
            for group in GROUPS * members:
                storm.join(group)
            actions = kills = 0
            deadline = time.monotonic() + seconds
            next_kill = time.monotonic() + BETWEEN_BROKERS_S
            while time.monotonic() < deadline:
                storm.act()
                actions += 1
                if time.monotonic() >= next_kill:
                    victim = brokers[storm.chance.choice(list(brokers))]
                    victim.kill()
                    victim.start()
                    kills += 1
                    next_kill = time.monotonic() + BETWEEN_BROKERS_S
            stop.set()
            sender.join()
            with Client(bootstrap) as client:
                latest = client.list_offsets(TOPIC, dict.fromkeys(range(PARTITIONS), LATEST))
            ends = {partition: at.offset for partition, at in latest.items()}
            for group in GROUPS:
                tree.await_that(lambda: len({read[1:] for read in storm.read_by(group)}) == sum(ends.values()))  # noqa: B023
            for member in storm.members:
                member.leave()
        finally:
            stop.set()
            for member in storm.members:
                member.end()
        broken = {member.number for member in storm.all if member.is_broken}
        repeated = sum(check_reads(storm.read_by(group), broken, ends) for group in GROUPS)
        assert all(offset_in_zookeeper(tree, group) == str(ends[0]) for group in GROUPS)
        return {"messages": sum(ends.values()), "repeated": repeated, "acts": actions, "brokers killed": kills}


def offset_in_zookeeper(tree: Tree, group: str) -> str:
    """Return the offset of partition 0, read by Kafka's zookeeper-shell."""
    address, _, chroot = tree.connect.partition("/")
    path = f"/{chroot}/consumers/{group}/offsets/{TOPIC}/0"
    main = "org.apache.zookeeper.ZooKeeperMainWithTlsSupportForKafka"
    command = ["java", "-cp", f"{kafka_jars(VERSION)}/*", main, "-server", address, "get", path]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=WITHIN_S, check=True)
    return shown.stdout.strip().splitlines()[-1]


@pytest.mark.campaign
@pytest.mark.timeout(2 * SECONDS)
def test_storm_of_consumers(tree: Tree, tmp_path: Path, record_property: RecordProperty) -> None:
    """Consumers of two groups in ZooKeeper join, leave, freeze and are killed while brokers are killed."""
    for name, figure in run_storm(tree, tmp_path, MEMBERS, SECONDS, SEED).items():
        record_property(name, figure)
