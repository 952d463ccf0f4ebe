"""Requests of a broker to the controller (kafka.server.NodeToControllerChannelManager)."""

import asyncio
from typing import Any

from onceflow.broker.cluster.peer import Peer
from onceflow.broker.cluster.view import ClusterView
from onceflow.broker.config import Endpoint


class NoController(ConnectionError):
    """The cluster has no controller that this broker knows."""


class ToController:
    """A connection to the controller that the cluster's view names. Requests wait for those before them."""

    def __init__(self, view: ClusterView, client_id: str) -> None:
        self._view = view
        self._client_id = client_id
        self._peer: Peer | None = None
        self._connected_to: Endpoint | None = None
        self._sending = asyncio.Lock()

    async def exchange(self, message: Any) -> Any:
        """Return the controller's response. Raises NoController, OSError, EOFError, WireError."""
        async with self._sending:
            address = self._view.inter_broker_address(self._view.controller_id)
            if address is None:
                raise NoController("no controller is known")
            if self._peer is None or address != self._connected_to:
                self.close()
                self._connected_to = address
                self._peer = Peer(lambda: address, self._client_id, connect=self._view.connect)
            return await self._peer.exchange(message)

    def close(self) -> None:
        """Close the connection; another request opens a new one."""
        if self._peer is not None:
            self._peer.close()
