"""Produce: refusals, the order of checks, repeated batches and gaps."""

import struct
from collections.abc import Callable
from typing import Any

from crc32c import crc32c

from onceflow.wire import apis
from onceflow.wire.batch import Record, encode_batch, read_header
from onceflow.wire.codecs import Codec
from tests.broker.raw_client import batch_of
from tests.conformance.fetch import fetched
from tests.conformance.normal_form import CRC_BEGIN
from tests.conformance.side import TIMEOUT, Side

HEADER = struct.Struct(">qiibIhiqqqhii")
FUTURE_MS = 4_000_000_000_000


def request(topic: str, *partitions: tuple[int, bytes | None], **fields: Any) -> dict[str, Any]:
    """Send a Produce to partitions of one topic."""
    data = [{"index": index, "records": None if records is None else bytes(records)} for index, records in partitions]
    topics = [{"name": topic, "partition_data": data}]
    return {"transactional_id": None, "acks": -1, "timeout": TIMEOUT, "topic_data": topics, **fields}


def produced(side: Side, topic: str, *partitions: tuple[int, bytes | None], version: int = 9, **fields: Any) -> Any:
    return side.ask(apis.PRODUCE, version, **request(topic, *partitions, **fields))


def rewritten(batch: bytearray, **changes: int) -> bytes:
    """Return the batch with other header fields and a matching CRC."""
    header = read_header(batch)._replace(**changes)
    HEADER.pack_into(batch, 0, *header)
    if "crc" not in changes:
        header = header._replace(crc=crc32c(memoryview(batch)[CRC_BEGIN:]))
        HEADER.pack_into(batch, 0, *header)
    return bytes(batch)


def announcing(count: int, codec: Codec = Codec.NONE) -> bytes:
    """Return a batch with one record, which announces `count` with the offsets that fit."""
    return rewritten(batch_of(b"a", codec=codec), record_count=count, last_offset_delta=count - 1)


def keyed(key: bytes | None, value: bytes | None) -> bytes:
    return bytes(encode_batch([Record(0, 1_700_000_000_000, key, value)]))


BATCHES: dict[str, Callable[[], bytes | bytearray | None]] = {
    "a right one": lambda: batch_of(b"a"),
    "no bytes": lambda: b"",
    "null": lambda: None,
    "a wrong CRC": lambda: rewritten(batch_of(b"a"), crc=1),
    "magic 0": lambda: rewritten(batch_of(b"a"), magic=0),
    "magic 1": lambda: rewritten(batch_of(b"a"), magic=1),
    "magic 3": lambda: rewritten(batch_of(b"a"), magic=3),
    "magic -1": lambda: rewritten(batch_of(b"a"), magic=-1),
    "two batches": lambda: batch_of(b"a") + batch_of(b"b"),
    "a batch and half another": lambda: batch_of(b"a") + batch_of(b"b")[:40],
    "half a batch": lambda: batch_of(b"a" * 100)[:100],
    "half a header": lambda: batch_of(b"a")[:40],
    "ten bytes": lambda: batch_of(b"a")[:10],
    "a length too small": lambda: rewritten(batch_of(b"a"), batch_length=10),
    "a length of 14": lambda: rewritten(batch_of(b"a"), batch_length=14),
    "a length of 48": lambda: rewritten(batch_of(b"a"), batch_length=48),
    "a length of 0": lambda: rewritten(batch_of(b"a"), batch_length=0),
    "a negative length": lambda: rewritten(batch_of(b"a"), batch_length=-1),
    "a length too large": lambda: rewritten(batch_of(b"a"), batch_length=1000),
    "no records": lambda: rewritten(batch_of(b"a"), record_count=0),
    "a negative count": lambda: rewritten(batch_of(b"a"), record_count=-1),
    "more records than offsets": lambda: rewritten(batch_of(b"a"), record_count=2),
    "a last offset delta of -1": lambda: rewritten(batch_of(b"a"), last_offset_delta=-1),
    "a last offset delta too large": lambda: rewritten(batch_of(b"a"), last_offset_delta=5),
    "no records and no offsets": lambda: rewritten(batch_of(b"a"), record_count=0, last_offset_delta=-1),
    "a negative count and delta": lambda: rewritten(batch_of(b"a"), record_count=-1, last_offset_delta=-2),
    "the smallest count and delta": lambda: rewritten(
        batch_of(b"a"), record_count=-(2**31), last_offset_delta=2**31 - 1
    ),
    "a record fewer than announced": lambda: announcing(2),
    **{
        f"{count} records announced, {codec.name.lower()}": lambda codec=codec, count=count: announcing(count, codec)  # type: ignore[misc]
        for codec in Codec
        for count in (1_000_000, 2**31 - 1)
    },
    "a base offset of 7": lambda: rewritten(batch_of(b"a"), base_offset=7),
    "a negative base offset": lambda: rewritten(batch_of(b"a"), base_offset=-7),
    "a leader epoch of 9": lambda: rewritten(batch_of(b"a"), partition_leader_epoch=9),
    "a control batch": lambda: batch_of(b"a", control=True),
    "log append time": lambda: rewritten(batch_of(b"a"), attributes=8),
    "a delete horizon": lambda: rewritten(batch_of(b"a"), attributes=0x40),
    "unused attributes": lambda: rewritten(batch_of(b"a"), attributes=0x80),
    "codec 5": lambda: rewritten(batch_of(b"a"), attributes=5),
    "codec 7": lambda: rewritten(batch_of(b"a"), attributes=7),
    "no gzip in it": lambda: rewritten(batch_of(b"a"), attributes=1),
    "too large": lambda: batch_of(b"x" * 1_100_000),
    "as large as may be": lambda: batch_of(b"x" * (1_048_588 - 61 - 12)),
    "a byte larger than may be": lambda: batch_of(b"x" * (1_048_588 - 61 - 12 + 1)),
    "from the future": lambda: batch_of(b"a", timestamp_ms=FUTURE_MS),
    "a header from the future": lambda: rewritten(batch_of(b"a"), max_timestamp=FUTURE_MS),
    "from 1970": lambda: batch_of(b"a", timestamp_ms=0),
    "no time": lambda: batch_of(b"a", timestamp_ms=-1),
    "a time before time": lambda: batch_of(b"a", timestamp_ms=-2),
    "a key and no value": lambda: keyed(b"k", None),
    "neither key nor value": lambda: keyed(None, None),
    "a producer without an epoch": lambda: batch_of(b"a", producer_id=7),
    "a producer without a sequence": lambda: batch_of(b"a", producer_id=7, producer_epoch=0),
    "a sequence without a producer": lambda: batch_of(b"a", base_sequence=3),
    "a negative producer": lambda: batch_of(b"a", producer_id=-2, producer_epoch=0, base_sequence=0),
    "an unknown producer": lambda: batch_of(b"a", producer_id=77, producer_epoch=3, base_sequence=0),
    "an unknown producer within its sequence": lambda: batch_of(
        b"a", producer_id=78, producer_epoch=3, base_sequence=9
    ),
    "transactional without a producer": lambda: batch_of(b"a", transactional=True),
    "transactional without a transaction": lambda: batch_of(
        b"a", producer_id=79, producer_epoch=0, base_sequence=0, transactional=True
    ),
    **{f"{codec.name.lower()}": lambda codec=codec: batch_of(b"a" * 99, b"b", codec=codec) for codec in Codec},  # type: ignore[misc]
}


