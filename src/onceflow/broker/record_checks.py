"""Looking into records before they are appended, where a topic's configuration is about records (`log.validation`).

A few records are looked at on the loop. Many, or compressed ones, would hold up every other topic: a thread looks
at them, and what comes for the same partition meanwhile queues behind, so that its batches keep their order.
"""

import logging
from collections import deque
from collections.abc import Callable

from onceflow.broker.partitions import Partition
from onceflow.log.clock import Clock
from onceflow.log.config import LogConfig
from onceflow.log.errors import CorruptBatch, LogError
from onceflow.log.validation import check_records
from onceflow.wire.batch import HEADER_BYTES, read_header
from onceflow.wire.codecs import Codec

logger = logging.getLogger(__name__)

RECORDS_ON_LOOP_MAX = 200
"""About a quarter of a millisecond."""
_CODEC_MASK = 0x07

Checked = Callable[[LogError | None], None]
InThread = Callable[[Callable[[], LogError | None], Callable[[LogError | None], None]], None]


class RecordChecks:
    """The batches that wait for a look at their records. All methods are the loop's."""

    def __init__(self, clock: Clock, in_thread: InThread) -> None:
        self._clock = clock
        self._in_thread = in_thread
        self._queues: dict[Partition, deque[tuple[memoryview, Checked]]] = {}

    def must_wait(self, partition: Partition, batch: memoryview) -> bool:
        """Whether a batch has to go through `check`; all others are looked at when they are appended."""
        log = partition.log
        if not log.looks_into_records or not HEADER_BYTES <= len(batch) <= log.config.message_bytes_max:
            return False
        header = read_header(batch)
        is_large = header.record_count > RECORDS_ON_LOOP_MAX or header.attributes & _CODEC_MASK != Codec.NONE
        return is_large or partition in self._queues

    def check(self, partition: Partition, batch: memoryview, checked: Checked) -> None:
        """Calls `checked` in a later turn, after those of the partition's earlier batches, with what is wrong.

        `batch` must stay as it is until then.
        """
        queue = self._queues.setdefault(partition, deque())
        queue.append((batch, checked))
        if len(queue) == 1:
            self._begin(partition)

    def _begin(self, partition: Partition) -> None:
        batch = self._queues[partition][0][0]
        name, config, now_ms = partition.log.name, partition.log.config, self._clock.now_ms()
        self._in_thread(lambda: _look(name, batch, config, now_ms), lambda error: self._end(partition, error))

    def _end(self, partition: Partition, error: LogError | None) -> None:
        queue = self._queues[partition]
        _batch, checked = queue.popleft()
        try:
            checked(error)
        finally:
            if queue:
                self._begin(partition)
            else:
                del self._queues[partition]


def _look(name: str, batch: memoryview, config: LogConfig, now_ms: int) -> LogError | None:
    try:
        check_records(name, batch, 0, config, now_ms)
    except LogError as error:
        return error
    except Exception as error:
        # Whatever it was, the client must get an answer and the queue go on.
        logger.exception("%s: the records of a batch could not be looked at", name)
        return CorruptBatch(f"{name}: the records could not be looked at: {error!r}")
    return None
