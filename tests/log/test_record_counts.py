"""Record counts that a batch cannot contain: refused on arrival, and harmless if already stored."""

import struct
from dataclasses import replace
from pathlib import Path

import pytest
from crc32c import crc32c

from onceflow.client.cluster import EARLIEST, LATEST, Cluster
from onceflow.log import errors, inspection
from onceflow.log.config import LogConfig
from onceflow.log.partition import PartitionLog
from onceflow.remedies import Remedy
from onceflow.spark.offsets import OffsetRange
from onceflow.spark.reader import read_task
from onceflow.spark.reader.options import SourceOptions
from onceflow.spark.reader.read_task import ReadTask
from onceflow.spark.reader.subscription import subscribed
from onceflow.testing import BrokerProcess
from onceflow.wire.batch import CRC_BEGIN, HEADER_BYTES, RECORD_BYTES_MIN, Record, batches, encode_batch
from onceflow.wire.codecs import UNPACKED_PER_BYTE_MAX, Codec, compress
from onceflow.wire.errors import MalformedBatch
from tests import remedies
from tests.broker.raw_client import connected
from tests.log.partition_logs import NOW_MS, batch, open_log, sync

INT32_MAX = 2**31 - 1
LOG = "00000000000000000000.log"


def claiming(count: int, body: bytes, codec: Codec = Codec.NONE) -> bytearray:
    """Return a batch whose header claims `count` records, whatever its body is."""
    head = struct.Struct(">qiibIhiqqqhii")
    size_bytes = HEADER_BYTES + len(body)
    data = bytearray(head.pack(0, size_bytes - 12, -1, 2, 0, codec, count - 1, NOW_MS, NOW_MS, -1, -1, -1, count))
    data += body
    struct.pack_into(">I", data, 17, crc32c(memoryview(data)[CRC_BEGIN:]))
    return data


def smallest(count: int, codec: Codec = Codec.NONE) -> bytearray:
    return encode_batch([Record(offset, NOW_MS, None, None) for offset in range(count)], codec=codec)


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("count", [INT32_MAX, 10_000_000, 40_000])
def test_impossible_counts_are_refused(log: PartitionLog, codec: Codec, count: int) -> None:
    """The count exceeds what the codec's format can unpack from one byte."""
    with pytest.raises(errors.InvalidRecord, match=rf"clicks-0: {count} records in 1 bytes .* at least 7 bytes"):
        log.append(claiming(count, b"\0", codec))
    assert (log.log_end_offset, log.segments.size_bytes) == (0, 0)


@pytest.mark.parametrize("codec", Codec)
def test_one_record_more_than_fits_is_refused(log: PartitionLog, codec: Codec) -> None:
    body = bytes(RECORD_BYTES_MIN * 10)
    fitting = 10 * UNPACKED_PER_BYTE_MAX[codec]
    with pytest.raises(errors.InvalidRecord):
        log.append(claiming(fitting + 1, body, codec))
    assert log.append(claiming(fitting, body, codec)).last_offset == fitting - 1


@pytest.mark.remedy(Remedy.SMALLER_BATCHES, Remedy.RAISE_SETTING)
@pytest.mark.parametrize("codec", [codec for codec in Codec if codec is not Codec.NONE])
def test_unpacked_limit_bounds_the_record_count(tmp_path: Path, codec: Codec) -> None:
    """The producer is asked for smaller batches, which Java's client sends by itself."""
    limit = 7000
    log = open_log(tmp_path / "clicks-0", batch_unpacked_bytes_max=limit)
    assert log.append(smallest(1000, codec)).last_offset == 999
    with pytest.raises(
        errors.MessageTooLarge, match=r"1001 records unpacks to 7007 .* batch.unpacked.max.bytes is 7000"
    ) as raised:
        log.append(smallest(1001, codec))
    remedies.find(Remedy.SMALLER_BATCHES, raised.value)
    assert [log.append(smallest(count, codec)).last_offset for count in (1000, 1)] == [1999, 2000]
    remedies.find(Remedy.RAISE_SETTING, raised.value)
    log.reconfigure(replace(log.config, batch_unpacked_bytes_max=limit + 7))
    assert log.append(smallest(1001, codec)).last_offset == 3001


