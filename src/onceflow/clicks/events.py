"""The rules that decide whether a record is a valid click event; see also docs/events.md.

An event is the value of one record, the article's JSON:

    {"uid":"068b746ed4620d25e26055a9f804385f","event_time":"1430204612405","os_type":"Android","click_count":6}

The caller names the fields of the uid and the count; without a count field every event counts 1. A record is checked
in this order, and the first rule that it breaks is its reason:

    value      no-value            the record has no value (a tombstone)
               not-utf8            the value is not UTF-8
               not-json            it is not RFC 8259 JSON, or nested deeper than 200. NaN, Infinity, a byte order mark,
                                   comments, trailing commas and half a surrogate pair ("\\ud800") are not JSON
               not-object          it is JSON, but not an object
    uid        no-uid              the field is absent or null
               uid-not-text        it is neither a string nor an integer. An integer's uid is its text
               uid-empty           it is ""
               uid-too-long        it is longer than 1,024 bytes of UTF-8
    count      no-count            the field is absent
               count-null          it is null
               count-not-a-number  it is neither a number nor a string that is exactly a JSON number: "6", "6.0" and
                                   "6e0" are numbers; true, " 6", "+6", "06", "" and "six" are not
               count-negative      it is below 0 (-0 is 0)
               count-fractional    it is not a whole number, without rounding: 6.5, but also 6.0000000000000000001
               count-too-large     it is above 10,000

So 6, 6.0, 6e0, 60e-1, "6" and 0 are counts. Only fields of the outermost object count; of a duplicate field the last
one counts. `os_type` never makes an event bad: a string of 1 to 1,024 bytes or an integer is kept, anything else is
"unknown". Other fields may hold any JSON.

The parser is msgspec; property tests compare it with the standard library's json. `onceflow.clicks.recount` implements
these rules a second time, on purpose.
"""

import re
from enum import StrEnum
from typing import Any, NamedTuple

import msgspec

from onceflow.errors import OnceflowError
from onceflow.spark.pushdown import json_text
from onceflow.spark.pushdown.json_text import DEPTH_MAX, is_json, is_too_deep, parse_number

KEY_FIELD = "uid"
VALUE_FIELD = "click_count"
OS_FIELD = "os_type"
TIME_FIELD = "event_time"
ID_FIELD = "event_id"

UID_BYTES_MAX = 1024
OS_BYTES_MAX = 1024
ID_BYTES_MAX = 256
COUNT_MAX = 10_000
"""A stream in which every event has this count needs years to reach a sum of 10^18 (docs/events.md)."""
OS_UNKNOWN = "unknown"
DUPLICATE = "duplicate"
"""Reason of an event whose id has been counted; it is not a bad event."""

_INTEGER = re.compile(rb"-?[0-9]+")


class Reason(StrEnum):
    """Reason why an event is not counted, and its field in Redis. The module's docstring defines each."""

    NO_VALUE = json_text.NO_VALUE
    NOT_UTF8 = json_text.NOT_UTF8
    NOT_JSON = json_text.NOT_JSON
    NOT_OBJECT = json_text.NOT_OBJECT
    NO_UID = "no-uid"
    UID_NOT_TEXT = "uid-not-text"
    UID_EMPTY = "uid-empty"
    UID_TOO_LONG = "uid-too-long"
    NO_COUNT = "no-count"
    COUNT_NULL = "count-null"
    COUNT_NOT_A_NUMBER = "count-not-a-number"
    COUNT_NEGATIVE = "count-negative"
    COUNT_FRACTIONAL = "count-fractional"
    COUNT_TOO_LARGE = "count-too-large"


class WrongField(OnceflowError):
    """Invalid field name."""


class Click(NamedTuple):
    """One valid event: its user, its clicks and its operating system."""

    uid: str
    clicks: int
    os_type: str


