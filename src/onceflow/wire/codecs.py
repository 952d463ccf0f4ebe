"""The five compression codecs of a record batch, each bounded when it unpacks.

What is written is what Kafka's Java classes read: lz4 frames with independent blocks (Lz4BlockInputStream refuses
linked ones), snappy in xerial's framing (SnappyInputStream). Reading takes librdkafka's raw snappy blocks too.
"""

import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from enum import IntEnum

import cramjam
import lz4.frame
import zstandard
from typing_extensions import Buffer

from onceflow.wire.errors import DecompressionTooLarge, MalformedBatch


class Codec(IntEnum):
    """Bits 0 to 2 of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


UNPACKED_PER_BYTE_MAX: Mapping[Codec, int] = {
    Codec.NONE: 1,
    Codec.GZIP: 1032,
    Codec.SNAPPY: 22,
    Codec.LZ4: 255,
    Codec.ZSTD: 32 * 1024,
}
"""Upper bound of the bytes that one compressed byte unpacks to, from the formats' densest elements.

Deflate copies 258 bytes with two bits. Snappy copies 64 bytes with three. A byte adds at most 255 to the length of an
lz4 match. A zstd block repeats one byte 128 KiB times in four bytes.
"""

_GZIP_WINDOW_BITS = 31
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK_BYTES = 32 * 1024
_CHUNK_BYTES = 256 * 1024


def compress(codec: Codec, data: Buffer) -> bytes:
    """`data` packed by `codec`; NONE copies."""
    return _COMPRESS[codec](data)


def decompress(codec: Codec, data: Buffer, *, size_bytes_max: int) -> bytes:
    """`data` unpacked by `codec`, of which at most `size_bytes_max` + 1 bytes are ever held.

    Raises DecompressionTooLarge above the limit, MalformedBatch when `data` is not one whole compressed stream.
    """
    try:
        unpacked = _DECOMPRESS[codec](memoryview(data), size_bytes_max)
    except _CODEC_ERRORS as error:
        raise MalformedBatch(f"{codec.name.lower()} data of {len(memoryview(data))} bytes: {error}") from error
    if len(unpacked) > size_bytes_max:
        raise DecompressionTooLarge(
            f"{codec.name.lower()} data of {len(memoryview(data))} bytes unpacks to more than the {size_bytes_max}"
            " bytes allowed; produce smaller batches or raise the limit"
        )
    return unpacked


def _compress_gzip(data: Buffer) -> bytes:
    packer = zlib.compressobj(wbits=_GZIP_WINDOW_BITS)
    return packer.compress(data) + packer.flush()


def _compress_snappy(data: Buffer) -> bytes:
    view = memoryview(data)
    parts = [_XERIAL_HEADER]
    for begin in range(0, len(view), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(view[begin : begin + _XERIAL_BLOCK_BYTES]))
        parts += (len(block).to_bytes(4, "big"), block)
    return b"".join(parts)


def _compress_lz4(data: Buffer) -> bytes:
    packed: bytes = lz4.frame.compress(data, block_linked=False, store_size=False)
    return packed


def _decompress_gzip(data: memoryview, size_bytes_max: int) -> bytes:
    unpacker = zlib.decompressobj(_GZIP_WINDOW_BITS)
    unpacked = unpacker.decompress(data, size_bytes_max + 1)
    if len(unpacked) <= size_bytes_max:
        _require_end(unpacker.eof, unpacker.unused_data)
    return unpacked


def _decompress_lz4(data: memoryview, size_bytes_max: int) -> bytes:
    unpacker = lz4.frame.LZ4FrameDecompressor()
    unread: Buffer = data

    def read(size_bytes: int) -> bytes:
        nonlocal unread
        if unpacker.eof:
            return b""
        chunk: bytes = unpacker.decompress(unread, max_length=size_bytes)
        unread = b""
        return chunk

    unpacked = _read_bounded(read, size_bytes_max)
    if len(unpacked) <= size_bytes_max:
        _require_end(unpacker.eof, unpacker.unused_data)
    return unpacked


def _decompress_zstd(data: memoryview, size_bytes_max: int) -> bytes:
    """A cut frame gives what is there: the library's bounded reader does not tell, the records' own count does."""
    return _read_bounded(zstandard.ZstdDecompressor().stream_reader(data).read, size_bytes_max)


def _read_bounded(read: Callable[[int], bytes], size_bytes_max: int) -> bytes:
    """All that `read` gives, in chunks, since both libraries allocate in advance what they are asked for."""
    chunks = []
    left_bytes = size_bytes_max + 1
    while left_bytes > 0 and (chunk := read(min(left_bytes, _CHUNK_BYTES))):
        chunks.append(chunk)
        left_bytes -= len(chunk)
    return b"".join(chunks)


def _decompress_snappy(data: memoryview, size_bytes_max: int) -> bytes:
    blocks = list(_xerial_blocks(data)) if data[:8] == _XERIAL_MAGIC else [data]
    size_bytes = sum(cramjam.snappy.decompress_raw_len(block) for block in blocks)
    if size_bytes > size_bytes_max:
        return bytes(size_bytes_max + 1)
    return b"".join(bytes(cramjam.snappy.decompress_raw(block)) for block in blocks)


def _xerial_blocks(data: memoryview) -> Iterator[memoryview]:
    position = len(_XERIAL_HEADER)
    while position < len(data):
        (size_bytes,) = struct.unpack_from(">I", data, position)
        position += 4
        if size_bytes > len(data) - position:
            raise ValueError(f"a block of {size_bytes} bytes where {len(data) - position} are left")
        yield data[position : position + size_bytes]
        position += size_bytes


def _require_end(ended: bool, unused: bytes | None) -> None:
    if not ended:
        raise ValueError("the compressed stream is cut")
    if unused:
        raise ValueError(f"{len(unused)} bytes follow the compressed stream")


def _compress_zstd(data: Buffer) -> bytes:
    return zstandard.ZstdCompressor().compress(memoryview(data))


_COMPRESS: dict[Codec, Callable[[Buffer], bytes]] = {
    Codec.NONE: bytes,
    Codec.GZIP: _compress_gzip,
    Codec.SNAPPY: _compress_snappy,
    Codec.LZ4: _compress_lz4,
    Codec.ZSTD: _compress_zstd,
}

_DECOMPRESS: dict[Codec, Callable[[memoryview, int], bytes]] = {
    Codec.NONE: lambda data, size_bytes_max: bytes(data[: size_bytes_max + 1]),
    Codec.GZIP: _decompress_gzip,
    Codec.SNAPPY: _decompress_snappy,
    Codec.LZ4: _decompress_lz4,
    Codec.ZSTD: _decompress_zstd,
}

_CODEC_ERRORS = (ValueError, RuntimeError, struct.error, zlib.error, zstandard.ZstdError, cramjam.DecompressionError)
