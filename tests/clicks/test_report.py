"""The report's numbers are those of plain Python over the same events, and the file loads nothing."""

import html
import json
import re
from collections import defaultdict
from datetime import date
from html.parser import HTMLParser
from pathlib import Path

import pytest
from click.testing import CliRunner

from onceflow.cli import onceflow
from onceflow.clicks import report as reports
from onceflow.clicks.queries import open_events
from onceflow.clicks.report import _round_up, build_report, render
from tests.clicks.archived import HOUR_MS, START_MS, event, filled

DAY_MS = 24 * HOUR_MS
BEGIN_MS = START_MS // DAY_MS * DAY_MS
TAGS = ("<b>Ä & Co</b>", "x" * 80, "iOS")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Return an archive with events of each hour of two days, and of the day before and after a week."""
    values = [
        event(f"user-{hour % 5}", BEGIN_MS + hour * HOUR_MS, clicks=hour % 7, os_type=os_type)
        for hour in (*range(-1, 48), 7 * 24)
        for os_type in TAGS
    ]
    filled(tmp_path / "archive", [values], timestamp_ms=BEGIN_MS + 9 * DAY_MS)
    return tmp_path / "archive"


class Cells(HTMLParser):
    """Rows of cells of every table, by the heading before it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tables: dict[str, list[list[str]]] = defaultdict(list)
        self.links: list[str] = []
        self.numbers: list[str] = []
        self._heading = self._tag = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._tag = tag
        self.links += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag == "tr":
            self.tables[self._heading].append([])
        if tag == "h2":
            self._heading = ""

    def handle_data(self, data: str) -> None:
        if self._tag == "h2":
            self._heading += data
        elif self._tag in ("th", "td"):
            self.tables[self._heading][-1].append(data)
        elif self._tag == "dd":
            self.numbers.append(data)

    def handle_endtag(self, tag: str) -> None:
        self._tag = ""


def test_report_has_the_numbers_of_its_events(directory: Path) -> None:
    with open_events(directory) as events:
        text = render(build_report(events, date(2015, 4, 28), 1, ["os"]))
    page = Cells(text)
    clicks = [hour % 7 for hour in range(24)]
    assert page.numbers == ["72", str(3 * sum(clicks)), "5", "0", "0"]
    rows = [["hour", "events", "clicks", "users"]]
    rows += [[f"2015-04-28 {hour:02d}:00", "3", str(3 * clicks[hour]), "1"] for hour in range(24)]
    assert page.tables["Clicks per hour"] == page.tables["Users per hour"] == rows
    assert {row[0]: row[2] for row in page.tables["Top os"][1:]} == {
        name if len(name) < 60 else f"{'x' * 59}…": str(sum(clicks)) for name in TAGS
    }
    bars = [int(count) for count in re.findall(r"<title>2015-04-28 ..:00: (\d+)</title>", text)]
    assert bars == [3 * count for count in clicks] + [1] * 24
    assert html.escape("<b>Ä & Co</b>") in text and "<b>" not in text


def test_report_of_a_week(directory: Path) -> None:
    with open_events(directory) as events:
        report = build_report(events, date(2015, 4, 28), 7, ["uid", "os"])
        page = Cells(render(report))
    assert report.period == "2015-04-28 to 2015-05-04"
    assert page.tables["Users per day"][1:] == [
        [f"2015-04-{day} 00:00", "72", str(3 * sum(hour % 7 for hour in range(begin, begin + 24))), "5"]
        for day, begin in ((28, 0), (29, 24))
    ]
    assert report.totals["events"] == 144


def test_file_is_self_contained(directory: Path, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    arguments = ["report", "2015-04-28", "--archive", str(directory), "--archive-only", "--output", str(path)]
    shown = CliRunner().invoke(onceflow, arguments, catch_exceptions=False).stdout
    assert shown == f"{path} has 2015-04-28: 72 events\n"
    text = path.read_text()
    assert not Cells(text).links and "url(" not in text and "import" not in text and "<script" not in text
    document = json.loads(CliRunner().invoke(onceflow, [*arguments, "--json"], catch_exceptions=False).stdout)
    assert document["totals"]["events"] == 72 and document["file"] == str(path)


def test_day_without_events(directory: Path) -> None:
    with open_events(directory) as events:
        text = render(build_report(events, date(2001, 1, 1), 1, ["os"]))
    assert Cells(text).numbers == ["0"] * 5


@pytest.mark.parametrize("value", [*range(130), 999, 1000, 1001, 123_456])
def test_axis_ends_above_the_values(value: int) -> None:
    end = _round_up(value)
    assert value <= end <= max(2 * value, reports.GRID_LINES) and end % reports.GRID_LINES == 0
