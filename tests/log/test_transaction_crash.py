"""Power cuts and kills between a transaction's records, its marker and the index of aborted ones.

Each seed is one life of a partition with three transactional producers and one other, small segments and group commits.
After every cut, recovery's own included, a reader of committed data sees exactly what a simple model of the surviving
records and markers contains, including everything a reader saw before. A failure prints its seed.
"""

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from onceflow.log import recovery
from onceflow.log.partition import PartitionLog
from onceflow.log.sync import SyncPoint
from onceflow.log.transactions import OpenTransactions, TransactionIndex
from onceflow.testing import FaultyDisk, PowerCut
from onceflow.wire.batch import Record, batches, decode_batch, encode_batch
from onceflow.wire.markers import decode_marker
from tests.campaigns import RecordProperty, tell
from tests.log.partition_logs import NOW_MS, open_log, open_transactions

SEEDS = 80
SEEDS_CAMPAIGN = 2_000
CONFIG: dict[str, Any] = {"segment_bytes": 600, "index_interval_bytes": 150}
LIVES = 4
PLAIN = 9
TRANSACTIONAL = (1, 2, 3)


class Event(NamedTuple):
    """One offset: a record with a value, or a marker with an outcome."""

    producer_id: int
    value: bytes | None
    commit: bool = False


class Model:
    """Expected state of a log with these events in this order."""

    def __init__(self, events: list[Event]) -> None:
        self.sequences = dict.fromkeys((*TRANSACTIONAL, PLAIN), 0)
        self.open: dict[int, int] = {}
        outcomes: dict[int, bool] = {}
        members: dict[int, list[int]] = {}
        for offset, event in enumerate(events):
            if event.value is None:
                for member in members.pop(event.producer_id, []):
                    outcomes[member] = event.commit
                self.open.pop(event.producer_id, None)
                continue
            self.sequences[event.producer_id] += 1
            if event.producer_id == PLAIN:
                outcomes[offset] = True
            else:
                members.setdefault(event.producer_id, []).append(offset)
                self.open.setdefault(event.producer_id, offset)
        self.last_stable_offset = min(self.open.values(), default=len(events))
        self.committed = [
            event.value
            for offset, event in enumerate(events[: self.last_stable_offset])
            if event.value is not None and outcomes[offset]
        ]


def committed(log: PartitionLog, size_bytes_max: int) -> list[bytes | None]:
    """Return what a consumer with isolation.level=read_committed sees, by Kafka's algorithm (CompletedFetch)."""
    visible: list[bytes | None] = []
    offset = log.log_start_offset
    while (piece := log.visible.read(offset, size_bytes_max, offset_end=log.visible.last_stable_offset)) is not None:
        pending = sorted(log.visible.aborted_in(offset, piece), key=lambda aborted: aborted[1])
        data = piece.read()
        offset, values = consumed(data, pending)
        visible += values
    assert offset == log.visible.last_stable_offset, "nothing below the last stable offset is kept back"
    return visible


def consumed(data: bytes, pending: list[tuple[int, int]]) -> tuple[int, list[bytes | None]]:
    """Return (the next offset, the values) of one response with its list of aborted transactions."""
    values: list[bytes | None] = []
    aborted: set[int] = set()
    offset = -1
    for position, header in batches(data):
        offset = header.last_offset + 1
        while pending and pending[0][1] <= header.last_offset:
            aborted.add(pending.pop(0)[0])
        if header.is_control:
            marker = decode_marker(data, position)
            assert marker is not None
            if not marker.commit:
                aborted.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in aborted):
            values += [record.value for record in decode_batch(data, position)]
    return offset, values


