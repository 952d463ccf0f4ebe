"""A request on its way through the broker, and how its answer becomes bytes.

Handlers give an answer as one mapping that has the fields of all versions; `build` picks those that the request's
version has. kio's classes say which these are. A name that no served version has is a mistake and raises.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from datetime import timedelta
from functools import cache
from types import TracebackType
from typing import Any, get_args

from onceflow.broker.connection import Reply
from onceflow.wire.apis import APIS
from onceflow.wire.frames import RequestHeader, decode_request, encode_response, request_class, response_class

NO_THROTTLE = timedelta(0)


@dataclass(slots=True)
class Request:
    """One request; `frame` is a view of the connection's buffer and ends with the handler's call."""

    header: RequestHeader
    frame: memoryview
    reply: Reply
    peer_host: str

    @property
    def version(self) -> int:
        return self.header.version

    @property
    def client_id(self) -> str:
        return self.header.client_id or ""

    def decode(self) -> Any:
        """The body as kio's class of the request's version. Raises MalformedFrame."""
        return decode_request(self.frame, self.header)

    def answer(self, **values: Any) -> bytes:
        """Send the response with these fields; returns its bytes, which a cache may keep."""
        header = self.header
        with closed_if_unanswered(self.reply):
            payload = build(response_class(header.api.key, header.version), {"throttle_time": NO_THROTTLE, **values})
            response = encode_response(header.api.key, header.version, header.correlation_id, payload)
            self.reply.send([response])
        return response


class closed_if_unanswered:  # noqa: N801
    """Closes the connection of `reply` if its answer cannot be made: a client must not wait for ever."""

    __slots__ = ("_reply",)

    def __init__(self, reply: Reply) -> None:
        self._reply = reply

    def __enter__(self) -> None:
        """Nothing is to be done before."""

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: TracebackType | None) -> None:
        if error is not None:
            self._reply.close_connection(f"its answer could not be made: {error}")


def build(entity_class: Any, values: Mapping[str, Any]) -> Any:
    """An entity of kio's from a mapping; nested entities are mappings, arrays are iterables."""
    known = _fields(entity_class)
    unknown = values.keys() - known.keys() - _names_in_other_versions(entity_class)
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
def _names_in_other_versions(entity_class: Any) -> frozenset[str]:
    api = APIS[entity_class.__api_key__]
    names: set[str] = set()
    for version in range(api.version_min, api.version_max + 1):
        _collect_names(request_class(api.key, version), names)
        _collect_names(response_class(api.key, version), names)
    return frozenset(names)


def _collect_names(entity_class: Any, names: set[str]) -> None:
    for name, nested in _fields(entity_class).items():
        names.add(name)
        if nested is not None:
            _collect_names(nested, names)
