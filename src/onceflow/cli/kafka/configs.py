"""`onceflow config`: the configs of a topic or a broker, on any Kafka."""

import difflib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from onceflow.cli.command_group import Commands
from onceflow.cli.options import bootstrap_option, json_option, to_settings
from onceflow.cli.output import stdout_may_close, table
from onceflow.cli.security import open_cluster
from onceflow.errors import OnceflowError
from onceflow.remedies import Remedy

if TYPE_CHECKING:
    from onceflow.client.admin import Admin
    from onceflow.client.admin_responses import ConfigEntry


@click.group(cls=Commands)
def config() -> None:
    """Show and change topic configs; show broker configs.

    \b
    Example:
      onceflow config topic user_events
      onceflow config set user_events retention.ms=3600000
    """


@config.command("topic")
@click.argument("name", metavar="TOPIC")
@click.option("--all", "show_all", is_flag=True, help="Include configs that have their default.")
@bootstrap_option
@json_option
def of_topic(name: str, show_all: bool, bootstrap: str, as_json: bool) -> None:
    """Show the configs of TOPIC that are not defaults, and where each value comes from.

    \b
    Example:
      onceflow config topic user_events --all
    """
    from onceflow.client.admin import Admin

    with open_cluster(bootstrap) as cluster:
        _show(Admin(cluster).describe_topic_configs(name), show_all, as_json)


@config.command("broker")
@click.argument("broker_id", type=int, required=False)
@click.option("--all", "show_all", is_flag=True, help="Include configs that have their default.")
@bootstrap_option
@json_option
def of_broker(broker_id: int | None, show_all: bool, bootstrap: str, as_json: bool) -> None:
    """Show the configs of a broker that are not defaults; without BROKER_ID, of the controller.

    \b
    Example:
      onceflow config broker --all
    """
    from onceflow.client.admin import Admin

    with open_cluster(bootstrap) as cluster:
        admin = Admin(cluster)
        description = admin.describe_cluster()
        chosen = description.controller_id if broker_id is None else broker_id
        known = sorted(broker.broker_id for broker in description.brokers)
        if chosen not in known:
            which = ("broker " if len(known) == 1 else "brokers ") + ", ".join(map(str, known))
            raise OnceflowError(f"broker {chosen} is not in the cluster at {bootstrap}, which has {which}")
        _show(admin.describe_broker_configs(chosen), show_all, as_json)


def _show(entries: Mapping[str, "ConfigEntry"], show_all: bool, as_json: bool) -> None:
    shown = [entry for _, entry in sorted(entries.items()) if show_all or entry.source != "DEFAULT_CONFIG"]
    with stdout_may_close():
        if as_json:
            click.echo(json.dumps([asdict(entry) for entry in shown]))
        elif shown:
            table([("NAME", "VALUE", "SOURCE"), *((entry.name, entry.value, entry.source) for entry in shown)])
        else:
            click.echo("all configs have their defaults; --all shows them")


@config.command("set")
@click.argument("name", metavar="TOPIC")
@click.argument("settings", metavar="NAME=VALUE...", nargs=-1, required=True)
@bootstrap_option
@json_option
def set_configs(name: str, settings: Sequence[str], bootstrap: str, as_json: bool) -> None:
    """Set configs of TOPIC; others are unchanged.

    \b
    Example:
      onceflow config set user_events retention.ms=3600000 cleanup.policy=compact,delete
    """
    from onceflow.client.admin import Admin

    values = to_settings(settings, "NAME=VALUE")
    with open_cluster(bootstrap) as cluster:
        admin = Admin(cluster)
        require_known(admin, name, values)
        admin.alter_topic_configs(name, set=values)
    if as_json:
        click.echo(json.dumps({"topic": name, "set": values, "unset": []}))
    else:
        click.echo(f"topic {name}: set {', '.join(settings)}")


@config.command("unset")
@click.argument("name", metavar="TOPIC")
@click.argument("settings", metavar="NAME...", nargs=-1, required=True)
@bootstrap_option
@json_option
def unset_configs(name: str, settings: Sequence[str], bootstrap: str, as_json: bool) -> None:
    """Reset configs of TOPIC to their defaults.

    \b
    Example:
      onceflow config unset user_events retention.ms
    """
    from onceflow.client.admin import Admin

    with open_cluster(bootstrap) as cluster:
        admin = Admin(cluster)
        require_known(admin, name, settings)
        admin.alter_topic_configs(name, delete=settings)
    if as_json:
        click.echo(json.dumps({"topic": name, "set": {}, "unset": list(settings)}))
    else:
        click.echo(f"topic {name}: reset to default: {', '.join(settings)}")


def require_known(admin: "Admin", topic: str, names: Iterable[str]) -> None:
    """Raise OnceflowError for an unknown topic config: a broker "unsets" any name without an error."""
    known = admin.describe_topic_configs(topic)
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            remedy = f"did you mean {near[0]}?" if near else Remedy.LIST_CONFIGS.format(topic=topic)
            raise OnceflowError(f"the configs of topic '{topic}' were not changed: unknown config '{name}'; {remedy}")
