"""Memory limit of the receive buffers of all connections: `queued.max.request.bytes`.

The memory has two equal shares, for requests of at most SMALL_REQUEST_BYTES_MAX and for larger ones, so that neither
kind can lock the other out. A third share, beside the limit, is for clients that are not authenticated yet: they lock
out only each other. A connection reserves memory in steps as its request arrives, not when the request
announces its size.

A share has two parts.

- The main part serves requests in their order. A step leaves enough free for the largest request of that kind. A
  request that cannot have a step may reserve all that it needs at once, and one that is alone there any amount. Such
  memory is for one request at a time: a connection that also took the beginning of a larger request into it could hold
  it and wait for more. So some request can always be received to its end.
- The side part serves requests for which the main part has no memory and which fit into the side part whole. They are
  served in order, skipping those that do not fit, and take nothing that an earlier request waits for.

So the first request that waits for the main part gets its memory when the requests that have it for themselves have
ended. They may be slow to arrive: while a request waits for the memory of such requests, those are closed that would
need it long at their pace (`reclaim`, `Connection.remaining_seconds`). A waiting request has no pace: the broker does
not read it. If its client disconnects, the listener closes it.
"""

import asyncio
from collections.abc import Callable

SMALL_REQUEST_BYTES_MAX = 1024 * 1024
NEWCOMERS_BYTES_MAX = 16 * 1024 * 1024
"""Share of the clients that are not authenticated yet; most logins fit into a connection's first buffer."""
SIDE_FRACTION = 1 / 4
"""Fraction of a share that is its side part, at most half of what the largest request leaves."""
RECLAIM_SECONDS = 0.5
"""Time between two attempts to reclaim memory while requests wait: more may have proved slow."""


