"""Invalid frames and unsupported requests: their effect on the connection."""

import struct
from collections.abc import Callable

from onceflow.wire import apis
from tests.conformance.side import CLOSED, SILENT, Side

WAIT_SECONDS = 2
NO_CLIENT = b"\xff\xff"
NO_TAGS = b"\x00"
CLIENT = b"\x00\x03raw"
MEMBER = b"\x00\x01g\x00\x00\x00\x01\x00\x01m"
"""Body of a Heartbeat in version 0, whose response has no broker-specific data: group, generation, member."""

MEMBER_4 = b"\x02g\x00\x00\x00\x01\x02m\x00"
"""The same in version 4, without an instance, before the tagged fields."""


def frame(api_key: int, version: int, rest: bytes = CLIENT, correlation_id: int = 7) -> bytes:
    return sized(struct.pack(">hhi", api_key, version, correlation_id) + rest)


def sized(content: bytes, size: int | None = None) -> bytes:
    return struct.pack(">i", len(content) if size is None else size) + content


def sent(*frames: bytes) -> Callable[[Side], None]:
    """Send each frame alone, and then check whether the connection still responds."""

    def case(side: Side) -> None:
        for content in frames:
            _exchange(side, content)
            _exchange(side, frame(apis.HEARTBEAT, 0, CLIENT + MEMBER, 8))
            side.leave()

    return case


def _exchange(side: Side, data: bytes) -> None:
    side.client().socket.settimeout(WAIT_SECONDS)
    try:
        side.client().socket.sendall(data)
        side.note("a frame", side.client().receive_frame() or CLOSED)
    except TimeoutError:
        side.note("a frame", SILENT)
    except ConnectionError:
        side.note("a frame", CLOSED)


def unsupported(side: Side) -> None:
    for version in (5, 99, 32767):
        side.client().socket.sendall(frame(apis.API_VERSIONS, version, CLIENT + NO_TAGS))
        side.receive(apis.API_VERSIONS, 0)
    side.ask(apis.HEARTBEAT, 0, group_id="g", generation_id=1, member_id="m")


def names_of_software(side: Side) -> None:
    for name, version in (("", "1"), ("raw", ""), ("a b", "1"), ("raw", "-"), ("raw-", "1.0"), ("ä", "1")):
        side.ask(apis.API_VERSIONS, 3, client_software_name=name, client_software_version=version)


def endless_lists(side: Side) -> None:
    """Send more elements than one request may have here."""
    names = [f"no-such-{number}" for number in range(25_000)]
    side.ask(apis.DESCRIBE_GROUPS, 5, groups=names, include_authorized_operations=False)
    side.ask(apis.DELETE_GROUPS, 2, groups_names=names)
    side.ask(apis.DESCRIBE_TRANSACTIONS, 0, transactional_ids=names)


def tagged(*sections: bytes) -> list[bytes]:
    return [frame(apis.HEARTBEAT, 4, CLIENT + section + MEMBER_4 + NO_TAGS) for section in sections]


CASES: dict[str, Callable[[Side], None]] = {
    "frames of unknown APIs": sent(frame(4, 0), frame(999, 0), frame(-1, 0)),
    "frames of early versions": sent(frame(apis.PRODUCE, 2), frame(apis.FETCH, 3), frame(apis.CREATE_TOPICS, 1)),
    "frames of late versions": sent(frame(apis.PRODUCE, 99), frame(apis.METADATA, 99), frame(apis.HEARTBEAT, 5)),
    "frames of negative versions": sent(frame(apis.METADATA, -1), frame(apis.API_VERSIONS, -1)),
    "frames of unknown versions of ApiVersions": unsupported,
    "frames with names of software": names_of_software,
    "frames of a right request": sent(frame(apis.HEARTBEAT, 0, CLIENT + MEMBER)),
    "frames without a client": sent(frame(apis.HEARTBEAT, 0, NO_CLIENT + MEMBER)),
    "frames with bytes behind the request": sent(frame(apis.HEARTBEAT, 0, CLIENT + MEMBER + b"behind")),
    "frames with a client id that is not text": sent(frame(apis.HEARTBEAT, 0, b"\x00\x02\xff\xfe" + MEMBER)),
    "frames with a negative correlation": sent(frame(apis.HEARTBEAT, 0, CLIENT + MEMBER, -5)),
    "frames of no bytes": sent(sized(b"")),
    "frames of a negative size": sent(sized(b"", -1), sized(b"", -(2**31))),
    "frames of an endless size": sent(sized(b"", 2**31 - 1), sized(b"", 104_857_601)),
    "frames cut in the header": sent(
        sized(b"\x00"), sized(b"\x00\x0c\x00\x00"), sized(b"\x00\x0c\x00\x00\x00\x00\x00")
    ),
    "frames cut in the client": sent(frame(apis.HEARTBEAT, 0, b"\x00\x09raw"), frame(apis.HEARTBEAT, 0, b"\x00")),
    "frames with a negative client length": sent(frame(apis.HEARTBEAT, 0, b"\xff\xfe" + MEMBER)),
    "frames cut in the body": sent(frame(apis.HEARTBEAT, 0, CLIENT + MEMBER[:-1]), frame(apis.HEARTBEAT, 0, CLIENT)),
    "frames with null where none may be": sent(frame(apis.HEARTBEAT, 0, CLIENT + b"\xff\xff" + MEMBER[3:])),
    "frames with invalid text": sent(frame(apis.HEARTBEAT, 0, CLIENT + b"\x00\x01\xff" + MEMBER[3:])),
    "frames with an endless array": sent(frame(apis.METADATA, 1, CLIENT + b"\x7f\xff\xff\xff")),
    "frames with a negative array": sent(frame(apis.METADATA, 1, CLIENT + b"\xff\xff\xff\xfe")),
    "frames with endless lists": endless_lists,
    "frames with tagged fields": sent(*tagged(NO_TAGS, b"\x01\x05\x02xx", b"\x02\x05\x01x\x06\x00")),
    "frames with wrong tagged fields": sent(
        *tagged(b"\x01\x05\x7fxx", b"\x02\x06\x01x\x05\x01y", b"\x02\x05\x00\x05\x00")
    ),
    "frames with endless tagged fields": sent(*tagged(b"\xff\xff\xff\xff\x0f"), *tagged(b"\xff\xff\xff\xff\xff\xff")),
    "frames without tagged fields": sent(frame(apis.HEARTBEAT, 4, CLIENT + MEMBER_4)),
}
