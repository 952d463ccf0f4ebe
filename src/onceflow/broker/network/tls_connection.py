"""A connection with TLS: a handshake first, then frames as on every other connection.

OpenSSL reads from a socket until there is data. Records without data, such as key updates, would hold the event loop
for as long as a client sends them. So the encrypted bytes go through memory, a limited number in a turn. Data that does
not fit into the receive buffer stays there, where the event loop cannot see it, so the connection continues to read by
itself. A slice of a segment is read in chunks and encrypted: sendfile would send it in clear text.
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
RECORD_BYTES_MAX = 5 + 16 * 1024 + 2048
"""Largest encrypted record, with its header (RFC 5246, section 6.2.3)."""
STEPS_PER_READ = 128
"""Records received and decrypted in one turn of the loop: one of a single byte costs as much as one of 16 KiB."""
ENCRYPTED_BYTES = 64 * 1024
"""Data encrypted at once."""
UNSENT_BYTES_MAX = 256 * 1024
"""Encrypted bytes that wait until the client reads: data, and the responses to key updates."""


class TlsSocket:
    """The server's end of a TLS connection, with the non-blocking methods of a socket that `Connection` calls."""

    __slots__ = ("_accepted_bytes", "_encrypted", "_incoming", "_outgoing", "_socket", "_unsent")

    def __init__(self, client: socket.socket, context: ssl.SSLContext) -> None:
        """Own the client's socket."""
        self._socket = client
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._encrypted = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._unsent = memoryview(b"")
        self._accepted_bytes = 0
        """Size of the data that was encrypted, until all of it is sent."""

    def do_handshake(self) -> None:
        """Continue the handshake. Raises SSLWantReadError, SSLWantWriteError and OSError."""
        with contextlib.suppress(BlockingIOError):
            self._receive()
        try:
            self._encrypted.do_handshake()
        except ssl.SSLWantReadError:
            if self._flush():
                raise
        except ssl.SSLError:
            self._flush()
            raise
        else:
            if self._flush():
                return
        raise ssl.SSLWantWriteError

    def certificate(self) -> bytes | None:
        """Return the client's certificate, which was verified, in DER."""
        return self._encrypted.getpeercert(binary_form=True)

    def recv_into(self, buffer: memoryview) -> int:
        """Read some records; return the number of bytes, 0 after the client's end.

        Raises OSError for a client whose records have no data.
        """
        count = received_bytes = 0
        try:
            for _step in range(STEPS_PER_READ):
                if count == len(buffer):
                    break
                try:
                    read_bytes = cast(int, self._encrypted.read(len(buffer) - count, cast(bytearray, buffer[count:])))
                except ssl.SSLWantReadError:
                    self._flush()
                    if received_bytes >= RECORD_BYTES_MAX:
                        raise OSError(f"{received_bytes} bytes of TLS records without data") from None
                    if received_bytes:
                        break
                    received_bytes = self._receive()
                    continue
                received_bytes = 0
                count += read_bytes
                if not read_bytes:
                    return count
        except ssl.SSLEOFError:
            return count
        except BlockingIOError:
            pass
        if not count:
            raise BlockingIOError
        return count

    def _receive(self) -> int:
        """Receive encrypted bytes, about a record; return their number. Raises BlockingIOError."""
        received = self._socket.recv(RECORD_BYTES_MAX)
        if received:
            self._incoming.write(received)
        else:
            self._incoming.write_eof()
        return len(received)

    def pending(self) -> int:
        """Return how many received bytes are unread."""
        return self._encrypted.pending() + self._incoming.pending

    def send(self, data: bytes | memoryview, _flags: int = 0) -> int:
        """Encrypt and send the first part of the data; return its size. Raises BlockingIOError.

        A part that is not sent to its end is encrypted: the next call continues with it, and needs the same data.
        """
        if data and not self._accepted_bytes and self._flush():
            self._accepted_bytes = self._encrypted.write(memoryview(data)[:ENCRYPTED_BYTES])
        if not self._flush():
            raise BlockingIOError
        count, self._accepted_bytes = self._accepted_bytes, 0
        return count

    def _flush(self) -> bool:
        """Send encrypted bytes; return whether all are sent."""
        if self._outgoing.pending:
            self._unsent = memoryview(bytes(self._unsent) + self._outgoing.read())
        if len(self._unsent) > UNSENT_BYTES_MAX:
            raise OSError(f"{len(self._unsent)} bytes of TLS records are unread")
        if self._unsent:
            with contextlib.suppress(BlockingIOError, InterruptedError):
                self._unsent = self._unsent[self._socket.send(self._unsent) :]
        return not self._unsent

    def fileno(self) -> int:
        return self._socket.fileno()

    def close_descriptor(self) -> None:
        """Close the descriptor alone: nothing is sent."""
        os.close(self._socket.detach())

    def close(self) -> None:
        """Send the end of the TLS connection, if that is possible at once, and close the socket."""
        with contextlib.suppress(OSError, ValueError):
            self._encrypted.unwrap()
        with contextlib.suppress(OSError):
            self._flush()
        self._socket.close()


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
