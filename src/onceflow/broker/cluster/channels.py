"""Connections of a controller to the brokers: for each a queue, and one request in flight.

A request is repeated until the broker responds or leaves, so that none is lost or overtaken
(kafka.controller.RequestSendThread). A queue that grows beyond its limit is dropped as a whole, and the broker gets
everything again once it responds.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from onceflow.broker.cluster.decision import ControlRequest
from onceflow.broker.cluster.peer import Others, Peer, PlaintextOthers
from onceflow.broker.cluster.state import LiveBroker
from onceflow.wire.errors import WireError

logger = logging.getLogger(__name__)

QUEUED_MAX = 1000
PAUSE_SECONDS_MIN = 0.1
PAUSE_SECONDS_MAX = 2.0

UNKNOWN_EPOCH = -1
"""Broker epoch that is not checked."""

Respond = Callable[[ControlRequest, Any], None]
"""Called with a request and the response."""
Deliver = Callable[[Any, Callable[[Any], None]], None]
"""Handles a message on this broker: takes it, and a function for the response."""


class Channel:
    """Requests to one broker, sent one after another until it responds."""

    def __init__(self, peer: Peer, respond: Respond, refresh: Callable[[], None]) -> None:
        self._peer = peer
        self._respond = respond
        self._refresh = refresh
        self._queue: deque[ControlRequest] = deque()
        self._is_overflown = False
        self._wake = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._run())

    def send(self, request: ControlRequest) -> None:
        """Send a request after those before it."""
        if self._is_overflown:
            return
        if len(self._queue) >= QUEUED_MAX:
            logger.warning("broker %d does not respond; its %d requests are dropped", request.broker_id, QUEUED_MAX)
            self._is_overflown = True
            self._queue.clear()
        self._queue.append(request)
        self._wake.set()

    async def _run(self) -> None:
        while True:
            while not self._queue:
                self._wake.clear()
                await self._wake.wait()
            request = self._queue[0]
            response = await self._exchange(request)
            if self._queue and self._queue[0] is request:
                self._queue.popleft()
            if self._is_overflown:
                self._is_overflown = False
                self._refresh()
            try:
                self._respond(request, response)
            except Exception:
                logger.exception("a response of broker %d could not be handled", request.broker_id)

    async def _exchange(self, request: ControlRequest) -> Any:
        pause_seconds = PAUSE_SECONDS_MIN
        while True:
            try:
                return await self._peer.exchange(request.message)
            except (OSError, EOFError, WireError) as error:
                logger.info("broker %d: no response to a request, retrying: %r", request.broker_id, error)
            await asyncio.sleep(pause_seconds)
            pause_seconds = min(2 * pause_seconds, PAUSE_SECONDS_MAX)

    def close(self) -> None:
        """Drop the requests, and close the connection."""
        self._task.cancel()
        self._peer.close()


class Channels:
    """The channels to all live brokers. This broker gets its requests without one."""

    def __init__(
        self,
        own_id: int,
        deliver: Deliver,
        respond: Respond,
        refresh: Callable[[int], None],
        others: Others = PlaintextOthers(),  # noqa: B008 - immutable
    ) -> None:
        """`refresh` is called with a broker that needs everything again."""
        self._own_id = own_id
        self._others = others
        self._deliver = deliver
        self._respond = respond
        self._refresh = refresh
        self._channels: dict[int, tuple[LiveBroker, Channel]] = {}

    def follow(self, brokers: Mapping[int, LiveBroker]) -> None:
        """Have a channel to each of these brokers; one that was registered again gets a new one."""
        for broker_id, (broker, channel) in list(self._channels.items()):
            if brokers.get(broker_id) != broker:
                channel.close()
                del self._channels[broker_id]
        for broker_id, broker in brokers.items():
            if broker_id != self._own_id and broker_id not in self._channels:
                self._open(broker)

    def _open(self, broker: LiveBroker) -> None:
        address = self._others.address(broker)
        if address is None:
            logger.error("broker %d has no listener for other brokers as this one's settings name it", broker.broker_id)
            return
        peer = Peer(lambda: address, str(self._own_id), connect=self._others.connect)
        channel = Channel(peer, self._respond, lambda: self._refresh(broker.broker_id))
        self._channels[broker.broker_id] = broker, channel

    def send(self, requests: Iterable[ControlRequest]) -> None:
        """Send requests, each after those before it to the same broker; one for a former process is dropped."""
        for request in requests:
            if request.broker_id == self._own_id:
                # This process is meant, also if its session was replaced since the decision.
                message = replace(request.message, broker_epoch=UNKNOWN_EPOCH)
                self._deliver(message, partial(self._respond, request))
                continue
            broker, channel = self._channels.get(request.broker_id, (None, None))
            if broker is not None and channel is not None and broker.epoch == request.broker_epoch:
                channel.send(request)

    def close(self) -> None:
        """Close all."""
        for _broker, channel in self._channels.values():
            channel.close()
        self._channels.clear()
