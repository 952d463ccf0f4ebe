"""The time of an event: a function of its record alone, so that a replayed log gives the same times.

| field | time |
|---|---|
| ms since 1970: a whole number, or a string with one | this time |
| ISO 8601 text as the push-down's TIMESTAMP accepts it; UTC if it has no zone | this time, truncated to ms |
| absent, null, anything else, or outside the years 1970 to 9999 | the record's timestamp, marked `no_time` |
| a time more than 24 hours after the record's timestamp | the record's timestamp, marked `future` |
"""

import re
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import msgspec

from onceflow.spark.pushdown.json_text import parse_number

TIME_MS_MAX = 253_402_300_799_999
"""The last millisecond of the year 9999."""
FUTURE_MS = 24 * 3_600_000
"""Distance from the record's timestamp beyond which a later time is a wrong clock."""

_ISO = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
    r"(?:[T ](?:[01][0-9]|2[0-3]):[0-9]{2}(?::[0-9]{2}(?:\.[0-9]+)?(?:Z|[+-][0-9]{2}:[0-5][0-9])?)?)?"
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_OFFSET_MAX = timedelta(hours=18)


class EventTime(NamedTuple):
    """An event's time, ms since 1970, and whether it is the record's timestamp because of a missing or future time."""

    ms: int
    no_time: bool = False
    future: bool = False


def event_time(raw: bytes, timestamp_ms: int) -> EventTime:
    """Return the time in the field's JSON text, empty if the field is absent, of a record with this timestamp."""
    ms = time_ms(raw)
    if ms is None:
        return EventTime(timestamp_ms, no_time=True)
    if ms - timestamp_ms > FUTURE_MS:
        return EventTime(timestamp_ms, future=True)
    return EventTime(ms)


def time_ms(raw: bytes) -> int | None:
    """Return the time in the field's JSON text, ms since 1970; None if it is not a time."""
    if not raw or raw == b"null":
        return None
    is_text = raw.startswith(b'"')
    text = msgspec.json.decode(raw, type=str) if is_text else raw.decode()
    number = parse_number(text)
    if number is None:
        return _iso_ms(text) if is_text else None
    if number.power < 0 or number.places > len(str(TIME_MS_MAX)) or (number.negative and number.digits):
        return None
    ms = int(number.digits or "0") * 10**number.power
    return ms if ms <= TIME_MS_MAX else None


def _iso_ms(text: str) -> int | None:
    if not _ISO.fullmatch(text):
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    if abs(moment.utcoffset() or timedelta()) > _OFFSET_MAX:
        return None
    # The last hours of the year 9999 may have no UTC in datetime, their difference has.
    ms = (moment - _EPOCH) // timedelta(milliseconds=1)
    return ms if 0 <= ms <= TIME_MS_MAX else None
