"""Hand-written Fetch compared with kio: every version, both directions, every cut, unknown tags."""

import random
import struct
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from onceflow.wire import fetch
from onceflow.wire.apis import APIS, CLUSTER_APIS, FETCH
from onceflow.wire.errors import MalformedFrame
from onceflow.wire.fetch import (
    READ_COMMITTED,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    PartitionResponse,
    encode_request,
    encode_response,
    parse_request,
    parse_response,
)
from onceflow.wire.frames import decode_request, read_request_header, request_class, response_class
from onceflow.wire.frames import decode_response as decode_by_kio
from onceflow.wire.frames import encode_request as encode_by_kio
from onceflow.wire.frames import encode_response as encode_response_by_kio
from tests.wire.messages import random_message

every_version = pytest.mark.parametrize("version", range(APIS[FETCH].version_min, APIS[FETCH].version_max + 1))
with_topic_ids = pytest.mark.parametrize("version", range(fetch.IDS_FROM, CLUSTER_APIS[FETCH].version_max + 1))

RECORDS = [b"batch one", b"batch number two"]
TOPICS = [
    (
        "clicks",
        [
            PartitionResponse(0, 0, 2**40, 2**40 - 1, 3, len(RECORDS[0]), [(7, 5), (8, 6)]),
            PartitionResponse(1, 1, -1, -1, -1, 0),
        ],
    ),
    ("täglich", []),
    ("views", [PartitionResponse(9, 0, 4, 4, 0, len(RECORDS[1]), []), PartitionResponse(10, 0, 4, 4, 0, 0, [])]),
]


def parsed(frame: memoryview) -> FetchRequest:
    return parse_request(frame, read_request_header(frame))


def as_kio_says(message: Any) -> FetchRequest:
    topics = [
        (
            topic.topic,
            [
                FetchPartition(
                    partition.partition,
                    getattr(partition, "current_leader_epoch", -1),
                    partition.fetch_offset,
                    getattr(partition, "log_start_offset", -1),
                    partition.partition_max_bytes,
                    getattr(partition, "last_fetched_epoch", -1),
                )
                for partition in topic.partitions
            ],
        )
        for topic in message.topics
    ]
    return FetchRequest(
        message.replica_id,
        round(message.max_wait.total_seconds() * 1000),
        message.min_bytes,
        message.max_bytes,
        message.isolation_level,
        getattr(message, "session_id", 0),
        getattr(message, "session_epoch", -1),
        topics,
        getattr(message, "rack_id", ""),
    )


def name_of(topic_id: UUID) -> str | None:
    """Know every second topic."""
    return None if topic_id.int % 2 else str(topic_id)


def parsed_by_id(frame: memoryview) -> FetchRequest:
    return parse_request(frame, read_request_header(frame, served=CLUSTER_APIS), name_of=name_of)


def by_id_as_kio_says(message: Any) -> FetchRequest:
    asked = [
        (
            topic.topic_id or UUID(int=0),
            [
                FetchPartition(
                    partition.partition,
                    partition.current_leader_epoch,
                    partition.fetch_offset,
                    partition.log_start_offset,
                    partition.partition_max_bytes,
                    partition.last_fetched_epoch,
                )
                for partition in topic.partitions
            ],
        )
        for topic in message.topics
    ]
    known = [(name, topic_id, partitions) for topic_id, partitions in asked if (name := name_of(topic_id)) is not None]
    return FetchRequest(
        message.replica_state.replica_id if hasattr(message, "replica_state") else message.replica_id,
        round(message.max_wait.total_seconds() * 1000),
        message.min_bytes,
        message.max_bytes,
        message.isolation_level,
        message.session_id,
        message.session_epoch,
        [(name, partitions) for name, _topic_id, partitions in known],
        message.rack_id,
        {name: topic_id for name, topic_id, _partitions in known},
        tuple((topic_id, partitions) for topic_id, partitions in asked if name_of(topic_id) is None),
    )


