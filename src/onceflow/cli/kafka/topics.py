"""`onceflow topic`: create, list, describe, alter, trim and delete topics, on any Kafka."""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from onceflow.cli.command_group import Commands
from onceflow.cli.internal import is_internal_topic
from onceflow.cli.kafka.configs import require_known
from onceflow.cli.kafka.offset_range import OffsetRange, resolve, to_place, wanted_partitions
from onceflow.cli.options import bootstrap_option, json_option, to_settings
from onceflow.cli.output import counted, stdout_may_close, table
from onceflow.cli.refusals import confirm
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
    help="Number of replicas of each partition.  [default: the broker's]",
)
@click.option("--config", "configs", multiple=True, metavar="NAME=VALUE", help="Topic config; may be repeated.")
@click.option("--if-not-exists", is_flag=True, help="Succeed without a change if the topic exists.")
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
    """Create the topic NAME, ready for writes when the command returns.

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
            created_topic = cluster.create_topic(
                name, partitions, replication_factor=replication_factor or -1, configs=settings
            )
        except TopicExists:
            if not if_not_exists:
                raise
            created = False
            created_topic = cluster.require_topic(name)
    if as_json:
        click.echo(json.dumps({**_summary(created_topic), "created": created}))
    else:
        result = "created topic" if created else "unchanged: topic"
        click.echo(f"{result} {name} with {counted(len(created_topic.partitions), 'partition')}")


@topic.command("list")
@click.option(
    "--internal", is_flag=True, help="Include internal topics: the broker's own, and the markers of Kafka sinks."
)
@bootstrap_option
@json_option
def list_topics(internal: bool, bootstrap: str, as_json: bool) -> None:
    """List the topics with their number of partitions.

    \b
    Example:
      onceflow topic list --json
    """

    with open_cluster(bootstrap) as cluster:
        topics = [
            topic
            for name, topic in sorted(cluster.topics().items())
            if internal or not is_internal_topic(name, topic.internal)
        ]
    with stdout_may_close():
        if as_json:
            click.echo(json.dumps([_summary(topic) for topic in topics]))
        else:
            table([("TOPIC", "PARTITIONS"), *((topic.name, len(topic.partitions)) for topic in topics)])


@topic.command()
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@bootstrap_option
@json_option
def describe(names: Sequence[str], bootstrap: str, as_json: bool) -> None:
    """Show the partitions of each topic: leader, replicas and offsets.

    START is the first offset in the log, END the offset of the next record.

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
        for description in described:
            topic_id = description["topic_id"] or "none"
            click.echo(f"topic {description['topic']}   id {topic_id}   internal {description['internal']}")
            table(
                [
                    ("PARTITION", "LEADER", "REPLICAS", "IN SYNC", "START", "END"),
                    *(tuple(_cell(value) for value in partition.values()) for partition in description["partitions"]),
                ]
            )


@topic.command()
@click.argument("name")
@click.option("--partitions", type=click.IntRange(min=1), metavar="N", help="Raise the number of partitions to N.")
@click.option("--config", "configs", multiple=True, metavar="NAME=VALUE", help="Set a config; may be repeated.")
@click.option(
    "--delete-config", "defaults", multiple=True, metavar="NAME", help="Reset a config to its default; may be repeated."
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
    """Add partitions to the topic NAME, or change its configs.

    With more partitions, a key may go to another partition than before; existing records are not moved.

    \b
    Example:
      onceflow topic alter user_events --partitions 8 --config retention.ms=3600000
    """
    settings = to_settings(configs, "--config")
    if partitions is None and not settings and not defaults:
        raise click.UsageError("specify what to change: --partitions, --config or --delete-config")
    from onceflow.client.admin import Admin

    with open_cluster(bootstrap) as cluster:
        admin = Admin(cluster)
        if settings or defaults:
            require_known(admin, name, [*settings, *defaults])
            admin.alter_topic_configs(name, set=settings, delete=defaults)
            if not as_json:
                click.echo(
                    f"topic {name}: {', '.join([*configs, *(f'{config} reset to default' for config in defaults)])}"
                )
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
    help="Delete the records before this: an offset, +47 or -47 (from start or end), end, or @TIME, as in 'onceflow "
    "consume --offset'.",
)
@click.option(
    "--partition",
    "partitions",
    type=click.IntRange(min=0),
    multiple=True,
    metavar="N",
    help="Only this partition; may be repeated.",
)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@bootstrap_option
@json_option
def trim(name: str, asked: OffsetRange, partitions: Sequence[int], yes: bool, bootstrap: str, as_json: bool) -> None:
    """Delete the oldest records of the topic NAME. Asks for confirmation.

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
                f"nothing was deleted: offset {error.offset} is outside {name}-{error.partition}, which has offsets "
                f"{error.log_start_offset} to {error.offset_end}; {Remedy.TRIM_ALL}"
            ) from error
        places = ", ".join(f"{partition} before {offset}" for partition, offset in before.items())
        if not yes:
            confirm(f"Delete the records of {name} in partition {places}?", "deleted")
        starts = Admin(cluster).delete_records(name, before)
    if as_json:
        trimmed = [{"partition": partition, "offset_start": start} for partition, start in starts.items()]
        click.echo(json.dumps({"topic": name, "partitions": trimmed}))
        return
    for partition, start in starts.items():
        click.echo(f"{name}-{partition} starts at {start}")


@topic.command()
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@bootstrap_option
@json_option
def delete(names: Sequence[str], yes: bool, bootstrap: str, as_json: bool) -> None:
    """Delete topics and their records. Asks for confirmation.

    \b
    Example:
      onceflow topic delete user_events --yes
    """

    with open_cluster(bootstrap) as cluster:
        for name in names:
            cluster.require_topic(name)
        if not yes:
            confirm(f"Delete {', '.join(names)} with all records at {bootstrap}?", "deleted")
        for name in names:
            cluster.delete_topic(name)
            if not as_json:
                click.echo(f"deleted topic {name}")
    if as_json:
        click.echo(json.dumps({"deleted": list(names)}))


def _summary(topic: "TopicMetadata") -> dict[str, Any]:
    return {
        "topic": topic.name,
        "topic_id": str(topic.topic_id) if topic.topic_id else None,
        "internal": topic.internal,
        "partitions": len(topic.partitions),
    }


def _description(cluster: "Cluster", name: str) -> dict[str, Any]:
    from onceflow.client.cluster import EARLIEST, LATEST

    topic = cluster.require_topic(name)
    starts = cluster.list_offsets(name, dict.fromkeys(topic.partitions, EARLIEST))
    ends = cluster.list_offsets(name, dict.fromkeys(topic.partitions, LATEST), read_committed=False)
    partitions = [
        {
            "partition": partition,
            "leader": leader,
            "replicas": list(topic.replicas[partition]),
            "in_sync_replicas": list(topic.in_sync_replicas[partition]),
            "offset_start": starts[partition].offset,
            "offset_end": ends[partition].offset,
        }
        for partition, leader in topic.partitions.items()
    ]
    return {**_summary(topic), "partitions": partitions}


def _cell(value: object) -> str:
    return ",".join(str(item) for item in value) if isinstance(value, list) else str(value)
