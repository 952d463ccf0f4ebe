"""`onceflow status`: brokers, topics, groups, counts and Redis on one screen."""

import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

from onceflow.cli.internal import is_internal_topic, is_marker_group
from onceflow.cli.options import bootstrap_option, json_option, redis_options
from onceflow.cli.output import counted, stdout_may_close, table
from onceflow.cli.security import open_cluster
from onceflow.errors import OnceflowError

if TYPE_CHECKING:
    from onceflow.clicks.results import MarkerView, Snapshot
    from onceflow.client.admin_responses import GroupListing
    from onceflow.client.lag import LogEnds, Offsets
    from onceflow.client.metadata import TopicMetadata

Status = dict[str, Any]
CLEAR_SCREEN = "\033[H\033[2J"


@click.command()
@bootstrap_option
@redis_options
@click.option("--internal", is_flag=True, help="Include internal topics and the groups that hold sinks' markers.")
@click.option(
    "--watch",
    type=click.FloatRange(min=0.1),
    metavar="SECONDS",
    help="Print the status again every SECONDS, until Ctrl-C. With --json: one document per line.",
)
@json_option
@click.pass_context
def status(
    context: click.Context,
    bootstrap: str,
    redis_url: str,
    hash_key: str,
    internal: bool,
    watch: float | None,
    as_json: bool,
) -> None:
    """Show brokers, topics, groups with their lag, the progress of 'onceflow run', and Redis.

    A part that cannot be reached is shown with the reason; the exit code is then 1.

    \b
    Examples:
      onceflow status
      onceflow status --watch 2
      onceflow status --json | jq .count.lag.messages
    """
    with stdout_may_close():
        while True:
            current = read_status(bootstrap, redis_url, hash_key, internal=internal)
            if as_json:
                click.echo(json.dumps(current, ensure_ascii=False))
            else:
                click.echo(CLEAR_SCREEN if watch and _is_terminal() else "", nl=False)
                print_status(current)
            if watch is None:
                break
            time.sleep(watch)
    context.exit(1 if errors_of(current) else 0)


