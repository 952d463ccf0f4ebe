"""`onceflow log dump`: all kinds of files and formats, located damage, and agreement with Kafka's tool."""

import json
import re
import struct
import subprocess
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st

from onceflow.broker.groups import records as group_records
from onceflow.broker.groups.records import OffsetCommit
from onceflow.broker.topics import records as metadata_records
from onceflow.broker.transactions import records as transaction_records
from onceflow.cli import onceflow
from onceflow.cli.log.records import decode_record
from onceflow.errors import OnceflowError
from onceflow.log import inspection
from onceflow.log.clock import SystemClock
from onceflow.log.config import LogConfig
from onceflow.log.disk import RealDisk
from onceflow.log.partition import PartitionLog
from onceflow.wire import first_messages, message_sets
from onceflow.wire.batch import Record, encode_batch
from onceflow.wire.codecs import Codec
from onceflow.wire.errors import WireError
from onceflow.wire.markers import Marker, encode_marker

LOG = "00000000000000000000.log"
TIME_MS = 1_700_000_000_000
OLD_CODECS = (Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4)


def run(*arguments: object) -> Result:
    return CliRunner().invoke(onceflow, ["log", "dump", *map(str, arguments)])


def rows(*arguments: object) -> list[dict[str, Any]]:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.exception
    return [json.loads(line) for line in result.output.splitlines()]


def refused(*arguments: object) -> str:
    result = run(*arguments)
    assert isinstance(result.exception, OnceflowError), result.output
    return f"{result.output}{result.exception}"


def four_records(offset: int) -> list[Record]:
    return [Record(offset + n, TIME_MS + n, b"key-%d" % n, b"value %d" % n) for n in range(4)]


def segment(directory: Path, content: bytes) -> Path:
    directory.mkdir(exist_ok=True)
    path = directory / LOG
    path.write_bytes(content)
    return path


@pytest.fixture
def all_formats(tmp_path: Path) -> Path:
    """A segment with formats 0, 1 and 2, each codec, four records per batch."""
    pieces: list[bytes] = []
    offset = 0
    for magic, codec in [(magic, codec) for magic in (0, 1) for codec in OLD_CODECS]:
        pieces.append(message_sets.encode(four_records(offset), magic=magic, codec=codec))
        offset += 4
    for codec in Codec:
        pieces.append(bytes(encode_batch(four_records(offset), codec=codec)))
        offset += 4
    return segment(tmp_path / "old-0", b"".join(pieces))


def test_batches_of_all_formats_are_shown(all_formats: Path) -> None:
    shown = rows(all_formats)
    assert [row["format"] for row in shown] == [0] * 7 + [1] * 7 + [2] * 5
    assert {(row["format"], row["codec"]) for row in shown} == {
        *((magic, codec.name.lower()) for magic in (0, 1) for codec in OLD_CODECS),
        *((2, codec.name.lower()) for codec in Codec),
    }
    ends = [row["position"] + row["size_bytes"] for row in shown]
    assert [row["position"] for row in shown] == [0, *ends[:-1]]
    assert ends[-1] == all_formats.stat().st_size
    assert not any(row["problem"] for row in shown)


def test_records_are_shown_from_an_offset(all_formats: Path) -> None:
    shown = rows(all_formats, "--records")
    assert [row["offset"] for row in shown] == list(range(52))
    assert {row["value"] for row in shown} == {f"value {n}" for n in range(4)}
    assert [row["offset"] for row in rows(all_formats, "--records", "--offset", 30, "--count", 5)] == [*range(30, 35)]
    assert rows(all_formats, "--offset", 33, "--count", 1)[0]["base_offset"] == 32
    text = run(all_formats, "--records", "--count", 1).output
    assert text == 'offset 0  timestamp_ms -1  key key-0  value "value 0"\n'


