"""One client's connection: frames in, responses out in the order of their requests.

A connection owns its non-blocking socket and is called by the event loop. It reads into one buffer, which starts at
4 KiB and grows as a frame's bytes arrive. A handler gets its frame as a view of that buffer, valid until it returns.
A large request is decoded over several turns of the loop before it is handled, and the handler may leave a rest of its
work to later turns; the buffer does not change meanwhile.

The cost of one connection to the others is bounded: bytes read and sent in one turn of the loop, bytes and time of the
requests that it handles, pending requests and unsent responses. The memory of incoming requests and of unread responses
is bounded over all connections.

A request that waits for other clients or for records (JoinGroup, SyncGroup, Fetch) *parks* its connection: later
requests stay unparsed in the buffer and the socket until its response is ready. Kafka does so after every request: it
mutes the channel until the response is sent. Here requests that wait for the disk do not park: pipelined Produce
requests are appended together and acknowledged by one sync.
"""

import asyncio
import contextlib
import logging
import math
import socket
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

from onceflow.broker.config import BrokerConfig, Endpoint
from onceflow.broker.loop.deferred import HANDLED_BYTES_PER_WORK, LARGE_REQUEST_BYTES, DeferredCalls
from onceflow.broker.network.incoming import (
    FRAME_BYTES_MIN,
    Arrival,
    frame_size_error,
    has_disconnected,
    is_over,
    login_size_error,
    plain_bytes_max,
)
from onceflow.broker.network.newcomers import Newcomers
from onceflow.broker.network.reply import Piece, Reply
from onceflow.broker.network.request_memory import RequestMemory, Reservation
from onceflow.broker.network.response_budget import ResponseBudget
from onceflow.broker.network.sending import SendingHalf
from onceflow.broker.security.principal import ANONYMOUS, KafkaPrincipal
from onceflow.log.clock import Clock
from onceflow.wire import apis
from onceflow.wire.errors import WireError
from onceflow.wire.primitives import INT32

logger = logging.getLogger(__name__)

NO_BUFFER = memoryview(bytearray())
BUFFER_BYTES_FIRST = 4 * 1024
BUFFER_BYTES_STEP = 64 * 1024
BUFFER_BYTES_KEPT = 2 * 1024 * 1024
"""A drained buffer larger than this is released at once, a smaller one after a second without data."""
BUFFER_KEPT_SECONDS = 1.0
DRAINED_BYTES_MAX = 1024 * 1024
TURN_SECONDS = 0.0005
"""Time in which a turn of the loop handles requests of one connection: a dozen small ones, or one."""

_FETCH_KEY, _PRODUCE_KEY = apis.FETCH.to_bytes(2, "big"), apis.PRODUCE.to_bytes(2, "big")

Handle = Callable[[memoryview, Reply, "Connection"], None]
Decode = Callable[[memoryview, "Connection"], Generator[int, None, Handle]]
"""Decodes a large request in steps, for `DeferredCalls.add_large`, and returns its `Handle`. Raises WireError."""


