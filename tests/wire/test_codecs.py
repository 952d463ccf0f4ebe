"""Round trips of each codec, its limit, and cut, damaged or exploding streams."""

import gzip
import random
import tracemalloc
import zlib

import cramjam
import lz4.frame
import pytest
import zstandard

from onceflow.wire.codecs import Codec, compress, decompress
from onceflow.wire.errors import DecompressionTooLarge, MalformedBatch

MIB = 1024 * 1024
RANDOM = random.Random(7)
SAMPLES = [b"", b"a", b"clicks " * 20_000, RANDOM.randbytes(100_000), RANDOM.randbytes(32 * 1024)]
PACKED = [codec for codec in Codec if codec is not Codec.NONE]


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("data", SAMPLES, ids=len)
def test_there_and_back(codec: Codec, data: bytes) -> None:
    packed = compress(codec, memoryview(bytearray(data)))
    assert decompress(codec, memoryview(packed), size_bytes_max=len(data)) == data


@pytest.mark.parametrize("codec", Codec)
def test_one_byte_above_the_limit(codec: Codec) -> None:
    with pytest.raises(DecompressionTooLarge, match="more than the 699 bytes allowed"):
        decompress(codec, compress(codec, b"clicks " * 100), size_bytes_max=699)


def zstd_stream(data: bytes) -> bytes:
    """Return an lz4 frame like Java's: without the size of the content."""
    packer = zstandard.ZstdCompressor().compressobj()
    return packer.compress(data) + packer.flush()


@pytest.mark.parametrize(
    ("codec", "pack"),
    [
        (Codec.GZIP, gzip.compress),
        (Codec.LZ4, lz4.frame.compress),
        (Codec.ZSTD, zstandard.ZstdCompressor().compress),
        (Codec.ZSTD, zstd_stream),
        (Codec.SNAPPY, lambda data: bytes(cramjam.snappy.compress_raw(data))),
        (Codec.SNAPPY, lambda data: compress(Codec.SNAPPY, data)),
    ],
)
def test_decompression_bomb_is_refused(codec: Codec, pack) -> None:  # type: ignore[no-untyped-def]
    bomb = pack(bytes(64 * MIB))
    tracemalloc.start()
    try:
        with pytest.raises(DecompressionTooLarge):
            decompress(codec, bomb, size_bytes_max=MIB)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 4 * MIB


def test_announced_snappy_length_is_not_allocated() -> None:
    with pytest.raises(DecompressionTooLarge):
        decompress(Codec.SNAPPY, b"\xff\xff\xff\xff\x0f", size_bytes_max=MIB)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4])
def test_cut_stream_is_malformed(codec: Codec) -> None:
    packed = compress(codec, b"clicks and clicks " * 9)
    framing_bytes = 16 if codec is Codec.SNAPPY else 0
    for end in range(framing_bytes + 1, len(packed)):
        with pytest.raises(MalformedBatch):
            decompress(codec, packed[:end], size_bytes_max=MIB)


def test_cut_zstd_stream_yields_a_prefix() -> None:
    data = b"clicks and clicks " * 9
    packed = compress(Codec.ZSTD, data)
    for end in range(len(packed)):
        try:
            assert len(decompress(Codec.ZSTD, packed[:end], size_bytes_max=MIB)) < len(data)
        except MalformedBatch:
            continue


@pytest.mark.parametrize("codec", PACKED)
def test_noise_is_malformed_or_bytes(codec: Codec) -> None:
    packed = bytearray(compress(codec, b"clicks and clicks " * 9))
    for _ in range(500):
        spoilt = bytearray(packed)
        spoilt[RANDOM.randrange(len(spoilt))] = RANDOM.randrange(256)
        try:
            decompress(codec, spoilt, size_bytes_max=MIB)
        except (MalformedBatch, DecompressionTooLarge):
            continue


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4])
def test_bytes_behind_the_stream_are_malformed(codec: Codec) -> None:
    with pytest.raises(MalformedBatch, match="2 bytes follow"):
        decompress(codec, compress(codec, b"clicks") + b"zz", size_bytes_max=MIB)


def test_lz4_is_written_with_independent_blocks() -> None:
    """Kafka's Lz4BlockInputStream refuses linked ones: bit 5 of the frame descriptor."""
    assert compress(Codec.LZ4, b"clicks" * 50_000)[4] & 0x20


def test_snappy_is_written_in_xerials_framing() -> None:
    packed = compress(Codec.SNAPPY, b"clicks" * 50_000)
    assert packed.startswith(b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01")


def test_gzip_is_what_zlib_reads() -> None:
    assert zlib.decompress(compress(Codec.GZIP, b"clicks"), wbits=31) == b"clicks"