def test_verify_finds_every_damaged_byte(all_formats: Path) -> None:
    result = run(all_formats, "--verify")
    assert result.exit_code == 0
    assert "is intact" in result.output and "the last offset is 51" in result.output
    content = all_formats.read_bytes()
    starts = [row["position"] for row in rows(all_formats)]
    for position in range(12, len(content), 37):
        start = max(row for row in starts if row <= position)
        # The CRC of format 2 excludes base offset and leader epoch, that of older formats the offset.
        if position - start < 8 or (content[start + 16] == 2 and 12 <= position - start < 16):
            continue
        damaged = bytearray(content)
        damaged[position] ^= 0x10
        all_formats.write_bytes(damaged)
        assert f"damaged at byte {start}:" in refused(all_formats, "--verify"), position


@pytest.mark.parametrize("cut_bytes", [1, 30, 118])
def test_truncated_batches_are_damage(all_formats: Path, cut_bytes: int) -> None:
    last = rows(all_formats)[-1]["position"]
    all_formats.write_bytes(all_formats.read_bytes()[:-cut_bytes])
    assert f"byte {last}:" in refused(all_formats, "--verify")
    assert f"byte {last}:" in refused(all_formats)


def test_trailing_zeros_are_damage(all_formats: Path) -> None:
    size_bytes = all_formats.stat().st_size
    all_formats.write_bytes(all_formats.read_bytes() + bytes(4096))
    assert f"byte {size_bytes}:" in refused(all_formats, "--verify")


def test_decreasing_offsets_are_damage(tmp_path: Path) -> None:
    path = segment(tmp_path / "t-0", bytes(encode_batch(four_records(5)) + encode_batch(four_records(6))))
    assert "offsets 6 to 9, but the next offset is 9 or later" in refused(path, "--verify")


def test_batches_with_wrong_crc_are_shown(tmp_path: Path) -> None:
    first, second = encode_batch(four_records(0)), encode_batch(four_records(4))
    first[-1] ^= 1
    path = segment(tmp_path / "t-0", bytes(first + second))
    shown = rows(path)
    assert ["CRC" in (row["problem"] or "") for row in shown] == [True, False]
    assert "byte 0:" in refused(path, "--records")


def test_records_of_internal_topics_are_decoded(tmp_path: Path) -> None:
    topic_id = UUID(int=7)
    cases: list[tuple[str, tuple[bytes | None, bytes | None], str, dict[str, Any]]] = [
        (
            "__consumer_offsets",
            group_records.encode(OffsetCommit("g", "visits", 3, 17)),
            "OffsetCommit",
            {"group": "g", "topic": "visits", "partition": 3, "offset": 17, "removed": False},
        ),
        (
            "__consumer_offsets",
            group_records.encode(OffsetCommit("g", "visits", 3, None)),
            "OffsetCommit",
            {"group": "g", "offset": None, "removed": True},
        ),
        (
            "__transaction_state",
            transaction_records.encode("pay"),
            "Transaction",
            {"transactional_id": "pay", "removed": True},
        ),
        (
            "__cluster_metadata",
            (None, metadata_records.encode(metadata_records.TopicRecord("visits", topic_id))),
            "TopicRecord",
            {"name": "visits", "topic_id": "AAAAAAAAAAAAAAAAAAAABw"},
        ),
    ]
    for number, (topic, (key, value), kind, expected) in enumerate(cases):
        batch = encode_batch([Record(0, TIME_MS, key, value)])
        (row,) = rows(segment(tmp_path / f"{topic}-{number}", bytes(batch)), "--records")
        assert row["record"]["type"] == kind
        assert row["record"].items() >= expected.items()
        (same,) = rows(segment(tmp_path / "copied", bytes(batch)), "--records", "--topic", topic)
        assert same["record"] == row["record"]


