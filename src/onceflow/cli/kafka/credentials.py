"""`onceflow credential`: users that authenticate with SCRAM."""

import json
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from onceflow.cli.command_group import Commands
from onceflow.cli.options import bootstrap_option, json_option, not_empty
from onceflow.cli.output import stdout_may_close, table
from onceflow.cli.security import open_cluster
from onceflow.errors import OnceflowError
from onceflow.private_files import MODE, is_exposed
from onceflow.wire.scram import BY_NAME, ITERATIONS_MAX, ITERATIONS_MIN

if TYPE_CHECKING:
    from onceflow.broker.offline import Store

_Command = TypeVar("_Command", bound=Callable[..., Any])


class PasswordFileOpen(OnceflowError):
    """A file with a password that other users of the machine can read."""


def store_options(command: _Command) -> _Command:
    """Add the options of where users are without a broker, as the parameter `store`."""
    for option in (
        click.option(
            "--zookeeper-config",
            type=click.Path(dir_okay=False, exists=True, path_type=Path),
            is_eager=True,
            expose_value=False,
            callback=_remembered,
            metavar="FILE",
            help="The server.properties of a broker, with zookeeper.ssl.*, zookeeper.digest and zookeeper.set.acl, for"
            " --zookeeper.",
        ),
        click.option(
            "--zookeeper",
            is_eager=True,
            expose_value=False,
            callback=_remembered,
            metavar="HOST:PORT[,...][/CHROOT]",
            help="ZooKeeper of a cluster, in place of --bootstrap; also before its first start.",
        ),
        click.option(
            "--data",
            "store",
            type=click.Path(file_okay=False, path_type=Path),
            callback=_store,
            metavar="DIRECTORY",
            help="Data directory of a broker that does not run, in place of --bootstrap; for a broker on its own, also"
            " before its first start.",
        ),
    ):
        command = option(command)
    return command


def _remembered(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    context.meta[f"{__name__}.{parameter.name}"] = value


def _store(context: click.Context, parameter: click.Parameter, data: Path | None) -> "Store | None":
    """Return where the users are, None for a running broker."""
    zookeeper, file = (context.meta.get(f"{__name__}.{name}") for name in ("zookeeper", "zookeeper_config"))
    if file is not None and zookeeper is None:
        raise click.UsageError("--zookeeper-config has no effect without --zookeeper")
    if zookeeper is not None and data is not None:
        raise click.UsageError("specify either --data or --zookeeper")
    if zookeeper is None and data is None:
        return None
    from onceflow.broker import offline
    from onceflow.broker.settings.kinds import SettingRefused
    from onceflow.broker.settings.sources import Source, from_file, resolve

    if data is not None:
        return partial(offline.in_directory, data)
    place = Source({"zookeeper.connect": str(zookeeper), "log.dirs": "."})
    try:
        return partial(offline.in_zookeeper, resolve(*([] if file is None else [from_file(file)]), place).config)
    except SettingRefused as error:
        raise click.UsageError(str(error)) from error


mechanism_option = click.option(
    "--mechanism",
    "mechanisms",
    type=click.Choice(list(BY_NAME), case_sensitive=False),
    multiple=True,
    default=list(BY_NAME),
    show_default=True,
    help="SCRAM mechanism; may be repeated.",
)


@click.group(cls=Commands)
def credential() -> None:
    """Add, list and remove users that authenticate with SCRAM.

    \b
    Example:
      onceflow credential add ada --data ./broker
      onceflow credential list
    """


@credential.command()
@click.argument("user", callback=not_empty)
@mechanism_option
@click.option(
    "--iterations",
    type=click.IntRange(ITERATIONS_MIN, ITERATIONS_MAX),
    default=ITERATIONS_MIN,
    show_default=True,
    help="Iterations of the password's hash.",
)
@click.option(
    "--password-file",
    type=click.Path(dir_okay=False, allow_dash=True, path_type=Path),
    help="File whose first line is the password; - is standard input. Without it, the command asks for the password.",
)
@store_options
@bootstrap_option
@json_option
def add(
    user: str,
    mechanisms: Sequence[str],
    iterations: int,
    password_file: Path | None,
    store: "Store | None",
    bootstrap: str,
    as_json: bool,
) -> None:
    """Add a user, or change its password.

    The broker stores salted keys, never the password. No option takes the password: every user of the machine could
    read it in the list of processes.

    \b
    Example:
      onceflow credential add ada --data ./broker --password-file ada.password
      onceflow credential add broker --zookeeper zookeeper.example:2181/kafka
    """
    password = _password(password_file)
    if store is not None:
        from onceflow.broker import offline

        offline.set_password(store, user, password, mechanisms, iterations)
    else:
        from onceflow.client import credentials

        with open_cluster(bootstrap) as cluster:
            credentials.set_password(cluster, user, password, mechanisms, iterations)
    _report(user, mechanisms, as_json=as_json, what="stored")


@credential.command("list")
@store_options
@bootstrap_option
@json_option
def list_credentials(store: "Store | None", bootstrap: str, as_json: bool) -> None:
    """List the users with their mechanisms.

    \b
    Example:
      onceflow credential list --json
    """
    users: Sequence[tuple[str, str, int]]
    if store is not None:
        users = store(())
    else:
        from onceflow.client import credentials

        with open_cluster(bootstrap) as cluster:
            users = credentials.list_credentials(cluster)
    with stdout_may_close():
        if as_json:
            names = ("user", "mechanism", "iterations")
            click.echo(json.dumps([dict(zip(names, row, strict=True)) for row in users]))
        else:
            table([("USER", "MECHANISM", "ITERATIONS"), *users])


@credential.command()
@click.argument("user", callback=not_empty)
@mechanism_option
@store_options
@bootstrap_option
@json_option
def remove(user: str, mechanisms: Sequence[str], store: "Store | None", bootstrap: str, as_json: bool) -> None:
    """Remove a user. Its open connections stay authenticated.

    \b
    Example:
      onceflow credential remove ada
    """
    if store is not None:
        from onceflow.broker import offline

        offline.remove_user(store, user, mechanisms)
    else:
        from onceflow.client import credentials

        with open_cluster(bootstrap) as cluster:
            credentials.remove_user(cluster, user, mechanisms)
    _report(user, mechanisms, as_json=as_json, what="removed")


def _report(user: str, mechanisms: Sequence[str], *, as_json: bool, what: str) -> None:
    with stdout_may_close():
        if as_json:
            click.echo(json.dumps({"user": user, "mechanisms": list(mechanisms)}))
        else:
            click.echo(f"user {user} was {what}: {', '.join(mechanisms)}")


def _password(path: Path | None) -> str:
    """Return the password. Raises PasswordFileOpen."""
    if path is None:
        return str(click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True))
    if str(path) == "-":
        text = sys.stdin.readline()
    else:
        try:
            if is_exposed(path):
                raise PasswordFileOpen(f"--password-file {path}: other users can read it; {MODE}")
            text = path.read_text(encoding="utf-8").partition("\n")[0]
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise click.BadParameter(f"{path} cannot be read: {reason}", param_hint="--password-file") from error
    password = text.rstrip("\r\n")
    if not password:
        raise click.BadParameter("the password must not be empty", param_hint="--password-file")
    return password
