"""`onceflow cluster`: brokers, controller, and partitions whose replicas need attention."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from onceflow.cli.command_group import Commands
from onceflow.cli.options import bootstrap_option, json_option
from onceflow.cli.output import counted, stdout_may_close, table
from onceflow.cli.security import open_cluster

if TYPE_CHECKING:
    from onceflow.client.admin_responses import ClusterDescription
    from onceflow.client.replication import PartitionReplicas


@click.group(cls=Commands)
def cluster() -> None:
    """Show the brokers and replicas of a cluster.

    \b
    Example:
      onceflow cluster status
    """


@cluster.command()
@bootstrap_option
@json_option
@click.pass_context
def status(context: click.Context, bootstrap: str, as_json: bool) -> None:
    """Show controller and brokers, and the partitions whose replicas need attention.

    Partitions are listed that are offline (without a leader), below-min-isr (acks=all is refused), under-replicated
    (some replicas are not in sync) or not-preferred (another replica than the first leads). For any of these but the
    last the exit code is 1.

    \b
    Examples:
      onceflow cluster status
      onceflow cluster status --json | jq .problems
    """
    from onceflow.client.admin import Admin
    from onceflow.client.replication import SERIOUS, partitions_of

    with open_cluster(bootstrap) as opened:
        admin = Admin(opened)
        description = admin.describe_cluster()
        topics = opened.topics()
        in_sync_min = admin.min_insync_replicas(topics)
    partitions = list(partitions_of(topics.values(), in_sync_min))
    shown = _status(description, partitions)
    with stdout_may_close():
        if as_json:
            click.echo(json.dumps(shown))
        else:
            _print_status(shown)
    context.exit(1 if any(shown["counts"][problem] for problem in SERIOUS) else 0)


def _status(description: "ClusterDescription", partitions: Sequence["PartitionReplicas"]) -> dict[str, Any]:
    """Return the status as plain values for `json.dumps`."""
    from onceflow.client.replication import Problem

    addresses = {broker.broker_id: str(broker.address) for broker in description.brokers}
    leads = Counter(partition.leader for partition in partitions)
    preferred = Counter(partition.replicas[0] for partition in partitions)
    replicas = Counter(broker for partition in partitions for broker in partition.replicas)
    in_sync = Counter(broker for partition in partitions for broker in partition.in_sync)
    problems = [(partition, list(partition.problems())) for partition in partitions]
    return {
        "cluster": description.cluster_id,
        "controller": description.controller_id,
        "brokers": [
            {
                "broker": broker,
                "address": addresses.get(broker),
                "leads": leads[broker],
                "preferred": preferred[broker],
                "in_sync": in_sync[broker],
                "replicas": replicas[broker],
            }
            for broker in sorted(addresses.keys() | replicas.keys())
        ],
        "partitions": len(partitions),
        "counts": {str(problem): sum(problem in listed for _, listed in problems) for problem in Problem},
        "problems": [
            {
                "topic": partition.topic,
                "partition": partition.partition,
                "leader": partition.leader,
                "replicas": list(partition.replicas),
                "in_sync_replicas": list(partition.in_sync),
                "min_insync_replicas": partition.in_sync_min,
                "problems": [str(problem) for problem in listed],
            }
            for partition, listed in problems
            if listed
        ],
    }


def _print_status(shown: Mapping[str, Any]) -> None:
    live = sum(broker["address"] is not None for broker in shown["brokers"])
    click.echo(f"cluster {shown['cluster']}   controller {shown['controller']}   {counted(live, 'broker')}")
    table(
        [
            ("BROKER", "ADDRESS", "LEADS", "PREFERRED", "IN SYNC", "REPLICAS"),
            *(
                (
                    broker["broker"],
                    broker["address"] or "not available",
                    broker["leads"],
                    broker["preferred"],
                    broker["in_sync"],
                    broker["replicas"],
                )
                for broker in shown["brokers"]
            ),
        ]
    )
    counts = "   ".join(f"{problem} {count}" for problem, count in shown["counts"].items())
    click.echo(f"{counted(shown['partitions'], 'partition')}   {counts}")
    if shown["problems"]:
        table(
            [
                ("TOPIC", "PARTITION", "LEADER", "REPLICAS", "IN SYNC", "MIN ISR", "PROBLEMS"),
                *(
                    (
                        entry["topic"],
                        entry["partition"],
                        None if entry["leader"] < 0 else entry["leader"],
                        ",".join(map(str, entry["replicas"])),
                        ",".join(map(str, entry["in_sync_replicas"])) or None,
                        entry["min_insync_replicas"],
                        ", ".join(entry["problems"]),
                    )
                    for entry in shown["problems"]
                ),
            ]
        )
