"""Requests, bytes, errors and response times by API, counted while requests are served.

A request costs about a microsecond more with it. Nothing is kept per client, so clients cannot make it grow: labels are
the APIs that the broker serves, one for all other keys, and Kafka's error codes.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from time import perf_counter
from typing import Any

from onceflow.broker.network.connection import Connection, Decode, Handle
from onceflow.broker.network.reply import Piece, Reply
from onceflow.metrics_server import BOUNDS_S
from onceflow.wire import apis

UNKNOWN_API = "unknown"
FIELDS_PER_STEP = 16
WORK_PER_STEP = 5


class ApiTraffic:
    """Traffic of one API since the start of the broker."""

    __slots__ = ("buckets", "errors", "name", "request_bytes", "requests", "response_bytes", "seconds")

    def __init__(self, name: str) -> None:
        self.name = name
        self.requests = 0
        self.request_bytes = 0
        self.response_bytes = 0
        self.errors: Counter[int] = Counter()
        self.buckets = [0] * (len(BOUNDS_S) + 1)
        """Responses by the time from the request's handling to its response."""
        self.seconds = 0.0

    def add_response(self, pieces: Sequence[Piece], seconds: float) -> None:
        """Count a response."""
        self.seconds += seconds
        self.buckets[bisect_left(BOUNDS_S, seconds)] += 1
        for piece in pieces:
            self.response_bytes += len(piece) if isinstance(piece, bytes) else piece.size_bytes


class MeteredReply(Reply):
    """A reply that counts its response and the errors in it. `Traffic.handling` sets its attributes."""

    __slots__ = ("began_s", "traffic")

    traffic: ApiTraffic
    began_s: float

    def send(self, pieces: Sequence[Piece]) -> None:
        # The base's code again: this is called for each request.
        if self.pieces is None:
            if self.limit is not None:
                pieces = self.limit.throttled(pieces)
            self.traffic.add_response(pieces, perf_counter() - self.began_s)
            self.pieces = pieces
            self.connection.enqueue_response(pieces)

    def count_error(self, error_code: int) -> None:
        """Count an error of the response."""
        if error_code:
            self.traffic.errors[int(error_code)] += 1

    def count_errors(self, values: Mapping[str, Any]) -> Iterator[int]:
        """Count the errors in a response's fields, nested ones too; yield the cost of each step."""
        self.count_error(values.get("error_code", 0))
        for value in values.values():
            if isinstance(value, list | tuple):
                for number, element in enumerate(value):
                    if not isinstance(element, Mapping):
                        break
                    yield from self.count_errors(element)
                    if number % FIELDS_PER_STEP == FIELDS_PER_STEP - 1:
                        yield WORK_PER_STEP


class Traffic:
    """Traffic of all APIs. All methods run on the event loop."""

    def __init__(self) -> None:
        self._by_key = {key: ApiTraffic(api.name) for key, api in apis.CLUSTER_APIS.items()}
        self._unknown = ApiTraffic(UNKNOWN_API)

    def __iter__(self) -> Iterator[ApiTraffic]:
        yield from self._by_key.values()
        yield self._unknown

    def handling(self, handle: Handle) -> Handle:
        """Return `handle` so that it counts its requests."""
        by_key, unknown = self._by_key, self._unknown

        def handle_metered(frame: memoryview, reply: Reply, connection: Connection) -> None:
            traffic = by_key.get(frame[0] << 8 | frame[1], unknown)
            traffic.requests += 1
            traffic.request_bytes += 4 + len(frame)
            assert isinstance(reply, MeteredReply)
            reply.traffic = traffic
            reply.began_s = perf_counter()
            handle(frame, reply, connection)

        return handle_metered

    def decoding(self, decode: Decode) -> Decode:
        """Return `decode` so that the large requests are counted when they are handled."""

        def decode_metered(frame: memoryview, connection: Connection) -> Generator[int, None, Handle]:
            handle = yield from decode(frame, connection)
            return self.handling(handle)

        return decode_metered
