"""`onceflow broker`: run the broker in this process until it is told to stop."""

import asyncio
import logging
import re
import resource
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from onceflow.errors import OnceflowError

if TYPE_CHECKING:
    from onceflow.broker.node import BrokerConfig

ANY_ADDRESS = ("0.0.0.0", "::")


class Address(click.ParamType):  # type: ignore[type-arg]
    """HOST:PORT, an IPv6 host in brackets."""

    name = "host:port"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, int]:
        match = re.fullmatch(r"(?:\[(?P<ipv6>[^\]]+)\]|(?P<host>[^:\[\]]+)):(?P<port>[0-9]{1,5})", str(value))
        if match is None or int(match["port"]) > 65535:
            self.fail(f"{value!r} is not HOST:PORT with a port from 0 to 65535, such as 127.0.0.1:9092", param, ctx)
        return match["ipv6"] or match["host"], int(match["port"])


@click.command()
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    help="Directory that holds the log; made if it is not there. One broker at a time.",
)
@click.option(
    "--listen",
    type=Address(),
    default="127.0.0.1:9092",
    show_default=True,
    metavar="HOST:PORT",
    help="Address to take connections on; port 0 takes any free port.",
)
@click.option(
    "--advertise",
    type=Address(),
    metavar="HOST:PORT",
    help="Address that clients are told to connect to.  [default: the one of --listen]",
)
@click.option(
    "--auto-create-topics/--no-auto-create-topics",
    default=True,
    show_default=True,
    help="Whether a client that asks for an unknown topic gets it created.",
)
@click.option(
    "--partitions",
    type=click.IntRange(1, 1000),
    default=1,
    show_default=True,
    help="Partitions of a topic whose creator does not say how many.",
)
def broker(
    data: Path,
    listen: tuple[str, int],
    advertise: tuple[str, int] | None,
    auto_create_topics: bool,
    partitions: int,
) -> None:
    """Run a durable broker that speaks Kafka's protocol.

    Kafka's clients use it as they use Kafka. A record that was acknowledged to acks=all is on disk: it survives a
    killed broker and a power cut. The first line printed is "listening on HOST:PORT"; messages go to standard error.
    Ctrl-C or SIGTERM stops it cleanly.

    Example: onceflow broker --data ./broker --listen 127.0.0.1:9092
    """
    if listen[0] in ANY_ADDRESS and advertise is None:
        raise OnceflowError(
            f"--listen {listen[0]}:{listen[1]} takes connections on every address of this machine: say with --advertise"
            " HOST:PORT which one clients should use"
        )
    from onceflow.broker.node import BrokerConfig

    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    _allow_many_files()
    asyncio.run(_serve(BrokerConfig(data, *listen, advertise, auto_create_topics, partitions)))


def _allow_many_files() -> None:
    """Each partition and each connection holds files open; the soft limit is often 1,024."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def _serve(config: "BrokerConfig") -> None:
    from onceflow.broker.server import Broker

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    server = Broker(config)
    try:
        await server.start()
    except OSError as error:
        raise OnceflowError(f"--data {config.data} cannot be used: {error}; choose another directory") from error
    print(f"listening on {_text(config.host)}:{server.port}", flush=True)
    await stop.wait()
    await server.stop()


def _text(host: str) -> str:
    return f"[{host}]" if ":" in host else host
