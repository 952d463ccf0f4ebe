"""Append, sync and read of a partition's log without faults, and what it refuses."""

import errno
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c

from onceflow.log import errors
from onceflow.log.disk import File, RealDisk, SyncNotBegun
from onceflow.log.index import OffsetIndex
from onceflow.log.partition import PartitionLog
from onceflow.log.segment import Segment
from onceflow.testing import FaultyDisk, ManualClock
from onceflow.wire.batch import Record, decode_batch, encode_batch, encode_retained, read_header, write_crc
from onceflow.wire.codecs import Codec
from onceflow.wire.errors import MalformedBatch
from tests.log.partition_logs import NOW_MS, batch, open_log, records, sync, values


def test_offsets_are_stamped_and_the_rest_stays(log: PartitionLog) -> None:
    sent = [batch(b"a", b"b"), batch(b"c"), batch(b"d", b"e", b"f")]
    for data in sent:
        before = bytes(data)
        appended = log.append(data)
        assert bytes(data[16:]) == before[16:], "only offset, length and leader epoch are outside the CRC"
        assert (appended.duplicate, appended.timestamp_ms) == (False, -1)
    sync(log)
    fetched = log.visible.read(0, 1 << 20)
    assert fetched is not None
    assert fetched.read() == b"".join(sent)
    assert [read_header(data).base_offset for data in sent] == [0, 2, 3]
    assert values(log) == [b"a", b"b", b"c", b"d", b"e", b"f"]


def test_batch_in_the_middle_of_buffer(log: PartitionLog) -> None:
    log.append(memoryview(bytearray(b"request header") + batch(b"a")), position=14)
    log.append(memoryview(bytearray(b"...") + batch(b"b"))[3:])
    sync(log)
    assert values(log) == [b"a", b"b"]


def test_nothing_is_visible_before_its_sync(log: PartitionLog) -> None:
    assert log.durability.begin_sync() is None
    log.append(batch(b"a"))
    assert (log.log_end_offset, log.high_watermark, log.visible.read(0, 1000)) == (1, 0, None)
    point = log.durability.begin_sync()
    assert point is not None
    log.append(batch(b"b"))
    with pytest.raises(RuntimeError, match="already running"):
        log.durability.begin_sync()
    point.run()
    log.durability.end_sync(point)
    assert (log.log_end_offset, log.high_watermark, values(log)) == (2, 1, [b"a"])
    assert log.visible.search_max_timestamp()() == (NOW_MS, 0)
    assert log.visible.search_timestamp(NOW_MS)() == (NOW_MS, 0)
    sync(log)
    assert values(log) == [b"a", b"b"]


def test_rule_2_read_starts_at_containing_batch(log: PartitionLog) -> None:
    sizes = [len(data) for data in (batch(b"a" * 10, b"b", b"c"), batch(b"d"), batch(b"e" * 500))]
    for data in (batch(b"a" * 10, b"b", b"c"), batch(b"d"), batch(b"e" * 500)):
        log.append(data)
    sync(log)

    def span(offset: int, size_bytes_max: int, **options: Any) -> tuple[int, int] | None:
        fetched = log.visible.read(offset, size_bytes_max, **options)
        return None if fetched is None else (fetched.position, fetched.size_bytes)

    assert span(2, 1 << 20) == (0, sum(sizes))
    assert span(0, sizes[0]) == (0, sizes[0])
    assert span(0, sum(sizes) - 1) == (0, sizes[0] + sizes[1])
    assert span(4, 1) == (sizes[0] + sizes[1], sizes[2]), "the first batch comes whole, whatever the limit"
    assert span(4, 1, at_least_one_batch=False) is None
    assert span(0, 1 << 20, offset_end=4) == (0, sizes[0] + sizes[1])
    assert span(0, 1 << 20, offset_end=3) == (0, sizes[0])
    assert span(3, 1 << 20, offset_end=3) is None
    assert span(0, 1 << 20, offset_end=99) == (0, sum(sizes))
    assert span(5, 1 << 20) is None
    for outside in (-1, 6):
        with pytest.raises(errors.OffsetOutOfRange, match=f"clicks-0: offset {outside} "):
            log.visible.read(outside, 1)


