"""Records one by one: ranges kept to the offset, gaps crossed, aborted transactions left out."""

from collections.abc import Callable, Sequence
from itertools import islice

import pytest

from onceflow.client.cluster import Cluster, Fetched
from onceflow.client.errors import OffsetOutOfRange, RequestTimedOut
from onceflow.client.records import committed_records, next_offset, read_partitions, read_records
from onceflow.wire.batch import Record, encode_batch

Fill = Callable[..., str]

ABORT, COMMIT = b"\x00\x00\x00\x00", b"\x00\x00\x00\x01"


@pytest.mark.parametrize(
    ("begin", "end", "expected"),
    [(0, 5, b"abcde"), (1, 3, b"bc"), (4, 5, b"e"), (2, 2, b""), (5, 5, b"")],
)
def test_a_range_is_read_exactly(cluster: Cluster, filled: Fill, begin: int, end: int, expected: bytes) -> None:
    topic = filled([b"a", b"b", b"c", b"d", b"e"])
    records = list(read_records(cluster, topic, 0, begin, end))
    assert b"".join(record.value or b"" for record in records) == expected
    assert [record.offset for record in records] == list(range(begin, end))
    assert [record.timestamp_ms for record in records] == [1000 + offset for offset in range(begin, end)]


def test_a_range_over_many_fetches(cluster: Cluster, filled: Fill, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onceflow.client.records.FETCH_BYTES", 1000)
    values = [b"%d" % number * 50 for number in range(3000)]
    topic = filled(values)
    assert [record.value for record in read_records(cluster, topic, 0, 0, 3000)] == values


def test_missing_range_times_out(bootstrap: str, filled: Fill) -> None:
    topic = filled([b"a"])
    with Cluster(bootstrap) as cluster:
        records = read_records(cluster, topic, 0, 0, 2)
        assert next(records).value == b"a"
        cluster.router.timeout_ms = 300
        with pytest.raises(RequestTimedOut, match=f"{topic}-0: waited 300 ms at offset 1 for records up to 2"):
            next(records)


def test_partitions_in_turns_up_to_their_ends(cluster: Cluster, bootstrap: str, filled: Fill) -> None:
    topic = filled([b"a", b"b", b"c"], partitions=3, partition=1)
    got = list(read_partitions(cluster, topic, {0: 0, 1: 1, 2: 0}, {0: 0, 1: 3, 2: 0}))
    assert [(partition, record.value) for partition, record in got] == [(1, b"b"), (1, b"c")]


def test_recreated_topic_is_reported(cluster: Cluster, filled: Fill) -> None:
    topic = filled([b"a", b"b"])
    following = read_partitions(cluster, topic, {0: 0}, None)
    assert [record.value for _, record in islice(following, 2)] == [b"a", b"b"]
    cluster.delete_topic(topic)
    cluster.create_topic(topic, 1)
    with pytest.raises(OffsetOutOfRange, match=f"offset 2 of {topic}-0 is out of range: .* ends at 0"):
        next(following)


def batch(first: int, values: Sequence[bytes], **fields: int | bool) -> bytes:
    records = [Record(first + number, 0, None, value) for number, value in enumerate(values)]
    return _moved(encode_batch(records, **fields), first)  # type: ignore[arg-type]


def marker(offset: int, producer_id: int, key: bytes) -> bytes:
    record = Record(offset, 0, key, b"\x00\x00\x00\x00\x00\x00")
    encoded = encode_batch([record], producer_id=producer_id, producer_epoch=0, transactional=True, control=True)
    return _moved(encoded, offset)


def _moved(encoded: bytearray, offset: int) -> bytes:
    encoded[0:8] = offset.to_bytes(8, "big")
    return bytes(encoded)


def transactional(first: int, values: Sequence[bytes], producer_id: int) -> bytes:
    return batch(first, values, producer_id=producer_id, producer_epoch=0, base_sequence=0, transactional=True)


A, B = 1001, 1002


@pytest.mark.parametrize(
    ("parts", "aborted", "expected"),
    [
        pytest.param([batch(0, [b"a"]), batch(1, [b"b"])], [], b"ab", id="no transactions"),
        pytest.param([transactional(0, [b"a"], A), marker(1, A, COMMIT)], [], b"a", id="committed"),
        pytest.param(
            [transactional(0, [b"a"], A), marker(1, A, ABORT), batch(2, [b"b"])], [(A, 0)], b"b", id="aborted"
        ),
        pytest.param(
            [
                transactional(0, [b"a"], A),
                marker(1, A, ABORT),
                transactional(2, [b"b"], A),
                marker(3, A, COMMIT),
            ],
            [(A, 0)],
            b"b",
            id="aborted, then committed by the same producer",
        ),
        pytest.param(
            [
                transactional(0, [b"a"], A),
                transactional(1, [b"b"], B),
                batch(2, [b"c"]),
                marker(3, B, ABORT),
                marker(4, A, COMMIT),
            ],
            [(B, 1)],
            b"ac",
            id="two at once",
        ),
        pytest.param(
            [
                transactional(0, [b"a"], A),
                marker(1, A, COMMIT),
                transactional(2, [b"b"], A),
                marker(3, A, ABORT),
            ],
            [(A, 2)],
            b"a",
            id="committed, then aborted by the same producer",
        ),
        pytest.param([batch(0, [b"a"]), batch(5, [b"b"])[:-3]], [], b"a", id="the last batch is cut"),
        pytest.param([batch(0, [b"a"]), batch(7, [b"b"])], [], b"ab", id="a gap left by compaction"),
    ],
)
def test_what_read_committed_shows(parts: list[bytes], aborted: list[tuple[int, int]], expected: bytes) -> None:
    fetched = Fetched(memoryview(b"".join(parts)), 100, 100, 0, tuple(aborted))
    assert b"".join(record.value or b"" for record in committed_records(fetched, 0, 100)) == expected


def test_next_offset_follows_last_whole_batch() -> None:
    parts = [batch(0, [b"a", b"b"]), marker(2, A, ABORT), batch(5, [b"cut"])[:40]]
    assert next_offset(Fetched(memoryview(b"".join(parts)), 9, 9, 0, ()), 1) == 3
    assert next_offset(Fetched(memoryview(b""), 9, 9, 0, ()), 7) == 7
