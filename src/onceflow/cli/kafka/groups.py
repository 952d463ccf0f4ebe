"""`onceflow group`: who reads what, how far behind, and from where it goes on."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from onceflow.cli.command_group import Commands
from onceflow.cli.kafka.times import duration_ms, moment_ms
from onceflow.cli.options import bootstrap_option, json_option, states_option
from onceflow.cli.output import counted, stdout_may_close, table
from onceflow.cli.refusals import in_words, require_yes
from onceflow.cli.security import open_cluster
from onceflow.errors import OnceflowError
from onceflow.remedies import Remedy
from onceflow.wire.errors import ErrorCode

if TYPE_CHECKING:
    from onceflow.client.admin_responses import CommittedOffset
    from onceflow.client.cluster import Cluster

TopicPartition = tuple[str, int]

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
"""org.apache.kafka.common.GroupState, of groups of all kinds."""


class GroupInUse(OnceflowError):
    """A group with members cannot be changed from outside."""


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
    "--lag", "with_lag", is_flag=True, help="Also how many messages each has not read; those behind most come first."
)
@bootstrap_option
@json_option
def list_groups(states: Sequence[str], with_lag: bool, bootstrap: str, as_json: bool) -> None:
    """List the groups with their state.

    \b
    Examples:
      onceflow group list --state Stable
      onceflow group list --lag
    """
    from onceflow.client.admin import Admin

    with open_cluster(bootstrap) as cluster:
        admin = Admin(cluster)
        found = sorted(admin.list_groups(states), key=lambda each: each.group_id)
        rows: list[dict[str, Any]] = [
            {"group": each.group_id, "state": each.state, "protocol_type": each.protocol_type} for each in found
        ]
        if with_lag:
            ranges = _Ranges(cluster)
            for row in rows:
                row["lag"] = ranges.lag(admin.group_offsets(row["group"]))
            rows.sort(key=lambda row: -row["lag"])
    with stdout_may_close():
        if as_json:
            click.echo(json.dumps(rows))
            return
        names = ("group", "state", "lag") if with_lag else ("group", "state")
        table([[name.upper() for name in names], *([row[name] for name in names] for row in rows)])


class _Ranges:
    """From where to where each topic's partitions reach, asked for once however many groups read them."""

    def __init__(self, cluster: "Cluster") -> None:
        self._cluster = cluster
        self._topics: dict[str, dict[int, tuple[int, int]]] = {}

    def lag(self, offsets: "Mapping[TopicPartition, CommittedOffset]") -> int:
        """Messages beyond the committed offsets; topics that are gone hold none."""
        lag = 0
        for (topic, partition), committed in offsets.items():
            start, end = self._of(topic).get(partition, (0, 0))
            lag += max(end - max(committed.offset, start), 0)
        return lag

    def _of(self, topic: str) -> dict[int, tuple[int, int]]:
        from onceflow.client.cluster import EARLIEST, LATEST

        if topic not in self._topics:
            there = self._cluster.topics(topic)
            partitions = there[topic].partitions if topic in there else {}
            starts, ends = (
                self._cluster.list_offsets(topic, dict.fromkeys(partitions, at)) if partitions else {}
                for at in (EARLIEST, LATEST)
            )
            self._topics[topic] = {each: (starts[each].offset, ends[each].offset) for each in partitions}
        return self._topics[topic]


@group.command()
@click.argument("name", metavar="GROUP")
@bootstrap_option
@json_option
def describe(name: str, bootstrap: str, as_json: bool) -> None:
    """Show the members of GROUP, what it has committed, and its lag.

    The lag is given in messages, and in seconds: the age of the oldest record that the group has not read. A dash
    stands where the group has committed nothing.

    \b
    Example:
      onceflow group describe counting
    """
    from onceflow.client.admin import Admin

    with open_cluster(bootstrap) as cluster:
        admin = Admin(cluster)
        found = admin.describe_group(name)
        committed = {place: each.offset for place, each in admin.group_offsets(name).items()}
        _require_known(name, bootstrap, found.state, committed)
        owners = {place: member for member in found.members for place in member.assignment}
        rows = [_lag(cluster, place, committed.get(place)) for place in sorted({*committed, *owners})]
    for row in rows:
        owner = owners.get((row["topic"], row["partition"]))
        row["member"] = owner.member_id if owner else None
        row["host"] = owner.client_host if owner else None
    shown = {
        "group": name,
        "state": found.state,
        "protocol": found.protocol,
        "coordinator": str(found.coordinator),
        "members": [
            {
                "member": member.member_id,
                "instance": member.group_instance_id,
                "client": member.client_id,
                "host": member.client_host,
                "partitions": [list(place) for place in member.assignment],
            }
            for member in found.members
        ],
        "partitions": rows,
        "topics": _totals(rows),
        "lag": sum(row["lag"] or 0 for row in rows),
        "lag_seconds": max((row["lag_seconds"] or 0 for row in rows), default=0),
    }
    with stdout_may_close():
        click.echo(json.dumps(shown)) if as_json else _print_description(shown)


