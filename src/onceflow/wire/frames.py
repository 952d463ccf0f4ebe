"""Frames of Kafka's protocol: a 4-byte size, a header, a body.

Requests and responses whose body has no hand-written codec (`wire.produce`, `wire.fetch`) are kio's message classes.
Header versions: requests have 1, or 2 (a tagged section more) where the API version is flexible; responses 0, or 1
where flexible, except that an ApiVersions response has 0 always, since a client reads it before it knows anything
(KIP-511). The client id stays an int16 string in both.
"""

import io
import struct
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_writer
from typing_extensions import Buffer

from onceflow.wire import list_offsets_v0
from onceflow.wire.apis import API_VERSIONS, APIS, INTER_BROKER_APIS, Api
from onceflow.wire.entities import NO_LIMITS, Limits, read_entity, read_entity_in_steps
from onceflow.wire.errors import ErrorCode, MalformedFrame, UnsupportedVersion
from onceflow.wire.primitives import SHORT_OF_BYTES, TAGS_MAX, append_string, read_nullable_string, skip_tags

SIZE_BYTES = 4

REQUEST_HEADER = struct.Struct(">hhi")
"""API key, version, correlation id; the client id follows, and tagged fields if the version is flexible."""
SIZE_AND_CORRELATION_ID = struct.Struct(">ii")
_CORRELATION_ID = struct.Struct(">i")
_NO_TAGS = b"\x00"
_UNREADABLE = (*SHORT_OF_BYTES, MalformedFrame, ValueError, OverflowError)
"""Exceptions of reading an entity."""


@dataclass(slots=True)
class RequestHeader:
    """Header before a request's body; `body_position` counts from the frame's start."""

    api: Api
    version: int
    correlation_id: int
    client_id: str | None
    body_position: int
    tags_max: int = TAGS_MAX
    """Maximum number of tagged fields in each section of the request."""


def read_request_header(frame: memoryview, tags_max: int = TAGS_MAX, served: Mapping[int, Api] = APIS) -> RequestHeader:
    """Read the header of a request; `frame` is without its size. `tags_max` bounds each of its sections of tagged
    fields.

    Raises UnsupportedVersion, with the correlation id, for what is not in `served`, and MalformedFrame.
    """
    try:
        api_key, version, correlation_id = REQUEST_HEADER.unpack_from(frame, 0)
        api = served.get(api_key)
        if api is None or not api.version_min <= version <= api.version_max:
            raise UnsupportedVersion(api_key, version, correlation_id=correlation_id)
        client_id, position = read_nullable_string(frame, REQUEST_HEADER.size, flexible=False)
        if version >= api.flexible_from:
            position = skip_tags(frame, position, tags_max)
    except SHORT_OF_BYTES as error:
        raise MalformedFrame(f"request header in a frame of {len(frame)} bytes: {error}") from error
    return RequestHeader(api, version, correlation_id, client_id, position, tags_max)


def decode_request(frame: memoryview, header: RequestHeader, *, elements_max: int = sys.maxsize) -> Any:
    """Decode the request's body as kio's class of that API and version. Raises MalformedFrame.

    `elements_max` bounds the elements of all its arrays together. Bytes after its end are ignored, as in Kafka:
    librdkafka 2.16 leaves three of them in a Metadata request for all topics.
    """
    limits = Limits(elements_max, header.tags_max)
    entity_class = request_class(header.api.key, header.version)
    return _decode(entity_class, frame, header.body_position, _request_name(header), limits)[0]


def decode_request_in_steps(
    frame: memoryview, header: RequestHeader, *, elements_max: int = sys.maxsize
) -> Generator[int, None, Any]:
    """Run `decode_request` in steps, one for each element of an array; yield about how many microseconds each took."""
    limits = Limits(elements_max, header.tags_max)
    entity_class = request_class(header.api.key, header.version)
    try:
        body, _end = yield from read_entity_in_steps(entity_class, frame, header.body_position, limits)
    except _UNREADABLE as error:
        raise MalformedFrame(f"{_request_name(header)}: {error}") from error
    return body


def _request_name(header: RequestHeader) -> str:
    return f"{header.api.name} request version {header.version}"


def encode_request(api_key: int, version: int, correlation_id: int, client_id: str | None, payload: Any) -> bytes:
    """Encode a whole request, size included; `payload` is of `request_class(api_key, version)`."""
    head = bytearray(SIZE_BYTES)
    append_request_header(head, api_key, version, correlation_id, client_id, flexible=payload.__flexible__)
    return _with_size(head, payload)


def append_request_header(
    buffer: bytearray, api_key: int, version: int, correlation_id: int, client_id: str | None, *, flexible: bool
) -> None:
    """Append a request header, without size."""
    buffer += REQUEST_HEADER.pack(api_key, version, correlation_id)
    append_string(buffer, client_id, flexible=False)
    if flexible:
        buffer += _NO_TAGS


