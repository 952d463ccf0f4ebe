"""The TOML file of `onceflow run --measures`. Every line is optional.

over_time = true
sessions = true
session_gap = "30m"
exact_users_max = 100000

[dimensions]
page = "url"

[retention]
minute = "48h"
day = "unlimited"
"""

import re
from pathlib import Path

import click
import msgspec

from onceflow.cli.times import duration_ms
from onceflow.clicks.measures import RESERVED, RETENTION_MS, MeasureSettings

UNLIMITED = "unlimited"
DIMENSIONS_MAX = 20
_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")


class MeasureFile(msgspec.Struct):
    """Content of the file."""

    over_time: bool = True
    sessions: bool = True
    session_gap: str = "30m"
    exact_users_max: int = MeasureSettings().exact_users_max
    dimensions: dict[str, str] = {}
    retention: dict[str, str] = {}


EXPECTED = {
    "over_time": "true or false",
    "sessions": "true or false",
    "session_gap": 'a duration like "30m"',
    "exact_users_max": "a whole number",
    "dimensions": 'lines of a section, like page = "url"',
    "retention": 'lines of a section, like minute = "48h"',
}
"""Values of each setting, for messages."""


def read_measure_file(path: Path) -> MeasureSettings:
    """Return the file's settings. Raises click.UsageError."""
    try:
        given = msgspec.toml.decode(path.read_bytes(), type=dict[str, object])
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise click.UsageError(f"cannot read the file of --measures {path}: {error}") from error
    for name, value in given.items():
        if name not in EXPECTED:
            raise click.UsageError(f"{path}: unknown setting {name!r}; expected {', '.join(EXPECTED)}")
        try:
            msgspec.convert({name: value}, MeasureFile)
        except msgspec.ValidationError as error:
            raise click.UsageError(f"{path}: {name} = {value!r}, expected {EXPECTED[name]}") from error
    content = msgspec.convert(given, MeasureFile)
    settings = MeasureSettings(
        dimensions={**MeasureSettings().dimensions, **content.dimensions},
        over_time=content.over_time,
        sessions=content.sessions,
        retention_ms={**RETENTION_MS, **_retention(path, content.retention)},
        exact_users_max=content.exact_users_max,
        session_gap_ms=_duration(path, "session_gap", content.session_gap),
    )
    _check(path, settings)
    return settings


def _retention(path: Path, given: dict[str, str]) -> dict[str, int | None]:
    for name in given:
        if name not in RETENTION_MS:
            raise click.UsageError(f"{path}: unknown retention {name!r}; expected {', '.join(RETENTION_MS)}")
    return {
        name: None if text == UNLIMITED else _duration(path, f"retention.{name}", text) for name, text in given.items()
    }


def _duration(path: Path, name: str, text: str) -> int:
    value_ms = duration_ms(text)
    if not value_ms:
        raise click.UsageError(f"{path}: {name} = {text!r} is not a duration; expected one like 30m, 48h or 730d")
    return value_ms


def _check(path: Path, settings: MeasureSettings) -> None:
    for name, source in settings.dimensions.items():
        if not _NAME.fullmatch(name) or name in RESERVED:
            raise click.UsageError(
                f"{path}: dimension {name!r} is not a valid name; expected lower-case letters, digits and _, and none "
                f"of {', '.join(RESERVED)}"
            )
        if not source:
            raise click.UsageError(f"{path}: dimension {name!r} has no field of the event")
    if len(settings.dimensions) > DIMENSIONS_MAX:
        raise click.UsageError(
            f"{path}: {len(settings.dimensions)} dimensions, at most {DIMENSIONS_MAX}: leave the least useful out"
        )
    if not 1 <= settings.exact_users_max <= 1_000_000:
        raise click.UsageError(f"{path}: exact_users_max = {settings.exact_users_max}, expected 1 to 1000000")
