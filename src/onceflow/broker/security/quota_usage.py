"""Usage of quotas by clients, and the time that one must wait which exceeds its own."""

from collections import OrderedDict
from collections.abc import Callable
from typing import TypeVar

from onceflow.broker.security.acls import address_text
from onceflow.broker.security.client_quotas import (
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    REQUEST_PERCENTAGE,
    ClientQuotas,
)
from onceflow.broker.security.rates import Rate, TokenBucket
from onceflow.log.clock import Clock

CLIENTS_MAX = 10_000
"""Clients whose usage is known; another one replaces the one unused longest."""
THROTTLE_MS_MAX = 2**31 - 1

_Key = tuple[str, str, str]
_Used = TypeVar("_Used", Rate, TokenBucket)


class QuotaUsage:
    """Usage by quota, user and client id."""

    def __init__(self, quotas: ClientQuotas, clock: Clock, *, samples: int, window_ms: int) -> None:
        self._quotas = quotas
        self._clock = clock
        self._samples = samples
        self._window_ms = window_ms
        self._rates: OrderedDict[_Key, Rate] = OrderedDict()
        self._buckets: OrderedDict[_Key, TokenBucket] = OrderedDict()

    def record(self, key: str, user: str, client_id: str, value: float) -> int:
        """Add to a client's usage; return how long it must wait, in ms."""
        applied = self._quotas.applied(key, user, client_id)
        if applied is None:
            return 0
        now_ms = self._now_ms()
        rate = self._rate((key, applied.user, applied.client_id))
        rate.record(value, now_ms)
        throttle_ms = min(rate.throttle_ms(applied.bound, now_ms), THROTTLE_MS_MAX)
        return min(throttle_ms, self._window_ms) if key == REQUEST_PERCENTAGE else throttle_ms

    def take_back(self, key: str, user: str, client_id: str, value: float) -> None:
        """Remove from a client's usage what it did not get."""
        applied = self._quotas.applied(key, user, client_id)
        if applied is not None:
            self._rate((key, applied.user, applied.client_id)).record(-value, self._now_ms())

    def fetch_bytes_max(self, user: str, client_id: str) -> int | None:
        """Return the size of a Fetch response above which the client would be throttled in any case; None: no limit."""
        applied = self._quotas.applied(CONSUMER_BYTE_RATE, user, client_id)
        return None if applied is None else int(applied.bound * (self._samples - 1) * self._window_ms / 1000)

    def take_mutations(self, user: str, client_id: str, count: int, *, is_strict: bool) -> int:
        """Take a token for each created or deleted partition; return how long the client must wait, in ms.

        A strict quota takes none while tokens are missing: the operation is refused.
        """
        applied = self._quotas.applied(CONTROLLER_MUTATION_RATE, user, client_id)
        if applied is None:
            return 0
        bound, now_ms = applied.bound, self._now_ms()
        bucket = self._recent(
            self._buckets,
            (CONTROLLER_MUTATION_RATE, applied.user, applied.client_id),
            lambda: TokenBucket(self._samples, self._window_ms, bound, now_ms),
        )
        if is_strict:
            throttle_ms = bucket.throttle_ms(bound, now_ms)
            if not throttle_ms:
                bucket.take(count, bound, now_ms)
        else:
            bucket.take(count, bound, now_ms)
            throttle_ms = bucket.throttle_ms(bound, now_ms)
        return min(throttle_ms, THROTTLE_MS_MAX)

    def take_connection(self, address: str) -> int:
        """Count a new connection from an address; return how long it must wait, in ms, and is not counted then."""
        address = address_text(address)
        bound = self._quotas.connection_rate(address)
        if bound is None:
            return 0
        now_ms = self._now_ms()
        rate = self._rate((CONNECTION_CREATION_RATE, address, ""))
        rate.record(1, now_ms)
        throttle_ms = min(rate.throttle_ms(bound, now_ms), self._window_ms)
        if throttle_ms:
            rate.record(-1, now_ms)
        return throttle_ms

    def _rate(self, key: _Key) -> Rate:
        return self._recent(self._rates, key, lambda: Rate(self._samples, self._window_ms))

    def _recent(self, by_key: OrderedDict[_Key, _Used], key: _Key, new: Callable[[], _Used]) -> _Used:
        """Return the usage of a client, which replaces the one unused longest if it is new and there are too many."""
        used = by_key.get(key)
        if used is not None:
            by_key.move_to_end(key)
            return used
        if len(by_key) >= CLIENTS_MAX:
            by_key.popitem(last=False)
        used = by_key[key] = new()
        return used

    def _now_ms(self) -> int:
        return int(self._clock.monotonic() * 1000)
