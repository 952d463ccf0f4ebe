"""Clients of the simulated broker; a client's `life` has its steps, with a yield wherever anything else may happen."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from onceflow.wire import apis, fetch, produce
from onceflow.wire.batch import Record, encode_batch
from onceflow.wire.errors import ErrorCode
from tests.broker.raw_client import FETCH_VERSION, PRODUCE_VERSION, fetch_request, milliseconds
from tests.broker.simulation.ledger import Ledger, Sent
from tests.broker.simulation.world import (
    ANCHOR,
    KINDS,
    MAY_HAVE_BEEN_DONE,
    Steps,
    Topic,
    World,
    new_topic,
    offset_fetch,
)

KEYS = 6
NAMES = ("t0", "t1", "t2")
TIMEOUT = milliseconds(10_000)


class Producer:
    """Base of all producers: sends numbered values that are unique."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.number = number
        self._count = 0

    def records(self, ledger: Ledger, *, count: int, padding: int = 0, is_transactional: bool = False) -> list[Record]:
        world = self.world
        made = []
        for place in range(count):
            value = b"%d.%d " % (self.number, self._count) + bytes(padding or world.seed.randrange(60))
            key = b"k%d" % world.seed.randrange(KEYS)
            ledger.sent[value] = Sent(self.number, self._count, key, world.clock.now_ms(), is_transactional)
            self._count += 1
            made.append(Record(place, world.clock.now_ms(), key, value))
        return made

    def request(self, ledger: Ledger, batch: Any, *, acks: int = -1, transactional_id: str | None = None) -> bytes:
        topics = [(ledger.topic, [(ledger.index, batch)])]
        pieces = produce.encode_request(
            PRODUCE_VERSION,
            1,
            "simulated",
            transactional_id=transactional_id,
            acks=acks,
            timeout_ms=1000,
            topics=topics,
        )
        return b"".join(map(bytes, pieces))

    def settled(self, ledger: Ledger, values: Sequence[bytes], data: bytes | None) -> ErrorCode | None:
        """Record a response to acks=all; return None if there is none."""
        if data is None:
            return None
        response = produce.parse_response(PRODUCE_VERSION, data)[1][0][1][0]
        if not response.error_code:
            ledger.acknowledge(response.base_offset, values)
            self.world.records += len(values)
        return ErrorCode(response.error_code)


def values_of(records: Sequence[Record]) -> list[bytes]:
    return [record.value or b"" for record in records]


class PlainProducer(Producer):
    """Sends each batch once, sometimes a wrong one, which must be refused and never be seen."""

    def life(self) -> Steps[None]:
        seed = self.world.seed
        while True:
            yield
            ledger = self.world.pick()
            if ledger is None:
                continue
            if seed.random() < 0.15:
                yield from self.send_wrong(ledger)
                continue
            records = self.records(ledger, count=seed.randrange(1, 4))
            acks = seed.choice((-1, -1, -1, 1, 0))
            frame = self.request(ledger, encode_batch(records), acks=acks)
            if acks == 0:
                self.world.send(frame, lambda _data: None)
                continue
            data = yield from self.world.exchange(frame)
            if acks == -1:
                code = self.settled(ledger, values_of(records), data)
                assert code in (None, ErrorCode.none, ErrorCode.unknown_topic_or_partition, *MAY_HAVE_BEEN_DONE), code

    def send_wrong(self, ledger: Ledger) -> Steps[None]:
        seed = self.world.seed
        topic = self.world.topics[ledger.topic]
        fault = seed.choice(("crc", "large", "transactional", "future", "sequence"))
        padding = 1_500 if fault == "large" else 0
        if fault == "large" and topic.message_bytes_max == 700:
            padding = 800
        records = self.records(ledger, count=1, padding=padding)
        if fault == "future":
            records = [record._replace(timestamp_ms=record.timestamp_ms + 2 * 3600 * 1000) for record in records]
        options: dict[str, Any] = {"transactional": {"producer_id": 7, "producer_epoch": 0, "transactional": True}}
        options["sequence"] = {"producer_id": 10**6, "producer_epoch": 0, "base_sequence": 0}
        batch = encode_batch(records, **options.get(fault, {}))
        if fault == "crc":
            batch[-1] ^= 1
        if fault == "sequence":
            yield from self.send_out_of_sequence(ledger, records)
            return
        ledger.refused |= set(values_of(records))
        data = yield from self.world.exchange(self.request(ledger, batch))
        code = self.settled(ledger, [], data)
        assert code != ErrorCode.none, f"{ledger}: {fault} was accepted"

    def send_out_of_sequence(self, ledger: Ledger, records: list[Record]) -> Steps[None]:
        """Send the first batch of a new producer id, and one that leaves a gap."""
        producer_id = 10**6 + self.number * 10**5 + self._count
        first = encode_batch(records, producer_id=producer_id, producer_epoch=0, base_sequence=0)
        data = yield from self.world.exchange(self.request(ledger, first))
        self.settled(ledger, values_of(records), data)
        records = self.records(ledger, count=1)
        ledger.refused |= set(values_of(records))
        gap = encode_batch(records, producer_id=producer_id, producer_epoch=0, base_sequence=7)
        data = yield from self.world.exchange(self.request(ledger, gap))
        code = self.settled(ledger, [], data)
        assert code != ErrorCode.none, f"{ledger}: a gap in the sequence was accepted"


