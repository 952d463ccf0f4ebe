"""Times and durations as people type them on the command line."""

import datetime
import re

import click

_DURATION = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m(?!s))?(?:(\d+)s)?(?:(\d+)ms)?")
_UNIT_MS = (86_400_000, 3_600_000, 60_000, 1_000, 1)


def duration_ms(text: str) -> int | None:
    """`3d4h5m2s1ms` and parts of it, in ms; None for what is no duration."""
    match = _DURATION.fullmatch(text)
    if not text or match is None:
        return None
    return sum(int(count) * unit_ms for count, unit_ms in zip(match.groups(), _UNIT_MS, strict=True) if count)


def moment_ms(text: str, now_ms: int) -> int:
    """A time in ms since 1970. Raises click.BadParameter.

    A number is ms, one of 9 or 10 digits s; a day or time of ISO 8601 is in UTC where it has no zone; `-2h` and `2h`
    lie that far before and after now.

    Never negative: in Kafka's protocol a negative timestamp is not a time.
    """
    if text.isascii() and text.isdigit() and len(text) <= 15:
        return int(text) * (1000 if len(text) in (9, 10) else 1)
    sign = -1 if text.startswith("-") else 1
    distance_ms = duration_ms(text.removeprefix("-"))
    if distance_ms is not None:
        return max(now_ms + sign * distance_ms, 0)
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(
            f"'{text}' is no time: write ms or s (10 digits) since 1970, 2026-02-14, 2026-02-14T10:00:00Z, "
            "or a duration like -2h30m before now"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    return max(round(moment.timestamp() * 1000), 0)
