"""`onceflow dashboard`: serve the live page."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import click

from onceflow.cli.options import DASHBOARD_PORT, bootstrap_option, redis_options
from onceflow.cli.security import security

if TYPE_CHECKING:
    from onceflow.dashboard.login import Login


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
    help="Address to listen on; one that other machines can reach needs a login.",
)
@click.option(
    "--port",
    default=DASHBOARD_PORT,
    show_default=True,
    type=click.IntRange(0, 65535),
    help="Port to listen on; 0 for any free port.",
)
@click.option(
    "--token-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File with a token of 16 to 256 characters, which the page's form and programs (Authorization: Bearer TOKEN) "
    "must have. Other users must not be able to read it.",
)
@click.option(
    "--trust-header",
    metavar="NAME",
    help="Header in which a reverse proxy names the user who has logged in there; needs --trusted-proxies.",
)
@click.option(
    "--trusted-proxies",
    metavar="ADDRESS[,...]",
    help="Addresses or networks of the proxies whose --trust-header is believed.",
)
@click.option(
    "--server-name",
    "server_names",
    multiple=True,
    metavar="NAME",
    help="Name that the Host header of requests may have, such as that of a reverse proxy; may be repeated. "
    "[default: this machine's names on loopback, any name elsewhere]",
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
    token_file: Path | None,
    trust_header: str | None,
    trusted_proxies: str | None,
    server_names: Sequence[str],
) -> None:
    """Serve the live dashboard: clicks, users, rate and lag; and the API of all numbers.

    Prints its address and runs until Ctrl-C. It only reads from Redis, the broker and the archive.

    \b
    Examples:
      onceflow dashboard --redis redis://127.0.0.1:6379/1 --port 8080
      onceflow dashboard --archive .onceflow/archive
      onceflow dashboard --host 0.0.0.0 --token-file token
      curl 'http://127.0.0.1:8080/api/v1/series?per=hour&by=os&format=csv'
    """
    from onceflow.dashboard.server import serve
    from onceflow.dashboard.sources import Addresses

    login = _login(token_file, trust_header, trusted_proxies)
    addresses = Addresses(redis_url, hash_key, bootstrap, topic, security())
    serve(
        addresses,
        archive=archive,
        links=links,
        login=login,
        server_names=server_names,
        host=host,
        port=port,
        announce=click.echo,
    )


def _login(token_file: Path | None, header: str | None, proxies: str | None) -> "Login":
    from onceflow.dashboard.login import NO_LOGIN, ProxyLogin, TokenLogin, WrongProxy, read_token

    if (header is None) != (proxies is None):
        raise click.UsageError("--trust-header and --trusted-proxies belong together: anyone could send the header")
    if header is None or proxies is None:
        return NO_LOGIN if token_file is None else TokenLogin(read_token(token_file))
    if token_file is not None:
        raise click.UsageError("--token-file and --trust-header are two ways to log in; give one of them")
    try:
        return ProxyLogin(header, [text.strip() for text in proxies.split(",")])
    except WrongProxy as error:
        raise click.BadParameter(str(error), param_hint="--trusted-proxies") from error
