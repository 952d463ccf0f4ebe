"""Integers, strings and arrays of Kafka's messages, read from a memoryview.

Every reader takes (view, position) and returns (value, position after it). Reading beyond the end raises
IndexError or struct.error, and a length or count that the rest of the bytes cannot hold raises MalformedFrame
before anything is allocated; the callers turn all of them into MalformedFrame.
"""

import struct

from onceflow.wire.errors import MalformedFrame

INT16 = struct.Struct(">h")
INT32 = struct.Struct(">i")
INT64 = struct.Struct(">q")

SHORT_OF_BYTES = (IndexError, struct.error, UnicodeDecodeError)
"""Exceptions of a reader, besides MalformedFrame, when the bytes end too early or are not UTF-8."""

TAGS_MAX = 100
"""Default limit of tagged fields in one section (`request.max.tagged.fields`); Kafka's messages have fewer than ten.

Millions of empty ones fit into a frame.
"""

STRING_BYTES_MAX = 2**15 - 1

_UVARINT_BITS_MAX = 35


def read_uvarint(view: memoryview, position: int) -> tuple[int, int]:
    """Read an unsigned varint of at most five bytes."""
    value = view[position]
    position += 1
    if value < 0x80:
        return value, position
    value &= 0x7F
    for shift in range(7, _UVARINT_BITS_MAX, 7):
        byte = view[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise MalformedFrame(f"the varint that ends at byte {position} has more than five bytes")


def append_uvarint(buffer: bytearray, value: int) -> None:
    """Append `value` >= 0 to `buffer` as an unsigned varint."""
    while value > 0x7F:
        buffer.append(value & 0x7F | 0x80)
        value >>= 7
    buffer.append(value)


def bounded(size_bytes: int, view: memoryview, position: int) -> int:
    """Return the position after `size_bytes` bytes that start at `position`."""
    end = position + size_bytes
    if size_bytes < 0 or end > len(view):
        raise MalformedFrame(f"byte {position}: a length of {size_bytes} where {len(view) - position} bytes are left")
    return end


def read_length(view: memoryview, position: int, *, flexible: bool, short: bool = True) -> tuple[int, int]:
    """Read the length of a string or bytes, -1 for null. Not flexible: int16 when `short`, else int32."""
    if flexible:
        size_bytes = view[position]
        if size_bytes < 0x80:
            return size_bytes - 1, position + 1
        size_bytes, position = read_uvarint(view, position)
        return size_bytes - 1, position
    if short:
        return INT16.unpack_from(view, position)[0], position + 2
    return INT32.unpack_from(view, position)[0], position + 4


def read_nullable_string(view: memoryview, position: int, *, flexible: bool) -> tuple[str | None, int]:
    """Read a string, compact when `flexible`, else with an int16 length; null is None.

    Strings longer than an int16 can express are refused, as by Kafka: older versions and records could not hold them.
    """
    size_bytes, position = read_length(view, position, flexible=flexible)
    if size_bytes == -1:
        return None, position
    if size_bytes > STRING_BYTES_MAX:
        raise MalformedFrame(f"byte {position}: a string of {size_bytes} bytes, {STRING_BYTES_MAX} are allowed")
    end = position + size_bytes
    if size_bytes < 0 or end > len(view):
        end = bounded(size_bytes, view, position)
    return str(view[position:end], "utf-8"), end


def read_string(view: memoryview, position: int, *, flexible: bool) -> tuple[str, int]:
    """Read a string that must not be null."""
    value, end = read_nullable_string(view, position, flexible=flexible)
    if value is None:
        raise MalformedFrame(f"byte {position}: null where a string is required")
    return value, end


def read_nullable_bytes(view: memoryview, position: int, *, flexible: bool) -> tuple[memoryview | None, int]:
    """Return bytes as a view of `view`, not a copy; null is None."""
    size_bytes, position = read_length(view, position, flexible=flexible, short=False)
    if size_bytes == -1:
        return None, position
    end = position + size_bytes
    if size_bytes < 0 or end > len(view):
        end = bounded(size_bytes, view, position)
    return view[position:end], end


def read_count(
    view: memoryview, position: int, *, flexible: bool, element_bytes_min: int, nullable: bool = False
) -> tuple[int, int]:
    """Read the number of elements of an array (-1: null, if allowed); refuse it if that many elements cannot follow."""
    if flexible:
        count, position = view[position] - 1, position + 1
        if count >= 0x7F:
            count, position = read_uvarint(view, position - 1)
            count -= 1
    else:
        count, position = INT32.unpack_from(view, position)[0], position + 4
    if count < -nullable or count * element_bytes_min > len(view) - position:
        raise MalformedFrame(f"byte {position}: {count} elements where {len(view) - position} bytes are left")
    return count, position


def read_tag_count(view: memoryview, position: int, tags_max: int = TAGS_MAX) -> tuple[int, int]:
    """Read the number of tagged fields in a section; refuse more than `tags_max`."""
    count, position = read_uvarint(view, position)
    if count > tags_max:
        raise MalformedFrame(f"byte {position}: {count} tagged fields, {tags_max} are allowed")
    return count, position


def skip_tags(view: memoryview, position: int, tags_max: int = TAGS_MAX) -> int:
    """Skip a section of tagged fields; return the position after it. Refuse more than `tags_max`."""
    if view[position] == 0:
        return position + 1
    count, position = read_tag_count(view, position, tags_max)
    for _ in range(count):
        _, position = read_uvarint(view, position)
        size_bytes, position = read_uvarint(view, position)
        position = bounded(size_bytes, view, position)
    return position


def append_string(buffer: bytearray, value: str | None, *, flexible: bool) -> None:
    """Append a nullable string, compact when `flexible`."""
    encoded = b"" if value is None else value.encode()
    if flexible:
        append_uvarint(buffer, 0 if value is None else len(encoded) + 1)
    else:
        buffer += INT16.pack(-1 if value is None else len(encoded))
    buffer += encoded


def append_count(buffer: bytearray, count: int, *, flexible: bool) -> None:
    """Append the length of an array or of bytes (-1: null): a compact varint when `flexible`, else int32."""
    if flexible and count < 0x7F:
        buffer.append(count + 1)
    elif flexible:
        append_uvarint(buffer, count + 1)
    else:
        buffer += INT32.pack(count)
