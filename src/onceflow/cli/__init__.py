"""The command line: the one place that joins all packages.

Each module holds the commands of one noun and imports other packages inside the command. So `onceflow --help` starts
quickly and the base install works without Spark. `main` turns errors into the exit codes of docs/cli.md.
"""

import importlib
import sys
from pathlib import Path
from typing import Any

import click

from onceflow import __version__
from onceflow.cli.command_group import Commands
from onceflow.cli.logs import FORMATS, is_json, print_error, use_format
from onceflow.errors import OnceflowError, missing_package

COMMANDS = {
    "broker": "onceflow.cli.broker:broker",
    "topic": "onceflow.cli.kafka.topics:topic",
    "produce": "onceflow.cli.kafka.records:produce",
    "consume": "onceflow.cli.kafka.records:consume",
    "load": "onceflow.cli.kafka.load:load",
    "mirror": "onceflow.cli.kafka.mirror:mirror",
    "group": "onceflow.cli.kafka.groups:group",
    "config": "onceflow.cli.kafka.configs:config",
    "transaction": "onceflow.cli.kafka.transactions:transaction",
    "credential": "onceflow.cli.kafka.credentials:credential",
    "cluster": "onceflow.cli.kafka.cluster:cluster",
    "acl": "onceflow.cli.kafka.acls:acl",
    "sink": "onceflow.cli.sinks:sink",
    "status": "onceflow.cli.status:status",
    "watch": "onceflow.cli.watch:watch",
    "doctor": "onceflow.cli.doctor.command:doctor",
    "log": "onceflow.cli.log.dump:log",
    "generate": "onceflow.cli.clicks.events:generate",
    "replay": "onceflow.cli.clicks.events:replay",
    "serve": "onceflow.cli.clicks.serve:serve",
    "run": "onceflow.cli.clicks.pipeline:run",
    "verify": "onceflow.cli.clicks.pipeline:verify",
    "rebuild": "onceflow.cli.clicks.rebuild:rebuild",
    "clicks": "onceflow.cli.clicks.results:clicks",
    "windows": "onceflow.cli.clicks.analytics:windows",
    "top": "onceflow.cli.clicks.analytics:top",
    "sessions": "onceflow.cli.clicks.analytics:sessions",
    "user": "onceflow.cli.clicks.analytics:user",
    "dead": "onceflow.cli.clicks.results:dead",
    "archive": "onceflow.cli.clicks.archive:archive",
    "query": "onceflow.cli.clicks.archive:query",
    "report": "onceflow.cli.clicks.archive:report",
    "dashboard": "onceflow.cli.clicks.dashboard:dashboard",
    "demo": "onceflow.cli.demo.commands:demo",
    "reset": "onceflow.cli.demo.commands:reset",
}
"""Command name → module and object, imported only when the command is called."""

SUMMARIES: dict[str, str] = {
    "broker": "Run a durable Kafka-protocol broker.",
    "topic": "Create, list, describe, alter, trim and delete topics.",
    "produce": "Write lines from standard input to a topic.",
    "consume": "Read a topic's records.",
    "load": "Load a topic into Parquet files, all or nothing, from where the last load ended.",
    "mirror": "Copy topics to another cluster, exactly once.",
    "group": "List, describe, reset and delete consumer groups.",
    "config": "Show and change topic configs; show broker configs.",
    "transaction": "List, describe and abort transactions.",
    "credential": "Add, list and remove users that authenticate with SCRAM.",
    "cluster": "Show the brokers and replicas of a cluster, or run one on this machine.",
    "acl": "Add, list and remove access control lists.",
    "sink": "Show and reset the state of exactly-once sinks.",
    "status": "Show brokers, topics, groups with lag, the count's progress and Redis on one screen.",
    "watch": "Report when the lag, the rate or a server needs attention, also to a webhook.",
    "doctor": "Check packages, Java, ports, disk, Kafka, Redis and clocks; each problem with its remedy.",
    "log": "Inspect log files.",
    "generate": "Write generated click events to a topic.",
    "replay": "Write log files to a topic as click events.",
    "serve": "Accept events over HTTP, from web pages and programs.",
    "run": "Count events exactly once: topic → Spark → Redis.",
    "verify": "Recount the log and compare with Redis.",
    "rebuild": "Count everything again beside the live counts, then replace them.",
    "clicks": "Show clicks per user, or export them.",
    "windows": "Show events, clicks and distinct users in windows of time.",
    "top": "Show the top values of a dimension, or the top users, of an hour or a day.",
    "sessions": "Show the users' sessions.",
    "user": "Show one user's clicks and sessions.",
    "dead": "Show events that could not be counted.",
    "archive": "Keep events as Parquet files by day and hour, each once.",
    "query": "Ask about archived events, with combined filters.",
    "report": "Write a report of a day or week as one HTML file.",
    "dashboard": "Serve the live dashboard.",
    "demo": "Run the whole pipeline on this machine, with events and a dashboard.",
    "reset": "Delete the demo's data and counts.",
}

