"""Connections between brokers: one request at a time, a new connection after an error, one controller."""

import asyncio
import struct
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from onceflow.broker.cluster.peer import Limits, Peer
from onceflow.broker.cluster.to_controller import NoController, ToController
from onceflow.broker.cluster.view import ClusterView
from onceflow.broker.config import Endpoint
from onceflow.wire.errors import ErrorCode
from onceflow.wire.frames import REQUEST_HEADER, SIZE_BYTES, encode_response
from onceflow.wire.inter_broker import (
    ControlledShutdownRequest,
    ControlledShutdownResponse,
    UpdateMetadataBroker,
    UpdateMetadataEndpoint,
    UpdateMetadataRequest,
)

REQUEST = ControlledShutdownRequest(broker_id=1, broker_epoch=2)
RESPONSE = ControlledShutdownResponse(error_code=ErrorCode.none, remaining_partitions=())


class OtherBroker:
    """A broker that responds to each request with the next of some changes to a correct response."""

    def __init__(self, *changes: Callable[[bytes], bytes]) -> None:
        self.changes = list(changes)
        self.connections = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while self.changes:
                (size_bytes,) = struct.unpack(">i", await reader.readexactly(SIZE_BYTES))
                frame = await reader.readexactly(size_bytes)
                api_key, _version, correlation_id = REQUEST_HEADER.unpack_from(frame)
                writer.write(self.changes.pop(0)(encode_response(api_key, correlation_id, correlation_id, RESPONSE)))
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()


def unchanged(frame: bytes) -> bytes:
    return frame


def of_another_request(frame: bytes) -> bytes:
    return frame[:4] + struct.pack(">i", 99) + frame[8:]


def too_long(_frame: bytes) -> bytes:
    return struct.pack(">i", 101)


def serving(broker: OtherBroker, test: Callable[[Endpoint], Awaitable[Any]]) -> None:
    async def run() -> None:
        server = await asyncio.start_server(broker.serve, "127.0.0.1", 0)
        try:
            await test(Endpoint(port=server.sockets[0].getsockname()[1]))
        finally:
            server.close()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("change", "message"), [(of_another_request, "response 99 to request 2"), (too_long, "a response of 101 bytes")]
)
def test_wrong_responses_end_the_connection(change: Callable[[bytes], bytes], message: str) -> None:
    broker = OtherBroker(unchanged, change, unchanged)

    async def test(address: Endpoint) -> None:
        peer = Peer(lambda: address, "1", limits=Limits(bytes_max=100))
        assert await peer.exchange(REQUEST) == RESPONSE
        with pytest.raises(OSError, match=message):
            await peer.exchange(REQUEST)
        assert await peer.exchange(REQUEST) == RESPONSE
        peer.close()

    serving(broker, test)
    assert broker.connections == 2


def test_requests_follow_the_controller() -> None:
    """A broker without a controller sends nothing; another controller gets a connection of its own."""
    first, second = OtherBroker(unchanged), OtherBroker(unchanged, unchanged)
    view = ClusterView()

    def adopt(controller_id: int, addresses: list[Endpoint]) -> None:
        brokers = tuple(
            UpdateMetadataBroker(
                id=broker_id,
                rack=None,
                endpoints=(
                    UpdateMetadataEndpoint(
                        port=address.port, host=address.host, listener="PLAINTEXT", security_protocol=0
                    ),
                ),
            )
            for broker_id, address in enumerate(addresses)
        )
        view.apply(
            UpdateMetadataRequest(
                controller_id=controller_id, controller_epoch=1, broker_epoch=1, topic_states=(), live_brokers=brokers
            )
        )

    async def test(address: Endpoint) -> None:
        other = await asyncio.start_server(second.serve, "127.0.0.1", 0)
        addresses = [address, Endpoint(port=other.sockets[0].getsockname()[1])]
        controller = ToController(view, "1")
        with pytest.raises(NoController):
            await controller.exchange(REQUEST)
        adopt(0, addresses)
        assert await controller.exchange(REQUEST) == RESPONSE
        adopt(1, addresses)
        both = await asyncio.gather(controller.exchange(REQUEST), controller.exchange(REQUEST))
        assert both == [RESPONSE, RESPONSE]
        controller.close()
        other.close()

    serving(first, test)
    assert (first.connections, second.connections) == (1, 1)
