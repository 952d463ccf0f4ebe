"""Header checksum of LZ4 frames, which Kafka computed incorrectly before format 1 (KIP-57).

A frame begins with a magic number (4 bytes), a flag byte, a block-size byte, perhaps the content's size (8 bytes), and
one checksum byte: bits 8 to 15 of xxHash-32 of the bytes between magic number and checksum. Kafka's first writer
included the magic number. Readers of format 0 ignore the byte, its writers write the wrong one.
"""

from onceflow.wire.errors import MalformedBatch

_MAGIC_BYTES = 4
_CONTENT_SIZE_FLAG = 0x08
_DICTIONARY_FLAG = 0x01

_MASK = 0xFFFFFFFF
_PRIME_2, _PRIME_3, _PRIME_4, _PRIME_5 = 2246822519, 3266489917, 668265263, 374761393
_PRIME_1 = 2654435761
_HASHED_BYTES_MAX = 15


def with_right_checksum(frame: bytes) -> bytes:
    """Return the frame with the checksum that LZ4's own readers expect. Raises MalformedBatch if Kafka did not write
    it."""
    end = _descriptor_end(frame)
    return frame[:end] + bytes([_checksum(frame[_MAGIC_BYTES:end])]) + frame[end + 1 :]


def with_kafkas_checksum(frame: bytes) -> bytes:
    """Return the frame with the checksum of Kafka's format 0."""
    end = _descriptor_end(frame)
    return frame[:end] + bytes([_checksum(frame[:end])]) + frame[end + 1 :]


def _descriptor_end(frame: bytes) -> int:
    if len(frame) < _MAGIC_BYTES + 3 or frame[_MAGIC_BYTES] & _DICTIONARY_FLAG:
        raise MalformedBatch(f"lz4 data of {len(frame)} bytes: no frame, or one with a dictionary")
    return _MAGIC_BYTES + 2 + (8 if frame[_MAGIC_BYTES] & _CONTENT_SIZE_FLAG else 0)


def _checksum(data: bytes) -> int:
    return _xxhash32(data) >> 8 & 0xFF


def _xxhash32(data: bytes) -> int:
    """Return xxHash-32 with seed 0 of at most 15 bytes: the part of the algorithm that short input needs."""
    assert len(data) <= _HASHED_BYTES_MAX
    hashed = _PRIME_5 + len(data) & _MASK
    whole_bytes = len(data) & ~3
    for position in range(0, whole_bytes, 4):
        word = int.from_bytes(data[position : position + 4], "little")
        hashed = _rotated(hashed + word * _PRIME_3 & _MASK, 17) * _PRIME_4 & _MASK
    for byte in data[whole_bytes:]:
        hashed = _rotated(hashed + byte * _PRIME_5 & _MASK, 11) * _PRIME_1 & _MASK
    hashed = (hashed ^ hashed >> 15) * _PRIME_2 & _MASK
    hashed = (hashed ^ hashed >> 13) * _PRIME_3 & _MASK
    return hashed ^ hashed >> 16


def _rotated(word: int, bits: int) -> int:
    return (word << bits | word >> 32 - bits) & _MASK
