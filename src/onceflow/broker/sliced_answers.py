"""Answers about many topics, made in slices: a bounded amount of work in each turn of the loop.

An answer is a head, the elements of its one long array, and a tail. Every element comes with the work that it cost,
in units of about a microsecond.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from onceflow.broker.request import Request, build, closed_if_unanswered
from onceflow.wire.frames import encode_entity, encode_joined, response_class
from onceflow.wire.messages import element_class
from onceflow.wire.primitives import append_count

WORK_PER_TURN = 1000

Element = tuple[bytes, int]
"""(bytes, work). No bytes: there was work, and no element came of it."""

Send = Callable[[], None]


def at_once(send: Send) -> None:
    """For an answer that reveals nothing which is not durable yet."""
    send()


def answer_in_slices(
    request: Request,
    head: bytes,
    elements: Iterator[Element],
    tail: bytes,
    *,
    when_made: Callable[[Send], None] = at_once,
) -> None:
    """Make the answer; the array's length goes between head and elements.

    `when_made` is called in the turn that takes up the last element. What it is given sends the answer: an answer that
    reveals state must wait for the durability of all that any of its elements saw.
    """
    _Joining(request, head, elements, tail, when_made).turn()


class _Joining:
    """An answer on its way."""

    def __init__(
        self,
        request: Request,
        head: bytes,
        elements: Iterator[Element],
        tail: bytes,
        when_made: Callable[[Send], None],
    ) -> None:
        self._request = request
        self._head = head
        self._elements = elements
        self._tail = tail
        self._when_made = when_made
        self._slices: list[bytes] = []
        self._count = 0

    def turn(self) -> None:
        """Take up elements for one turn of the loop."""
        request = self._request
        with closed_if_unanswered(request.reply):
            joined, work = [], 0
            for element, element_work in self._elements:
                if element:
                    joined.append(element)
                work += element_work
                if work >= WORK_PER_TURN:
                    break
            self._slices.append(b"".join(joined))
            self._count += len(joined)
            if work < WORK_PER_TURN:
                self._when_made(self._send)
            elif request.reply.is_open:
                asyncio.get_running_loop().call_soon(self.turn)

    def _send(self) -> None:
        header = self._request.header
        flexible = header.version >= header.api.flexible_from
        with closed_if_unanswered(self._request.reply):
            count = bytearray()
            append_count(count, self._count, flexible=flexible)
            body = (self._head, bytes(count), *self._slices, self._tail)
            self._request.reply.send([encode_joined(header.correlation_id, body, flexible=flexible)])


def encoded(request: Request, array: str, values: Mapping[str, Any]) -> bytes:
    """An element of the answer's array, as kio's class of it."""
    header = request.header
    return encode_entity(build(element_class(response_class(header.api.key, header.version), array), values))
