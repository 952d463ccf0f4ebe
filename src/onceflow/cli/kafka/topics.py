"""`onceflow topic`: create, list, describe, alter, trim and delete topics, on our broker or any Kafka."""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from onceflow.cli.command_group import Commands
from onceflow.cli.kafka.configs import require_known
from onceflow.cli.kafka.offset_range import OffsetRange, resolve, to_place, wanted_partitions
from onceflow.cli.options import bootstrap_option, json_option, to_settings
from onceflow.cli.output import counted, stdout_may_close, table
from onceflow.cli.refusals import require_yes
from onceflow.cli.security import open_cluster
from onceflow.errors import OnceflowError
from onceflow.remedies import Remedy

if TYPE_CHECKING:
    from onceflow.client.cluster import Cluster
    from onceflow.client.metadata import TopicMetadata


@click.group(cls=Commands)
def topic() -> None:
    """Create, list, describe, alter, trim and delete topics.

    \b
    Example:
      onceflow topic create user_events --partitions 4
      onceflow topic describe user_events
    """


@topic.command()
@click.argument("name")
@click.option("--partitions", type=click.IntRange(min=1), default=1, show_default=True, help="Number of partitions.")
@click.option(
    "--replication-factor",
    type=click.IntRange(min=1, max=32767),
    help="Brokers that keep a copy of each partition. Without it the broker's own default.",
)
@click.option(
    "--config", "configs", multiple=True, metavar="NAME=VALUE", help="A setting of the topic; may be repeated."
)
@click.option("--if-not-exists", is_flag=True, help="A topic that exists already is left as it is, and is no failure.")
@bootstrap_option
@json_option
def create(
    name: str,
    partitions: int,
    replication_factor: int | None,
    configs: Sequence[str],
    if_not_exists: bool,
    bootstrap: str,
    as_json: bool,
) -> None:
    """Create the topic NAME; when this returns it can be written to.

    \b
    Example:
      onceflow topic create user_events --partitions 4 --if-not-exists
      onceflow topic create latest --config cleanup.policy=compact
    """
    from onceflow.client.errors import TopicExists

    settings = to_settings(configs, "--config")
    with open_cluster(bootstrap) as cluster:
        created = True
        try:
            found = cluster.create_topic(
                name, partitions, replication_factor=replication_factor or -1, configs=settings
            )
        except TopicExists:
            if not if_not_exists:
                raise
            created = False
            found = cluster.require_topic(name)
    if as_json:
        click.echo(json.dumps({**_summary(found), "created": created}))
    else:
        what = "created topic" if created else "left as it was: topic"
        click.echo(f"{what} {name} with {counted(len(found.partitions), 'partition')}")


@topic.command("list")
@click.option("--internal", is_flag=True, help="Also the topics that the broker keeps for itself.")
@bootstrap_option
@json_option
def list_topics(internal: bool, bootstrap: str, as_json: bool) -> None:
    """List the topics with their number of partitions.

    \b
    Example:
      onceflow topic list --json
    """

    with open_cluster(bootstrap) as cluster:
        topics = [found for _, found in sorted(cluster.topics().items()) if internal or not found.internal]
    with stdout_may_close():
        if as_json:
            click.echo(json.dumps([_summary(found) for found in topics]))
        else:
            table([("TOPIC", "PARTITIONS"), *((found.name, len(found.partitions)) for found in topics)])


@topic.command()
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@bootstrap_option
@json_option
def describe(names: Sequence[str], bootstrap: str, as_json: bool) -> None:
    """Show the partitions of each topic: who leads and keeps them, and which offsets they hold.

    START is the first offset still there, END the one that the next record gets.

    \b
    Example:
      onceflow topic describe user_events
    """

    with open_cluster(bootstrap) as cluster:
        described = [_description(cluster, name) for name in names]
    with stdout_may_close():
        if as_json:
            click.echo(json.dumps(described))
            return
        for each in described:
            click.echo(f"topic {each['topic']}   id {each['topic_id'] or 'none'}   internal {each['internal']}")
            table(
                [
                    ("PARTITION", "LEADER", "REPLICAS", "IN SYNC", "START", "END"),
                    *(tuple(_cell(value) for value in partition.values()) for partition in each["partitions"]),
                ]
            )