@with_topic_ids
def test_requests_with_ids_are_read(version: int) -> None:
    seeded = random.Random(version)
    for _ in range(40):
        message = random_message(request_class(FETCH, version), seeded)
        frame = memoryview(encode_by_kio(FETCH, version, 77, "me", message))[4:]
        assert parsed_by_id(frame) == by_id_as_kio_says(message)
    for end in range(12, len(frame)):
        with pytest.raises(MalformedFrame):
            parsed_by_id(frame[:end])


@with_topic_ids
def test_damaged_requests_with_ids_match_kio(version: int) -> None:
    seeded = random.Random(version)
    frame = encode_by_kio(FETCH, version, 77, "me", random_message(request_class(FETCH, version), seeded))[4:]
    for _ in range(500):
        spoilt = bytearray(frame)
        spoilt[seeded.randrange(12, len(spoilt))] = seeded.choice((0, 1, 0x7F, 0x80, 0xFF))
        try:
            parsed_by_id(memoryview(spoilt))
        except MalformedFrame:
            continue


@with_topic_ids
def test_responses_with_ids_are_kios(version: int) -> None:
    topics = [(UUID(int=number), partitions) for number, (_name, partitions) in enumerate(TOPICS, 1)]
    pieces = encode_response(version, -3, topics, throttle_ms=250)
    frame = pieces[0] + RECORDS[0] + pieces[1] + RECORDS[1] + pieces[2]
    correlation_id, message = decode_by_kio(FETCH, version, frame[4:])
    assert encode_response_by_kio(FETCH, version, correlation_id, message) == frame
    assert [topic.topic_id.int for topic in message.responses] == [1, 2, 3]
    assert [partition.records for partition in message.responses[0].partitions] == [RECORDS[0], b""]
    (one,) = encode_response(version, 1, [(UUID(int=9), [PartitionResponse(0, 0, 4, 4, 0, 0)])])
    assert decode_by_kio(FETCH, version, one[4:])[1].responses[0].topic_id.int == 9


def test_followers_are_named_in_tags() -> None:
    state: Any = request_class(FETCH, 17).__annotations__["replica_state"]
    message = random_message(request_class(FETCH, 17), random.Random(1))
    frame = encode_by_kio(FETCH, 17, 1, "me", replace(message, replica_state=state(replica_id=7, replica_epoch=9)))[4:]
    assert parsed_by_id(memoryview(frame)).replica_id == 7


def whole(version: int) -> bytes:
    pieces = encode_response(version, -3, TOPICS, throttle_ms=250)
    assert len(pieces) == len(RECORDS) + 1
    frame = pieces[0] + RECORDS[0] + pieces[1] + RECORDS[1] + pieces[2]
    assert int.from_bytes(frame[:4]) == len(frame) - 4
    return frame


@every_version
def test_requests_are_read_as_kio_says(version: int) -> None:
    seeded = random.Random(version)
    for _ in range(40):
        message = random_message(request_class(FETCH, version), seeded)
        frame = memoryview(encode_by_kio(FETCH, version, 77, "me", message))[4:]
        assert parsed(frame) == as_kio_says(message)


@every_version
def test_requests_are_written_as_they_are_read(version: int) -> None:
    topics = [("clicks", [FetchPartition(0, -1, 2**40, -1, 2**20), FetchPartition(1, -1, 0, -1, 1)]), ("views", [])]
    request = FetchRequest(-1, 500, 1, 2**30, READ_COMMITTED, 0, -1, topics)
    frame = memoryview(encode_request(version, 1, "me", request))
    assert int.from_bytes(frame[:4]) == len(frame) - 4
    assert parsed(frame[4:]) == request
    for end in range(4, len(frame)):
        with pytest.raises(MalformedFrame):
            parsed(frame[4:end])
    assert parsed(memoryview(bytes(frame[4:]) + bytes(3))) == request


