"""Batches with which unknown producers begin: earlier ones may be on their way.

A producer that a partition does not know usually begins with sequence 0. If it begins with a later one, either the
partition has forgotten the producer, or the batches before have not arrived. librdkafka sends its second batch first
when a former leader refuses the first one late, and takes the first one as acknowledged when the second is: it would be
lost (docs/decisions/first-sequences.md). The partition cannot tell the two apart, so it lets the client decide. It
refuses the batch with an error after which all clients send again what is not acknowledged, in order. Earlier batches
then come first. If none has come for a second, there are none, and the batch is accepted.

A client may have sent several batches. Only the one with the lowest sequence is accepted; the others follow it.
"""

from typing import NamedTuple

from onceflow.log.errors import EarlierBatchesAwaited
from onceflow.wire.batch import BatchHeader

WAIT_MS = 1_000
"""Time for which earlier batches are awaited. A client needs one response and its pause before a retry, 0.1 s."""
WAITING_MAX = 1_000
"""Number of producers of a partition that are remembered while they wait; beyond it, the first one waits again."""
_SEQUENCE_MAX = 2**31 - 1


class _Waiting(NamedTuple):
    epoch: int
    sequence: int
    since_ms: int


class FirstSequences:
    """The lowest refused sequence of each unknown producer of a partition."""

    __slots__ = ("_name", "_retry_ms", "_waiting")

    def __init__(self, name: str, retry_ms: int) -> None:
        """`retry_ms` is the longest time within which a client retries a batch."""
        self._name = name
        self._retry_ms = retry_ms
        self._waiting: dict[int, _Waiting] = {}

    def check(self, header: BatchHeader, now_ms: int) -> None:
        """Check the batch of an unknown producer. Raises EarlierBatchesAwaited if it must come again."""
        producer_id, epoch, sequence = header.producer_id, header.producer_epoch, header.base_sequence
        waiting = self._waiting.get(producer_id)
        if waiting is not None and (waiting.epoch != epoch or not 0 <= now_ms - waiting.since_ms < self._retry_ms):
            waiting = None
        if waiting is None or _is_before(sequence, waiting.sequence):
            if sequence == 0:
                return
            waiting = self._wait(producer_id, _Waiting(epoch, sequence, now_ms))
        if sequence != waiting.sequence or now_ms - waiting.since_ms < WAIT_MS:
            raise EarlierBatchesAwaited(
                f"producer {producer_id} on {self._name}: its first batch has sequence {sequence} of epoch {epoch}, and"
                f" earlier ones may follow; send it again for {WAIT_MS / 1000:g} s"
            )

    def _wait(self, producer_id: int, waiting: _Waiting) -> _Waiting:
        self._waiting[producer_id] = waiting
        if len(self._waiting) > WAITING_MAX:
            del self._waiting[next(iter(self._waiting))]
        return waiting

    def forget(self, producer_id: int) -> None:
        """Forget a producer that is known now."""
        self._waiting.pop(producer_id, None)


def _is_before(sequence: int, other: int) -> bool:
    """Return whether a sequence is before another one; they wrap after 2^31 - 1."""
    return 0 < other - sequence & _SEQUENCE_MAX <= _SEQUENCE_MAX // 2
