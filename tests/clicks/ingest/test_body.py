"""Bodies of requests: formats, limits, compressed content."""

import gzip
import zlib

import pytest

from onceflow.clicks.ingest.body import Body, BodyRefused, split

LIMIT = 1_000


@pytest.mark.parametrize(
    ("body", "events"),
    [
        (b'{"a":1}', [b'{"a":1}']),
        (b'\n{"a":1}\r\n', [b'{"a":1}']),
        (b'{\n "a": 1\n}', [b'{\n "a": 1\n}']),
        (b'[{"a":1.10}, {"b":[2]},3]', [b'{"a":1.10}', b'{"b":[2]}', b"3"]),
        (b"[]", []),
        (b'{"a":1}\n\n{"b":2}\n', [b'{"a":1}', b'{"b":2}']),
        (b'{"a":1}\nbroken\n{"b":2}', [b'{"a":1}', b"broken", b'{"b":2}']),
        (b"broken", [b"broken"]),
        (b"\xff", [b"\xff"]),
    ],
)
def test_formats(body: bytes, events: list[bytes]) -> None:
    assert split(body, 10) == events


@pytest.mark.parametrize(
    ("body", "reason", "status"),
    [
        (b" \n", "no-events", 400),
        (b'[{"a":1},', "not-json", 400),
        (b"[" * 100_000, "not-json", 400),
        (b"[1,2,3]", "too-many-events", 413),
        (b"1\n2\n3", "too-many-events", 413),
    ],
)
def test_refused_bodies(body: bytes, reason: str, status: int) -> None:
    with pytest.raises(BodyRefused, match=f"^{reason}$") as raised:
        split(body, 2)
    assert raised.value.status == status


def whole(encoding: str, body: bytes, step: int = 1) -> bytes:
    """Return the content of a body that arrives in pieces."""
    reading = Body(encoding, LIMIT)
    for start in range(0, len(body), step):
        reading.add(body[start : start + step])
    return reading.content()


def test_content_of_the_largest_size() -> None:
    content = bytes(range(250)) * 4
    assert whole("", content) == whole("identity", content) == whole("gzip", gzip.compress(content, mtime=0)) == content
    assert whole("gzip", gzip.compress(content, mtime=0), step=LIMIT) == content


@pytest.mark.parametrize(
    ("encoding", "body", "reason"),
    [
        ("", b"x" * (LIMIT + 1), "body-too-large"),
        ("gzip", gzip.compress(b"x" * (LIMIT + 1), mtime=0), "body-too-large"),
        ("gzip", b"{}", "not-gzip"),
        ("gzip", gzip.compress(b"{}", mtime=0)[:-1], "not-gzip"),
        ("gzip", gzip.compress(b"{}", mtime=0) + b"x", "not-gzip"),
        ("gzip", zlib.compress(b"{}"), "not-gzip"),
        ("br", b"{}", "unknown-encoding"),
    ],
)
def test_refused_content(encoding: str, body: bytes, reason: str) -> None:
    with pytest.raises(BodyRefused, match=f"^{reason}$"):
        whole(encoding, body)


def test_a_bomb_is_not_expanded() -> None:
    bomb = gzip.compress(b"0" * 50_000_000, mtime=0)
    body = Body("gzip", LIMIT)
    with pytest.raises(BodyRefused, match="body-too-large"):
        body.add(bomb)
    assert len(body) == LIMIT + 1
