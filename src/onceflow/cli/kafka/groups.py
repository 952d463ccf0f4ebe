"""`onceflow group`: consumer groups, their members, offsets and lag."""

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from onceflow.cli.command_group import Commands
from onceflow.cli.internal import is_marker_group
from onceflow.cli.options import bootstrap_option, json_option, states_option
from onceflow.cli.output import counted, stdout_may_close, table
from onceflow.cli.refusals import confirm, explaining
from onceflow.cli.security import open_cluster
from onceflow.cli.times import duration_ms, moment_ms
from onceflow.errors import OnceflowError
from onceflow.remedies import Remedy
from onceflow.wire import TopicPartition
from onceflow.wire.errors import ErrorCode

if TYPE_CHECKING:
    from onceflow.client.cluster import Cluster


STATES = (
    "Empty",
    "PreparingRebalance",
    "CompletingRebalance",
    "Stable",
    "Dead",
    "Assigning",
    "Reconciling",
    "NotReady",
)
"""org.apache.kafka.common.GroupState, for groups of all types."""


class GroupInUse(OnceflowError):
    """Offsets of a group with members cannot be reset."""


@click.group(cls=Commands)
def group() -> None:
    """List, describe, reset and delete consumer groups.

    \b
    Example:
      onceflow group describe counting
      onceflow group reset counting --topic user_events --to-earliest --execute
    """


@group.command("list")
@states_option(STATES, "Stable")
@click.option(
    "--lag",
    "with_lag",
    is_flag=True,
    help="Show the lag of each group in messages, largest first; a dash if a partition has no leader.",
)
@click.option("--internal", is_flag=True, help="Include the groups that hold the markers of Kafka sinks.")
@bootstrap_option
@json_option
def list_groups(states: Sequence[str], with_lag: bool, internal: bool, bootstrap: str, as_json: bool) -> None:
    """List the groups with their state.

    \b
    Examples:
      onceflow group list --state Stable
      onceflow group list --lag
    """
    from onceflow.client.admin import Admin
    from onceflow.client.lag import LogEnds, reached_by, without_leader

    with open_cluster(bootstrap) as cluster:
        admin = Admin(cluster)
        groups = sorted(admin.list_groups(states), key=lambda group: group.group_id)
        rows: list[dict[str, Any]] = [
            {"group": group.group_id, "state": group.state, "protocol_type": group.protocol_type}
            for group in groups
            if internal or not is_marker_group(group.group_id)
        ]
        if with_lag:
            topics, ends = cluster.topics(), LogEnds(cluster)
            # Before the ends of the logs: a later commit would be beyond them, and its lag too low.
            offsets = [reached_by(admin.group_offsets(row["group"]), topics) for row in rows]
            for row, reached in zip(rows, offsets, strict=True):
                is_unknown = without_leader(reached, topics)
                row["lag"] = None if is_unknown else sum(end - first for *_, first, end in ends.unread(reached))
            rows.sort(key=lambda row: -math.inf if row["lag"] is None else -row["lag"])
    with stdout_may_close():
        if as_json:
            click.echo(json.dumps(rows))
            return
        names = ("group", "state", "lag") if with_lag else ("group", "state")
        table([[name.upper() for name in names], *([row[name] for name in names] for row in rows)])


@group.command()
@click.argument("name", metavar="GROUP")
@bootstrap_option
@json_option
def describe(name: str, bootstrap: str, as_json: bool) -> None:
    """Show the members of GROUP, its committed offsets and its lag.

    LAG counts messages. LAG SECONDS is the age of the oldest record that the group has not read. A dash means that
    the group has no committed offset, or that the partition has no leader.

    \b
    Example:
      onceflow group describe counting
    """
    from onceflow.client.admin import Admin

    with open_cluster(bootstrap) as cluster:
        admin = Admin(cluster)
        description = admin.describe_group(name)
        committed = {place: commit.offset for place, commit in admin.group_offsets(name).items()}
        _require_known(name, bootstrap, description.state, committed)
        owners = {place: member for member in description.members for place in member.assignment}
        places = sorted({*committed, *owners})
        ends, offline = _ends(cluster, places)
        rows = [_lag(cluster, place, committed.get(place), ends.get(place)) for place in places]
    for row in rows:
        owner = owners.get((row["topic"], row["partition"]))
        row["member"] = owner.member_id if owner else None
        row["host"] = owner.client_host if owner else None
    unknown = {place for place in offline if place in committed}
    shown = {
        "group": name,
        "state": description.state,
        "protocol": description.protocol,
        "coordinator": str(description.coordinator),
        "members": [
            {
                "member": member.member_id,
                "instance": member.group_instance_id,
                "client": member.client_id,
                "host": member.client_host,
                "partitions": [list(place) for place in member.assignment],
            }
            for member in description.members
        ],
        "partitions": rows,
        "topics": [
            {"topic": topic, **_total([row for row in rows if row["topic"] == topic], unknown)}
            for topic in dict.fromkeys(row["topic"] for row in rows)
        ],
        **_total(rows, unknown),
    }
    with stdout_may_close():
        click.echo(json.dumps(shown)) if as_json else _print_description(shown)


