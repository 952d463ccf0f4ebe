"""Validation of records before they are appended, where a topic's configuration requires it (`log.validation`).

A few records are checked on the loop. Many, or compressed ones, would hold up every other topic: a thread checks them,
and later batches for the same partition queue after them, so that they keep their order.

The thread works in slices, and partitions take turns: of the new batches, the one with the fewest records comes first.
A batch that needs one slice waits for a slice or two of others, however many large ones there are. The large ones are
finished one after the other, a slice of the oldest after each slice of a new one. A batch that did not end in its first
slice starts again then: only one at a time is half decompressed, which bounds the memory.
"""

import itertools
import logging
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from heapq import heappop, heappush
from time import monotonic

from onceflow.broker.storage.partitions import Partition
from onceflow.log.clock import Clock
from onceflow.log.errors import CorruptBatch, LogError
from onceflow.log.validation import record_check
from onceflow.wire.batch import HEADER_BYTES, read_header
from onceflow.wire.codecs import Codec

logger = logging.getLogger(__name__)

RECORDS_ON_LOOP_MAX = 200
"""About a quarter of a millisecond."""
SLICE_S = 0.002
_CODEC_MASK = 0x07

Checked = Callable[[LogError | None], None]
InThread = Callable[[Callable[[], bool], Callable[[bool], None]], None]


@dataclass(eq=False, slots=True)
class _BatchCheck:
    """A batch in validation."""

    partition: Partition
    batch: memoryview
    checked: Checked
    steps: Iterator[None] | None = None
    error: LogError | None = None

    def begin(self, now_ms: int) -> None:
        log = self.partition.log
        self.steps = record_check(log.name, self.batch, 0, log.config, now_ms)

    def run_slice(self) -> bool:
        """Run a slice in the thread; return whether the check is over."""
        assert self.steps is not None
        ends_at = monotonic() + SLICE_S
        try:
            for _ in self.steps:
                if monotonic() >= ends_at:
                    return False
        except LogError as error:
            self.error = error
        except Exception as error:
            # After any error the client must get a response and the queue must continue.
            logger.exception("%s: failed to validate the records of a batch", self.partition)
            self.error = CorruptBatch(f"{self.partition}: failed to validate the records: {error!r}")
        return True


class RecordChecks:
    """Queue of batches to validate. All methods run on the loop."""

    def __init__(self, clock: Clock, in_thread: InThread) -> None:
        self._clock = clock
        self._in_thread = in_thread
        self._queues: dict[Partition, deque[_BatchCheck]] = {}
        """Checks by partition; the first of each is among the new or the long ones."""
        self._new: list[tuple[int, int, _BatchCheck]] = []
        """Heap ordered by (record count, number), so that the shortest comes first."""
        self._numbers = itertools.count()
        self._long: deque[_BatchCheck] = deque()
        self._is_running = False
        self._was_new = False

    def must_wait(self, partition: Partition, batch: memoryview) -> bool:
        """Return whether a batch must go through `check`; all others are checked when they are appended."""
        log = partition.log
        if not log.needs_record_check or not HEADER_BYTES <= len(batch) <= log.config.message_bytes_max:
            return False
        header = read_header(batch)
        is_large = header.record_count > RECORDS_ON_LOOP_MAX or header.attributes & _CODEC_MASK != Codec.NONE
        return is_large or partition in self._queues

    def check(self, partition: Partition, batch: memoryview, checked: Checked) -> None:
        """Call `checked` with the error or None in a later turn, after the partition's earlier batches.

        `batch` must not change until then.
        """
        check = _BatchCheck(partition, batch, checked)
        queue = self._queues.setdefault(partition, deque())
        queue.append(check)
        if len(queue) == 1:
            self._begin(check)
            self._run()

    def _begin(self, check: _BatchCheck) -> None:
        heappush(self._new, (read_header(check.batch).record_count, next(self._numbers), check))

    def _run(self) -> None:
        """Run the next slice: of a new check and of the oldest long one in turn, if there are both."""
        if self._is_running or not (self._new or self._long):
            return
        self._was_new = bool(self._new) and not (self._was_new and self._long)
        check = heappop(self._new)[2] if self._was_new else self._long[0]
        if check.steps is None:
            check.begin(self._clock.now_ms())
        self._is_running = True
        self._in_thread(check.run_slice, lambda is_over: self._ran(check, is_over))

    def _ran(self, check: _BatchCheck, is_over: bool) -> None:
        self._is_running = False
        if is_over and not self._was_new:
            self._long.popleft()
        elif not is_over and self._was_new:
            if self._long:
                check.steps = None
            self._long.append(check)
        try:
            if is_over:
                self._end(check)
        finally:
            self._run()

    def _end(self, check: _BatchCheck) -> None:
        queue = self._queues[check.partition]
        queue.popleft()
        if queue:
            self._begin(queue[0])
        else:
            del self._queues[check.partition]
        check.checked(check.error)