@every_version
def test_noise_is_malformed_or_a_request(version: int) -> None:
    seeded = random.Random(version)
    message = random_message(request_class(FETCH, version), seeded)
    frame = encode_by_kio(FETCH, version, 77, "me", message)[4:]
    for _ in range(500):
        spoilt = bytearray(frame)
        spoilt[seeded.randrange(12, len(spoilt))] = seeded.choice((0, 0x7F, 0x80, 0xFF))
        try:
            parsed(memoryview(spoilt))
        except MalformedFrame:
            continue


def test_unknown_tags_are_skipped_wherever_they_stand() -> None:
    tags = b"\x01\x63\x03abc"
    partition = bytes.fromhex("00000005 ffffffff 0000000000000009 ffffffff ffffffffffffffff 00100000") + tags
    frame = (
        bytes.fromhex("0001 000c 00000001 ffff") + tags + bytes.fromhex("ffffffff 00000064 00000001 7fffffff 01")
        + bytes.fromhex("00000000 ffffffff 02 0261 02") + partition + tags
        + bytes.fromhex("02 0262 02 00000007") + tags + b"\x05rack" + tags
    )  # fmt: skip
    topics = [("a", [FetchPartition(5, -1, 9, -1, 2**20)])]
    assert parsed(memoryview(frame)) == FetchRequest(-1, 100, 1, 2**31 - 1, 1, 0, -1, topics, "rack")


@pytest.mark.parametrize("version", [11, 12])
def test_another_broker_to_read_from(version: int) -> None:
    preferred = PartitionResponse(0, 0, 20, 20, 0, 0, preferred_read_replica=3)
    (frame,) = encode_response(version, 1, [("clicks", [preferred])])
    _correlation_id, by_kio = decode_by_kio(FETCH, version, frame[4:])
    assert by_kio.responses[0].partitions[0].preferred_read_replica == 3
    assert parse_response(version, frame[4:]).partitions[0].preferred_read_replica == 3
    topics = [("clicks", [FetchPartition(0, -1, 20, -1, 1)])]
    request = FetchRequest(-1, 500, 1, 2**30, READ_COMMITTED, 0, -1, topics, "a")
    assert parsed(memoryview(encode_request(version, 1, "me", request))[4:]) == request


@every_version
def test_responses_are_what_kio_reads(version: int) -> None:
    frame = whole(version)
    correlation_id, message = decode_by_kio(FETCH, version, frame[4:])
    assert encode_response_by_kio(FETCH, version, correlation_id, message) == frame
    clicks, nothing, views = message.responses
    assert (correlation_id, clicks.topic, nothing.partitions, views.topic) == (-3, "clicks", (), "views")
    assert [partition.records for partition in clicks.partitions] == [RECORDS[0], b""]
    assert [partition.aborted_transactions for partition in views.partitions] == [(), ()]
    assert clicks.partitions[1].aborted_transactions is None
    assert [(aborted.producer_id, aborted.first_offset) for aborted in clicks.partitions[0].aborted_transactions] == [
        (7, 5),
        (8, 6),
    ]


@every_version
def test_responses_are_read_back_without_a_copy(version: int) -> None:
    frame = bytearray(whole(version)[4:])
    response = parse_response(version, memoryview(frame))
    assert response._replace(partitions=[]) == FetchResponse(-3, 250, 0, 0, [])
    expected = [(topic, data) for topic, partitions in TOPICS for data in partitions]
    for (topic, data), partition in zip(expected, response.partitions, strict=True):
        start = data.log_start_offset if version >= 5 else -1
        assert partition[:6] == (topic, *data[:4], start)
        assert partition.aborted == list(data.aborted or [])
        assert len(partition.records) == data.records_bytes
    frame[frame.index(b"batch one")] = ord("B")
    assert bytes(response.partitions[0].records) == b"Batch one"
    for end in range(len(frame)):
        with pytest.raises(MalformedFrame):
            parse_response(version, memoryview(frame)[:end])


