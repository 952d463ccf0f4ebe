"""The memory of all connections' receive buffers together: `queued.max.request.bytes`.

It has two equal shares, for requests of at most SMALL_REQUEST_BYTES_MAX and for larger ones, so that neither kind can
lock the other out. A connection reserves memory as its request arrives, in steps, not when the request announces its
size.

A share has two parts.

- The main part serves requests in their order. A step that is not a request's last leaves as much of it free as the
  largest request of that kind may need, and a request that cannot have a step may reserve all that it needs at once: so
  some request can always be received to its end. A request that is alone there gets any amount.
- The side part serves requests for which the main part has no memory and which fit into the side part whole, in their
  order too, but past those that do not fit. They take nothing that an earlier request waits for.

So the first request that waits for the main part gets its memory when those that hold some there have ended. Whether
these arrive is not for the memory to see: while a request waits, connections that hold memory and are slow are closed
(`relieve`, `Connection.slow_bytes_per_second`). A request that waits itself is never slow: the broker does not read it.
If its client leaves, the listener closes it.
"""

import asyncio
from collections.abc import Callable

SMALL_REQUEST_BYTES_MAX = 1024 * 1024
SIDE_PART = 1 / 4
"""Part of a share that is its side part, at most half of what the largest request leaves."""
KEPT_PART = 3 / 4
"""Part of a share that relief leaves at most, those included that wait."""
RELIEF_SECONDS = 0.5
"""Time between two reliefs when the first did not suffice: more requests may have proved slow."""


class Reservation:
    """The memory of one connection's receive buffer beyond its first, and what it waits for."""

    __slots__ = ("_memory", "_on_granted", "_part", "_share", "_step_bytes", "request_bytes", "size_bytes")

    def __init__(self, memory: "RequestMemory", on_granted: Callable[[], None]) -> None:
        self._memory = memory
        self._on_granted = on_granted
        self._share: _Share | None = None
        self._part: _Part | None = None
        self._step_bytes = self.request_bytes = 0
        self.size_bytes = 0

    @property
    def is_contended(self) -> bool:
        """Whether others wait for memory of the share that this is a part of."""
        return self._share is not None and bool(self._share.waiting)

    @property
    def is_share_full(self) -> bool:
        """Whether the share that this is a part of needs relief."""
        return self._share is not None and self._share.is_full

    def grow(self, step_bytes: int, request_bytes: int) -> bool:
        """Reserve `step_bytes` in all, for a request of `request_bytes`; False if it must wait for `on_granted`."""
        share = self._memory.share_for(request_bytes)
        self._step_bytes, self.request_bytes = step_bytes, request_bytes
        if share is self._share and step_bytes <= self.size_bytes:
            return True
        if not share.waiting and self.take(share, is_first=True):
            return True
        share.wait(self)
        self._memory.serve_soon()
        self._memory.relieve_soon()
        return False

    def take(self, share: "_Share", *, is_first: bool) -> bool:
        """Reserve the next step, if there is memory for it: of the main part only for the first that waits."""
        size_bytes = self._fits_main(share) if is_first else 0
        if size_bytes:
            self._move(share, share.main, size_bytes)
        elif self.request_bytes <= self._free_bytes(share.side):
            self._move(share, share.side, self.request_bytes)
        else:
            return False
        return True

    def _fits_main(self, share: "_Share") -> int:
        """Bytes in all that the main part can give for the next step: the step, the whole request, or 0."""
        free_bytes = self._free_bytes(share.main)
        is_last = self._step_bytes >= self.request_bytes
        if self._step_bytes + (0 if is_last else share.largest_bytes) <= free_bytes:
            return self._step_bytes
        if self.request_bytes <= free_bytes or free_bytes == share.main.bytes_max:
            return self.request_bytes
        return 0

    def _free_bytes(self, part: "_Part") -> int:
        """Bytes of the part that nobody else holds."""
        return part.bytes_max - part.used_bytes + (self.size_bytes if part is self._part else 0)

    def _move(self, share: "_Share", part: "_Part", size_bytes: int) -> None:
        """Hold this much of the part instead of what was held before."""
        self.free()
        part.used_bytes += size_bytes
        self._share, self._part, self.size_bytes = share, part, size_bytes

    def granted(self) -> None:
        """Report that the memory waited for is reserved."""
        self._on_granted()

    def end(self) -> None:
        """Give back what is held, and let go of the connection, which is closed."""
        self.free()
        self._on_granted = _do_nothing

    def free(self) -> None:
        """Give back what is held, and wait no more."""
        for share in self._memory.shares:
            share.forget(self)
        if self._part is not None:
            self._part.used_bytes -= self.size_bytes
            self.size_bytes = 0
        # It may have been the first of those that wait, and the next one needs less.
        self._memory.serve_soon()


