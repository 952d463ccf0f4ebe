"""Channels to brokers: requests arrive in their order, each until it has a response, in bounded queues."""

import asyncio
import struct
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from onceflow.broker.cluster import channels
from onceflow.broker.cluster.channels import Channels
from onceflow.broker.cluster.decision import ControlRequest
from onceflow.broker.cluster.state import LiveBroker
from onceflow.broker.config import Endpoint
from onceflow.wire.apis import INTER_BROKER_APIS
from onceflow.wire.errors import ErrorCode
from onceflow.wire.frames import decode_request, encode_response, read_request_header
from onceflow.wire.inter_broker import UpdateMetadataRequest, UpdateMetadataResponse

OWN_ID, OTHER_ID = 1, 2
EPOCH = 7


def request(number: int, broker_id: int = OTHER_ID, epoch: int = EPOCH) -> ControlRequest:
    """Return a request; its number is in the controller's epoch."""
    message = UpdateMetadataRequest(
        controller_id=OWN_ID, controller_epoch=number, broker_epoch=epoch, topic_states=(), live_brokers=()
    )
    return ControlRequest(broker_id, epoch, message)


class OtherBroker:
    """A broker that notes the requests, and ends the connection instead of some responses."""

    def __init__(self, losses: int = 0) -> None:
        self.received: list[int] = []
        self.losses = losses
        self.may_respond = asyncio.Event()
        self.may_respond.set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                (size_bytes,) = struct.unpack(">i", await reader.readexactly(4))
                frame = memoryview(await reader.readexactly(size_bytes))
                header = read_request_header(frame, served=INTER_BROKER_APIS)
                self.received.append(decode_request(frame, header).controller_epoch)
                await self.may_respond.wait()
                if self.losses:
                    self.losses -= 1
                    break
                response = UpdateMetadataResponse(error_code=ErrorCode.none)
                writer.write(encode_response(header.api.key, header.version, header.correlation_id, response))
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()


class Controller:
    """The channels under test, with what they report."""

    def __init__(self) -> None:
        self.delivered: list[Any] = []
        self.responded: list[int] = []
        self.refreshed: list[int] = []
        self.channels = Channels(
            OWN_ID,
            lambda message, _respond: self.delivered.append(message),
            lambda sent, _response: self.responded.append(sent.message.controller_epoch),
            self.refreshed.append,
        )

    async def await_responses(self, count: int) -> None:
        async with asyncio.timeout(30):
            while len(self.responded) < count:
                await asyncio.sleep(0.001)


def run(
    other: Callable[[], OtherBroker], test: Callable[[OtherBroker, Controller, LiveBroker], Awaitable[None]]
) -> None:
    async def with_server() -> None:
        broker = other()
        server = await asyncio.start_server(broker.serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        live = LiveBroker(OTHER_ID, EPOCH, (Endpoint(port=port),), ("PLAINTEXT",))
        controller = Controller()
        controller.channels.follow({OTHER_ID: live})
        try:
            await test(broker, controller, live)
        finally:
            controller.channels.close()
            server.close()

    asyncio.run(with_server())


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channels, "PAUSE_SECONDS_MIN", 0.001)


def test_requests_are_repeated_in_order() -> None:
    async def test(broker: OtherBroker, controller: Controller, _live: LiveBroker) -> None:
        controller.channels.send([request(number) for number in range(3)])
        await controller.await_responses(3)
        assert controller.responded == [0, 1, 2]
        assert broker.received == [0, 0, 0, 1, 2]

    run(lambda: OtherBroker(losses=2), test)


def test_own_requests_need_no_connection() -> None:
    async def test(_broker: OtherBroker, controller: Controller, _live: LiveBroker) -> None:
        controller.channels.send([request(5, OWN_ID)])
        assert [message.broker_epoch for message in controller.delivered] == [channels.UNKNOWN_EPOCH]

    run(OtherBroker, test)


def test_requests_for_a_former_process_are_dropped() -> None:
    async def test(broker: OtherBroker, controller: Controller, live: LiveBroker) -> None:
        controller.channels.send([request(1, epoch=EPOCH - 1), request(2), request(3, broker_id=9)])
        await controller.await_responses(1)
        assert broker.received == [2]
        broker.may_respond.clear()
        controller.channels.send([request(4)])
        returned = LiveBroker(OTHER_ID, EPOCH + 1, live.endpoints, live.protocols)
        controller.channels.follow({OTHER_ID: returned})
        broker.may_respond.set()
        controller.channels.send([request(5, epoch=EPOCH + 1)])
        await controller.await_responses(2)
        assert controller.responded == [2, 5]

    run(OtherBroker, test)


def test_a_long_queue_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channels, "QUEUED_MAX", 2)

    async def test(broker: OtherBroker, controller: Controller, _live: LiveBroker) -> None:
        broker.may_respond.clear()
        controller.channels.send([request(number) for number in range(6)])
        async with asyncio.timeout(30):
            while not broker.received:
                await asyncio.sleep(0.001)
        broker.may_respond.set()
        async with asyncio.timeout(30):
            while not controller.refreshed:
                await asyncio.sleep(0.001)
        controller.channels.send([request(9)])
        async with asyncio.timeout(30):
            while 9 not in controller.responded:
                await asyncio.sleep(0.001)
        assert controller.refreshed == [OTHER_ID]
        assert 5 not in broker.received

    run(OtherBroker, test)
