"""Encoded columns compared with the row decoder, the column decoder, the row encoder's hash, and librdkafka."""

import itertools
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka import Consumer, TopicPartition
from hypothesis import given, settings
from hypothesis import strategies as some

from onceflow.client.cluster import Cluster
from onceflow.wire import apis, produce
from onceflow.wire.batch import HEADER_BYTES, Record, check_batch, decode_batch, patch_producer, read_header
from onceflow.wire.codecs import Codec
from onceflow.wire.column_batches import (
    EncodedBatch,
    RecordColumns,
    Unencodable,
    encode_columns,
    murmur2_of_keys,
    partitions_of_keys,
)
from onceflow.wire.columns import HEADERS_TYPE, decode_columns
from onceflow.wire.murmur2 import murmur2, partition_for_key

Row = tuple[bytes | None, bytes | None, int, tuple[tuple[str, bytes | None], ...] | None]

LIMIT = 1024 * 1024


def columns_of(rows: list[Row], *, spare: int = 0) -> RecordColumns:
    """Return the rows as columns; with `spare` they are slices of longer ones, as Spark and Arrow may pass them."""
    padding: list[Row] = [(b"spare", b"spare", 0, (("spare", b""),))] * spare
    keys, values, times, headers = zip(*[*padding, *rows, *padding], strict=True)
    pairs = [None if row is None else [{"key": name, "value": value} for name, value in row] for row in headers]
    arrays = (
        pa.array(keys, pa.binary()),
        pa.array(values, pa.binary()),
        np.array(times),
        pa.array(pairs, HEADERS_TYPE),
    )
    key, value, time, header = (array[spare : spare + len(rows)] for array in arrays)
    return RecordColumns(key, value, time, header)


def sealed(batch: EncodedBatch) -> bytearray:
    patch_producer(batch.data, producer_id=7, producer_epoch=3, base_sequence=11, transactional=True)
    return batch.data


def decoded(batches: list[EncodedBatch]) -> dict[int, list[Record]]:
    """Return the records of each partition by the row decoder, offsets counted from each batch's start."""
    by_partition: dict[int, list[Record]] = {}
    for batch in batches:
        data = sealed(batch)
        header = read_header(data)
        check_batch(data, 0, header)
        assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 3, 11)
        assert header.is_transactional
        records = decode_batch(data)
        assert [record.offset for record in records] == list(range(batch.record_count))
        assert header.max_timestamp == max(record.timestamp_ms for record in records)
        by_partition.setdefault(batch.partition, []).extend(records)
    return by_partition


def expected(rows: list[Row], partitions: list[int]) -> dict[int, list[tuple[Any, ...]]]:
    by_partition: dict[int, list[tuple[Any, ...]]] = {}
    for (key, value, time, headers), partition in zip(rows, partitions, strict=True):
        by_partition.setdefault(partition, []).append((time, key, value, headers or ()))
    return by_partition


def without_offsets(records: dict[int, list[Record]]) -> dict[int, list[tuple[Any, ...]]]:
    return {partition: [tuple(record)[1:] for record in held] for partition, held in records.items()}


def random_rows(seeded: random.Random, count: int) -> list[Row]:
    sizes = (0, 1, 2, 3, 4, 63, 64, 127, 128, 300)

    def text() -> bytes | None:
        return seeded.choice((None, seeded.randbytes(seeded.choice(sizes)), b"a" * seeded.choice(sizes)))

    def headers() -> tuple[tuple[str, bytes | None], ...] | None:
        number = seeded.choice((0, 0, 1, 3))
        return None if seeded.random() < 0.2 else tuple((seeded.choice(("", "größe")), text()) for _ in range(number))

    spread = seeded.choice((1, 100, 2**38))
    return [(text(), text(), 2**40 + seeded.randrange(spread), headers()) for _ in range(count)]


