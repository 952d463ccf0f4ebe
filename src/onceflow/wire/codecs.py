"""The five compression codecs of a record batch, each with a limit for decompression.

The output is what Kafka's Java classes read: lz4 frames with independent blocks (Lz4BlockInputStream refuses linked
ones), snappy in xerial's framing (SnappyInputStream). The input may also be librdkafka's raw snappy blocks.
"""

import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from enum import IntEnum

import cramjam
import lz4.frame
import zstandard
from typing_extensions import Buffer

from onceflow.remedies import Remedy
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
"""Upper bound of the uncompressed size of one byte, from the formats' densest elements.

Deflate copies 258 bytes with two bits. Snappy copies 64 bytes with three. A byte adds at most 255 to the length of an
lz4 match. A zstd block repeats one byte 128 KiB times in four bytes.
"""

_GZIP_WINDOW_BITS = 31
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK_BYTES = 32 * 1024
_CHUNK_BYTES = 256 * 1024
_PIECE_BYTES = 16 * 1024


def compress(codec: Codec, data: Buffer) -> bytes:
    """Compress `data` with `codec`; NONE copies."""
    return _COMPRESS[codec](data)


def decompress(codec: Codec, data: Buffer, *, size_bytes_max: int) -> bytes:
    """Decompress `data` with `codec`, holding at most `size_bytes_max` + 1 bytes.

    Raises DecompressionTooLarge above the limit, MalformedBatch if `data` is not exactly one compressed stream.
    """
    try:
        unpacked = _DECOMPRESS[codec](memoryview(data), size_bytes_max)
    except _CODEC_ERRORS as error:
        raise _malformed(codec, memoryview(data), error) from error
    if len(unpacked) > size_bytes_max:
        raise _too_large(codec, memoryview(data), size_bytes_max)
    return unpacked


def unpacked_chunks(codec: Codec, data: Buffer, *, size_bytes_max: int) -> Iterator[bytes]:
    """Decompress `data` with `codec` in pieces of at most 16 KiB, a snappy block at once.

    Raises DecompressionTooLarge above the limit, MalformedBatch, as far as it is read.
    """
    size_bytes = 0
    view = memoryview(data)
    try:
        for chunk in _CHUNKS[codec](view, size_bytes_max):
            size_bytes += len(chunk)
            if size_bytes > size_bytes_max:
                raise _too_large(codec, view, size_bytes_max)
            for begin in range(0, len(chunk), _PIECE_BYTES):
                yield chunk[begin : begin + _PIECE_BYTES]
    except _CODEC_ERRORS as error:
        raise _malformed(codec, view, error) from error


def _too_large(codec: Codec, data: memoryview, size_bytes_max: int) -> DecompressionTooLarge:
    return DecompressionTooLarge(
        f"{codec.name.lower()} data of {len(data)} bytes unpacks to more than the {size_bytes_max} bytes allowed;"
        f" {Remedy.SMALLER_BATCHES}, or {Remedy.RAISE_SETTING}"
    )


def _malformed(codec: Codec, data: memoryview, error: Exception) -> MalformedBatch:
    return MalformedBatch(f"{codec.name.lower()} data of {len(data)} bytes: {error}")


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


def _gzip_chunks(data: memoryview, _size_bytes_max: int) -> Iterator[bytes]:
    unpacker = zlib.decompressobj(_GZIP_WINDOW_BITS)
    unread: Buffer = data
    while chunk := unpacker.decompress(unread, _CHUNK_BYTES):
        yield chunk
        unread = unpacker.unconsumed_tail
    _require_end(unpacker.eof, unpacker.unused_data)


def _decompress_lz4(data: memoryview, size_bytes_max: int) -> bytes:
    return _joined(_lz4_chunks(data, size_bytes_max), size_bytes_max)


def _lz4_chunks(data: memoryview, _size_bytes_max: int) -> Iterator[bytes]:
    unpacker = lz4.frame.LZ4FrameDecompressor()
    unread: Buffer = data
    while not unpacker.eof and (chunk := unpacker.decompress(unread, max_length=_CHUNK_BYTES)):
        yield chunk
        unread = b""
    _require_end(unpacker.eof, unpacker.unused_data)


def _decompress_zstd(data: memoryview, size_bytes_max: int) -> bytes:
    return _joined(_zstd_chunks(data, size_bytes_max), size_bytes_max)


def _zstd_chunks(data: memoryview, _size_bytes_max: int) -> Iterator[bytes]:
    """Decompress what a cut frame has: the library's bounded reader does not report it; the record count does."""
    read = zstandard.ZstdDecompressor().stream_reader(data).read
    while chunk := read(_CHUNK_BYTES):
        yield chunk


def _joined(chunks: Iterator[bytes], size_bytes_max: int) -> bytes:
    """Join the chunks, up to the first byte beyond the limit."""
    taken = []
    left_bytes = size_bytes_max + 1
    for chunk in chunks:
        taken.append(chunk[:left_bytes])
        left_bytes -= len(taken[-1])
        if not left_bytes:
            break
    return b"".join(taken)


def _decompress_snappy(data: memoryview, size_bytes_max: int) -> bytes:
    blocks = list(_xerial_blocks(data)) if data[:8] == _XERIAL_MAGIC else [data]
    size_bytes = sum(cramjam.snappy.decompress_raw_len(block) for block in blocks)
    if size_bytes > size_bytes_max:
        return bytes(size_bytes_max + 1)
    return b"".join(bytes(cramjam.snappy.decompress_raw(block)) for block in blocks)


def _snappy_chunks(data: memoryview, size_bytes_max: int) -> Iterator[bytes]:
    for block in _xerial_blocks(data) if data[:8] == _XERIAL_MAGIC else (data,):
        if cramjam.snappy.decompress_raw_len(block) > size_bytes_max:
            raise _too_large(Codec.SNAPPY, data, size_bytes_max)
        yield bytes(cramjam.snappy.decompress_raw(block))


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

_CHUNKS: dict[Codec, Callable[[memoryview, int], Iterator[bytes]]] = {
    Codec.NONE: lambda data, _size_bytes_max: iter((bytes(data),)),
    Codec.GZIP: _gzip_chunks,
    Codec.SNAPPY: _snappy_chunks,
    Codec.LZ4: _lz4_chunks,
    Codec.ZSTD: _zstd_chunks,
}

_CODEC_ERRORS = (ValueError, RuntimeError, struct.error, zlib.error, zstandard.ZstdError, cramjam.DecompressionError)
