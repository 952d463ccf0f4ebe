"""Large requests and large batches are processed in slices, so that other clients are served between."""

import asyncio
import itertools
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from onceflow.broker.handlers import list_offsets as offset_handlers
from onceflow.broker.handlers import topics as topic_handlers
from onceflow.broker.loop import deferred, slices
from onceflow.broker.loop.deferred import DeferredCalls
from onceflow.broker.loop.slices import run_in_slices
from onceflow.broker.storage import record_checks
from onceflow.broker.storage.partitions import Partition
from onceflow.broker.storage.record_checks import RecordChecks
from onceflow.broker.topics import operations as topic_operations
from onceflow.log.config import LogConfig
from onceflow.log.errors import InvalidRecord, LogError
from onceflow.log.validation import check_records
from onceflow.remedies import Remedy
from onceflow.testing import ManualClock
from onceflow.wire import apis, frames
from onceflow.wire.batch import Record, encode_batch, record_heads
from onceflow.wire.codecs import Codec
from onceflow.wire.errors import ErrorCode, MalformedBatch
from tests import remedies
from tests.broker import turn_counts
from tests.broker.driven_broker import DrivenBroker
from tests.broker.raw_client import RawClient, connected, milliseconds
from tests.log.partition_logs import NOW_MS, open_log

COMPACTED = LogConfig(cleanup_compact=True)


def keyed(count: int, codec: Codec = Codec.ZSTD, *, key: bytes | None = b"k", value_bytes: int = 1) -> bytearray:
    return encode_batch([Record(offset, NOW_MS, key, bytes(value_bytes)) for offset in range(count)], codec=codec)


BOMB = keyed(2000, value_bytes=1000)
"""Yield a hundred steps of a check."""


class SteppedThread:
    """A thread that does one piece of work when a test requests it."""

    def __init__(self) -> None:
        self.slices = 0
        self._waiting: list[tuple[Callable[[], bool], Callable[[bool], None]]] = []

    def __call__(self, work: Callable[[], bool], done: Callable[[bool], None]) -> None:
        self._waiting.append((work, done))
        assert len(self._waiting) == 1

    def step(self) -> bool:
        """Do one piece of work; return False if there is none."""
        if not self._waiting:
            return False
        work, done = self._waiting.pop()
        self.slices += 1
        done(work())
        return True


class Checks:
    """Checks of batches for partitions of a compacted topic, and the order in which they end."""

    def __init__(self, directory: Path) -> None:
        self.thread = SteppedThread()
        self.ended: list[tuple[str, type[LogError] | None]] = []
        self._directory = directory
        self._checks = RecordChecks(ManualClock(NOW_MS), self.thread)
        self._partitions: dict[int, Partition] = {}

    def add(self, index: int, batch: bytearray, name: str) -> None:
        if index not in self._partitions:
            log = open_log(self._directory / f"t-{index}", cleanup_compact=True)
            self._partitions[index] = Partition("t", index, log)
        partition = self._partitions[index]
        assert self._checks.must_wait(partition, memoryview(batch))
        self._checks.check(partition, memoryview(batch), lambda error: self.ended.append((name, error and type(error))))  # type: ignore[arg-type]

    def run(self) -> None:
        while self.thread.step():
            pass


@pytest.fixture
def checks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Checks:
    """A step takes a second, and a slice three."""
    monkeypatch.setattr(record_checks, "SLICE_S", 3)
    monkeypatch.setattr(record_checks, "monotonic", itertools.count().__next__)
    return Checks(tmp_path)


def test_small_batches_do_not_wait_for_bombs(checks: Checks) -> None:
    """It waits for the current slice, and for one of the oldest bomb."""
    small = keyed(10)
    for index in range(8):
        checks.add(index, BOMB, "bomb")
    checks.add(8, small, "small")
    while not checks.ended:
        assert checks.thread.step()
    assert checks.ended == [("small", None)]
    assert checks.thread.slices <= 3
    before = checks.thread.slices
    checks.add(8, small, "later")
    while len(checks.ended) < 2:
        assert checks.thread.step()
    assert checks.ended[1] == ("later", None)
    assert checks.thread.slices - before <= 3
    checks.run()
    assert checks.ended[2:] == [("bomb", None)] * 8


