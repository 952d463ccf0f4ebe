"""The server's end of a TLS connection: limited work in a turn, whatever records a client sends, and all data sent."""

import contextlib
import hmac
import socket
import ssl
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from onceflow.broker.config import SecurityConfig
from onceflow.broker.network.tls_connection import STEPS_PER_READ, TlsSocket
from onceflow.broker.security.tls import ListenerTls
from tests.client.tls import HOST, Authority

HASH = "sha384"
"""That of TLS_AES_256_GCM_SHA384, which OpenSSL prefers."""
KEY_UPDATE = bytes((24, 0, 0, 1, 0))
HANDSHAKE, DATA = 22, 23


def derived(secret: bytes, label: bytes, size_bytes: int) -> bytes:
    """Return HKDF-Expand-Label (RFC 8446, section 7.1) for at most one block of the hash."""
    label = b"tls13 " + label
    info = struct.pack(">HB", size_bytes, len(label)) + label + b"\0"
    return hmac.digest(secret, info + b"\1", HASH)[:size_bytes]


class Peer:
    """A client of TLS 1.3 in this thread, which can also encrypt records by itself."""

    def __init__(self, authority: Authority, directory: Path) -> None:
        context = authority.client()
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        log = directory / "secrets"
        context.keylog_filename = str(log)
        own, self.socket = socket.socketpair()
        for end in (own, self.socket):
            end.setblocking(False)
        server = ListenerTls("A", SecurityConfig(key_store_file=str(authority.issue(HOST))))
        self.server = TlsSocket(own, server.context)
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._encrypted = context.wrap_bio(self._incoming, self._outgoing, server_hostname=HOST)
        steps = [self._encrypted.do_handshake, self.server.do_handshake]
        while steps:
            step = steps.pop(0)
            try:
                step()
            except ssl.SSLWantReadError:
                steps.append(step)
            self.socket.sendall(self._outgoing.read())
            with contextlib.suppress(BlockingIOError):
                self._incoming.write(self.socket.recv(65536))
        line = next(line for line in log.read_text().splitlines() if line.startswith("CLIENT_TRAFFIC_SECRET_0"))
        self._secret = bytes.fromhex(line.split()[2])

    def encrypted(self, data: bytes) -> bytes:
        """Return the record of some data."""
        self._encrypted.write(data)
        return self._outgoing.read()

    def key_update(self) -> bytes:
        """Return the record of a key update, as the first record of the present key."""
        key, nonce = derived(self._secret, b"key", 32), derived(self._secret, b"iv", 12)
        self._secret = derived(self._secret, b"traffic upd", 48)
        content = KEY_UPDATE + bytes((HANDSHAKE,))
        head = struct.pack(">BHH", DATA, 0x303, len(content) + 16)
        return head + AESGCM(key).encrypt(nonce, content, head)

    def received(self) -> bytes:
        """Return the data that has arrived."""
        with contextlib.suppress(BlockingIOError):
            self._incoming.write(self.socket.recv(1 << 20))
        data = b""
        with contextlib.suppress(ssl.SSLWantReadError):
            while True:
                data += self._encrypted.read(1 << 16)
        return data

    def close(self) -> None:
        self.server.close()
        self.socket.close()


@pytest.fixture
def peer(tmp_path: Path) -> Iterator[Peer]:
    with contextlib.closing(Peer(Authority(tmp_path), tmp_path)) as opened:
        yield opened


def test_one_turn_reads_some_small_records(peer: Peer) -> None:
    """A record of one byte costs as much as one of 16 KiB: the others of the loop have their turn in between."""
    peer.socket.sendall(b"".join(peer.encrypted(b"x") for _ in range(1000)))
    buffer = memoryview(bytearray(4096))
    counts: list[int] = []
    while sum(counts) < 1000:
        counts.append(peer.server.recv_into(buffer))
        assert buffer[: counts[-1]] == b"x" * counts[-1]
    assert max(counts) <= STEPS_PER_READ
    with pytest.raises(BlockingIOError):
        peer.server.recv_into(buffer)


def test_few_key_updates_are_followed(peer: Peer) -> None:
    peer.socket.sendall(b"".join(peer.key_update() for _ in range(10)))
    with pytest.raises(BlockingIOError):
        peer.server.recv_into(memoryview(bytearray(100)))


def test_endless_key_updates_end_the_connection(peer: Peer) -> None:
    """OpenSSL alone decrypts them for as long as they arrive."""
    peer.socket.sendall(b"".join(peer.key_update() for _ in range(1000)))
    with pytest.raises(OSError, match="bytes of TLS records without data"):
        peer.server.recv_into(memoryview(bytearray(100)))
    assert len(peer.server._socket.recv(1 << 20)) > 5000, "the rest is unread"


def test_a_full_socket_loses_nothing(peer: Peer) -> None:
    """Encrypted data that waits for the socket is sent later, once."""
    data = bytes(range(256)) * 8192
    sent, received = 0, b""
    while sent < len(data):
        try:
            sent += peer.server.send(memoryview(data)[sent:])
        except BlockingIOError:
            received += peer.received()
            assert len(received) - sent <= 1 << 16
    while len(received) < len(data):
        received += peer.received()
    assert received == data


def test_the_end_follows_the_data(peer: Peer) -> None:
    peer.socket.sendall(peer.encrypted(b"last"))
    peer.socket.shutdown(socket.SHUT_WR)
    buffer = memoryview(bytearray(100))
    assert peer.server.recv_into(buffer) == 4
    assert peer.server.recv_into(buffer) == 0