class IdempotentProducer(Producer):
    """Several batches in flight, repeated in order until each is acknowledged."""

    def life(self) -> Steps[None]:
        seed = self.world.seed
        while True:
            response = yield from self.world.ask(
                apis.INIT_PRODUCER_ID,
                4,
                transactional_id=None,
                transaction_timeout=TIMEOUT,
                producer_id=-1,
                producer_epoch=-1,
            )
            if response is None or response.error_code:
                yield
                continue
            self.producer_id = response.producer_id
            self.sequences: Counter[Ledger] = Counter()
            for _ in range(seed.randrange(3, 15)):
                ledger = self.world.pick()
                if ledger is not None and not (yield from self.window(ledger)):
                    break
                yield

    def window(self, ledger: Ledger) -> Steps[bool]:
        """Send some batches at once and repeat what was not acknowledged; False if the topic was deleted."""
        world = self.world
        waiting: list[tuple[bytes, list[bytes]]] = []
        for _ in range(world.seed.randrange(1, 4)):
            records = self.records(ledger, count=world.seed.randrange(1, 4))
            batch = encode_batch(
                records, producer_id=self.producer_id, producer_epoch=0, base_sequence=self.sequences[ledger]
            )
            self.sequences[ledger] += len(records)
            waiting.append((self.request(ledger, batch), values_of(records)))
        for _ in range(200):
            if not world.is_there(ledger):
                return False
            responses = yield from self.send_all([frame for frame, _values in waiting])
            codes = [self.settled(ledger, entry[1], data) for entry, data in zip(waiting, responses, strict=True)]
            if codes[0] is not None and codes[0] == ErrorCode.unknown_topic_or_partition:
                return False
            assert codes[0] in (None, ErrorCode.none, *MAY_HAVE_BEEN_DONE), f"{ledger}: {codes}"
            waiting = [item for item, code in zip(waiting, codes, strict=True) if code != ErrorCode.none]
            if not waiting:
                return True
            yield
        return False

    def send_all(self, frames: Sequence[bytes]) -> Steps[list[bytes | None]]:
        """Send all frames at once on one connection; a crash loses the missing responses."""
        boxes: list[list[bytes]] = [[] for _ in frames]
        life = self.world.life
        for frame, box in zip(frames, boxes, strict=True):
            self.world.send(frame, box.append)
        while not all(boxes) and self.world.life == life:
            yield
        return [box[0] or None if box else None for box in boxes]


class Reader:
    """Reads from anywhere, waits for more, and asks for offsets."""

    def __init__(self, world: World) -> None:
        self.world = world

    def life(self) -> Steps[None]:
        seed = self.world.seed
        while True:
            yield
            if seed.random() < 0.2 and self.world.commits:
                yield from self.fetch_offset(seed.choice(sorted(self.world.commits)))
                continue
            ledger = self.world.pick()
            if ledger is not None:
                yield from self.read(ledger)

    def read(self, ledger: Ledger) -> Steps[None]:
        seed = self.world.seed
        offset = seed.randrange(ledger.log_start_offset, ledger.high_watermark + 1)
        committed = seed.random() < 0.5
        asked = fetch_request(
            [(ledger.topic, ledger.index, offset)],
            wait_ms=seed.choice((0, 0, 500, 3000)),
            partition_max_bytes=seed.choice((1, 300, 2000, 100_000)),
            isolation_level=int(committed),
        )
        known = ledger.ends
        data = yield from self.world.exchange(fetch.encode_request(FETCH_VERSION, 1, "simulated", asked))
        if data is None:
            return
        (response,) = fetch.parse_response(FETCH_VERSION, data).partitions
        if response.error_code == ErrorCode.unknown_topic_or_partition:
            return
        if response.error_code == ErrorCode.offset_out_of_range:
            assert ledger.kind == "short" or offset < ledger.start_asked, f"{ledger}: {offset} is not there"
            return
        assert response.error_code == 0, f"{ledger}: {ErrorCode(response.error_code)!r}"
        ledger.check_ends(response, known)
        ledger.read(response, offset, committed=committed)

    def fetch_offset(self, group: str) -> Steps[None]:
        before = self.world.committed.get(group, -1)
        response = yield from self.world.ask(apis.OFFSET_FETCH, 8, **offset_fetch(group))
        if response is None or response.groups[0].error_code:
            return
        partition = response.groups[0].topics[0].partitions[0]
        if not partition.error_code:
            self.world.saw_commit(group, partition.committed_offset, before)


