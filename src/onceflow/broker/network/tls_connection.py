"""A connection with TLS: a handshake first, then frames as on every other connection.

OpenSSL reads from the socket and decrypts a record of up to 16 KiB at a time. What does not fit into the receive buffer
stays in OpenSSL, where the event loop cannot see it, so the connection continues to read by itself. A slice of a
segment is read in chunks and encrypted: sendfile would send it in clear text.
"""

import contextlib
import os
import socket
import ssl
from typing import Any, cast

from onceflow.broker.network.newcomer_connection import NewcomerConnection
from onceflow.broker.network.reply import SendingSlice
from onceflow.broker.security.tls import ListenerTls, UnmappedName

FILE_CHUNK_BYTES = 128 * 1024


class TlsSocket:
    """The server's end of a TLS connection, with the non-blocking methods of a socket that `Connection` calls."""

    __slots__ = ("_encrypted",)

    def __init__(self, client: socket.socket, context: ssl.SSLContext) -> None:
        """Own the client's socket. Raises OSError if the client has disconnected."""
        self._encrypted = context.wrap_socket(client, server_side=True, do_handshake_on_connect=False)

    def do_handshake(self) -> None:
        """Continue the handshake. Raises SSLWantReadError, SSLWantWriteError and OSError."""
        self._encrypted.do_handshake()

    def certificate(self) -> bytes | None:
        """Return the client's certificate, which was verified, in DER."""
        return self._encrypted.getpeercert(binary_form=True)

    def recv_into(self, buffer: memoryview) -> int:
        """Read until the buffer is full or nothing is left; return the number of bytes, 0 after the client's end."""
        count = 0
        try:
            while count < len(buffer):
                read_bytes = self._encrypted.recv_into(buffer[count:])
                if not read_bytes:
                    break
                count += read_bytes
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as error:
            if not count:
                raise BlockingIOError from error
        return count

    def pending(self) -> int:
        """Return how many decrypted bytes are unread."""
        return self._encrypted.pending()

    def send(self, data: bytes | memoryview, _flags: int = 0) -> int:
        """Encrypt and send the first part of the data; return its size."""
        try:
            return self._encrypted.send(data) if data else 0
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as error:
            raise BlockingIOError from error

    def fileno(self) -> int:
        return self._encrypted.fileno()

    def close_descriptor(self) -> None:
        """Close the descriptor alone: nothing is sent."""
        os.close(self._encrypted.detach())

    def close(self) -> None:
        """Send the end of the TLS connection, if that is possible at once, and close the socket."""
        with contextlib.suppress(OSError, ValueError):
            self._encrypted.unwrap()
        self._encrypted.close()


class TlsConnection(NewcomerConnection):
    """A connection that starts with a TLS handshake; its client's certificate is its principal, unless SASL follows."""

    __slots__ = ("_encrypted", "_is_established", "_is_reading_scheduled", "_tls")

    def __init__(self, client: TlsSocket, tls: ListenerTls, *arguments: Any) -> None:
        """`arguments` are those of `Connection` after the client."""
        self._encrypted = client
        self._tls = tls
        self._is_established = self._is_reading_scheduled = False
        super().__init__(cast(socket.socket, client), *arguments)

    # Handshake

    def _read_now(self) -> None:
        if self._is_established:
            super()._read_now()
            self._read_unread_soon()
        else:
            self._shake_hands()

    def _shake_hands(self) -> None:
        try:
            self._encrypted.do_handshake()
            if self._tls.is_authentication:
                self.admit(self._tls.principal(self._encrypted.certificate()))
        except ssl.SSLWantReadError:
            return
        except ssl.SSLWantWriteError:
            self._loop.add_writer(self.fileno(), self._on_handshake_writable)
        except UnmappedName as error:
            self.close(str(error))
        except ssl.SSLError as error:
            self.close(f"the TLS handshake failed: {(error.reason or str(error)).replace('_', ' ').lower()}")
        except OSError as error:
            self._fail(error)
        else:
            self._is_established = True
            self._active_at = self._clock.monotonic()
            self._read_unread_soon()

    def _on_handshake_writable(self) -> None:
        self._loop.remove_writer(self.fileno())
        self._wait_for_turn()

    # Data

    def _read_unread_soon(self) -> None:
        """Continue to read what OpenSSL has decrypted already."""
        may_read = self.is_open and self._is_reading and not self._waits_for_memory
        if may_read and not self._is_reading_scheduled and self._encrypted.pending():
            self._is_reading_scheduled = True
            self._loop.call_soon(self._read_unread)

    def _read_unread(self) -> None:
        self._is_reading_scheduled = False
        if self.is_open and self._is_reading and not self._waits_for_memory:
            self._on_readable()

    def _resume_reading(self) -> None:
        super()._resume_reading()
        self._read_unread_soon()

    def _on_memory_freed(self) -> None:
        super()._on_memory_freed()
        self._read_unread_soon()

    def has_whole_request(self, unread_bytes: int) -> bool:
        """Return whether the request that waits for memory is whole with the bytes in the socket and in OpenSSL."""
        return super().has_whole_request(unread_bytes + self._encrypted.pending())

    def _send_file(self, piece: SendingSlice) -> None:
        size_bytes = min(piece.size_bytes, FILE_CHUNK_BYTES)
        chunk = self._read(SendingSlice(piece.file, piece.position, size_bytes))
        piece.position += size_bytes
        piece.size_bytes -= size_bytes
        if not piece.size_bytes:
            self._unsent.popleft()
        self._unsent.appendleft(chunk)

    def close_descriptor(self) -> None:
        """Close the descriptor in a forked child, without a word to the client, which is the parent's."""
        self._encrypted.close_descriptor()