def _do_nothing() -> None:
    """Stand in for the callback of a closed connection."""


class _Part:
    """Memory, and how much of it is reserved."""

    __slots__ = ("bytes_max", "used_bytes")

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.used_bytes = 0


class _Share:
    """Memory for requests of one kind, and those that wait for it in their order."""

    def __init__(self, bytes_max: int, largest_bytes: int) -> None:
        self.bytes_max = bytes_max
        self.largest_bytes = largest_bytes
        self.side = _Part(max(0, min(int(bytes_max * SIDE_PART), (bytes_max - largest_bytes) // 2)))
        self.main = _Part(bytes_max - self.side.bytes_max)
        self.waiting: dict[Reservation, int] = {}
        """Bytes of each request that waits."""
        self._waiting_bytes = 0

    @property
    def used_bytes(self) -> int:
        """Return what is reserved of both parts."""
        return self.main.used_bytes + self.side.used_bytes

    def wait(self, reservation: Reservation) -> None:
        """Reserve for it when those before it have been served."""
        self.waiting[reservation] = reservation.request_bytes
        self._waiting_bytes += reservation.request_bytes

    def forget(self, reservation: Reservation) -> None:
        """Let it wait no more."""
        self._waiting_bytes -= self.waiting.pop(reservation, 0)

    @property
    def is_full(self) -> bool:
        """Whether relief has more to do for those that wait."""
        return bool(self.waiting) and self.used_bytes + self._waiting_bytes > self.bytes_max * KEPT_PART

    def serve(self) -> None:
        """Give memory that is free to those that wait for it."""
        is_first = True
        for reservation, request_bytes in list(self.waiting.items()):
            if is_first or request_bytes <= self.side.bytes_max - self.side.used_bytes:
                if reservation.take(self, is_first=is_first):
                    reservation.granted()
                else:
                    is_first = False


class RequestMemory:
    """Counts what is reserved beyond each connection's first buffer. All methods are the event loop's."""

    def __init__(self, bytes_max: int, largest_bytes: int, relieve: Callable[[], None]) -> None:
        """`relieve` is called one turn after a request had to wait, and again while that does not suffice."""
        self.bytes_max = bytes_max
        self._small = _Share(bytes_max // 2, SMALL_REQUEST_BYTES_MAX)
        self._large = _Share(bytes_max // 2, largest_bytes)
        self.shares = (self._small, self._large)
        self._relieve = relieve
        self._is_relief_scheduled = False
        self._is_serving_scheduled = False

    @property
    def used_bytes(self) -> int:
        """Return what is reserved in sum."""
        return sum(share.used_bytes for share in self.shares)

    @property
    def is_awaited(self) -> bool:
        """Whether a request waits for memory."""
        return any(share.waiting for share in self.shares)

    def share_for(self, request_bytes: int) -> _Share:
        """Return the share that a request of this size is received in."""
        return self._small if request_bytes <= SMALL_REQUEST_BYTES_MAX else self._large

    def relieve_soon(self) -> None:
        """Call `relieve` in the loop's next turn, if it is not due anyway."""
        if not self._is_relief_scheduled:
            self._is_relief_scheduled = True
            asyncio.get_running_loop().call_soon(self._relieve_now)

    def _relieve_now(self) -> None:
        self._is_relief_scheduled = False
        if self.is_awaited:
            self._relieve()
        if any(share.is_full for share in self.shares):
            self._is_relief_scheduled = True
            asyncio.get_running_loop().call_later(RELIEF_SECONDS, self._relieve_now)

    def serve_soon(self) -> None:
        """In the loop's next turn, give memory that is free to those that wait for it."""
        if not self._is_serving_scheduled and self.is_awaited:
            self._is_serving_scheduled = True
            asyncio.get_running_loop().call_soon(self._serve)

    def _serve(self) -> None:
        self._is_serving_scheduled = False
        for share in self.shares:
            share.serve()
