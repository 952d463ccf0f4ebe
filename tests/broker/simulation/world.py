"""One seed's world: a whole broker on a faulty disk, its clients, and everything that happens to it in between.

The seed decides whose turn it is: a client's, the event loop's, one of the broker's threads', the clock's or a fault's.
What must hold is asked again after every crash (`audit`) and at the end. See `test_simulation` for what it shows.
"""

import contextlib
import random
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias, TypeVar
from uuid import UUID

from onceflow.log.config import LogConfig
from onceflow.testing import FaultyDisk, ManualClock, PowerCut
from onceflow.wire import apis, fetch
from onceflow.wire.errors import ErrorCode
from onceflow.wire.fetch import FetchedPartition
from onceflow.wire.frames import decode_response, encode_request, request_class
from tests.broker.raw_client import FETCH_VERSION, fetch_request, milliseconds
from tests.broker.simulation.ledger import Found, Ledger
from tests.broker.simulation.stepped_broker import SteppedBroker, Unexpected
from tests.wire.messages import build

ANCHOR = "anchor"
"""A topic that stays: what groups commit offsets of."""
RETENTION_MS = 4_000
KINDS = {
    "kept": {"retention.ms": "-1"},
    "short": {"retention.ms": str(RETENTION_MS)},
    "compacted": {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "segment.ms": "3000"},
}
SETTINGS: dict[str, Any] = {
    "log": LogConfig(
        segment_bytes=1_500, index_interval_bytes=300, message_bytes_max=1_400, file_delete_delay_ms=2_000
    ),
    "retention_check_interval_ms": 2_000,
    "cleaner_interval_ms": 2_000,
    "offsets_topic_segment_bytes": 6_000,
    "transaction_log_segment_bytes": 6_000,
    "transaction_abort_interval_ms": 1_000,
    "auto_create_topics": False,
}
NEVER = 1 << 40
MAY_HAVE_BEEN_DONE = (ErrorCode.kafka_storage_error, ErrorCode.unknown_server_error, ErrorCode.request_timed_out)
"""Errors that leave the outcome unknown until the next start."""

Returned = TypeVar("Returned")
Steps: TypeAlias = Generator[None, None, Returned]
"""Steps of a client, with a yield wherever anything else may happen in between."""


@dataclass(eq=False)
class Topic:
    """A topic as its clients know it; `is_sure` is false while a response about its creation or deletion is missing."""

    name: str
    kind: str
    count: int
    topic_id: UUID | None = None
    is_sure: bool = True
    message_bytes_max: int | None = 1_400
    """None: a change is on its way."""
    ledgers: list[Ledger] = field(default_factory=list)

    def extend(self, count: int) -> None:
        self.ledgers += [Ledger(self.name, index, self.kind) for index in range(len(self.ledgers), count)]
        self.count = max(count, self.count)