EXTRAS = {
    "produce": "client",
    "generate": "client",
    "replay": "client",
    "serve": "client,dashboard",
    "run": "spark",
    "verify": "client,dashboard",
    "rebuild": "client,spark",
    "clicks": "dashboard",
    "windows": "dashboard",
    "top": "dashboard",
    "sessions": "dashboard",
    "user": "dashboard",
    "dead": "dashboard",
    "archive": "spark",
    "query": "archive",
    "report": "archive",
    "dashboard": "dashboard",
    "sink": "spark",
    "status": "dashboard",
    "watch": "dashboard",
    "load": "spark",
}
"""Command name → the smallest extras with its packages; any other command needs `demo`, which has everything."""

PACKAGE_EXTRAS = {
    "scramp": ("client",),
    "prometheus_client": ("metrics", "dashboard"),
    "duckdb": ("archive",),
    "kazoo": ("cluster",),
    "jwt": ("oauth",),
}
"""Package that an option of several commands may need → the extras with it, the smallest first."""

SHOWN_CHARACTERS_MAX = 80


class LazyCommands(Commands):
    """Command group that imports a command when it is called; `--help` needs only the summaries."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        path = COMMANDS.get(name)
        if path is None:
            return None
        module, attribute = path.split(":")
        try:
            command = getattr(importlib.import_module(module), attribute)
        except ModuleNotFoundError as error:
            raise missing_extra(name, error) from error
        assert isinstance(command, click.Command)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ModuleNotFoundError as error:
            raise missing_extra(ctx.invoked_subcommand or "", error) from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(SUMMARIES.items()))


def missing_extra(command: str, error: ModuleNotFoundError) -> OnceflowError:
    """Return an error that names the missing package and the smallest extras with it."""
    package = str(error.name).partition(".")[0]
    wanted = {*EXTRAS.get(command, "").split(",")} - {""}
    of_package = PACKAGE_EXTRAS.get(package, ())
    if of_package and not wanted.intersection(of_package):
        wanted.add(of_package[0])
    extras = ",".join(sorted(wanted)) or "demo"
    return OnceflowError(missing_package(f"'onceflow {command}'", package, extras))


@click.command(cls=LazyCommands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="onceflow")
@click.option(
    "--config-file",
    type=click.Path(dir_okay=False, path_type=Path),
    envvar="ONCEFLOW_CONFIG_FILE",
    show_envvar=True,
    metavar="FILE",
    help="File with bootstrap=HOST:PORT, redis=URL and Kafka's TLS and SASL settings, one per line, for every command "
    "that takes --bootstrap or --redis. Options and environment variables override it.  [default: onceflow.conf in the "
    "user's configuration directory, such as ~/.config/onceflow, if it exists]",
)
@click.option(
    "--log-format",
    type=click.Choice(FORMATS),
    default="text",
    envvar="ONCEFLOW_LOG_FORMAT",
    show_default=True,
    show_envvar=True,
    expose_value=False,
    callback=use_format,
    help="Format of notes, warnings and errors on standard error; json is one object per line.",
)
def onceflow(config_file: Path | None) -> None:
    """Count events exactly once, in real time: events → log → Spark → Redis → dashboard.

    Start with 'onceflow demo'.
    """
    from onceflow.cli.config_file import use

    use(config_file)


def main() -> None:
    """Run the command line and turn an exception into an exit code."""
    try:
        # Without standalone mode click returns the code given to `ctx.exit(code)` instead of leaving.
        code = onceflow.main(standalone_mode=False, prog_name="onceflow")
        sys.exit(code if isinstance(code, int) else 0)
    except click.ClickException as error:
        _show(error)
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        print_error("onceflow: interrupted")
        sys.exit(130)
    except UnicodeEncodeError as error:
        # A name typed in another encoding, or a terminal that cannot show its characters.
        shown = ascii(error.object[:SHOWN_CHARACTERS_MAX])
        print_error(f"onceflow: {shown} cannot be written as {error.encoding}: {error.reason}")
        sys.exit(1)
    except (OnceflowError, OSError) as error:
        # An OSError names its file or address.
        print_error(f"onceflow: {error}")
        sys.exit(1)


def _show(error: click.ClickException) -> None:
    """Print a wrong usage; text has the command's usage above the message."""
    if is_json():
        print_error(f"onceflow: {error.format_message()}")
    else:
        error.show()
