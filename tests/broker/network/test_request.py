"""Encoding of responses: at once if short, over several turns of the loop if their arrays are long."""

import asyncio
from typing import Any

import pytest

from onceflow.broker.config import Endpoint
from onceflow.broker.network.reply import Reply
from onceflow.broker.network.request import Request
from onceflow.broker.security.principal import KafkaPrincipal
from onceflow.wire import apis
from onceflow.wire.apis import APIS
from onceflow.wire.errors import ErrorCode
from onceflow.wire.frames import RequestHeader, decode_response

VERSION = 8
CORRELATION_ID = 5


class FakeChannel:
    """A connection that keeps what is sent."""

    endpoint = Endpoint(port=1)
    principal = KafkaPrincipal("User", "ada")

    def __init__(self) -> None:
        self.is_open = True
        self.sent: list[bytes] = []
        self.reasons: list[str | None] = []

    def enqueue_response(self, pieces: Any) -> None:
        self.sent += pieces

    def close(self, reason: str | None) -> None:
        self.is_open = False
        self.reasons.append(reason)


def request_on(channel: FakeChannel) -> Request:
    header = RequestHeader(APIS[apis.OFFSET_COMMIT], VERSION, CORRELATION_ID, "test", 0)
    return Request(header, memoryview(b""), Reply(channel), "127.0.0.1")


def topics(count: int) -> list[dict[str, Any]]:
    partitions = [{"partition_index": index, "error_code": ErrorCode.none} for index in range(count)]
    return [{"name": "t", "partitions": partitions}]


def partitions_in(frame: bytes) -> int:
    correlation_id, response = decode_response(apis.OFFSET_COMMIT, VERSION, frame[4:])
    assert correlation_id == CORRELATION_ID
    return len(response.topics[0].partitions)


async def sent_after(request: Request, response: list[dict[str, Any]], turns: int) -> None:
    request.respond(topics=response)
    for _ in range(turns):
        await asyncio.sleep(0)


def test_a_handler_sees_the_principal() -> None:
    assert str(request_on(FakeChannel()).principal) == "User:ada"


def test_a_short_response_is_sent_at_once() -> None:
    channel = FakeChannel()
    asyncio.run(sent_after(request_on(channel), topics(10), 0))
    assert partitions_in(channel.sent[0]) == 10


def test_a_long_response_takes_several_turns() -> None:
    channel, later = FakeChannel(), FakeChannel()
    asyncio.run(sent_after(request_on(channel), topics(10_000), 5))
    assert not channel.sent
    asyncio.run(sent_after(request_on(later), topics(10_000), 1000))
    assert partitions_in(later.sent[0]) == 10_000


def test_nothing_is_sent_after_a_disconnect() -> None:
    channel = FakeChannel()

    async def leave() -> None:
        await sent_after(request_on(channel), topics(10_000), 1)
        channel.is_open = False
        for _ in range(1000):
            await asyncio.sleep(0)

    asyncio.run(leave())
    assert not channel.sent


def test_an_encoding_failure_closes_the_connection(caplog: pytest.LogCaptureFixture) -> None:
    channel = FakeChannel()
    long = topics(10_000)
    del long[0]["partitions"][-1]["error_code"]
    asyncio.run(sent_after(request_on(channel), long, 1000))
    assert channel.reasons == ["failed to encode the response: 'error_code'"]
    assert "KeyError" in caplog.text
