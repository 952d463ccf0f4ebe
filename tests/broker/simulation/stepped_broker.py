"""A whole broker without sockets, threads and waiting: its owner decides what happens next.

Requests are frames and go through the broker's own header parser, dispatch and handlers. The event loop takes its time
from a manual clock and makes one turn per call. The broker's threads are queues; the owner decides when their next
piece of work is done. The same decisions in the same order give the same results.
"""

import asyncio
import contextlib
import heapq
import logging
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any
from unittest import mock

from onceflow.broker import node
from onceflow.broker.config import Endpoint
from onceflow.broker.network.connection import Handle
from onceflow.broker.network.reply import Reply
from onceflow.broker.node import BrokerConfig, Node
from onceflow.broker.security.principal import ANONYMOUS
from onceflow.broker.server import Broker
from onceflow.broker.storage import group_commit, log_cleaner
from onceflow.log.disk import Disk
from onceflow.testing import ManualClock, PowerCut
from onceflow.wire.errors import WireError

CLOSED = b""


class SteppedLoop(asyncio.BaseEventLoop):
    """An event loop that makes one turn per call, with the time of a manual clock."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self._clock = clock
        self.readers: dict[int, Callable[[], None]] = {}
        self._selector = self

    def time(self) -> float:
        return self._clock.monotonic()

    def select(self, _timeout: float | None) -> list[object]:
        """The loop is its own selector, of nothing."""
        return []

    def _process_events(self, _events: object) -> None:
        """There are none."""

    def _write_to_self(self) -> None:
        """Do nothing: the loop never sleeps."""

    def add_reader(self, descriptor: int, callback: Callable[[], None], *_arguments: Any) -> None:  # type: ignore[override]
        self.readers[descriptor] = callback

    def remove_reader(self, descriptor: Any) -> bool:
        return self.readers.pop(descriptor, None) is not None

    def remove_writer(self, _descriptor: Any) -> bool:
        return False

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Let it be the running loop for what calls into the broker from outside."""
        asyncio._set_running_loop(self)
        try:
            yield
        finally:
            asyncio._set_running_loop(None)

    def turn(self) -> None:
        """Everything that is ready now, once."""
        with self.running():
            self._run_once()  # type: ignore[attr-defined]

    @property
    def is_idle(self) -> bool:
        return not self._ready  # type: ignore[attr-defined]

    def next_timer(self) -> float | None:
        """When the earliest timer is due."""
        scheduled = [item for item in self._scheduled if not item.cancelled()]  # type: ignore[attr-defined]
        return heapq.nsmallest(1, scheduled)[0].when() if scheduled else None


class SteppedThread(Executor):
    """Stands in for WorkThread: a queue, of which `step` does the next piece of work."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.work: deque[tuple[Future[Any], Callable[[], Any]]] = deque()

    def submit(self, work: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        outcome: Future[Any] = Future()
        self.work.append((outcome, lambda: work(*arguments, **named)))
        return outcome

    def step(self) -> None:
        outcome, work = self.work.popleft()
        if outcome.set_running_or_notify_cancel():
            try:
                outcome.set_result(work())
            except Exception as error:  # noqa: BLE001 - raised by the caller
                outcome.set_exception(error)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        while self.work:
            self.step()


class SteppedRounds(SteppedThread):
    """Stands in for RoundThread: the end of a round is what the loop does next."""

    def __init__(self, name: str, loop: SteppedLoop, end: Callable[[Any], None]) -> None:
        super().__init__(name)
        self._loop = loop
        self._end = end

    def begin(self, work: Callable[[], Any]) -> None:
        self.submit(lambda: self._loop.call_soon(self._end, work()))

    def close(self) -> None:
        self.shutdown()


class Line:
    """A client's connection for the broker: each response goes to its callback, in any order."""

    peer = "simulated:1"
    peer_host = "127.0.0.1"
    endpoint = Endpoint(port=1)
    principal = ANONYMOUS

    def __init__(self, response: Callable[[bytes], None]) -> None:
        self._respond = response
        self.is_open = True

    def enqueue_response(self, pieces: Any) -> None:
        data = b"".join(
            piece if isinstance(piece, bytes) else piece.file.read(piece.size_bytes, piece.position) for piece in pieces
        )
        self._respond(data[4:])

    def close(self, _reason: str | None) -> None:
        self.is_open = False
        self._respond(CLOSED)


