"""Conditions of `onceflow watch`, and whether they hold. Pure: the status comes from `onceflow.cli.status`."""

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Status = Mapping[str, Any]
SECONDS = {"s": 1, "m": 60, "h": 3600}
OPERATORS: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
EXPECTED = "'lag > 60s', 'lag > 1000', 'rate < 10', 'bad > 0.5', 'redis down' or 'broker down'"
_COMPARED = re.compile(r"(lag|rate|bad)\s*(>=|<=|>|<)\s*(\d+(?:\.\d+)?)\s*([smh]?)")
_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smh])")
_DOWN = re.compile(r"(redis|broker)\s+down")
_PARTS = {"redis": "redis", "broker": "kafka"}


@dataclass(frozen=True)
class Reading:
    """Value of a condition now. `holds` is None if it is not known."""

    holds: bool | None
    text: str


@dataclass(frozen=True)
class Condition:
    """A condition on the status, as it was typed."""

    typed: str
    subject: str
    compare: str = ""
    limit: float = 0.0
    is_duration: bool = False

    @property
    def needs_two(self) -> bool:
        """Whether it compares two readings of the status."""
        return self.subject in ("rate", "bad")

    def read(self, before: Status | None, now: Status) -> Reading:
        """Return whether it holds; `before` is the previous status."""
        if self.subject in _PARTS:
            error = now[_PARTS[self.subject]].get("error")
            return Reading(error is not None, f"{self.subject} is {'up' if error is None else f'down: {error}'}")
        value, unit = self._value(before, now)
        if value is None:
            return Reading(None, f"{self.subject} is not known")
        return Reading(OPERATORS[self.compare](value, self.limit), f"{self.subject} is {value:g}{unit}")

    def _value(self, before: Status | None, now: Status) -> tuple[float | None, str]:
        if self.subject == "lag":
            lag = now["count"].get("lag", {})
            return (lag.get("seconds"), " s") if self.is_duration else (lag.get("messages"), " messages")
        counted = "events" if self.subject == "rate" else "bad"
        return (None if before is None else _per_second(before, now, counted)), " events per second"


def duration_s(text: str) -> float | None:
    """Return the seconds of a duration such as `10s` or `5m`; None if it is not one."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        return None
    number, unit = match.groups()
    return float(number) * SECONDS[unit]


def parse(text: str) -> Condition:
    """Return the condition that a text describes. Raises ValueError."""
    typed = text.strip()
    down, compared = _DOWN.fullmatch(typed), _COMPARED.fullmatch(typed)
    if down is not None:
        return Condition(typed, down[1])
    if compared is None or (compared[4] and compared[1] != "lag"):
        raise ValueError(f"'{text}' is not a valid condition; expected one such as {EXPECTED}")
    subject, compare, number, unit = compared.groups()
    return Condition(typed, subject, compare, float(number) * SECONDS.get(unit, 1), bool(unit))


def _per_second(before: Status, now: Status, name: str) -> float | None:
    """Return the growth of a count; None if it is not known, or smaller because it was reset."""
    begin, end = before["count"].get(name), now["count"].get(name)
    seconds: float = (now["at_ms"] - before["at_ms"]) / 1_000
    if begin is None or end is None or seconds <= 0 or end < begin:
        return None
    return float(end - begin) / seconds


@dataclass(frozen=True)
class Change:
    """Begin or end of an alert."""

    alert: str
    state: str
    """`begin` or `end`."""
    reading: str
    at_ms: int

    def as_json(self) -> dict[str, Any]:
        """Return plain values; `text` is the field that chat services show."""
        text = f"onceflow: {self.state} of alert {self.alert}: {self.reading}"
        return {"alert": self.alert, "state": self.state, "reading": self.reading, "at_ms": self.at_ms, "text": text}


class Alerts:
    """The conditions that hold. A value that is not known changes nothing."""

    def __init__(self, conditions: Sequence[Condition]) -> None:
        self._conditions = conditions
        self._before: Status | None = None
        self.holding: set[str] = set()
        self.unknown: set[str] = set()

    def update(self, now: Status) -> list[Change]:
        """Take a status, and return the alerts that begin or end with it."""
        changes = []
        self.unknown.clear()
        for condition in self._conditions:
            reading = condition.read(self._before, now)
            was_holding = condition.typed in self.holding
            if reading.holds is None:
                self.unknown.add(condition.typed)
            elif reading.holds != was_holding:
                (self.holding.add if reading.holds else self.holding.remove)(condition.typed)
                changes.append(Change(condition.typed, "begin" if reading.holds else "end", reading.text, now["at_ms"]))
        self._before = now
        return changes
