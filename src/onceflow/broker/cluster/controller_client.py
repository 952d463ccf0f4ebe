"""Requests of this broker to the controller: AlterPartition (kafka.server.AlterPartitionManager)."""

import asyncio
import logging
from collections.abc import Mapping
from uuid import UUID

from onceflow.broker.cluster.controller import AlteredPartition
from onceflow.broker.cluster.metadata import RegistryMetadata
from onceflow.broker.cluster.replication import Altered, Committed, IsrRequest
from onceflow.broker.cluster.state import State
from onceflow.broker.cluster.to_controller import NoController, ToController
from onceflow.wire import apis
from onceflow.wire.errors import ErrorCode, WireError
from onceflow.wire.frames import request_class
from onceflow.wire.messages import message_of

logger = logging.getLogger(__name__)

ALTER_PARTITION_VERSION = 3


class ControllerClient:
    """Sends to the controller, or asks it directly if it is this broker."""

    def __init__(self, broker_id: int, controller: ToController, metadata: RegistryMetadata) -> None:
        self._broker_id = broker_id
        self._controller = controller
        self._metadata = metadata
        self._tasks: set[asyncio.Task[None]] = set()

    def alter_partition(self, request: IsrRequest, altered: Altered) -> None:
        """Ask for other in-sync replicas of one partition; `altered` is called once with the response."""
        if self._metadata.is_controller:
            self._alter_here(request, altered)
            return
        task = asyncio.get_running_loop().create_task(self._alter(request, altered))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Close the connection; requests in flight get no response."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._controller.close()

    def _alter_here(self, request: IsrRequest, altered: Altered) -> None:
        key = request.topic_id, request.partition
        wish = AlteredPartition(request.leader_epoch, tuple(request.isr), request.partition_epoch, False)

        def respond(results: Mapping[tuple[UUID, int], State | ErrorCode] | ErrorCode) -> None:
            result = results if isinstance(results, ErrorCode) else results[key]
            if isinstance(result, ErrorCode):
                altered(result)
            else:
                altered(Committed(result.isr, result.leader_epoch, result.version))

        self._metadata.requests.alter_partitions(self._broker_id, self._metadata.broker_epoch, {key: wish}, respond)

    async def _alter(self, request: IsrRequest, altered: Altered) -> None:
        try:
            result = await self._exchange(request)
        except NoController:
            result = ErrorCode.not_controller
        except (OSError, EOFError, WireError) as error:
            logger.info("the controller did not respond to AlterPartition: %r", error)
            result = ErrorCode.network_exception
        altered(result)

    async def _exchange(self, request: IsrRequest) -> Committed | ErrorCode:
        partition = {
            "partition_index": request.partition,
            "leader_epoch": request.leader_epoch,
            "new_isr_with_epochs": [{"broker_id": broker_id, "broker_epoch": -1} for broker_id in request.isr],
            "leader_recovery_state": 0,
            "partition_epoch": request.partition_epoch,
        }
        message = message_of(
            request_class(apis.ALTER_PARTITION, ALTER_PARTITION_VERSION),
            {
                "broker_id": self._broker_id,
                "broker_epoch": self._metadata.broker_epoch,
                "topics": [{"topic_id": request.topic_id, "partitions": [partition]}],
            },
        )
        response = await self._controller.exchange(message)
        if response.error_code:
            return ErrorCode(response.error_code)
        altered = response.topics[0].partitions[0]
        if altered.error_code:
            return ErrorCode(altered.error_code)
        return Committed(altered.isr, altered.leader_epoch, altered.partition_epoch)