@pytest.mark.parametrize("segment_bytes", [400, 3000, 1 << 30])
@pytest.mark.parametrize("size_bytes_max", [1, 150, 1000, 1 << 20])
def test_reading_all_in_pieces_of_any_size(tmp_path: Path, segment_bytes: int, size_bytes_max: int) -> None:
    log = open_log(tmp_path / "clicks-0", segment_bytes=segment_bytes, index_interval_bytes=300)
    sent = [b"%d" % number * (number % 7 + 1) for number in range(300)]
    for begin in range(0, 300, 3):
        log.append(batch(*sent[begin : begin + 3]))
        if begin % 30 == 0:
            sync(log)
    sync(log)
    assert [record.value for record in records(log, size_bytes_max)] == sent
    for offset in range(0, 300, 7):
        fetched = log.visible.read(offset, 1)
        assert fetched is not None
        header = read_header(fetched.read())
        assert header.base_offset <= offset <= header.last_offset


@pytest.mark.parametrize("segment_bytes", [200, 1 << 30])
def test_waiting_reader_gets_the_next_batch(tmp_path: Path, segment_bytes: int) -> None:
    log = open_log(tmp_path / "clicks-0", segment_bytes=segment_bytes)
    for number in range(20):
        assert log.visible.read(log.high_watermark, 1 << 20) is None
        offset = log.log_end_offset
        log.append(batch(b"%d" % number))
        log.append(batch(b"unsynced", b"beside it"))
        assert log.visible.read(offset, 1 << 20) is None
        sync(log)
        fetched = log.visible.read(offset, 1)
        assert fetched is not None
        assert read_header(fetched.read()).base_offset == offset
        for nearby in (offset + 1, max(offset - 1, 0)):
            fetched = log.visible.read(nearby, 1)
            assert fetched is not None
            header = read_header(fetched.read())
            assert header.base_offset <= nearby <= header.last_offset


def test_waiting_reader_needs_no_search(log: PartitionLog, monkeypatch: pytest.MonkeyPatch) -> None:
    def not_searched(*_arguments: object) -> int:
        raise AssertionError("it was looked for")

    log.append(batch(b"a"))
    sync(log)
    assert log.visible.read(1, 1000) is None
    log.append(batch(b"b"))
    sync(log)
    with monkeypatch.context() as patched:
        patched.setattr(OffsetIndex, "position_for_offset", not_searched)
        small = log.visible.read(1, 1)
        patched.setattr(Segment, "find", not_searched)
        fetched = log.visible.read(1, 1000)
    assert fetched is not None
    assert fetched == small
    assert read_header(fetched.read()).base_offset == 1


def test_a_slice_outlives_its_log(tmp_path: Path) -> None:
    log = open_log(tmp_path / "clicks-0")
    log.append(batch(b"a"))
    sync(log)
    fetched = log.visible.read(0, 1000)
    assert fetched is not None
    log.close()
    del log
    assert read_header(fetched.read()).record_count == 1


def refusal(kind: type[errors.LogError], change: Callable[[bytearray], object]) -> object:
    return pytest.param(kind, change, id=f"{kind.__name__}-{change.__doc__ or change.__name__}")


