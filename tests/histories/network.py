"""Network between named hosts on this machine: proxies whose traffic a test holds back or refuses.

A flow is the bytes from one host to another, whichever of them has connected. Bytes of a held flow wait, as TCP's do
while packets are lost, and arrive when it is released. A refused pair of hosts has no connections.
"""

import asyncio
import threading
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, NamedTuple, Self

CALL_S_MAX = 60.0


class Flow(NamedTuple):
    """Direction of traffic."""

    source: str
    target: str

    @property
    def back(self) -> "Flow":
        return Flow(self.target, self.source)


class Network:
    """Proxies on a loop in a thread of its own; use as a context."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="network", daemon=True)
        self._servers: list[asyncio.Server] = []
        self._ends: set[_End] = set()
        self._held: set[Flow] = set()
        self._refused: set[Flow] = set()
        self._is_closing = False

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(CALL_S_MAX)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CALL_S_MAX)
        self._loop.close()

    def listen(self, target: str, upstream_port: int, sources: Mapping[str, str], other: str) -> int:
        """Forward connections to `target` at its port; return the port that takes them.

        `sources` has the name of each host by its address; a connection from another address is one of `other`.
        """

        def new_end() -> _End:
            return _End(self, lambda address: Flow(sources.get(address, other), target), upstream_port)

        async def listen() -> int:
            server = await self._loop.create_server(new_end, "127.0.0.1", 0)
            self._servers.append(server)
            port: int = server.sockets[0].getsockname()[1]
            return port

        return asyncio.run_coroutine_threadsafe(listen(), self._loop).result(CALL_S_MAX)

    def hold(self, flows: Iterable[Flow]) -> None:
        """Hold back these flows only."""
        self._call(self._change, set(flows), set[Flow]())

    def refuse(self, flows: Iterable[Flow]) -> None:
        """End the connections between these pairs of hosts, and refuse others."""
        self._call(self._change, set[Flow](), set(flows))

    def release(self) -> None:
        """Let all traffic pass."""
        self._call(self._change, set[Flow](), set[Flow]())

    def _change(self, held: set[Flow], refused: set[Flow]) -> None:
        self._held, self._refused = held, refused | {flow.back for flow in refused}
        for end in list(self._ends):
            end.apply()

    async def _close(self) -> None:
        """Close what is open. A connection that was accepted is a task first, and lost if its server is closed then."""
        self._is_closing = True
        while tasks := asyncio.all_tasks() - {asyncio.current_task()}:
            self._abort_all()
            await asyncio.wait(tasks)
        for server in self._servers:
            server.close()
        self._abort_all()
        await asyncio.sleep(0)

    def _abort_all(self) -> None:
        for end in list(self._ends):
            end.abort()

    def _call(self, call: Callable[..., None], *arguments: Any) -> None:
        async def run() -> None:
            call(*arguments)

        asyncio.run_coroutine_threadsafe(run(), self._loop).result(CALL_S_MAX)


class _End(asyncio.Protocol):
    """One end of a forwarded connection: what arrives here goes to the other end."""

    def __init__(
        self,
        network: Network,
        flow_from: Callable[[str], Flow],
        upstream_port: int | None = None,
        other: "_End | None" = None,
    ) -> None:
        """`flow_from` returns the flow of what arrives, by the address it comes from.

        With `upstream_port` this is a client's end, and the other one is connected when the client is.
        """
        self._network = network
        self._flow_from = flow_from
        self._upstream_port = upstream_port
        self._other = other
        self._transport: Any = None
        self._flow = Flow("", "")
        self._is_full = False
        """Whether the other end's connection takes nothing more now."""
        self._connecting: asyncio.Task[None] | None = None

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        peer = transport.get_extra_info("peername")
        if peer is None or self._network._is_closing:  # A closed connection has no peer.
            self.abort()
            return
        self._flow = self._flow_from(peer[0])
        self._network._ends.add(self)
        self.apply()
        if self._upstream_port is not None:
            self._connecting = self._network._loop.create_task(self._connect(self._upstream_port))

    async def _connect(self, port: int) -> None:
        back = self._flow.back
        other = _End(self._network, lambda _address: back, other=self)
        try:
            await self._network._loop.create_connection(lambda: other, "127.0.0.1", port)
        except OSError:
            self.abort()
        else:
            self._other = other
            self.apply()

    def apply(self) -> None:
        """Read or wait, as the network's state and the other end's buffer require."""
        if self._flow in self._network._refused:
            self.abort()
        elif self._is_full or self._other is None or self._flow in self._network._held:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        assert self._other is not None
        self._other._transport.write(data)

    def pause_writing(self) -> None:
        self._let_other_read(is_full=True)

    def resume_writing(self) -> None:
        self._let_other_read(is_full=False)

    def _let_other_read(self, *, is_full: bool) -> None:
        if self._other is not None:
            self._other._is_full = is_full
            self._other.apply()

    def connection_lost(self, error: Exception | None) -> None:
        self._network._ends.discard(self)
        if self._connecting is not None:
            self._connecting.cancel()
        if self._other is not None:
            self._other._transport.close()

    def abort(self) -> None:
        """Reset the connection, what waits in it included."""
        self._transport.abort()
