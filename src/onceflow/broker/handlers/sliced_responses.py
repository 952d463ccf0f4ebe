"""Answers about many topics, made in slices: a bounded amount of work in each turn of the loop.

An answer is a head, the elements of its one long array, and a tail. Every element comes with the work that it cost,
in units of about a microsecond.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from onceflow.broker.network.request import Request, close_unless_responded
from onceflow.wire.frames import encode_joined, response_class
from onceflow.wire.messages import element_class
from onceflow.wire.primitives import append_count
from onceflow.wire.response_writer import entity_writer

ELEMENTS_JOINED = 1000

Element = tuple[bytes, int]
"""(bytes, work). No bytes: there was work, and no element came of it."""

Send = Callable[[], None]


def at_once(send: Send) -> None:
    """For an answer that reveals nothing which is not durable yet."""
    send()


def respond_in_slices(
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
    joining = _Joining(request, head, tail)
    request.in_slices(joining.take(elements), lambda: when_made(joining.send))


class _Joining:
    """An answer on its way."""

    def __init__(self, request: Request, head: bytes, tail: bytes) -> None:
        self._request = request
        self._head = head
        self._tail = tail
        self._slices: list[bytes] = []
        self._count = 0

    def take(self, elements: Iterator[Element]) -> Iterator[int]:
        """Take up the elements; yields the work of each."""
        joined: list[bytes] = []
        for element, work in elements:
            if element:
                joined.append(element)
                if len(joined) == ELEMENTS_JOINED:
                    self._join(joined)
            yield work
        self._join(joined)

    def _join(self, elements: list[bytes]) -> None:
        self._slices.append(b"".join(elements))
        self._count += len(elements)
        elements.clear()

    def send(self) -> None:
        """Send what was taken up."""
        header = self._request.header
        flexible = header.version >= header.api.flexible_from
        with close_unless_responded(self._request.reply):
            count = bytearray()
            append_count(count, self._count, flexible=flexible)
            body = (self._head, bytes(count), *self._slices, self._tail)
            self._request.reply.send([encode_joined(header.correlation_id, body, flexible=flexible)])


def encoded(request: Request, array: str, values: Mapping[str, Any]) -> bytes:
    """An element of the answer's array."""
    header = request.header
    entity_class: Any = element_class(response_class(header.api.key, header.version), array)
    buffer = bytearray()
    entity_writer(entity_class).write(buffer, values)
    return bytes(buffer)