class Admin:
    """The one who makes, changes and deletes topics, and their oldest records."""

    def __init__(self, world: World) -> None:
        self.world = world

    def life(self) -> Steps[None]:
        world, seed = self.world, self.world.seed
        while True:
            yield
            name = seed.choice(NAMES)
            topic = world.topics.get(name)
            if topic is None:
                yield from self.create(name)
            elif not topic.is_sure:
                continue
            elif seed.random() < 0.12:
                yield from self.delete(topic)
            else:
                yield from seed.choice((self.create_again, self.alter, self.add_partition, self.delete_records))(topic)

    def create(self, name: str) -> Steps[None]:
        world, seed = self.world, self.world.seed
        kind, count = seed.choice(sorted(KINDS)), seed.randrange(1, 3)
        topic = world.topics[name] = Topic(name, kind, count, is_sure=False)
        response = yield from world.ask(apis.CREATE_TOPICS, 7, **new_topic(name, kind, count))
        if response is None or world.topics.get(name) is not topic or topic.is_sure:
            return
        created = response.topics[0]
        if not created.error_code:
            topic.topic_id, topic.is_sure = created.topic_id, True
            topic.extend(count)

    def create_again(self, topic: Topic) -> Steps[None]:
        response = yield from self.world.ask(apis.CREATE_TOPICS, 7, **new_topic(topic.name, topic.kind, 1))
        allowed = (ErrorCode.topic_already_exists, *MAY_HAVE_BEEN_DONE)
        assert response is None or response.topics[0].error_code in allowed, response

    def delete(self, topic: Topic) -> Steps[None]:
        world = self.world
        topic.is_sure = False
        response = yield from world.ask(apis.DELETE_TOPICS, 5, topic_names=[topic.name], timeout=TIMEOUT)
        if response is not None and not response.responses[0].error_code and world.topics.get(topic.name) is topic:
            del world.topics[topic.name]

    def alter(self, topic: Topic) -> Steps[None]:
        wanted = self.world.seed.choice((700, 1_400))
        topic.message_bytes_max = None
        config = {"name": "max.message.bytes", "config_operation": 0, "value": str(wanted)}
        resource = {"resource_type": 2, "resource_name": topic.name, "configs": [config]}
        response = yield from self.world.ask(
            apis.INCREMENTAL_ALTER_CONFIGS, 1, resources=[resource], validate_only=False
        )
        if response is not None and not response.responses[0].error_code:
            topic.message_bytes_max = wanted

    def add_partition(self, topic: Topic) -> Steps[None]:
        if topic.count >= 3:
            return
        wanted: dict[str, Any] = {"name": topic.name, "count": topic.count + 1, "assignments": None}
        response = yield from self.world.ask(
            apis.CREATE_PARTITIONS, 3, topics=[wanted], timeout=TIMEOUT, validate_only=False
        )
        if response is not None and not response.results[0].error_code and self.world.topics.get(topic.name) is topic:
            topic.extend(wanted["count"])

    def delete_records(self, topic: Topic) -> Steps[None]:
        ledger = self.world.seed.choice(topic.ledgers)
        if ledger.kind == "compacted" or not ledger.high_watermark or self.world.seed.random() < 0.5:
            return
        offset = self.world.seed.randrange(ledger.high_watermark + 1)
        ledger.start_asked = max(offset, ledger.start_asked)
        partition = {"partition_index": ledger.index, "offset": offset}
        topics = [{"name": topic.name, "partitions": [partition]}]
        response = yield from self.world.ask(apis.DELETE_RECORDS, 2, topics=topics, timeout=TIMEOUT)
        if response is not None and not response.topics[0].partitions[0].error_code:
            ledger.log_start_offset = max(offset, ledger.log_start_offset)


class Committer:
    """Commits growing offsets of one group without being its member."""

    def __init__(self, world: World, group: str) -> None:
        self.world = world
        self.group = group

    def life(self) -> Steps[None]:
        while True:
            yield
            yield from commit(self.world, self.group, -1, "")


def commit(world: World, group: str, generation: int, member_id: str) -> Steps[ErrorCode | None]:
    """Commit the next number; return None if no response came."""
    number = world.new_commit(group)
    place = {"partition_index": 0, "committed_offset": number, "committed_leader_epoch": -1, "committed_metadata": ""}
    response = yield from world.ask(
        apis.OFFSET_COMMIT,
        8,
        group_id=group,
        generation_id_or_member_epoch=generation,
        member_id=member_id,
        group_instance_id=None,
        topics=[{"name": ANCHOR, "partitions": [place]}],
    )
    if response is None:
        return None
    code = ErrorCode(response.topics[0].partitions[0].error_code)
    if not code:
        world.committed[group] = max(number, world.committed.get(group, -1))
    return code