@topic.command()
@click.argument("name")
@click.option("--partitions", type=click.IntRange(min=1), metavar="N", help="Raise the number of partitions to N.")
@click.option("--config", "configs", multiple=True, metavar="NAME=VALUE", help="Set this; may be repeated.")
@click.option(
    "--delete-config", "defaults", multiple=True, metavar="NAME", help="Back to its default; may be repeated."
)
@bootstrap_option
@json_option
def alter(
    name: str,
    partitions: int | None,
    configs: Sequence[str],
    defaults: Sequence[str],
    bootstrap: str,
    as_json: bool,
) -> None:
    """Change the topic NAME: more partitions, other settings.

    With more partitions a key may go to another one than before; the records that are there stay where they are.

    \b
    Example:
      onceflow topic alter user_events --partitions 8 --config retention.ms=3600000
    """
    settings = to_settings(configs, "--config")
    if partitions is None and not settings and not defaults:
        raise click.UsageError("say what to change: --partitions, --config or --delete-config")
    from onceflow.client.admin import Admin

    with open_cluster(bootstrap) as cluster:
        admin = Admin(cluster)
        if settings or defaults:
            require_known(admin, name, [*settings, *defaults])
            admin.alter_topic_configs(name, set=settings, delete=defaults)
            if not as_json:
                click.echo(f"topic {name}: {', '.join([*configs, *(f'{each} by default' for each in defaults)])}")
        if partitions is not None:
            admin.create_partitions(name, partitions)
            if not as_json:
                click.echo(f"topic {name}: {counted(partitions, 'partition')}")
    if as_json:
        click.echo(json.dumps({"topic": name, "partitions": partitions, "set": settings, "unset": list(defaults)}))


@topic.command()
@click.argument("name")
@click.option(
    "--before",
    "asked",
    callback=to_place,
    metavar="OFFSET",
    required=True,
    help="Delete what lies before this: an offset, +47 or -47 from start or end, end, or @TIME; as in 'onceflow "
    "consume --offset'.",
)
@click.option(
    "--partition", "partitions", type=click.IntRange(min=0), multiple=True, metavar="N", help="Only this one."
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@bootstrap_option
@json_option
def trim(name: str, asked: OffsetRange, partitions: Sequence[int], yes: bool, bootstrap: str, as_json: bool) -> None:
    """Delete the first records of the topic NAME; asks first.

    \b
    Examples:
      onceflow topic trim user_events --before @-7d
      onceflow topic trim user_events --before 1000 --partition 0 --yes
    """
    from onceflow.client.admin import Admin
    from onceflow.client.errors import OffsetOutOfRange

    with open_cluster(bootstrap) as cluster:
        wanted = wanted_partitions(cluster.require_topic(name), partitions)
        try:
            before, _, _ = resolve(cluster, name, wanted, asked, read_committed=False)
        except OffsetOutOfRange as error:
            raise OnceflowError(
                f"nothing was deleted: {error.offset} is not within {name}-{error.partition}, which has the offsets "
                f"from {error.log_start_offset} up to its end {error.offset_end}; {Remedy.TRIM_ALL}"
            ) from error
        places = ", ".join(f"{partition} before {offset}" for partition, offset in before.items())
        if not yes:
            require_yes(f"Delete the records of {name} in partition {places}?", "deleted")
        starts = Admin(cluster).delete_records(name, before)
    if as_json:
        trimmed = [{"partition": partition, "offset_start": start} for partition, start in starts.items()]
        click.echo(json.dumps({"topic": name, "partitions": trimmed}))
        return
    for partition, start in starts.items():
        click.echo(f"{name}-{partition} begins at {start}")


@topic.command()
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@click.option("--yes", is_flag=True, help="Do not ask.")
@bootstrap_option
@json_option
def delete(names: Sequence[str], yes: bool, bootstrap: str, as_json: bool) -> None:
    """Delete topics with everything in them; asks first.

    \b
    Example:
      onceflow topic delete user_events --yes
    """

    with open_cluster(bootstrap) as cluster:
        for name in names:
            cluster.require_topic(name)
        if not yes:
            require_yes(f"Delete {', '.join(names)} at {bootstrap} with all records?", "deleted")
        for name in names:
            cluster.delete_topic(name)
            if not as_json:
                click.echo(f"deleted topic {name}")
    if as_json:
        click.echo(json.dumps({"deleted": list(names)}))


def _summary(found: "TopicMetadata") -> dict[str, Any]:
    return {
        "topic": found.name,
        "topic_id": str(found.topic_id) if found.topic_id else None,
        "internal": found.internal,
        "partitions": len(found.partitions),
    }


def _description(cluster: "Cluster", name: str) -> dict[str, Any]:
    from onceflow.client.cluster import EARLIEST, LATEST

    found = cluster.require_topic(name)
    starts = cluster.list_offsets(name, dict.fromkeys(found.partitions, EARLIEST))
    ends = cluster.list_offsets(name, dict.fromkeys(found.partitions, LATEST), read_committed=False)
    partitions = [
        {
            "partition": partition,
            "leader": leader,
            "replicas": list(found.replicas[partition]),
            "in_sync_replicas": list(found.in_sync_replicas[partition]),
            "offset_start": starts[partition].offset,
            "offset_end": ends[partition].offset,
        }
        for partition, leader in found.partitions.items()
    ]
    return {**_summary(found), "partitions": partitions}


def _cell(value: object) -> str:
    return ",".join(str(each) for each in value) if isinstance(value, list) else str(value)
