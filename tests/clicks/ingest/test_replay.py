"""Log files as events: readers, mapping, order, pace, rejects, and resuming after a stop."""

import errno
import gzip
import json
import os
import random
import re
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql.functions import from_json

from onceflow.cli import onceflow
from onceflow.clicks.ingest import lines
from onceflow.clicks.ingest.lines import FileUnreadable, Rejected
from onceflow.clicks.ingest.mapping import FieldMapping, MappedEvent, Mapper, Unmappable, WrongMapping, time_reader
from onceflow.clicks.ingest.readers import FormatUnknown, InputFormat, Row, guess_format, rows_of
from onceflow.clicks.ingest.replay import Pace, Progress, Rejects, Replay, ReplayFailed, send
from onceflow.clicks.ingest.time_order import NoTime, SortFailed, in_time_order
from onceflow.errors import OnceflowError
from onceflow.remedies import Remedy
from tests import remedies
from tests.clicks.ingest.test_generator import records

LOG_LINE = (
    '83.149.9.216 - - [17/May/2015:10:05:03 +0000] "GET /a/b?c=d HTTP/1.1" 200 203023 '
    '"http://x/" "Mozilla/5.0 (X \\"y\\")"'
)


def file_of(directory: Path, name: str, content: str | bytes) -> Path:
    path = directory / name
    data = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return path


def read(path: Path, input_format: InputFormat) -> list[Row | Rejected]:
    return list(rows_of(path, input_format))


def fields(path: Path, input_format: InputFormat) -> list[dict[str, str]]:
    return [dict(row.fields) for row in read(path, input_format) if isinstance(row, Row)]


def rejected(path: Path, input_format: InputFormat) -> list[tuple[int, str]]:
    return [(row.line, row.reason) for row in read(path, input_format) if isinstance(row, Rejected)]


# Readers


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz"])
def test_csv_with_quotes_and_multiline_fields(tmp_path: Path, name: str) -> None:
    path = file_of(tmp_path, name, '\ufeffid,text\r\n1,"a, ""b"""\r\n2,"two\r\nlines"\r\n\r\n3,\r\n')
    assert fields(path, InputFormat.CSV) == [
        {"id": "1", "text": 'a, "b"'},
        {"id": "2", "text": "two\nlines"},
        {"id": "3", "text": ""},
    ]
    rows = [row for row in read(path, InputFormat.CSV) if isinstance(row, Row)]
    assert [row.line for row in rows] == [2, 3, 6]


@pytest.mark.parametrize(
    ("header", "row"), [("id;text", '1;"a;b"'), ("id\ttext", "1\ta;b"), ("id,text", "1,a;b")], ids=[";", "tab", ","]
)
def test_columns_are_separated_as_the_header(tmp_path: Path, header: str, row: str) -> None:
    path = file_of(tmp_path, "a.txt", f"{header}\n{row}\n")
    assert guess_format(path) is InputFormat.CSV
    assert fields(path, InputFormat.CSV) == [{"id": "1", "text": "a;b"}]


def test_csv_rows_that_are_none(tmp_path: Path) -> None:
    path = file_of(tmp_path, "a.csv", b'id,text\n1\n2,b,c\n3,"open\n4,d\n5,"x"y\n\xff,e\n6,f\n7,"never closed\n')
    assert [row["id"] for row in fields(path, InputFormat.CSV)] == ["4", "6"]
    assert rejected(path, InputFormat.CSV) == [
        (2, "1 columns, the header has 2"),
        (3, "3 columns, the header has 2"),
        (4, "not CSV (',' expected after '\"')"),
        (6, "not CSV (',' expected after '\"')"),
        (7, "not UTF-8"),
        (9, "not CSV (unexpected end of data)"),
    ]


def test_open_quote_rejects_one_line(tmp_path: Path) -> None:
    good = "".join(f"{number},x\n" for number in range(30_000))
    path = file_of(tmp_path, "a.csv", 'id,text\n1,"open\n' + good)
    assert len(fields(path, InputFormat.CSV)) == 30_000
    ((line, reason),) = rejected(path, InputFormat.CSV)
    assert line == 2
    assert reason.startswith("not CSV (")


