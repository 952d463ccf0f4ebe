"""A record's timestamp and offset read without its key and value: equal to the decoded ones, and as careful."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceflow.wire.batch import HEADER_BYTES, Record, decode_batch, encode_batch, record_times
from onceflow.wire.codecs import Codec
from onceflow.wire.errors import MalformedBatch

RECORDS = [
    Record(7, 1_000, b"key", b"value" * 30, (("h", b"x"),)),
    Record(9, 900, None, None),
    Record(10, 2**40, b"", b""),
]


@pytest.mark.parametrize("codec", list(Codec))
def test_times_are_those_of_the_decoded_records(codec: Codec) -> None:
    batch = encode_batch(RECORDS, codec=codec)
    assert list(record_times(b"..." + batch, 3)) == [(record.timestamp_ms, record.offset) for record in RECORDS]
    batch[22] |= 0x08
    assert list(record_times(batch)) == [(2**40, record.offset) for record in RECORDS]


def test_times_of_a_batch_that_compaction_emptied() -> None:
    batch = encode_batch(RECORDS)[:HEADER_BYTES]
    batch[8:12] = (HEADER_BYTES - 12).to_bytes(4, "big")
    batch[57:61] = bytes(4)
    assert list(record_times(batch)) == []


def test_records_that_are_cut_are_malformed() -> None:
    whole = encode_batch(RECORDS)
    for size_bytes in range(HEADER_BYTES, len(whole)):
        batch = whole[:size_bytes]
        batch[8:12] = (size_bytes - 12).to_bytes(4, "big")
        with pytest.raises(MalformedBatch):
            list(record_times(batch))


@given(st.binary(max_size=60), st.integers(-1, 50))
def test_any_bytes_are_records_or_malformed(body: bytes, count: int) -> None:
    batch = encode_batch(RECORDS)[:HEADER_BYTES] + body
    batch[8:12] = (len(batch) - 12).to_bytes(4, "big")
    batch[57:61] = count.to_bytes(4, "big", signed=True)
    try:
        decoded = [(record.timestamp_ms, record.offset) for record in decode_batch(batch)]
    except MalformedBatch:
        decoded = None
    try:
        times = list(record_times(batch))
    except MalformedBatch:
        assert decoded is None
    else:
        assert decoded is None or times == decoded
