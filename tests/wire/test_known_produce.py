"""A known Produce request is read like the parser reads it, or not at all."""

import random
from typing import Any

import pytest

from onceflow.wire.apis import APIS, PRODUCE
from onceflow.wire.errors import MalformedFrame
from onceflow.wire.frames import encode_request as encode_by_kio
from onceflow.wire.frames import read_request_header, request_class
from onceflow.wire.known_produce import GENERATION_MAX, KNOWN_BYTES_MAX, KnownRequests
from onceflow.wire.primitives import append_uvarint
from onceflow.wire.produce import (
    PartitionResponse,
    ProduceRequest,
    SinglePartitionResponse,
    encode_request,
    encode_response,
    parse_request,
)
from tests.wire.messages import random_message

NEWEST = APIS[PRODUCE].version_max


def request_of(
    batch: bytes | None = b"some batch",
    *,
    version: int = NEWEST,
    correlation_id: int = 1,
    client_id: str | None = "me",
    transactional_id: str | None = None,
    acks: int = -1,
    topic: str = "clicks",
    partition: int = 3,
) -> bytes:
    """Return a request for one partition, without its size."""
    pieces = encode_request(
        version,
        correlation_id,
        client_id,
        transactional_id=transactional_id,
        acks=acks,
        timeout_ms=30_000,
        topics=[(topic, [(partition, batch)])],
    )
    return b"".join(map(bytes, pieces))[4:]


def parsed(frame: bytes) -> tuple[int, ProduceRequest]:
    """Parse a request; drop the timeout, on which no response depends."""
    view = memoryview(frame)
    header = read_request_header(view)
    return header.correlation_id, parse_request(view, header)._replace(timeout_ms=0)


def learn(known: KnownRequests, frame: bytes) -> None:
    view = memoryview(frame)
    header = read_request_header(view)
    known.learn(view, header, parse_request(view, header))


def learnt(*frames: Any) -> KnownRequests:
    known = KnownRequests()
    for frame in frames:
        learn(known, frame)
    return known


def find(known: KnownRequests, frame: bytes) -> tuple[int, ProduceRequest] | None:
    """Return the result of `find` in the parser's form."""
    result = known.find(memoryview(frame))
    if result is None:
        return None
    request, correlation_id, batch = result
    topics: list[tuple[str, list[tuple[int, memoryview | None]]]] = [(request.topic, [(request.partition, batch)])]
    return correlation_id, ProduceRequest(request.transactional_id, request.acks, 0, topics)


@pytest.mark.parametrize(
    "kept",
    [
        {},
        {"client_id": ""},
        {"client_id": "m" * 300},
        {"client_id": "müller"},
        {"transactional_id": "tx"},
        {"transactional_id": ""},
        {"transactional_id": "x" * 126},
        {"topic": "täglich"},
        {"topic": "t" * 126, "partition": 2**31 - 1},
        {"acks": 0},
    ],
)
def test_next_batch_of_producer_is_known(kept: dict[str, Any]) -> None:
    known = learnt(request_of(b"the first", **kept))
    for size_bytes in (0, 1, 126, 127, 128, 16_383, 16_384, 300_000):
        frame = request_of(random.Random(size_bytes).randbytes(size_bytes), correlation_id=size_bytes - 5, **kept)
        assert find(known, frame) == parsed(frame)


def test_batch_is_a_view_and_not_kept() -> None:
    first = bytearray(request_of(b"the first"))
    known = learnt(first)
    frame = bytearray(request_of(b"some batch"))
    result = known.find(memoryview(frame))
    assert result is not None
    frame[frame.index(b"some")] = ord("S")
    assert bytes(result[2]) == b"Some batch"
    first.clear()  # raises BufferError while a view of it is held


@pytest.mark.parametrize(
    "other",
    [
        {"client_id": "you"},
        {"transactional_id": "tx"},
        {"acks": 1},
        {"topic": "views"},
        {"partition": 4},
        {"version": NEWEST - 1},
        {"batch": None},
    ],
)
def test_who_says_something_else_is_not_known(other: dict[str, Any]) -> None:
    known = learnt(request_of())
    assert find(known, request_of()) is not None
    assert find(known, request_of(**other)) is None


@pytest.mark.parametrize(
    "frame",
    [
        request_of(client_id=None),
        request_of(transactional_id="x" * 127),
        request_of(topic="t" * 127),
        request_of(topic="t" * 200),
        request_of(client_id="m" * KNOWN_BYTES_MAX),
        request_of(None),
        request_of(version=NEWEST - 1),
        request_of() + b"\0",
        # Tagged fields after the header, partition, topic and request; one topic encoded with two bytes instead of one.
        request_of().replace(b"\x02me\x00", b"\x02me\x01\x63\x00"),
        request_of()[:-3] + b"\x01\x63\x00\x00\x00",
        request_of()[:-2] + b"\x01\x63\x00\x00",
        request_of()[:-1] + b"\x01\x63\x00",
        request_of().replace(b"\x02\x07clicks", b"\x82\x00\x07clicks"),
        b"".join(
            map(
                bytes,
                encode_request(
                    NEWEST,
                    1,
                    "me",
                    transactional_id=None,
                    acks=-1,
                    timeout_ms=9,
                    topics=[("clicks", [(0, b"one"), (1, b"two")])],
                ),
            )
        )[4:],
    ],
)
def test_other_requests_are_parsed(frame: bytes) -> None:
    parsed(frame)
    assert find(learnt(frame), frame) is None