class World:
    """State of the simulation: the broker, its topics, and all responses."""

    def __init__(self, seed_number: int, root: Path, unexpected: Unexpected) -> None:
        self.unexpected = unexpected
        self.seed = random.Random(seed_number)
        self.root = root
        self.clock = ManualClock()
        self.disk = FaultyDisk(root)
        self.topics: dict[str, Topic] = {}
        self.life = 0
        self.crashes = 0
        self.records = 0
        self.needs_power_cut = False
        self.commits: dict[str, list[int]] = {}
        """Group → offsets that it was asked to commit, ascending."""
        self.committed: dict[str, int] = {}
        """Group → the largest that was acknowledged or shown."""
        self.broker = self._opened()
        self._begin()

    # The broker's lives

    def _opened(self) -> SteppedBroker:
        return SteppedBroker(self.root, disk=self.disk, clock=self.clock, unexpected=self.unexpected, **SETTINGS)

    def _begin(self) -> None:
        response = self.ask_now(apis.CREATE_TOPICS, 7, **new_topic(ANCHOR, "kept", 1))
        self.topics[ANCHOR] = topic = Topic(ANCHOR, "kept", 1, response.topics[0].topic_id)
        topic.extend(1)

    def crash(self, *, power: bool) -> None:
        """The process is killed, or the machine loses its power; either may happen again while it starts."""
        self.disk.cut_power_after(0)
        self.broker.drop()
        self._start_again(power=power)

    def stop(self) -> None:
        """A clean stop, if nothing happens meanwhile, and a start."""
        try:
            self.broker.stop()
        except (PowerCut, OSError):
            self.disk.cut_power_after(0)
            self.broker.drop()
        self._start_again(power=self.disk.is_off)

    def _start_again(self, *, power: bool) -> None:
        self.life += 1
        self.crashes += 1
        for _ in range(50):
            if power or self.needs_power_cut:
                self.disk.crash(self.seed.randrange(2**32), drop_all=self.seed.random() < 0.3)
            else:
                self.disk.kill()
            self.make_well()
            if self.seed.random() < 0.3:
                self.disk.cut_power_after(self.seed.randrange(40))
            power = True
            if self._opens():
                self.disk.cut_power_after(NEVER)
                return
        raise AssertionError("the broker never started")

    def _opens(self) -> bool:
        """Start the broker and see that everything is there; False where the power went meanwhile."""
        try:
            self.broker = self._opened()
        except PowerCut:
            return False
        with contextlib.suppress(PowerCut):
            self.audit()
            if not self.disk.is_off:
                return True
        self.disk.cut_power_after(0)
        self.broker.drop()
        return False

    def start(self) -> None:
        """Once more, with whatever the disk holds now. Raises what the broker's start raises."""
        self.life += 1
        self.broker = self._opened()

    def end(self) -> None:
        """Let go of everything."""
        self.disk.cut_power_after(0)
        self.broker.drop()

    def make_well(self) -> None:
        """Repair the disk: it has space and syncs."""
        self.disk.space_bytes = None
        self.disk.fail_next_syncs(0)
        self.disk.fail_next_directory_syncs(0)
        self.needs_power_cut = False

    # Requests

    def send(self, frame: bytes, response: Callable[[bytes], None]) -> None:
        """Send a frame; a response without power does not reach the client."""
        life = self.life

        def on_response(data: bytes) -> None:
            if not self.disk.is_off and life == self.life:
                response(data)

        try:
            self.broker.send(frame, on_response)
        except PowerCut:
            assert self.disk.is_off

    def exchange(self, frame: bytes) -> Steps[bytes | None]:
        """Return a response without its size; None if a crash lost it or the connection was closed."""
        box: list[bytes] = []
        life = self.life
        self.send(frame, box.append)
        while not box and self.life == life:
            yield
        return box[0] or None if box else None

    def ask(self, key: int, version: int, **fields: Any) -> Steps[Any]:
        """Return the decoded response to a request, or None."""
        data = yield from self.exchange(encoded(key, version, fields))
        return None if data is None else decode_response(key, version, data)[1]

    def ask_now(self, key: int, version: int, **fields: Any) -> Any:
        """Return the response while no other client has a turn. Raises PowerCut."""
        return decode_response(key, version, self._exchange_now(encoded(key, version, fields)))[1]

    def _exchange_now(self, frame: bytes) -> bytes:
        box: list[bytes] = []
        self.send(frame, box.append)
        for _ in range(3):
            if box or self.disk.is_off:
                break
            self.broker.settle()
            self.clock.advance_ms(300)
        if self.disk.is_off:
            raise PowerCut("nobody was on_response")
        assert box and box[0], "no response"
        return box[0]

    def fetch_now(
        self, ledger: Ledger, offset: int, *, committed: bool = False, max_bytes: int = 1000
    ) -> FetchedPartition:
        asked = fetch_request(
            [(ledger.topic, ledger.index, offset)], partition_max_bytes=max_bytes, isolation_level=int(committed)
        )
        data = self._exchange_now(fetch.encode_request(FETCH_VERSION, 1, "simulated", asked))
        (response,) = fetch.parse_response(FETCH_VERSION, data).partitions
        return response

    # Who is there

    def pick(self) -> Ledger | None:
        """A partition that is served, as far as clients know."""
        there = [topic for topic in self.topics.values() if topic.is_sure and topic.name != ANCHOR]
        return self.seed.choice(self.seed.choice(there).ledgers) if there else None

    def is_there(self, ledger: Ledger) -> bool:
        """Return whether the partition's topic was neither deleted nor recreated."""
        topic = self.topics.get(ledger.topic)
        return topic is not None and ledger in topic.ledgers

    def new_commit(self, group: str) -> int:
        numbers = self.commits.setdefault(group, [])
        numbers.append(len(numbers))
        return numbers[-1]

    def saw_commit(self, group: str, offset: int, at_least: int) -> None:
        """Check a response to OffsetFetch: a committed offset, not older than the latest known one."""
        assert at_least <= offset < len(self.commits.get(group, ())), f"group {group}: {offset} after {at_least}"
        self.committed[group] = max(offset, self.committed.get(group, -1))

    # What must hold

    def audit(self) -> None:
        """Everything that was promised is there. Raises PowerCut where the power goes meanwhile."""
        self._audit_topics()
        for topic in self.topics.values():
            for ledger in topic.ledgers:
                self.audit_ledger(ledger)
        for group in list(self.commits):
            before = self.committed.get(group, -1)
            self.saw_commit(group, self.fetch_offset(group), before)
        self.check_unexpected()

    def check_unexpected(self) -> None:
        assert not self.unexpected.found, self.unexpected.found

    def _audit_topics(self) -> None:
        response = self.ask_now(
            apis.METADATA,
            12,
            topics=None,
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=False,
        )
        there = {item.name: item for item in response.topics if not item.is_internal}
        for name, topic in list(self.topics.items()):
            description = there.pop(name, None)
            if description is None:
                assert not topic.is_sure, f"topic {name} is gone"
                del self.topics[name]
            elif topic.is_sure or topic.topic_id == description.topic_id:
                assert description.topic_id == topic.topic_id, f"topic {name} is another one"
                assert len(description.partitions) >= topic.count
                topic.extend(len(description.partitions))
                topic.is_sure = True
            else:
                self._adopt(topic, description)
        assert not there, f"nobody made {there.keys()}"

    def _adopt(self, topic: Topic, description: Any) -> None:
        assert topic.topic_id is None, f"topic {topic.name} is another one than {topic.topic_id}"
        topic.topic_id, topic.is_sure = description.topic_id, True
        topic.extend(len(description.partitions))

    def audit_ledger(self, ledger: Ledger) -> None:
        records = self.read_all(ledger)
        ledger.check_whole(records, self.clock.now_ms(), RETENTION_MS)

    def read_all(self, ledger: Ledger, *, committed: bool = False) -> list[Found]:
        """Read from the log's start to its end, in several fetches."""
        first = self.fetch_now(ledger, 0, max_bytes=1)
        offset = 0
        if first.error_code == ErrorCode.offset_out_of_range:
            offset = self.log_start(ledger)
        all_records: list[Found] = []
        for _ in range(1000):
            response = self.fetch_now(ledger, offset, committed=committed)
            assert response.error_code == 0, f"{ledger}: {ErrorCode(response.error_code)!r} at {offset}"
            ledger.check_ends(response, ledger.ends)
            offset = max(offset, response.log_start_offset)
            records, behind = ledger.read(response, offset, committed=committed)
            all_records += records
            if behind == offset:
                end = response.last_stable_offset if committed else response.high_watermark
                assert offset == end or ledger.kind == "compacted", f"{ledger}: nothing at {offset} below {end}"
                return all_records
            offset = behind
        raise AssertionError(f"{ledger}: it never ends")

    def log_start(self, ledger: Ledger) -> int:
        partition = {"partition_index": ledger.index, "current_leader_epoch": -1, "timestamp": -2}
        topics = [{"name": ledger.topic, "partitions": [partition]}]
        response = self.ask_now(apis.LIST_OFFSETS, 7, replica_id=-1, isolation_level=0, topics=topics)
        return int(response.topics[0].partitions[0].offset)

    def fetch_offset(self, group: str) -> int:
        response = self.ask_now(apis.OFFSET_FETCH, 8, **offset_fetch(group))
        partition = response.groups[0].topics[0].partitions[0]
        assert not partition.error_code and not response.groups[0].error_code, response
        return int(partition.committed_offset)


def encoded(key: int, version: int, fields: dict[str, Any]) -> bytes:
    return encode_request(key, version, 1, "simulated", build(request_class(key, version), fields))


def new_topic(name: str, kind: str, count: int) -> dict[str, Any]:
    configs = [{"name": config, "value": value} for config, value in KINDS[kind].items()]
    wanted = {"name": name, "num_partitions": count, "replication_factor": 1, "assignments": (), "configs": configs}
    return {"topics": [wanted], "timeout": milliseconds(10_000), "validate_only": False}


def offset_fetch(group: str) -> dict[str, Any]:
    topics = [{"name": ANCHOR, "partition_indexes": [0]}]
    return {"groups": [{"group_id": group, "topics": topics}], "require_stable": False}
