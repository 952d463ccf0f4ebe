"""Items for other brokers, joined in batches: for each broker a queue, and one request in flight.

An item whose request gets no response is returned to its sender, who decides whether it is sent again, and to which
broker. So a queue holds each item once, however long its broker is away.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, Generic, TypeVar

from onceflow.broker.cluster.peer import Connect, Peer
from onceflow.broker.cluster.view import ClusterView
from onceflow.broker.config import Endpoint
from onceflow.wire.errors import WireError

logger = logging.getLogger(__name__)

ITEMS_MAX = 500
"""Items in one request."""

Item = TypeVar("Item")
Build = Callable[[Sequence[Item]], Any]
"""Returns the request for some items."""
Settle = Callable[[Sequence[Item], Any], None]
"""Called once for each item with the response, None without one."""


class BrokerQueue(Generic[Item]):
    """Items for one broker."""

    def __init__(
        self, address: Endpoint, client_id: str, build: Build[Item], settle: Settle[Item], connect: Connect
    ) -> None:
        self.address = address
        self._peer = Peer(lambda: address, client_id, connect=connect)
        self._build = build
        self._settle = settle
        self._items: deque[Item] = deque()
        self._wake = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._run(), name=client_id)

    def add(self, item: Item) -> None:
        """Send an item with the next request."""
        self._items.append(item)
        self._wake.set()

    async def _run(self) -> None:
        while True:
            while not self._items:
                self._wake.clear()
                await self._wake.wait()
            batch = list(islice(self._items, ITEMS_MAX))
            response = await self._exchange(batch)
            for _item in batch:
                self._items.popleft()
            self._settle_safely(batch, response)

    async def _exchange(self, batch: Sequence[Item]) -> Any:
        """Return the response; None without one. A connection that was closed while it was idle is opened again."""
        for is_last in (not self._peer.is_open, True):
            try:
                return await self._peer.exchange(self._build(batch))
            except TimeoutError:
                break
            except (OSError, EOFError, WireError) as error:
                logger.info("%s:%d: no response to a request: %r", self.address.host, self.address.port, error)
                if is_last:
                    break
            except Exception:
                # The items must return to their senders, and the queue must continue.
                logger.exception("%s:%d: a request failed", self.address.host, self.address.port)
                break
        return None

    def _settle_safely(self, batch: Sequence[Item], response: Any) -> None:
        try:
            self._settle(batch, response)
        except Exception:
            logger.exception("a response of %s:%d could not be handled", self.address.host, self.address.port)

    def close(self) -> asyncio.Task[None]:
        """Return the items without a response, and close the connection."""
        self._task.cancel()
        self._peer.close()
        left = list(self._items)
        self._items.clear()
        if left:
            self._settle_safely(left, None)
        return self._task


class BrokerQueues(Generic[Item]):
    """A queue for each broker that items are sent to."""

    def __init__(
        self,
        client_id: str,
        view: ClusterView,
        build: Build[Item],
        settle: Settle[Item],
    ) -> None:
        self._client_id = client_id
        self._view = view
        self._build = build
        self._settle = settle
        self._queues: dict[int, BrokerQueue[Item]] = {}

    def add(self, broker_id: int, item: Item) -> bool:
        """Send an item to a broker; return False if it is not alive."""
        address = self._view.inter_broker_address(broker_id)
        if address is None:
            return False
        queue = self._queues.get(broker_id)
        if queue is not None and queue.address != address:
            queue.close()
            queue = None
        if queue is None:
            queue = self._queues[broker_id] = BrokerQueue(
                address, self._client_id, self._build, self._settle, self._view.connect
            )
        queue.add(item)
        return True

    def forget_dead(self) -> None:
        """Return the items for brokers that are not alive any more; called often."""
        for broker_id, queue in list(self._queues.items()):
            if self._view.inter_broker_address(broker_id) != queue.address:
                del self._queues[broker_id]
                queue.close()

    async def close(self) -> None:
        """Close all connections."""
        tasks = [queue.close() for queue in self._queues.values()]
        self._queues.clear()
        await asyncio.gather(*tasks, return_exceptions=True)
