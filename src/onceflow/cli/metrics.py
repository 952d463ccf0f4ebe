"""`--metrics-host` and `--metrics-port` of commands."""

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import click

from onceflow.cli.logs import print_line
from onceflow.cli.notes import note
from onceflow.listening import is_loopback

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

logger = logging.getLogger(__name__)

_Command = TypeVar("_Command", bound=Callable[..., Any])


def metrics_options(command: _Command) -> _Command:
    """Add the options for Prometheus, which `serving_metrics` takes."""
    command = click.option(
        "--metrics-host",
        default="127.0.0.1",
        show_default=True,
        metavar="HOST",
        help="Address on which --metrics-port listens. There is no authentication.",
    )(command)
    return click.option(
        "--metrics-port",
        type=click.IntRange(0, 65535),
        help="Port for Prometheus, which reads http://HOST:PORT/metrics; 0 for any free port.  [default: no metrics]",
    )(command)


@contextlib.contextmanager
def serving_metrics(host: str, port: int | None, collect: "Callable[[], Iterable[Metric]]") -> Iterator[None]:
    """Serve metrics until the block ends, and print their address; nothing without a port. Raises CannotListen."""
    if port is None:
        yield
        return
    from onceflow.metrics_server import MetricsServer

    if not is_loopback(host):
        print_line(f"warning: {open_metrics(host, port)}", logging.WARNING)
    server = MetricsServer(host, port, collect)
    note(f"metrics are at {server.url}")
    server.start()
    try:
        yield
    finally:
        server.stop()


def warn_if_open(host: str, port: int) -> None:
    """Log a warning if other machines can read the metrics."""
    if not is_loopback(host):
        logger.warning("%s", open_metrics(host, port))


def open_metrics(host: str, port: int) -> str:
    """Return the warning about an address that other machines can reach."""
    return (
        f"metrics on {host}:{port} are open to other machines without authentication: they name topics, groups and"
        " queries; keep them inside a trusted network"
    )