def test_quoted_line_not_utf8_rejects_row(tmp_path: Path) -> None:
    path = file_of(tmp_path, "a.csv", b'id,text\n1,"a\n\xff\nb"\n\xff,c\n2,d\n')
    assert fields(path, InputFormat.CSV) == [{"id": "2", "text": "d"}]
    assert rejected(path, InputFormat.CSV) == [
        (3, "not UTF-8"),
        (2, "a line inside its quotes is too long or not UTF-8"),
        (5, "not UTF-8"),
    ]


@pytest.mark.remedy(Remedy.NAME_COLUMNS)
def test_a_header_that_names_a_column_twice(tmp_path: Path) -> None:
    path = file_of(tmp_path, "a.csv", "id,text,id\n1,a,2\n")
    with pytest.raises(FormatUnknown, match="names the column 'id' twice") as raised:
        read(path, InputFormat.CSV)
    remedies.find(Remedy.NAME_COLUMNS, raised.value)
    path.write_text(path.read_text().replace("text,id", "text,id_2"))
    assert fields(path, InputFormat.CSV) == [{"id": "1", "text": "a", "id_2": "2"}]


@pytest.mark.remedy(Remedy.NAME_FORMAT)
def test_unknown_file_format(tmp_path: Path) -> None:
    path = file_of(tmp_path, "uids", "uid\nada\n")
    mapping = FieldMapping(constants={"click_count": "1"})
    with pytest.raises(FormatUnknown) as raised:
        Replay([path], mapping).check()
    remedies.find(Remedy.NAME_FORMAT, raised.value)
    assert str(raised.value).endswith(f"{Remedy.NAME_FORMAT} csv|jsonl|combined")
    replay = Replay([path], mapping, InputFormat.CSV)
    assert [event.key for event in replay.events(Rejects(tmp_path / "rejects"))] == [b"ada"]


def test_json_lines(tmp_path: Path) -> None:
    path = file_of(
        tmp_path, "a.jsonl", '{"id":"1","n":1.50,"no":null}\n\n  {"id":2,"\\u0061":[1]}\n[1]\nnonsense\n{"id":"3"} x\n'
    )
    rows = [row for row in read(path, InputFormat.JSONL) if isinstance(row, Row)]
    assert [(row.line, row.fields.get("id"), row.fields.get("n")) for row in rows] == [(1, "1", "1.50"), (3, "2", None)]
    assert rows[0].fields.get("no") is None
    assert rows[1].fields.get("a") is None
    assert [line for line, _ in rejected(path, InputFormat.JSONL)] == [4, 5, 6]


def test_the_combined_log(tmp_path: Path) -> None:
    cut = LOG_LINE[:-10]
    strange = LOG_LINE.replace("GET /a/b?c=d HTTP/1.1", "-").replace("203023", "-")
    path = file_of(tmp_path, "access.log", "\n".join([LOG_LINE, cut, strange, LOG_LINE + " more", LOG_LINE]) + "\n")
    first, second, third = fields(path, InputFormat.COMBINED)
    assert first == third
    assert first == {
        "ip": "83.149.9.216",
        "time": "17/May/2015:10:05:03 +0000",
        "method": "GET",
        "path": "/a/b?c=d",
        "status": "200",
        "bytes": "203023",
        "referrer": "http://x/",
        "agent": 'Mozilla/5.0 (X \\"y\\")',
    }
    assert (second["method"], second["path"], second["bytes"]) == ("-", "-", "-")
    reason = "not a line of Apache's combined log, or truncated"
    assert rejected(path, InputFormat.COMBINED) == [(2, reason), (4, reason)]


def test_bad_lines_use_bounded_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "LINE_BYTES_MAX", 100)
    path = file_of(tmp_path, "a.gz", b"x" * 100 + b"\n" + b"y" * 1001 + b"\nshort\n\xc3\x28\nlast")
    items = list(lines.lines_of(path))
    assert [item[0] for item in items if not isinstance(item, Rejected)] == [3, 5]
    assert [(item.line, item.reason) for item in items if isinstance(item, Rejected)] == [
        (1, "longer than 100 bytes"),
        (2, "longer than 100 bytes"),
        (4, "not UTF-8"),
    ]