def put(position: int, value: bytes) -> Callable[[bytearray], None]:
    def change(data: bytearray) -> None:
        data[position : position + len(value)] = value

    change.__doc__ = f"{value.hex()} at {position}"
    return change


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        refusal(errors.InvalidRecord, put(0, bytes([0, 0, 0, 0, 0, 0, 0, 1]))),
        refusal(errors.CorruptBatch, put(8, bytes([0, 0, 0, 9]))),
        refusal(errors.CorruptBatch, put(8, bytes([0xFF, 0, 0, 9]))),
        refusal(errors.NotOneBatch, put(16, b"\x01")),
        refusal(errors.CorruptBatch, put(17, bytes(4))),
        refusal(errors.CorruptBatch, put(70, b"\xaa")),
        refusal(errors.InvalidRecord, put(21, b"\x00\x05")),
        refusal(errors.InvalidTimestamp, put(21, b"\x00\x08")),
        refusal(errors.InvalidRecord, put(21, b"\x00\x10")),
        refusal(errors.InvalidRecord, put(21, b"\x00\x30")),
        refusal(errors.InvalidRecord, put(21, b"\x00\x40")),
        refusal(errors.InvalidRecord, put(23, bytes([0, 0, 0, 7]))),
        refusal(errors.InvalidTimestamp, put(35, b"\x7f")),
        refusal(errors.InvalidRecord, put(43, bytes(8))),
        refusal(errors.InvalidRecord, put(57, bytes(4))),
        refusal(errors.NotOneBatch, lambda data: data.extend(batch(b"second"))),
        refusal(errors.NotOneBatch, lambda data: data.__delitem__(slice(60, None))),
        refusal(errors.NotOneBatch, lambda data: data.clear()),
        refusal(errors.MessageTooLarge, lambda data: data.__setitem__(slice(None), batch(bytes(1000)))),
        refusal(errors.RecordListTooLarge, lambda data: data.__setitem__(slice(None), batch(bytes(800)))),
    ],
)
def test_rule_12_invalid_batches_are_refused(
    tmp_path: Path, kind: type[errors.LogError], change: Callable[[bytearray], object]
) -> None:
    log = open_log(tmp_path / "clicks-0", message_bytes_max=1000, segment_bytes=700)
    data = batch(b"first", b"last")
    change(data)
    with pytest.raises(errors.LogError, match="clicks-0") as raised:
        log.append(data)
    assert type(raised.value) is kind
    assert (log.log_end_offset, log.segments.size_bytes) == (0, 0)
    assert log.append(batch(b"good")).base_offset == 0


def test_every_refusal_has_kafkas_code() -> None:
    kinds = [kind for kind in errors.LogError.__subclasses__() if kind.__module__ == errors.__name__]
    codes = {kind.__name__: int(kind.error_code) for kind in kinds}
    assert codes == {
        "CorruptBatch": 2,
        "InvalidRecord": 87,
        "InvalidTransactionState": 48,
        "InvalidTimestamp": 32,
        "MessageTooLarge": 10,
        "RecordListTooLarge": 18,
        "OutOfOrderSequence": 45,
        "EarlierBatchesAwaited": 19,
        "InvalidProducerEpoch": 47,
        "StorageFailed": 56,
        "TooManyProducers": 44,
        "TransactionCoordinatorFenced": 52,
        "OffsetOutOfRange": 1,
    }


def names(log: PartitionLog, suffix: str) -> list[int]:
    return sorted(int(path.stem) for path in log.directory.glob(f"*{suffix}"))


def test_segments_roll_by_size(tmp_path: Path) -> None:
    size_bytes = len(batch(b"x" * 100))
    log = open_log(tmp_path / "clicks-0", segment_bytes=3 * size_bytes)
    for _ in range(7):
        log.append(batch(b"x" * 100))
    sync(log)
    assert names(log, ".log") == [0, 3, 6]
    assert names(log, ".snapshot") == [3, 6]
    assert names(log, ".index") == names(log, ".timeindex") == [0, 3]
    assert log.segments.size_bytes == 7 * size_bytes
    assert len(values(log)) == 7


def test_segments_roll_by_the_batches_own_time(tmp_path: Path) -> None:
    log = open_log(tmp_path / "clicks-0", segment_ms=1000)
    for timestamp_ms in (5_000, 6_000, 6_001, 4_000, 7_002):
        log.append(batch(b"x", timestamp_ms=timestamp_ms))
    assert names(log, ".log") == [0, 2, 4]


