"""A Metadata response about many topics is built in slices: the work of each turn of the loop is bounded."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from onceflow.broker.config import BrokerConfig, Endpoint
from onceflow.broker.loop import slices
from onceflow.broker.server import Broker
from onceflow.broker.topics.metadata_entries import MetadataEntries
from onceflow.broker.topics.topics import NewTopic, Topic
from onceflow.wire import apis
from tests.broker.raw_client import RawClient, connected, milliseconds

TOPICS = 60
PARTITIONS = 4
WORK_PER_TURN = 50
NO_OPERATIONS = {"include_topic_authorized_operations": False, "include_cluster_authorized_operations": False}


class TurnCounter:
    """Counts the turns of a loop, and the work of the entries in each."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.turn = 0
        self.work: dict[int, int] = {}
        self.encoded = 0
        self._loop = loop

    def tick(self) -> None:
        self.turn += 1
        self._loop.call_soon(self.tick)

    def entry(self, encoded: tuple[bytes, int]) -> tuple[bytes, int]:
        self.work[self.turn] = self.work.get(self.turn, 0) + encoded[1]
        self.encoded += encoded[1] > 1
        return encoded


def all_topics(client: RawClient, version: int = 12) -> Any:
    return client.ask(apis.METADATA, version, topics=None if version else (), **NO_OPERATIONS).topics


def test_metadata_work_of_a_turn_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "WORK_PER_TURN", WORK_PER_TURN)
    encode = MetadataEntries.entry

    async def run() -> None:
        broker = Broker(BrokerConfig(tmp_path / "data", listeners=(Endpoint(port=0),)))
        await broker.start()
        loop = asyncio.get_running_loop()
        counter = TurnCounter(loop)

        def counted(
            entries: MetadataEntries, topic: Topic, count: int, version: int, *, operations: int
        ) -> tuple[bytes, int]:
            return counter.entry(encode(entries, topic, count, version, operations=operations))

        created: asyncio.Future[Any] = loop.create_future()
        broker.node.topic_operations.create(
            [NewTopic(f"t{number}", PARTITIONS) for number in range(TOPICS)], created.set_result
        )
        assert not any(result.error_code for result in await created)
        monkeypatch.setattr(MetadataEntries, "entry", counted)
        counter.tick()
        try:
            await asyncio.to_thread(check, f"127.0.0.1:{broker.port}", counter)
        finally:
            await broker.stop()

    asyncio.run(run())


def check(bootstrap: str, counter: TurnCounter) -> None:
    with connected(bootstrap) as client:
        topics = all_topics(client)
        assert {topic.name: len(topic.partitions) for topic in topics if not topic.is_internal} == {
            f"t{number}": PARTITIONS for number in range(TOPICS)
        }
        largest = 1 + PARTITIONS
        assert max(counter.work.values()) < WORK_PER_TURN + largest
        assert len(counter.work) >= TOPICS * largest // (WORK_PER_TURN + largest)
        assert counter.encoded == TOPICS + 2
        counter.encoded = 0
        assert all_topics(client) == topics
        assert counter.encoded == 0, "the bytes are cached"
        for version in (10, 11):
            assert [topic.name for topic in all_topics(client, version)] == [topic.name for topic in topics]
        assert counter.encoded == 0, "and serve every version of their layout"
        more = [{"name": "t7", "count": PARTITIONS + 1, "assignments": None}]
        client.ask(apis.CREATE_PARTITIONS, 0, topics=more, timeout=milliseconds(5000), validate_only=False)
        assert len(next(topic for topic in all_topics(client) if topic.name == "t7").partitions) == PARTITIONS + 1
        assert counter.encoded == 1, "only the changed topic is encoded again"