@pytest.mark.parametrize("seed", range(25))
def test_batches_hold_the_rows_in_their_order(seed: int) -> None:
    seeded = random.Random(seed)
    rows = random_rows(seeded, seeded.choice((1, 2, 500)))
    partitions = [seeded.randrange(seeded.choice((1, 4))) for _ in rows]
    limit = seeded.choice((100, 1000, LIMIT))
    batches = list(
        encode_columns(
            columns_of(rows, spare=seed % 3),
            np.array(partitions),
            codec=list(Codec)[seed % 5],
            batch_bytes=limit,
            batch_bytes_max=LIMIT,
        )
    )
    assert without_offsets(decoded(batches)) == expected(rows, partitions)
    for batch in batches:
        by_columns = decode_columns(batch.data, offset_begin=0, offset_end=2**62, include_headers=True).columns
        by_rows = decode_batch(batch.data)
        assert by_columns["key"].to_pylist() == [record.key for record in by_rows]
        assert by_columns["value"].to_pylist() == [record.value for record in by_rows]
        rows_of_headers = by_columns["headers"].to_pylist()
        assert [tuple((header["key"], header["value"]) for header in row) for row in rows_of_headers] == [
            record.headers for record in by_rows
        ]


@settings(max_examples=100, deadline=None)
@given(some.data())
def test_rows_of_any_kind_come_back(data: some.DataObject) -> None:
    sized = some.none() | some.binary(max_size=200)
    headers = some.none() | some.lists(some.tuples(some.text(max_size=70), sized), max_size=3).map(tuple)
    row = some.tuples(sized, sized, some.integers(0, 2**62), headers)
    rows = data.draw(some.lists(row, min_size=1, max_size=12))
    partitions = data.draw(some.lists(some.integers(0, 3), min_size=len(rows), max_size=len(rows)))
    limit = data.draw(some.integers(HEADER_BYTES + 1, 1000))
    codec = data.draw(some.sampled_from(Codec))
    batches = list(
        encode_columns(columns_of(rows), np.array(partitions), codec=codec, batch_bytes=limit, batch_bytes_max=LIMIT)
    )
    assert without_offsets(decoded(batches)) == expected(rows, partitions)
    if codec is Codec.NONE:
        assert all(len(batch.data) <= limit for batch in batches if batch.record_count > 1)


def test_batches_are_filled() -> None:
    rows: list[Row] = [(b"%d" % number, b"x" * 100, 2**40 + number, None) for number in range(20_000)]
    columns = columns_of(rows)._replace(headers=None)
    batches = list(encode_columns(columns, np.zeros(len(rows), np.int64), batch_bytes_max=LIMIT))
    assert all(500 * 1024 < len(batch.data) <= 512 * 1024 for batch in batches[:-1])
    small = list(encode_columns(columns, np.zeros(len(rows), np.int64), batch_bytes_max=5_000))
    assert all(4_600 < len(batch.data) <= 5_000 for batch in small[:-1])


@pytest.mark.parametrize("codec", list(Codec))
def test_too_large_record_names_its_row(codec: Codec) -> None:
    large = random.Random(1).randbytes(5000)
    rows: list[Row] = [(b"k", b"v", 1, None), (b"k", b"v", 1, None), (b"large", large, 1, None)]
    with pytest.raises(
        Unencodable, match=r"row 2: a record of 5\d\d\d bytes, where .* max.message.bytes is 5000"
    ) as raised:
        list(encode_columns(columns_of(rows), np.array([1, 0, 0]), codec=codec, batch_bytes_max=5000))
    assert raised.value.row == 2


def test_incompressible_batch_stays_uncompressed() -> None:
    large = random.Random(1).randbytes(5000)
    plain = next(encode_columns(columns_of([(None, large, 1, None)]), np.array([0]), batch_bytes_max=LIMIT))
    fitting = next(
        encode_columns(
            columns_of([(None, large, 1, None)]), np.array([0]), codec=Codec.LZ4, batch_bytes_max=len(plain.data)
        )
    )
    assert read_header(fitting.data).codec is Codec.NONE
    assert decode_batch(fitting.data)[0].value == large


