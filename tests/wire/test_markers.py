"""Transaction markers: Kafka's bytes, both ways."""

import pytest

from onceflow.wire.batch import Record, batches, encode_batch, read_header
from onceflow.wire.errors import MalformedBatch
from onceflow.wire.markers import Marker, decode_marker, encode_marker
from tests.log.golden_transactions import LOG


def test_kafkas_own_markers_are_read_and_written() -> None:
    markers = []
    for position, header in batches(LOG):
        if not header.is_control:
            continue
        marker = decode_marker(LOG, position)
        assert marker is not None
        encoded = encode_marker(
            header.producer_id,
            header.producer_epoch,
            marker,
            offset=header.base_offset,
            timestamp_ms=header.max_timestamp,
            leader_epoch=header.partition_leader_epoch,
        )
        assert encoded == LOG[position : position + header.size_bytes]
        assert read_header(encoded).attributes == 0x30
        markers.append((header.base_offset, header.producer_id, *marker))
    assert markers == [
        (2, 2, True, 0),
        (4, 2, False, 0),
        (8, 3, False, 0),
        (9, 2, False, 0),
        (12, 3, True, 0),
        (13, 2, True, 0),
    ]


@pytest.mark.parametrize("marker", [Marker(True, 5), Marker(False, 5)])
def test_marker_of_later_coordinator_round_trip(marker: Marker) -> None:
    assert decode_marker(encode_marker(1, 0, marker, offset=3, timestamp_ms=0, leader_epoch=0)) == marker


def test_other_control_records_are_no_markers() -> None:
    leader_change = encode_batch([Record(0, 0, b"\0\0\0\2", b"\0\0")], control=True)
    assert decode_marker(leader_change) is None


def test_a_marker_that_compaction_emptied_is_none() -> None:
    batch = encode_marker(1, 0, Marker(True, 3), offset=0, timestamp_ms=0, leader_epoch=0)[:61]
    batch[57:61] = bytes(4)
    batch[8:12] = (49).to_bytes(4, "big")
    assert decode_marker(batch) is None


@pytest.mark.parametrize(("key", "value"), [(b"\0\0\0", b""), (b"\0\0\0\1", b"\0\0\0"), (None, None)])
def test_half_a_marker_is_malformed(key: bytes | None, value: bytes | None) -> None:
    with pytest.raises(MalformedBatch, match="control record at offset 7"):
        decode_marker(encode_batch([Record(7, 0, key, value)], control=True))
