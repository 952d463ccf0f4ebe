"""The records of `__transaction_state`, byte by byte."""

import struct

import pytest

from onceflow.broker.topics.records import UnknownRecord
from onceflow.broker.transactions import records
from onceflow.broker.transactions.transaction import Transaction, TransactionState

ONGOING = Transaction("pay", 7, 3, 60_000, TransactionState.ONGOING, frozenset({("t", 1), ("t", 0), ("u", 2)}), 20, 10)

KEY = b"\x00\x00\x00\x03pay"
VALUE = (
    b"\x00\x01"  # version
    b"\x00\x00\x00\x00\x00\x00\x00\x07\x00\x03"  # producer id and epoch
    b"\x00\x00\xea\x60\x01"  # time-out, state Ongoing
    b"\x03\x02t\x03\x00\x00\x00\x00\x00\x00\x00\x01\x00\x02u\x02\x00\x00\x00\x02\x00"  # t: 0, 1; u: 2
    b"\x00\x00\x00\x00\x00\x00\x00\x14\x00\x00\x00\x00\x00\x00\x00\x0a"  # updated, started
    b"\x00"  # no tagged fields
)


def test_a_record_has_kafkas_bytes() -> None:
    assert records.encode(ONGOING) == (KEY, VALUE)


@pytest.mark.parametrize(
    "transaction",
    [
        ONGOING,
        Transaction("ä", 2**40, 0, 1, TransactionState.EMPTY, frozenset(), 5, -1, 6, 32766),
        Transaction("x" * 3000, 1, 32767, 900_000, TransactionState.PREPARE_ABORT, frozenset({("t" * 249, 0)}), 9, 8),
        Transaction("c", 1, 1, 1, TransactionState.COMPLETE_COMMIT, frozenset(), 9, 8, -1, 0),
    ],
)
def test_a_record_comes_back_as_it_was(transaction: Transaction) -> None:
    assert records.decode(*records.encode(transaction)) == transaction


def test_empty_and_complete_partitions_differ() -> None:
    _key, empty = records.encode(Transaction("e", 1, 0, 1, TransactionState.EMPTY, frozenset(), 2))
    _key, complete = records.encode(Transaction("e", 1, 0, 1, TransactionState.COMPLETE_ABORT, frozenset(), 2, 1))
    assert empty is not None
    assert complete is not None
    assert (empty[17], complete[17]) == (0, 1)


def test_a_tombstone_takes_an_id_away() -> None:
    assert records.encode("gone") == (b"\x00\x00\x00\x04gone", None)
    assert records.decode(b"\x00\x00\x00\x04gone", None) == "gone"


def test_kafkas_older_values_are_read() -> None:
    value = struct.pack(">hqhib", 0, 7, 3, 60_000, 1) + struct.pack(">ih1siiihs", 2, 1, b"t", 2, 0, 1, 1, b"u")
    value += struct.pack(">iiqq", 1, 2, 20, 10)
    assert records.decode(KEY, value) == ONGOING
    empty = struct.pack(">hqhib", 0, 7, 3, 60_000, 0) + struct.pack(">iqq", -1, 20, -1)
    decoded = records.decode(KEY, empty)
    assert isinstance(decoded, Transaction)
    assert decoded.partitions == frozenset()


def test_unknown_tagged_fields_are_skipped() -> None:
    assert records.decode(KEY, VALUE[:-1] + b"\x02\x01\x08" + bytes(8) + b"\x02\x02\x00\x00") == ONGOING


def test_record_of_later_release_is_refused() -> None:
    with pytest.raises(UnknownRecord, match="key version 1"):
        records.decode(b"\x00\x01" + KEY[2:], VALUE)
    with pytest.raises(UnknownRecord, match="value version 2"):
        records.decode(KEY, b"\x00\x02" + VALUE[2:])