@pytest.mark.parametrize("keep", [-20, -4, 12])
def test_damaged_gzip_file_is_read_partially(tmp_path: Path, keep: int) -> None:
    whole = gzip.compress("".join(f'{{"id":{random.Random(number).random()}}}\n' for number in range(5000)).encode())
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(whole[:keep])
    with pytest.raises(FileUnreadable, match="is damaged after line"):
        read(path, InputFormat.JSONL)


@pytest.mark.parametrize(
    ("name", "content", "input_format"),
    [
        ("x.csv", "anything", InputFormat.CSV),
        ("x.csv.gz", "anything", InputFormat.CSV),
        ("x.ndjson", "anything", InputFormat.JSONL),
        ("x.jsonl.gz", "anything", InputFormat.JSONL),
        ("access.log.gz", LOG_LINE, InputFormat.COMBINED),
        ("x", '{"a":1}', InputFormat.JSONL),
        ("x.txt", "a,b", InputFormat.CSV),
    ],
)
def test_the_format_is_guessed(tmp_path: Path, name: str, content: str, input_format: InputFormat) -> None:
    assert guess_format(file_of(tmp_path, name, content + "\n")) is input_format


def test_a_format_that_cannot_be_guessed(tmp_path: Path) -> None:
    with pytest.raises(FormatUnknown, match=r"--input-format csv\|jsonl\|combined"):
        guess_format(file_of(tmp_path, "x.txt", "hello\n"))
    with pytest.raises(FormatUnknown, match="--input-format"):
        guess_format(file_of(tmp_path, "x.log", LOG_LINE.replace(",", " ") + '; "more"\n'))


# Mapping


def event(mapping: FieldMapping, row: Mapping[str, str]) -> dict[str, object]:
    fields = json.loads(Mapper(mapping).event_of(row).value)
    assert isinstance(fields, dict)
    return fields


def test_fields_constants_and_times() -> None:
    mapping = FieldMapping(
        {"uid": "user_id", "event_time": "at", "page": "path"}, {"click_count": "2", "os_type": "web"}, "iso"
    )
    row = {"user_id": "7", "at": "2017-11-26T01:00:00Z", "path": "/a"}
    mapped = Mapper(mapping).event_of(row)
    assert (mapped.time_ms, mapped.key) == (1511658000000, b"7")
    assert json.loads(mapped.value) == {
        "uid": "7",
        "event_time": "1511658000000",
        "page": "/a",
        "os_type": "web",
        "click_count": 2,
    }


def test_default_field_names() -> None:
    mapping = FieldMapping().for_format(InputFormat.JSONL)
    assert event(mapping, {"uid": "u", "click_count": "6.0"}) == {"uid": "u", "click_count": 6}
    whole = {"uid": "u", "click_count": "0", "event_time": "12", "os_type": "iOS"}
    assert event(mapping, whole) == {**whole, "click_count": 0}


def test_combined_log_line_is_a_click() -> None:
    mapping = FieldMapping().for_format(InputFormat.COMBINED)
    fields = event(mapping, {"ip": "1.2.3.4", "time": "17/May/2015:10:05:03 +0200"})
    assert fields == {"uid": "1.2.3.4", "event_time": "1431849903000", "click_count": 1}


def whole_events(path: Path, mapping: FieldMapping, rejects: Rejects) -> list[bytes]:
    return [event.value for event in Replay([path], mapping).events(rejects)]


def test_all_fields_keep_json_as_it_is(tmp_path: Path) -> None:
    line = b'{"uid":7,"event_time":1506826828020,"price":1.50,"tags":["a",{"b":null}],"is_new":true,"at":"x","no":null'
    path = file_of(tmp_path, "a.jsonl", line + b',"click_count":"6.0"}\n' + line + b"}\n")
    with Rejects(tmp_path / "rejects") as rejects:
        (counted,) = whole_events(path, FieldMapping(all_fields=True), rejects)
        mapping = FieldMapping({"page": "at"}, {"click_count": "2"}, all_fields=True)
        twice = whole_events(path, mapping, Rejects(tmp_path / "none"))
    assert counted == line + b',"click_count":"6.0"}'
    assert rejects.count == 1
    assert twice[1] == line + b',"click_count":2,"page":"x"}'


