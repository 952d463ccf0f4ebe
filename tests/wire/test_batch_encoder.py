"""A batch encoded record by record has the bytes of one that is encoded at once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceflow.wire.batch import Record, encode_batch
from onceflow.wire.batch_encoder import BatchEncoder

FIELDS = st.none() | st.binary(max_size=200)
INT16 = st.integers(min_value=-1, max_value=2**15 - 1)


@given(
    st.lists(st.tuples(FIELDS, FIELDS), min_size=1, max_size=200),
    st.integers(min_value=0, max_value=2**62),
    st.integers(min_value=-1, max_value=2**63 - 1),
    INT16,
    st.booleans(),
)
def test_the_bytes_are_the_same(
    entries: list[tuple[bytes | None, bytes | None]],
    timestamp_ms: int,
    producer_id: int,
    producer_epoch: int,
    transactional: bool,
) -> None:
    encoder = BatchEncoder(timestamp_ms)
    for key, value in entries:
        encoder.append(key, value)
    options = {"producer_id": producer_id, "producer_epoch": producer_epoch, "transactional": transactional}
    records = [Record(offset, timestamp_ms, key, value) for offset, (key, value) in enumerate(entries)]
    assert encoder.encode(**options) == encode_batch(records, **options)  # type: ignore[arg-type]


def test_an_empty_batch_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one record"):
        BatchEncoder(0).encode(producer_id=-1, producer_epoch=-1, transactional=False)
