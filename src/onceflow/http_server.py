"""Server of HTTP: uvicorn until SIGTERM or SIGINT."""

import asyncio
import contextlib
import signal
import threading
from collections.abc import Iterator

import uvicorn


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
