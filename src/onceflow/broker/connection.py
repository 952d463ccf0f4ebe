"""One client's connection: frames in, answers out in the order of their requests.

A connection owns its non-blocking socket and is called by the event loop. It reads into one buffer that begins at
4 KiB and grows as a frame's bytes really arrive; a request sees its frame as a view of that buffer, which is valid
only until the handler returns. An answer is a list of pieces, bytes or slices of a segment; the slices go out by
sendfile, resumed when the socket is writable again, and no byte of them enters this process.
"""

import asyncio
import contextlib
import logging
import os
import socket
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from onceflow.log.disk import File
from onceflow.wire.errors import WireError

logger = logging.getLogger(__name__)

BUFFER_BYTES_FIRST = 4 * 1024
BUFFER_BYTES_STEP = 64 * 1024
BUFFER_BYTES_KEPT = 2 * 1024 * 1024
"""A drained buffer larger than this is given back: one huge frame must not cost its memory for ever."""
FRAME_BYTES_MIN = 8
FRAME_BYTES_MAX = 100 * 1024 * 1024
"""Kafka's `socket.request.max.bytes`."""
PENDING_REQUESTS_MAX = 100
UNSENT_BYTES_MAX = 4 * 1024 * 1024

_MSG_MORE = getattr(socket, "MSG_MORE", 0)


class FileSlice(Protocol):
    """Bytes of a file; holding it keeps the file's descriptor open."""

    @property
    def file(self) -> File: ...
    @property
    def position(self) -> int: ...
    @property
    def size_bytes(self) -> int: ...


Piece = bytes | FileSlice


class Reply:
    """The place of one answer in its connection's order of answers."""

    __slots__ = ("_connection", "on_abandoned", "pieces")

    def __init__(self, connection: "Connection") -> None:
        self._connection = connection
        self.pieces: Sequence[Piece] | None = None
        self.on_abandoned: Callable[[], None] | None = None

    @property
    def is_open(self) -> bool:
        """Whether anybody still waits for the answer."""
        return self._connection.is_open

    def send(self, pieces: Sequence[Piece]) -> None:
        """Answer; `pieces` go out as soon as every earlier answer has. No pieces: no answer (acks=0)."""
        if self.pieces is None:
            self.pieces = pieces
            self._connection.write_soon()

    def close_connection(self, reason: str) -> None:
        """There is no answer that Kafka's protocol has for this: close, as Kafka does."""
        self._connection.close(reason)


@dataclass(slots=True)
class _Sending:
    """A slice on its way out."""

    file: File
    position: int
    size_bytes: int


