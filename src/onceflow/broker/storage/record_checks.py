"""Looking into records before they are appended, where a topic's configuration is about records (`log.validation`).

A few records are looked at on the loop. Many, or compressed ones, would hold up every other topic: a thread looks
at them, and what comes for the same partition meanwhile queues behind, so that its batches keep their order.

The thread works in slices, and partitions take turns: of the new batches the one with the fewest records comes first.
One for which a slice suffices waits for a slice or two of others, however many large ones there are. The large ones are
finished one after the other, a slice of the oldest after each slice of a new one. A batch that did not end in its first
slice begins again then: only one at a time is half unpacked, which bounds the memory.
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
class _Look:
    """A batch whose records are looked at."""

    partition: Partition
    batch: memoryview
    checked: Checked
    steps: Iterator[None] | None = None
    error: LogError | None = None

    def begin(self, now_ms: int) -> None:
        log = self.partition.log
        self.steps = record_check(log.name, self.batch, 0, log.config, now_ms)

    def run_slice(self) -> bool:
        """Whether the look is over; in the thread."""
        assert self.steps is not None
        ends_at = monotonic() + SLICE_S
        try:
            for _ in self.steps:
                if monotonic() >= ends_at:
                    return False
        except LogError as error:
            self.error = error
        except Exception as error:
            # Whatever it was, the client must get an answer and the queue go on.
            logger.exception("%s: the records of a batch could not be looked at", self.partition)
            self.error = CorruptBatch(f"{self.partition}: the records could not be looked at: {error!r}")
        return True


class RecordChecks:
    """The batches that wait for a look at their records. All methods are the loop's."""

    def __init__(self, clock: Clock, in_thread: InThread) -> None:
        self._clock = clock
        self._in_thread = in_thread
        self._queues: dict[Partition, deque[_Look]] = {}
        """Each partition's looks; the first is among the new or the long ones."""
        self._new: list[tuple[int, int, _Look]] = []
        """A heap: (records, number) of each, so that the shortest comes first."""
        self._numbers = itertools.count()
        self._long: deque[_Look] = deque()
        self._is_running = False
        self._was_new = False

    def must_wait(self, partition: Partition, batch: memoryview) -> bool:
        """Whether a batch has to go through `check`; all others are looked at when they are appended."""
        log = partition.log
        if not log.needs_record_check or not HEADER_BYTES <= len(batch) <= log.config.message_bytes_max:
            return False
        header = read_header(batch)
        is_large = header.record_count > RECORDS_ON_LOOP_MAX or header.attributes & _CODEC_MASK != Codec.NONE
        return is_large or partition in self._queues

    def check(self, partition: Partition, batch: memoryview, checked: Checked) -> None:
        """Call `checked` in a later turn, after those of the partition's earlier batches, with what is wrong.

        `batch` must stay as it is until then.
        """
        look = _Look(partition, batch, checked)
        queue = self._queues.setdefault(partition, deque())
        queue.append(look)
        if len(queue) == 1:
            self._begin(look)
            self._run()

    def _begin(self, look: _Look) -> None:
        heappush(self._new, (read_header(look.batch).record_count, next(self._numbers), look))

    def _run(self) -> None:
        """Run the next slice: of a new look and of the oldest long one in turn, where there are both."""
        if self._is_running or not (self._new or self._long):
            return
        self._was_new = bool(self._new) and not (self._was_new and self._long)
        look = heappop(self._new)[2] if self._was_new else self._long[0]
        if look.steps is None:
            look.begin(self._clock.now_ms())
        self._is_running = True
        self._in_thread(look.run_slice, lambda is_over: self._ran(look, is_over))

    def _ran(self, look: _Look, is_over: bool) -> None:
        self._is_running = False
        if is_over and not self._was_new:
            self._long.popleft()
        elif not is_over and self._was_new:
            if self._long:
                look.steps = None
            self._long.append(look)
        try:
            if is_over:
                self._end(look)
        finally:
            self._run()

    def _end(self, look: _Look) -> None:
        queue = self._queues[look.partition]
        queue.popleft()
        if queue:
            self._begin(queue[0])
        else:
            del self._queues[look.partition]
        look.checked(look.error)
