"""Listens and serves the page with uvicorn until SIGTERM or SIGINT."""

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
    """The address is taken, not this machine's, or not allowed."""


class PageServer(uvicorn.Server):
    """A server that ends the pages' open streams first: uvicorn would wait for them for ever."""

    def __init__(self, config: uvicorn.Config, feed: Feed) -> None:
        super().__init__(config)
        self._feed = feed

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Take the signals that stop a server; uvicorn would raise them again afterwards, which ends the command."""
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
        """End the streams, then do what uvicorn does."""
        self._feed.end()
        await super().shutdown(sockets)


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket; port 0 is any free one. Raises `CannotListen`."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        raise CannotListen(
            f"'{host}' is no address of this machine ({error.strerror}): {Remedy.THIS_MACHINE}"
        ) from error
    family, _, _, _, address = found[0]
    try:
        return socket.create_server(address[:2], family=family, backlog=128)
    except OSError as error:
        raise CannotListen(_why_not(error, host, port)) from error


def _why_not(error: OSError, host: str, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} of {host} is taken: {Remedy.STOP_LISTENER}, or {Remedy.OTHER_PAGE_PORT}"
    if error.errno == errno.EACCES:
        return f"port {port} of {host} is not allowed to this user: {Remedy.HIGHER_PORT}"
    return f"cannot listen on port {port} of {host} ({error.strerror}): {Remedy.THIS_MACHINE} {Remedy.FREE_PORT}"


def url(listening: socket.socket) -> str:
    """Return the page's address; an address that means every interface is shown as this machine's own."""
    host, port = listening.getsockname()[:2]
    shown = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{shown}]:{port}" if ":" in shown else f"http://{shown}:{port}"


def serve(
    addresses: Addresses,
    *,
    host: str = "127.0.0.1",
    port: int = 8080,
    say: Callable[[str], None] = print,
    warn: Callable[[str], None] = lambda text: print(text, file=sys.stderr),
) -> None:
    """Serve the page until told to stop. `say` gets the address first, `warn` what the user should know.

    Raises CannotListen, and OtherJob where the counts are not those of 'onceflow run'.
    """
    with contextlib.closing(CountsSource(addresses)) as counts:
        counts.refuse_other_job()
    with listen(host, port) as listening:
        say(f"dashboard on {url(listening)}")
        if not is_loopback(host):
            warn(f"warning: {host} is reached from other machines, and the page asks nobody for a password")
        asyncio.run(_serve(addresses, host, listening))


async def _serve(addresses: Addresses, host: str, listening: socket.socket) -> None:
    feed = Feed(addresses)
    config = uvicorn.Config(create_app(feed, host), log_level="warning", access_log=False, server_header=False)
    await PageServer(config, feed).serve(sockets=[listening])
