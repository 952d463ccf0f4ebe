"""The sending half of a connection: responses in the order of their requests, a limited number of bytes in a turn."""

import asyncio
import os
import socket
from collections import deque

from onceflow.broker.config import BrokerConfig
from onceflow.broker.network.reply import Reply, SendingSlice, join_small
from onceflow.broker.network.response_budget import ResponseBudget
from onceflow.log.clock import Clock

_MSG_MORE = getattr(socket, "MSG_MORE", 0)


class SendingHalf:
    """Unsent responses of one connection, and the socket that they go to.

    A response is a list of pieces: bytes, or slices of a segment. Slices are sent by sendfile, resumed when the socket
    is writable again, without entering this process. Small slices are read and joined with the bytes around them: one
    call costs less, and wakes the reader once.
    """

    __slots__ = (
        "_active_at",
        "_clock",
        "_config",
        "_has_writer",
        "_is_blocked",
        "_is_write_scheduled",
        "_loop",
        "_pending",
        "_response_budget",
        "_socket",
        "_turn_bytes_left",
        "_unsent",
        "is_open",
        "unsent_bytes",
    )

    def __init__(
        self, client: socket.socket, config: BrokerConfig, response_budget: ResponseBudget, clock: Clock
    ) -> None:
        self.is_open = True
        self._socket = client
        self._config = config
        self._response_budget = response_budget
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._pending: deque[Reply] = deque()
        self._unsent: deque[bytes | memoryview | SendingSlice] = deque()
        self.unsent_bytes = 0
        """Responses in memory, including those that wait for an earlier one; slices of files cost none."""
        self._turn_bytes_left = 0
        self._has_writer = False
        self._is_blocked = False
        self._is_write_scheduled = False
        self._active_at = clock.monotonic()

    def write_soon(self) -> None:
        """Continue to send in the next turn of the loop."""
        if not self._is_write_scheduled:
            self._is_write_scheduled = True
            self._loop.call_soon(self._write)

    def _collect(self) -> None:
        """Move the pieces of every response whose turn it is to the unsent ones, small ones joined."""
        small: list[bytes] = []
        while self._pending and self._pending[0].pieces is not None:
            for piece in self._pending.popleft().pieces or ():
                if isinstance(piece, bytes):
                    small.append(piece)
                    continue
                if small:
                    self._unsent.append(b"".join(small))
                    small.clear()
                self._unsent.append(SendingSlice(piece.file, piece.position, piece.size_bytes))
        if small:
            # One piece alone is not copied.
            self._unsent.append(b"".join(small))

    def _send(self) -> None:
        self._turn_bytes_left = self._config.turn_sent_bytes_max
        try:
            while self._unsent and self._turn_bytes_left > 0 and not self._is_blocked:
                self._send_first()
            if self._unsent and not self._is_blocked:
                self.write_soon()
        except (BlockingIOError, InterruptedError):
            self._wait_until_writable()
        except OSError as error:
            self._fail(error)
        if self._turn_bytes_left < self._config.turn_sent_bytes_max:
            self._active_at = self._clock.monotonic()

    def _send_first(self) -> None:
        if len(self._unsent) > 1:
            joined = join_small(self._unsent, self._read)
            if joined:
                self._unsent.appendleft(joined)
        piece = self._unsent[0]
        if isinstance(piece, SendingSlice):
            self._send_file(piece)
            return
        flags = _MSG_MORE if len(self._unsent) > 1 else 0
        count = self._socket.send(piece, flags)
        self.unsent_bytes -= count
        self._response_budget.used_bytes -= count
        self._turn_bytes_left -= count
        if count == len(piece):
            self._unsent.popleft()
        else:
            self._unsent[0] = memoryview(piece)[count:]

    def _read(self, piece: SendingSlice) -> bytes:
        data = piece.file.read(piece.size_bytes, piece.position)
        if len(data) < piece.size_bytes:
            raise OSError(f"file is {piece.size_bytes - len(data)} bytes shorter than the response needs")
        self.unsent_bytes += len(data)
        self._response_budget.add(len(data))
        return data

    def _send_file(self, piece: SendingSlice) -> None:
        try:
            descriptor = piece.file.fileno()
        except OSError:
            # A file of a test's disk has no descriptor to send from.
            self._unsent[0] = self._read(piece)
            return
        wanted = min(piece.size_bytes, self._turn_bytes_left)
        count = os.sendfile(self._socket.fileno(), descriptor, piece.position, wanted)
        if not count:
            raise OSError(f"file is {piece.size_bytes} bytes shorter than the response needs")
        self._turn_bytes_left -= count
        piece.position += count
        piece.size_bytes -= count
        if not piece.size_bytes:
            self._unsent.popleft()
        elif count < wanted:
            # The socket is full: another call would only report that.
            self._wait_until_writable()

    def _wait_until_writable(self) -> None:
        self._is_blocked = True
        if not self._has_writer:
            self._has_writer = True
            self._loop.add_writer(self._socket.fileno(), self._on_writable)

    def _on_writable(self) -> None:
        """Continue to send. A large response fills the socket several times: stay registered until none is blocked."""
        self._is_blocked = False
        self._write()
        if self.is_open and not self._is_blocked:
            self._has_writer = False
            self._loop.remove_writer(self._socket.fileno())

    def _write(self) -> None:
        """Send what can be sent, and continue with requests."""
        raise NotImplementedError

    def _fail(self, error: OSError) -> None:
        """Close after a failure of the socket or the file."""
        raise NotImplementedError
