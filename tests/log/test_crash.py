"""Power cuts and kills at any operation, recovery's own included, on a disk that loses unsynced data.

Each seed is one life of a partition: two idempotent producers, readers, small segments, group commits with concurrent
appends, power cuts and kills. Afterwards everything below the high watermark at the cut is there, nothing is
duplicated, and the log is a prefix of what was appended. A failure prints its seed.
"""

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from onceflow.log import recovery
from onceflow.log.errors import StorageFailed
from onceflow.log.partition import PartitionLog
from onceflow.log.sync import SyncPoint, write_snapshot
from onceflow.testing import FaultyDisk, PowerCut
from tests.campaigns import RecordProperty, tell
from tests.log.partition_logs import batch, open_log, records, values

SEEDS = 200
SEEDS_CAMPAIGN = 5_000
CONFIG: dict[str, Any] = {"segment_bytes": 700, "index_interval_bytes": 200}
LIVES = 4
IN_FLIGHT = 5


class Client:
    """An idempotent producer with up to five unacknowledged batches, retried in order after a lost connection."""

    def __init__(self, producer_id: int) -> None:
        self.producer_id = producer_id
        self.sequence = 0
        self.unacknowledged: list[tuple[int, list[bytes]]] = []

    def next_batch(self, source: random.Random) -> tuple[int, list[bytes]]:
        count = source.randrange(1, 4)
        values = [b"%d/%d " % (self.producer_id, self.sequence + i) + bytes(source.randrange(80)) for i in range(count)]
        self.unacknowledged.append((self.sequence, values))
        self.sequence += count
        return self.unacknowledged[-1]


class Life:
    """State of a partition over all of its power cuts: appended records, acknowledged ones."""

    def __init__(self, root: Path, seed: int) -> None:
        root.mkdir()
        self.disk = FaultyDisk(root)
        self.directory = root / "clicks-0"
        self.source = random.Random(seed)
        self.appended: list[bytes] = []
        self.promised = 0
        self.clients = [Client(1), Client(2)]

    def open(self) -> PartitionLog:
        """Open the log, with further power cuts in some runs."""
        for _ in range(100):
            if self.source.random() < 0.3:
                self.disk.cut_power_after(self.source.randrange(30))
            try:
                return self._stopped_and_started(open_log(self.directory, disk=self.disk, **CONFIG))
            except PowerCut:
                self.crash()
        raise AssertionError("the log was never opened")

    def _stopped_and_started(self, log: PartitionLog) -> PartitionLog:
        """Return the log, in some runs after a clean stop: only a log that was closed is ever opened as clean."""
        if self.source.random() < 0.2:
            log.close()
            return open_log(self.directory, disk=self.disk, clean=True, **CONFIG)
        return log

    def crash(self) -> None:
        if self.source.random() < 0.3:
            self.disk.kill()
            return
        self.disk.crash(self.source.randrange(1 << 30), drop_all=self.source.random() < 0.2)

    def check(self, log: PartitionLog) -> None:
        recovered = values(log)
        assert len(recovered) >= self.promised, f"{self.promised - len(recovered)} promised records are lost"
        assert recovered == self.appended[: len(recovered)]
        self.appended = self.appended[: len(recovered)]
        self.promised = len(recovered)
        assert len(set(recovered)) == len(recovered)

    def retry_unacknowledged(self, log: PartitionLog) -> None:
        for client in self.clients:
            for sequence, sent in client.unacknowledged:
                self.send(log, client, sequence, sent)

    def send(self, log: PartitionLog, client: Client, sequence: int, sent: list[bytes]) -> None:
        appended = log.append(batch(*sent, producer_id=client.producer_id, sequence=sequence))
        if appended.duplicate:
            assert self.appended[appended.base_offset : appended.last_offset + 1] == sent
        else:
            assert appended.base_offset == len(self.appended)
            self.appended += sent

    def live(self, log: PartitionLog) -> None:
        """Append and run group commits in any order until the power is cut."""
        point: SyncPoint | None = None
        for _ in range(10_000):
            action = self.source.randrange(4)
            if action == 0 and point is None:
                point = log.durability.begin_sync()
                self.forget_acknowledged(log)
            elif action == 1 and point is not None:
                point.run()
                log.durability.end_sync(point)
                point = None
                self.promised = max(self.promised, log.high_watermark)
            else:
                client = self.source.choice(self.clients)
                if len(client.unacknowledged) < IN_FLIGHT:
                    self.send(log, client, *client.next_batch(self.source))
                else:
                    self.send(log, client, *self.source.choice(client.unacknowledged))

        raise AssertionError("the power was never cut")

    def forget_acknowledged(self, log: PartitionLog) -> None:
        visible = set(self.appended[: log.high_watermark])
        for client in self.clients:
            client.unacknowledged = [(at, sent) for at, sent in client.unacknowledged if sent[-1] not in visible]


