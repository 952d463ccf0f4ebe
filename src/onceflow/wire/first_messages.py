"""Kafka's first message format (0.6), the one that the article "Kafka in depth" prints, and its fetch replies.

    offset  size  field
         0     4  length          bytes that follow this field: 1 + 4 + n
         4     1  magic           0
         5     4  CRC-32          of the payload
         9     n  payload

Messages have no key, no timestamp and no offset of their own: a message's offset was its position in the log.

    a fetch reply:       total length 4, error 2, messages
    a multifetch reply:  total length 4, error 2, fetch replies

A total length counts the bytes that follow it. A library for such bytes: the broker neither sends nor stores them.
"""

import struct
import zlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from typing_extensions import Buffer

from onceflow.wire.errors import CorruptBatch, MalformedBatch, MalformedFrame

HEADER_BYTES = 9

_HEADER = struct.Struct(">ibI")
_LENGTH_BYTES = 4
_OVERHEAD_BYTES = 5
_REPLY = struct.Struct(">ih")
_ERROR_BYTES = 2


class FirstHeader(NamedTuple):
    """Header before a payload."""

    length: int
    magic: int
    crc: int

    @property
    def size_bytes(self) -> int:
        """Size of the whole message."""
        return self.length + _LENGTH_BYTES


class FetchReply(NamedTuple):
    """A fetch's error and messages; the last message may be cut."""

    error: int
    messages: bytes


def encode(payload: bytes) -> bytes:
    """Encode one message."""
    return _HEADER.pack(_OVERHEAD_BYTES + len(payload), 0, zlib.crc32(payload)) + payload


def messages(buffer: Buffer) -> Iterator[tuple[int, FirstHeader]]:
    """Yield (position, header) of each whole message; ignore a last one that is cut. Raises MalformedBatch."""
    view = memoryview(buffer)
    position = 0
    while position + HEADER_BYTES <= len(view):
        header = read_header(view, position)
        if header.length < _OVERHEAD_BYTES:
            raise MalformedBatch(f"message at position {position}: length {header.length}, the minimum is 5")
        if position + header.size_bytes > len(view):
            return
        yield position, header
        position += header.size_bytes


def read_header(buffer: Buffer, position: int = 0) -> FirstHeader:
    """Read the header at `position`, unchecked. Raises MalformedBatch if fewer than 9 bytes are left."""
    try:
        return FirstHeader._make(_HEADER.unpack_from(buffer, position))
    except struct.error as error:
        left_bytes = len(memoryview(buffer)) - position
        raise MalformedBatch(f"position {position}: {left_bytes} bytes left, a header has {HEADER_BYTES}") from error


def payload_of(buffer: Buffer, position: int = 0) -> bytes:
    """Return the payload of the message at `position`. Raises MalformedBatch, CorruptBatch."""
    header = read_header(buffer, position)
    view = memoryview(buffer)
    if header.magic or header.length < _OVERHEAD_BYTES or position + header.size_bytes > len(view):
        raise CorruptBatch(
            f"message at position {position}: magic {header.magic}, length {header.length} where"
            f" {len(view) - position - _LENGTH_BYTES} bytes are left"
        )
    payload = bytes(view[position + HEADER_BYTES : position + header.size_bytes])
    crc = zlib.crc32(payload)
    if crc != header.crc:
        raise CorruptBatch(f"message at position {position}: CRC {crc:08x} computed, {header.crc:08x} stored")
    return payload


def encode_fetch_reply(reply: FetchReply) -> bytes:
    """Encode a whole reply to a fetch."""
    return _REPLY.pack(_ERROR_BYTES + len(reply.messages), reply.error) + reply.messages


def decode_fetch_reply(buffer: Buffer) -> FetchReply:
    """Decode the reply that is all of `buffer`. Raises MalformedFrame."""
    reply, end = _read_reply(memoryview(buffer), 0)
    _require_end(end, buffer)
    return reply


def encode_multifetch_reply(error: int, replies: Sequence[FetchReply]) -> bytes:
    """Encode a whole reply to several fetches."""
    return encode_fetch_reply(FetchReply(error, b"".join(map(encode_fetch_reply, replies))))


def decode_multifetch_reply(buffer: Buffer) -> tuple[int, list[FetchReply]]:
    """Decode (error, replies in the order of the fetches). Raises MalformedFrame."""
    outer = decode_fetch_reply(buffer)
    view = memoryview(outer.messages)
    replies = []
    position = 0
    while position < len(view):
        reply, position = _read_reply(view, position)
        replies.append(reply)
    return outer.error, replies


def _read_reply(view: memoryview, position: int) -> tuple[FetchReply, int]:
    begin = position + _REPLY.size
    total, error = _REPLY.unpack_from(view, position) if begin <= len(view) else (-1, 0)
    end = position + _LENGTH_BYTES + total
    if total < _ERROR_BYTES or end > len(view):
        raise MalformedFrame(f"fetch reply at byte {position}: total length {total}, but {len(view)} bytes")
    return FetchReply(error, bytes(view[begin:end])), end


def _require_end(end: int, buffer: Buffer) -> None:
    size_bytes = len(memoryview(buffer))
    if end != size_bytes:
        raise MalformedFrame(f"{size_bytes - end} bytes follow the fetch reply's end")
