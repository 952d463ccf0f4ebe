"""The file of --measures: defaults, every setting, and messages about mistakes."""

from pathlib import Path

import click
import pytest

from onceflow.cli.clicks.measure_file import read_measure_file
from onceflow.clicks.measures import RETENTION_MS, MeasureSettings

ALL = """
over_time = true
sessions = false
session_gap = "45m"
exact_users_max = 5

[dimensions]
page = "url"

[retention]
minute = "3h"
day-users = "unlimited"
"""


def test_empty_file_has_the_defaults(tmp_path: Path) -> None:
    path = tmp_path / "measures.toml"
    path.write_text("")
    assert read_measure_file(path) == MeasureSettings(over_time=True, sessions=True)


def test_every_setting_is_read(tmp_path: Path) -> None:
    path = tmp_path / "measures.toml"
    path.write_text(ALL)
    assert read_measure_file(path) == MeasureSettings(
        dimensions={"os": "os_type", "page": "url"},
        over_time=True,
        sessions=False,
        session_gap_ms=45 * 60_000,
        exact_users_max=5,
        retention_ms={**RETENTION_MS, "minute": 3 * 3_600_000, "day-users": None},
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("overtime = true", "unknown setting 'overtime'; expected over_time, sessions"),
        ("[dimension]", "unknown setting 'dimension'; expected over_time, sessions"),
        ("sessions = 1", "sessions = 1, expected true or false"),
        ("session_gap = 30", "session_gap = 30, expected a duration like"),
        ("exact_users_max = true", "exact_users_max = True, expected a whole number"),
        ("[dimensions]\npage = 3", "dimensions = {'page': 3}, expected lines of a section, like page = "),
        ("# \xff", "cannot read the file of --measures"),
        ("[dimensions", "cannot read the file of --measures"),
        ('[dimensions]\nday = "x"', "dimension 'day' is not a valid name"),
        ('[dimensions]\nA = "x"', "dimension 'A' is not a valid name"),
        ('[dimensions]\npage = ""', "dimension 'page' has no field of the event"),
        ('[retention]\nyear = "1d"', "unknown retention 'year'; expected minute, hour"),
        ('[retention]\nhour = "soon"', "retention.hour = 'soon' is not a duration"),
        ('session_gap = "0m"', "session_gap = '0m' is not a duration"),
        ("exact_users_max = 0", "exact_users_max = 0, expected 1 to 1000000"),
    ],
)
def test_mistake_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "measures.toml"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(click.UsageError) as refused:
        read_measure_file(path)
    assert message in str(refused.value)
