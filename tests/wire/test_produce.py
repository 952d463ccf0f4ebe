"""Hand-written Produce compared with kio: every version, both directions, every cut, unknown tags."""

import random
from typing import Any

import pytest
from kio.serial import entity_reader as kio_reader

from onceflow.wire.apis import APIS, PRODUCE
from onceflow.wire.errors import MalformedFrame
from onceflow.wire.frames import encode_request as encode_by_kio
from onceflow.wire.frames import encode_response as encode_response_by_kio
from onceflow.wire.frames import read_request_header, request_class, response_class
from onceflow.wire.produce import (
    ERROR_MESSAGE_CHARACTERS_MAX,
    PartitionResponse,
    ProduceRequest,
    encode_request,
    encode_response,
    parse_request,
    parse_response,
)
from tests.wire.messages import random_message

every_version = pytest.mark.parametrize("version", range(APIS[PRODUCE].version_min, APIS[PRODUCE].version_max + 1))

TOPICS = [
    ("clicks", [PartitionResponse(0, 0, 2**40, -1, 7), PartitionResponse(1, 0, 5, 1700000000000, 7)]),
    ("täglich", []),
    ("views", [PartitionResponse(9, 87, -1, -1, -1, "record 3 has no key")]),
]


def parsed(frame: memoryview) -> ProduceRequest:
    return parse_request(frame, read_request_header(frame))


def as_kio_says(message: Any) -> ProduceRequest:
    topics = [
        (topic.name, [(partition.index, partition.records) for partition in topic.partition_data])
        for topic in message.topic_data
    ]
    timeout_ms = round(message.timeout.total_seconds() * 1000)
    return ProduceRequest(message.transactional_id, message.acks, timeout_ms, topics)


@every_version
def test_requests_match_kio(version: int) -> None:
    seeded = random.Random(version)
    for _ in range(40):
        message = random_message(request_class(PRODUCE, version), seeded)
        frame = encode_by_kio(PRODUCE, version, 77, "me", message)
        request = parsed(memoryview(frame)[4:])
        assert request == as_kio_says(message)
        assert b"".join(encode_request(version, 77, "me", **request._asdict())) == frame


@every_version
def test_cut_or_too_long_request(version: int) -> None:
    records = bytes(300)
    frame = b"".join(
        encode_request(
            version,
            1,
            None,
            transactional_id="t",
            acks=-1,
            timeout_ms=9,
            topics=[("a", [(0, records), (1, None)]), ("b", [])],
        )
    )[4:]
    for end in range(len(frame)):
        with pytest.raises(MalformedFrame):
            parsed(memoryview(frame)[:end])
    assert parsed(memoryview(frame + bytes(3))) == parsed(memoryview(frame))


@every_version
def test_noise_is_malformed_or_a_request(version: int) -> None:
    seeded = random.Random(version)
    topics = [("clicks", [(0, bytes(20))])]
    pieces = encode_request(version, 1, "me", transactional_id=None, acks=-1, timeout_ms=9, topics=topics)
    frame = b"".join(pieces)[4:]
    for _ in range(500):
        spoilt = bytearray(frame)
        spoilt[seeded.randrange(10, len(spoilt))] = seeded.choice((0, 0x7F, 0x80, 0xFF))
        try:
            parsed(memoryview(spoilt))
        except MalformedFrame:
            continue


def test_records_and_pieces_are_not_copied() -> None:
    records = bytearray(b"some batch")
    topics = [("clicks", [(0, records)])]
    pieces = encode_request(9, 1, "me", transactional_id=None, acks=-1, timeout_ms=9, topics=topics)
    assert pieces[1] is records
    frame = bytearray(b"".join(pieces)[4:])
    view = parsed(memoryview(frame)).topics[0][1][0][1]
    assert view is not None
    frame[frame.index(b"some")] = ord("S")
    assert bytes(view) == b"Some batch"


def test_unknown_tags_are_skipped_everywhere() -> None:
    tags = b"\x01\x63\x03abc"
    frame = (
        b"\x00\x00\x00\x09\x00\x00\x00\x01\x00\x02me" + tags + b"\x00\xff\xff\x00\x00\x00\x09"
        b"\x02\x02a\x02\x00\x00\x00\x05\x03xy" + tags + tags + tags
    )
    assert parsed(memoryview(frame)) == ProduceRequest(None, -1, 9, [("a", [(5, b"xy")])])  # type: ignore[list-item]


@every_version
def test_responses_are_what_kio_reads(version: int) -> None:
    frame = encode_response(version, -3, TOPICS, throttle_ms=250)
    assert int.from_bytes(frame[:4]) == len(frame) - 4
    tags = version >= APIS[PRODUCE].flexible_from
    message, size_bytes = kio_reader(response_class(PRODUCE, version))(frame, 8 + tags)
    assert 8 + tags + size_bytes == len(frame)
    assert encode_response_by_kio(PRODUCE, version, -3, message) == frame
    assert [topic.name for topic in message.responses] == [name for name, _ in TOPICS]
    assert message.responses[0].partition_responses[0].base_offset == 2**40


@every_version
def test_responses_are_read_back(version: int) -> None:
    frame = encode_response(version, -3, TOPICS, throttle_ms=250)[4:]
    correlation_id, topics, throttle_ms = parse_response(version, frame)
    known = {
        name: [
            partition._replace(
                log_start_offset=partition.log_start_offset if version >= 5 else -1,
                error_message=partition.error_message if version >= 8 else None,
            )
            for partition in partitions
        ]
        for name, partitions in TOPICS
    }
    assert (correlation_id, dict(topics), throttle_ms) == (-3, known, 250)
    for end in range(len(frame)):
        with pytest.raises(MalformedFrame):
            parse_response(version, frame[:end])


@pytest.mark.parametrize("version", [8, 9])
def test_record_error_replaces_missing_batch_error(version: int) -> None:
    seeded = random.Random(1)
    for _ in range(60):
        message = random_message(response_class(PRODUCE, version), seeded)
        _, topics, _ = parse_response(version, encode_response_by_kio(PRODUCE, version, 1, message)[4:])
        for topic, (_, partitions) in zip(message.responses, topics, strict=True):
            for decoded, partition in zip(topic.partition_responses, partitions, strict=True):
                about_records = [error.batch_index_error_message for error in decoded.record_errors]
                expected = decoded.error_message or next((text for text in about_records if text), None)
                assert (partition.error_message or None) == expected
                assert partition.error_code == decoded.error_code.value


@every_version
def test_too_long_message_is_cut(version: int) -> None:
    partition = PartitionResponse(0, 3, -1, error_message="ß" * 40_000)
    _, topics, _ = parse_response(version, encode_response(version, 1, [("t", [partition])])[4:])
    assert topics[0][1][0].error_message == ("ß" * ERROR_MESSAGE_CHARACTERS_MAX if version >= 8 else None)
