"""HTTP server of the dashboard: uvicorn, until SIGTERM or SIGINT."""

import asyncio
import contextlib
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette

from onceflow.dashboard.api.service import Service
from onceflow.dashboard.app import create_app
from onceflow.dashboard.feed import Feed
from onceflow.dashboard.login import NO_LOGIN, Login
from onceflow.dashboard.sources import Addresses, CountsSource
from onceflow.errors import OnceflowError
from onceflow.http_server import Server, bounded
from onceflow.listening import is_loopback, listen, url
from onceflow.remedies import Remedy

CONNECTIONS_MAX = 500
HTTP: dict[str, Any] = {
    "log_config": None,  # Errors go to the log of the command.
    "log_level": "error",
    "access_log": False,
    "server_header": False,
    "ws": "none",
    # A login compares the address of the connection itself.
    "proxy_headers": False,
}


class LoginMissing(OnceflowError):
    """A server beyond loopback without a login."""


class PageServer(Server):
    """Server that first ends the pages' open streams, for which uvicorn would wait indefinitely."""

    def __init__(self, config: uvicorn.Config, feed: Feed) -> None:
        super().__init__(config)
        self._feed = feed

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the streams, then shut down as uvicorn does."""
        self._feed.end()
        await super().shutdown(sockets)


def serve(
    addresses: Addresses,
    *,
    archive: Path | None = None,
    links: Sequence[tuple[str, str]] = (),
    login: Login = NO_LOGIN,
    server_names: Sequence[str] = (),
    host: str = "127.0.0.1",
    port: int = 8080,
    announce: Callable[[str], None] = print,
) -> None:
    """Serve the page until a signal. `announce` receives the address.

    Raises CannotListen, LoginMissing beyond loopback, and OtherJob if the counts are not those of 'onceflow run'.
    """
    with contextlib.closing(CountsSource(addresses)) as counts:
        counts.refuse_other_job()
    with listen(host, port) as listening:
        address = str(listening.getsockname()[0])
        if login is NO_LOGIN and not is_loopback(address):
            raise LoginMissing(
                f"{address} is reachable from other machines, which could read all events: {Remedy.REQUIRE_LOGIN}"
            )
        announce(f"dashboard on {url(listening)}")

        def new_app(feed: Feed) -> Starlette:
            service = Service(feed, addresses, archive, links=links)
            return create_app(feed, host if is_loopback(host) else address, service, login, server_names)

        asyncio.run(_serve(addresses, new_app, listening))


async def _serve(addresses: Addresses, new_app: Callable[[Feed], Starlette], listening: socket.socket) -> None:
    feed = Feed(addresses)
    config = uvicorn.Config(new_app(feed), http=bounded(CONNECTIONS_MAX), **HTTP)
    await PageServer(config, feed).serve(sockets=[listening])
