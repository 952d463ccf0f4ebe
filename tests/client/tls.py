"""A certificate authority of the tests, and TLS in front of a plain-text broker."""

import contextlib
import socket
import ssl
import threading
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import trustme
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key

from onceflow.client.addresses import Address

HOST = "localhost"


class Authority:
    """Issues certificates, its own and others, as PEM files in a directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._authority = trustme.CA()
        self.trusted = directory / "trusted.pem"
        self._authority.cert_pem.write_to_path(str(self.trusted))

    def issue(self, name: str, *, file: str = "", **fields: Any) -> Path:
        """Issue a certificate for a host or a user; return the file with its key. `fields` are trustme's."""
        path = self._directory / f"{file or name}.pem"
        path.touch(0o600)
        self._authority.issue_cert(name, **fields).private_key_and_cert_chain_pem.write_to_path(str(path))
        return path

    def client(self, certificate: Path | None = None) -> ssl.SSLContext:
        """Return the TLS context of a client that trusts this authority and may have a certificate."""
        context = ssl.create_default_context(cafile=str(self.trusted))
        if certificate is not None:
            context.load_cert_chain(certificate)
        return context

    def server(self, name: str = HOST, *, asks_for_certificates: bool = False) -> ssl.SSLContext:
        """Return the TLS context of a server of that name."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.issue(name))
        if asks_for_certificates:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(self.trusted)
        return context


def java_key(store: Path) -> Path:
    """Return the file with its key as PKCS#8, the only form that Java reads."""
    key, begin, chain = store.read_text().partition("-----BEGIN CERTIFICATE-----")
    loaded = load_pem_private_key(key.encode(), None)
    java = store.with_suffix(".java.pem")
    java.touch(0o600)
    java.write_text(loaded.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode() + begin + chain)
    return java


class TlsListener:
    """Accepts TLS on its own port and forwards everything to `upstream`, which may be set later."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self.upstream: Address | None = None
        self.accepted = 0
        self._context = context
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = Address(HOST, self._listener.getsockname()[1])
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        for opened in self._sockets:
            _hang_up(opened)
        for thread in self._threads:
            thread.join(timeout=10)
        for opened in [self._listener, *self._sockets]:
            opened.close()

    def _accept(self) -> None:
        while True:
            try:
                plain, _ = self._listener.accept()
            except OSError:
                return
            self._sockets.append(plain)
            try:
                encrypted = self._context.wrap_socket(plain, server_side=True)
            except OSError:
                continue
            self.accepted += 1
            assert self.upstream is not None
            upstream = socket.create_connection(self.upstream)
            self._sockets += [encrypted, upstream]
            for source, target in ((encrypted, upstream), (upstream, encrypted)):
                self._threads.append(threading.Thread(target=_pass_on, args=(source, target)))
                self._threads[-1].start()


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    _hang_up(target)


def _hang_up(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
