"""Frames and kio's messages: the same values as kio's own reader, and a defined error for every damaged byte."""

import random
import resource
import subprocess
import sys
from datetime import timedelta
from typing import Any

import pytest
from kio.serial import entity_reader as kio_reader

from onceflow.wire.apis import API_VERSIONS, APIS, INIT_PRODUCER_ID, LIST_OFFSETS, METADATA, Api
from onceflow.wire.errors import ErrorCode, MalformedFrame, UnsupportedVersion
from onceflow.wire.frames import (
    RequestHeader,
    decode_request,
    decode_request_in_steps,
    decode_response,
    encode_request,
    encode_response,
    encode_unsupported_api_versions,
    read_request_header,
    request_class,
    response_class,
)
from onceflow.wire.messages import message_of
from tests.wire.messages import body, every_version, random_message


def decoded_in_steps(frame: memoryview, header: RequestHeader, elements_max: int = 1000) -> Any:
    """Return the result of `decode_request_in_steps`; a request without elements is read before each step."""
    other = request_frame(APIS[METADATA], 1, request_class(METADATA, 1)(topics=()))
    steps = decode_request_in_steps(frame, header, elements_max=elements_max)
    while True:
        try:
            assert next(steps) > 0
        except StopIteration as end:
            return end.value
        decode_request(other, read_request_header(other, 0), elements_max=0)


def request_frame(api: Api, version: int, message: Any, client_id: str | None = "tëst") -> memoryview:
    frame = encode_request(api.key, version, 77, client_id, message)
    assert int.from_bytes(frame[:4]) == len(frame) - 4
    return memoryview(frame)[4:]


@every_version
def test_requests_are_read_as_kio_reads_them(api: Api, version: int) -> None:
    seeded = random.Random(f"{api.name} {version}")
    for _ in range(5):
        message = random_message(request_class(api.key, version), seeded)
        frame = request_frame(api, version, message)
        header = read_request_header(frame)
        assert (header.api, header.version, header.correlation_id, header.client_id) == (api, version, 77, "tëst")
        assert bytes(frame[header.body_position :]) == body(message)
        assert decode_request(frame, header) == message == kio_reader(type(message))(body(message), 0)[0]
        assert decoded_in_steps(frame, header) == message


def test_tagged_fields_are_work() -> None:
    """An element of many costs as much more to read."""
    topics = b"\x03" + b"".join(b"\x02t" + bytes([count]) + tags(count) for count in (0, 20))
    some = request_frame(APIS[METADATA], 9, random_message(request_class(METADATA, 9), random.Random(1)))
    begin = bytes(some[: read_request_header(some).body_position])
    frame = memoryview(begin + topics + b"\0\0\0\0")
    without, with_tags = decode_request_in_steps(frame, read_request_header(frame))
    assert with_tags - without == 20


def tags(count: int) -> bytes:
    """Return that many empty tagged fields with unknown numbers."""
    return b"".join(bytes([100 + number, 0]) for number in range(count))


@every_version
def test_responses_are_read_as_kio_reads_them(api: Api, version: int) -> None:
    seeded = random.Random(f"{api.name} {version}")
    for _ in range(5):
        message = random_message(response_class(api.key, version), seeded)
        frame = encode_response(api.key, version, -5, message)
        assert int.from_bytes(frame[:4]) == len(frame) - 4
        tags = message.__flexible__ and api.key != API_VERSIONS
        assert frame[8:] == b"\x00" * tags + body(message)
        assert decode_response(api.key, version, frame[4:]) == (-5, message)


@every_version
def test_cut_request_and_trailing_bytes(api: Api, version: int) -> None:
    seeded = random.Random(f"{api.name} {version}")
    frame = request_frame(api, version, random_message(request_class(api.key, version), seeded))
    step = 1 + len(frame) // 200
    for end in range(0, len(frame), step):
        with pytest.raises(MalformedFrame):
            decode_request(frame[:end], read_request_header(frame[:end]))
        with pytest.raises(MalformedFrame):
            decoded_in_steps(frame[:end], read_request_header(frame[:end]))
    longer = memoryview(bytes(frame) + bytes(3))
    assert decode_request(longer, read_request_header(longer)) == decode_request(frame, read_request_header(frame))


@every_version
def test_noise_is_malformed_or_a_message(api: Api, version: int) -> None:
    seeded = random.Random(f"{api.name} {version}")
    frame = request_frame(api, version, random_message(request_class(api.key, version), seeded))
    body_position = read_request_header(frame).body_position
    for _ in range(60):
        spoilt = bytearray(frame)
        for _ in range(seeded.choice((1, 1, 4))):
            if body_position < len(spoilt):
                spoilt[seeded.randrange(body_position, len(spoilt))] = seeded.choice((0, 0x7F, 0x80, 0xFF))
        try:
            decode_request(memoryview(spoilt), read_request_header(memoryview(spoilt)))
        except MalformedFrame:
            continue


@pytest.mark.parametrize("count", [b"\x7f\xff\xff\xff", b"\x00\x00\x00\x09", b"\xff\xff\xff\xfe"])
def test_impossible_array_is_not_allocated(count: bytes) -> None:
    header_bytes = b"\x00\x03\x00\x04\x00\x00\x00\x01\xff\xff"
    frame = memoryview(header_bytes + count + b"\x00")
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(MalformedFrame, match="elements where 1 bytes are left"):
        decode_request(frame, read_request_header(frame))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < 64 * 1024