def encode_response(api_key: int, version: int, correlation_id: int, payload: Any) -> bytes:
    """Encode a whole response, size included; `payload` is of `response_class(api_key, version)`."""
    return _with_size(response_head(api_key, correlation_id, flexible=payload.__flexible__), payload)


def response_head(api_key: int, correlation_id: int, *, flexible: bool) -> bytearray:
    """Begin a response, up to its body; `with_size` completes it."""
    head = bytearray(SIZE_AND_CORRELATION_ID.pack(0, correlation_id))
    if flexible and api_key != API_VERSIONS:
        head += _NO_TAGS
    return head


def with_size(frame: bytearray) -> bytes:
    """Complete the response that `response_head` began."""
    struct.pack_into(">i", frame, 0, len(frame) - SIZE_BYTES)
    return bytes(frame)


def encode_joined(correlation_id: int, body: Sequence[bytes], *, flexible: bool) -> bytes:
    """Encode a whole response, size included, from the parts of its body. Not for ApiVersions, whose header differs."""
    tags = _NO_TAGS if flexible else b""
    size_bytes = _CORRELATION_ID.size + len(tags) + sum(map(len, body))
    return b"".join((SIZE_AND_CORRELATION_ID.pack(size_bytes, correlation_id), tags, *body))


def encode_unsupported_api_versions(correlation_id: int) -> bytes:
    """Encode the response to an ApiVersions request above the maximum: version 0, error 35, the versions of
    ApiVersions."""
    response: Any = response_class(API_VERSIONS, 0)
    version: Any = response.__annotations__["api_keys"].__args__[0]
    api = APIS[API_VERSIONS]
    served = version(api_key=api.key, min_version=api.advertised_min, max_version=api.advertised_max)
    payload = response(error_code=ErrorCode.unsupported_version, api_keys=(served,))
    return encode_response(API_VERSIONS, 0, correlation_id, payload)


def decode_response(api_key: int, version: int, frame: Buffer) -> tuple[int, Any]:
    """Decode (correlation id, body as kio's class); `frame` is without its size. Raises MalformedFrame."""
    view = memoryview(frame)
    entity_class: Any = response_class(api_key, version)
    correlation_id, position = read_response_header(
        view, flexible=entity_class.__flexible__ and api_key != API_VERSIONS
    )
    name = f"{entity_class.__name__} version {version}"
    payload, end = _decode(entity_class, view, position, name)
    if end != len(view):
        raise MalformedFrame(f"{name}: {len(view) - end} bytes follow its end")
    return correlation_id, payload


def read_response_header(view: memoryview, *, flexible: bool) -> tuple[int, int]:
    """Return (correlation id, position of the body) of a response without its size."""
    try:
        (correlation_id,) = _CORRELATION_ID.unpack_from(view, 0)
        return correlation_id, skip_tags(view, _CORRELATION_ID.size) if flexible else _CORRELATION_ID.size
    except SHORT_OF_BYTES as error:
        raise MalformedFrame(f"response header in a frame of {len(view)} bytes: {error}") from error


@cache
def request_class(api_key: int, version: int) -> type[Any]:
    """Return kio's class of a request's body."""
    if (api_key, version) == list_offsets_v0.KEY_AND_VERSION:
        return list_offsets_v0.ListOffsetsRequest
    if api_key in INTER_BROKER_APIS:
        # Imported here: its classes take longer to create than all other modules of this package.
        from onceflow.wire import inter_broker

        if (api_key, version) in inter_broker.REQUESTS:
            return inter_broker.REQUESTS[api_key, version]
    return load_request_schema(api_key, version)


@cache
def response_class(api_key: int, version: int) -> type[Any]:
    """Return kio's class of a response's body."""
    if (api_key, version) == list_offsets_v0.KEY_AND_VERSION:
        return list_offsets_v0.ListOffsetsResponse
    if api_key in INTER_BROKER_APIS:
        # Imported here: its classes take longer to create than all other modules of this package.
        from onceflow.wire import inter_broker

        if (api_key, version) in inter_broker.RESPONSES:
            return inter_broker.RESPONSES[api_key, version]
    return load_response_schema(api_key, version)


@cache
def _writer(entity_class: Any) -> Callable[[Any, Any], None]:
    return entity_writer(entity_class)


def _decode(
    entity_class: Any, view: memoryview, position: int, what: str, limits: Limits = NO_LIMITS
) -> tuple[Any, int]:
    """Return (payload, position after it)."""
    try:
        payload, end = read_entity(entity_class, view, position, limits)
    except _UNREADABLE as error:
        raise MalformedFrame(f"{what}: {error}") from error
    return payload, end


def _with_size(head: bytearray, payload: Any) -> bytes:
    buffer = io.BytesIO()
    buffer.write(head)
    entity_class: Any = type(payload)
    _writer(entity_class)(buffer, payload)
    frame = buffer.getbuffer()
    struct.pack_into(">i", frame, 0, len(frame) - SIZE_BYTES)
    frame.release()
    return buffer.getvalue()
