"""A topic's flush policy: the number and the age of the records that a power cut may lose."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from onceflow.broker.topics.topics import NewTopic
from onceflow.log.partition import PartitionLog
from onceflow.testing import FaultyDisk, ManualClock
from onceflow.wire import produce
from tests.broker.driven_broker import DrivenBroker, InnerBroker, eventually
from tests.broker.handlers import test_admin_apis as admin
from tests.broker.raw_client import RawClient, batch_of, connected
from tests.broker.simulation.stepped_broker import SteppedBroker, Unexpected

TOPIC = "lazy"
FLUSH_MS = 60_000


class Stepped:
    """A broker of one topic with a clock and threads that the test moves, on a disk that can lose its power."""

    def __init__(self, data: Path, **configs: str) -> None:
        self.data = data
        self.clock = ManualClock()
        self.disk = FaultyDisk(data)
        self.response_count = 0
        self.broker = self._start()
        with self.broker.loop.running():
            self.broker.node.topic_operations.create([NewTopic(TOPIC, 1, 1, configs)], lambda _created: None)
        self.broker.settle()

    def _start(self) -> SteppedBroker:
        return SteppedBroker(self.data, disk=self.disk, clock=self.clock, unexpected=Unexpected())

    @property
    def log(self) -> PartitionLog:
        partition = self.broker.node.partitions.get(TOPIC, 0)
        assert partition is not None
        return partition.log

    def send(self, value: bytes) -> None:
        """Send a Produce request with acks=all, while the threads do nothing."""
        topics = [(TOPIC, [(0, batch_of(value))])]
        asked = produce.encode_request(9, 1, "c", transactional_id=None, acks=-1, timeout_ms=1000, topics=topics)
        self.broker.send(b"".join(map(bytes, asked)), self._count_response)
        self.broker.loop.turn()

    def _count_response(self, _response: bytes) -> None:
        self.response_count += 1

    def power_cycle(self) -> None:
        self.end()
        self.disk.crash(1, drop_all=True)
        self.broker = self._start()

    def end(self) -> None:
        self.disk.cut_power()
        self.broker.drop()


@pytest.fixture
def stepped(tmp_path: Path) -> Iterator[Callable[..., Stepped]]:
    made: list[Stepped] = []

    def make(**configs: str) -> Stepped:
        data = tmp_path / "disk"
        data.mkdir()
        made.append(Stepped(data, **configs))
        return made[-1]

    yield make
    for value in made:
        value.end()


@pytest.mark.parametrize("messages", [1, 2, 7])
def test_flush_messages_waits_for_its_sync(messages: int, stepped: Callable[..., Stepped]) -> None:
    """The response to the record that completes `flush.messages` follows the sync; earlier ones are sent at once."""
    broker = stepped(**{"flush.messages": str(messages)})
    for number in range(messages - 1):
        broker.send(b"%d" % number)
        assert (broker.response_count, broker.log.durability.synced_offset) == (number + 1, 0)
    broker.send(b"last")
    assert (broker.response_count, broker.log.durability.synced_offset) == (messages - 1, 0)
    broker.broker.settle()
    assert (broker.response_count, broker.log.durability.synced_offset) == (messages, messages)
    broker.power_cycle()
    assert broker.log.log_end_offset == messages


def test_flush_ms_syncs_a_record_in_time(stepped: Callable[..., Stepped]) -> None:
    broker = stepped(**{"flush.ms": str(FLUSH_MS)})
    broker.send(b"first")
    broker.clock.advance_ms(FLUSH_MS - 1)
    broker.broker.settle()
    assert (broker.response_count, broker.log.durability.synced_offset) == (1, 0)
    broker.clock.advance_ms(2)
    broker.broker.settle()
    assert broker.log.durability.synced_offset == 1
    broker.power_cycle()
    assert broker.log.log_end_offset == 1


def test_flush_ms_syncs_the_next_record_too(stepped: Callable[..., Stepped]) -> None:
    broker = stepped(**{"flush.ms": str(FLUSH_MS)})
    for number in range(1, 4):
        broker.send(b"%d" % number)
        broker.clock.advance_ms(FLUSH_MS)
        broker.broker.settle()
        assert (broker.response_count, broker.log.durability.synced_offset) == (number, number)


def test_a_lowered_flush_ms_applies_at_once(tmp_path: Path) -> None:
    """The next record replaces the timer of an earlier one."""
    with InnerBroker(tmp_path / "data") as broker, connected(broker.bootstrap) as client:
        client.create_topic("t", flush_ms="3600000")
        assert not client.produce("t", 0, batch_of(b"first")).error_code
        assert admin.alter(client, (admin.TOPIC, "t", [("flush.ms", admin.SET, "100")])) == [0]
        assert not client.produce("t", 0, batch_of(b"second")).error_code
        eventually(lambda: broker.log("t").durability.synced_offset == 2, "both are synced")


def test_flush_ms_loses_a_younger_record(stepped: Callable[..., Stepped]) -> None:
    """The power cuts here lose unsynced data: otherwise the tests above could not fail."""
    broker = stepped(**{"flush.ms": str(FLUSH_MS)})
    broker.send(b"first")
    broker.clock.advance_ms(FLUSH_MS - 1)
    broker.broker.settle()
    assert broker.response_count == 1
    broker.power_cycle()
    assert broker.log.log_end_offset == 0


@pytest.mark.parametrize("messages", [1, 2, 7])
def test_flush_messages_bounds_a_power_cuts_loss(messages: int, tmp_path: Path) -> None:
    data = tmp_path / "disk"
    data.mkdir()
    with DrivenBroker(data, disk=FaultyDisk(data)) as broker:
        client = RawClient(broker.bootstrap)
        client.create_topic(TOPIC, flush_messages=str(messages))
        end = 0
        for seed in range(4):
            for _ in range(10):
                assert client.produce(TOPIC, 0, batch_of(b"v")).base_offset == end
                end += 1
                assert client.fetch([(TOPIC, 0, end - 1)])[0].high_watermark == end, "what is acknowledged is read"
            client.close()
            broker.power_cycle(seed, drop_all=True)
            client = RawClient(broker.bootstrap)
            left = broker.log(TOPIC).log_end_offset
            assert end - messages < left <= end
            end = left
        client.close()
