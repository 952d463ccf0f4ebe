"""Offset grammar and output layouts of `onceflow consume`."""

import subprocess
import time
from collections.abc import Callable

import click
import pytest

from onceflow.cli.kafka.offset_range import OffsetRange, Place, to_offset_range
from onceflow.cli.times import duration_ms, moment_ms

Run = Callable[..., subprocess.CompletedProcess[str]]
Fill = Callable[..., str]

PARSED = {
    "start": OffsetRange(Place("start")),
    "end": OffsetRange(Place("end")),
    "47": OffsetRange(Place("exact", 47)),
    "47:": OffsetRange(Place("exact", 47)),
    "+47": OffsetRange(Place("after_start", 47)),
    "-47": OffsetRange(Place("before_end", 47)),
    ":end": OffsetRange(Place("start"), Place("end")),
    ":47": OffsetRange(Place("start"), Place("exact", 47)),
    "10:47": OffsetRange(Place("exact", 10), Place("exact", 47)),
    "-3:end": OffsetRange(Place("before_end", 3), Place("end")),
    "@1430204612405": OffsetRange(Place("timestamp", 1430204612405)),
    "@1430204612": OffsetRange(Place("timestamp", 1430204612000)),
    "@1430204612405:": OffsetRange(Place("timestamp", 1430204612405)),
    "@:1430204612405": OffsetRange(Place("start"), Place("timestamp", 1430204612405)),
    "@1430204612405:1430204612500": OffsetRange(Place("timestamp", 1430204612405), Place("timestamp", 1430204612500)),
    "@1430204612405:end": OffsetRange(Place("timestamp", 1430204612405), Place("end")),
    "@1003": OffsetRange(Place("timestamp", 1003)),
    "@1970-01-02": OffsetRange(Place("timestamp", 86_400_000)),
    "@1970-01-01T00:00:01Z": OffsetRange(Place("timestamp", 1000)),
    "@1970-01-02:1h": OffsetRange(Place("timestamp", 86_400_000), Place("timestamp", 90_000_000)),
    "@1970-01-01T00:00:01Z:1970-01-01T00:00:02Z": OffsetRange(Place("timestamp", 1000), Place("timestamp", 2000)),
}


@pytest.mark.parametrize(("text", "expected"), PARSED.items(), ids=PARSED)
def test_all_forms_are_parsed(text: str, expected: OffsetRange) -> None:
    assert to_offset_range(None, None, text) == expected  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["", ":", "begin", "4.7", "--4", "1:2:3", "@", "@:", "@soon", "end:5x", "9" * 19])
def test_invalid_offsets_are_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match=r"is not a valid (offset|time)"):
        to_offset_range(None, None, text)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["100:50", "@1700000000:1600000000", "@2026-02-14:2026-02-13"])
def test_reversed_ranges_are_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match=f"'{text}' ends before it starts"):
        to_offset_range(None, None, text)  # type: ignore[arg-type]


def test_durations_and_moments() -> None:
    assert duration_ms("1d2h3m4s5ms") == 93_784_005
    assert [duration_ms(text) for text in ("90m", "5ms", "", "5", "2h1d")] == [5_400_000, 5, None, None, None]
    assert moment_ms("-2h", 10_000_000) == 2_800_000
    assert moment_ms("1m", 0) == 60_000
    assert moment_ms("1970-01-01T01:00:00+01:00", 0) == 0
    assert [moment_ms(text, 0) for text in ("999999999", "1700000000")] == [999_999_999_000, 1_700_000_000_000]
    assert [moment_ms(text, 0) for text in ("99999999", "1700000000000")] == [99_999_999, 1_700_000_000_000]


def test_times_without_zone_are_utc(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("TZ", "Asia/Kolkata")
        time.tzset()
        moment = moment_ms("1970-01-01T01:00:00", 0)
    time.tzset()
    assert moment == 3_600_000


@pytest.mark.parametrize(
    ("offset", "expected"),
    [
        ("start", "0123456789"),
        ("7", "789"),
        ("+7", "789"),
        ("-2", "89"),
        (":3", "012"),
        ("3:5", "34"),
        ("-4:8", "67"),
        (":end", "0123456789"),
        ("@1970-01-01T00:00:01.008Z", "89"),
        ("@:1970-01-01T00:00:01.002Z", "01"),
        ("@1970-01-01T00:00:01.002Z:3ms", "234"),
        ("@1970-01-01T00:00:01.008Z:end", "89"),
        ("@-1h", ""),
        ("end", ""),
        ("5:5", ""),
    ],
)
def test_consume_prints_the_range(run: Run, filled: Fill, offset: str, expected: str) -> None:
    topic = filled([b"%d" % number for number in range(10)])
    shown = run("consume", topic, "--offset", offset, "--exit-at-end")
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.replace("\n", "") == expected
    if ":" in offset.replace("00:00:01", ""):
        assert run("consume", topic, "--offset", offset).stdout == shown.stdout, "a range with an end stops"


def test_consume_prints_a_layout(run: Run, filled: Fill) -> None:
    topic = filled([b"a", b"b"])
    shown = run("consume", topic, "--exit-at-end", "--format", "%t|%p|%o|%d|%k|%v|%h|100%%\\n")
    assert shown.stdout == f"{topic}|0|0|1000||a||100%\n{topic}|0|1|1001||b||100%\n"
    assert run("consume", topic, "--format", "%x").returncode == 2
    assert "'xml' is not a valid format" in run("consume", topic, "--format", "xml").stderr
