"""A broker in this process on a real socket, with a clock or disk that the test controls."""

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self, TypeVar

from onceflow.broker.config import Endpoint
from onceflow.broker.node import BrokerConfig, Node
from onceflow.broker.server import Broker
from onceflow.log.clock import Clock
from onceflow.log.disk import Disk
from onceflow.log.partition import PartitionLog
from onceflow.testing import FaultyDisk, ManualClock, PowerCut
from tests.broker.raw_client import RawClient

T = TypeVar("T")

WAIT_SECONDS = 20.0


class InnerBroker:
    """Starts and stops in a `with`, its event loop in a thread of its own; `settings` are fields of BrokerConfig."""

    def __init__(self, data: Path, *, disk: Disk | None = None, clock: Clock | None = None, **settings: Any) -> None:
        self.data = data
        self.disk = disk
        self.clock = clock
        self.bootstrap = ""
        self.addresses: dict[str, str] = {}
        """HOST:PORT by the listener's name; `bootstrap` is that of the first."""
        self._settings = settings
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._broker: Broker | None = None

    def start(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(lambda _loop, _context: None)
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        config = BrokerConfig(self.data, **({"listeners": (Endpoint(port=0),)} | self._settings))
        self._broker = Broker(config, disk=self.disk, clock=self.clock)
        try:
            asyncio.run_coroutine_threadsafe(self._broker.start(), self._loop).result(WAIT_SECONDS)
        except BaseException:
            self._end_loop()
            raise
        self.addresses = {endpoint.listener: f"127.0.0.1:{endpoint.port}" for endpoint in self._broker.endpoints}
        self.bootstrap = next(iter(self.addresses.values()))

    def stop(self) -> None:
        """Stop cleanly; without power, end the threads and close the files without a sync."""
        assert self._loop is not None
        assert self._broker is not None
        try:
            with suppress(PowerCut):
                asyncio.run_coroutine_threadsafe(self._broker.stop(), self._loop).result(WAIT_SECONDS)
        finally:
            self._end_loop()

    def power_cycle(self, seed: int, *, drop_all: bool = False) -> None:
        """Cut the power, end the broker, which can no longer sync, and start it on the data that the disk kept."""
        assert isinstance(self.disk, FaultyDisk)
        self.disk.cut_power()
        self.stop()
        self.disk.crash(seed, drop_all=drop_all)
        self.start()

    def _end_loop(self) -> None:
        assert self._loop is not None
        assert self._thread is not None
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def call(self, function: Callable[[Node], T]) -> T:
        """Return the function's result, called in the broker's loop."""

        async def called(node: Node) -> T:
            return function(node)

        return self.run(called)

    def run(self, function: Callable[[Node], Coroutine[Any, Any, T]]) -> T:
        """Return the result of a coroutine in the broker's loop."""
        assert self._broker is not None
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(function(self._broker.node), self._loop).result(WAIT_SECONDS)

    def log(self, topic: str, partition: int = 0) -> PartitionLog:
        def find(node: Node) -> PartitionLog:
            opened = node.partitions.get(topic, partition)
            assert opened is not None
            return opened.log

        return self.call(find)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self.stop()


class DrivenBroker(InnerBroker):
    """A broker under a manual clock.

    No connection is closed as idle or stalled unless the settings require it: a test may let hours pass at once,
    without time for its client to send.
    """

    clock: ManualClock

    def __init__(
        self, data: Path, *, disk: Disk | None = None, clock: ManualClock | None = None, **settings: Any
    ) -> None:
        patient = {"connections_idle_max_ms": -1, "request_stalled_max_ms": -1, "request_bytes_per_second_min": 0}
        super().__init__(data, disk=disk, clock=clock or ManualClock(), **(patient | settings))


class PoweredBroker(InnerBroker):
    """A broker on a disk that can lose its power, with the real clock."""

    disk: FaultyDisk

    def __init__(self, disk: FaultyDisk, data: Path) -> None:
        super().__init__(data, disk=disk, reserve_bytes=4096)


@contextmanager
def hung_up_without_power(disk: FaultyDisk, *clients: RawClient) -> Iterator[None]:
    """Close the clients' connections: a broker without power never responds, and no client must be left waiting."""
    is_over = threading.Event()

    def watch() -> None:
        while not is_over.wait(0.002):
            if disk.is_off:
                # Time in which a response would have come.
                is_over.wait(0.2)
                for client in clients:
                    with suppress(OSError):  # the broker may have reset the connection
                        client.socket.shutdown(socket.SHUT_RDWR)
                return

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def eventually(condition: Callable[[], T], what: str) -> T:
    """Wait until it is true; the broker's periodic work has a tick of a quarter of a second."""
    deadline = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline:
        result = condition()
        if result:
            return result
        time.sleep(0.02)
    raise AssertionError(f"not within {WAIT_SECONDS} s: {what}")
