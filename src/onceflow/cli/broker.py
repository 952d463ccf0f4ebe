"""`onceflow broker`: run the broker in this process until a signal stops it."""

import asyncio
import gc
import logging
import os
import resource
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from onceflow.broker.settings.addresses import ANY_ADDRESS, address_text
from onceflow.broker.settings.setting import Setting
from onceflow.broker.settings.table import GROUPS, SETTINGS, weaker_than
from onceflow.cli.logs import use_text_with_times
from onceflow.cli.metrics import warn_if_open
from onceflow.errors import OnceflowError
from onceflow.listening import is_loopback
from onceflow.remedies import Remedy

if TYPE_CHECKING:
    from onceflow.broker.config import BrokerConfig, Endpoint
    from onceflow.broker.settings.sources import Resolved
    from onceflow.zookeeper.session import Session

logger = logging.getLogger(__name__)

SWITCH_SECONDS = 0.0002
"""The interpreter's thread switch interval. With Python's 5 ms, several switches would delay a sync under load."""
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class SettingText(click.ParamType):  # type: ignore[type-arg]
    """Text of a setting: validated here, parsed with the settings of all sources."""

    def __init__(self, setting: Setting) -> None:
        self.name = setting.name
        self._setting = setting

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            self._setting.read(str(value))
        except ValueError as error:
            self.fail(f"{value!r} {error}", param, ctx)
        return str(value)


class BrokerCommand(click.Command):
    """Command whose `--help` shows the common settings by group and hides the options of the others."""

    def __init__(self, *arguments: object, **named: object) -> None:
        super().__init__(*arguments, **named)  # type: ignore[arg-type]
        self.params += [_option(setting) for setting in SETTINGS.values() if setting.options]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        own = {parameter.name: parameter.get_help_record(ctx) for parameter in self.get_params(ctx)}
        for title, group in GROUPS.items():
            records = [record for setting in group if (record := own.pop(_parameter(setting), None)) is not None]
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)
        with formatter.section("Other options"):
            formatter.write_dl([record for record in own.values() if record is not None])


def _parameter(setting: Setting) -> str:
    return setting.name.replace(".", "_")


def _option(setting: Setting) -> click.Option:
    default = f"  [default: {setting.default}]" if setting.default else ""
    return click.Option(
        [*setting.options, _parameter(setting)],
        type=SettingText(setting),
        metavar=setting.kind.metavar,
        help=setting.documentation + default,
        hidden=not setting.is_common,
    )


def _print_settings(ctx: click.Context, _parameter: click.Parameter, is_wanted: bool) -> None:
    if is_wanted and not ctx.resilient_parsing:
        for title, group in GROUPS.items():
            click.echo(f"# {title}")
            for setting in group:
                # A setting of higher precedence would hide an edit of this line.
                is_given = setting.default and not weaker_than(setting)
                click.echo(f"{'' if is_given else '#'}{setting.name}={setting.default or ''}")
        ctx.exit()


@click.command(cls=BrokerCommand)
@click.option(
    "--config-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    envvar="ONCEFLOW_BROKER_CONFIG_FILE",
    help="Kafka server.properties file with any of the settings. Environment variables and options override it.",
)
@click.option(
    "--list-settings",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_settings,
    help="Print every setting with its default as a server.properties file, then exit.",
)
@click.option(
    "--strict-settings",
    is_flag=True,
    help="Refuse Kafka's settings that have no effect here, instead of a warning at the start.",
)
def broker(config_file: Path | None, strict_settings: bool, **options: str | None) -> None:
    """Run a durable broker that speaks Kafka's protocol.

    Kafka clients work with it unchanged. A record acknowledged with acks=all is on disk: it survives a killed broker
    and a power cut. The first line on standard output is "listening on HOST:PORT", followed by a line for each further
    listener; log messages go to standard error.
    Ctrl-C or SIGTERM stops the broker cleanly.

    Settings have Kafka's names and can be given in three ways: log.retention.ms is --log-retention-ms as an option,
    ONCEFLOW_BROKER_LOG_RETENTION_MS in the environment and log.retention.ms in --config-file. Options override the
    environment, which overrides the file. Common settings are listed below; docs/operating.md describes all of them.

    Example: onceflow broker --data ./broker --listen 127.0.0.1:9092
    """
    use_text_with_times()
    resolved = _resolve(config_file, options)
    config = resolved.config
    if resolved.without_effect and strict_settings:
        raise click.UsageError(
            f"settings without effect here: {', '.join(resolved.without_effect)}; omit them, or --strict-settings"
        )
    for endpoint in config.listeners:
        if config.advertised_for(endpoint).host in ANY_ADDRESS:
            raise OnceflowError(
                f"--listen {endpoint.host}:{endpoint.port} accepts connections on every address of this machine; "
                f"{Remedy.ADVERTISE}"
            )
    for note in resolved.notes:
        logger.info("%s", note)
    if resolved.without_effect:
        logger.warning("settings without effect here: %s", ", ".join(resolved.without_effect))
    for warning in resolved.warnings:
        logger.warning("%s", warning)
    for endpoint in config.listeners:
        _warn_if_open(endpoint, config)
    if config.metrics_port >= 0:
        warn_if_open(config.metrics_host, config.metrics_port)
    _allow_many_files()
    sys.setswitchinterval(SWITCH_SECONDS)
    asyncio.run(_serve(config, _session(config)))