def _require_known(name: str, bootstrap: str, state: str, committed: Mapping[TopicPartition, int]) -> None:
    if state == "Dead" and not committed:
        raise OnceflowError(f"group '{name}' does not exist at {bootstrap}; {Remedy.LIST_GROUPS}")


def _ends(
    cluster: "Cluster", places: Sequence[TopicPartition]
) -> tuple[dict[TopicPartition, tuple[int, int]], set[TopicPartition]]:
    """Return start and end of each partition's log, and the partitions without leader, which have neither.

    Partitions of deleted topics are left out.
    """
    from onceflow.client.lag import log_ends, without_leader

    topics = cluster.topics(*{topic for topic, _ in places}) if places else {}
    numbers = {
        topic: [number for of, number in places if of == topic and number in metadata.partitions]
        for topic, metadata in topics.items()
    }
    offline = set(without_leader(numbers, topics))
    ends = {
        (topic, partition): ends
        for topic in topics
        for partition, ends in log_ends(
            cluster, topic, [number for number in numbers[topic] if (topic, number) not in offline]
        ).items()
    }
    return ends, offline


def _lag(
    cluster: "Cluster", place: TopicPartition, committed: int | None, ends: tuple[int, int] | None
) -> dict[str, Any]:
    topic, partition = place
    end = None if ends is None else ends[1]
    row: dict[str, Any] = {"topic": topic, "partition": partition, "committed": committed, "end": end}
    if ends is None or committed is None:
        return {**row, "lag": None, "lag_seconds": None}
    unread = max(committed, ends[0])
    lag = max(ends[1] - unread, 0)
    return {**row, "lag": lag, "lag_seconds": _age_seconds(cluster, place, unread, ends[1]) if lag else 0}


def _age_seconds(cluster: "Cluster", place: TopicPartition, start: int, end: int) -> float:
    """Return the age of the first record of [start, end); 0 if only markers are left."""
    from onceflow.client.records import read_records

    first = next(read_records(cluster, *place, start, end), None)
    return 0 if first is None else max(round(time.time() - first.timestamp_ms / 1000, 1), 0)


def _total(rows: Sequence[Mapping[str, Any]], unknown: set[TopicPartition]) -> dict[str, Any]:
    """Return the lag of partitions together; null with one of those whose lag is unknown."""
    if any((row["topic"], row["partition"]) in unknown for row in rows):
        return {"lag": None, "lag_seconds": None}
    return {
        "lag": sum(row["lag"] or 0 for row in rows),
        "lag_seconds": max((row["lag_seconds"] or 0 for row in rows), default=0),
    }


def _print_description(shown: Mapping[str, Any]) -> None:
    click.echo(
        f"group {shown['group']}   state {shown['state']}   members {len(shown['members'])}   "
        f"protocol {shown['protocol'] or '-'}   coordinator {shown['coordinator']}"
    )
    headings = ("TOPIC", "PARTITION", "COMMITTED", "END", "LAG", "LAG SECONDS", "MEMBER", "HOST")
    names = ("topic", "partition", "committed", "end", "lag", "lag_seconds", "member", "host")
    table([headings, *(tuple(row[name] for name in names) for row in shown["partitions"])])
    for total in shown["topics"]:
        click.echo(f"topic {total['topic']}: {_printed(total)}")
    click.echo(f"total: {_printed(shown)}")


