"""HTTP server of the dashboard: uvicorn, until SIGTERM or SIGINT."""

import asyncio
import contextlib
import errno
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator

import uvicorn

from onceflow.dashboard.app import create_app, is_loopback
from onceflow.dashboard.feed import Feed
from onceflow.dashboard.sources import Addresses, CountsSource
from onceflow.errors import OnceflowError
from onceflow.remedies import Remedy


class CannotListen(OnceflowError):
    """Address that is in use, not this machine's, or not permitted."""


class PageServer(uvicorn.Server):
    """Server that first ends the pages' open streams, for which uvicorn would wait indefinitely."""

    def __init__(self, config: uvicorn.Config, feed: Feed) -> None:
        super().__init__(config)
        self._feed = feed

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle the signals that stop the server; uvicorn would raise them again, which aborts the command."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        loop = asyncio.get_running_loop()
        numbers = (signal.SIGTERM, signal.SIGINT)
        for number in numbers:
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the streams, then shut down as uvicorn does."""
        self._feed.end()
        await super().shutdown(sockets)


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket; port 0 is any free one. Raises `CannotListen`."""
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        raise CannotListen(
            f"'{host}' is not an address of this machine ({error.strerror}): {Remedy.THIS_MACHINE}"
        ) from error
    family, _, _, _, address = addresses[0]
    try:
        return socket.create_server(address[:2], family=family, backlog=128)
    except OSError as error:
        raise CannotListen(_why_not(error, host, port)) from error


def _why_not(error: OSError, host: str, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} of {host} is in use: {Remedy.STOP_LISTENER}, or {Remedy.OTHER_PAGE_PORT}"
    if error.errno == errno.EACCES:
        return f"this user has no permission for port {port} of {host}: {Remedy.HIGHER_PORT}"
    return f"cannot listen on port {port} of {host} ({error.strerror}): {Remedy.THIS_MACHINE} {Remedy.FREE_PORT}"


def url(listening: socket.socket) -> str:
    """Return the page's URL; a wildcard address is shown as the loopback address."""
    host, port = listening.getsockname()[:2]
    shown = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{shown}]:{port}" if ":" in shown else f"http://{shown}:{port}"


def serve(
    addresses: Addresses,
    *,
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
        asyncio.run(_serve(addresses, host, listening))


async def _serve(addresses: Addresses, host: str, listening: socket.socket) -> None:
    feed = Feed(addresses)
    config = uvicorn.Config(create_app(feed, host), log_level="warning", access_log=False, server_header=False)
    await PageServer(config, feed).serve(sockets=[listening])
