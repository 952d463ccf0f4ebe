"""Fields that the HTTP endpoint adds to an event, and visits of bots.

It adds the server's time, and on request a hash of the visitor's address. The hash has a random salt that is replaced
at midnight UTC and never written down: hashes of two days cannot be compared, and no address can be computed from one.
"""

import hashlib
import re
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from onceflow.clicks.events import TIME_FIELD

SERVER_TIME_FIELD = "server_time"
DAY_MS = 86_400_000

BOTS = re.compile(
    r"(?<!cu)bot\b|crawl|spider|slurp|headless|lighthouse|phantomjs|facebookexternalhit|embedly|pingdom|uptime",
    re.IGNORECASE,
)
"""User agents of programs that visit pages without a user; Cubot makes telephones."""


def now_ms() -> int:
    """Return the wall clock in ms since 1970."""
    return time.time_ns() // 1_000_000


def is_bot(user_agent: str) -> bool:
    """Return whether a user agent names itself a bot."""
    return BOTS.search(user_agent) is not None


class AddressHash:
    """Hash of an address with the salt of the day."""

    def __init__(self) -> None:
        self._day = -1
        self._salt = b""

    def of(self, address: str, at_ms: int) -> str:
        """Return 16 hexadecimal digits, the same for an address all day."""
        day = at_ms // DAY_MS
        if day != self._day:
            self._day, self._salt = day, secrets.token_bytes(32)
        return hashlib.blake2b(address.encode(), digest_size=8, key=self._salt).hexdigest()


@dataclass(frozen=True, slots=True)
class AddedFields:
    """Names of the fields that are added: server time ("" for none), and address hash ("" drops the address)."""

    server_time: str = SERVER_TIME_FIELD
    address: str = ""
    event_time: str = TIME_FIELD


class Stamp:
    """Adds fields to the JSON text of events. A field of the same name that the sender wrote loses, as the later one
    counts."""

    def __init__(self, fields: AddedFields, clock_ms: Callable[[], int] = now_ms) -> None:
        self._fields = fields
        self.clock_ms = clock_ms
        self._hash = AddressHash()
        time_class = msgspec.defstruct("Timed", [("time", Any, None)], rename={"time": fields.event_time}, gc=False)
        decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(time_class)
        self._time = decoder.decode

    def of(self, address: str, at_ms: int) -> bytes:
        """Return the fields of one request's events, as JSON text without braces."""
        fields: dict[str, object] = {}
        if self._fields.server_time:
            fields[self._fields.server_time] = at_ms
        if self._fields.address:
            fields[self._fields.address] = self._hash.of(address, at_ms)
        return msgspec.json.encode(fields)[1:-1]

    def add(self, event: bytes, fields: bytes, at_ms: int) -> bytes:
        """Return a valid event with the fields, and with the server's time as its own if it has none."""
        added = [fields] if fields else []
        if self._time(event).time is None:
            added.append(msgspec.json.encode({self._fields.event_time: at_ms})[1:-1])
        return b",".join([event.rstrip()[:-1], *added]) + b"}" if added else event
