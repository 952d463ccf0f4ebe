"""Rates of quotas: how much a client used in the last windows of time, and how long it must wait.

They are Kafka's Rate over a SampledStat and its TokenBucket (org.apache.kafka.common.metrics.stats). Times are in
milliseconds of a monotonic clock.
"""

from collections import deque


class _Sample:
    """Sum of one window."""

    __slots__ = ("last_ms", "start_ms", "value")

    def __init__(self, start_ms: int) -> None:
        self.start_ms = self.last_ms = start_ms
        self.value = 0.0


class Rate:
    """Sum per second over the last `samples` windows, the current one included."""

    __slots__ = ("_samples", "_samples_max", "_window_ms")

    def __init__(self, samples: int, window_ms: int) -> None:
        self._samples_max = samples
        self._window_ms = window_ms
        self._samples: deque[_Sample] = deque()

    def record(self, value: float, now_ms: int) -> None:
        """Add a value; a negative one removes an earlier value."""
        if not self._samples or now_ms - self._samples[-1].start_ms >= self._window_ms:
            self._samples.append(_Sample(now_ms))
            self._remove_obsolete(now_ms)
        sample = self._samples[-1]
        sample.value += value
        sample.last_ms = now_ms

    def throttle_ms(self, bound: float, now_ms: int) -> int:
        """Return how long to wait until the rate is no more than `bound` (QuotaUtils.throttleTime)."""
        self._remove_obsolete(now_ms)
        window_ms = self._measured_ms(now_ms)
        rate = sum(sample.value for sample in self._samples) / (window_ms / 1000)
        return 0 if rate <= bound else round((rate - bound) / bound * window_ms)

    def _remove_obsolete(self, now_ms: int) -> None:
        while self._samples and now_ms - self._samples[0].last_ms >= self._samples_max * self._window_ms:
            self._samples.popleft()

    def _measured_ms(self, now_ms: int) -> int:
        """Return the measured time; a client that just began counts as if it had been idle before."""
        elapsed_ms = now_ms - self._samples[0].start_ms if self._samples else 0
        missing = self._samples_max - 1 - elapsed_ms // self._window_ms
        return max(elapsed_ms + max(missing, 0) * self._window_ms, 1)


class TokenBucket:
    """Tokens that are refilled at the quota's rate, up to those of all windows (Kafka's TokenBucket)."""

    __slots__ = ("_last_ms", "_tokens", "_window_seconds")

    def __init__(self, samples: int, window_ms: int, bound: float, now_ms: int) -> None:
        self._window_seconds = samples * window_ms / 1000
        self._tokens = bound * self._window_seconds
        self._last_ms = now_ms

    def take(self, tokens: float, bound: float, now_ms: int) -> None:
        """Take tokens, possibly more than there are."""
        self._refill(bound, now_ms)
        self._tokens -= tokens

    def throttle_ms(self, bound: float, now_ms: int) -> int:
        """Return how long to wait until no token is missing (ControllerMutationQuotaManager.throttleTimeMs)."""
        self._refill(bound, now_ms)
        return max(round(-self._tokens / bound * 1000), 0)

    def _refill(self, bound: float, now_ms: int) -> None:
        refilled = self._tokens + bound * (now_ms - self._last_ms) / 1000
        self._tokens = min(bound * self._window_seconds, refilled)
        self._last_ms = now_ms
