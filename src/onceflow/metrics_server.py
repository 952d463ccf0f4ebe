"""Server of `/metrics` in threads of its own, for programs without an HTTP server: the broker and the pipeline.

Clients cannot make it grow: a connection beyond the limit closes the oldest one, one scrape is collected at a time, and
few may wait for it. A server on loopback responds only to the names of this machine.
"""

import logging
import re
import socket
import threading
from collections.abc import Callable, Iterable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import accumulate
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from onceflow.listening import is_loopback, listen, local_names, url

logger = logging.getLogger(__name__)

CONNECTIONS_MAX = 8
SCRAPES_MAX = 8
"""Maximum of the scrapes that are collected or wait. A closed connection does not end one that waits."""
READ_SECONDS = 10.0
POLL_SECONDS = 0.25
"""Maximum time until a stop is noticed."""
PATH = "/metrics"
BOUNDS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds of the buckets of response times; the last bucket has none."""

Collect = Callable[[], Iterable[Metric]]


class _Collector(Collector):
    def __init__(self, collect: Collect) -> None:
        self._collect = collect

    def describe(self) -> Iterable[Metric]:
        """Return nothing, so that a registration does not collect."""
        return ()

    def collect(self) -> Iterable[Metric]:
        return self._collect()


def registry_of(collect: Collect) -> CollectorRegistry:
    """Return a registry of the collected metrics and of this process: processor time, memory, open files."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    registry.register(_Collector(collect))
    return registry


def exposition(registry: CollectorRegistry, accept: str) -> tuple[bytes, str]:
    """Return the metrics in the format that the Accept header asks for, and its content type."""
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


def cumulative(buckets: Sequence[int]) -> list[tuple[str, float]]:
    """Return the buckets of a histogram with BOUNDS_S as Prometheus counts them: each includes those before it."""
    return list(zip([*map(str, BOUNDS_S), "+Inf"], accumulate(buckets), strict=True))


class MetricsServer:
    """Listens from its creation; serves between `start` and `stop`."""

    def __init__(self, host: str, port: int, collect: Collect) -> None:
        """Listen; `collect` runs in a thread of the server. Raises CannotListen."""
        names = local_names(host) if is_loopback(host) else None
        self._server = _Server(listen(host, port, option="--metrics-"), registry_of(collect), names)
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(POLL_SECONDS,), name="metrics", daemon=True
        )

    @property
    def url(self) -> str:
        """Address of the metrics."""
        return url(self._server.socket) + PATH

    def start(self) -> None:
        """Serve in a thread."""
        self._thread.start()

    def stop(self) -> None:
        """Accept no more connections, and end the thread."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()

    def close_descriptor(self) -> None:
        """Close the copied descriptor in a forked child, which has no thread."""
        self._server.socket.close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, listening: socket.socket, registry: CollectorRegistry, names: Sequence[str] | None) -> None:
        """`names` are those that a Host header may carry; None: any."""
        super().__init__(listening.getsockname()[:2], _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listening
        self.registry = registry
        self.names = names
        self.scrape = threading.Lock()
        self.places = threading.BoundedSemaphore(SCRAPES_MAX)
        self._open: dict[socket.socket, None] = {}
        self._lock = threading.Lock()

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._open[request] = None
            surplus = next(iter(self._open)) if len(self._open) > CONNECTIONS_MAX else None
            if surplus is not None:
                del self._open[surplus]
                _shut_down(surplus)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log it; clients may disconnect at any time."""
        logger.debug("scrape of %s ended early", client_address, exc_info=True)


def _shut_down(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        logger.debug("the oldest scrape was closed already")


class _Handler(BaseHTTPRequestHandler):
    timeout = READ_SECONDS
    server: _Server

    def do_GET(self) -> None:
        if not self._is_for_us():
            self._respond(400, "text/plain; charset=utf-8", b"invalid Host header; expected a name of this machine\n")
            return
        if self.path.partition("?")[0] != PATH:
            self._respond(404, "text/plain; charset=utf-8", f"metrics are at {PATH}\n".encode())
            return
        if not self.server.places.acquire(blocking=False):
            self._respond(503, "text/plain; charset=utf-8", f"{SCRAPES_MAX} other scrapes are in progress\n".encode())
            return
        try:
            with self.server.scrape:
                content, content_type = exposition(self.server.registry, self.headers.get("Accept", ""))
        except Exception as error:
            logger.exception("metrics could not be collected")
            self._respond(500, "text/plain; charset=utf-8", f"metrics could not be collected: {error}\n".encode())
            return
        finally:
            self.server.places.release()
        self._respond(200, content_type, content)

    def _is_for_us(self) -> bool:
        """Return whether the Host header is one of ours: a page whose name leads here must not read the metrics."""
        name = re.sub(r":[0-9]*$", "", self.headers.get("Host", "")).lower()
        return self.server.names is None or name in self.server.names

    def _respond(self, status: int, content_type: str, content: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *arguments: Any) -> None:
        """Log nothing for a request."""