def batch_case(make: Callable[[], bytes | bytearray | None]) -> Callable[[Side], None]:
    def case(side: Side) -> None:
        topic = side.create_topic()
        batch = make()
        produced(side, topic, (0, None if batch is None else bytes(batch)))
        fetched(side, topic, (0, 0))

    return case


def acks(value: int) -> Callable[[Side], None]:
    def case(side: Side) -> None:
        produced(side, side.create_topic(), (0, bytes(batch_of(b"a"))), acks=value)

    return case


def places(*partitions: int, name: str = "") -> Callable[[Side], None]:
    def case(side: Side) -> None:
        topic = side.create_topic(2)
        for version in (3, 9):
            produced(
                side, name or topic, *[(partition, bytes(batch_of(b"a"))) for partition in partitions], version=version
            )

    return case


def topics_named(*topics: str) -> Callable[[Side], None]:
    """Return the topics of one request; `own` is the case's."""

    def case(side: Side) -> None:
        side.create_topic()
        data = [{"index": 0, "records": bytes(batch_of(b"a"))}]
        named = [{"name": topic.replace("own", side.topic), "partition_data": data} for topic in topics]
        produced(side, "", topic_data=named)

    return case


def no_partitions(side: Side) -> None:
    produced(side, side.create_topic())


def good_and_bad(side: Side) -> None:
    topic = side.create_topic(3)
    good = bytes(batch_of(b"a"))
    produced(side, topic, (0, good), (1, rewritten(batch_of(b"a"), crc=1)), (7, good), (2, good))


def old_version_with_zstd(side: Side) -> None:
    topic = side.create_topic()
    batch = bytes(batch_of(b"a" * 99, codec=Codec.ZSTD))
    for version in (3, 6, 7):
        produced(side, topic, (0, batch), version=version)


def without_responses(side: Side) -> None:
    topic = side.create_topic()
    side.send(apis.PRODUCE, 9, **request(topic, (0, bytes(batch_of(b"a"))), acks=0))
    produced(side, topic, (0, bytes(batch_of(b"b"))))
    side.send(apis.PRODUCE, 9, **request(topic, (5, bytes(batch_of(b"c"))), acks=0))
    side.note("an error of acks=0", side.client().receive_frame())
    side.leave()


