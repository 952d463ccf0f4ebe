"""A request, and the encoding of its response.

Handlers give a response as one mapping with the fields of all versions; the request's version selects its own
(`wire.response_writer`).
"""

import sys
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from itertools import chain
from types import TracebackType
from typing import Any

from onceflow.broker.config import Endpoint
from onceflow.broker.loop.slices import run_in_slices
from onceflow.broker.network.reply import Reply
from onceflow.broker.security.principal import KafkaPrincipal
from onceflow.wire.apis import (
    CONTROLLED_SHUTDOWN,
    LEADER_AND_ISR,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
    STOP_REPLICA,
    UPDATE_METADATA,
    WRITE_TXN_MARKERS,
)
from onceflow.wire.frames import RequestHeader, decode_request, response_class, response_head, with_size
from onceflow.wire.response_writer import FieldWriter, entity_writer

NO_THROTTLE = timedelta(0)
UNTHROTTLED = frozenset(
    (
        WRITE_TXN_MARKERS,
        SASL_HANDSHAKE,
        SASL_AUTHENTICATE,
        LEADER_AND_ISR,
        STOP_REPLICA,
        UPDATE_METADATA,
        CONTROLLED_SHUTDOWN,
    )
)
"""APIs whose responses have no throttle time."""


@dataclass(slots=True)
class Request:
    """One request; `frame` is a view of the connection's buffer and ends with the handler's call."""

    header: RequestHeader
    frame: memoryview
    reply: Reply
    peer_host: str
    elements_max: int = sys.maxsize
    """Maximum number of array elements in the body."""

    @property
    def version(self) -> int:
        return self.header.version

    @property
    def endpoint(self) -> Endpoint:
        """The advertised address of the listener that the client connected to."""
        return self.reply.endpoint

    @property
    def principal(self) -> KafkaPrincipal:
        """The client's identity."""
        return self.reply.principal

    @property
    def client_id(self) -> str:
        return self.header.client_id or ""

    def decode(self) -> Any:
        """Return the body as kio's class of the request's version. Raises MalformedFrame."""
        return decode_request(self.frame, self.header, elements_max=self.elements_max)

    def respond(self, **values: Any) -> None:
        """Send the response with these fields, encoded over several turns if its arrays are long.

        The arrays must not change any more.
        """
        response, writer = self._begin(values)
        work = chain(self.reply.count_errors(values), writer.in_steps(response, values))
        self.in_slices(work, lambda: self.reply.send([with_size(response)]))

    def encoded(self, **values: Any) -> bytes:
        """Return the response with these fields, encoded in this turn."""
        response, writer = self._begin(values)
        writer.write(response, values)
        return with_size(response)

    def in_slices(self, work: Iterator[int], done: Callable[[], None]) -> None:
        """Run `work` like `run_in_slices` while there is a client; close its connection if the work fails."""
        run_in_slices(
            self.timed(work),
            done,
            failed=lambda error: close_without_response(self.reply, error),
            is_wanted=lambda: self.reply.is_open,
        )

    def prepare(self, work: Iterator[int], done: Callable[[], None]) -> None:
        """Do the `work` that the request needs before its effect, `done`, and before the connection's next request.

        That of a large request takes several turns of the loop. It is dropped if the connection closes or the broker
        stops; the client gets no response then.
        """
        deque(work, maxlen=0)
        done()

    def timed(self, work: Iterator[int]) -> Iterator[int]:
        """Return the work so that its time counts for the client's quota, if there are quotas."""
        limit = self.reply.limit
        return work if limit is None else limit.timed(work)

    def _begin(self, values: dict[str, Any]) -> tuple[bytearray, FieldWriter]:
        """Return the response up to its body, and the writer of the body."""
        header = self.header
        if header.api.key not in UNTHROTTLED:
            values.setdefault("throttle_time", NO_THROTTLE)
        flexible = header.version >= header.api.flexible_from
        response = response_head(header.api.key, header.correlation_id, flexible=flexible)
        entity_class: Any = response_class(header.api.key, header.version)
        return response, entity_writer(entity_class)


@dataclass(slots=True)
class DecodedRequest(Request):
    """A large request with a body that was decoded over several turns of the loop."""

    body: Any = None

    def decode(self) -> Any:
        """Return the body."""
        return self.body

    def prepare(self, work: Iterator[int], done: Callable[[], None]) -> None:
        """Let the connection do the work after this call (`Reply.rest`)."""
        self.reply.rest = self.timed(chain(work, _last_step(done)))


def _last_step(done: Callable[[], None]) -> Iterator[int]:
    done()
    yield 0


class close_unless_responded:  # noqa: N801
    """Closes the connection of `reply` if its response fails, so that the client is not left waiting."""

    __slots__ = ("_reply",)

    def __init__(self, reply: Reply) -> None:
        self._reply = reply

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: TracebackType | None) -> None:
        # A generator is closed when the rest of its work is not wanted.
        if error is not None and not isinstance(error, GeneratorExit):
            close_without_response(self._reply, error)


def close_without_response(reply: Reply, error: BaseException) -> None:
    """Close the connection like `close_unless_responded`, on a path too hot for a `with`."""
    reply.close_connection(f"failed to encode the response: {error}")