def test_unknown_tags_are_skipped_wherever_they_stand() -> None:
    """KIP-482. Metadata 12: tags 99 and 7 in the header, in the topic and after the request."""
    tags = b"\x02\x63\x03abc\x07\x00"
    topic = bytes(16) + b"\x07clicks" + tags
    frame = memoryview(b"\x00\x03\x00\x0c\x00\x00\x00\x01\x00\x02me" + tags + b"\x02" + topic + b"\x01\x00" + tags)
    header = read_request_header(frame)
    message = decode_request(frame, header)
    assert header.client_id == "me"
    assert [topic.name for topic in message.topics] == ["clicks"]
    assert message.allow_auto_topic_creation
    for end in range(len(frame)):
        with pytest.raises(MalformedFrame):
            decode_request(frame[:end], read_request_header(frame[:end]))


def test_null_and_invalid_utf8_strings_are_malformed() -> None:
    head = b"\x00\x03\x00\x04\x00\x00\x00\x01\xff\xff\x00\x00\x00\x01"
    for name in (b"\xff\xff", b"\x00\x01\xff", b"\x80\x00"):
        frame = memoryview(head + name + b"\x00")
        with pytest.raises(MalformedFrame):
            decode_request(frame, read_request_header(frame))


def test_elements_are_counted_over_all_steps() -> None:
    """Two topics of two partitions are six elements."""
    partitions = [{"partition_index": index, "timestamp": -1, "max_num_offsets": 1} for index in range(2)]
    fields = {"replica_id": -1, "topics": [{"name": name, "partitions": partitions} for name in "ab"]}
    frame = request_frame(APIS[LIST_OFFSETS], 0, message_of(request_class(LIST_OFFSETS, 0), fields))
    header = read_request_header(frame)
    assert decoded_in_steps(frame, header, 6) == decode_request(frame, header, elements_max=6)
    for decode in (decoded_in_steps, lambda *arguments: decode_request(*arguments[:2], elements_max=5)):
        with pytest.raises(MalformedFrame, match="more elements than one request may have"):
            decode(frame, header, 5)


@pytest.mark.parametrize(("length", "value"), [(b"\xff\xfe", -2), (b"\x00\x06", 6)])
def test_too_long_string_error_has_both_lengths(length: bytes, value: int) -> None:
    frame = memoryview(b"\x00\x03\x00\x04\x00\x00\x00\x01\xff\xff\x00\x00\x00\x01" + length + b"click")
    with pytest.raises(MalformedFrame, match=f"a length of {value} where 5 bytes are left"):
        decode_request(frame, read_request_header(frame))


def test_compact_string_fits_an_int16_length() -> None:
    """Data of a flexible version must fit into older ones, and into the broker's records."""

    def decoded(characters: int) -> Any:
        asked = request_class(INIT_PRODUCER_ID, 4)(
            transactional_id="x" * characters,
            transaction_timeout=timedelta(seconds=1),
            producer_id=-1,
            producer_epoch=-1,
        )
        frame = memoryview(encode_request(INIT_PRODUCER_ID, 4, 1, "test", asked))[4:]
        return decode_request(frame, read_request_header(frame))

    assert len(decoded(32_767).transactional_id) == 32_767
    with pytest.raises(MalformedFrame, match="a string of 32768 bytes, 32767 are allowed"):
        decoded(32_768)


@pytest.mark.parametrize(("api_key", "version"), [(0, 2), (0, 10), (1, 13), (18, 5), (68, 0), (-1, 0), (3, -1)])
def test_unserved_request_error_has_correlation_id(api_key: int, version: int) -> None:
    frame = b"".join(number.to_bytes(2, signed=True) for number in (api_key, version)) + b"\x00\x00\x00\x2a\xff\xff"
    with pytest.raises(UnsupportedVersion) as raised:
        read_request_header(memoryview(frame))
    assert (raised.value.api_key, raised.value.version, raised.value.correlation_id) == (api_key, version, 42)


def test_api_versions_request_above_the_maximum() -> None:
    frame = encode_unsupported_api_versions(42)
    assert frame.hex() == "000000100000002a002300000001001200000004"
    correlation_id, message = decode_response(API_VERSIONS, 0, frame[4:])
    assert (correlation_id, message.error_code) == (42, ErrorCode.unsupported_version)


def test_api_versions_response_header_has_no_tags() -> None:
    message = response_class(API_VERSIONS, 3)(error_code=ErrorCode.none, api_keys=(), throttle_time=timedelta(0))
    assert encode_response(API_VERSIONS, 3, 1, message)[4:] == b"\x00\x00\x00\x01" + body(message)
    metadata = random_message(response_class(METADATA, 12), random.Random(1))
    assert encode_response(METADATA, 12, 1, metadata)[4:] == b"\x00\x00\x00\x01\x00" + body(metadata)


def test_installed_hypothesis_is_not_loaded() -> None:
    script = "import sys, onceflow.wire.frames; print('hypothesis' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert shown.stdout == "False\n"