class Reservation:
    """Memory of one connection's receive buffer beyond its first size, and the memory that it waits for."""

    __slots__ = (
        "_memory",
        "_on_granted",
        "_part",
        "_share",
        "_step_bytes",
        "is_for_one",
        "is_newcomers",
        "request_bytes",
        "size_bytes",
    )

    def __init__(self, memory: "RequestMemory", on_granted: Callable[[], None]) -> None:
        self._memory = memory
        self._on_granted = on_granted
        self.is_newcomers = False
        """Whether the client is not authenticated yet."""
        self.is_for_one = False
        """Whether a request must fit into the memory whole, since it must not wait for more while it holds this."""
        self._share: _Share | None = None
        self._part: _Part | None = None
        self._step_bytes = self.request_bytes = 0
        self.size_bytes = 0

    @property
    def is_contended(self) -> bool:
        """Whether other requests wait for memory of this reservation's share."""
        return self._share is not None and bool(self._share.waiting)

    @property
    def is_blocking(self) -> bool:
        """Whether another request waits for memory that this one has for itself."""
        if self._share is None or self._part is None or not self.is_for_one:
            return False
        return self._share.is_blocked(self._part)

    def keep(self) -> bool:
        """Return whether an empty buffer may stay: no other request waits for memory."""
        if self.is_contended:
            return False
        if self.is_for_one and self._share is not None and self._part is self._share.main:
            self.is_for_one = not self._share.has_step(self, self.size_bytes)
        return True

    def grow(self, step_bytes: int, request_bytes: int) -> bool:
        """Reserve a total of `step_bytes`, or `request_bytes` for this request; return False if it must wait.

        `size_bytes` is what is reserved. A step may be more than the request: the rest is for later ones.
        """
        share = self._memory.newcomers if self.is_newcomers else self._memory.share_for(request_bytes)
        self._step_bytes, self.request_bytes = step_bytes, request_bytes
        if share is self._share and min(step_bytes, request_bytes) <= self.size_bytes:
            return True
        if not share.waiting and self.take(share, is_first=True):
            return True
        share.wait(self)
        self._memory.serve_soon()
        self._memory.reclaim_soon()
        return False

    def grow_if_free(self, size_bytes: int) -> bool:
        """Reserve a total of `size_bytes` for small requests, unless another request waits or could have to wait then;
        return whether it is reserved."""
        share = self._memory.share_for(size_bytes)
        if share.waiting or size_bytes + share.largest_bytes > self.free_bytes(share.main):
            return False
        self._move(share, share.main, size_bytes)
        return True

    def take(self, share: "_Share", *, is_first: bool) -> bool:
        """Reserve the next step if there is memory for it: of the main part only for the first waiting request."""
        if is_first and share.has_step(self, self._step_bytes):
            self._move(share, share.main, self._step_bytes)
        elif is_first and share.has_whole(self):
            self._move(share, share.main, self.request_bytes, is_for_one=True)
        elif self.request_bytes <= self.free_bytes(share.side):
            self._move(share, share.side, self.request_bytes, is_for_one=True)
        else:
            return False
        return True

    def free_bytes(self, part: "_Part") -> int:
        """Return the bytes of the part that no other connection holds."""
        return part.bytes_max - part.used_bytes + (self.size_bytes if part is self._part else 0)

    def _move(self, share: "_Share", part: "_Part", size_bytes: int, *, is_for_one: bool = False) -> None:
        """Hold this much of the part instead of what was held before."""
        self.free()
        part.used_bytes += size_bytes
        self.is_for_one = is_for_one
        self._share, self._part, self.size_bytes = share, part, size_bytes

    def granted(self) -> None:
        """Report that the awaited memory is reserved."""
        self._on_granted()

    def end(self) -> None:
        """Release the memory and the connection, which is closed."""
        self.free()
        self._on_granted = _do_nothing

    def free(self) -> None:
        """Release the memory, and wait no more."""
        for share in self._memory.shares:
            share.forget(self)
        if self._part is not None:
            self._part.used_bytes -= self.size_bytes
            self.size_bytes = 0
            self.is_for_one = False
        # It may have been the first in the queue, and the next one may need less.
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
        self.side = _Part(max(0, min(int(bytes_max * SIDE_FRACTION), (bytes_max - largest_bytes) // 2)))
        self.main = _Part(bytes_max - self.side.bytes_max)
        self.waiting: dict[Reservation, int] = {}
        """Bytes of each request that waits."""

    @property
    def used_bytes(self) -> int:
        """Bytes reserved of both parts."""
        return self.main.used_bytes + self.side.used_bytes

    def has_step(self, reservation: Reservation, step_bytes: int) -> bool:
        """Return whether the main part has a total of `step_bytes` beside what the largest request needs."""
        return step_bytes + self.largest_bytes <= reservation.free_bytes(self.main)

    def has_whole(self, reservation: Reservation) -> bool:
        """Return whether the main part has memory for the whole request, or nothing else is in it."""
        free_bytes = reservation.free_bytes(self.main)
        return reservation.request_bytes <= free_bytes or free_bytes == self.main.bytes_max

    def wait(self, reservation: Reservation) -> None:
        """Reserve memory for it after those before it."""
        self.waiting[reservation] = reservation.request_bytes

    def forget(self, reservation: Reservation) -> None:
        """Let it wait no more."""
        self.waiting.pop(reservation, None)

    def is_blocked(self, part: _Part) -> bool:
        """Return whether a request waits for memory of the part: of the main part only the first, in order."""
        if part is self.main:
            first = next(iter(self.waiting), None)
            return first is not None and not self.has_whole(first)
        free_bytes = self.side.bytes_max - self.side.used_bytes
        return any(free_bytes < request_bytes <= self.side.bytes_max for request_bytes in self.waiting.values())

    def serve(self) -> None:
        """Give free memory to the waiting requests."""
        is_first = True
        for reservation, request_bytes in list(self.waiting.items()):
            if is_first or request_bytes <= self.side.bytes_max - self.side.used_bytes:
                if reservation.take(self, is_first=is_first):
                    reservation.granted()
                else:
                    is_first = False


class RequestMemory:
    """Memory reserved beyond each connection's first buffer. All methods run on the event loop."""

    def __init__(self, bytes_max: int, largest_bytes: int, reclaim: Callable[[], None]) -> None:
        """Call `reclaim` one turn after a request had to wait, and again while one waits."""
        self.bytes_max = bytes_max
        self._small = _Share(bytes_max // 2, SMALL_REQUEST_BYTES_MAX)
        self._large = _Share(bytes_max // 2, largest_bytes)
        self.newcomers = _Share(NEWCOMERS_BYTES_MAX, SMALL_REQUEST_BYTES_MAX)
        self.shares = (self._small, self._large, self.newcomers)
        self._reclaim = reclaim
        self._is_relief_scheduled = False
        self._is_serving_scheduled = False

    @property
    def used_bytes(self) -> int:
        """Total of the reserved bytes."""
        return sum(share.used_bytes for share in self.shares)

    @property
    def is_awaited(self) -> bool:
        """Whether a request waits for memory."""
        return any(share.waiting for share in self.shares)

    def share_for(self, request_bytes: int) -> _Share:
        """Return the share for a request of this size, of an authenticated client."""
        return self._small if request_bytes <= SMALL_REQUEST_BYTES_MAX else self._large

    def reclaim_soon(self) -> None:
        """Call `reclaim` in the loop's next turn, if it is not due anyway."""
        if not self._is_relief_scheduled:
            self._is_relief_scheduled = True
            asyncio.get_running_loop().call_soon(self._reclaim_now)

    def _reclaim_now(self) -> None:
        self._is_relief_scheduled = False
        if self.is_awaited:
            self._reclaim()
            self._is_relief_scheduled = True
            asyncio.get_running_loop().call_later(RECLAIM_SECONDS, self._reclaim_now)

    def serve_soon(self) -> None:
        """Give free memory to the waiting requests in the loop's next turn."""
        if not self._is_serving_scheduled and self.is_awaited:
            self._is_serving_scheduled = True
            asyncio.get_running_loop().call_soon(self._serve)

    def _serve(self) -> None:
        self._is_serving_scheduled = False
        for share in self.shares:
            share.serve()