def run(root: Path, seed: int) -> Counter[str]:
    """Return event counts of this seed's life."""
    life = Life(root, seed)
    for _ in range(LIVES):
        log = life.open()
        life.check(log)
        life.disk.cut_power_after(life.source.randrange(1, 120))
        try:
            life.retry_unacknowledged(log)
            life.live(log)
        except (PowerCut, StorageFailed):
            life.crash()
    log = life.open()
    life.check(log)
    life.disk.cut_power_after(1 << 30)
    life.retry_unacknowledged(log)
    sent = [b"%d/" % client.producer_id for client in life.clients]
    log.close()
    life.check(log)
    for client, prefix in zip(life.clients, sent, strict=True):
        mine = [value.split(b" ")[0] for value in life.appended if value.startswith(prefix)]
        assert mine == [prefix + b"%d" % sequence for sequence in range(client.sequence)], "once each, in order"
    assert [record.value for record in records(open_log(life.directory, disk=life.disk, clean=True))] == life.appended
    return life.disk.faults + Counter({"records kept, once and in order": len(life.appended)})


def run_seeds(scratch: Path, seeds: range, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    counts: Counter[str] = Counter()
    for seed in seeds:
        # Half of the lives recover from the newest snapshot, to test its promise.
        monkeypatch.setattr(recovery, "RECHECK_BYTES", 0 if seed % 2 else 1 << 26)
        try:
            counts += run(scratch / str(seed), seed)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error!r}") from error
    return counts


def test_power_cuts(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_seeds(scratch, range(SEEDS), monkeypatch)


@pytest.mark.campaign
def test_many_power_cuts(scratch: Path, monkeypatch: pytest.MonkeyPatch, record_property: RecordProperty) -> None:
    """Acknowledged records survive power cuts and kills, in order and once."""
    seeds = range(SEEDS, SEEDS + SEEDS_CAMPAIGN)
    tell(record_property, seeds, run_seeds(scratch, seeds, monkeypatch))


def finish_seals(point: SyncPoint, *, sync_directory: bool = True) -> None:
    for seal in point.seals:
        seal.segment.write_indexes()
    if sync_directory:
        point.disk.sync_directory(point.directory)
    for seal in point.seals:
        write_snapshot(point.disk, point.directory, seal.offset_end, seal.snapshot)


def without_data_sync(point: SyncPoint) -> None:
    finish_seals(point)


def without_sync_of_sealed_segments(point: SyncPoint) -> None:
    point.active.file.sync_data()
    finish_seals(point)


def without_directory_sync_on_roll(point: SyncPoint) -> None:
    for seal in point.seals:
        seal.segment.file.sync_data()
    point.active.file.sync_data()
    finish_seals(point, sync_directory=False)


@pytest.mark.parametrize(
    "broken_run", [without_data_sync, without_sync_of_sealed_segments, without_directory_sync_on_roll]
)
def test_a_forgotten_sync_is_noticed(
    broken_run: Callable[[SyncPoint], None], scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SyncPoint, "run", broken_run)
    with pytest.raises(AssertionError, match=r"seed \d+: AssertionError.*promised records are lost"):
        run_seeds(scratch, range(SEEDS), monkeypatch)
