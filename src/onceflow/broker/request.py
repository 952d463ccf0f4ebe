"""A request on its way through the broker, and how its answer becomes bytes.

Handlers give an answer as one mapping that has the fields of all versions; `build` picks those that the request's
version has. kio's classes say which these are. A name that no served version has is a mistake and raises.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from datetime import timedelta
from functools import cache
from types import TracebackType
from typing import Any, get_args

from onceflow.broker.reply import Reply
from onceflow.wire.apis import APIS, WRITE_TXN_MARKERS
from onceflow.wire.frames import RequestHeader, decode_request, encode_response, request_class, response_class

NO_THROTTLE = timedelta(0)


@dataclass(slots=True)
class Request:
    """One request; `frame` is a view of the connection's buffer and ends with the handler's call."""

    header: RequestHeader
    frame: memoryview
    reply: Reply
    peer_host: str
    elements_max: int = sys.maxsize
    """Array elements that the body may have in all."""

    @property
    def version(self) -> int:
        return self.header.version

    @property
    def client_id(self) -> str:
        return self.header.client_id or ""

    def decode(self) -> Any:
        """The body as kio's class of the request's version. Raises MalformedFrame."""
        return decode_request(self.frame, self.header, elements_max=self.elements_max)

    def answer(self, **values: Any) -> bytes:
        """Send the response with these fields; returns its bytes, which a cache may keep."""
        header = self.header
        with closed_if_unanswered(self.reply):
            entity_class = response_class(header.api.key, header.version)
            if header.api.key != WRITE_TXN_MARKERS:
                values.setdefault("throttle_time", NO_THROTTLE)
            payload = build(entity_class, values)
            response = encode_response(header.api.key, header.version, header.correlation_id, payload)
            self.reply.send([response])
        return response


@dataclass(slots=True)
class DecodedRequest(Request):
    """A large request, whose body was decoded over several turns of the loop."""

    body: Any = None

    def decode(self) -> Any:
        """Return the body."""
        return self.body


class closed_if_unanswered:  # noqa: N801
    """Closes the connection of `reply` if its answer cannot be made: a client must not wait for ever."""

    __slots__ = ("_reply",)

    def __init__(self, reply: Reply) -> None:
        self._reply = reply

    def __enter__(self) -> None:
        """Nothing is to be done before."""

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: TracebackType | None) -> None:
        # A generator is closed when nobody wants the rest of its work.
        if error is not None and not isinstance(error, GeneratorExit):
            close_unanswered(self._reply, error)


def close_unanswered(reply: Reply, error: BaseException) -> None:
    """What `closed_if_unanswered` does, for the path that is too hot for a `with`."""
    reply.close_connection(f"its answer could not be made: {error}")


def build(entity_class: Any, values: Mapping[str, Any]) -> Any:
    """An entity of kio's from a mapping; nested entities are mappings, arrays are iterables."""
    known = _fields(entity_class)
    missing = frozenset(values.keys() - known.keys())
    unknown = _of_no_version(entity_class, missing) if missing else missing
    if unknown:
        raise TypeError(f"{entity_class.__name__} has no field {', '.join(sorted(unknown))} in any served version")
    return entity_class(**{name: _convert(values[name], known[name]) for name in known.keys() & values.keys()})


def _convert(value: Any, nested: Any) -> Any:
    if value is None or isinstance(value, bytes | str | int):
        return value
    if nested is not None:
        return tuple(build(nested, each) for each in value)
    return tuple(value) if isinstance(value, list) else value


@cache
def _fields(entity_class: Any) -> Mapping[str, type[Any] | None]:
    """Each field's name with the class of the entities in its array, if it is one."""
    return {each.name: _nested(each.type) for each in fields(entity_class)}


def _nested(annotation: Any) -> type[Any] | None:
    if isinstance(annotation, type) and is_dataclass(annotation):
        return annotation
    return next((found for each in get_args(annotation) if (found := _nested(each)) is not None), None)


@cache
def _of_no_version(entity_class: Any, names: frozenset[str]) -> frozenset[str]:
    """Those of the names that no served version has. The newest and the oldest, which mostly tell, come first.

    A version's classes are generated when they are first asked for, which takes kio milliseconds: a broker that
    starts for a test should not need them all.
    """
    api = APIS[entity_class.__api_key__]
    versions = dict.fromkeys((api.version_max, api.version_min, *range(api.version_min, api.version_max + 1)))
    for load in (response_class, request_class):
        for version in versions:
            found: set[str] = set()
            _collect_names(load(api.key, version), found)
            names -= found
            if not names:
                return names
    return names


def _collect_names(entity_class: Any, names: set[str]) -> None:
    for name, nested in _fields(entity_class).items():
        names.add(name)
        if nested is not None:
            _collect_names(nested, names)