@every_version
def test_responses_with_tags_and_nulls(version: int) -> None:
    seeded = random.Random(version)
    for _ in range(40):
        message = random_message(response_class(FETCH, version), seeded)
        response = parse_response(version, encode_response_by_kio(FETCH, version, 1, message)[4:])
        said = [(topic.topic, partition) for topic in message.responses for partition in topic.partitions]
        for (topic, partition), read in zip(said, response.partitions, strict=True):
            assert read[:4] == (topic, partition.partition_index, partition.error_code.value, partition.high_watermark)
            assert bytes(read.records) == (partition.records or b"")
            diverging = getattr(partition, "diverging_epoch", None)
            given = None if diverging is None else (diverging.epoch, diverging.end_offset)
            assert (read.diverging_epoch or (-1, -1)) == (given or (-1, -1))


def test_request_error_has_no_partitions() -> None:
    (frame,) = encode_response(12, 1, [], error_code=35)
    assert parse_response(12, frame[4:]) == FetchResponse(1, 0, 35, 0, [])


def request_for_one(name: str) -> bytes:
    asked = FetchPartition(5, 0, 2**40, -1, 2**20)
    return encode_request(12, 7, "me", FetchRequest(-1, 500, 1, 2**30, READ_COMMITTED, 0, -1, [(name, [asked])]))[4:]


@pytest.mark.parametrize("name", ["", "a", "clicks", "täglich", "t" * 126, "t" * 127, "t" * 249])
def test_single_partition_request(name: str) -> None:
    frame = request_for_one(name)
    # With one more byte it is read field by field.
    assert parsed(memoryview(frame)) == parsed(memoryview(frame + b"\0"))
    assert parsed(memoryview(frame)).topics == [(name, [FetchPartition(5, 0, 2**40, -1, 2**20)])]
    with pytest.raises(MalformedFrame, match="more than 1"):
        parse_request(memoryview(frame), read_request_header(memoryview(frame)), entries_max=1)


def test_damaged_single_partition_request_matches_kio() -> None:
    seeded = random.Random(5)
    frame = request_for_one("täglich")
    read = 0
    for _ in range(20_000):
        spoilt = bytearray(frame)
        for _ in range(seeded.randint(1, 2)):
            spoilt[seeded.randrange(12, len(spoilt))] = seeded.choice((0, 1, 2, 3, 0x7F, 0x80, 0xFF))
        view = memoryview(spoilt)
        try:
            request = parsed(view)
        except MalformedFrame:
            continue
        read += 1
        assert request == as_kio_says(decode_request(view, read_request_header(view)))
    assert read > 1000


def test_two_byte_name_length_is_read() -> None:
    """Read as one byte it would end in the tagged field, which has what a shorter request would have there."""
    asked = struct.pack(">iiqiqi", 5, 0, 9, 0, 0, 2**20)
    other = struct.pack(">iiqiqi", 6, 0, 8, 0, 0, 2**20)
    tag = bytes(91) + b"\x02" + other + b"\0"
    frame = (
        bytes.fromhex("0001 000c 00000001 0002 6d65 00 ffffffff 00000064 00000001 7fffffff 01 00000000 ffffffff 02")
        + b"\x85\x00abcd\x02" + asked + b"\x01\x63" + bytes([len(tag)]) + tag + bytes.fromhex("00 01 01 00")
    )  # fmt: skip
    assert parsed(memoryview(frame)).topics == [("abcd", [FetchPartition(5, 0, 9, 0, 2**20, 0)])]


