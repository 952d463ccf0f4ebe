"""Valid reactions to a malformed frame: a whole response with a suitable code for each request in it."""

import struct
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from onceflow.broker.network.incoming import FRAME_BYTES_MIN
from onceflow.wire import apis, fetch, produce
from onceflow.wire.errors import ErrorCode, WireError
from onceflow.wire.frames import decode_request, decode_response, read_request_header
from tests.broker.malformed_codes import CODES

CORRELATION_ID_BYTES = 4
ISOLATION_LEVELS = (fetch.READ_UNCOMMITTED, fetch.READ_COMMITTED)


def split(data: bytes, frame_bytes_min: int = CORRELATION_ID_BYTES) -> tuple[list[bytes], bytes]:
    """Return the frames without their sizes, and the rest: a partial frame, or an impossible size."""
    frames = []
    while len(data) >= 4:
        (size_bytes,) = struct.unpack_from(">i", data)
        if size_bytes < frame_bytes_min or len(data) < 4 + size_bytes:
            break
        frames.append(data[4 : 4 + size_bytes])
        data = data[4 + size_bytes :]
    return frames, data


def due(frame: bytes) -> tuple[list[bytes], bool]:
    """Return the requests in a frame that need a response, and whether half a one follows: a wrong size makes more."""
    frames, rest = split(frame, FRAME_BYTES_MIN)
    return [request for request in frames if _asks_for_response(request)], bool(rest)


def _asks_for_response(request: bytes) -> bool:
    """Return whether a response must come: for all but Produce with acks=0 and unreadable frames, which close."""
    try:
        header = read_request_header(memoryview(request))
        return header.api.key != apis.PRODUCE or produce.parse_request(memoryview(request), header).acks != 0
    except WireError:
        return True


def check_responses(frame: bytes, responses: bytes, *, are_all: bool) -> None:
    """Check that each response is whole, in order, and has suitable codes; none is missing if they `are_all`."""
    requests, _is_half = due(frame)
    frames, rest = split(responses)
    assert not rest, "a part of a response"
    assert len(frames) == len(requests) if are_all else len(frames) <= len(requests), (len(frames), len(requests))
    for request, response in zip(requests, frames, strict=False):
        api_key, _version = struct.unpack_from(">hh", request)
        assert response[:4] == request[4:8], "another correlation id"
        for code in codes_in(request, response):
            assert code in CODES[api_key] or is_deserved(request, code), (apis.APIS[api_key].name, code)


def codes_in(request: bytes, response: bytes) -> Iterator[ErrorCode]:
    """Return the error codes of a response, decoded in its request's version."""
    api_key, version = struct.unpack_from(">hh", request)
    if api_key == apis.PRODUCE:
        _correlation_id, topics, _throttle_ms = produce.parse_response(version, response)
        yield from (ErrorCode(partition.error_code) for _name, partitions in topics for partition in partitions)
    elif api_key == apis.FETCH:
        fetched = fetch.parse_response(version, response)
        yield from map(ErrorCode, (fetched.error_code, *(partition.error_code for partition in fetched.partitions)))
    else:
        # An ApiVersions request of an unsupported version gets its response in version 0.
        is_served = 0 <= version <= apis.APIS[api_key].version_max
        yield from _codes(decode_response(api_key, version if is_served else 0, response)[1])


def _codes(value: Any) -> Iterator[ErrorCode]:
    if isinstance(value, ErrorCode):
        yield value
    elif isinstance(value, tuple):
        for element in value:
            yield from _codes(element)
    elif is_dataclass(value):
        for field in fields(value):
            yield from _codes(getattr(value, field.name))


def is_deserved(request: bytes, code: ErrorCode) -> bool:
    """Return whether Kafka, too, reports its own failure for this request: an isolation level that does not exist."""
    header = read_request_header(memoryview(request))
    if code != ErrorCode.unknown_server_error:
        return False
    if header.api.key == apis.FETCH:
        return fetch.parse_request(memoryview(request), header).isolation_level not in ISOLATION_LEVELS
    if header.api.key == apis.LIST_OFFSETS:
        asked = decode_request(memoryview(request), header)
        return getattr(asked, "isolation_level", fetch.READ_UNCOMMITTED) not in ISOLATION_LEVELS
    return False