def test_bombs_end_while_small_batches_keep_coming(checks: Checks) -> None:
    checks.add(0, BOMB, "bomb")
    for _ in range(300):
        checks.add(1, keyed(10), "small")
    checks.run()
    assert checks.ended.index(("bomb", None)) < 200


def test_batches_of_a_partition_keep_their_order(checks: Checks) -> None:
    """Also after a refused one, and while another partition's bomb is checked."""
    checks.add(1, BOMB, "other")
    checks.add(0, BOMB, "first")
    checks.add(0, keyed(10, key=None), "second")
    checks.add(0, keyed(10), "third")
    checks.run()
    own = [value for value in checks.ended if value[0] != "other"]
    assert own == [("first", None), ("second", InvalidRecord), ("third", None)]


@pytest.mark.remedy(Remedy.GIVE_KEY)
@pytest.mark.parametrize("codec", Codec)
def test_a_missing_key_is_detected_anywhere(codec: Codec) -> None:
    """Headers that span two pieces, records longer than a piece, and the last record."""
    sizes = [70_000, *range(1, 400), 200_000, 0]
    records = [Record(offset, NOW_MS, b"k", bytes(size)) for offset, size in enumerate(sizes)]
    check_records("t-0", encode_batch(records, codec=codec), 0, COMPACTED, NOW_MS)
    for missing in (0, 1, 200, len(sizes) - 2, len(sizes) - 1):
        changed = [*records]
        changed[missing] = records[missing]._replace(key=None)
        with pytest.raises(InvalidRecord, match="a record has no key") as raised:
            check_records("t-0", encode_batch(changed, codec=codec), 0, COMPACTED, NOW_MS)
        remedies.find(Remedy.GIVE_KEY, raised.value)
        changed[missing] = changed[missing]._replace(key=b"given")
        check_records("t-0", encode_batch(changed, codec=codec), 0, COMPACTED, NOW_MS)


@pytest.mark.parametrize("count", [-1, 1])
@pytest.mark.parametrize("codec", Codec)
def test_a_wrong_record_count_is_malformed(codec: Codec, count: int) -> None:
    batch = keyed(500, codec)
    batch[57:61] = (500 + count).to_bytes(4, "big")
    with pytest.raises(MalformedBatch):
        list(record_heads(batch, size_bytes_max=1 << 26))


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
def test_a_check_holds_one_piece(codec: Codec) -> None:
    batch = encode_batch([Record(offset, NOW_MS, b"k", bytes(100_000)) for offset in range(200)], codec=codec)
    tracemalloc.start()
    try:
        assert sum(1 for _ in record_heads(batch, size_bytes_max=1 << 26)) > 200
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < 2 * 1024**2


@pytest.fixture
def client(tmp_path: Path) -> Iterator[RawClient]:
    with DrivenBroker(tmp_path / "data") as broker, connected(broker.bootstrap) as client:
        client.create_topic("t", 100)
        yield client


def counted(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, work_per_turn: int) -> list[int]:
    """Count calls in slices of this much work."""
    monkeypatch.setattr(slices, "WORK_PER_TURN", work_per_turn)
    return turn_counts.counted(monkeypatch, owner, name)


@pytest.mark.parametrize("version", [1, 4, 7])
@pytest.mark.parametrize("timestamp", [-1, -2, NOW_MS])
def test_offsets_listed_in_a_turn_are_bounded(
    client: RawClient, monkeypatch: pytest.MonkeyPatch, version: int, timestamp: int
) -> None:
    turns = counted(monkeypatch, offset_handlers._Listing, "_offset", 10 * offset_handlers.WORK_PER_PARTITION)
    asked = [{"partition_index": index, "current_leader_epoch": -1, "timestamp": timestamp} for index in range(101)]
    fields = {"replica_id": -1, "isolation_level": 0, "topics": [{"name": "t", "partitions": asked}]}
    (topic,) = client.ask(apis.LIST_OFFSETS, version, **fields).topics
    assert (sum(turns), max(turns)) == (101, 10)
    expected = ErrorCode.none, -1 if timestamp == NOW_MS else 0
    assert {(partition.error_code, partition.offset) for partition in topic.partitions[:100]} == {expected}
    assert topic.partitions[100].error_code == ErrorCode.unknown_topic_or_partition
    assert [partition.partition_index for partition in topic.partitions] == list(range(101))


