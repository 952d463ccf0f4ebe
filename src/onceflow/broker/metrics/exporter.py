"""`/metrics` of a broker: a scrape's thread asks the event loop for a snapshot and formats it.

The loop gathers in slices, so that a scrape does not delay requests. One scrape is served at a time.
"""

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future

from prometheus_client.metrics_core import Metric

from onceflow.broker.loop.slices import run_in_slices
from onceflow.broker.metrics.families import families
from onceflow.broker.metrics.snapshot import Gathering, Snapshot
from onceflow.errors import OnceflowError
from onceflow.metrics_server import MetricsServer

GATHER_SECONDS_MAX = 10.0


class MetricsUnavailable(OnceflowError):
    """The event loop gives no numbers: it is blocked, or the broker stops."""


class Exporter:
    """Listens from its creation; serves after `start`. Methods run on the event loop, except `collect`."""

    def __init__(self, host: str, port: int) -> None:
        """Listen. Raises CannotListen."""
        self._server = MetricsServer(host, port, self.collect)
        self._new_gathering: Callable[[], Gathering] | None = None
        self._loop = asyncio.get_running_loop()
        self._waiting: Future[Snapshot] | None = None

    @property
    def url(self) -> str:
        """Address of the metrics."""
        return self._server.url

    def start(self, new_gathering: Callable[[], Gathering]) -> None:
        """Serve scrapes."""
        self._new_gathering = new_gathering
        self._server.start()

    async def stop(self) -> None:
        """End; a scrape that waits for the loop fails at once."""
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(MetricsUnavailable("the broker stops"))
        self._new_gathering = None
        await asyncio.to_thread(self._server.stop)

    def close_descriptors(self) -> None:
        """Close the copied descriptor in a forked child."""
        self._server.close_descriptor()

    def collect(self) -> Iterator[Metric]:
        """Return the metrics, gathered on the loop. Runs in the thread of the scrape; raises what gathering raises."""
        future: Future[Snapshot] = Future()
        is_wanted = threading.Event()
        is_wanted.set()
        self._loop.call_soon_threadsafe(self._gather, future, is_wanted)
        try:
            return families(future.result(GATHER_SECONDS_MAX))
        except TimeoutError as error:
            raise MetricsUnavailable(f"the event loop gave no numbers within {GATHER_SECONDS_MAX} s") from error
        finally:
            is_wanted.clear()

    def _gather(self, future: Future[Snapshot], is_wanted: threading.Event) -> None:
        if self._new_gathering is None:
            future.set_exception(MetricsUnavailable("the broker stops"))
            return
        self._waiting = future
        try:
            gathering = self._new_gathering()
            steps = gathering.steps()
        except BaseException as error:
            future.set_exception(error)
            raise
        run_in_slices(
            steps,
            lambda: None if future.done() else future.set_result(gathering.snapshot),
            failed=lambda error: None if future.done() else future.set_exception(error),
            is_wanted=is_wanted.is_set,
        )