class Rules:
    """The rules above, for one choice of field names."""

    def __init__(
        self, key_field: str = KEY_FIELD, value_field: str | None = VALUE_FIELD, os_field: str = OS_FIELD
    ) -> None:
        names = {"uid": key_field, "os_type": os_field} | ({} if value_field is None else {"clicks": value_field})
        if "" in names.values() or len(set(names.values())) < len(names):
            raise WrongField(f"the event's fields {', '.join(map(repr, names.values()))} must have different names")
        self._counts_events = value_field is None
        self._decode = msgspec.json.Decoder(_event_class(names, object)).decode
        self._decode_raw = msgspec.json.Decoder(_event_class(names, msgspec.Raw)).decode

    def judge(self, value: bytes | None) -> Click | Reason:
        """Return the click in one record's value, or the reason why it is not valid."""
        if value is None:
            return Reason.NO_VALUE
        try:
            text = value.decode()
        except UnicodeDecodeError:
            return Reason.NOT_UTF8
        if len(text) > DEPTH_MAX and is_too_deep(text):
            return Reason.NOT_JSON
        return self._judge_common(text) or self._judge_raw(text)

    def _judge_common(self, text: str) -> Click | None:
        """Return the click of a common event, with short strings and a whole number; None for any other."""
        try:
            event = self._decode(text)
        except msgspec.DecodeError:
            return None
        uid, os_type, clicks = event.uid, event.os_type, 1 if self._counts_events else event.clicks
        # A character is at most four bytes, so 256 of them are never too long.
        if type(uid) is str and 0 < len(uid) <= 256 and type(clicks) is int and 0 <= clicks <= COUNT_MAX:
            known = type(os_type) is str and 0 < len(os_type) <= 256
            return Click(uid, clicks, os_type if known else os_of(bytes(self._decode_raw(text).os_type)))
        return None

    def _judge_raw(self, text: str) -> Click | Reason:
        """Apply the rules to the fields' JSON text, in which no number is rounded."""
        try:
            event = self._decode_raw(text)
        except msgspec.ValidationError:
            return Reason.NOT_OBJECT if is_json(text) else Reason.NOT_JSON
        except msgspec.DecodeError:
            return Reason.NOT_JSON
        uid = uid_of(bytes(event.uid))
        if isinstance(uid, Reason):
            return uid
        clicks = 1 if self._counts_events else count_of(bytes(event.clicks))
        return clicks if isinstance(clicks, Reason) else Click(uid, clicks, os_of(bytes(event.os_type)))


def uid_of(raw: bytes) -> str | Reason:
    """Return the uid in the field's JSON text; empty text is an absent field."""
    if raw in (b"", b"null"):
        return Reason.NO_UID
    text = _text_of(raw)
    if text is None:
        return Reason.UID_NOT_TEXT
    if not text:
        return Reason.UID_EMPTY
    return Reason.UID_TOO_LONG if len(text.encode()) > UID_BYTES_MAX else text


def os_of(raw: bytes) -> str:
    """Return the operating system in the field's JSON text, or "unknown"."""
    text = _text_of(raw) if raw else None
    return text if text and len(text.encode()) <= OS_BYTES_MAX else OS_UNKNOWN


def id_of(raw: bytes) -> str | None:
    """Return the event's id in the field's JSON text; None if it has none."""
    text = _text_of(raw) if raw else None
    return text if text and len(text.encode()) <= ID_BYTES_MAX else None


def count_of(raw: bytes) -> int | Reason:
    """Return the clicks in the field's JSON text; empty text is an absent field."""
    if not raw:
        return Reason.NO_COUNT
    if raw == b"null":
        return Reason.COUNT_NULL
    return count_of_text(msgspec.json.decode(raw, type=str) if raw.startswith(b'"') else raw.decode())


def count_of_text(text: str) -> int | Reason:
    """Return the clicks of a number's text. No float is involved, so no digit is lost."""
    number = parse_number(text)
    if number is None:
        return Reason.COUNT_NOT_A_NUMBER
    if not number.digits:
        return 0
    if number.negative:
        return Reason.COUNT_NEGATIVE
    if number.power < 0:
        return Reason.COUNT_FRACTIONAL
    if number.places > len(str(COUNT_MAX)):
        return Reason.COUNT_TOO_LARGE
    count = int(number.digits) * 10**number.power
    return Reason.COUNT_TOO_LARGE if count > COUNT_MAX else count


def _text_of(raw: bytes) -> str | None:
    """Return a JSON string's content or an integer's own text; None for any other JSON text."""
    if raw.startswith(b'"'):
        return msgspec.json.decode(raw, type=str)
    return raw.decode() if _INTEGER.fullmatch(raw) else None


def _event_class(names: dict[str, str], kind: Any) -> type[Any]:
    """Return the struct into which msgspec decodes the named fields; `kind` Raw keeps their JSON text."""
    absent = msgspec.Raw() if kind is msgspec.Raw else None
    return msgspec.defstruct("Event", [(attribute, kind, absent) for attribute in names], rename=names, gc=False)
