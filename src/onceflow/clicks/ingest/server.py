"""HTTP server of `onceflow serve`."""

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import uvicorn

from onceflow.clicks.ingest.appender import Appender
from onceflow.clicks.ingest.endpoint import Endpoint, create_app
from onceflow.errors import OnceflowError
from onceflow.http_server import Server, bounded

REPORT_SECONDS = 60.0


class ProducerFailed(OnceflowError):
    """Error after which the producer cannot continue."""


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
    options: dict[str, Any] = {
        "log_config": None,  # Errors go to the log of the command.
        "log_level": "error",
        "access_log": False,
        "server_header": False,
        "ws": "none",
    }
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