class Connection:
    """See the module. `handle(frame, reply, connection)` is called for each frame; it may answer later."""

    def __init__(
        self,
        client: socket.socket,
        peer: tuple[Any, ...],
        handle: Callable[[memoryview, Reply, "Connection"], None],
        on_closed: Callable[["Connection"], None],
    ) -> None:
        self.peer_host = str(peer[0])
        self.peer = f"{peer[0]}:{peer[1]}"
        self.is_open = True
        self._socket = client
        self._handle = handle
        self._on_closed = on_closed
        self._loop = asyncio.get_running_loop()
        self._view = memoryview(bytearray(BUFFER_BYTES_FIRST))
        self._begin = self._end = 0
        self._pending: deque[Reply] = deque()
        self._unsent: deque[bytes | memoryview | _Sending] = deque()
        self._unsent_bytes = 0
        self._is_reading = True
        self._is_blocked = False
        self._is_write_scheduled = False
        self._loop.add_reader(client.fileno(), self._on_readable)

    # Reading

    def _on_readable(self) -> None:
        if self._end == len(self._view):
            self._make_room()
        try:
            count = self._socket.recv_into(self._view[self._end :])
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self.close(str(error))
            return
        if not count:
            self.close(None)
            return
        self._end += count
        self._handle_frames()

    def _handle_frames(self) -> None:
        while self.is_open and self._is_reading and self._end - self._begin >= 4:
            size_bytes = int.from_bytes(self._view[self._begin : self._begin + 4], "big", signed=True)
            if not FRAME_BYTES_MIN <= size_bytes <= FRAME_BYTES_MAX:
                self.close(f"a frame of {size_bytes} bytes, allowed are {FRAME_BYTES_MIN} to {FRAME_BYTES_MAX}")
                return
            frame_begin = self._begin + 4
            if self._end - frame_begin < size_bytes:
                break
            self._begin = frame_begin + size_bytes
            self._handle_frame(self._view[frame_begin : self._begin])
            if len(self._pending) >= PENDING_REQUESTS_MAX or self._unsent_bytes >= UNSENT_BYTES_MAX:
                self._pause_reading()
        if self._begin == self._end:
            self._begin = self._end = 0
            if len(self._view) > BUFFER_BYTES_KEPT:
                self._view = memoryview(bytearray(BUFFER_BYTES_STEP))

    def _handle_frame(self, frame: memoryview) -> None:
        reply = Reply(self)
        self._pending.append(reply)
        try:
            self._handle(frame, reply, self)
        except WireError as error:
            self.close(str(error))
        except Exception:
            logger.exception("request of %s failed; its connection is closed", self.peer)
            self.close("the broker failed")

    def _make_room(self) -> None:
        """Move what is there to the buffer's front; if that is no gain, to the front of a larger one."""
        held = self._view[self._begin : self._end]
        if self._begin == 0:
            size_bytes = 4 + int.from_bytes(held[:4], "big")
            larger = max(2 * len(self._view), BUFFER_BYTES_STEP)
            # A full buffer without a whole frame is a large frame; otherwise reading was paused in the middle.
            self._view = memoryview(bytearray(min(larger, size_bytes) if size_bytes > len(held) else larger))
        self._view[: len(held)] = held
        self._begin, self._end = 0, len(held)

    def _pause_reading(self) -> None:
        self._is_reading = False
        self._loop.remove_reader(self._socket.fileno())

    def _resume_reading(self) -> None:
        self._is_reading = True
        self._loop.add_reader(self._socket.fileno(), self._on_readable)
        # Frames that arrived before the pause are in the buffer already: no event will tell of them.
        self._handle_frames()

    # Writing

    def write_soon(self) -> None:
        """Send at the end of this turn of the loop, so that answers that become ready together go out together."""
        if not self._is_write_scheduled:
            self._is_write_scheduled = True
            self._loop.call_soon(self._write)

    def _write(self) -> None:
        self._is_write_scheduled = False
        if not self.is_open:
            return
        self._collect()
        if not self._is_blocked:
            self._send()
        relaxed = len(self._pending) < PENDING_REQUESTS_MAX // 2 and self._unsent_bytes < UNSENT_BYTES_MAX // 2
        if not self._is_reading and relaxed and self.is_open:
            self._resume_reading()

    def _collect(self) -> None:
        """Take over the pieces of every answer whose turn it is, small ones joined."""
        joined = bytearray()
        while self._pending and self._pending[0].pieces is not None:
            for piece in self._pending.popleft().pieces or ():
                if isinstance(piece, bytes):
                    joined += piece
                    continue
                if joined:
                    self._queue(bytes(joined))
                    joined.clear()
                self._unsent.append(_Sending(piece.file, piece.position, piece.size_bytes))
        if joined:
            self._queue(bytes(joined))

    def _queue(self, data: bytes) -> None:
        self._unsent.append(data)
        self._unsent_bytes += len(data)

    def _send(self) -> None:
        try:
            while self._unsent:
                self._send_first()
        except (BlockingIOError, InterruptedError):
            if not self._is_blocked:
                self._is_blocked = True
                self._loop.add_writer(self._socket.fileno(), self._on_writable)
        except OSError as error:
            self.close(str(error))

    def _send_first(self) -> None:
        piece = self._unsent[0]
        if isinstance(piece, _Sending):
            self._send_file(piece)
            return
        flags = _MSG_MORE if len(self._unsent) > 1 else 0
        count = self._socket.send(piece, flags)
        self._unsent_bytes -= count
        if count == len(piece):
            self._unsent.popleft()
        else:
            self._unsent[0] = memoryview(piece)[count:]

    def _send_file(self, piece: _Sending) -> None:
        try:
            descriptor = piece.file.fileno()
        except OSError:
            # A file that is not the operating system's (a test's disk) has no descriptor to send from.
            self._unsent[0] = piece.file.read(piece.size_bytes, piece.position)
            self._unsent_bytes += piece.size_bytes
            return
        count = os.sendfile(self._socket.fileno(), descriptor, piece.position, piece.size_bytes)
        if not count:
            raise OSError(f"the file ended {piece.size_bytes} bytes too early")
        piece.position += count
        piece.size_bytes -= count
        if not piece.size_bytes:
            self._unsent.popleft()

    def _on_writable(self) -> None:
        self._is_blocked = False
        self._loop.remove_writer(self._socket.fileno())
        self._write()

    # The end

    def close(self, reason: str | None) -> None:
        """Close; None as reason is the peer's own, ordinary close."""
        if not self.is_open:
            return
        self.is_open = False
        if reason is not None:
            logger.warning("connection of %s closed: %s", self.peer, reason)
        self._loop.remove_reader(self._socket.fileno())
        self._loop.remove_writer(self._socket.fileno())
        with contextlib.suppress(OSError):
            self._socket.close()
        for reply in self._pending:
            if reply.on_abandoned is not None:
                reply.on_abandoned()
        self._pending.clear()
        self._unsent.clear()
        self._on_closed(self)
