"""Malformed frames in any number: requests of every API and version, broken like those of faulty or hostile clients.

Half of the requests are sensible, with a topic, a group and a transactional id that may exist; the other half has
arbitrary values. Some are valid requests: they are stored, and wait for more. A seed decides everything.
"""

import datetime
import random
import struct
from collections.abc import Callable, Iterator
from dataclasses import Field, fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, get_args, get_origin
from uuid import UUID

from onceflow.wire import apis, fetch, produce
from onceflow.wire.batch import Record, encode_batch
from onceflow.wire.frames import append_request_header, encode_request, request_class
from tests.wire.messages import body, build, random_message

NAMES = ("t", "t", "u", "g", "x", "", "member", "__consumer_offsets", "segment.bytes", "range")
NUMBERS = (0, 0, 0, 1, -1, -2, 2, 7, 1000, 2**31 - 1)
HOSTILE_INT32 = (0x7FFFFFFF, 0xFFFFFFFF, 0x80000000, 0x00100000, 0x0000FFFF, 0)
HOSTILE_INT16 = (0x7FFF, 0xFFFF, 0x8000, 0)


def requests(seeded: random.Random, *, per_version: int) -> list[bytes]:
    """Whole requests with their sizes, some of each version of each API."""
    made = []
    for api in apis.APIS.values():
        for version in _versions(api.key):
            for number in range(per_version):
                entity_class: Any = request_class(api.key, version)
                make = sensible_message if number % 2 else random_message
                made.append(framed(api.key, version, body(make(entity_class, seeded)), seeded))
    return made + [sound for sound in sound_requests() for _ in range(per_version)]


def sound_requests() -> Iterator[bytes]:
    """Return records for one partition of topic t, a long poll for those of the other, and a member's JoinGroup."""
    batch = encode_batch([Record(0, 1_700_000_000_000, b"k", b"v")])
    asked = fetch.FetchRequest(-1, 60_000, 1, 1 << 20, 0, 0, -1, [("t", [fetch.FetchPartition(1, -1, 0, -1, 1 << 20)])])
    joining = {
        "group_id": "g",
        "session_timeout": datetime.timedelta(seconds=30),
        "rebalance_timeout": datetime.timedelta(seconds=60),
        "member_id": "",
        "group_instance_id": None,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b""}],
        "reason": None,
    }
    for version in _versions(apis.PRODUCE):
        pieces = produce.encode_request(
            version, 1, "fuzz", transactional_id=None, acks=-1, timeout_ms=1000, topics=[("t", [(0, batch)])]
        )
        yield b"".join(map(bytes, pieces))
    for version in _versions(apis.FETCH):
        yield fetch.encode_request(version, 2, "fuzz", asked)
    for version in _versions(apis.JOIN_GROUP):
        payload = build(request_class(apis.JOIN_GROUP, version), joining)
        yield encode_request(apis.JOIN_GROUP, version, 3, "fuzz", payload)


def _versions(api_key: int) -> range:
    return range(apis.APIS[api_key].version_min, apis.APIS[api_key].version_max + 1)


def framed(api_key: int, version: int, content: bytes, seeded: random.Random) -> bytes:
    head = bytearray(4)
    flexible = version >= apis.APIS[api_key].flexible_from
    client_id = seeded.choice(("fuzz", "", None))
    append_request_header(head, api_key, version, seeded.randrange(2**31), client_id, flexible=flexible)
    return resized(head + content)


def resized(frame: bytearray) -> bytes:
    struct.pack_into(">i", frame, 0, len(frame) - 4)
    return bytes(frame)


def sensible_message(entity_class: Any, seeded: random.Random) -> Any:
    """A message with values that may mean something to a broker."""
    return entity_class(**{field.name: _value(field, seeded) for field in fields(entity_class)})


def _value(field: Field[Any], seeded: random.Random) -> Any:
    inner: Any = field.type
    if isinstance(inner, UnionType):
        if seeded.random() < 0.2:
            return None
        (inner,) = (part for part in get_args(inner) if part is not NoneType)
    if get_origin(inner) is tuple:
        return tuple(_element(get_args(inner)[0], field, seeded) for _ in range(seeded.choice((1, 1, 2))))
    return _element(inner, field, seeded)