def _require_known(name: str, bootstrap: str, state: str, committed: Mapping[TopicPartition, int]) -> None:
    if state == "Dead" and not committed:
        raise OnceflowError(f"group '{name}' does not exist at {bootstrap}: {Remedy.LIST_GROUPS}")


def _lag(cluster: "Cluster", place: TopicPartition, committed: int | None) -> dict[str, Any]:
    from onceflow.client.cluster import EARLIEST, LATEST
    from onceflow.client.errors import UnknownTopic

    topic, partition = place
    row: dict[str, Any] = {"topic": topic, "partition": partition, "committed": committed}
    try:
        end = cluster.list_offsets(topic, {partition: LATEST})[partition].offset
        start = cluster.list_offsets(topic, {partition: EARLIEST})[partition].offset
    except UnknownTopic:
        return {**row, "end": None, "lag": None, "lag_seconds": None}
    if committed is None:
        return {**row, "end": end, "lag": None, "lag_seconds": None}
    begin = max(committed, start)
    lag = max(end - begin, 0)
    return {**row, "end": end, "lag": lag, "lag_seconds": _age_seconds(cluster, place, begin, end) if lag else 0}


def _age_seconds(cluster: "Cluster", place: TopicPartition, begin: int, end: int) -> float:
    """How old the first record of [begin, end) is; 0 where only markers are left of it."""
    from onceflow.client.records import read_records

    first = next(read_records(cluster, *place, begin, end), None)
    return 0 if first is None else max(round(time.time() - first.timestamp_ms / 1000, 1), 0)


