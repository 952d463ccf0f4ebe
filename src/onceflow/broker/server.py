"""The broker: a Node behind a listening socket, on one event loop.

In-process use:

    broker = Broker(BrokerConfig(Path("data"), port=0))
    await broker.start()
    ...                         # clients connect to 127.0.0.1:broker.port
    await broker.stop()
"""

import asyncio
import errno
import logging
import socket
from collections.abc import Callable, Mapping
from dataclasses import replace

from onceflow.broker import fetch_handler, metadata_handler, offset_handlers, produce_handler, topic_handlers
from onceflow.broker.connection import Connection, Reply
from onceflow.broker.groups import handlers as groups
from onceflow.broker.node import BrokerConfig, Node
from onceflow.broker.request import Request
from onceflow.errors import OnceflowError
from onceflow.log.clock import Clock
from onceflow.log.disk import Disk
from onceflow.wire import apis
from onceflow.wire.errors import UnsupportedVersion
from onceflow.wire.frames import encode_unsupported_api_versions, read_request_header

logger = logging.getLogger(__name__)

Handler = Callable[[Node, Request], None]

HANDLERS: Mapping[int, Handler] = {
    **produce_handler.HANDLERS,
    **fetch_handler.HANDLERS,
    **offset_handlers.HANDLERS,
    **metadata_handler.HANDLERS,
    **topic_handlers.HANDLERS,
    **groups.HANDLERS,
}
"""API key → what serves it; each module of handlers says which are its own."""

BACKLOG = 1024
ACCEPTS_PER_TURN = 64
ACCEPT_PAUSE_SECONDS = 1.0
GROUP_TICK_SECONDS = 0.25


class CannotListen(OnceflowError):
    """The broker's address cannot be listened on."""


class Broker:
    """One broker. `disk` and `clock` are the real ones unless a test passes its own."""

    def __init__(self, config: BrokerConfig, *, disk: Disk | None = None, clock: Clock | None = None) -> None:
        self.config = config
        self.port = 0
        self._disk = disk
        self._clock = clock
        self._connections: set[Connection] = set()
        self._node: Node | None = None
        self._listener: socket.socket | None = None
        self._tick: asyncio.TimerHandle | None = None

    @property
    def node(self) -> Node:
        assert self._node is not None, "the broker is not started"
        return self._node

    async def start(self) -> None:
        """Recover the data and listen. Raises CannotListen, DataDirectoryRefused, OSError."""
        self._listener = _listen(self.config.host, self.config.port)
        try:
            self.port = self._listener.getsockname()[1]
            self._node = Node.open(replace(self.config, port=self.port), disk=self._disk, clock=self._clock)
        except BaseException:
            self._listener.close()
            raise
        asyncio.get_running_loop().add_reader(self._listener.fileno(), self._accept)
        self._expire_groups()

    async def stop(self) -> None:
        """Close all connections, sync and close all logs."""
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener.fileno())
            self._listener.close()
        if self._tick is not None:
            self._tick.cancel()
        for connection in list(self._connections):
            connection.close(None)
        await self.node.close()

    def _accept(self) -> None:
        assert self._listener is not None
        for _ in range(ACCEPTS_PER_TURN):
            try:
                client, peer = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._pause_accepting(error)
                return
            client.setblocking(False)
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._connections.add(Connection(client, peer, self._handle, self._connections.discard))

    def _pause_accepting(self, error: OSError) -> None:
        """Without a free descriptor the listener stays readable: trying again at once would spin."""
        logger.error("no connection can be accepted for %s s: %s", ACCEPT_PAUSE_SECONDS, error)
        assert self._listener is not None
        loop, listener = asyncio.get_running_loop(), self._listener
        loop.remove_reader(listener.fileno())

        def resume() -> None:
            if listener.fileno() >= 0:
                loop.add_reader(listener.fileno(), self._accept)

        loop.call_later(ACCEPT_PAUSE_SECONDS, resume)

    def _handle(self, frame: memoryview, reply: Reply, connection: Connection) -> None:
        try:
            header = read_request_header(frame)
        except UnsupportedVersion as error:
            if error.api_key != apis.API_VERSIONS:
                raise
            reply.send([encode_unsupported_api_versions(error.correlation_id)])
            return
        HANDLERS[header.api.key](self.node, Request(header, frame, reply, connection.peer_host))

    def _expire_groups(self) -> None:
        try:
            self.node.expire_groups()
        except Exception:
            logger.exception("time-outs of groups failed; they are looked at again in %s s", GROUP_TICK_SECONDS)
        finally:
            self._tick = asyncio.get_running_loop().call_later(GROUP_TICK_SECONDS, self._expire_groups)


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            reason = f"port {port} of {host} is taken; choose another one, or 0 for any free port"
        else:
            reason = f"{host}:{port}: {error}"
        raise CannotListen(f"the broker cannot listen: {reason}") from error
    listener.setblocking(False)
    return listener