def keys_in_a_compacted_topic(side: Side) -> None:
    topic = side.create_topic(cleanup_policy="compact")
    for batch in (keyed(None, b"v"), keyed(b"", b"v"), keyed(b"k", None), bytes(batch_of(b"a", b"b"))):
        produced(side, topic, (0, batch))
    two = encode_batch([Record(0, 1, b"k", b"v"), Record(1, 1, None, b"v")])
    produced(side, topic, (0, bytes(two)))
    fetched(side, topic, (0, 0))


def log_append_time(side: Side) -> None:
    topic = side.create_topic(message_timestamp_type="LogAppendTime")
    for version in (3, 9):
        produced(side, topic, (0, bytes(batch_of(b"a", timestamp_ms=FUTURE_MS))), version=version)
    fetched(side, topic, (0, 0))


def a_topics_own_limit(side: Side) -> None:
    topic = side.create_topic(max_message_bytes="200")
    for size in (100, 128, 129, 200):
        produced(side, topic, (0, bytes(batch_of(b"x" * size))))


def times_between_bounds(side: Side) -> None:
    topic = side.create_topic(message_timestamp_before_max_ms="1000", message_timestamp_after_max_ms="1000")
    produced(side, topic, (0, bytes(batch_of(b"a"))))
    produced(side, topic, (0, bytes(batch_of(b"a", timestamp_ms=FUTURE_MS))))
    produced(side, topic, (0, bytes(batch_of(b"a", timestamp_ms=-1))))


class Idempotent:
    """Return a producer's batches of two records each."""

    def __init__(self, side: Side) -> None:
        fields = {"transaction_timeout": TIMEOUT, "producer_id": -1, "producer_epoch": -1}
        self.side = side
        self.topic = side.create_topic()
        self.producer_id = side.ask_quietly(apis.INIT_PRODUCER_ID, 4, transactional_id=None, **fields).producer_id

    def send(
        self, sequence: int, *, epoch: int = 0, values: tuple[bytes, ...] = (b"a", b"b"), version: int = 9
    ) -> None:
        who = {"producer_id": self.producer_id, "producer_epoch": epoch, "base_sequence": sequence}
        produced(self.side, self.topic, (0, bytes(batch_of(*values, **who))), version=version)


def sequences(*steps: tuple[int, int]) -> Callable[[Side], None]:
    """Write batches of these (base sequence, epoch)."""

    def case(side: Side) -> None:
        producer = Idempotent(side)
        for sequence, epoch in steps:
            producer.send(sequence, epoch=epoch)
        fetched(side, producer.topic, (0, 0))

    return case


def repeats_of_another_size(side: Side) -> None:
    producer = Idempotent(side)
    producer.send(0)
    producer.send(0, values=(b"a",))
    producer.send(0, values=(b"a", b"b", b"c"))
    producer.send(1, values=(b"b",))


def repeats_in_old_versions(side: Side) -> None:
    producer = Idempotent(side)
    for version in (3, 5, 9):
        producer.send(0, version=version)
        producer.send(6, version=version)


TOO_OLD = [(at * 2, 0) for at in range(7)] + [(0, 0), (2, 0), (4, 0), (12, 0)]

CASES: dict[str, Callable[[Side], None]] = {
    **{f"produce a batch: {name}": batch_case(make) for name, make in BATCHES.items()},
    **{f"produce with acks {value}": acks(value) for value in (1, 2, -2, 32767)},
    "produce to partition -1": places(-1),
    "produce to a partition that is not there": places(0, 2),
    "produce to a partition twice": places(0, 0),
    "produce to an unknown topic": places(0, name="no-such-topic-to-produce"),
    "produce to an impossible topic": places(0, name="a/b"),
    "produce to a topic without a name": topics_named(""),
    "produce to a topic twice": topics_named("own", "own"),
    "produce to the groups' topic": topics_named("__consumer_offsets", "own"),
    "produce to the transactions' topic": topics_named("__transaction_state"),
    "produce to the cluster's topic": topics_named("__cluster_metadata"),
    "produce to no topic": topics_named(),
    "produce to no partition": no_partitions,
    "produce what is good and what is not": good_and_bad,
    "produce zstd in old versions": old_version_with_zstd,
    "produce without responses": without_responses,
    "produce without keys to a compacted topic": keys_in_a_compacted_topic,
    "produce under log append time": log_append_time,
    "produce under a topic's own limit": a_topics_own_limit,
    "produce times between bounds": times_between_bounds,
    "sequences in order and repeated": sequences((0, 0), (2, 0), (0, 0), (2, 0), (4, 0)),
    "sequences with a gap": sequences((0, 0), (4, 0), (2, 0)),
    "sequences begun amid": sequences((5, 0), (7, 0)),
    "sequences repeated that are too old": sequences(*TOO_OLD),
    "sequences of a new epoch": sequences((0, 0), (0, 1), (2, 0), (2, 1)),
    "sequences of a new epoch begun amid": sequences((0, 0), (2, 1)),
    "sequences below zero": sequences((-1, 0), (-2, 0)),
    "sequences of another size": repeats_of_another_size,
    "sequences in old versions": repeats_in_old_versions,
}