@every_version
@pytest.mark.parametrize("aborted", [None, [], [(7, 5)]])
@pytest.mark.parametrize("records_bytes", [0, 1, 126, 127, 16_383, 2**21])
def test_single_partition_response(version: int, aborted: list[tuple[int, int]] | None, records_bytes: int) -> None:
    for name, error_code, whole_error_code, throttle_ms in (
        ("a", 0, 0, 0),
        ("t" * 249, 0, 0, 0),
        ("a", 6, 0, 0),
        ("a", 0, 70, 0),
        ("a", 0, 0, 9),
    ):
        data = PartitionResponse(9, error_code, 2**40, 2**40 - 1, 3, records_bytes, aborted)
        pieces = encode_response(version, -3, [(name, [data])], error_code=whole_error_code, throttle_ms=throttle_ms)
        frame = bytes(records_bytes).join(pieces) if records_bytes else pieces[0]
        assert len(pieces) == (2 if records_bytes else 1)
        assert int.from_bytes(frame[:4]) == len(frame) - 4
        correlation_id, message = decode_by_kio(FETCH, version, frame[4:])
        assert encode_response_by_kio(FETCH, version, correlation_id, message) == frame
        assert round(1000 * message.throttle_time.total_seconds()) == throttle_ms
        assert getattr(message, "error_code", whole_error_code) == whole_error_code
        (topic,) = message.responses
        (got,) = topic.partitions
        assert (topic.topic, got.partition_index, got.error_code, len(got.records)) == (
            name,
            9,
            error_code,
            records_bytes,
        )
        assert (got.high_watermark, got.last_stable_offset) == (2**40, 2**40 - 1)
        known = got.aborted_transactions
        pairs = known and [(entry.producer_id, entry.first_offset) for entry in known]
        assert pairs == (aborted or known)
        assert (known is None) == (aborted is None)


@every_version
def test_responses_without_throttling(version: int) -> None:
    one = [("clicks", [PartitionResponse(0, 0, 4, 4, 0, 5, [])])]
    several: list[Any] = [TOPICS, [("clicks", TOPICS[0][1])], one + one, [*one, ("views", [])], [("views", [])], []]
    for topics in several:
        throttled = encode_response(version, -3, topics, throttle_ms=1)
        pieces = encode_response(version, -3, topics)
        begin = 8 + (version >= APIS[FETCH].flexible_from)
        assert throttled[0][begin : begin + 4] == b"\0\0\0\1"
        assert [pieces[0][:begin] + b"\0\0\0\1" + pieces[0][begin + 4 :], *pieces[1:]] == throttled


def test_only_existing_topics_are_cached() -> None:
    before = fetch._single_partition_response.cache_info().currsize
    for number in range(20):
        unknown = PartitionResponse(0, 3, -1, -1, -1, 0)
        encode_response(12, 1, [(f"{number}" * 10_000, [unknown])])
    assert fetch._single_partition_response.cache_info().currsize == before


@every_version
def test_single_partition_request_of_each_version(version: int) -> None:
    asked = FetchPartition(5, -1, 2**40, -1, 2**20)
    request = FetchRequest(-1, 500, 1, 2**30, READ_COMMITTED, 0, -1, [("clicks", [asked])])
    assert parsed(memoryview(encode_request(version, 1, "me", request))[4:]) == request


def test_epochs_of_readers_are_written() -> None:
    asked = FetchPartition(5, 3, 2**40, -1, 2**20, 2)
    request = FetchRequest(4, 500, 1, 2**30, READ_COMMITTED, 0, -1, [("clicks", [asked])])
    assert parsed(memoryview(encode_request(12, 1, "me", request))[4:]) == request
    parted = PartitionResponse(5, 0, 4, 4, 0, 0, [], (2, 17))
    (frame,) = encode_response(12, 1, [("clicks", [parted])])
    assert parse_response(12, frame[4:]).partitions[0].diverging_epoch == (2, 17)
    (end,) = decode_by_kio(FETCH, 12, frame[4:])[1].responses[0].partitions
    assert (end.diverging_epoch.epoch, end.diverging_epoch.end_offset) == (2, 17)
