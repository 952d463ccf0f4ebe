"""Campaign: both brokers and the mirror are killed at random while transactions are written and mirrored."""

import json
import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from onceflow.client.cluster import LATEST, Cluster
from onceflow.client.errors import ClientError
from onceflow.client.records import read_records
from onceflow.client.transactional import TransactionalProducer
from onceflow.testing import BrokerProcess
from onceflow.testing.in_process import BrokerNotUsable
from tests.campaigns import RecordProperty

TOPIC = "visits"
PARTITIONS = 4
RECORDS = 1_000_000
RECORDS_PER_TRANSACTION = 2_000
SEED = 20
PAUSE_S = (0.0, 3.0)
START_ATTEMPTS = 5
PROGRESS_S = 180.0
"""Maximum time without a commit: a killed writer's open transaction ends after 60 s."""
UNREACHED = ("no Kafka broker responds", "does not respond like a Kafka broker", "the connection to")
"""Ends of a mirror that is started while a broker is down or being killed; it is started again, as by a supervisor."""


class MirrorProcess:
    """`onceflow mirror` in a process of its own."""

    def __init__(self, source: str, target: str, log: Path) -> None:
        self._command = [sys.executable, "-m", "onceflow", "mirror", "--from", source, "--to", target]
        self._command += ["--topics", TOPIC, "--json"]
        self._log = log
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        with self._log.open("a") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log, text=True)

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    @property
    def last_line(self) -> str:
        return self._log.read_text().splitlines()[-1]

    @property
    def exit_code(self) -> int | None:
        assert self._process is not None
        return self._process.poll()

    def finish(self) -> dict[str, object]:
        """Mirror the rest; return the last report."""
        ended = subprocess.run([*self._command, "--once"], capture_output=True, text=True, timeout=600, check=False)
        assert ended.returncode == 0, ended.stderr
        report: dict[str, object] = json.loads(ended.stdout.splitlines()[-1])
        return report


class Writer:
    """A thread that writes transactions until it is stopped; a fifth is aborted."""

    def __init__(self, bootstrap: str, seed: int) -> None:
        self._bootstrap = bootstrap
        self._random = random.Random(seed)
        self._number = 0
        self.committed = 0
        self.aborted = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(PROGRESS_S)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                with TransactionalProducer(self._bootstrap, "writer", timeout_ms=5_000) as producer:
                    while not self._stop.is_set():
                        self._write(producer)
            except ClientError:
                time.sleep(0.1)  # The broker is down, or its transaction was lost.

    def _write(self, producer: TransactionalProducer) -> None:
        producer.begin()
        for _ in range(RECORDS_PER_TRANSACTION):
            partition = self._random.randrange(PARTITIONS)
            producer.send(TOPIC, b"%d" % self._number, b"key-%d" % partition, partition=partition)
            self._number += 1
        producer.flush()
        if self._random.random() < 0.2:
            producer.abort()
            self.aborted += RECORDS_PER_TRANSACTION
        else:
            producer.commit()
            self.committed += RECORDS_PER_TRANSACTION


def committed_values(bootstrap: str, partition: int) -> list[tuple[int, bytes | None, bytes | None]]:
    """Return timestamp, key and value of a partition's committed records, once no transaction is open."""
    with Cluster(bootstrap) as cluster:
        while True:
            ends = [
                cluster.list_offsets(TOPIC, {partition: LATEST}, read_committed=committed)[partition].offset
                for committed in (True, False)
            ]
            if ends[0] == ends[1]:
                break
            time.sleep(0.5)  # A killed writer's transaction ends with its time-out.
        read = read_records(cluster, TOPIC, partition, 0, ends[0])
        return [(record.timestamp_ms, record.key, record.value) for record in read]


def start(broker: BrokerProcess) -> None:
    """Start a killed broker, also on a machine where that takes longer than a start may."""
    for _ in range(START_ATTEMPTS - 1):
        try:
            broker.start()
        except BrokerNotUsable:
            continue
        return
    broker.start()


def await_progress(mirror: MirrorProcess, bootstrap: str) -> int:
    """Wait until the mirror has committed, and start it when it has found a broker down; return these starts."""
    starts = 0
    with Cluster(bootstrap) as cluster:
        before = progress_of(cluster)
        deadline = time.monotonic() + PROGRESS_S
        while progress_of(cluster) <= before:
            assert time.monotonic() < deadline, "no progress"
            if mirror.exit_code is not None:
                assert any(text in mirror.last_line for text in UNREACHED), mirror.last_line
                mirror.start()
                starts += 1
            time.sleep(0.1)
    return starts


def progress_of(cluster: Cluster) -> int:
    """Return the end of the mirror's positions in the target."""
    topic = "onceflow-mirror.mirror.positions"
    return cluster.list_offsets(topic, {0: LATEST})[0].offset if topic in cluster.topics() else 0


@pytest.mark.campaign
def test_kills_lose_and_repeat_nothing(tmp_path: Path, record_property: RecordProperty) -> None:
    """1,000,000 records in transactions, a fifth of them aborted: the target has what the source has, in order."""
    choice = random.Random(SEED)
    restarts = 0
    kills = {"source": 0, "target": 0, "mirror": 0}
    with BrokerProcess(tmp_path / "source") as source, BrokerProcess(tmp_path / "target") as target:
        with Cluster(source.bootstrap) as cluster:
            cluster.create_topic(TOPIC, PARTITIONS)
        mirror = MirrorProcess(source.bootstrap, target.bootstrap, tmp_path / "mirror.log")
        mirror.start()
        writer = Writer(source.bootstrap, SEED)
        writer.start()
        # It writes until the end, so that a mirror that works always has something to commit.
        while writer.committed < RECORDS:
            time.sleep(choice.uniform(*PAUSE_S))
            restarts += await_progress(mirror, target.bootstrap)
            victim = choice.choice(list(kills))
            kills[victim] += 1
            if victim == "mirror":
                mirror.kill()
                mirror.start()
            else:
                broker = source if victim == "source" else target
                broker.kill()
                time.sleep(choice.uniform(0, 1))
                start(broker)
        writer.stop()
        mirror.kill()
        mirror.finish()
        total = 0
        for partition in range(PARTITIONS):
            expected = committed_values(source.bootstrap, partition)
            assert committed_values(target.bootstrap, partition) == expected
            assert len({value for _, _, value in expected}) == len(expected)
            total += len(expected)
    assert total >= RECORDS
    record_property("records", total)
    record_property("aborted records", writer.aborted)
    record_property("starts while a broker was down", restarts)
    for victim, count in kills.items():
        record_property(f"kills of the {victim}", count)
