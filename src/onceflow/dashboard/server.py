"""HTTP server of the dashboard: uvicorn, until SIGTERM or SIGINT."""

import asyncio
import contextlib
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import uvicorn

from onceflow.dashboard.api.service import Service
from onceflow.dashboard.app import create_app
from onceflow.dashboard.feed import Feed
from onceflow.dashboard.sources import Addresses, CountsSource
from onceflow.http_server import Server
from onceflow.listening import is_loopback, listen, url


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
    host: str = "127.0.0.1",
    port: int = 8080,
    announce: Callable[[str], None] = print,
    warn: Callable[[str], None] = lambda text: print(text, file=sys.stderr),
) -> None:
    """Serve the page until a signal. `announce` receives the address, `warn` a warning.

    Raises CannotListen, and OtherJob if the counts are not those of 'onceflow run'.
    """
    with contextlib.closing(CountsSource(addresses)) as counts:
        counts.refuse_other_job()
    with listen(host, port) as listening:
        announce(f"dashboard on {url(listening)}")
        if not is_loopback(host):
            warn(f"warning: {host} is reachable from other machines, and the page has no authentication")
        asyncio.run(_serve(addresses, archive, links, host, listening))


async def _serve(
    addresses: Addresses,
    archive: Path | None,
    links: Sequence[tuple[str, str]],
    host: str,
    listening: socket.socket,
) -> None:
    feed = Feed(addresses)
    app = create_app(feed, host, Service(feed, addresses, archive, links=links))
    config = uvicorn.Config(app, log_level="warning", access_log=False, server_header=False)
    await PageServer(config, feed).serve(sockets=[listening])