def _totals(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    topics = dict.fromkeys(row["topic"] for row in rows)
    return [
        {
            "topic": topic,
            "lag": sum(row["lag"] or 0 for row in rows if row["topic"] == topic),
            "lag_seconds": max(row["lag_seconds"] or 0 for row in rows if row["topic"] == topic),
        }
        for topic in topics
    ]


def _print_description(shown: Mapping[str, Any]) -> None:
    click.echo(
        f"group {shown['group']}   state {shown['state']}   members {len(shown['members'])}   "
        f"protocol {shown['protocol'] or '-'}   coordinator {shown['coordinator']}"
    )
    heads = ("TOPIC", "PARTITION", "COMMITTED", "END", "LAG", "LAG SECONDS", "MEMBER", "HOST")
    names = ("topic", "partition", "committed", "end", "lag", "lag_seconds", "member", "host")
    table([heads, *(tuple(row[name] for name in names) for row in shown["partitions"])])
    for each in shown["topics"]:
        click.echo(f"topic {each['topic']}: {counted(each['lag'], 'message')}, {each['lag_seconds']} s behind")
    click.echo(f"in all: {counted(shown['lag'], 'message')}, {shown['lag_seconds']} s behind")


@group.command()
@click.argument("name", metavar="GROUP")
@click.option("--topic", "topics", multiple=True, metavar="TOPIC[:N,...]", help="Which partitions; may be given again.")
@click.option("--all-topics", is_flag=True, help="All topics of which the group has committed offsets.")
@click.option("--to-earliest", flag_value="earliest", help="To the log's start.")
@click.option("--to-latest", flag_value="latest", help="To the log's end.")
@click.option("--to-offset", type=click.IntRange(min=0), metavar="N", help="To this offset.")
@click.option("--shift-by", type=int, metavar="N", help="So many further, or back if negative.")
@click.option("--to-datetime", metavar="TIME", help="To the first record of this time or later, as 2026-02-14T10:00.")
@click.option("--by-duration", metavar="DURATION", help="To the first record of so long ago or later, as 2h30m.")
@click.option("--execute", is_flag=True, help="Do it. Without this it is only shown.")
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
    """Set the committed offsets of GROUP, which must have no members; shows what would be done unless --execute.

    An offset that the log does not reach is moved to its start or end.

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
        raise click.UsageError("say which offsets to reset: --topic NAME or --all-topics")
    from onceflow.client.admin import Admin

    with open_cluster(bootstrap) as cluster:
        admin = Admin(cluster)
        committed = {place: each.offset for place, each in admin.group_offsets(name).items()}
        places = sorted(committed) if all_topics else _places(cluster, topics)
        targets = _targets(cluster, places, committed, option, value)
        members = admin.describe_group(name).members
        if members and execute:
            raise GroupInUse(
                f"group '{name}' has {counted(len(members), 'member')}, whose commits would undo it: "
                f"{Remedy.STOP_MEMBERS}"
            )
        for topic in dict.fromkeys(topic for topic, _ in targets) if execute else ():
            cluster.commit_offsets(name, topic, {part: end for (each, part), end in targets.items() if each == topic})
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
    """The option that says where to reset to, and its value."""
    chosen = [(option, value) for option, value in given.items() if value is not None]
    if len(chosen) != 1:
        raise click.UsageError(f"say once where to reset to: one of {', '.join(given)}")
    return chosen[0]


def _places(cluster: "Cluster", topics: Sequence[str]) -> list[TopicPartition]:
    places: dict[TopicPartition, None] = {}
    for text in topics:
        topic, _, wanted = text.partition(":")
        known = cluster.require_topic(topic).partitions
        for partition in wanted.split(",") if wanted else map(str, sorted(known)):
            if not partition.isdigit() or int(partition) not in known:
                raise click.BadParameter(
                    f"'{text}': {topic} has {counted(len(known), 'partition')}, counted from 0; '{partition}' is none",
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
                f"--shift-by: the group has no offset of {place[0]}-{place[1]} that could be shifted; "
                f"{Remedy.GIVE_OFFSET}"
            )
        start, end = listed(*place, EARLIEST), listed(*place, LATEST)
        target = choose(place, start, end, committed.get(place, -1))
        targets[place] = min(max(target, start), end)
    return targets


def _chooser(
    option: str, value: Any, listed: Callable[[str, int, int], int]
) -> Callable[[TopicPartition, int, int, int], int]:
    """(partition, log start, log end, committed offset) → the new offset."""
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
        found = listed(*place, timestamp_ms)
        return end if found < 0 else found

    return at_time


def _timestamp_ms(option: str, value: str) -> int:
    now_ms = time.time_ns() // 1_000_000
    if option == "--to-datetime":
        return moment_ms(value, now_ms)
    length_ms = duration_ms(value)
    if length_ms is None:
        raise click.BadParameter(f"'{value}' is no duration: write 2h30m, 1d or 500ms", param_hint="--by-duration")
    return max(now_ms - length_ms, 0)


@group.command()
@click.argument("names", metavar="GROUP...", nargs=-1, required=True)
@click.option("--topic", metavar="TOPIC", help="Only the group's offsets of this topic.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@bootstrap_option
@json_option
def delete(names: Sequence[str], topic: str | None, yes: bool, bootstrap: str, as_json: bool) -> None:
    """Delete groups without members, with their committed offsets; asks first.

    \b
    Examples:
      onceflow group delete counting --yes
      onceflow group delete counting --topic user_events
    """
    from onceflow.client.admin import Admin

    what = "the offsets" + (f" of {topic}" if topic else "")
    with open_cluster(bootstrap) as cluster:
        admin = Admin(cluster)
        if not yes:
            require_yes(f"Delete {what} of {', '.join(names)} at {bootstrap}?", "deleted")
        for name in names:
            with in_words(_why_not_deleted(name, topic, bootstrap)):
                if topic is None:
                    admin.delete_group(name)
                else:
                    admin.delete_group_offsets(name, topic, cluster.require_topic(topic).partitions)
            if not as_json:
                click.echo(f"deleted group {name}" if topic is None else f"deleted {what} of group {name}")
    if as_json:
        click.echo(json.dumps({"deleted": list(names), "topic": topic}))


def _why_not_deleted(name: str, topic: str | None, bootstrap: str) -> dict[ErrorCode, str]:
    stop = f"{Remedy.STOP_MEMBERS}, {Remedy.SHOW_MEMBERS.format(group=name)}"
    return {
        ErrorCode.group_id_not_found: f"there is no group '{name}' at {bootstrap}: {Remedy.LIST_GROUPS}",
        ErrorCode.non_empty_group: f"group '{name}' has members: {stop}",
        ErrorCode.group_subscribed_to_topic: f"group '{name}' has members that read {topic}: {stop}",
    }