def test_segments_without_timestamps_roll_by_the_clock(tmp_path: Path) -> None:
    clock = ManualClock(NOW_MS)
    log = open_log(tmp_path / "clicks-0", clock=clock, segment_ms=1000)
    for _ in range(3):
        log.append(encode_batch([Record(0, -1, None, b"x")]))
        clock.advance_ms(600)
    assert names(log, ".log") == [0, 2]


def test_rule_1_relative_offsets_fit_into_int32(tmp_path: Path) -> None:
    log = open_log(tmp_path / "clicks-0", index_interval_bytes=0)
    log.append(batch(b"first"))
    log.segments.end_offset = 2**31 - 2
    for value in (b"a", b"b", b"c"):
        log.append(batch(value))
    assert names(log, ".log") == [0, 2**31]
    sync(log)
    assert [record.value for record in (*records(log),)][-2:] == [b"b", b"c"]


def test_segments_roll_when_an_index_is_full(tmp_path: Path) -> None:
    log = open_log(tmp_path / "clicks-0", index_interval_bytes=0, segment_index_bytes=12)
    for number in range(6):
        log.append(batch(b"x", timestamp_ms=NOW_MS + number))
    assert names(log, ".log") == [0, 3]


@pytest.mark.parametrize("codec", list(Codec))
def test_rule_3_time_search_reads_records(tmp_path: Path, codec: Codec) -> None:
    log = open_log(tmp_path / "clicks-0", segment_bytes=600, index_interval_bytes=100)
    timestamps = [100, 300, 200, 250, 900, 400, 500, 600, 700, 950, 800, 950, 10, 20] * 3
    for begin in range(0, len(timestamps), 2):
        pair = timestamps[begin : begin + 2]
        log.append(encode_batch([Record(i, ts, None, b"x" * 50) for i, ts in enumerate(pair)], codec=codec))
    assert log.visible.search_timestamp(0)() is None
    assert log.visible.search_max_timestamp()() is None
    sync(log)
    for _ in range(2):
        for wanted in range(0, 1000, 25):
            first = next(((ts, offset) for offset, ts in enumerate(timestamps) if ts >= wanted), None)
            assert log.visible.search_timestamp(wanted)() == first
        assert log.visible.search_max_timestamp()() == (950, 9)
        log.close()
        log = open_log(tmp_path / "clicks-0", clean=True)