class Life:
    """One partition over all of its power cuts."""

    def __init__(self, root: Path, seed: int) -> None:
        root.mkdir()
        self.disk = FaultyDisk(root)
        self.directory = root / "clicks-0"
        self.source = random.Random(seed)
        self.events: list[Event] = []
        self.seen: list[bytes | None] = []
        self.promised = 0

    def open(self) -> PartitionLog:
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
        else:
            self.disk.crash(self.source.randrange(1 << 30), drop_all=self.source.random() < 0.2)

    def check(self, log: PartitionLog) -> None:
        """Check the log right after a start, when everything in it is durable."""
        assert log.log_end_offset >= self.promised, f"{self.promised - log.log_end_offset} promised offsets are lost"
        self.events = self.events[: log.log_end_offset]
        model = Model(self.events)
        assert log.visible.last_stable_offset == model.last_stable_offset
        committed_values = committed(log, self.source.choice((1, 300, 1 << 20)))
        assert committed_values == model.committed
        assert committed_values[: len(self.seen)] == self.seen, "what was seen stays"
        for state in log.producers.states():
            assert state.last_sequence == model.sequences[state.producer_id] - 1
            assert state.current_transaction_first_offset == model.open.get(state.producer_id, -1)
        assert open_transactions(log) == model.open

    def look(self, log: PartitionLog) -> None:
        """Read in the middle of everything."""
        committed_values = committed(log, 1 << 20)
        assert committed_values[: len(self.seen)] == self.seen
        self.seen = committed_values

    def append(self, log: PartitionLog) -> None:
        """Append a record, or a marker, which is a third of what the transactional producers write."""
        model = Model(self.events)
        producer_id = self.source.choice((*TRANSACTIONAL, PLAIN))
        if producer_id in TRANSACTIONAL and self.source.random() < 0.33:
            commit = self.source.random() < 0.5
            # The power may be cut during the write: then the outcome is unknown, and recovery decides.
            self.events.append(Event(producer_id, None, commit))
            assert log.append_marker(producer_id, 0, commit=commit).base_offset == len(self.events) - 1
            return
        value = b"%d" % len(self.events) + bytes(self.source.randrange(60))
        self.events.append(Event(producer_id, value))
        data = encode_batch(
            [Record(0, NOW_MS, None, value)],
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=model.sequences[producer_id],
            transactional=producer_id != PLAIN,
        )
        assert log.append(data).base_offset == len(self.events) - 1

    def live(self, log: PartitionLog) -> None:
        point: SyncPoint | None = None
        for _ in range(10_000):
            action = self.source.randrange(6)
            if action == 0 and point is None:
                point = log.durability.begin_sync()
            elif action == 1 and point is not None:
                point.run()
                log.durability.end_sync(point)
                point = None
                self.promised = max(self.promised, log.high_watermark)
            elif action == 2:
                self.look(log)
            else:
                self.append(log)
        raise AssertionError("the power was never cut")


def run(root: Path, seed: int) -> Counter[str]:
    """Return event counts of this seed's life."""
    life = Life(root, seed)
    for _ in range(LIVES):
        log = life.open()
        life.check(log)
        life.disk.cut_power_after(life.source.randrange(1, 100))
        with pytest.raises(PowerCut):
            life.live(log)
        life.crash()
    log = life.open()
    life.check(log)
    life.disk.cut_power_after(1 << 30)
    log.close()
    life.promised = log.log_end_offset
    life.check(open_log(life.directory, disk=life.disk, clean=True, segment_bytes=600))
    return life.disk.faults + Counter({"records and markers kept": len(life.events)})


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
@pytest.mark.timeout(900)
def test_many_power_cuts(scratch: Path, monkeypatch: pytest.MonkeyPatch, record_property: RecordProperty) -> None:
    """Readers see what the model expects after power cuts and kills between records, markers and index entries."""
    seeds = range(SEEDS, SEEDS + SEEDS_CAMPAIGN)
    tell(record_property, seeds, run_seeds(scratch, seeds, monkeypatch))


def lose_the_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TransactionIndex, "write", lambda index: None)


def end_before_the_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    end = OpenTransactions.end

    def ends_at_once(self: OpenTransactions, producer_id: int, marker_offset: int, *, commit: bool) -> object:
        aborted = end(self, producer_id, marker_offset, commit=commit)
        self.forget_ended(marker_offset + 1)
        return aborted

    monkeypatch.setattr(OpenTransactions, "end", ends_at_once)


def forget_the_open_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OpenTransactions, "first_offset", lambda self, producer_id: -1)


@pytest.mark.parametrize("mistake", [lose_the_index, end_before_the_sync, forget_the_open_ones])
def test_a_mistake_is_noticed(
    mistake: Callable[[pytest.MonkeyPatch], None], scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mistake(monkeypatch)
    with pytest.raises(AssertionError, match=r"seed \d+: "):
        run_seeds(scratch, range(SEEDS), monkeypatch)
