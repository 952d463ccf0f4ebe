"""`onceflow serve`: accept events over HTTP and write them to a topic."""

import asyncio
import resource
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from onceflow.cli.clicks.events import target_options
from onceflow.cli.metrics import metrics_options, serving_metrics
from onceflow.cli.notes import note, quiet_option
from onceflow.cli.options import SERVE_PORT, bootstrap_option
from onceflow.cli.output import counted
from onceflow.cli.security import security

if TYPE_CHECKING:
    import socket
    from collections import Counter

    from onceflow.clicks.events import Rules
    from onceflow.clicks.ingest.access import Access
    from onceflow.clicks.ingest.endpoint import Limits
    from onceflow.clicks.ingest.visits import AddedFields

MIB = 1 << 20


@click.command()
@target_options
@click.option(
    "--keys",
    "keys_path",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="TOML file of API keys with their origins and rates (docs/ingestion.md). Without it no key is needed, and "
    "only programs and pages on this machine are accepted.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    default=SERVE_PORT,
    show_default=True,
    type=click.IntRange(0, 65535),
    help="Port to listen on; 0 for any free port.",
)
@click.option(
    "--trusted-proxies",
    default="",
    metavar="ADDRESS[,...]",
    help="Reverse proxies whose X-Forwarded-For names the visitor's address.",
)
@click.option("--key-field", default="uid", show_default=True, help="Event field of the user; also the record's key.")
@click.option(
    "--value-field",
    default="click_count",
    show_default=True,
    help="Event field with the number of clicks; '' if 'onceflow run' counts events.",
)
@click.option(
    "--time-field",
    default="event_time",
    show_default=True,
    help="Event field of the time; set to the server's time, in ms, if an event has none.",
)
@click.option(
    "--server-time-field",
    default="server_time",
    show_default=True,
    help="Event field for the server's time in ms; '' adds none.",
)
@click.option(
    "--address-field",
    default="",
    metavar="NAME",
    help="Event field for a hash of the visitor's address, with a random salt that changes daily and at each start. "
    "Without it no address is stored.",
)
@click.option("--keep-bots", is_flag=True, help="Write events of bots too; by default they are refused.")
@click.option(
    "--body-kib",
    default=1024,
    show_default=True,
    type=click.IntRange(1, 16_384),
    help="Maximum size of a body, in KiB, also when decompressed.",
)
@click.option(
    "--address-rate",
    default=100.0,
    show_default=True,
    type=click.FloatRange(0),
    help="Maximum events per second from one address, averaged over ten seconds; 0 for no limit.",
)
@click.option(
    "--memory-mib",
    default=64,
    show_default=True,
    type=click.IntRange(4),
    help="Memory for all requests together, in MiB; further requests are refused with status 503.",
)
@click.option(
    "--connections-max",
    default=1_000,
    show_default=True,
    type=click.IntRange(1),
    help="Maximum number of connections; further ones are refused with status 503.",
)
@metrics_options
@quiet_option
@bootstrap_option
def serve(
    bootstrap: str, topic: str, partitions: int, keys_path: Path | None, host: str, port: int, **options: Any
) -> None:
    """Accept events over HTTP from web pages and programs, and write them to a topic.

    It responds after the broker has acknowledged the events. It prints its address and runs until Ctrl-C.

    \b
    Examples:
      onceflow serve
      curl -d '{"uid":"ann","click_count":1}' http://127.0.0.1:8090/events
    """
    from onceflow.clicks.ingest.generator import ensure_topic
    from onceflow.listening import is_loopback, listen

    access = _access(keys_path)
    if keys_path is None and not is_loopback(host):
        raise click.UsageError(f"--host {host} is reachable from other machines; it needs --keys FILE")
    rules, fields = _rules(options)
    limits = _limits(access, options)
    ensure_topic(bootstrap, topic, partitions, security())
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with listen(host, port) as listening:
        asyncio.run(_serve(listening, bootstrap, topic, rules, fields, access, limits, options))


async def _serve(
    listening: "socket.socket",
    bootstrap: str,
    topic: str,
    rules: "Rules",
    fields: "AddedFields",
    access: "Access",
    limits: "Limits",
    options: dict[str, Any],
) -> None:
    from onceflow.clicks.ingest import server
    from onceflow.clicks.ingest.appender import Appender
    from onceflow.clicks.ingest.endpoint import Endpoint
    from onceflow.clicks.ingest.traffic import collector
    from onceflow.clicks.ingest.visits import Stamp
    from onceflow.listening import url

    appender = Appender(bootstrap, topic, security())
    endpoint = Endpoint(appender, rules, Stamp(fields), access, limits, keep_bots=options["keep_bots"])
    reported: Counter[str] = endpoint.counts.copy()

    def report() -> None:
        if endpoint.counts != reported:
            reported.update(endpoint.counts - reported)
            note(_summary(endpoint.counts))

    click.echo(f"accepting events for {topic} on {url(listening)}/events")
    with serving_metrics(options["metrics_host"], options["metrics_port"], collector(endpoint)):
        await server.serve(
            listening,
            appender,
            endpoint,
            report,
            connections_max=options["connections_max"],
            trusted_proxies=options["trusted_proxies"],
        )
    report()


def _access(path: Path | None) -> "Access":
    from onceflow.clicks.ingest.access import Access, read_keys

    return Access() if path is None else read_keys(path)


def _rules(options: dict[str, Any]) -> "tuple[Rules, AddedFields]":
    from onceflow.clicks.events import Rules, WrongField
    from onceflow.clicks.ingest.visits import AddedFields

    fields = AddedFields(options["server_time_field"], options["address_field"], options["time_field"])
    names = ["key_field", "value_field", "time_field", "server_time_field", "address_field"]
    given = [options[name] for name in names if options[name]]
    if len(set(given)) < len(given) or not fields.event_time:
        raise click.UsageError(f"the fields {', '.join(map(repr, given))} must have different names, and a time field")
    try:
        return Rules(options["key_field"], options["value_field"] or None), fields
    except WrongField as error:
        raise click.UsageError(f"--key-field and --value-field: {error}") from error


def _limits(access: "Access", options: dict[str, Any]) -> "Limits":
    from onceflow.clicks.ingest.endpoint import Limits
    from onceflow.clicks.ingest.limits import Memory, RateLimit

    of_keys = {key.name: RateLimit(key.events_per_second) for key in access.keys}
    memory = Memory(options["memory_mib"] * MIB)
    return Limits(memory, options["body_kib"] * 1024, RateLimit(options["address_rate"]), of_keys)


def _summary(counts: "Counter[str]") -> str:
    """Return the numbers of events and refused requests, such as `12 events accepted; no-uid 2, bot 1`."""
    others = [f"{reason} {count:,}" for reason, count in counts.most_common() if reason != "ok"]
    return "; ".join([f"{counted(counts['ok'], 'event')} accepted", *([", ".join(others)] if others else [])])