def test_time_search_stops_at_high_watermark(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(tmp_path / "clicks-0", index_interval_bytes=100)
    for number in range(50):
        if number == 30:
            sync(log)
        log.append(batch(b"x" * 50, timestamp_ms=NOW_MS + 10 * number))
    scanned: list[int] = []
    spans = Segment.spans

    def counted(segment: Segment, position: int, end: int) -> Iterator[tuple[int, int, int]]:
        for span in spans(segment, position, end):
            scanned.append(span[2])
            yield span

    monkeypatch.setattr(Segment, "spans", counted)
    for wanted in range(31, 60):
        assert log.visible.search_timestamp(NOW_MS + 10 * wanted)() is None
    assert len(scanned) < 20, "of 30 visible batches, for 29 lookups"
    assert log.visible.search_timestamp(NOW_MS + 290)() == (NOW_MS + 290, 29)
    assert "damaged" not in caplog.text
    sync(log)
    assert log.visible.search_timestamp(NOW_MS + 450)() == (NOW_MS + 450, 45)


def test_unreadable_records_fail_the_search_only(log: PartitionLog) -> None:
    data = encode_batch([Record(0, NOW_MS, None, b"x" * 50)], codec=Codec.GZIP)
    whole = encode_batch([Record(0, NOW_MS, None, b"x" * 50)])
    whole[21:23] = data[21:23]
    whole[17:21] = crc32c(whole[21:]).to_bytes(4, "big")
    log.append(whole)
    sync(log)
    assert log.visible.read(0, 1000) is not None
    with pytest.raises(errors.CorruptBatch, match="gzip"):
        log.visible.search_timestamp(0)()


def test_a_full_disk_refuses_and_recovers(tmp_path: Path) -> None:
    disk = FaultyDisk(tmp_path)
    log = open_log(tmp_path / "clicks-0", disk=disk)
    log.append(batch(b"a"))
    disk.space_bytes = 40
    for _ in range(2):
        with pytest.raises(errors.StorageFailed, match="no space left"):
            log.append(batch(b"b" * 200))
        assert log.directory.joinpath(f"{0:020d}.log").stat().st_size == log.segments.size_bytes
    disk.space_bytes = None
    assert log.append(batch(b"c")).base_offset == 1
    sync(log)
    assert values(log) == [b"a", b"c"]


def test_failed_sync_stops_writes_not_reads(tmp_path: Path) -> None:
    disk = FaultyDisk(tmp_path)
    log = open_log(tmp_path / "clicks-0", disk=disk)
    log.append(batch(b"a"))
    sync(log)
    log.append(batch(b"b"))
    disk.fail_next_syncs()
    point = log.durability.begin_sync()
    assert point is not None
    with pytest.raises(OSError, match="could not sync") as raised:
        point.run()
    log.durability.fail_sync(raised.value)
    with pytest.raises(errors.StorageFailed, match=r"clicks-0.*could not sync.*restart"):
        log.append(batch(b"c"))
    assert log.durability.begin_sync() is None
    assert (values(log), log.log_end_offset) == ([b"a"], 2)
    log.close()
    disk.crash(0)
    assert values(open_log(tmp_path / "clicks-0", disk=disk, clean=True)) == [b"a"]


def test_a_closed_log_takes_nothing(log: PartitionLog) -> None:
    log.append(batch(b"a"))
    log.close()
    log.close()
    assert log.high_watermark == 1
    with pytest.raises(errors.StorageFailed, match="closed"):
        log.append(batch(b"b"))


class ShortDisk(RealDisk):
    """A disk that opens no file with one of these suffixes; "directory" stands for a directory that cannot be
    synced."""

    refused: tuple[str, ...] = ()

    def open(self, path: Path, *, create: bool = False) -> File:  # type: ignore[override]
        if path.suffix in self.refused:
            raise OSError(errno.EMFILE, "too many open files", str(path))
        return super().open(path, create=create)

    def sync_directory(self, path: Path) -> None:
        if "directory" in self.refused:
            raise SyncNotBegun(errno.EMFILE, "too many open files", str(path))
        super().sync_directory(path)


@pytest.mark.parametrize("refused", [".index", ".timeindex", ".snapshot", "directory"])
def test_failed_index_write_is_retried(refused: str, tmp_path: Path) -> None:
    disk = ShortDisk()
    log = open_log(tmp_path / "clicks-0", disk=disk, segment_bytes=150)
    sent = [b"%d" % number * 31 for number in range(8)]
    for value in sent[:3]:
        log.append(batch(value))
    disk.refused = (refused,)
    for _ in range(2):
        sync(log)
        assert values(log) == ([] if refused == "directory" else sent[:3])
    if refused != "directory":
        log.append(batch(sent[3]))
        sync(log)
        assert values(log) == sent[:4]
    disk.refused = ()
    for value in sent[log.log_end_offset :]:
        log.append(batch(value))
        sync(log)
    assert values(log) == sent
    log.close()
    assert {len(names(log, suffix)) for suffix in (".log", ".index", ".timeindex")} == {8}
    assert values(open_log(tmp_path / "clicks-0", clean=True)) == sent


def test_close_requires_the_indexes(tmp_path: Path) -> None:
    disk = ShortDisk()
    log = open_log(tmp_path / "clicks-0", disk=disk, segment_bytes=150)
    for value in (b"a" * 31, b"b" * 31):
        log.append(batch(value))
    disk.refused = (".index",)
    with pytest.raises(errors.StorageFailed, match="too many open files"):
        log.close()
    assert values(open_log(tmp_path / "clicks-0")) == [b"a" * 31, b"b" * 31]


def test_slice_shows_whether_it_was_cut(tmp_path: Path) -> None:
    log = open_log(tmp_path / "clicks-0", segment_bytes=310)
    for _ in range(5):
        log.append(batch(b"x" * 31))
    sync(log)
    log.append(batch(b"x" * 31))

    def is_cut(offset: int, size_bytes_max: int) -> bool:
        fetched = log.visible.read(offset, size_bytes_max)
        assert fetched is not None
        return fetched.is_cut

    assert [is_cut(0, 1000), is_cut(0, 210), is_cut(0, 10), is_cut(2, 10)] == [True] * 4
    assert [is_cut(3, 1000), is_cut(4, 10)] == [False, False], "the sixth batch is not visible"
    assert is_cut(3, 10)


def test_write_not_undone_keeps_running_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = FaultyDisk(tmp_path)
    log = open_log(tmp_path / "clicks-0", disk=disk)
    log.append(batch(b"a"))
    point = log.durability.begin_sync()
    assert point is not None
    disk.space_bytes = 10

    def refuse(_size_bytes: int) -> None:
        raise OSError("no")

    monkeypatch.setattr(log.segments.active.file, "truncate", refuse)
    with pytest.raises(errors.StorageFailed):
        log.append(batch(b"b" * 100))
    with pytest.raises(RuntimeError, match="already running"):
        log.durability.begin_sync()
    point.run()
    log.durability.end_sync(point)
    assert log.high_watermark == 1, "what the round covered is durable"
    assert log.durability.begin_sync() is None


def test_timestamps_beyond_64_bits_are_refused(log: PartitionLog) -> None:
    data = batch(b"a")
    struct.pack_into(">q", data, 27, 2**63 - 1)
    write_crc(data, 0)
    with pytest.raises(errors.InvalidTimestamp, match=str(2**63 - 1)):
        log.append(data)
    header = read_header(batch(b"a"))._replace(base_timestamp=2**63 - 1, attributes=0x08)
    late = encode_retained(header, [Record(0, 2**63 + 5, b"k", b"v")])
    struct.pack_into(">H", late, 21, 0)
    with pytest.raises(MalformedBatch, match="more than 64 bits"):
        decode_batch(late)


def test_flush_policy_bounds_visible_unsynced_records(tmp_path: Path) -> None:
    clock = ManualClock(NOW_MS)
    log = open_log(tmp_path / "clicks-0", clock=clock, flush_messages=3, flush_ms=100)
    seen = []
    for _ in range(5):
        log.append(batch(b"a"))
        seen.append((log.high_watermark, log.durability.synced_offset, log.durability.is_flush_due()))
    assert seen == [(1, 0, False), (2, 0, False), (2, 0, True), (2, 0, True), (2, 0, True)]
    sync(log)
    assert (log.high_watermark, log.durability.synced_offset, log.durability.is_flush_due()) == (5, 5, False)
    log.append(batch(b"a"))
    clock.advance_ms(100)
    assert (log.high_watermark, log.durability.is_flush_due()) == (6, True)
    log.append(batch(b"a"))
    assert log.high_watermark == 6, "one record has waited for too long"
    point = log.durability.begin_sync()
    assert point is not None
    log.append(batch(b"a"))
    point.run()
    log.durability.end_sync(point)
    assert (log.high_watermark, log.durability.synced_offset) == (8, 7)
    assert len(values(log)) == 8


@pytest.mark.parametrize("number", [0, -1], ids=["sealed", "active"])
def test_a_deleted_segment_cannot_be_synced(tmp_path: Path, number: int) -> None:
    log = open_log(tmp_path / "clicks-0", segment_bytes=200)
    log.append(batch(b"stored"))
    sync(log)
    for _ in range(3):
        log.append(batch(bytes(100)))
    sorted(log.directory.glob("*.log"))[number].unlink()
    point = log.durability.begin_sync()
    assert point is not None
    with pytest.raises(FileNotFoundError, match="deleted while the broker ran"):
        point.run()
    assert log.high_watermark == 1