def test_what_kafka_does_not_take_is_refused() -> None:
    rows: list[Row] = [(None, b"v", 1, ()), (None, b"v", -1, ())]
    with pytest.raises(Unencodable, match="row 1: timestamp -1 ms is before 1970"):
        list(encode_columns(columns_of(rows), np.array([0, 0]), batch_bytes_max=LIMIT))
    pairs = [[{"key": "a", "value": b""}], None, [{"key": "a", "value": b""}, {"key": None, "value": b""}]]
    nameless = columns_of([(None, b"v", 1, ())] * 3)._replace(headers=pa.array(pairs, HEADERS_TYPE))
    with pytest.raises(Unencodable, match="row 2: a header without a key"):
        list(encode_columns(nameless, np.array([0, 0, 0]), batch_bytes_max=LIMIT))


def test_no_rows_make_no_batch() -> None:
    empty = RecordColumns(pa.array([], pa.binary()), pa.array([], pa.binary()), np.array([], np.int64))
    assert list(encode_columns(empty, np.array([], np.int64), batch_bytes_max=LIMIT)) == []
    assert len(partitions_of_keys(empty.key, 3)) == 0


@pytest.mark.parametrize("spare", [0, 3])
def test_keys_are_placed_as_java_places_them(spare: int) -> None:
    seeded = random.Random(spare)
    keys = [seeded.randbytes(size) for size in itertools.chain(range(40), [1000, 0, 5])]
    column = pa.array([b"spare"] * spare + [*keys, None], pa.binary())[spare:]
    assert murmur2_of_keys(column).tolist()[:-1] == [murmur2(key) for key in keys]
    assert partitions_of_keys(column, 7).tolist() == [*(partition_for_key(key, 7) for key in keys), -1]


@pytest.fixture
def consumer(bootstrap: str) -> Iterator[Consumer]:
    reader = Consumer({"bootstrap.servers": bootstrap, "group.id": "none", "enable.auto.commit": False})
    yield reader
    reader.close()


def test_librdkafka_reads_every_codec(bootstrap: str, topic: str, consumer: Consumer) -> None:
    seeded = random.Random(5)
    rows = random_rows(seeded, 300)
    with Cluster(bootstrap) as cluster:
        cluster.create_topic(topic, len(Codec))
        for codec in Codec:
            batches = encode_columns(
                columns_of(rows), np.full(len(rows), codec), codec=codec, batch_bytes=20_000, batch_bytes_max=LIMIT
            )
            for batch in batches:
                write(cluster, topic, batch)
    consumer.assign([TopicPartition(topic, codec, 0) for codec in Codec])
    read: dict[int, list[tuple[Any, ...]]] = {codec: [] for codec in Codec}
    while left := len(Codec) * len(rows) - sum(map(len, read.values())):
        for message in consumer.consume(left, timeout=20):
            assert message.error() is None
            headers = tuple(message.headers() or ())
            read[message.partition() or 0].append((message.timestamp()[1], message.key(), message.value(), headers))
    assert read == {codec: expected(rows, [codec] * len(rows))[codec] for codec in Codec}


def write(cluster: Cluster, topic: str, batch: EncodedBatch) -> None:
    patch_producer(batch.data, producer_id=-1, producer_epoch=-1, base_sequence=-1, transactional=False)
    connection = cluster.router.leader_connection(topic, batch.partition)
    version = connection.version_of(apis.PRODUCE)
    _, topics, _ = connection.exchange(
        lambda correlation_id: b"".join(
            produce.encode_request(
                version,
                correlation_id,
                None,
                transactional_id=None,
                acks=-1,
                timeout_ms=10_000,
                topics=[(topic, [(batch.partition, batch.data)])],
            )
        ),
        lambda frame: produce.parse_response(version, frame),
    )
    assert topics[0][1][0].error_code == 0
