"""A Produce request that is known is read as the parser reads it, or not at all."""

import random
from typing import Any

import pytest

from onceflow.wire.apis import APIS, PRODUCE
from onceflow.wire.errors import MalformedFrame
from onceflow.wire.frames import encode_request as encode_by_kio
from onceflow.wire.frames import read_request_header, request_class
from onceflow.wire.known_produce import KNOWN_BYTES_MAX, KNOWN_MAX, KnownRequests
from onceflow.wire.produce import ProduceRequest, encode_request, parse_request
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
    """A request for one partition, without its size."""
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
    view = memoryview(frame)
    header = read_request_header(view)
    return header.correlation_id, parse_request(view, header)


def learnt(*frames: bytes) -> KnownRequests:
    known = KnownRequests()
    for frame in frames:
        view = memoryview(frame)
        header = read_request_header(view)
        known.learn(view, header, parse_request(view, header))
    return known


def found(known: KnownRequests, frame: bytes) -> tuple[int, ProduceRequest] | None:
    """What `find` says, in the parser's form."""
    answer = known.find(memoryview(frame))
    if answer is None:
        return None
    request, correlation_id, batch = answer
    return correlation_id, request.asked._replace(topics=[(request.topic, [(request.partition, batch)])])


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
def test_the_next_batch_of_a_producer_is_known(kept: dict[str, Any]) -> None:
    known = learnt(request_of(b"the first", **kept))
    for size_bytes in (0, 1, 126, 127, 128, 16_383, 16_384, 300_000):
        frame = request_of(random.Random(size_bytes).randbytes(size_bytes), correlation_id=size_bytes - 5, **kept)
        assert found(known, frame) == parsed(frame)


def test_the_batch_is_a_view_of_the_frame_and_none_is_kept() -> None:
    first = bytearray(request_of(b"the first"))
    known = learnt(first)
    frame = bytearray(request_of(b"some batch"))
    answer = known.find(memoryview(frame))
    assert answer is not None
    frame[frame.index(b"some")] = ord("S")
    assert bytes(answer[2]) == b"Some batch"
    first.clear()  # raises BufferError where anybody still holds a view of it


@pytest.mark.parametrize(
    "other",
    [
        {"client_id": "you"},
        {"transactional_id": "tx"},
        {"acks": 1},
        {"topic": "views"},
        {"partition": 4},
        {"version": NEWEST - 1},
    ],
)
def test_who_says_something_else_is_not_known(other: dict[str, Any]) -> None:
    known = learnt(request_of())
    assert found(known, request_of()) is not None
    assert found(known, request_of(**other)) is None


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
        # Tagged fields behind the header, partition, topic and request; one topic told by two bytes instead of one.
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
def test_a_request_of_another_form_is_parsed_each_time(frame: bytes) -> None:
    parsed(frame)
    assert found(learnt(frame), frame) is None


def test_random_requests_are_read_as_the_parser_reads_them() -> None:
    seeded = random.Random(7)
    frames = [
        encode_by_kio(PRODUCE, NEWEST, number, "me", random_message(request_class(PRODUCE, NEWEST), seeded))[4:]
        for number in range(300)
    ]
    known = learnt(*frames)
    hits = [frame for frame in frames if found(known, frame) is not None]
    assert hits
    for frame in hits:
        assert found(known, frame) == parsed(frame)


def test_noise_and_cuts_are_read_as_the_parser_reads_them_or_not_at_all() -> None:
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
        answer = found(known, bytes(spoilt))
        if answer is not None:
            hits += 1
            assert answer == parsed(bytes(spoilt))
    assert hits > 1000


@pytest.mark.parametrize("length", [b"\xff\xff\xff\xff\xff", b"\xff\xff\xff\xff\x0f", b"\x00", b"\xff"])
def test_a_batch_without_a_right_length_is_left_to_the_parser(length: bytes) -> None:
    frame = request_of(b"some batch")
    known = learnt(frame)
    head, _, rest = frame.partition(b"\x0bsome")
    assert found(known, head + length) is None
    assert found(known, head + length + bytes(2)) is None
    assert found(known, head + length + bytes(3)) is None
    assert found(known, head + length + b"some" + rest) is None
    with pytest.raises(MalformedFrame):
        parsed(head + b"\xff\xff\xff\xff\xff" + rest)


def test_a_request_that_is_longer_than_it_need_be_is_not_known_by_half() -> None:
    """Its count of topics has two bytes: where the length of its batch is looked for, part of its partition stands."""
    head = bytes.fromhex("0000 0009 00000001 0002 6d65 00 00 ffff 00007530 8200 02 61 02 00")
    first = head + bytes.fromhex("858000 05 01020304 000000")
    assert parsed(first)[1].topics == [("a", [(0x858000, b"\1\2\3\4")])]
    other = head + bytes.fromhex("05b0b1 02 b3 000000")
    assert parsed(other)[1].topics == [("a", [(0x05B0B1, b"\xb3")])]
    assert found(learnt(first), other) is None


def test_too_many_are_forgotten_and_learnt_again() -> None:
    known = learnt(*(request_of(partition=number) for number in range(KNOWN_MAX)))
    assert all(found(known, request_of(partition=number)) for number in range(KNOWN_MAX))
    view = memoryview(request_of(partition=KNOWN_MAX))
    header = read_request_header(view)
    known.learn(view, header, parse_request(view, header))
    assert found(known, request_of(partition=KNOWN_MAX)) is not None
    assert found(known, request_of(partition=0)) is None
