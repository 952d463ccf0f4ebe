"""A broker that stops lets the controller move its leaders first (kafka.server.KafkaServer.controlledShutdown)."""

import asyncio
import logging
from collections.abc import Sequence
from typing import NamedTuple

from onceflow.broker.cluster.metadata import RegistryMetadata
from onceflow.broker.cluster.peer import RESPONSE_SECONDS_MAX
from onceflow.broker.cluster.to_controller import ToController
from onceflow.broker.cluster.view import ClusterView
from onceflow.broker.storage.partitions import Place
from onceflow.wire.errors import ErrorCode, WireError
from onceflow.wire.inter_broker import ControlledShutdownRequest

logger = logging.getLogger(__name__)


class Attempts(NamedTuple):
    """Number of further attempts, and the pause before each."""

    retries: int
    pause_seconds: float


class Leaving:
    """The request to the controller before a stop."""

    def __init__(
        self,
        broker_id: int,
        view: ClusterView,
        controller: ToController,
        metadata: RegistryMetadata,
        attempts: Attempts,
    ) -> None:
        self._broker_id = broker_id
        self._view = view
        self._controller = controller
        self._metadata = metadata
        self._attempts = attempts

    async def move_leaders(self) -> None:
        """Return when other brokers lead this one's partitions, or after the last attempt.

        Without another broker, or without ZooKeeper, no leader can be moved.
        """
        for attempt in range(1 + self._attempts.retries):
            if self._metadata.is_disconnected or not self._view.brokers.keys() - {self._broker_id}:
                return
            if attempt:
                await asyncio.sleep(self._attempts.pause_seconds)
            reason = await self._reason_against()
            if reason is None:
                return
            logger.warning("the leaders of this broker cannot be moved before it stops: %s", reason)

    async def _reason_against(self) -> str | None:
        """Ask once; return None if this broker leads nothing any more that another one could lead."""
        try:
            async with asyncio.timeout(RESPONSE_SECONDS_MAX):
                result = await (self._ask_here() if self._metadata.is_controller else self._ask_controller())
        except (OSError, EOFError, WireError) as error:
            return f"no response of the controller: {error!r}"
        if isinstance(result, ErrorCode):
            return result.name
        return f"{len(result)} partitions have no other replica in sync" if result else None

    async def _ask_here(self) -> Sequence[Place] | ErrorCode:
        responded: asyncio.Future[Sequence[Place] | ErrorCode] = asyncio.get_running_loop().create_future()

        def respond(result: Sequence[Place] | ErrorCode) -> None:
            if not responded.done():
                responded.set_result(result)

        self._metadata.requests.shut_down(self._broker_id, self._metadata.broker_epoch, respond)
        return await responded

    async def _ask_controller(self) -> Sequence[Place] | ErrorCode:
        try:
            response = await self._controller.exchange(
                ControlledShutdownRequest(broker_id=self._broker_id, broker_epoch=self._metadata.broker_epoch)
            )
        finally:
            self._controller.close()
        if response.error_code:
            return ErrorCode(response.error_code)
        return [(left.topic_name, left.partition_index) for left in response.remaining_partitions]