def test_all_fields_of_texts_become_numbers(tmp_path: Path) -> None:
    names, big, long = "user,at,zip,hash,size,price,big,long", "9" * 19, "1234567890.123456789"
    path = file_of(tmp_path, "a.csv", f"{names}\n42,1506826828020,0815,12e4567,-3,1.5,{big},{long}\n")
    mapping = FieldMapping({"uid": "user", "event_time": "at"}, {"click_count": "1"}, all_fields=True)
    (value,) = whole_events(path, mapping, Rejects(tmp_path))
    row = {"user": 42, "at": 1506826828020, "zip": "0815", "hash": "12e4567", "size": -3, "price": 1.5}
    assert json.loads(value) == {
        **row,
        "big": big,
        "long": long,
        "uid": 42,
        "event_time": 1506826828020,
        "click_count": 1,
    }


@pytest.mark.parametrize(
    ("time_format", "source", "event_time"),
    [
        ("s", b"1506826828.02", 1506826828020),
        ("s", b'"1506826828"', "1506826828000"),
        ("iso", b'"2017-11-26T01:00:00Z"', "1511658000000"),
    ],
)
def test_all_fields_convert_only_event_time(
    tmp_path: Path, time_format: str, source: bytes, event_time: int | str
) -> None:
    path = file_of(tmp_path, "a.jsonl", b'{"uid":"a","click_count":1,"at":%b}\n' % source)
    mapping = FieldMapping({"event_time": "at"}, time_format=time_format, all_fields=True)
    (value,) = whole_events(path, mapping, Rejects(tmp_path))
    assert json.loads(value) == {"uid": "a", "click_count": 1, "at": json.loads(source), "event_time": event_time}


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"uid":1.5,"click_count":1}', "the event is not valid (uid-not-text)"),
        ('{"uid":"a","click_count":1,"deep":' + "[" * 200 + "]" * 200 + "}", "the event is not valid (not-json)"),
        ('{"uid":"a","click_count":6.5}', "click_count '6.5' is not a count (count-fractional)"),
        ('{"uid":"a","click_count":1,"page":"p"}', "no field 'title' for name"),
    ],
)
def test_all_fields_refuse_invalid_events(tmp_path: Path, line: str, reason: str) -> None:
    path = file_of(tmp_path, "a.jsonl", f'{line}\n{{"uid":"b","click_count":1,"title":"t"}}\n')
    mapping = FieldMapping({"name": "title"} if "page" in line else {}, all_fields=True)
    with Rejects(tmp_path / "rejects") as rejects:
        assert len(whole_events(path, mapping, rejects)) == 1
    (rejected_row,) = (tmp_path / "rejects").read_text().splitlines()
    assert json.loads(rejected_row)["reason"] == reason


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"click_count": "1"}, "no text or number in field 'uid'"),
        ({"uid": "", "click_count": "1"}, "uid is empty"),
        ({"uid": "x" * 1025, "click_count": "1"}, "uid is longer than 1,024 bytes"),
        ({"uid": "u", "click_count": "6.5"}, r"'6.5' is not a count \(count-fractional\)"),
        ({"uid": "u", "click_count": ""}, r"'' is not a count \(count-not-a-number\)"),
        ({"uid": "u", "click_count": "1", "event_time": "soon"}, "'soon' is not a time in the format ms"),
        ({"uid": "u", "click_count": "1", "os_type": "x" * 900_000}, "more than 900,000"),
    ],
)
def test_rows_that_cannot_be_mapped(row: dict[str, str], reason: str) -> None:
    with pytest.raises(Unmappable, match=reason):
        Mapper(FieldMapping().for_format(InputFormat.JSONL)).event_of(row)


@pytest.mark.parametrize(
    ("time_format", "text", "time_ms"),
    [
        ("ms", "1506826828020", 1506826828020),
        ("s", "1506826828", 1506826828000),
        ("s", "1506826828.02", 1506826828020),
        ("iso", "2017-11-26T01:00:00.5+01:00", 1511654400500),
        ("iso", "2017-11-26", 1511654400000),
        ("%m/%d/%Y %H:%M", "11/26/2017 01:02", 1511658120000),
    ],
)
def test_times(time_format: str, text: str, time_ms: int) -> None:
    assert time_reader(time_format)(text) == time_ms


