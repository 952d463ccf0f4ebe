"""Second implementation of the rules of docs/events.md for `verify`, so that both do not share a mistake.

Nothing here is imported from `onceflow.clicks.events`, `columns` or `pipeline`. The parser is the standard library's
json instead of msgspec, numbers are `Decimal` instead of digits, and there is no fast path. Where the two differ on an
event, a property test fails and `verify` shows a difference.
"""

import json
import re
from collections.abc import Callable, Collection, Mapping
from datetime import datetime
from decimal import Decimal, InvalidOperation
from typing import Any, NamedTuple, NoReturn

UID_BYTES_MAX = 1024
COUNT_MAX = 10_000
DEPTH_MAX = 200
YEAR_MAX = 9999
DAY_MS = 86_400_000

_TIME = re.compile(
    r"(?P<day>[0-9]{4}-[0-9]{2}-[0-9]{2})"
    r"([T ](?P<clock>[0-9]{2}:[0-9]{2})(:(?P<seconds>[0-9]{2})(\.(?P<fraction>[0-9]+))?"
    r"(?P<zone>Z|(?P<sign>[+-])(?P<hours>[0-9]{2}):(?P<minutes>[0-9]{2}))?)?)?"
)


class Number(NamedTuple):
    """Text of a JSON number, not rounded."""

    text: str
    is_integer: bool


class Judged(NamedTuple):
    """One event: the reason why it is not valid ("" if it is), its user, clicks and operating system."""

    reason: str
    uid: str = ""
    clicks: int = 0
    os_type: str = ""


class Recount:
    """Sums over events that are added one by one, in any order.

    `pointers` are the bad events that Redis keeps, as partition:offset:reason; each one that is read is removed.
    `skipped` are duplicates, by partition and offset.
    `on_event` gets the record's value and timestamp, the user and the clicks of each valid event.
    """

    def __init__(
        self,
        key_field: str,
        value_field: str | None,
        pointers: set[str] | None = None,
        on_event: Callable[[bytes, int, str, int], None] | None = None,
        skipped: Collection[tuple[int, int]] = (),
    ) -> None:
        self.events = 0
        self.clicks = 0
        self.bad = 0
        self.duplicates = 0
        self.by_user: dict[str, int] = {}
        self.by_os: dict[str, int] = {}
        self.by_reason: dict[str, int] = {}
        self.pointers = pointers or set()
        self._on_event = on_event
        self._skipped = skipped
        self._key_field = key_field
        self._value_field = value_field

    def add(self, partition: int, offset: int, value: bytes | None, timestamp_ms: int = 0) -> None:
        """Count one record."""
        if (partition, offset) in self._skipped:
            self.duplicates += 1
            return
        self.events += 1
        judged = judge(value, self._key_field, self._value_field)
        if judged.reason:
            self.bad += 1
            self.by_reason[judged.reason] = self.by_reason.get(judged.reason, 0) + 1
            self.pointers.discard(f"{partition}:{offset}:{judged.reason}")
            return
        self.clicks += judged.clicks
        self.by_user[judged.uid] = self.by_user.get(judged.uid, 0) + judged.clicks
        self.by_os[judged.os_type] = self.by_os.get(judged.os_type, 0) + judged.clicks
        if self._on_event is not None and value is not None:
            self._on_event(value, timestamp_ms, judged.uid, judged.clicks)


def judge(value: bytes | None, key_field: str, value_field: str | None) -> Judged:
    """Return the event in one record's value."""
    if value is None:
        return Judged("no-value")
    try:
        text = value.decode("utf-8", "strict")
    except UnicodeDecodeError:
        return Judged("not-utf8")
    try:
        event = _parse(text)
    except ValueError:
        return Judged("not-json")
    if not isinstance(event, dict):
        return Judged("not-object")
    uid, reason = _uid(event.get(key_field))
    clicks = 1
    if not reason and value_field is not None:
        clicks, reason = _clicks(event[value_field]) if value_field in event else (0, "no-count")
    return Judged(reason) if reason else Judged("", uid, clicks, _os_type(event.get("os_type")))


def event_ms(value: bytes, time_field: str, timestamp_ms: int) -> tuple[int, str]:
    """Return a valid event's time in ms since 1970, and `no-time` or `future` if it is the record's timestamp."""
    field = _parse(value.decode()).get(time_field)
    given = _instant_ms(field) if isinstance(field, str) and _number_in(field) is None else _exact_ms(field)
    if given is None or not 0 <= given <= _DAYS_MAX * DAY_MS - 1:
        return timestamp_ms, "no-time"
    return (timestamp_ms, "future") if given > timestamp_ms + DAY_MS else (given, "")


def _exact_ms(field: Any) -> int | None:
    number = _number_in(field) if isinstance(field, str) else field
    if not isinstance(number, Number):
        return None
    try:
        exact = Decimal(number.text)
    except InvalidOperation:
        return 0 if Decimal(number.text.lower().partition("e")[0]) == 0 else None
    return int(exact) if 0 <= exact < 10**15 and exact == exact.to_integral_value() else None


