"""Producer ids of a broker on ZooKeeper, from the blocks that it reserves there."""

from collections import deque
from collections.abc import Callable

from onceflow.broker.cluster.registry import Registry
from onceflow.broker.cluster.write_queue import WriteQueue, call
from onceflow.broker.topics.metadata_log import NO_PRODUCER_ID
from onceflow.wire.errors import ErrorCode

Respond = Callable[[ErrorCode, int], None]


class ProducerIds:
    """The ids of the current block, and the requests that wait for the next one."""

    def __init__(self, registry: Registry, queue: WriteQueue) -> None:
        self._registry = registry
        self._queue = queue
        self._ids = iter(range(0))
        self._waiting: deque[Respond] = deque()

    def next(self, respond: Respond) -> None:
        """Respond with a producer id that was never used before, once ZooKeeper has the block that contains it."""
        producer_id = next(self._ids, None)
        if producer_id is not None:
            respond(ErrorCode.none, producer_id)
        elif self._queue.failure is not None:
            respond(ErrorCode.coordinator_not_available, NO_PRODUCER_ID)
        else:
            self._waiting.append(respond)
            if len(self._waiting) == 1:
                self._queue.run(self._registry.reserve_producer_ids, self._begin_block)

    def _begin_block(self, block: range) -> None:
        self._ids = iter(block)
        waiting, self._waiting = self._waiting, deque()
        for respond in waiting:
            call(self.next, respond)

    def fail(self) -> None:
        """Respond to the waiting requests with an error."""
        while self._waiting:
            call(self._waiting.popleft(), ErrorCode.coordinator_not_available, NO_PRODUCER_ID)