@pytest.mark.parametrize(
    ("time_format", "text"),
    [
        ("ms", "1.5"),
        ("ms", "-1"),
        ("ms", "9" * 15),
        ("ms", "\u0661"),
        ("s", "NaN"),
        ("s", "1e99"),
        ("s", "1e999999"),
        ("s", "sNaN"),
        ("iso", "x"),
        ("%Y", "x"),
    ],
)
def test_invalid_times(time_format: str, text: str) -> None:
    with pytest.raises(Unmappable, match="event_time"):
        time_reader(time_format)(text)


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        (FieldMapping({"uid": "a"}, {"uid": "b"}), "given by --field and by --const"),
        (FieldMapping({}, {"click_count": "six"}), "is not a count"),
        (FieldMapping(time_format="millis"), "neither ms, s, iso nor a pattern"),
        (FieldMapping(time_format="%d %d"), "cannot parse times .* each part once"),
        (FieldMapping(time_format="%Q"), "cannot parse times"),
        (FieldMapping(time_format="%"), "cannot parse times"),
    ],
)
def test_invalid_mappings(mapping: FieldMapping, message: str) -> None:
    with pytest.raises(WrongMapping, match=message):
        mapping.check()


@pytest.mark.parametrize("pattern", ["%m/%d/%Y %H:%M", "%d/%b/%Y:%H:%M:%S %z", "%I%p %j %y", "%Y-%m-%dT%H:%M:%S.%f %Z"])
def test_patterns_that_can_be_meant(pattern: str) -> None:
    FieldMapping(time_format=pattern).check()


# Sorting by time


def events_at(times: list[int]) -> Iterator[MappedEvent]:
    return (MappedEvent(time_ms, b"k", str(number).encode()) for number, time_ms in enumerate(times))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 20), max_size=60))
def test_sort_is_stable_with_many_runs(times: list[int]) -> None:
    events = list(events_at(times))
    ordered = list(in_time_order(iter(events), run_bytes_max=1000, runs_max=3))
    assert ordered == sorted(events, key=lambda event: event.time_ms or 0)


def test_the_sort_leaves_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert len(list(in_time_order(events_at([3, 2, 1] * 50), run_bytes_max=1000))) == 150
    half_read = in_time_order(events_at([3, 2, 1] * 50), run_bytes_max=1000)
    next(half_read)
    assert list(tmp_path.iterdir())
    half_read.close()  # type: ignore[attr-defined]
    assert not list(tmp_path.iterdir())


@pytest.mark.remedy(Remedy.NAME_TIME)
def test_events_without_a_time_cannot_be_sorted(tmp_path: Path) -> None:
    path = file_of(tmp_path, "a.csv", "uid,at,click_count\nada,2000,1\nbob,1000,1\n")
    rejects = Rejects(tmp_path / "rejects")
    with pytest.raises(NoTime) as raised:
        list(Replay([path], by_time=True).events(rejects))
    remedies.find(Remedy.NAME_TIME, raised.value)
    named = Replay([path], FieldMapping({"event_time": "at"}), by_time=True)
    assert [event.key for event in named.events(rejects)] == [b"bob", b"ada"]


@pytest.mark.remedy(Remedy.MAKE_ROOM, Remedy.OTHER_TMPDIR)
@pytest.mark.parametrize("has_room", ["made", "elsewhere"])
def test_sort_without_disk_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_room: str) -> None:
    """The temporary directory counts as full while it has a certain file."""
    full = tmp_path / "full"
    full.mkdir()
    (full / "large").touch()
    open_file = tempfile.NamedTemporaryFile

    def written(*, dir: Path, delete: bool) -> Any:
        if (Path(dir).parent / "large").exists():
            raise OSError(errno.ENOSPC, "No space left on device")
        return open_file(dir=dir, delete=delete)

    monkeypatch.setattr("onceflow.clicks.ingest.time_order.tempfile.NamedTemporaryFile", written)
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setenv("TMPDIR", str(full))
    with pytest.raises(SortFailed, match=rf"in {re.escape(str(full))} .*No space left") as raised:
        list(in_time_order(events_at([3, 2, 1])))
    remedies.find(Remedy.MAKE_ROOM, raised.value)
    remedies.find(Remedy.OTHER_TMPDIR, raised.value)
    if has_room == "made":
        (full / "large").unlink()
    else:
        (tmp_path / "other").mkdir()
        monkeypatch.setenv("TMPDIR", str(tmp_path / "other"))
    monkeypatch.setattr("tempfile.tempdir", None)  # The state of a new process.
    assert [event.time_ms for event in in_time_order(events_at([3, 2, 1]))] == [1, 2, 3]


