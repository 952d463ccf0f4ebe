"""Fetch requests and responses of versions 0 to 3, byte by byte: kio and other libraries have none of them any more."""

import struct

import pytest

from onceflow.wire import apis, old_fetch
from onceflow.wire.errors import MalformedFrame
from onceflow.wire.fetch import FetchPartition, FetchRequest
from onceflow.wire.frames import read_request_header
from onceflow.wire.old_fetch import OldPartition, encode_response, parse_request, parse_response
from tests.broker.old_fetch import request

SERVED = apis.served(in_cluster=False, down_converts=True)
ASKED = [("clicks", [(0, 5), (1, 2**40)]), ("views", [(7, 0)])]
TOPICS = [("clicks", [OldPartition(0, 0, 2**40, b"messages"), OldPartition(1, 1, -1, b"")]), ("views", [])]

every_version = pytest.mark.parametrize("version", range(old_fetch.VERSION_MAX + 1))


def parsed(frame: memoryview, entries_max: int = 100) -> FetchRequest:
    return parse_request(frame, read_request_header(frame, served=SERVED), entries_max=entries_max)


@every_version
def test_request_is_parsed(version: int) -> None:
    frame = memoryview(request(version, ASKED, wait_ms=50, min_bytes=3, max_bytes=1000, partition_max_bytes=90))[4:]
    asked = [
        (topic, [FetchPartition(partition, -1, offset, -1, 90) for partition, offset in partitions])
        for topic, partitions in ASKED
    ]
    assert parsed(frame) == FetchRequest(-1, 50, 3, 1000 if version == 3 else 2**31 - 1, 0, 0, -1, asked)


@every_version
def test_cut_requests_are_malformed(version: int) -> None:
    frame = memoryview(request(version, ASKED))[4:]
    body_position = read_request_header(frame, served=SERVED).body_position
    for end in range(body_position, len(frame)):
        with pytest.raises(MalformedFrame, match=f"Fetch request version {version}"):
            parsed(frame[:end])


def test_entries_of_a_request_are_limited() -> None:
    frame = memoryview(request(0, ASKED))[4:]
    assert len(parsed(frame, 5).topics) == 2
    with pytest.raises(MalformedFrame, match="more than 4 topics and partitions"):
        parsed(frame, 4)


@every_version
def test_response_has_kafkas_layout(version: int) -> None:
    body = b"" if version == 0 else struct.pack(">i", 0)
    body += struct.pack(">ih6si", 2, 6, b"clicks", 2)
    body += struct.pack(">ihqi8s", 0, 0, 2**40, 8, b"messages") + struct.pack(">ihqi", 1, 1, -1, 0)
    body += struct.pack(">h5si", 5, b"views", 0)
    encoded = encode_response(version, 9, TOPICS)
    assert encoded == struct.pack(">ii", 4 + len(body), 9) + body
    assert parse_response(version, encoded[4:]) == (9, TOPICS)


@every_version
def test_cut_responses_are_malformed(version: int) -> None:
    frame = encode_response(version, 9, TOPICS)[4:]
    for changed in (*(frame[:end] for end in range(len(frame))), frame + b"x"):
        with pytest.raises(MalformedFrame, match=f"Fetch response version {version}"):
            parse_response(version, changed)


@pytest.mark.parametrize("in_cluster", [False, True])
def test_old_versions_are_served_by_setting(in_cluster: bool) -> None:
    usual = apis.CLUSTER_APIS if in_cluster else apis.APIS
    assert apis.served(in_cluster=in_cluster, down_converts=False) is usual
    old = apis.served(in_cluster=in_cluster, down_converts=True)
    assert (old[apis.FETCH].version_min, old[apis.FETCH].advertised_min) == (0, 0)
    assert (old[apis.FETCH].version_max, old[apis.FETCH].advertised_max) == (
        usual[apis.FETCH].version_max,
        usual[apis.FETCH].advertised_max,
    )
    assert {key: api for key, api in old.items() if key != apis.FETCH} == {
        key: api for key, api in usual.items() if key != apis.FETCH
    }
