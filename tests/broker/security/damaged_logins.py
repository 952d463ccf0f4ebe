"""Logins with damage, from seeds: none of them has a right password or token."""

import struct
from random import Random
from typing import Any

from onceflow.wire import apis
from onceflow.wire.frames import encode_request, request_class
from tests.wire.messages import build

STOLEN = "stolen"
"""Topic that each login asks for at its end; a broker that serves it creates it."""
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI")
TOKENS = (
    b"",
    b"\0",
    b"\0ada\0wrong",
    b"\0eve\0wrong",
    b"n,,n=ada,r=x",
    b"c=biws,r=x,p=AAAA",
    b"n,,\x01auth=Bearer e30.e30.AAAA\x01\x01",
    b"\x01",
    b"\xff" * 100,
    b"x" * 20_000,
)


def frames_of(seed: int) -> bytes:
    """Return a login with damage: frames left out, repeated, cut, or with other bytes."""
    random = Random(seed)
    whole: list[tuple[int, int, dict[str, Any]]] = [
        (apis.API_VERSIONS, 0, {}),
        (apis.SASL_HANDSHAKE, random.randrange(2), {"mechanism": random.choice(MECHANISMS)}),
        (apis.SASL_AUTHENTICATE, random.randrange(3), {"auth_bytes": token(random)}),
        (apis.SASL_AUTHENTICATE, random.randrange(3), {"auth_bytes": token(random)}),
    ]
    sent = b""
    for number, (key, version, fields) in enumerate(whole):
        frame = bytearray(encode_request(key, version, number, "raw", build(request_class(key, version), fields)))
        kind = random.randrange(6)
        if kind == 0:
            continue
        if kind == 1:
            frame[random.randrange(4, len(frame))] = random.randrange(256)
        if kind == 2:
            frame = frame[: random.randrange(4, len(frame))]
            frame[:4] = struct.pack(">i", len(frame) - 4)
        sent += bytes(frame) * (2 if kind == 3 else 1)
    stealing = {"topics": [{"name": STOLEN}], "allow_auto_topic_creation": True}
    return sent + encode_request(apis.METADATA, 4, 9, "raw", build(request_class(apis.METADATA, 4), stealing))


def token(random: Random) -> bytes:
    """Return a wrong token, half of the time with other bytes in it."""
    chosen = bytearray(random.choice(TOKENS))
    for _ in range(random.randrange(4) if chosen and random.randrange(2) else 0):
        chosen[random.randrange(len(chosen))] = random.randrange(256)
    return bytes(chosen)
