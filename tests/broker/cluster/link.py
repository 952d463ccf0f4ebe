"""A network between a process and a server, which a test ends and opens again."""

import socket
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

from onceflow import services


class Link:
    """Forwards connections to a port while it is open; `cut` ends them and refuses others."""

    def __init__(self, upstream_port: int) -> None:
        self._upstream_port = upstream_port
        self.port = services.free_port()
        self._listener: socket.socket | None = None
        self._ends: list[socket.socket] = []
        self._threads: list[threading.Thread] = []

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def open(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self._run(self._accept, self._listener)

    def cut(self) -> None:
        """End all connections; return when nothing more is forwarded."""
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        while self._threads:
            for end in self._ends:
                _shut(end)
            self._threads.pop().join(timeout=10)
        for end in self._ends:
            end.close()
        self._ends.clear()

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cut()

    def _run(self, work: object, *arguments: object) -> None:
        assert callable(work)
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            self._ends.append(client)
            try:
                upstream = socket.create_connection(("127.0.0.1", self._upstream_port))
            except OSError:
                _shut(client)
                continue
            self._ends.append(upstream)
            self._run(_forward, self._copy_requests, client, upstream)
            self._run(_forward, _copy, upstream, client)

    def _copy_requests(self, client: socket.socket, upstream: socket.socket) -> None:
        """Send on what the client sends, until it closes."""
        _copy(client, upstream)


def _copy(source: socket.socket, target: socket.socket) -> None:
    while data := source.recv(65536):
        target.sendall(data)


def _forward(
    copy: Callable[[socket.socket, socket.socket], None], source: socket.socket, target: socket.socket
) -> None:
    try:
        copy(source, target)
    except OSError:
        pass
    finally:
        _shut(source)
        _shut(target)


def _shut(end: socket.socket) -> None:
    try:
        end.shutdown(socket.SHUT_RDWR)
    except OSError:
        return