class Connection(SendingHalf):
    """State of one connection. `handle`, or what `decode` returns for a large frame, responds at once or later."""

    __slots__ = (
        "_arrival",
        "_begin",
        "_decode",
        "_deferred",
        "_end",
        "_handle",
        "_is_finishing",
        "_is_handling_scheduled",
        "_is_parked",
        "_is_reading",
        "_mute_timer",
        "_muted_until",
        "_new_reply",
        "_newcomers",
        "_on_closed",
        "_pending_max",
        "_plain_bytes_max",
        "_received_bytes",
        "_unsent_bytes_max",
        "_view",
        "_waits_for_memory",
        "endpoint",
        "login",
        "peer",
        "peer_host",
        "principal",
        "reservation",
    )

    def __init__(
        self,
        client: socket.socket,
        peer: tuple[Any, ...],
        endpoint: Endpoint,
        config: BrokerConfig,
        memory: RequestMemory,
        response_budget: ResponseBudget,
        clock: Clock,
        deferred: DeferredCalls,
        handle: Handle,
        decode: Decode,
        new_reply: Callable[["Connection"], Reply],
        on_closed: Callable[["Connection", bool], None],
        newcomers: Newcomers | None = None,
    ) -> None:
        """A connection that is among `newcomers` must be admitted; until then its frames are small."""
        super().__init__(client, config, response_budget, clock)
        self.peer_host = str(peer[0])
        self.peer = f"{peer[0]}:{peer[1]}"
        self.endpoint = endpoint
        self.principal: KafkaPrincipal = ANONYMOUS
        self.login: object | None = None
        """State of the authentication, if the listener requires one (handlers.authentication)."""
        self._newcomers = newcomers
        # A newcomer has no usual size: each frame is checked.
        self._plain_bytes_max = -1 if newcomers is not None else plain_bytes_max(config)
        self._pending_max = config.queued_requests_max
        self._unsent_bytes_max = config.unsent_bytes_per_connection_max
        self._deferred = deferred
        self._handle = handle
        self._decode = decode
        self._new_reply = new_reply
        self._on_closed = on_closed
        self._view = memoryview(bytearray(BUFFER_BYTES_FIRST))
        self.reservation = Reservation(memory, self._on_memory_freed)
        self.reservation.is_newcomers = newcomers is not None
        self._begin = self._end = 0
        self._received_bytes = 0
        self._arrival: Arrival | None = None
        self._is_reading = True
        self._waits_for_memory = False
        self._is_finishing = False
        self._is_parked = False
        self._is_handling_scheduled = False
        self._muted_until: float | None = None
        """Time of the loop until which no request is accepted, because of a quota."""
        self._mute_timer: asyncio.TimerHandle | None = None
        self._loop.add_reader(client.fileno(), self._on_readable)
        if newcomers is not None:
            newcomers.begin(self)

    def admit(self, principal: KafkaPrincipal) -> None:
        """Accept frames of every size, since the client is authenticated as `principal`."""
        self.principal = principal
        if self._newcomers is not None:
            self._newcomers.end(self)
            self._newcomers = None
            self.reservation.is_newcomers = False
            self._plain_bytes_max = plain_bytes_max(self._config)

    # Reading

    def _on_readable(self) -> None:
        if self._is_handling_scheduled:
            return
        if self.reservation.is_for_one and self._request_bytes() > self.reservation.size_bytes:
            self._shrink()
        if self._end == len(self._view) and not self._make_room():
            return
        end = self._end + self._config.turn_read_bytes_max
        if self.reservation.is_for_one:
            end = min(end, self._begin + (self._request_bytes() or BUFFER_BYTES_FIRST))
        try:
            count = self._socket.recv_into(self._view[self._end : end])
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._fail(error)
            return
        if not count:
            self.close(None)
            return
        self._end += count
        self._received_bytes += count
        self._active_at = self._clock.monotonic()
        self._handle_and_respond()

    def _request_bytes(self) -> int:
        """Return the size of the next request with that of its size; 0 if its size has not arrived."""
        held = self._view[self._begin : self._end]
        return 4 + int.from_bytes(held[:4], "big") if len(held) >= 4 else 0

    def _handle_and_respond(self) -> None:
        """Handle the frames in the buffer, then send what is ready: to this client first, which may send more."""
        deferred = self._deferred
        deferred.begin_turn()
        is_write_ours = not self._is_write_scheduled
        self._is_write_scheduled = True
        try:
            self._handle_frames()
        finally:
            if is_write_ours:
                self._write()
            deferred.end_turn()

    def _handle_frames(self) -> None:
        handled_bytes, ends_at = 0, self._clock.monotonic() + TURN_SECONDS
        while self.is_open and self._is_reading and not self._is_parked and self._end - self._begin >= 4:
            (size_bytes,) = INT32.unpack_from(self._view, self._begin)
            frame_begin = self._begin + 4
            if not FRAME_BYTES_MIN <= size_bytes <= self._plain_bytes_max and not self._check_frame_size(size_bytes):
                return
            if self._end - frame_begin < size_bytes:
                break
            if handled_bytes and (
                handled_bytes >= self._config.turn_request_bytes_max or self._clock.monotonic() >= ends_at
            ):
                self._handle_soon()
                return
            if size_bytes > LARGE_REQUEST_BYTES and self._is_decoded_in_steps(frame_begin):
                self._handle_large_soon(size_bytes)
                return
            handled_bytes += size_bytes
            self._begin = frame_begin + size_bytes
            self._handle_frame(self._view[frame_begin : self._begin], self._handle)
        if self._begin == self._end and self.is_open:
            self._begin = self._end = 0
            size_bytes = len(self._view)
            if size_bytes > BUFFER_BYTES_KEPT or (size_bytes > BUFFER_BYTES_FIRST and not self.reservation.keep()):
                self._shrink()
        elif self._is_parked and self.reservation.is_for_one:
            self._shrink()

    def _is_decoded_in_steps(self, frame_begin: int) -> bool:
        """Return whether a large frame is decoded before it is handled; no request of a newcomer needs that."""
        return self._newcomers is None and self._view[frame_begin : frame_begin + 2] != _PRODUCE_KEY

    def _check_frame_size(self, size_bytes: int) -> bool:
        """Return whether the next frame may have this unusual size; close the connection if not."""
        if self._newcomers is None:
            reason = frame_size_error(self._config, self._view[self._begin + 4 : self._end], size_bytes)
        else:
            reason = login_size_error(self._config, size_bytes)
        if reason is not None:
            self.close(reason)
        return reason is None

    def _handle_frame(self, frame: memoryview, handle: Handle) -> Reply:
        reply = self._new_reply(self)
        self._pending.append(reply)
        try:
            handle(frame, reply, self)
        except WireError as error:
            self.close(str(error))
        except Exception:
            logger.exception("request of %s failed; closing its connection", self.peer)
            self.close("internal error")
        if reply.pieces is None and reply.is_long_wait:
            self._is_parked = True
        if len(self._pending) >= self._pending_max and self._is_reading:
            self._pause_reading()
        return reply

    def _handle_soon(self) -> None:
        """Continue with the requests in the buffer after the other connections' turn."""
        if not self._is_handling_scheduled:
            self._is_handling_scheduled = True
            self._loop.call_soon(self._handle_later)

    def _handle_later(self) -> None:
        self._is_handling_scheduled = False
        if self.is_open:
            self._handle_and_respond()

    def _handle_large_soon(self, size_bytes: int) -> None:
        """Decode and handle the next request, which is large, in later turns; nothing is read or handled before."""
        if not self._is_handling_scheduled:
            self._is_handling_scheduled = True
            work = self._handle_large(size_bytes)
            self._deferred.add_large(
                work, is_wanted=lambda: self.is_open and not self._is_finishing, size_bytes=size_bytes
            )

    def _handle_large(self, size_bytes: int) -> Iterator[int]:
        frame = self._view[self._begin + 4 : self._begin + 4 + size_bytes]
        if frame[:2] == _FETCH_KEY and has_disconnected(self._socket.fileno()):
            # Its response cannot be delivered. The requests after it are handled: they may change what is stored.
            self._begin += 4 + size_bytes
            self._handle_later()
            return
        try:
            handle = yield from self._decode(frame, self)
        except WireError as error:
            self.close(str(error))
            return
        except Exception:
            self.close("internal error")
            raise
        self._begin += 4 + size_bytes
        reply = self._handle_frame(frame, handle)
        yield size_bytes // HANDLED_BYTES_PER_WORK
        if reply.rest is not None:
            yield from self._do_rest(reply, reply.rest)
        self._handle_later()

    def _do_rest(self, reply: Reply, rest: Iterator[int]) -> Iterator[int]:
        reply.is_long_wait = True
        try:
            yield from rest
        except WireError as error:
            self.close(str(error))
        except Exception:
            self.close("internal error")
            raise
        reply.is_long_wait = False

    def _make_room(self) -> bool:
        """Make space in a full buffer without a whole request: move its content to the front, or to a larger buffer.

        The buffer of a parked connection does not grow: later bytes stay in the socket.
        Return False without memory for a larger one; reading continues when there is some again.
        """
        if self._is_parked:
            self._pause_reading()
            return False
        held = self._view[self._begin : self._end]
        if self._begin == 0:
            request_bytes = self._request_bytes()
            step_bytes = max(BUFFER_BYTES_STEP, min(2 * len(held), request_bytes))
            if not self.reservation.grow(step_bytes, request_bytes):
                self._waits_for_memory = True
                self._loop.remove_reader(self._socket.fileno())
                return False
            self._view = memoryview(bytearray(min(step_bytes, self.reservation.size_bytes)))
        elif self._is_pipelined() and self.reservation.grow_if_free(BUFFER_BYTES_STEP):
            self._view = memoryview(bytearray(BUFFER_BYTES_STEP))
        self._view[: len(held)] = held
        self._begin, self._end = 0, len(held)
        return True

    def _is_pipelined(self) -> bool:
        """Return whether several requests have filled the first buffer: more in each turn cost fewer system calls."""
        return len(self._view) == BUFFER_BYTES_FIRST and self._newcomers is None

    def _shrink(self) -> None:
        """Replace the buffer by one of the first size, with the same content."""
        held = self._view[self._begin : self._end]
        self._view = memoryview(bytearray(BUFFER_BYTES_FIRST))
        self._view[: len(held)] = held
        self._begin, self._end = 0, len(held)
        self.reservation.free()

    def _on_memory_freed(self) -> None:
        """Continue to read, now that memory for the next step is reserved."""
        self._waits_for_memory = False
        if self._is_reading:
            self._loop.add_reader(self._socket.fileno(), self._on_readable)

    def _can_resume_reading(self) -> bool:
        return self._muted_until is None and len(self._pending) < (self._pending_max + 1) // 2 and not self._is_unread()

    def mute(self, seconds: float) -> None:
        """Accept no further request for this time; responses are sent."""
        if not self.is_open:
            return
        self._muted_until = max(self._loop.time() + seconds, self._muted_until or 0)
        if self._mute_timer is None:
            self._mute_timer = self._loop.call_later(seconds, self._unmute)
        if self._is_reading:
            self._pause_reading()

    def _unmute(self) -> None:
        assert self._muted_until is not None
        seconds = self._muted_until - self._loop.time()
        if seconds > 0:
            self._mute_timer = self._loop.call_later(seconds, self._unmute)
            return
        self._muted_until = self._mute_timer = None
        if not self._is_finishing and not self._is_reading and self._can_resume_reading():
            self._resume_reading()
            self._handle_and_respond()

    def _pause_reading(self) -> None:
        self._is_reading = False
        self._loop.remove_reader(self._socket.fileno())

    def _resume_reading(self) -> None:
        self._is_reading = True
        if not self._waits_for_memory:
            self._loop.add_reader(self._socket.fileno(), self._on_readable)

    # Writing

    def enqueue_response(self, pieces: Sequence[Piece]) -> None:
        """Send a response when it is its turn; count its memory from now on."""
        if not self.is_open:
            return
        if not self._is_write_scheduled:
            # Responses that become ready together are sent together.
            self._is_write_scheduled = True
            self._deferred.add(self._write)
        size_bytes = 0
        for piece in pieces:
            if isinstance(piece, bytes):
                size_bytes += len(piece)
        self.unsent_bytes += size_bytes
        self._response_budget.add(size_bytes)
        if self.unsent_bytes >= self._unsent_bytes_max and self._is_reading:
            self._pause_reading()

    def _write(self) -> None:
        self._is_write_scheduled = False
        if self.is_open:
            if self._pending and self._pending[0].pieces is not None:
                self._collect()
            if self._unsent and not self._is_blocked:
                self._send()
            if self.is_open and (self._is_finishing or self._is_parked or not self._is_reading):
                self._written()

    def _written(self) -> None:
        """Continue with requests after responses were sent."""
        if self._is_finishing:
            self._close_if_finished()
            return
        if self._is_parked:
            # No request was handled after the one that parked: its reply is the last.
            self._is_parked = bool(self._pending) and self._pending[-1].pieces is None
            if self._is_parked:
                return
        if not self._is_reading:
            if not self._can_resume_reading():
                return
            self._resume_reading()
        # Frames that arrived before the pause are in the buffer already: no event will report them.
        self._handle_soon()

    # The end

    @property
    def is_blind(self) -> bool:
        """Whether it reads nothing, parked or without memory, and so cannot notice that its client disconnected."""
        return self._waits_for_memory or (self._is_parked and not self._is_reading)

    def has_whole_request(self, unread_bytes: int) -> bool:
        """Return whether the request that waits for memory is whole with `unread_bytes` more, and not parked."""
        size_bytes = 4 + int.from_bytes(self._view[self._begin : self._begin + 4], "big")
        return not self._is_parked and self._end - self._begin + unread_bytes >= size_bytes

    def fileno(self) -> int:
        """Return the socket's descriptor."""
        return self._socket.fileno()

    def check_activity(self, now: float) -> None:
        """Close the connection if it is stalled, too slow or idle, else release an unneeded buffer; once a second."""
        idle_seconds = now - self._active_at
        config = self._config
        is_receiving = self._is_reading and not (
            self._is_parked or self._waits_for_memory or self._is_handling_scheduled
        )
        has_half_request = self._end > self._begin and is_receiving
        bytes_per_second = self.measure_pace(now)
        if has_half_request and is_over(idle_seconds, config.request_stalled_max_ms):
            self.close(f"incomplete request, no data for {idle_seconds:.0f} s (request.stalled.max.ms)")
        elif has_half_request and bytes_per_second < config.request_bytes_per_second_min:
            self.close(
                f"incomplete request, arriving at {bytes_per_second:.0f} bytes per second"
                f" (request.min.bytes.per.second={config.request_bytes_per_second_min})"
            )
        elif self._is_idle() and is_over(idle_seconds, config.connections_idle_max_ms):
            logger.info("connection of %s closed: idle for %.0f s", self.peer, idle_seconds)
            self.close(None)
        elif idle_seconds >= BUFFER_KEPT_SECONDS:
            self.shrink_if_unneeded()

    def shrink_if_unneeded(self) -> None:
        """Release a buffer whose content fits into one of the first size."""
        if self._end - self._begin < BUFFER_BYTES_FIRST < len(self._view):
            self._shrink()

    def measure_pace(self, now: float) -> float:
        """Return the incoming request's bytes per second, infinite until it was measured long enough.

        A request that waits for the broker (for memory, for its turn, or after others for the disk) is not measured.
        """
        waits_behind = not (self._is_reading or self._is_parked or self._is_unread())
        is_ours_to_wait = self._waits_for_memory or self._is_handling_scheduled or waits_behind
        if self._begin == self._end or is_ours_to_wait:
            self._arrival = None
            return math.inf
        position = self._received_bytes - (self._end - self._begin)
        if self._arrival is None or self._arrival.position != position:
            self._arrival = Arrival(position, now, self._received_bytes)
            return math.inf
        average = self._arrival.measure(now, self._received_bytes)
        return math.inf if average is None else average

    def _is_unread(self) -> bool:
        """Return whether the client has too many unread responses to be read on."""
        return self.unsent_bytes >= (self._unsent_bytes_max + 1) // 2

    @property
    def remaining_seconds(self) -> float:
        """Time until the incoming request is whole, at its present pace; 0 if that is not measured."""
        arrival = self._arrival
        if arrival is None or arrival.bytes_per_second is None:
            return 0.0
        remaining_bytes = (self._request_bytes() or 4) - (self._end - self._begin)
        return remaining_bytes / arrival.bytes_per_second if arrival.bytes_per_second else math.inf

    def _is_idle(self) -> bool:
        """Return whether it is the client's turn: to send a request, or to read its responses."""
        return bool(self._unsent) or not self._pending

    def finish(self) -> None:
        """Accept no more requests, send the responses that are possible, and close, since the broker stops."""
        self._is_finishing = True
        if self._is_reading:
            self._pause_reading()
        for reply in list(self._pending):
            if reply.pieces is None and reply.on_stop is not None:
                reply.on_stop()
        self.write_soon()

    def close_later(self, reply: Reply, pieces: Sequence[Piece], delay_seconds: float) -> None:
        """Send the last response after a delay, then close; nothing is read meanwhile."""

        def end() -> None:
            if self.is_open:
                reply.send(pieces)
                self.finish()

        def end_soon() -> None:
            if self._newcomers is None:
                end()
            else:
                self._newcomers.do_soon(self, end)

        if self._is_reading:
            self._pause_reading()
        self._loop.call_later(delay_seconds, end_soon)

    def _close_if_finished(self) -> None:
        # Responses are sent in order: after one that waits for other clients, none can be sent any more.
        waits = bool(self._pending) and not self._pending[0].is_long_wait
        if self._unsent or waits:
            return
        self._drain()
        self.close(None)

    def _drain(self) -> None:
        """Read what arrived: closing with unread bytes makes the kernel send a reset, which discards sent responses."""
        step = self._view[:BUFFER_BYTES_STEP]
        with contextlib.suppress(OSError):
            for _ in range(DRAINED_BYTES_MAX // len(step)):
                if not self._socket.recv_into(step):
                    return

    def _fail(self, error: OSError) -> None:
        """Close after a failure of the socket or the file; a reset counts as an ordinary close by the client."""
        self.close(None if isinstance(error, ConnectionError) else str(error))

    def close(self, reason: str | None) -> None:
        """Close; `reason` is None if the peer closed in the ordinary way."""
        if not self.is_open:
            return
        self.is_open = False
        if self._mute_timer is not None:
            self._mute_timer.cancel()
        if self._newcomers is not None:
            self._newcomers.end(self)
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
        self._response_budget.add(-self.unsent_bytes)
        self.unsent_bytes = 0
        self.reservation.end()
        self._view = NO_BUFFER
        self._on_closed(self, reason is not None)

    def close_descriptor(self) -> None:
        """Close the descriptor in a forked child; the connection continues in the parent."""
        self._socket.close()
