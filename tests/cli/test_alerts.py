"""Conditions of `onceflow watch`."""

from typing import Any

import pytest

from onceflow.cli.alerts import Alerts, parse


def status(at_s: int = 0, *, redis: str = "", kafka: str = "", **count: Any) -> dict[str, Any]:
    """Return a status; `redis` and `kafka` are errors."""
    parts = {name: {"error": error} if error else {} for name, error in (("redis", redis), ("kafka", kafka))}
    return {"at_ms": at_s * 1_000, **parts, "count": count}


def lag(messages: int, seconds: float) -> dict[str, Any]:
    return {"lag": {"messages": messages, "seconds": seconds}}


@pytest.mark.parametrize(
    ("text", "holds", "reading"),
    [
        ("lag > 60s", True, "lag is 90 s"),
        ("lag>1.5m", False, "lag is 90 s"),
        ("lag >= 1.5m", True, "lag is 90 s"),
        ("lag < 1h", True, "lag is 90 s"),
        ("lag > 100", False, "lag is 7 messages"),
        ("lag <= 7", True, "lag is 7 messages"),
        ("redis down", True, "redis is down: refused"),
        ("broker down", False, "broker is up"),
        ("rate > 1", None, "rate is not known"),
    ],
)
def test_conditions(text: str, holds: bool | None, reading: str) -> None:
    read = parse(text).read(None, status(redis="refused", **lag(7, 90.0)))
    assert (read.holds, read.text) == (holds, reading)


@pytest.mark.parametrize(("text", "holds"), [("rate < 10", False), ("rate <= 10", True), ("bad > 0.5", True)])
def test_rates_between_two_readings(text: str, holds: bool) -> None:
    condition = parse(text)
    before, now = status(0, events=100, bad=0), status(10, events=200, bad=10)
    assert condition.needs_two
    assert condition.read(before, now).holds is holds
    assert condition.read(now, status(20, events=5, bad=0)).holds is None, "the counts were reset"
    assert condition.read(before, status(10, redis="refused")).holds is None


@pytest.mark.parametrize("text", ["", "lag", "lag > ", "lag > 60d", "lag = 5", "rate > 5s", "disk down", "lag > -1"])
def test_invalid_conditions_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a valid condition; expected one such as 'lag > 60s'"):
        parse(text)


def test_begin_and_end_are_reported_once() -> None:
    alerts = Alerts([parse("lag > 60s"), parse("broker down")])
    seen = []
    for now in (
        status(0, **lag(1, 5.0)),
        status(1, **lag(1, 61.0)),
        status(2, **lag(1, 70.0)),
        status(3, kafka="refused"),
        status(4, **lag(0, 0.0)),
    ):
        seen.append([(change.state, change.alert) for change in alerts.update(now)])
    begin, end = ("begin", "lag > 60s"), ("end", "lag > 60s")
    assert seen == [[], [begin], [], [("begin", "broker down")], [end, ("end", "broker down")]]
    assert not alerts.holding and not alerts.unknown


def test_unknown_values_change_nothing() -> None:
    alerts = Alerts([parse("lag > 60s")])
    alerts.update(status(0, **lag(1, 61.0)))
    assert alerts.update(status(1, kafka="refused")) == []
    assert (alerts.holding, alerts.unknown) == ({"lag > 60s"}, {"lag > 60s"})