def test_what_is_too_long_is_not_remembered() -> None:
    assert len(learnt(request_of(client_id="m" * 200))) == 1
    assert len(learnt(request_of(client_id="m" * KNOWN_BYTES_MAX))) == 0
    assert len(learnt(request_of(client_id=None), request_of(bytes(70_000), client_id=None))) == 0


def test_random_requests_match_the_parser() -> None:
    seeded = random.Random(7)
    frames = [
        encode_by_kio(PRODUCE, NEWEST, number, "me", random_message(request_class(PRODUCE, NEWEST), seeded))[4:]
        for number in range(300)
    ]
    known = learnt(*frames)
    hits = [frame for frame in frames if find(known, frame) is not None]
    assert hits
    for frame in hits:
        assert find(known, frame) == parsed(frame)


def test_damaged_requests_match_the_parser() -> None:
    seeded = random.Random(11)
    frame = request_of(bytes(200), transactional_id="tx")
    known = learnt(frame, request_of(bytes(200)))
    hits = 0
    for _ in range(20_000):
        spoilt = bytearray(frame)
        for _ in range(seeded.randint(1, 3)):
            spoilt[seeded.randrange(len(spoilt))] = seeded.choice((0, 1, 2, 0x7F, 0x80, 0xFF, seeded.randrange(256)))
        if not seeded.randrange(4):
            del spoilt[seeded.randrange(8, len(spoilt)) :]
        result = find(known, bytes(spoilt))
        if result is not None:
            hits += 1
            assert result == parsed(bytes(spoilt))
    assert hits > 1000


@pytest.mark.parametrize("length", [b"\xff\xff\xff\xff\xff", b"\xff\xff\xff\xff\x0f", b"\x00", b"\xff"])
def test_wrong_batch_length_is_parsed(length: bytes) -> None:
    frame = request_of(b"some batch")
    known = learnt(frame)
    head, _, rest = frame.partition(b"\x0bsome")
    assert find(known, head + length) is None
    assert find(known, head + length + bytes(2)) is None
    assert find(known, head + length + bytes(3)) is None
    assert find(known, head + length + b"some" + rest) is None
    with pytest.raises(MalformedFrame):
        parsed(head + b"\xff\xff\xff\xff\xff" + rest)


def test_request_with_long_encodings_is_unknown() -> None:
    """Its count of topics has three bytes: the length of its batch appears to be where the batch itself encodes it."""
    head = bytes.fromhex("0000 0009 00000001 0002 6d65 00 00 ffff 00007530 828000 02 61 02 00000005")
    batch = bytearray(b"x" * 300)
    length = bytearray()
    append_uvarint(length, len(batch) + 1)
    batch[122:124] = length
    frame = head + length + bytes(batch) + bytes(3 + 124)
    assert parsed(frame)[1].topics == [("a", [(5, batch)])]
    assert find(learnt(frame), frame) is None


def test_two_byte_name_length_is_not_shortened() -> None:
    """The length of the batch appears to start with the partition's last byte."""
    frame = request_of(b"some batch", topic="t" * 127, partition=0x85)
    known = learnt(frame)
    begin = frame.index(b"\x85\x0bsome batch")
    other = frame[:begin] + b"\x86\x02y" + bytes(0x86 + (2 << 7) - 0x80 - 2) + bytes(3)
    assert parsed(other)[1].topics == [("t" * 127, [(0x86, b"y")])]
    assert find(known, other) is None


def test_unused_requests_are_forgotten() -> None:
    known = KnownRequests()
    busy, *others = (request_of(partition=number) for number in range(2 * GENERATION_MAX + 2))
    learn(known, busy)
    for frame in others:
        learn(known, frame)
        assert find(known, busy) is not None
    assert find(known, others[0]) is None
    assert find(known, others[-1]) is not None
    learn(known, others[0])
    assert find(known, others[0]) is not None


def test_requests_of_one_generation_are_known() -> None:
    frames = [request_of(partition=number) for number in range(GENERATION_MAX)]
    known = learnt(request_of(topic="before"), *frames)
    for _ in range(3):
        assert all(find(known, frame) for frame in frames)


def test_cached_response_matches_the_encoder() -> None:
    for topic in ("a", "täglich", "t" * 249):
        result = SinglePartitionResponse(topic)
        for response in (PartitionResponse(0, 0, 0), PartitionResponse(2**31 - 1, 87, 2**40, 2**41, 2**39)):
            assert result.encode(-7, response) == encode_response(NEWEST, -7, [(topic, [response])])