def _printed(total: Mapping[str, Any]) -> str:
    if total["lag"] is None:
        return "lag unknown: a partition has no leader"
    return f"{counted(total['lag'], 'message')}, {total['lag_seconds']} s behind"


@group.command()
@click.argument("name", metavar="GROUP")
@click.option(
    "--topic",
    "topics",
    multiple=True,
    metavar="TOPIC[:N,...]",
    help="Topic, or some of its partitions; may be repeated.",
)
@click.option("--all-topics", is_flag=True, help="All topics with committed offsets of the group.")
@click.option("--to-earliest", flag_value="earliest", help="Reset to the start of the log.")
@click.option("--to-latest", flag_value="latest", help="Reset to the end of the log.")
@click.option("--to-offset", type=click.IntRange(min=0), metavar="N", help="Reset to offset N.")
@click.option("--shift-by", type=int, metavar="N", help="Shift by N offsets; negative values shift back.")
@click.option(
    "--to-datetime", metavar="TIME", help="Reset to the first record at or after TIME, such as 2026-02-14T10:00."
)
@click.option(
    "--by-duration", metavar="DURATION", help="Reset to the first record at or after now minus DURATION, such as 2h30m."
)
@click.option("--execute", is_flag=True, help="Apply the change. Without it, only print what would change (dry run).")
@bootstrap_option
@json_option
def reset(
    name: str,
    topics: Sequence[str],
    all_topics: bool,
    to_earliest: str | None,
    to_latest: str | None,
    to_offset: int | None,
    shift_by: int | None,
    to_datetime: str | None,
    by_duration: str | None,
    execute: bool,
    bootstrap: str,
    as_json: bool,
) -> None:
    """Reset the committed offsets of GROUP, which must have no members. Without --execute, only print them.

    An offset outside the log is moved to its start or end.

    \b
    Examples:
      onceflow group reset counting --topic user_events --to-earliest
      onceflow group reset counting --all-topics --by-duration 1h --execute
    """
    given = {
        "--to-earliest": to_earliest,
        "--to-latest": to_latest,
        "--to-offset": to_offset,
        "--shift-by": shift_by,
        "--to-datetime": to_datetime,
        "--by-duration": by_duration,
    }
    option, value = _one_of(given)
    if bool(topics) == all_topics:
        raise click.UsageError("specify the offsets to reset: --topic NAME or --all-topics")
    from onceflow.client.admin import Admin

    with open_cluster(bootstrap) as cluster:
        admin = Admin(cluster)
        committed = {place: commit.offset for place, commit in admin.group_offsets(name).items()}
        places = sorted(committed) if all_topics else _places(cluster, topics)
        targets = _targets(cluster, places, committed, option, value)
        members = admin.describe_group(name).members
        if members and execute:
            raise GroupInUse(
                f"group '{name}' has {counted(len(members), 'member')}, whose commits would overwrite the new offsets; "
                f"{Remedy.STOP_MEMBERS}"
            )
        for topic in dict.fromkeys(topic for topic, _ in targets) if execute else ():
            offsets = {partition: end for (of, partition), end in targets.items() if of == topic}
            cluster.commit_offsets(name, topic, offsets)
    rows = [
        {"topic": topic, "partition": partition, "before": committed.get((topic, partition)), "after": after}
        for (topic, partition), after in targets.items()
    ]
    with stdout_may_close():
        if as_json:
            click.echo(json.dumps({"group": name, "executed": execute, "partitions": rows}))
            return
        table([("TOPIC", "PARTITION", "BEFORE", "AFTER"), *(tuple(row.values()) for row in rows)])
        click.echo("done" if execute else f"nothing was changed: {Remedy.ADD_EXECUTE}", err=not execute)


def _one_of(given: Mapping[str, Any]) -> tuple[str, Any]:
    """Return the option that gives the reset target, and its value."""
    chosen = [(option, value) for option, value in given.items() if value is not None]
    if len(chosen) != 1:
        raise click.UsageError(f"specify exactly one reset target: {', '.join(given)}")
    return chosen[0]