class Unexpected(logging.Handler):
    """Errors that the broker logs and no fault explains; it takes the place of all other handlers."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            self.note(record.getMessage(), error)

    def note(self, what: str, error: object) -> None:
        # An OSError is the disk's, which the one who holds it lets fail.
        if not isinstance(error, PowerCut | OSError):
            self.found.append(f"{what}: {error!r}")

    @contextlib.contextmanager
    def listening(self) -> Iterator["Unexpected"]:
        logger = logging.getLogger("onceflow")
        with mock.patch.multiple(logger, handlers=[self], propagate=False, level=logging.ERROR):
            logging.Logger.manager._clear_cache()  # type: ignore[attr-defined]
            yield self
        logging.Logger.manager._clear_cache()  # type: ignore[attr-defined]


RESERVE_BYTES = 300
"""Small, so that a full disk exhausts it."""


class SteppedBroker:
    """One life of a broker, from its start to `stop` or `drop`."""

    def __init__(self, data: Path, *, disk: Disk, clock: ManualClock, unexpected: Unexpected, **settings: Any) -> None:
        """Recovers what is in `data`. Raises what Node.open raises."""
        self.clock = clock
        self.threads: list[SteppedThread] = []
        self.loop = SteppedLoop(clock)
        self.unexpected = unexpected
        self._is_unlocked = False
        self.loop.set_exception_handler(self._note)
        config = BrokerConfig(data, **({"reserve_bytes": RESERVE_BYTES} | settings))
        self._broker = Broker(config, disk=disk, clock=clock)
        try:
            with self.loop.running(), self._stepped_threads():
                opened = self._broker._node = Node.open(config, disk=disk, clock=clock)
                opened.transactions.resume()
                opened.group_shards.load()
                opened.housekeeping.start()
                self._broker._on_tick()
        except BaseException:
            self.drop()
            raise

    @property
    def node(self) -> Node:
        return self._broker.node

    @contextlib.contextmanager
    def _stepped_threads(self) -> Iterator[None]:
        def made(name: str) -> SteppedThread:
            self.threads.append(SteppedThread(name))
            return self.threads[-1]

        def rounds_made(name: str, end: Callable[[Any], None]) -> SteppedRounds:
            rounds = SteppedRounds(name, self.loop, end)
            self.threads.append(rounds)
            return rounds

        with contextlib.ExitStack() as patches:
            for module in (node, log_cleaner):
                patches.enter_context(mock.patch.object(module, "WorkThread", made))
            patches.enter_context(mock.patch.object(group_commit, "RoundThread", rounds_made))
            yield

    def _note(self, _loop: object, context: dict[str, Any]) -> None:
        self.unexpected.note(str(context.get("message")), context.get("exception"))

    def handle(self, frame: memoryview, reply: Reply, connection: Any) -> None:
        """Handle a frame, like a connection."""
        self._broker._handle(frame, reply, connection)

    def decode(self, frame: memoryview, connection: Any) -> Generator[int, None, Handle]:
        """Decode a large frame, like a connection."""
        return self._broker._decode(frame, connection)

    def send(self, frame: bytes, response: Callable[[bytes], None]) -> None:
        """Send a frame with its size; `respond` gets the response without its size, b"" if the connection is closed."""
        line: Any = Line(response)
        try:
            with self.loop.running():
                self.handle(memoryview(bytearray(frame))[4:], Reply(line), line)
        except WireError:
            line.close(None)
        except PowerCut:
            raise
        except Exception as error:  # noqa: BLE001 - what a connection would log as a failed request
            self.unexpected.note("a request failed", error)
            line.close(None)

    def busy_threads(self) -> list[SteppedThread]:
        return [thread for thread in self.threads if thread.work]

    def settle(self, turns_max: int = 10_000) -> None:
        """Until nothing is left to do at this moment of the clock."""
        for _ in range(turns_max):
            for thread in self.busy_threads():
                thread.step()
            self.loop.turn()
            if self.loop.is_idle and not self.busy_threads():
                return
        raise AssertionError("the broker never comes to rest")

    def stop(self) -> None:
        """A clean stop."""
        if self._broker._tick is not None:
            self._broker._tick.cancel()
        with self.loop.running():
            task = self.loop.create_task(self.node.close())
        for _ in range(10_000):
            if task.done():
                break
            for thread in self.busy_threads():
                thread.step()
            self.loop.turn()
        self._is_unlocked = task.done()
        task.result()
        self._end_loop()

    def drop(self) -> None:
        """Drop the process without finishing anything. The disk must be without power."""
        for thread in self.threads:
            thread.work.clear()
        for _ in range(20):
            tasks = asyncio.all_tasks(self.loop)
            if not tasks:
                break
            for task in tasks:
                task.cancel()
            self.loop.turn()
        opened = self._broker._node
        if opened is not None:
            for partition in (*opened.partitions, *opened.metadata.partitions):
                partition.log.close_files()
            if not self._is_unlocked:
                opened.directory.close_descriptor()
        self._end_loop()

    def _end_loop(self) -> None:
        self.loop._ready.clear()  # type: ignore[attr-defined]
        self.loop.close()