def test_transaction_markers_are_decoded(tmp_path: Path) -> None:
    markers = [
        encode_marker(7, 0, Marker(commit, 2), offset=n, timestamp_ms=TIME_MS, leader_epoch=0)
        for n, commit in enumerate((True, False))
    ]
    path = segment(tmp_path / "t-0", bytes(b"".join(markers)))
    assert [row["record"] for row in rows(path, "--records")] == [
        {"type": "CommitMarker", "coordinator_epoch": 2},
        {"type": "AbortMarker", "coordinator_epoch": 2},
    ]
    assert all(row["control"] and row["transactional"] and row["producer_id"] == 7 for row in rows(path))


@pytest.fixture
def closed_log(tmp_path: Path) -> Path:
    """The directory of a partition with three segments, an aborted transaction and producer snapshots."""
    directory = tmp_path / "visits-0"
    config = LogConfig(segment_bytes=4000, index_interval_bytes=300)
    log = PartitionLog.open(directory, config, disk=RealDisk(), clock=SystemClock(), clean=False)
    for _ in range(12):
        log.append(encode_batch([Record(n, TIME_MS, None, b"x" * 200) for n in range(4)]))
    log.append(encode_batch(four_records(0), producer_id=7, producer_epoch=0, base_sequence=0, transactional=True))
    log.append_marker(7, 0, commit=False)
    log.close()
    return directory


def test_other_files_are_shown_and_verified(closed_log: Path) -> None:
    files = sorted(path for path in closed_log.iterdir() if path.suffix != ".metadata")
    assert {path.suffix or path.name for path in files} == {
        *(".log", ".index", ".timeindex", ".txnindex", ".snapshot", "leader-epoch-checkpoint")
    }
    result = run("--verify", *files)
    assert result.exit_code == 0, result.output
    assert len(result.output.splitlines()) == len(files)
    first_index = rows(closed_log / "00000000000000000000.index")
    batches = {row["position"]: row["last_offset"] for row in rows(closed_log / LOG)}
    assert [batches[row["position"]] for row in first_index] == [row["offset"] for row in first_index]
    assert rows(closed_log / "00000000000000000000.timeindex")[0]["timestamp_ms"] == TIME_MS
    (aborted,) = rows(next(closed_log.glob("*.txnindex")))
    assert aborted.items() >= {"producer_id": 7, "first_offset": 48, "last_offset": 52}.items()
    (entry,) = rows(max(closed_log.glob("*.snapshot")))
    assert entry.items() >= {"producer_id": 7, "last_sequence": 3, "last_offset": 51, "first_offset": -1}.items()
    (epoch,) = rows(closed_log / "leader-epoch-checkpoint")
    assert epoch.items() >= {"epoch": 0, "start_offset": 0}.items()


def test_damage_of_other_files_is_located(closed_log: Path) -> None:
    index = closed_log / "00000000000000000000.index"
    intact = index.read_bytes()
    index.write_bytes(intact[:8] + struct.pack(">ii", 2**20, 1777) + intact[16:])
    assert "damaged at byte 8: offset +1048576 is not in a batch" in refused("--verify", index)
    index.write_bytes(intact[:8] + intact[:8])
    assert "damaged at byte 8: entry" in refused("--verify", index)
    index.write_bytes(intact + b"\x01")
    assert f"damaged at byte {len(intact)}:" in refused("--verify", index)
    index.write_bytes(intact + bytes(800))
    assert run("--verify", index).exit_code == 0, "space that Kafka preallocates"
    snapshot = max(closed_log.glob("*.snapshot"))
    snapshot.write_bytes(snapshot.read_bytes()[:-1] + b"\x55")
    assert "CRC" in refused("--verify", snapshot)
    checkpoint = closed_log / "leader-epoch-checkpoint"
    checkpoint.write_text("0\n2\n0 0\n")
    assert "1 lines instead of 2" in refused("--verify", checkpoint)


def test_an_offset_checkpoint_is_shown(tmp_path: Path) -> None:
    path = tmp_path / "log-start-offset-checkpoint"
    path.write_text("0\n1\nvisits 3 1200\n")
    (row,) = rows(path)
    assert row.items() >= {"topic": "visits", "partition": 3, "offset": 1200}.items()