def _places(cluster: "Cluster", topics: Sequence[str]) -> list[TopicPartition]:
    places: dict[TopicPartition, None] = {}
    for text in topics:
        topic, _, wanted = text.partition(":")
        known = cluster.require_topic(topic).partitions
        for partition in wanted.split(",") if wanted else map(str, sorted(known)):
            if not partition.isdigit() or int(partition) not in known:
                raise click.BadParameter(
                    f"{topic} has {counted(len(known), 'partition')} (0 to {len(known) - 1}); "
                    f"there is no partition {partition}",
                    param_hint="--topic",
                )
            places[(topic, int(partition))] = None
    return list(places)


def _targets(
    cluster: "Cluster",
    places: Sequence[TopicPartition],
    committed: Mapping[TopicPartition, int],
    option: str,
    value: Any,
) -> dict[TopicPartition, int]:
    from onceflow.client.cluster import EARLIEST, LATEST

    def listed(topic: str, partition: int, timestamp_ms: int) -> int:
        return cluster.list_offsets(topic, {partition: timestamp_ms})[partition].offset

    choose = _chooser(option, value, listed)
    targets = {}
    for place in places:
        if option == "--shift-by" and place not in committed:
            raise OnceflowError(
                f"--shift-by: the group has no committed offset of {place[0]}-{place[1]}; {Remedy.GIVE_OFFSET}"
            )
        start, end = listed(*place, EARLIEST), listed(*place, LATEST)
        target = choose(place, start, end, committed.get(place, -1))
        targets[place] = min(max(target, start), end)
    return targets


def _chooser(
    option: str, value: Any, listed: Callable[[str, int, int], int]
) -> Callable[[TopicPartition, int, int, int], int]:
    """Return a function (partition, log start, log end, committed offset) → new offset."""
    if option == "--to-offset":
        return lambda place, start, end, committed: int(value)
    if option == "--shift-by":
        return lambda place, start, end, committed: committed + int(value)
    if value == "earliest":
        return lambda place, start, end, committed: start
    if value == "latest":
        return lambda place, start, end, committed: end
    timestamp_ms = _timestamp_ms(option, value)

    def at_time(place: TopicPartition, start: int, end: int, committed: int) -> int:
        offset = listed(*place, timestamp_ms)
        return end if offset < 0 else offset

    return at_time


def _timestamp_ms(option: str, value: str) -> int:
    now_ms = time.time_ns() // 1_000_000
    if option == "--to-datetime":
        return moment_ms(value, now_ms)
    length_ms = duration_ms(value)
    if length_ms is None:
        raise click.BadParameter(
            f"'{value}' is not a valid duration; expected 2h30m, 1d or 500ms", param_hint="--by-duration"
        )
    return max(now_ms - length_ms, 0)


@group.command()
@click.argument("names", metavar="GROUP...", nargs=-1, required=True)
@click.option("--topic", metavar="TOPIC", help="Delete only the offsets of this topic.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@bootstrap_option
@json_option
def delete(names: Sequence[str], topic: str | None, yes: bool, bootstrap: str, as_json: bool) -> None:
    """Delete groups without members and their committed offsets. Asks for confirmation.

    \b
    Examples:
      onceflow group delete counting --yes
      onceflow group delete counting --topic user_events
    """
    from onceflow.client.admin import Admin

    offsets = "the offsets" + (f" of {topic}" if topic else "")
    with open_cluster(bootstrap) as cluster:
        admin = Admin(cluster)
        if not yes:
            confirm(f"Delete {offsets} of {', '.join(names)} at {bootstrap}?", "deleted")
        for name in names:
            with explaining(_refusals(name, topic, bootstrap)):
                if topic is None:
                    admin.delete_group(name)
                else:
                    admin.delete_group_offsets(name, topic, cluster.require_topic(topic).partitions)
            if not as_json:
                click.echo(f"deleted group {name}" if topic is None else f"deleted {offsets} of group {name}")
    if as_json:
        click.echo(json.dumps({"deleted": list(names), "topic": topic}))


def _refusals(name: str, topic: str | None, bootstrap: str) -> dict[ErrorCode, str]:
    stop = f"{Remedy.STOP_MEMBERS}, {Remedy.SHOW_MEMBERS.format(group=name)}"
    return {
        ErrorCode.group_id_not_found: f"group '{name}' does not exist at {bootstrap}; {Remedy.LIST_GROUPS}",
        ErrorCode.non_empty_group: f"group '{name}' has members; {stop}",
        ErrorCode.group_subscribed_to_topic: f"group '{name}' has members that read {topic}; {stop}",
    }
