"""`onceflow dashboard`: serve the live page."""

import click

from onceflow.cli.options import DASHBOARD_PORT, bootstrap_option, redis_options
from onceflow.cli.security import security


@click.command()
@redis_options
@bootstrap_option
@click.option("--topic", default="user_events", show_default=True, help="Topic to show until something is counted.")
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on. There is no authentication; keep it on this machine.",
)
@click.option(
    "--port",
    default=DASHBOARD_PORT,
    show_default=True,
    type=click.IntRange(0, 65535),
    help="Port to listen on; 0 for any free port.",
)
def dashboard(redis_url: str, hash_key: str, bootstrap: str, topic: str, host: str, port: int) -> None:
    """Serve the live dashboard: clicks, users, rate and lag.

    Prints its address and runs until Ctrl-C. It only reads from Redis and the broker.

    \b
    Example: onceflow dashboard --redis redis://127.0.0.1:6379/1 --port 8080
    """
    from onceflow.dashboard.server import serve
    from onceflow.dashboard.sources import Addresses

    addresses = Addresses(redis_url, hash_key, bootstrap, topic, security())
    serve(addresses, host=host, port=port, announce=click.echo, warn=lambda text: click.echo(text, err=True))
