"""Parser of times and durations, as commands and requests write them."""

import datetime
import re

from onceflow.errors import OnceflowError

_DURATION = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m(?!s))?(?:(\d+)s)?(?:(\d+)ms)?", re.ASCII)
_UNIT_MS = (86_400_000, 3_600_000, 60_000, 1_000, 1)


class WrongTime(OnceflowError):
    """Text that is not a time."""


def duration_ms(text: str) -> int | None:
    """Return a duration such as `3d4h5m2s1ms` or `2h` in ms; None if the text is something else."""
    match = _DURATION.fullmatch(text)
    if not text or match is None:
        return None
    return sum(int(count) * unit_ms for count, unit_ms in zip(match.groups(), _UNIT_MS, strict=True) if count)


def iso_text(ms: int) -> str:
    """Return a time for a message: ISO 8601 in UTC, as options and parameters accept it."""
    moment = datetime.datetime.fromtimestamp(ms // 1000, datetime.UTC) + datetime.timedelta(milliseconds=ms % 1000)
    return moment.isoformat(timespec="milliseconds" if ms % 1000 else "seconds").replace("+00:00", "Z")


def moment_ms(text: str, now_ms: int, zone: datetime.tzinfo = datetime.UTC) -> int:
    """Return a time in ms since 1970. Raises WrongTime.

    A number is ms, one of 9 or 10 digits s; an ISO 8601 date or time without a zone is in `zone`; `-2h` and `2h` are
    relative to now. The result is never negative: in Kafka's protocol negative timestamps have other meanings.
    """
    if text.isascii() and text.isdigit() and len(text) <= 15:
        return int(text) * (1000 if len(text) in (9, 10) else 1)
    sign = -1 if text.startswith("-") else 1
    distance_ms = duration_ms(text.removeprefix("-"))
    if distance_ms is not None:
        return max(now_ms + sign * distance_ms, 0)
    try:
        moment = datetime.datetime.fromisoformat(text)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=zone)
        return max(round(moment.timestamp() * 1000), 0)
    except (ValueError, OverflowError):
        raise WrongTime(
            f"'{text}' is not a valid time; expected ms or s (10 digits) since 1970, 2026-02-14, 2026-02-14T10:00:00Z, "
            "or a duration before now like -2h30m"
        ) from None
