"""`onceflow topic`: create, list, describe and delete topics, on our broker or any Kafka."""

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click

from onceflow.cli.options import bootstrap_option, json_option
from onceflow.cli.output import counted, stdout_may_close

if TYPE_CHECKING:
    from onceflow.client.cluster import Cluster
    from onceflow.client.metadata import TopicMetadata


@click.group()
def topic() -> None:
    """Create, list, describe and delete topics.

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
@click.option("--if-not-exists", is_flag=True, help="A topic that exists already is left as it is, and is no failure.")
@bootstrap_option
@json_option
def create(
    name: str, partitions: int, replication_factor: int | None, if_not_exists: bool, bootstrap: str, as_json: bool
) -> None:
    """Create the topic NAME; when this returns it can be written to.

    \b
    Example:
      onceflow topic create user_events --partitions 4 --if-not-exists
    """
    from onceflow.client.cluster import Cluster
    from onceflow.client.errors import TopicExists

    with Cluster(bootstrap) as cluster:
        created = True
        try:
            found = cluster.create_topic(name, partitions, replication_factor=replication_factor or -1)
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
    from onceflow.client.cluster import Cluster

    with Cluster(bootstrap) as cluster:
        topics = [found for _, found in sorted(cluster.topics().items()) if internal or not found.internal]
    with stdout_may_close():
        if as_json:
            click.echo(json.dumps([_summary(found) for found in topics]))
        else:
            _table([("TOPIC", "PARTITIONS"), *((found.name, len(found.partitions)) for found in topics)])


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
    from onceflow.client.cluster import Cluster

    with Cluster(bootstrap) as cluster:
        described = [_description(cluster, name) for name in names]
    with stdout_may_close():
        if as_json:
            click.echo(json.dumps(described))
            return
        for each in described:
            click.echo(f"topic {each['topic']}   id {each['topic_id'] or 'none'}   internal {each['internal']}")
            _table(
                [
                    ("PARTITION", "LEADER", "REPLICAS", "IN SYNC", "START", "END"),
                    *(tuple(_cell(value) for value in partition.values()) for partition in each["partitions"]),
                ]
            )


@topic.command()
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@click.option("--yes", is_flag=True, help="Do not ask.")
@bootstrap_option
def delete(names: Sequence[str], yes: bool, bootstrap: str) -> None:
    """Delete topics with everything in them; asks first.

    \b
    Example:
      onceflow topic delete user_events --yes
    """
    from onceflow.client.cluster import Cluster

    with Cluster(bootstrap) as cluster:
        for name in names:
            cluster.require_topic(name)
        if not yes and not click.confirm(f"Delete {', '.join(names)} at {bootstrap} with all records?"):
            click.echo("nothing was deleted", err=True)
            raise click.exceptions.Exit(1)
        for name in names:
            cluster.delete_topic(name)
            click.echo(f"deleted topic {name}")


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


def _table(rows: Iterable[Sequence[object]]) -> None:
    texts = [[str(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in texts) for column in range(len(texts[0]))]
    for row in texts:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