def _instant_ms(text: str) -> int | None:
    """Return the time in ISO 8601 text, by days and minutes; digits after the third of a second are dropped."""
    parts = _TIME.fullmatch(text)
    if parts is None:
        return None
    try:
        days = datetime.strptime(parts["day"], "%Y-%m-%d").toordinal() - _DAY_0
    except ValueError:
        return None
    hours, minutes = map(int, (parts["clock"] or "00:00").split(":"))
    seconds, shift = int(parts["seconds"] or 0), 0
    if parts["sign"]:
        shift = int(parts["hours"]) * 60 + int(parts["minutes"])
        if int(parts["minutes"]) > 59 or shift > 18 * 60:
            return None
    if hours > 23 or minutes > 59 or seconds > 59:
        return None
    minute = (days * 24 + hours) * 60 + minutes + (shift if parts["sign"] == "-" else -shift)
    return (minute * 60 + seconds) * 1000 + int((parts["fraction"] or "")[:3].ljust(3, "0"))


_DAY_0 = datetime(1970, 1, 1).toordinal()
_DAYS_MAX = datetime(YEAR_MAX, 12, 31).toordinal() + 1 - _DAY_0


def dimension_values(value: bytes, dimensions: Mapping[str, str]) -> dict[str, str]:
    """Return a valid event's value of each dimension, given by name and field."""
    event = _parse(value.decode())
    return {name: _os_type(event.get(field)) for name, field in dimensions.items()}


def event_id(value: bytes) -> str | None:
    """Return a valid event's id, None if it has none."""
    text = _as_text(_parse(value.decode()).get("event_id"))
    return text if text and len(text.encode()) <= 256 else None


def _parse(text: str) -> Any:
    """Parse RFC 8259 JSON. Raises ValueError for anything else, for deep nesting and for half surrogate pairs."""
    if _depth(text) > DEPTH_MAX:
        raise ValueError("nested too deep")
    event = json.loads(text, parse_int=_integer, parse_float=_fraction, parse_constant=_no_constant)
    if "\\ud" in text or "\\uD" in text:
        # Check the strings of duplicate fields too: a list of pairs keeps them.
        pairs = json.loads(text, parse_int=str, parse_float=str, object_pairs_hook=list)
        json.dumps(pairs, ensure_ascii=False).encode("utf-8")
    return event


def _depth(text: str) -> int:
    """Return the nesting depth of brackets outside strings."""
    deepest = depth = 0
    if text.count("{") + text.count("[") <= DEPTH_MAX:
        return deepest
    in_string = escaped = False
    for character in text:
        if in_string:
            in_string = escaped or character != '"'
            escaped = not escaped and character == "\\"
        elif character == '"':
            in_string = True
        elif character in "{[":
            depth += 1
            deepest = max(deepest, depth)
        elif character in "}]":
            depth -= 1
    return deepest


def _integer(text: str) -> Number:
    return Number(text, True)


def _fraction(text: str) -> Number:
    return Number(text, False)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _uid(field: Any) -> tuple[str, str]:
    if field is None:
        return "", "no-uid"
    uid = _as_text(field)
    if uid is None:
        return "", "uid-not-text"
    if uid == "":
        return "", "uid-empty"
    return (uid, "") if len(uid.encode()) <= UID_BYTES_MAX else ("", "uid-too-long")


def _os_type(field: Any) -> str:
    system = _as_text(field)
    return system if system and len(system.encode()) <= 1024 else "unknown"


def _as_text(field: Any) -> str | None:
    if isinstance(field, Number):
        return field.text if field.is_integer else None
    return field if isinstance(field, str) else None


def _clicks(field: Any) -> tuple[int, str]:
    if field is None:
        return 0, "count-null"
    number = _number_in(field) if isinstance(field, str) else field
    if not isinstance(number, Number):
        return 0, "count-not-a-number"
    try:
        exact = Decimal(number.text)
    except InvalidOperation:
        return 0, _reason_of_extreme(number.text)
    if exact < 0:
        return 0, "count-negative"
    if exact != exact.to_integral_value():
        return 0, "count-fractional"
    return (int(exact), "") if exact <= COUNT_MAX else (0, "count-too-large")


def _reason_of_extreme(text: str) -> str:
    """Return the reason for a number whose exponent exceeds Decimal's 18 digits.

    No text has that number of digits, so the exponent's sign decides: the number is fractional or too large. Only a
    mantissa of zeros is still zero.
    """
    mantissa, _, exponent = text.lower().partition("e")
    exact = Decimal(mantissa)
    if exact == 0:
        return ""
    if exact < 0:
        return "count-negative"
    return "count-fractional" if exponent.startswith("-") else "count-too-large"


def _number_in(text: str) -> Any:
    """Return the number if the string is exactly one, without surrounding space."""
    if text != text.strip():
        return None
    try:
        return json.loads(text, parse_int=_integer, parse_float=_fraction, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return None