def test_topics_created_in_a_turn_are_bounded(client: RawClient, monkeypatch: pytest.MonkeyPatch) -> None:
    turns = counted(monkeypatch, topic_operations.TopicOperations, "_create", 5 * topic_operations.WORK_PER_CREATION)
    names = [f"n{number}" for number in range(20)] + ["t"] * 2 + ["n/n"]
    wanted = [
        {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": (), "configs": ()} for name in names
    ]
    fields = {"topics": wanted, "timeout": milliseconds(10_000), "validate_only": False}
    response = client.ask(apis.CREATE_TOPICS, 7, **fields)
    assert (sum(turns), max(turns)) == (21, 5)
    codes = {topic.name: topic.error_code for topic in response.topics}
    assert codes == {
        **{f"n{number}": ErrorCode.none for number in range(20)},
        "t": ErrorCode.invalid_request,
        "n/n": ErrorCode.invalid_topic_exception,
    }
    assert all(len(topic.configs or ()) > 20 for topic in response.topics if not topic.error_code)


def test_requested_topics_are_processed_in_slices(client: RawClient, monkeypatch: pytest.MonkeyPatch) -> None:
    turns = counted(monkeypatch, topic_handlers, "_wanted", 5 * topic_handlers.WORK_PER_WANTED)
    topics = [
        {"name": f"n{number}", "num_partitions": 0, "replication_factor": 1, "assignments": (), "configs": ()}
        for number in range(20)
    ]
    fields = {"topics": topics, "timeout": milliseconds(10_000), "validate_only": False}
    response = client.ask(apis.CREATE_TOPICS, 7, **fields)
    assert (sum(turns), max(turns)) == (20, 5)
    assert {topic.error_code for topic in response.topics} == {ErrorCode.invalid_partitions}


def test_large_requests_are_decoded_over_turns(client: RawClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are decoded one after the other, and a later request waits."""
    monkeypatch.setattr(deferred, "LARGE_WORK_PER_TURN", 100)
    decoded: list[int] = []
    do_large, steps = DeferredCalls._do_large, frames.read_entity_in_steps  # type: ignore[attr-defined]

    def new_turn(running: DeferredCalls) -> None:
        decoded.append(0)
        do_large(running)

    def counted(*arguments: Any) -> Any:
        work = steps(*arguments)
        while True:
            try:
                units = next(work)
            except StopIteration as end:
                return end.value
            decoded[-1] += units
            yield units

    monkeypatch.setattr(DeferredCalls, "_do_large", new_turn)
    monkeypatch.setattr(frames, "read_entity_in_steps", counted)
    asked = [{"partition_index": index, "current_leader_epoch": -1, "timestamp": -1} for index in range(1000)]
    fields = {"replica_id": -1, "isolation_level": 0, "topics": [{"name": "t", "partitions": asked}]}
    for _ in range(2):
        client.send(apis.LIST_OFFSETS, 5, **fields)
    client.send(apis.API_VERSIONS, 0)
    listed = [client.receive(apis.LIST_OFFSETS, 5) for _ in range(2)]
    assert all(len(response.topics[0].partitions) == 1000 for response in listed)
    assert client.receive(apis.API_VERSIONS, 0).error_code == ErrorCode.none
    assert sum(decoded) > 2 * 1000
    assert max(decoded) <= 100 + 10


def test_failed_or_unwanted_work_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "WORK_PER_TURN", 1)
    log: list[str] = []

    def work(count: int, *, fails: bool = False) -> Iterator[int]:
        for number in range(count):
            log.append(f"step {number}")
            yield 1
        if fails:
            raise ValueError("it fails")

    async def run() -> None:
        run_in_slices(work(2), lambda: log.append("done"), failed=lambda error: log.append(str(error)))
        await asyncio.sleep(0.01)
        run_in_slices(work(9), lambda: log.append("done"), failed=lambda _: None, is_wanted=lambda: False)
        await asyncio.sleep(0.01)
        asyncio.get_running_loop().set_exception_handler(lambda _loop, _context: None)
        run_in_slices(work(1, fails=True), lambda: log.append("done"), failed=lambda error: log.append(str(error)))
        await asyncio.sleep(0.01)

    asyncio.run(run())
    assert log == ["step 0", "step 1", "done", "step 0", "step 0", "it fails"]
