"""Limits of connections: how many there are, and how many are new per second.

The rules of the rates are those of Kafka's ConnectionQuotas (KIP-402, KIP-612).

A connection beyond a number is closed at once. One beyond the rate of the broker or of its listener is accepted later,
and the listener accepts no other one before, so that the others wait in the operating system's queue.
"""

from collections import Counter

from onceflow.broker.config import UNLIMITED, BrokerConfig
from onceflow.broker.security.acls import address_text
from onceflow.broker.security.rates import Rate
from onceflow.log.clock import Clock


class ConnectionLimits:
    """Counts and rates of connections: of the broker, of each listener and of each address."""

    def __init__(self, config: BrokerConfig, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._window_ms = config.quota_window_seconds * 1000
        self._per_listener: Counter[str] = Counter()
        self._per_address: Counter[str] = Counter()
        own = {listener: limits.connection_rate_max for listener, limits in config.listener_limits.items()}
        broker = self._new_rates(config.connection_rate_max)
        self._rates = {
            endpoint.listener: broker + self._new_rates(own.get(endpoint.listener, UNLIMITED))
            for endpoint in config.listeners
        }

    def _new_rates(self, bound: int) -> list[tuple[Rate, int]]:
        """Return the rate with its bound; nothing without a bound."""
        return [] if bound == UNLIMITED else [(Rate(self._config.quota_samples, self._window_ms), bound)]

    def wait_seconds(self, listener: str) -> float:
        """Count a new connection of a listener; return how long the listener must wait before it accepts it."""
        rates = self._rates[listener]
        if not rates:
            return 0.0
        now_ms, wait_ms = self._now_ms(), 0
        for rate, bound in rates:
            rate.record(1, now_ms)
            wait_ms = max(wait_ms, rate.throttle_ms(bound, now_ms))
        return min(wait_ms, self._window_ms) / 1000

    def take_back(self, listener: str) -> None:
        """Remove a new connection from the rates: it is refused because of its address."""
        for rate, _bound in self._rates[listener]:
            rate.record(-1, self._now_ms())

    def is_full(self, listener: str, host: str) -> bool:
        """Return whether there are as many connections as allowed, of the broker, the listener or the address."""
        config = self._config
        limits = config.listener_limits.get(listener)
        per_address_max = config.connections_per_address_max
        if config.connections_per_address_overrides:
            per_address_max = config.connections_per_address_overrides.get(address_text(host), per_address_max)
        return (
            self._per_address[host] >= per_address_max
            or self._per_listener.total() >= config.connections_max
            or (limits is not None and self._per_listener[listener] >= limits.connections_max)
        )

    def opened(self, listener: str, host: str) -> None:
        """Count a connection that is open now."""
        self._per_listener[listener] += 1
        self._per_address[host] += 1

    def closed(self, listener: str, host: str) -> None:
        """Count a connection that is open no more."""
        self._per_listener[listener] -= 1
        self._per_address[host] -= 1
        if not self._per_address[host]:
            del self._per_address[host]

    def _now_ms(self) -> int:
        return int(self._clock.monotonic() * 1000)