def read_status(bootstrap: str, redis_url: str, hash_key: str, *, internal: bool = False) -> Status:
    """Return the status as plain values for `json.dumps`; a part that failed is `{"error": message}`."""
    current: Status = {"at_ms": time.time_ns() // 1_000_000}
    current["kafka"] = _part({"bootstrap": bootstrap}, lambda: _kafka(bootstrap, internal=internal))
    snapshots: list[Snapshot] = []
    current["redis"] = _part({"url": _shown(redis_url)}, lambda: _redis(redis_url, hash_key, snapshots))
    marker = snapshots[0].marker if snapshots else None
    current["count"] = {"hash_key": hash_key}
    if snapshots:
        current["count"] |= _count(snapshots[0], current["at_ms"])
    if marker is not None and "error" not in current["kafka"]:
        current["count"]["lag"] = _part({}, lambda: _lag(bootstrap, marker))
    return current


def errors_of(current: Status) -> list[str]:
    """Return the reasons of the parts that could not be read."""
    parts = (current["kafka"], current["redis"], current["count"].get("lag", {}))
    return [part["error"] for part in parts if "error" in part]


def _part(begin: Status, read: Callable[[], Status]) -> Status:
    try:
        return begin | read()
    except (OnceflowError, OSError) as error:
        return begin | {"error": str(error)}
    except ModuleNotFoundError as error:
        from onceflow.cli import missing_extra

        return begin | {"error": str(missing_extra("status", error))}


def _kafka(bootstrap: str, *, internal: bool) -> Status:
    from onceflow.client.admin import Admin
    from onceflow.client.lag import LogEnds, reached_by

    with open_cluster(bootstrap) as cluster:
        admin, ends = Admin(cluster), LogEnds(cluster)
        description = admin.describe_cluster()
        topics = cluster.topics()
        # Before the ends of the logs: a later commit would be beyond them, and its lag too low.
        groups = [
            (group, reached_by(admin.group_offsets(group.group_id), topics))
            for group in sorted(admin.list_groups(), key=lambda group: group.group_id)
            if internal or not is_marker_group(group.group_id)
        ]
        return {
            "cluster": description.cluster_id,
            "controller": description.controller_id,
            "brokers": [{"broker": broker.broker_id, "address": str(broker.address)} for broker in description.brokers],
            "problems": _problems(topics),
            "topics": [
                {
                    "topic": name,
                    "partitions": len(topic.partitions),
                    "messages": _messages(ends, name, topic.partitions),
                    "without_leader": sum(leader < 0 for leader in topic.partitions.values()),
                }
                for name, topic in sorted(topics.items())
                if internal or not is_internal_topic(name, topic.internal)
            ],
            "groups": [_group(ends, group, reached, topics) for group, reached in groups],
        }


def _problems(topics: "Mapping[str, TopicMetadata]") -> dict[str, int]:
    """Return how many partitions have each of the problems that a client sees without permissions for configs."""
    from onceflow.client.replication import Problem, partitions_of

    shown = (Problem.OFFLINE, Problem.UNDER_REPLICATED, Problem.NOT_PREFERRED)
    problems = Counter(problem for state in partitions_of(topics.values(), {}) for problem in state.problems())
    return {str(problem): problems[problem] for problem in shown}


def _messages(ends: "LogEnds", topic: str, partitions: Mapping[int, int]) -> int | None:
    """Return how many offsets the log of a topic spans; None while a partition has no leader.

    `partitions`: partition → leader. The client would wait for a leader.
    """
    from onceflow.client.errors import ClientError

    if any(leader < 0 for leader in partitions.values()):
        return None
    try:
        return sum(end - start for start, end in ends.of(topic, partitions).values())
    except ClientError:
        return None


def _group(ends: "LogEnds", group: "GroupListing", reached: "Offsets", topics: "Mapping[str, TopicMetadata]") -> Status:
    """Return a group with its lag; null while one of its partitions has no leader."""
    from onceflow.client.lag import lag_behind, without_leader

    lag = None if without_leader(reached, topics) else lag_behind(ends, reached)
    return {
        "group": group.group_id,
        "state": group.state,
        "topics": sorted(reached),
        "lag": {
            "messages": None if lag is None else lag.messages,
            "seconds": None if lag is None else round(lag.seconds, 1),
        },
    }


def _redis(redis_url: str, hash_key: str, snapshots: "list[Snapshot]") -> Status:
    """Return what the server reports, and append the counts as of now to `snapshots`."""
    import redis

    from onceflow.clicks.results import SOCKET_TIMEOUT_S, RedisUnreachable, Results
    from onceflow.redis.errors import remedy_for
    from onceflow.redis.route import open_client
    from onceflow.spark.redis import settings

    with Results(redis_url, hash_key) as results:
        snapshots.append(results.snapshot())
    timeouts = {"socket_timeout": SOCKET_TIMEOUT_S, "socket_connect_timeout": SOCKET_TIMEOUT_S}
    try:
        with open_client(redis_url, hash_key, **timeouts) as client:
            # A user may be forbidden INFO or CONFIG; the settings are then empty.
            current = settings.read(client)
            server = _server(client)
    except redis.RedisError as error:
        raise RedisUnreachable(f"Redis at {_shown(redis_url)} failed: {error}; {remedy_for(error)}") from error
    return {"server": server, "appendonly": current.get("appendonly"), "appendfsync": current.get("appendfsync")}


def _server(client: Any) -> str | None:
    """Return name and version of a server; None for a user who may not ask."""
    import redis

    try:
        server = client.info("server")
    except redis.exceptions.NoPermissionError:
        return None
    if "valkey_version" in server:
        return f"Valkey {server['valkey_version']}"
    return f"Redis {server['redis_version']}" if "redis_version" in server else None


def _count(snapshot: "Snapshot", now_ms: int) -> Status:
    """Return the totals and the last micro-batch."""
    marker = snapshot.marker
    count: Status = {
        "events": snapshot.events,
        "clicks": snapshot.clicks,
        "users": snapshot.users,
        "bad": snapshot.bad,
        "batch": snapshot.batch,
    }
    if marker is not None:
        count |= {
            "query": marker.query,
            "complete": marker.complete,
            "offsets": marker.offsets,
            "finished_seconds_ago": round((now_ms - marker.finished_ms) / 1000, 1) if marker.finished_ms else None,
            "duration_ms": marker.duration_ms,
            "events_of_last_batch": snapshot.history[0].events if snapshot.history else None,
        }
    return count


def _lag(bootstrap: str, marker: "MarkerView") -> Status:
    from onceflow.clicks.results import lag
    from onceflow.client.errors import LeaderUnavailable
    from onceflow.client.lag import without_leader

    with open_cluster(bootstrap) as cluster:
        topics = cluster.topics(*marker.offsets) if marker.offsets else {}
        offline = without_leader({name: topic.partitions for name, topic in topics.items()}, topics)
        if offline:
            names = ", ".join(f"{topic}-{partition}" for topic, partition in offline)
            raise LeaderUnavailable(f"{names} at {bootstrap}: no leader: are all brokers up?")
        behind = lag(cluster, marker)
    return {"messages": behind.messages, "seconds": round(behind.seconds, 1)}


def print_status(current: Status) -> None:
    """Print the status for people."""
    kafka, redis, count = current["kafka"], current["redis"], current["count"]
    if "error" in kafka:
        click.echo(f"kafka   {kafka['bootstrap']}   not available: {kafka['error']}")
    else:
        brokers = ", ".join(f"{broker['broker']} at {broker['address']}" for broker in kafka["brokers"])
        click.echo(f"kafka   {kafka['bootstrap']}   cluster {kafka['cluster']}   {_brokers(kafka)}: {brokers}")
        problems = [f"{problem} {count}" for problem, count in kafka["problems"].items() if count]
        if problems:
            click.echo(f"        partitions: {', '.join(problems)} ('onceflow cluster status' lists them)")
    if "error" in redis:
        click.echo(f"redis   {redis['url']}   not available: {redis['error']}")
    else:
        server, synced = redis["server"] or "unknown server", redis["appendfsync"] or "unknown"
        click.echo(f"redis   {redis['url']}   {server}   appendfsync {synced}")
    _print_count(count)
    if "error" not in kafka:
        click.echo()
        table(
            [
                ("TOPIC", "PARTITIONS", "MESSAGES"),
                *((topic["topic"], topic["partitions"], topic["messages"]) for topic in kafka["topics"]),
            ]
        )
        click.echo()
        table(
            [
                ("GROUP", "STATE", "LAG", "LAG SECONDS"),
                *(
                    (group["group"], group["state"], group["lag"]["messages"], group["lag"]["seconds"])
                    for group in kafka["groups"]
                ),
            ]
        )


def _brokers(kafka: Mapping[str, Any]) -> str:
    return counted(len(kafka["brokers"]), "broker")


def _print_count(count: Mapping[str, Any]) -> None:
    if "events" not in count:
        return
    if count["batch"] < 0:
        click.echo(f"count   {count['hash_key']}   nothing counted")
        return
    batch = f"batch {count['batch']} {'complete' if count['complete'] else 'in progress'}"
    if count["complete"] and count["finished_seconds_ago"] is not None:
        batch += f", finished {count['finished_seconds_ago']} s ago in {count['duration_ms']} ms"
    click.echo(f"count   {count['hash_key']}   {counted(count['events'], 'event')}   {batch}")
    if "error" in count.get("lag", {}):
        click.echo(f"        lag not available: {count['lag']['error']}")
    elif "lag" in count:
        click.echo(f"        lag {counted(count['lag']['messages'], 'message')}, {count['lag']['seconds']} s")


def _is_terminal() -> bool:
    return sys.stdout.isatty()


def _shown(redis_url: str) -> str:
    """Return the address without its password."""
    try:
        from onceflow.redis.address import shown
    except ModuleNotFoundError:
        return ""
    return shown(redis_url)
