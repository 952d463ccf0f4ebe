"""Limit of tagged fields in a section of a request: every section and every way in which requests are read."""

import struct
from collections.abc import Callable
from typing import Any

import pytest

from onceflow.wire import apis, fetch, produce
from onceflow.wire.errors import MalformedFrame
from onceflow.wire.frames import RequestHeader, decode_request, read_request_header
from onceflow.wire.primitives import TAGS_MAX

NOTHING = b"\x00"


def tags(count: int) -> bytes:
    """Return a section of that many empty tagged fields that no version knows."""
    return bytes((count,)) + b"".join(bytes((99, 0)) for _ in range(count))


def produce_frame(header: bytes, partition: bytes, topic: bytes, request: bytes) -> bytes:
    entry = struct.pack(">i", 0) + b"\x02x" + partition
    topics = b"\x02" + b"\x02t" + b"\x02" + entry + topic
    return struct.pack(">hhih", apis.PRODUCE, 9, 1, -1) + header + b"\0" + struct.pack(">hi", 1, 1) + topics + request


def fetch_frame(header: bytes, partition: bytes, topic: bytes, forgotten: bytes, request: bytes) -> bytes:
    limits = struct.pack(">iiiibii", -1, 1, 1, 1, 0, 0, -1)
    entry = struct.pack(">iiqiqi", 0, -1, 0, -1, -1, 1) + partition
    topics = b"\x02" + b"\x02t" + b"\x02" + entry + topic
    left = b"\x02" + b"\x02t" + b"\x02" + struct.pack(">i", 0) + forgotten
    return struct.pack(">hhih", apis.FETCH, 12, 1, -1) + header + limits + topics + left + b"\x01" + request


def metadata_frame(header: bytes, topic: bytes, request: bytes) -> bytes:
    return struct.pack(">hhih", apis.METADATA, 9, 1, -1) + header + b"\x02" + b"\x02t" + topic + bytes(3) + request


READERS: list[tuple[Callable[..., bytes], Callable[[memoryview, RequestHeader], Any], int]] = [
    (produce_frame, produce.parse_request, 4),
    (fetch_frame, fetch.parse_request, 5),
    (metadata_frame, decode_request, 3),
]
SECTIONS = [(frame, read, number, count) for frame, read, count in READERS for number in range(count)]


@pytest.mark.parametrize(("frame", "read", "number", "count"), SECTIONS)
@pytest.mark.parametrize("tags_max", [0, 3, TAGS_MAX, 120])
def test_tagged_fields_of_a_section_are_limited(
    frame: Callable[..., bytes],
    read: Callable[[memoryview, RequestHeader], Any],
    number: int,
    count: int,
    tags_max: int,
) -> None:
    def parse(tag_count: int) -> Any:
        sections = [NOTHING] * count
        sections[number] = tags(tag_count)
        request = memoryview(frame(*sections))
        return read(request, read_request_header(request, tags_max))

    assert parse(tags_max).topics
    with pytest.raises(MalformedFrame, match=f"{tags_max + 1} tagged fields, {tags_max} are allowed"):
        parse(tags_max + 1)


def test_each_message_has_its_own_limit() -> None:
    strict, usual = (
        memoryview(metadata_frame(NOTHING, NOTHING, NOTHING)),
        memoryview(metadata_frame(b"\0", tags(5), b"\0")),
    )
    assert decode_request(strict, read_request_header(strict, 0)).topics
    assert decode_request(usual, read_request_header(usual)).topics
