"""Numbers and rates of connections, with a manual clock."""

from pathlib import Path
from typing import Any

import pytest

from onceflow.broker.config import BrokerConfig, Endpoint, ListenerLimits
from onceflow.broker.network.connection_limits import ConnectionLimits
from onceflow.testing import ManualClock

IN, OUT = Endpoint(port=1, listener="IN"), Endpoint(port=2, listener="OUT")
A, B = "10.0.0.7", "10.0.0.8"


def limited(clock: ManualClock | None = None, **settings: Any) -> ConnectionLimits:
    """Return the limits of two listeners, with a rate that is measured over one second."""
    config = BrokerConfig(Path("unused"), listeners=(IN, OUT), quota_samples=2, **settings)
    return ConnectionLimits(config, clock or ManualClock())


def test_nothing_is_limited_by_default() -> None:
    limits = limited()
    assert [limits.wait_seconds("IN") for _ in range(1000)] == [0.0] * 1000
    assert not limits.is_full("IN", A)


def test_all_listeners_share_the_broker_rate() -> None:
    """Kafka's QuotaUtils.throttleTime: the time after which the rate would be back at the limit, had nothing come."""
    clock = ManualClock()
    limits = limited(clock, connection_rate_max=4)
    assert [limits.wait_seconds(name) for name in ("IN", "OUT", "IN", "OUT")] == [0.0] * 4
    assert limits.wait_seconds("IN") == 0.25
    assert limits.wait_seconds("OUT") == 0.5
    clock.advance_ms(3000)
    assert limits.wait_seconds("OUT") == 0.0


def test_a_listener_has_its_own_rate() -> None:
    limits = limited(connection_rate_max=8, listener_limits={"OUT": ListenerLimits(connection_rate_max=2)})
    assert [limits.wait_seconds("OUT") for _ in range(3)] == [0.0, 0.0, 0.5]
    assert [limits.wait_seconds("IN") for _ in range(6)] == [0.0] * 5 + [0.125]


def test_no_wait_exceeds_a_window() -> None:
    limits = limited(connection_rate_max=1)
    assert [limits.wait_seconds("IN") for _ in range(5)] == [0.0] + [1.0] * 4


def test_a_connection_can_be_taken_back() -> None:
    limits = limited(connection_rate_max=1)
    for _ in range(5):
        assert limits.wait_seconds("IN") == 0.0
        limits.take_back("IN")


@pytest.mark.parametrize(
    ("settings", "full"),
    [
        ({"connections_max": 2}, {("IN", A), ("IN", B), ("OUT", A), ("OUT", B)}),
        ({"connections_per_address_max": 1}, {("IN", A), ("OUT", A), ("IN", B), ("OUT", B)}),
        ({"connections_per_address_overrides": {A: 1}}, {("IN", A), ("OUT", A)}),
        ({"connections_per_address_max": 0, "connections_per_address_overrides": {A: 9}}, {("IN", B), ("OUT", B)}),
        ({"listener_limits": {"OUT": ListenerLimits(connections_max=1)}}, {("OUT", A), ("OUT", B)}),
    ],
)
def test_numbers_of_connections(settings: dict[str, Any], full: set[tuple[str, str]]) -> None:
    limits = limited(**settings)
    limits.opened("IN", A)
    limits.opened("OUT", B)
    places = {(listener, host) for listener in ("IN", "OUT") for host in (A, B)}
    assert {place for place in places if limits.is_full(*place)} == full
    limits.closed("IN", A)
    limits.closed("OUT", B)
    free = {place for place in places if not limits.is_full(*place)}
    assert free == (places - full if settings.get("connections_per_address_max") == 0 else places)


def test_mapped_addresses_have_their_overrides() -> None:
    limits = limited(connections_per_address_overrides={A: 0})
    assert limits.is_full("IN", f"::ffff:{A}")