def _session(config: "BrokerConfig") -> "Session | None":
    """Prepare the session with ZooKeeper, if there is one."""
    if config.zookeeper_connect is None:
        return None
    from onceflow.broker.cluster.zookeeper_security import session_of_process

    return session_of_process(config)


def _warn_if_open(endpoint: "Endpoint", config: "BrokerConfig") -> None:
    protocol = config.listener_protocols[endpoint.listener]
    is_encrypted = protocol.endswith("SSL")
    has_certificates = protocol == "SSL" and config.security_of(endpoint.listener).client_auth == "required"
    is_authenticated = has_certificates or protocol.startswith("SASL_")
    if not is_authenticated and not is_loopback(endpoint.host):
        logger.warning(
            "%s:%d is open to other machines without authentication%s: every client that can connect can"
            " read, write and delete all data; keep it inside a trusted network",
            endpoint.host,
            endpoint.port,
            "" if is_encrypted else " or encryption",
        )


def _resolve(config_file: Path | None, options: Mapping[str, str | None]) -> "Resolved":
    from onceflow.broker.settings.sources import Source, from_environment, from_file, resolve

    given = {
        setting.name: text for setting in SETTINGS.values() if (text := options.get(_parameter(setting))) is not None
    }
    sources = [from_file(config_file)] if config_file is not None else []
    typed = Source(given, lambda name: SETTINGS[name].options[0])
    return resolve(*sources, from_environment(os.environ), typed)


def _allow_many_files() -> None:
    """Raise the limit of open files: partitions and connections need many; the soft limit is often 1,024."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _line_of(endpoint: "Endpoint", config: "BrokerConfig") -> str:
    name = endpoint.listener
    return f"listening on {address_text(endpoint)} as {name}, {config.listener_protocols[name]}"


async def _serve(config: "BrokerConfig", session: "Session | None") -> None:
    from onceflow.broker.server import Broker

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in STOP_SIGNALS:
        # The loop's own handlers end with it; a second signal must not kill a process that is stopping cleanly.
        signal.signal(number, lambda _number, _frame: loop.call_soon_threadsafe(stop.set))
    server = Broker(config, on_lost=stop.set, session=session)
    try:
        await server.start()
    except OSError as error:
        raise OnceflowError(f"cannot use --data {config.data}: {error}; {Remedy.OTHER_DATA}") from error
    # Objects created until now live as long as the process; full collections can skip them.
    gc.freeze()
    if any(config.listener_protocols[endpoint.listener].endswith("SSL") for endpoint in config.listeners):
        signal.signal(signal.SIGHUP, lambda _number, _frame: loop.call_soon_threadsafe(server.reload_certificates))
    first, *others = server.endpoints
    print(f"listening on {address_text(first)}", *(_line_of(other, config) for other in others), sep="\n", flush=True)
    await stop.wait()
    are_closed = await server.stop()
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    if not are_closed:
        raise OnceflowError(
            f"--data {config.data}: some logs could not be closed, see the messages above; the next start recovers them"
        )
