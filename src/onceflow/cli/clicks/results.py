"""`onceflow clicks` and `onceflow dead`: the counts, and the events that could not be counted."""

import base64
import contextlib
import csv
import json
import sys
from typing import TYPE_CHECKING, Any

import click

from onceflow.cli.logs import print_error, print_line
from onceflow.cli.options import bootstrap_option, json_option, redis_options, refuse_together
from onceflow.cli.output import counted, stdout_may_close
from onceflow.cli.record_layout import to_layout
from onceflow.cli.security import open_cluster, security
from onceflow.clicks.csv_cells import harmless

if TYPE_CHECKING:
    from collections.abc import Iterator

    from onceflow.cli.record_layout import Layout
    from onceflow.clicks.live import Live
    from onceflow.clicks.results import DeadPointer, Results, Snapshot
    from onceflow.wire.batch import Record

TEXT_CHARACTERS_MAX = 200
LIVE_IDLE_S = 3.0
"""Maximum time without progress before --now prints counted numbers only."""


@click.command()
@click.argument("uid", required=False)
@click.option("--top", default=10, show_default=True, type=click.IntRange(1, 100_000), help="Number of users to list.")
@click.option(
    "--export",
    "layout",
    type=click.Choice(["csv", "jsonl"]),
    help="Print all users instead, most clicks first, as of one complete micro-batch.",
)
@click.option(
    "--now",
    "is_live",
    is_flag=True,
    help="Include acknowledged events that are not counted yet, read from the log.",
)
@json_option
@redis_options
@bootstrap_option
@click.option("--topic", default="user_events", show_default=True, help="Topic for --now until something is counted.")
def clicks(
    uid: str | None,
    top: int,
    layout: str | None,
    is_live: bool,
    as_json: bool,
    redis_url: str,
    hash_key: str,
    bootstrap: str,
    topic: str,
) -> None:
    """Show the counted clicks: totals and top users, one user, or an export of all users.

    Reads only Redis, unless with --now. The exit code is 1 if nothing is counted there, or nothing of that user.

    \b
    Examples:
      onceflow clicks
      onceflow clicks --now
      onceflow clicks 068b746ed4620d25e26055a9f804385f --json
      onceflow clicks --export csv > clicks.csv
    """
    from onceflow.clicks.results import Results

    if layout is not None:
        refuse_together(
            ["uid", "top", "as_json", "is_live"], "--export prints all users; leave UID, --top, --now and --json out"
        )
    if uid is not None:
        refuse_together(["top"], "--top lists users and UID selects one; choose one")
    if is_live:
        with _open_live(redis_url, hash_key, bootstrap, topic, top) as live, stdout_may_close():
            _print_live(live, uid, redis_url, hash_key, as_json=as_json)
        return
    with Results(redis_url, hash_key) as results, stdout_may_close():
        if layout is not None:
            _export(results, layout)
        elif uid is not None:
            _print_user({"uid": uid, "clicks": results.clicks_of(uid)}, hash_key, as_json=as_json)
        else:
            snapshot = results.snapshot(top=top)
            if snapshot.marker is None:
                results.require_marker()
            click.echo(json.dumps(snapshot.as_json(), ensure_ascii=False) if as_json else totals(snapshot, redis_url))


def _print_user(document: dict[str, Any], hash_key: str, *, as_json: bool) -> None:
    """Print one user's clicks; exit with 1 if there are none."""
    if as_json:
        click.echo(json.dumps(document, ensure_ascii=False))
    elif document["clicks"] is not None:
        click.echo(str(document["clicks"]))
    if document["clicks"] is None:
        print_error(f"onceflow: {document['uid']} has no counted event in {hash_key}")
        click.get_current_context().exit(1)


@contextlib.contextmanager
def _open_live(redis_url: str, hash_key: str, bootstrap: str, topic: str, top: int) -> "Iterator[Live]":
    """Read until the counts are live, or until they evidently cannot be; print why to standard error."""
    from onceflow.clicks.live import Live
    from onceflow.clicks.results import Results

    live = Live(Results(redis_url, hash_key), bootstrap, topic, security=security(), top=top)
    live.start()
    try:
        version, view = -1, live.view()
        while live.is_starting and version != live.version:
            version, view = live.version, live.wait_until_live(LIVE_IDLE_S)
        if view.snapshot is None:
            print_error(f"onceflow: only counted numbers: {view.reason}")
        yield live
    finally:
        live.close()


def _print_live(live: "Live", uid: str | None, redis_url: str, hash_key: str, *, as_json: bool) -> None:
    if uid is not None:
        user = live.clicks_of(uid)
        _print_user({"uid": uid, "clicks": user.clicks, "live": user.is_live}, hash_key, as_json=as_json)
        return
    view = live.view()
    snapshot = view.snapshot or live.counted()
    if as_json:
        click.echo(json.dumps(snapshot.as_json() | {"now": view.as_json()}, ensure_ascii=False))
    elif view.snapshot is None:
        click.echo(totals(snapshot, redis_url))
    else:
        click.echo(_numbers(snapshot, f"now, {counted(view.not_counted, 'event')} not counted yet"))


