"""One connection with pre-encoded requests: the broker's speed, almost without a client.

The same record batch is sent repeatedly, without a producer id, so that every request is appended.
"""

import multiprocessing
import socket
import statistics
import struct
import time
from concurrent.futures import ProcessPoolExecutor

from benchmarks.peers import Peer
from onceflow.wire import fetch, produce
from onceflow.wire.batch import Record, encode_batch
from onceflow.wire.fetch import FetchPartition, FetchRequest

PRODUCE_VERSION = 9
FETCH_VERSION = 12
TIMEOUT_SECONDS = 60
IN_FLIGHT = 5
SIZE = struct.Struct(">i")
PRODUCE_ERROR = struct.Struct(">ih")


class RawConnection:
    """Blocking connection; responses are read completely, and only their error code is checked."""

    def __init__(self, bootstrap: str) -> None:
        host, _, port = bootstrap.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=TIMEOUT_SECONDS)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = bytearray(16 << 20)
        self._view = memoryview(self._buffer)

    def send(self, request: bytes) -> None:
        """Send without waiting for the response."""
        self._socket.sendall(request)

    def respond(self) -> memoryview:
        """Return the next response without its size."""
        self._fill(4)
        (size_bytes,) = SIZE.unpack_from(self._buffer)
        self._fill(size_bytes)
        return self._view[:size_bytes]

    def _fill(self, size_bytes: int) -> None:
        have = 0
        while have < size_bytes:
            came = self._socket.recv_into(self._view[have:size_bytes])
            if not came:
                raise ConnectionError("the broker closed the connection")
            have += came

    def __enter__(self) -> "RawConnection":
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()


def produce_request(topic: str, records: int, value_bytes: int) -> bytes:
    """Return a request with acks=all and one batch for partition 0."""
    now_ms = int(time.time() * 1000)
    batch = encode_batch([Record(offset, now_ms, None, bytes(value_bytes)) for offset in range(records)])
    pieces = produce.encode_request(
        PRODUCE_VERSION, 1, "raw", transactional_id=None, acks=-1, timeout_ms=30_000, topics=[(topic, [(0, batch)])]
    )
    return b"".join(map(bytes, pieces))


def check_produced(response: memoryview) -> None:
    """Raise RuntimeError unless the batch was appended."""
    (_, topics, _) = produce.parse_response(PRODUCE_VERSION, response)
    code = topics[0][1][0].error_code
    if code:
        raise RuntimeError(f"Produce failed with error {code}")


def stream(bootstrap: str, request: bytes, count: int, in_flight: int = IN_FLIGHT) -> float:
    """Return requests per second until the last response."""
    with RawConnection(bootstrap) as connection:
        started = time.perf_counter()
        for sent in range(count + in_flight):
            if sent >= in_flight:
                check_produced(connection.respond())
            if sent < count:
                connection.send(request)
        return count / (time.perf_counter() - started)


def produced(peer: Peer, topic: str, records: int, value_bytes: int, count: int) -> tuple[float]:
    """Return records per second over one connection."""
    return (records * stream(peer.bootstrap, produce_request(topic, records, value_bytes), count),)


def produced_by_two(peer: Peer, topic: str, records: int, value_bytes: int, count: int) -> tuple[float]:
    """Return records per second over two connections of two processes, from the first start to the last end."""
    request = produce_request(topic, records, value_bytes)
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        list(pool.map(stream, [peer.bootstrap] * 2, [request] * 2, [10] * 2))
        started = time.perf_counter()
        list(pool.map(stream, [peer.bootstrap] * 2, [request] * 2, [count] * 2))
        return (2 * count * records / (time.perf_counter() - started),)


def one_at_a_time(peer: Peer, topic: str, count: int) -> tuple[float, float]:
    """Return median and 99th percentile in ms from a request with one record of 100 bytes to its response."""
    request = produce_request(topic, 1, 100)
    taken = []
    with RawConnection(peer.bootstrap) as connection:
        for _ in range(count):
            started = time.perf_counter()
            connection.send(request)
            check_produced(connection.respond())
            taken.append(1000 * (time.perf_counter() - started))
    return statistics.median(taken), statistics.quantiles(taken, n=100)[98]


def fetched(
    peer: Peer, topic: str, response_bytes: int, total_bytes: int, log_bytes: int = 200_000_000
) -> tuple[float]:
    """Return MB (10^6 bytes) per second of responses up to `response_bytes`, in rounds over `log_bytes`."""
    batch_records, value_bytes = 16, 1000
    request = produce_request(topic, batch_records, value_bytes)
    stream(peer.bootstrap, request, log_bytes // len(request))
    came = offset = 0
    with RawConnection(peer.bootstrap) as connection:
        started = time.perf_counter()
        while came < total_bytes:
            asked = FetchPartition(0, -1, offset, -1, response_bytes)
            limits = FetchRequest(-1, 0, 1, response_bytes, 0, 0, -1, [(topic, [asked])])
            connection.send(fetch.encode_request(FETCH_VERSION, 1, "raw", limits))
            response = connection.respond()
            came += len(response)
            offset += batch_records * (len(response) // len(request))
            if len(response) < len(request):
                offset = 0
        return (came / (time.perf_counter() - started) / 1e6,)