def test_the_first_format_is_shown(tmp_path: Path) -> None:
    path = tmp_path / "00000000000.kafka"
    path.write_bytes(b"".join(first_messages.encode(payload) for payload in (b"ann", b"ben\xff")))
    assert [row["payload"] for row in rows("--format", "first", path)] == ["ann", "YmVu/w=="]
    assert "2 messages" in run("--format", "first", "--verify", path).output
    path.write_bytes(path.read_bytes()[:-1])
    assert "damaged at byte 12:" in refused("--format", "first", "--verify", path)


def test_unknown_file_names_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("hello")
    assert "is not named like a file of a log" in refused(path)


def test_empty_segments_are_intact(tmp_path: Path) -> None:
    assert "0 bytes" in run("--verify", segment(tmp_path / "t-0", b"")).output


@given(st.binary(max_size=300), st.sampled_from(["__consumer_offsets", "__transaction_state", "__cluster_metadata"]))
@settings(max_examples=150, deadline=None)
def test_random_internal_records_do_not_fail(junk: bytes, topic: str) -> None:
    for key, value in ((junk, junk[::-1]), (junk[:2] + junk, None), (b"\x00\x01" + junk, b"\x00\x03" + junk)):
        json.dumps(decode_record(topic, Record(0, 0, key, value)))


@given(st.binary(max_size=120), st.integers(0, 400), st.integers(0, 2**16))
@settings(max_examples=150, deadline=None)
def test_random_damage_is_shown_or_located(junk: bytes, position: int, seed: int) -> None:
    intact = message_sets.encode(four_records(0), magic=seed % 2, codec=OLD_CODECS[seed % 4])
    content = bytearray(intact + encode_batch(four_records(4), codec=Codec(seed % 5)))
    content[position : position + len(junk)] = junk
    path = Path("t-0") / LOG
    try:
        for batch in inspection.log_batches(path, memoryview(content)):
            inspection.records_at(content, batch)
    except (inspection.Damaged, WireError):
        return


@pytest.mark.campaign
def test_kafkas_dump_tool_agrees(all_formats: Path, closed_log: Path) -> None:
    from benchmarks import kafka

    classpath = kafka.jars()
    if classpath is None:
        pytest.skip("no Maven here, or it shown no Kafka")
    damaged = bytearray(all_formats.read_bytes())
    damaged[200] ^= 1
    copy = segment(all_formats.parents[1] / "damaged-0", bytes(damaged))
    seen = 0
    for path in (all_formats, copy, *sorted(closed_log.glob("*.log"))):
        command = ["java", "-cp", f"{classpath}/*", "kafka.tools.DumpLogSegments", "--files", str(path)]
        theirs = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        pattern = r"(?:lastOffset|offset): (\d+) .*position: (\d+) .*?size: (\d+) .*crc: (\d+) isvalid: (\w+)"
        lines = [re.search(pattern, line) for line in theirs.splitlines()]
        assert [(*map(int, line.groups()[:4]), line[5] == "true") for line in lines if line] == [
            (
                row.get("last_offset", row.get("offset")),
                row["position"],
                row["size_bytes"],
                int(row["crc"], 16),
                row["problem"] is None,
            )
            for row in rows(path)
        ]
        seen += len([line for line in lines if line])
    for path in sorted(path for path in closed_log.iterdir() if path.suffix.endswith("index")):
        command = ["java", "-cp", f"{classpath}/*", "kafka.tools.DumpLogSegments", "--files", str(path)]
        theirs = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        numbers = [[int(number) for number in re.findall(r": (-?\d+)", line)] for line in theirs.splitlines()[1:]]
        ours = [[value for name, value in row.items() if name != "file"] for row in rows(path)]
        assert numbers[: len(ours)] == ours, theirs
    print(f"{seen} batches: offsets, positions, sizes, CRCs and validity as Kafka's DumpLogSegments says")