def _export(results: "Results", layout: str) -> None:
    """Print all users to standard output, and their micro-batch to standard error."""
    marker, users = results.users()
    offsets = json.dumps(marker.offsets)
    print_line(f"{counted(len(users), 'user')} as of micro-batch {marker.batch}, offsets {offsets}")
    ordered = sorted(users.items(), key=lambda entry: (-entry[1], entry[0]))
    if layout == "csv":
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(("uid", "clicks"))
        writer.writerows((harmless(uid), clicks_of) for uid, clicks_of in ordered)
        return
    for uid, clicks_of in ordered:
        click.echo(json.dumps({"uid": uid, "clicks": clicks_of}, ensure_ascii=False))


def totals(snapshot: "Snapshot", redis_url: str) -> str:
    """Return the snapshot of that Redis as text."""
    from onceflow.redis.address import shown

    if snapshot.marker is None:
        return f"nothing counted yet in {snapshot.hash_key} at {shown(redis_url)}"
    if snapshot.marker.counted_fields is None:
        from onceflow.clicks.results import by_another_job

        reason = by_another_job(snapshot.hash_key, snapshot.marker)
        return f"{counted(snapshot.users, 'field')} in {snapshot.hash_key}, but {reason}; the job defines their meaning"
    return _numbers(snapshot, f"micro-batch {snapshot.batch}{'' if snapshot.marker.complete else ' (being written)'}")


def _numbers(snapshot: "Snapshot", moment: str) -> str:
    """Return the numbers and their moment as text."""
    counts = {"events": snapshot.events, "clicks": snapshot.clicks, "users": snapshot.users, "bad": snapshot.bad}
    if snapshot.marker is not None and snapshot.marker.counts_ids:
        counts["duplicates"] = snapshot.duplicates
    lines = [" · ".join([*(f"{count:,} {name}" for name, count in counts.items()), moment])]
    for title, counts in (("os", snapshot.by_os), ("bad", snapshot.bad_by_reason)):
        if counts:
            lines.append(f"{title:<4} " + " · ".join(f"{name} {count:,}" for name, count in list(counts.items())[:20]))
    width = max((len(uid) for uid, _ in snapshot.top), default=0)
    lines += [f"{uid:<{width}}  {count:>12,}" for uid, count in snapshot.top]
    return "\n".join(lines)


@click.command()
@click.option(
    "--count", default=10, show_default=True, type=click.IntRange(1, 10_000), help="Number of events, newest first."
)
@click.option(
    "-f",
    "--format",
    "layout",
    callback=to_layout,
    metavar="text|json|LAYOUT",
    help="Print only the records, as 'onceflow consume' does. text: the value as it is and a line feed. json: one "
    "object per line. LAYOUT: such as '%p %o %v\\n'.  [default: position, reason and the start of the value]",
)
@json_option
@redis_options
@bootstrap_option
def dead(count: int, layout: "Layout | None", as_json: bool, redis_url: str, hash_key: str, bootstrap: str) -> None:
    """Show the newest events that could not be counted: position, reason and content.

    Redis keeps partition, offset and reason of the last 10,000; the events are read from the log. --json prints one
    object per line. Bytes that are not UTF-8 are shown as base64. The exit code is 1 if nothing is counted there.

    \b
    Examples:
      onceflow dead --count 5
      onceflow dead --count 10000 --format text > bad.jsonl
    """
    from onceflow.clicks.results import Results, dead_records, refuse_other_job

    if layout is not None:
        refuse_together(["as_json"], "--format prints records and --json events with their reason; choose one")
    with Results(redis_url, hash_key) as results:
        pointers = results.dead_pointers(count)
        marker = results.require_marker()
    refuse_other_job(hash_key, marker, "'dead' knows only the events that 'onceflow run' refuses")
    topics = list(marker.offsets)
    if not pointers:
        print_line("no bad events so far")
        return
    with open_cluster(bootstrap) as cluster, stdout_may_close():
        for pointer, record in dead_records(cluster, topics[0], pointers):
            document = _dead_document(topics[0], pointer, record)
            if layout is not None and record is not None:
                sys.stdout.buffer.write(layout(topics[0], pointer.partition, record))
            elif layout is not None:
                print_line(_dead_line(document))
            else:
                click.echo(json.dumps(document, ensure_ascii=False) if as_json else _dead_line(document))
        sys.stdout.flush()


def _dead_document(topic: str, pointer: "DeadPointer", record: "Record | None") -> dict[str, Any]:
    document: dict[str, Any] = {
        "topic": topic,
        "partition": pointer.partition,
        "offset": pointer.offset,
        "reason": pointer.reason,
        "in_log": record is not None,
    }
    if record is not None:
        document["timestamp_ms"] = record.timestamp_ms
        document |= _shown("key", record.key) | _shown("value", record.value)
    return document


def _shown(name: str, value: bytes | None) -> dict[str, Any]:
    if value is None:
        return {name: None}
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {name: base64.b64encode(value).decode(), f"{name}_base64": True}


def _dead_line(document: dict[str, Any]) -> str:
    where = f"{document['topic']}-{document['partition']} offset {document['offset']}  {document['reason']}"
    if not document["in_log"]:
        return f"{where}  (the log no longer has it)"
    value = document["value"]
    if value is None:
        return f"{where}  (no value)"
    shown = value if len(value) <= TEXT_CHARACTERS_MAX else value[:TEXT_CHARACTERS_MAX] + "…"
    return f"{where}  {'base64 ' if 'value_base64' in document else ''}{json.dumps(shown, ensure_ascii=False)}"