# Sending


class Sink:
    """A writer that keeps its events, and fails after N of them."""

    def __init__(self, fail_after: int | None = None) -> None:
        self.values: list[bytes | None] = []
        self._fail_after = fail_after

    def write(self, key: bytes | None, value: bytes | None) -> None:
        if len(self.values) == self._fail_after:
            raise OnceflowError("the broker is down")
        self.values.append(value)

    def flush(self) -> None:
        """Do nothing: all events are acknowledged."""


def test_stop_and_skip_send_events_once(tmp_path: Path) -> None:
    path = file_of(tmp_path, "a.csv", "uid,click_count\n" + "".join(f"u{number},1\nbad\n" for number in range(50)))
    sink, skip = Sink(), 0
    for stop_after in (7, 1, 30, 100):
        pauses = iter([False] * stop_after + [True])
        with Rejects(tmp_path / "rejects") as rejects:
            replay, progress = Replay([path], skip=skip), Progress()
            send(replay, replay.events(rejects), sink, progress, lambda _, pauses=pauses: next(pauses))  # type: ignore[misc]
        skip = progress.position
    assert progress.is_complete
    assert sink.values == [b'{"uid":"u%d","click_count":1}' % number for number in range(50)]
    assert rejects.count == 50


def test_failure_names_the_resume_position(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onceflow.clicks.ingest.replay.FLUSH_EVENTS", 4)
    with pytest.raises(ReplayFailed, match=r"the broker is down; use --skip 10 to resume .* up to 2 events"):
        send(Replay([], skip=2), events_at([0] * 30), Sink(fail_after=10), Progress(), lambda _: False)


@pytest.mark.remedy(Remedy.SKIP_SENT)
def test_damaged_file_names_the_resume_position(tmp_path: Path) -> None:
    whole = "".join(f'{{"uid":"{random.Random(number).random()}","click_count":1}}\n' for number in range(5000))
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(whole.encode())[:-2000])
    sink, progress = Sink(), Progress()
    replay = Replay([path], skip=3)
    events = replay.events(Rejects(tmp_path / "rejects"))
    with pytest.raises(ReplayFailed, match=r"is damaged after line .* acknowledged; .* --skip") as failed:
        send(replay, events, sink, progress, lambda _: False)
    assert len(sink.values) > 100
    skip = int(remedies.find(Remedy.SKIP_SENT, failed.value)["position"])
    assert skip == 3 + len(sink.values)
    assert "twice" not in str(failed.value)
    assert progress.acknowledged == progress.sent == len(sink.values)
    path.write_bytes(gzip.compress(whole.encode()))
    repaired = Replay([path], skip=skip)
    send(repaired, repaired.events(Rejects(tmp_path / "rejects")), sink, Progress(), lambda _: False)
    assert (len(sink.values), len(set(sink.values))) == (5000 - 3, 5000 - 3)


@pytest.mark.remedy(Remedy.WRITE_TO_FILE)
def test_a_pipe_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    os.mkfifo(path)
    with pytest.raises(FileUnreadable, match="not a regular file") as raised:
        Replay([path]).check()
    remedies.find(Remedy.WRITE_TO_FILE, raised.value)
    written = Replay([file_of(tmp_path, "b.csv", "uid,click_count\nada,1\n")])
    written.check()
    assert [event.key for event in written.events(Rejects(tmp_path / "rejects"))] == [b"ada"]


