"""`onceflow dashboard`: serve the live page."""

from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

import click

from onceflow.cli.options import DASHBOARD_PORT, bootstrap_option, redis_options
from onceflow.cli.security import security


def _links(context: click.Context, parameter: click.Parameter, values: Sequence[str]) -> list[tuple[str, str]]:
    links = []
    for text in values:
        name, equals, url = text.partition("=")
        if not name or not equals or urlsplit(url).scheme not in ("http", "https"):
            raise click.BadParameter(f"'{text}' is not NAME=URL, as in Spark=http://127.0.0.1:4040")
        links.append((name, url))
    return links


@click.command()
@redis_options
@bootstrap_option
@click.option("--topic", default="user_events", show_default=True, help="Topic to show until something is counted.")
@click.option(
    "--archive",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory of 'onceflow archive', for filters, timelines of users, and what the counts do not have.",
)
@click.option(
    "--link",
    "links",
    multiple=True,
    callback=_links,
    metavar="NAME=URL",
    help="Page to link beside the state of the stream, such as Spark=http://127.0.0.1:4040; may be repeated.",
)
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
def dashboard(
    redis_url: str,
    hash_key: str,
    bootstrap: str,
    topic: str,
    archive: Path | None,
    links: list[tuple[str, str]],
    host: str,
    port: int,
) -> None:
    """Serve the live dashboard: clicks, users, rate and lag; and the API of all numbers.

    Prints its address and runs until Ctrl-C. It only reads from Redis, the broker and the archive.

    \b
    Examples:
      onceflow dashboard --redis redis://127.0.0.1:6379/1 --port 8080
      onceflow dashboard --archive .onceflow/archive
      curl 'http://127.0.0.1:8080/api/v1/series?per=hour&by=os&format=csv'
    """
    from onceflow.dashboard.server import serve
    from onceflow.dashboard.sources import Addresses

    addresses = Addresses(redis_url, hash_key, bootstrap, topic, security())
    serve(
        addresses,
        archive=archive,
        links=links,
        host=host,
        port=port,
        announce=click.echo,
        warn=lambda text: click.echo(text, err=True),
    )
