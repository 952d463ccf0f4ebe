"""Items for another broker: joined in batches, returned when there is no response."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from onceflow.broker.cluster import batches
from onceflow.broker.cluster.batches import BrokerQueue
from onceflow.broker.cluster.peer import connect_plaintext
from onceflow.broker.config import Endpoint

ADDRESS = Endpoint("127.0.0.1", 1, "PLAINTEXT")


class Network:
    """A broker behind `BrokerQueue`: each exchange waits for the test's response, or its error."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.requests: list[list[int]] = []
        self.responses: asyncio.Queue[Any] = asyncio.Queue()
        self.settled: list[tuple[list[int], Any]] = []
        monkeypatch.setattr(batches, "Peer", lambda *_arguments, **_options: self)
        self.is_open = False

    async def exchange(self, message: list[int]) -> Any:
        self.requests.append(message)
        response = await self.responses.get()
        if isinstance(response, Exception):
            raise response
        return response

    def close(self) -> None: ...

    def settle(self, items: Sequence[int], response: Any) -> None:
        self.settled.append((list(items), response))

    def open(self, build: Callable[[Sequence[int]], Any] = list) -> BrokerQueue[int]:
        return BrokerQueue(ADDRESS, "test", build, self.settle, connect_plaintext)


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def test_items_wait_for_the_request_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        network = Network(monkeypatch)
        queue = network.open()
        queue.add(1)
        await turns()
        queue.add(2)
        queue.add(3)
        await turns()
        assert network.requests == [[1]]
        network.responses.put_nowait("first")
        await turns()
        assert network.requests == [[1], [2, 3]]
        network.responses.put_nowait("second")
        await turns()
        assert network.settled == [([1], "first"), ([2, 3], "second")]
        queue.close()

    asyncio.run(run())


@pytest.mark.parametrize("error", [ConnectionResetError(), TimeoutError(), EOFError(), ValueError()])
def test_items_return_without_response(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    async def run() -> None:
        network = Network(monkeypatch)
        queue = network.open()
        queue.add(1)
        network.responses.put_nowait(error)
        await turns()
        assert network.settled == [([1], None)]
        queue.add(2)
        network.responses.put_nowait("second")
        await turns()
        assert network.settled[1:] == [([2], "second")]
        queue.close()

    asyncio.run(run())


def test_idle_connection_is_opened_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        network = Network(monkeypatch)
        network.is_open = True
        queue = network.open()
        queue.add(1)
        network.responses.put_nowait(ConnectionResetError())
        network.responses.put_nowait("response")
        await turns()
        assert network.requests == [[1], [1]]
        assert network.settled == [([1], "response")]
        queue.close()

    asyncio.run(run())


def test_closed_queue_returns_its_items(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        network = Network(monkeypatch)
        queue = network.open()
        queue.add(1)
        await turns()
        queue.add(2)
        await asyncio.gather(queue.close(), return_exceptions=True)
        assert network.settled == [([1, 2], None)]

    asyncio.run(run())
