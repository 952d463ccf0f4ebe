"""Plain Python that says what the page shows of events."""

from collections import Counter
from collections.abc import Sequence

from tests.dashboard.events_of_two_days import FIRST_MS, HOUR_MS, HOURS, NAMES, Event

NEWEST_MS = FIRST_MS + HOURS * HOUR_MS - 1


def chosen(events: Sequence[Event], begin_ms: int, end_ms: int = NEWEST_MS + 1, **where: str) -> list[Event]:
    """Return the events of a time with these values of dimensions."""
    return [
        event
        for event in events
        if begin_ms <= event["event_time"] < end_ms
        and all(event[NAMES[name]] == value for name, value in where.items())
    ]


def numbers(events: Sequence[Event]) -> list[str]:
    """Return events, clicks and users as the page writes them."""
    clicks = sum(event["click_count"] for event in events)
    return [f"{len(events):,}", f"{clicks:,}", f"{len({event['uid'] for event in events}):,}"]


def top(events: Sequence[Event], dimension: str) -> dict[str, str]:
    """Return clicks by value as the page writes them."""
    clicks: Counter[str] = Counter()
    for event in events:
        clicks[event[NAMES.get(dimension, dimension)]] += event["click_count"]
    return {value: f"{count:,}" for value, count in clicks.items()}