def test_uncompressed_batches_have_no_unpacked_limit(tmp_path: Path) -> None:
    log = open_log(tmp_path / "clicks-0", batch_unpacked_bytes_max=700)
    assert log.append(smallest(101)).last_offset == 100


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("count", [1, 2, 64, 65, 9_000])
def test_the_smallest_records_are_taken(log: PartitionLog, codec: Codec, count: int) -> None:
    assert log.append(smallest(count, codec)).last_offset == count - 1


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec is not Codec.NONE])
def test_default_limit_allows_every_real_batch(codec: Codec) -> None:
    """Records without key and value differ only in their offset deltas, which bounds the compression of a batch."""
    count = 50_000
    config = LogConfig()
    packed_per_record = len(smallest(count, codec)) / count
    assert config.message_bytes_max / packed_per_record < config.batch_unpacked_bytes_max / RECORD_BYTES_MIN / 4


def test_refused_counts_roll_no_segment(tmp_path: Path) -> None:
    log = open_log(tmp_path / "clicks-0")
    for _ in range(3):
        log.append(batch(b"before"))
        with pytest.raises(errors.InvalidRecord):
            log.append(claiming(INT32_MAX, b"\0"))
    assert (log.log_end_offset, len(list(log.segments))) == (3, 1)


def stored(directory: Path) -> None:
    """Write a log as an earlier version did: a record, then a batch that claims 2^31 - 1 records."""
    log = open_log(directory)
    log.append(batch(b"before", timestamp_ms=NOW_MS - 10))
    sync(log)
    log.close()
    claim = claiming(INT32_MAX, b"\0")
    struct.pack_into(">q", claim, 0, 1)
    with (directory / LOG).open("ab") as file:
        file.write(claim)


def test_recovery_keeps_a_stored_claim(tmp_path: Path) -> None:
    """It was acknowledged, so later records have offsets after it."""
    stored(tmp_path / "clicks-0")
    log = open_log(tmp_path / "clicks-0")
    assert (log.recovery_removed_bytes, log.log_end_offset) == (0, 2**31)
    assert log.append(batch(b"after")).base_offset == 2**31
    sync(log)
    fetched = log.visible.read(1, 1 << 20)
    assert fetched is not None
    assert [header.record_count for _, header in batches(fetched.read())] == [INT32_MAX]
    with pytest.raises(errors.CorruptBatch, match="batch at position 0, base offset 1"):
        log.visible.search_timestamp(NOW_MS - 1)()


def test_dump_names_a_stored_claim(tmp_path: Path) -> None:
    stored(tmp_path / "clicks-0")
    path = tmp_path / "clicks-0" / LOG
    before_bytes = len(batch(b"before"))
    with pytest.raises(inspection.Damaged, match=f"damaged at byte {before_bytes}"):
        list(inspection.verified_batches(path, inspection.mapped(path)))


def test_the_source_stops_at_a_stored_claim(tmp_path: Path) -> None:
    """Readers get the records before it, and an error that names it."""
    with BrokerProcess(tmp_path / "data") as broker:
        with connected(broker.bootstrap) as client:
            client.create_topic("clicks")
            client.produce("clicks", 0, batch(b"before"))
        broker.kill()
        claim = claiming(INT32_MAX, b"\0")
        struct.pack_into(">q", claim, 0, 1)
        with (tmp_path / "data" / "clicks-0" / LOG).open("ab") as file:
            file.write(claim)
        broker.start()
        with Cluster(broker.bootstrap) as cluster:
            assert cluster.list_offsets("clicks", {0: EARLIEST})[0].offset == 0
            assert cluster.list_offsets("clicks", {0: LATEST})[0].offset == 2**31
        options = SourceOptions(broker.bootstrap, subscribed("clicks"), "earliest")
        (rows,) = read_task.read(options, ReadTask((OffsetRange("clicks", 0, 0, 1),), {}))
        assert rows["value"].to_pylist() == [b"before"]
        with pytest.raises(MalformedBatch, match="batch at offset 1"):
            list(read_task.read(options, ReadTask((OffsetRange("clicks", 0, 1, 2**31),), {})))


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec is not Codec.NONE])
def test_codecs_unpack_no_more_than_their_bound(codec: Codec) -> None:
    size_bytes = 16 * 1024**2
    assert size_bytes <= len(compress(codec, bytes(size_bytes))) * UNPACKED_PER_BYTE_MAX[codec]
