"""Long responses, built in slices: a bounded amount of work in each turn of the loop.

A response is a head, the elements of its one long array, and a tail. Every element comes with the work that it cost, in
units of about a microsecond.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from onceflow.broker.network.request import Request, close_unless_responded
from onceflow.wire.errors import ErrorCode
from onceflow.wire.frames import encode_joined, response_class
from onceflow.wire.messages import element_class
from onceflow.wire.primitives import append_count
from onceflow.wire.response_writer import entity_writer

ELEMENTS_JOINED = 1000
NO_TAGS = b"\x00"

Element = tuple[bytes, int]
"""(bytes, work). Empty bytes: work without an element."""

Send = Callable[[], None]


def at_once(send: Send) -> None:
    """Send a response that reveals only durable state."""
    send()


def once_durable(
    when_synced: Callable[[Callable[[ErrorCode], None]], None], refuse: Callable[[ErrorCode], None]
) -> Callable[[Send], None]:
    """Return a `when_built` that sends once `when_synced` calls back, or refuses with its error."""

    def wait(send: Send) -> None:
        when_synced(lambda error_code: refuse(error_code) if error_code else send())

    return wait


def tags_of(request: Request) -> bytes:
    """Return the empty tagged fields that end each structure of a flexible version; nothing for others."""
    return NO_TAGS if request.version >= request.header.api.flexible_from else b""


def respond_in_slices(
    request: Request,
    head: bytes,
    elements: Iterator[Element],
    tail: bytes,
    *,
    when_built: Callable[[Send], None] = at_once,
) -> None:
    """Build and send the response; the array's length goes between head and elements.

    `when_built` is called in the turn that adds the last element, with the function that sends the response. A response
    that reveals state must wait until all that its elements saw is durable.
    """
    joining = _Joining(request, head, tail)
    request.in_slices(joining.take(elements), lambda: when_built(joining.send))


class _Joining:
    """A response under construction."""

    def __init__(self, request: Request, head: bytes, tail: bytes) -> None:
        self._request = request
        self._head = head
        self._tail = tail
        self._slices: list[bytes] = []
        self._count = 0

    def take(self, elements: Iterator[Element]) -> Iterator[int]:
        """Join the elements; yield the work of each."""
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
        """Send the joined elements."""
        header = self._request.header
        flexible = header.version >= header.api.flexible_from
        with close_unless_responded(self._request.reply):
            count = bytearray()
            append_count(count, self._count, flexible=flexible)
            body = (self._head, bytes(count), *self._slices, self._tail)
            self._request.reply.send([encode_joined(header.correlation_id, body, flexible=flexible)])


def encoded(request: Request, array: str, values: Mapping[str, Any]) -> bytes:
    """Encode an element of the response's array."""
    header = request.header
    request.reply.count_error(values.get("error_code", ErrorCode.none))
    entity_class: Any = element_class(response_class(header.api.key, header.version), array)
    buffer = bytearray()
    entity_writer(entity_class).write(buffer, values)
    return bytes(buffer)