@pytest.mark.remedy(Remedy.OTHER_REJECTS)
def test_rejects_file_is_not_an_input(tmp_path: Path) -> None:
    path = file_of(tmp_path, "rejects.jsonl", 'bad\n{"uid":"u","click_count":1}\n')
    other = tmp_path / "link.jsonl"
    other.hardlink_to(path)
    with Rejects(other) as rejects, pytest.raises(ReplayFailed) as read:
        Replay([path]).events(rejects)
    assert path.stat().st_size > 10
    with Rejects(tmp_path) as rejects, pytest.raises(ReplayFailed, match="cannot be written") as unwritable:
        list(Replay([path]).events(rejects))
    for raised in (read, unwritable):
        remedies.find(Remedy.OTHER_REJECTS, raised.value)
    with Rejects(tmp_path / "another") as rejects:
        assert [event.key for event in Replay([path]).events(rejects)] == [b"u"]
    assert rejects.count == 1


def test_json_line_without_field_is_rejected(tmp_path: Path) -> None:
    path = file_of(tmp_path, "a.jsonl", '{"click_count":1}\n{"uid":"a","click_count":1}\n')
    with Rejects(tmp_path / "rejects") as rejects:
        replay = Replay([path])
        replay.check()
        assert [event.key for event in replay.events(rejects)] == [b"a"]
    assert rejects.count == 1


def test_field_missing_in_first_lines_fails(tmp_path: Path) -> None:
    path = file_of(tmp_path, "a.jsonl", '{"user":"a","click_count":1}\n[1]\n{"usr":"b","click_count":1}\n' * 60)
    with pytest.raises(WrongMapping, match=r"no field 'user_' for the event's uid \(did you mean 'user'\)"):
        Replay([path], FieldMapping({"uid": "user_"})).check()
    Replay([path], FieldMapping({"uid": "usr"})).check()


@pytest.mark.remedy(Remedy.NAME_TIME)
def test_pace_follows_the_event_times() -> None:
    now_s = 100.0
    pace = Pace(60, lambda: now_s)
    assert pace.pause_s(MappedEvent(600_000, b"", b"")) == 0
    assert pace.pause_s(MappedEvent(660_000, b"", b"")) == 1
    assert pace.pause_s(MappedEvent(0, b"", b"")) == 0
    with pytest.raises(WrongMapping, match="--speed requires the time") as raised:
        pace.pause_s(MappedEvent(None, b"", b""))
    remedies.find(Remedy.NAME_TIME, raised.value)
    assert Pace(None).pause_s(MappedEvent(None, b"", b"")) == 0


# The command


def run(*arguments: object) -> Result:
    return CliRunner().invoke(onceflow, ["replay", *map(str, arguments)])


def test_the_command_sends_rejects_and_sums_up(bootstrap: str, topic: str, tmp_path: Path) -> None:
    path = file_of(tmp_path, "clicks.csv.gz", "user_id,at,os\n1,2000,a\n2,1000,b\n,3000,c\n1,x,d\n")
    rejects = tmp_path / "bad.jsonl"
    mapping = [
        "--field",
        "uid=user_id",
        "--field",
        "event_time=at",
        "--field",
        "os_type=os",
        "--const",
        "click_count=1",
    ]
    where = ["--bootstrap", bootstrap, "--topic", topic, "--partitions", 1, "--rejects", rejects]
    done = run(path, *mapping, *where, "--order", "time", "--json")
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert (document["sent"], document["rejected"], document["complete"]) == (2, 2, True)
    assert document["rejects_file"] == str(rejects)
    written = [(record.key, record.value) for _, record in records(bootstrap, topic)]
    assert written == [
        (b"2", b'{"uid":"2","event_time":"1000","os_type":"b","click_count":1}'),
        (b"1", b'{"uid":"1","event_time":"2000","os_type":"a","click_count":1}'),
    ]
    rejected = [json.loads(line) for line in rejects.read_text().splitlines()]
    assert [(row["file"], row["line"], row["reason"], row["text"]) for row in rejected] == [
        (str(path), 4, "uid is empty", ",3000,c"),
        (str(path), 5, "event_time 'x' is not a time in the format ms (--time-format)", "1,x,d"),
    ]
    again = run(path, *mapping, *where)
    assert "2 rows rejected" in again.stdout
    assert "counts them twice" in again.stdout
    assert len(records(bootstrap, topic)) == 4
    iso = run(file_of(tmp_path, "iso.csv", "user_id,at,os\n1,2015-04-28,a\n"), *mapping, *where)
    reason = "event_time '2015-04-28' is not a time in the format ms (--time-format)"
    message = f"onceflow: no row could become an event: all reasons are in {rejects}, first: {reason}\n"
    assert (iso.exit_code, iso.stderr) == (1, message)
    assert "1 row rejected" in iso.stdout and "twice" not in iso.stdout


