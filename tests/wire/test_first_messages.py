"""Kafka's first message format and its fetch replies, as the article prints them."""

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onceflow.wire import first_messages
from onceflow.wire.errors import CorruptBatch, MalformedBatch, MalformedFrame, WireError
from onceflow.wire.first_messages import FetchReply


def test_a_message_is_the_articles_bytes() -> None:
    crc = bytes.fromhex("cbf43926")  # The check value of CRC-32: that of "123456789".
    assert first_messages.encode(b"123456789") == bytes.fromhex("0000000e00") + crc + b"123456789"


@given(st.lists(st.binary(max_size=50), max_size=6), st.integers(0, 20))
@settings(max_examples=100, deadline=None)
def test_round_trip_ignores_cut_message(payloads: list[bytes], cut_bytes: int) -> None:
    log = b"".join(map(first_messages.encode, payloads))
    log = log[: max(0, len(log) - cut_bytes)]
    decoded = [first_messages.payload_of(log, position) for position, _header in first_messages.messages(log)]
    assert decoded == payloads[: len(decoded)]
    assert len(b"".join(map(first_messages.encode, decoded))) <= len(log)
    if not cut_bytes:
        assert decoded == payloads


def test_one_wrong_bit_is_seen() -> None:
    message = first_messages.encode(b"clicks")
    for position in range(len(message)):
        damaged = bytearray(message)
        damaged[position] ^= 0x08
        with pytest.raises((CorruptBatch, MalformedBatch)):
            first_messages.payload_of(damaged)


@pytest.mark.parametrize("length", [-1, 0, 4])
def test_a_length_below_the_header_is_refused(length: int) -> None:
    with pytest.raises(MalformedBatch, match="the minimum is 5"):
        list(first_messages.messages(struct.pack(">ibI", length, 0, 0)))


def test_fetch_reply_layout() -> None:
    messages = first_messages.encode(b"a") + first_messages.encode(b"bc")
    reply = first_messages.encode_fetch_reply(FetchReply(1, messages))
    assert reply == struct.pack(">ih", 2 + len(messages), 1) + messages
    assert first_messages.decode_fetch_reply(reply) == FetchReply(1, messages)


def test_multifetch_reply_layout() -> None:
    replies = [FetchReply(0, first_messages.encode(b"a")), FetchReply(1, b""), FetchReply(0, b"")]
    whole = first_messages.encode_multifetch_reply(0, replies)
    inner = b"".join(map(first_messages.encode_fetch_reply, replies))
    assert whole == struct.pack(">ih", 2 + len(inner), 0) + inner
    assert first_messages.decode_multifetch_reply(whole) == (0, replies)


@pytest.mark.parametrize("decode", [first_messages.decode_fetch_reply, first_messages.decode_multifetch_reply])
def test_cut_or_inconsistent_reply_is_refused(decode) -> None:  # type: ignore[no-untyped-def]
    whole = first_messages.encode_multifetch_reply(0, [FetchReply(0, first_messages.encode(b"a"))])
    for end in range(len(whole)):
        with pytest.raises(MalformedFrame):
            decode(whole[:end])
    for hostile in (struct.pack(">ih", 2**31 - 1, 0), struct.pack(">ih", -1, 0), whole + b"x"):
        with pytest.raises(MalformedFrame):
            decode(hostile)


@given(st.binary(max_size=80))
@settings(max_examples=100, deadline=None)
def test_random_bytes_are_refused_or_nothing(junk: bytes) -> None:
    try:
        for position, _header in first_messages.messages(junk):
            first_messages.payload_of(junk, position)
        first_messages.decode_multifetch_reply(junk)
    except WireError:
        return