def _element(inner: Any, field: Field[Any], seeded: random.Random) -> Any:
    if is_dataclass(inner):
        return sensible_message(inner, seeded)
    kafka_type = field.metadata["kafka_type"]
    if kafka_type.startswith(("int", "uint")):
        bits = int(kafka_type.lstrip("uint"))
        low, high = (0, 2**bits - 1) if kafka_type.startswith("u") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        return min(max(seeded.choice(NUMBERS), low), high)
    batch = encode_batch(
        [Record(0, 1_700_000_000_000, b"k", b"v")], producer_id=seeded.choice((-1, 1)), base_sequence=0
    )
    values: dict[str, Callable[[], Any]] = {
        "bool": lambda: seeded.random() < 0.5,
        "timedelta_i32": lambda: datetime.timedelta(milliseconds=seeded.choice((0, 100, 10_000, 60_000))),
        "timedelta_i64": lambda: datetime.timedelta(milliseconds=seeded.choice((0, 1000))),
        "datetime_i64": lambda: datetime.datetime.fromtimestamp(1_700_000_000, tz=datetime.UTC),
        "float64": lambda: seeded.choice((-1.0, 0.0, 0.5, 1e12)),
        "uuid": lambda: UUID(int=seeded.randrange(1, 2**128)),
        "string": lambda: seeded.choice(NAMES),
        "bytes": lambda: b"metadata",
        "records": lambda: bytes(batch),
    }
    return values[kafka_type]()


def malformed(originals: list[bytes], seeded: random.Random) -> Iterator[bytes]:
    """Yield frames endlessly, each wrong in one to three ways; now and then a correct one."""
    while True:
        frame = bytearray(seeded.choice(originals))
        for _ in range(seeded.choice((1, 1, 1, 2, 3))):
            seeded.choice(MUTATIONS)(frame, seeded, originals)
        if seeded.random() < 0.9 and len(frame) >= 4:
            yield resized(frame)
        else:
            yield bytes(frame)


def _cut(frame: bytearray, seeded: random.Random, _originals: list[bytes]) -> None:
    del frame[seeded.randrange(len(frame) + 1) :]


def _flip(frame: bytearray, seeded: random.Random, _originals: list[bytes]) -> None:
    if frame:
        frame[seeded.randrange(len(frame))] ^= 1 << seeded.randrange(8)


def _lie_int32(frame: bytearray, seeded: random.Random, _originals: list[bytes]) -> None:
    if len(frame) > 8:
        struct.pack_into(">I", frame, seeded.randrange(len(frame) - 4), seeded.choice(HOSTILE_INT32))


def _lie_int16(frame: bytearray, seeded: random.Random, _originals: list[bytes]) -> None:
    if len(frame) > 8:
        struct.pack_into(">H", frame, seeded.randrange(len(frame) - 2), seeded.choice(HOSTILE_INT16))


def _lie_varint(frame: bytearray, seeded: random.Random, _originals: list[bytes]) -> None:
    at = seeded.randrange(len(frame) + 1)
    frame[at : at + 1] = seeded.choice((b"\xff" * 5, b"\xff\xff\xff\xff\x07", b"\x80" * 12, b"\xff\xff\x7f", b"\x00"))


def _lie_about_size(frame: bytearray, seeded: random.Random, _originals: list[bytes]) -> None:
    frame[0:4] = struct.pack(">I", seeded.choice((*HOSTILE_INT32, 104_857_600, seeded.randrange(2**32))))


def _insert(frame: bytearray, seeded: random.Random, _originals: list[bytes]) -> None:
    at = seeded.randrange(len(frame) + 1)
    frame[at:at] = seeded.randbytes(seeded.choice((1, 2, 8, 100)))


def _repeat(frame: bytearray, seeded: random.Random, _originals: list[bytes]) -> None:
    begin = seeded.randrange(len(frame) + 1)
    end = min(begin + seeded.choice((1, 4, 30)), len(frame))
    frame[end:end] = frame[begin:end] * seeded.choice((1, 3, 50))


def _splice(frame: bytearray, seeded: random.Random, originals: list[bytes]) -> None:
    other = seeded.choice(originals)
    frame[seeded.randrange(len(frame) + 1) :] = other[seeded.randrange(len(other)) :]


def _other_api(frame: bytearray, seeded: random.Random, _originals: list[bytes]) -> None:
    if len(frame) >= 8:
        struct.pack_into(
            ">hh", frame, 4, seeded.choice((*apis.APIS, 99, -1)), seeded.choice((0, 1, 3, 8, 13, -1, 2**15 - 1))
        )


def _noise(frame: bytearray, seeded: random.Random, _originals: list[bytes]) -> None:
    frame[seeded.choice((0, 4, 8)) :] = seeded.randbytes(seeded.choice((0, 1, 20, 300)))


def _leave(_frame: bytearray, _seeded: random.Random, _originals: list[bytes]) -> None:
    """A random source with hostile values."""


MUTATIONS = (
    _leave,
    _leave,
    _leave,
    _cut,
    _flip,
    _flip,
    _flip,
    _flip,
    _flip,
    _lie_int32,
    _lie_int16,
    _lie_varint,
    _lie_about_size,
    _insert,
    _repeat,
    _splice,
    _other_api,
    _noise,
)