@pytest.mark.remedy(Remedy.NAME_TIME)
def test_events_without_a_time_are_counted(bootstrap: str, topic: str, tmp_path: Path) -> None:
    path = file_of(tmp_path, "clicks.csv", "uid,at,click_count\nann,1506826828020,1\nbob,1506826828021,1\n")
    where = ["--bootstrap", bootstrap, "--topic", topic, "--partitions", 1]
    done = run(path, *where)
    assert "2 events without event_time, counted at the time of the record" in done.stdout
    remedies.find(Remedy.NAME_TIME, done.stdout)
    assert json.loads(run(path, *where, "--json").stdout)["without_time"] == 2
    assert "event_time" not in run(path, *where, "--field", "event_time=at").stdout


def test_from_json_reads_all_fields(bootstrap: str, topic: str, tmp_path: Path, spark: SparkSession) -> None:
    """A program written for the source's own JSON finds each field with its type, in every format."""
    lines = '{"uid":"ann","event_time":1506826828020,"page":{"path":"/"},"click_count":1}\n'
    where = ["--bootstrap", bootstrap, "--topic", topic, "--partitions", 1, "--all-fields"]
    assert run(file_of(tmp_path, "a.jsonl", lines), *where).exit_code == 0
    table = file_of(tmp_path, "a.csv", "uid,event_time,click_count\nbob,1506826828021,2\n")
    assert run(table, *where).exit_code == 0
    values = [((record.value or b"").decode(),) for _, record in records(bootstrap, topic)]
    schema = "uid STRING, event_time LONG, page STRUCT<path: STRING>, click_count INT"
    parsed = from_json("value", schema, {"mode": "FAILFAST"}).alias("event")
    rows = spark.createDataFrame(values, "value STRING").select(parsed).select("event.*", "event.page.path").collect()
    assert [(row.uid, row.event_time, row.path, row.click_count) for row in rows] == [
        ("ann", 1506826828020, "/", 1),
        ("bob", 1506826828021, None, 2),
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--field", "uid=user"], r"no field 'user' for the event's uid \(did you mean 'user_id'\)"),
        (
            ["--field", "uid=user_id"],
            r"no field 'click_count' \(it has user_id, at\): if each row is a click, add --const click_count=1",
        ),
        (["--field", "uid=user_id", "--field", "event_time=at"], "add --const click_count=1"),
        (["--field", "uid=user_id", "--field", "click_count=att"], r"event's click_count \(did you mean 'at'\)"),
    ],
)
def test_wrong_mapping_fails_before_topic_creation(
    bootstrap: str, topic: str, tmp_path: Path, options: list[str], message: str
) -> None:
    path = file_of(tmp_path, "clicks.csv", "user_id,at\n1,2000\n")
    done = run(path, "--bootstrap", bootstrap, "--topic", topic, *options)
    assert isinstance(done.exception, OnceflowError)
    with pytest.raises(OnceflowError, match=message):
        raise done.exception
    assert records_or_none(bootstrap, topic) is None


def records_or_none(bootstrap: str, topic: str) -> object:
    from onceflow.client.cluster import Cluster

    with Cluster(bootstrap) as cluster:
        return cluster.topics(topic).get(topic)


@pytest.mark.parametrize("arguments", [["--field", "uid"], ["--speed", "fast"], ["--speed", "-1"], ["--skip", "-1"]])
def test_wrong_usage(tmp_path: Path, arguments: list[str]) -> None:
    assert run(file_of(tmp_path, "a.csv", "uid\n"), *arguments).exit_code == 2
