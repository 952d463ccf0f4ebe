"""HTTP server of `onceflow serve`: uvicorn with a limit of connections, and a time limit for every request's head."""

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from onceflow.clicks.ingest.appender import Appender
from onceflow.clicks.ingest.endpoint import Endpoint, create_app
from onceflow.errors import OnceflowError
from onceflow.http_server import Server

HEAD_SECONDS = 10.0
"""Time for the first byte of a request until its headers are complete, and for a response to be read."""
REPORT_SECONDS = 60.0
_FULL = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


class ProducerFailed(OnceflowError):
    """Error after which the producer cannot continue."""


def bounded(connections_max: int, head_seconds: float = HEAD_SECONDS) -> type[H11Protocol]:
    """Return the protocol of a server with these limits."""

    class BoundedProtocol(H11Protocol):
        """Connection that is refused beyond the limit, and closed when its client is too slow."""

        _timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            if len(self.connections) > connections_max:
                transport.write(_FULL)
                transport.close()
            self._watch()

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            self._unwatch()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._watch()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self._watch()

        def _watch(self) -> None:
            """Limit the time of a head; a request whose head is complete has its own limits."""
            if self.cycle is not None and not self.cycle.response_complete:
                self._unwatch()
            elif self._timer is None:
                self._timer = self.loop.call_later(head_seconds, self.transport.abort)

        def _unwatch(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    return BoundedProtocol


class EventServer(Server):
    """Server that also stops when the producer cannot continue, and reports its counts every minute."""

    def __init__(self, config: uvicorn.Config, appender: Appender, report: Callable[[], None]) -> None:
        super().__init__(config)
        self._appender = appender
        self._report = report
        self._reported_s = asyncio.get_running_loop().time()

    async def on_tick(self, counter: int) -> bool:
        """Return whether to stop; called ten times a second."""
        now_s = asyncio.get_running_loop().time()
        if now_s - self._reported_s >= REPORT_SECONDS:
            self._reported_s = now_s
            self._report()
        return await super().on_tick(counter) or self._appender.failure is not None


async def serve(
    listening: socket.socket,
    appender: Appender,
    endpoint: Endpoint,
    report: Callable[[], None],
    *,
    connections_max: int,
    trusted_proxies: str = "",
) -> None:
    """Serve until a signal; what was accepted is acknowledged or refused first. Raises ProducerFailed."""
    options: dict[str, Any] = {"log_level": "error", "access_log": False, "server_header": False, "ws": "none"}
    config = uvicorn.Config(
        create_app(endpoint, appender),
        http=bounded(connections_max),
        proxy_headers=bool(trusted_proxies),
        forwarded_allow_ips=trusted_proxies,
        **options,
    )
    await EventServer(config, appender, report).serve(sockets=[listening])
    if appender.failure is not None:
        raise ProducerFailed(f"the producer cannot continue: {appender.failure}")
