"""Server of HTTP: uvicorn until SIGTERM or SIGINT, with limits of connections and of their time."""

import asyncio
import contextlib
import signal
import threading
from collections.abc import Iterator

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_SECONDS = 10.0
"""Time for the first byte of a request until its headers are complete, and for a response to be read."""
_FULL = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


class Server(uvicorn.Server):
    """Server whose stop by a signal is not the abort of the command."""

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
