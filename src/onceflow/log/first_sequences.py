"""First batches of producers that a partition does not know.

Such a batch usually has sequence 0. Any other sequence has one of two reasons: the partition has forgotten the
producer, or the batches before have not arrived. librdkafka may send its second batch first, and takes the first one as
acknowledged when the second is: it would be lost (docs/decisions/first-sequences.md). The partition cannot tell the two
apart, so it makes the client send again:

1. The batch is refused with an error after which clients send again what is not acknowledged, in order. If there are
   earlier batches, they come first, down to sequence 0.
2. When the batch comes again `WAIT_MS` after its first refusal, or later, there are none, and it is accepted. If
   several were refused, only the one with the lowest sequence is: the others follow it.
3. If the lowest one has not come for `ABANDONED_MS`, its client has given it up, and the next one that comes is
   accepted.
4. While `WAITING_MAX` producers wait, further ones are accepted at once, as in Kafka.
"""

from typing import NamedTuple

from onceflow.log.errors import EarlierBatchesAwaited
from onceflow.wire.batch import SEQUENCE_MAX, BatchHeader

WAIT_MS = 250
"""Longer than a client needs to put a refused batch back into its queue; two or three of its retries."""
ABANDONED_MS = 2_000
"""Longer than a client's longest pause between retries: 1 s in librdkafka and in Java's producer."""
WAITING_MAX = 1_000
"""Number of producers of a partition that are remembered, about 0.2 KB each."""


class _Waiting(NamedTuple):
    epoch: int
    sequence: int
    """The lowest that was refused."""
    since_ms: int
    seen_ms: int
    """When it came last."""


class FirstSequences:
    """Refused batches of the producers that a partition does not know, least recently refused first."""

    __slots__ = ("_name", "_retry_ms", "_waiting")

    def __init__(self, name: str, retry_ms: int) -> None:
        """`retry_ms` is the longest time within which a client retries a batch."""
        self._name = name
        self._retry_ms = retry_ms
        self._waiting: dict[int, _Waiting] = {}

    def check(self, header: BatchHeader, now_ms: int) -> None:
        """Check the batch of an unknown producer. Raises EarlierBatchesAwaited if it must be sent again."""
        epoch, sequence = header.producer_epoch, header.base_sequence
        waiting = self._waiting.get(header.producer_id)
        if waiting is not None and (epoch > waiting.epoch or not 0 <= now_ms - waiting.seen_ms < self._retry_ms):
            waiting = None
        if waiting is None or (epoch == waiting.epoch and _is_before(sequence, waiting.sequence)):
            if sequence == 0 or (waiting is None and not self._make_space(header.producer_id, now_ms)):
                return
            waiting = _Waiting(epoch, sequence, now_ms, now_ms)
        elif (epoch, sequence) == (waiting.epoch, waiting.sequence):
            if now_ms - waiting.since_ms >= WAIT_MS:
                return
            waiting = waiting._replace(seen_ms=now_ms)
        elif now_ms - waiting.seen_ms >= ABANDONED_MS:
            return
        self._waiting.pop(header.producer_id, None)
        self._waiting[header.producer_id] = waiting
        raise EarlierBatchesAwaited(
            f"producer {header.producer_id} on {self._name}: its first batch has sequence {sequence} of epoch {epoch},"
            f" and earlier ones may follow; send it again after {WAIT_MS} ms"
        )

    def _make_space(self, producer_id: int, now_ms: int) -> bool:
        """Return whether one more producer can be remembered, perhaps instead of one that does not come any more."""
        if len(self._waiting) < WAITING_MAX or producer_id in self._waiting:
            return True
        oldest = next(iter(self._waiting))
        if now_ms - self._waiting[oldest].seen_ms < ABANDONED_MS:
            return False
        del self._waiting[oldest]
        return True

    def forget(self, producer_id: int) -> None:
        """Forget a producer that is known now."""
        self._waiting.pop(producer_id, None)


def _is_before(sequence: int, other: int) -> bool:
    """Return whether a sequence is before another one; they wrap after 2^31 - 1."""
    return 0 < other - sequence & SEQUENCE_MAX <= SEQUENCE_MAX // 2
