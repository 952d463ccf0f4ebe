"""`onceflow cluster`: brokers, controller, and partitions that need attention; a cluster on this machine."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from onceflow.cli.command_group import Commands
from onceflow.cli.options import BROKER_PORT, DEMO_DIRECTORY, bootstrap_option, json_option
from onceflow.cli.output import counted, stdout_may_close, table
from onceflow.cli.security import open_cluster

if TYPE_CHECKING:
    from onceflow.client.admin_responses import ClusterDescription
    from onceflow.client.replication import PartitionReplicas


@click.group(cls=Commands)
def cluster() -> None:
    """Show the brokers and replicas of a cluster, or run one on this machine.

    \b
    Examples:
      onceflow cluster status
      onceflow cluster up -n 3 --zookeeper 127.0.0.1:2181/test
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


@cluster.command()
@click.option("-n", "--brokers", type=click.IntRange(1, 20), default=3, show_default=True, help="Number of brokers.")
@click.option(
    "--zookeeper",
    metavar="HOST:PORT[/CHROOT]",
    help="A running ZooKeeper. Each cluster needs a chroot of its own.",
)
@click.option(
    "--zookeeper-jars",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="DIRECTORY",
    help="Start a ZooKeeper from the jars in DIRECTORY: libs of Apache Kafka up to 3.9, or lib of Apache ZooKeeper.",
)
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    default=f"{DEMO_DIRECTORY}/cluster",
    show_default=True,
    help="Directory for data and logs; kept.",
)
@click.option(
    "--port",
    type=click.IntRange(1, 65_000),
    default=BROKER_PORT,
    show_default=True,
    help="Port of the first broker; the others use the next ones. Another is used if one is not free.",
)
def up(brokers: int, zookeeper: str | None, zookeeper_jars: Path | None, data: Path, port: int) -> None:
    """Run brokers on this machine until Ctrl-C, to try out a cluster.

    Prints "bootstrap servers HOST:PORT,…" and the process of each broker when all serve clients. Topics have up to
    three replicas. The brokers find each other in a ZooKeeper: a running one, or one that is started with Java and its
    jars. If a broker ends, such as by kill -9, the others continue, and the command that starts it again is printed.
    If none is left or ZooKeeper ends, all are stopped, and the exit code is 1.

    \b
    Examples:
      onceflow cluster up -n 3 --zookeeper 127.0.0.1:2181/test
      onceflow cluster up --zookeeper-jars ./kafka_2.13-3.9.1/libs
    """
    from onceflow.cli.kafka.local_cluster import LocalCluster

    if (zookeeper is None) == (zookeeper_jars is None):
        raise click.UsageError(
            "a cluster needs one ZooKeeper: specify either --zookeeper HOST:PORT of one that is running, or "
            "--zookeeper-jars DIRECTORY to start one from its jars"
        )
    with LocalCluster(data, brokers, port) as local:
        if zookeeper_jars is not None:
            zookeeper = local.start_zookeeper(zookeeper_jars)
        assert zookeeper is not None
        local.start_brokers(zookeeper)
        click.echo("\n".join((f"bootstrap servers {local.bootstrap}", *local.processes())))
        local.watch(lambda line: click.echo(line, err=True))


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
