"""`onceflow windows`, `top`, `sessions` and `user`: the numbers over time."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

import click

from onceflow.cli.logs import print_error, print_line
from onceflow.cli.options import json_option, layout_options, redis_options
from onceflow.cli.output import counted, print_rows, stdout_may_close, table
from onceflow.cli.times import duration_ms, moment_ms, refuse_reversed

if TYPE_CHECKING:
    from onceflow.clicks.analytics import Analytics

_Command = TypeVar("_Command", bound=Callable[..., Any])


def _duration(context: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
    if value is None:
        return None
    length_ms = duration_ms(value)
    if not length_ms or length_ms % 60_000:
        raise click.BadParameter(f"'{value}' is not a duration of whole minutes; expected one like 15m, 1h or 7d")
    return length_ms


def _moment(context: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
    return None if value is None else int(moment_ms(value, time.time_ns() // 1_000_000))


def _range_options(command: _Command) -> _Command:
    command = click.option(
        "--to", "end_ms", callback=_moment, metavar="TIME", help="End, exclusive.  [default: after the newest event]"
    )(command)
    return click.option(
        "--from",
        "begin_ms",
        callback=_moment,
        metavar="TIME",
        help="Start: ms or s since 1970, 2026-02-14, 2026-02-14T10:00Z, or -2h before now.  [default: 24 hours before "
        "the end]",
    )(command)


def _open(redis_url: str, hash_key: str) -> "Analytics":
    from onceflow.clicks.analytics import Analytics

    return Analytics(redis_url, hash_key)


@click.command()
@click.option(
    "--length",
    "length_ms",
    required=True,
    callback=_duration,
    metavar="DURATION",
    help="Length of a window, such as 15m or 1h.",
)
@click.option(
    "--slide",
    "slide_ms",
    callback=_duration,
    metavar="DURATION",
    help="Time from the start of one window to the next, at most the length.  [default: the length]",
)
@click.option("--by", metavar="DIMENSION", help="Count each value of a dimension, such as os, instead of the total.")
@_range_options
@layout_options
@redis_options
def windows(
    length_ms: int,
    slide_ms: int | None,
    by: str | None,
    begin_ms: int | None,
    end_ms: int | None,
    layout: str | None,
    redis_url: str,
    hash_key: str,
) -> None:
    """Show events, clicks and distinct users in windows of event time.

    Windows start at multiples of the slide since 1970-01-01T00:00Z. Windows without events are not listed. "~" marks an
    estimate of distinct users. The job must count over time ('onceflow run --measures FILE').

    \b
    Examples:
      onceflow windows --length 1h
      onceflow windows --length 1h --slide 15m --by os --from -6h --json
    """
    refuse_reversed(begin_ms, end_ms)
    with _open(redis_url, hash_key) as analytics:
        result = analytics.windows(length_ms, slide_ms, by=by, begin_ms=begin_ms, end_ms=end_ms)
    _print(result, layout)


@click.command()
@click.argument("dimension")
@click.option(
    "--per", type=click.Choice(["hour", "day"]), default="hour", show_default=True, help="Size of the bucket."
)
@click.option(
    "--at", "at_ms", callback=_moment, metavar="TIME", help="Time in the bucket.  [default: that of the newest event]"
)
@click.option("--count", default=10, show_default=True, type=click.IntRange(1, 100_000), help="Number of values.")
@layout_options
@redis_options
def top(
    dimension: str, per: str, at_ms: int | None, count: int, layout: str | None, redis_url: str, hash_key: str
) -> None:
    """Show the values of a dimension with most events in an hour or day; for uid, the users with most clicks.

    \b
    Examples:
      onceflow top os --per day
      onceflow top uid --count 3
    """
    from onceflow.clicks.windows import DAY, HOUR

    with _open(redis_url, hash_key) as analytics:
        result = analytics.top(dimension, {"hour": HOUR, "day": DAY}[per], at_ms=at_ms, count=count)
    _print(result, layout)


@click.command()
@click.option("--user", "uid", metavar="UID", help="Show only the sessions of this user.")
@click.option("--summary", is_flag=True, help="Print the number of sessions, their means and the active users instead.")
@_range_options
@layout_options
@redis_options
def sessions(
    uid: str | None,
    summary: bool,
    begin_ms: int | None,
    end_ms: int | None,
    layout: str | None,
    redis_url: str,
    hash_key: str,
) -> None:
    """Show the sessions that started in a time range.

    A session is a series of one user's events without a pause longer than the gap.

    \b
    Examples:
      onceflow sessions --user ada --from -7d
      onceflow sessions --summary
    """
    if summary and uid is not None:
        raise click.UsageError("--summary covers all users; remove --user")
    refuse_reversed(begin_ms, end_ms)
    with _open(redis_url, hash_key) as analytics:
        result: Sequence[Any]
        if summary:
            result = [analytics.sessions_summary(begin_ms=begin_ms, end_ms=end_ms)]
        else:
            result = analytics.sessions(uid, begin_ms=begin_ms, end_ms=end_ms)
    _print(result, layout)


@click.command()
@click.argument("uid")
@json_option
@redis_options
def user(uid: str, as_json: bool, redis_url: str, hash_key: str) -> None:
    """Show one user's clicks and newest sessions. The exit code is 1 for a user without counted events.

    \b
    Example:
      onceflow user 068b746ed4620d25e26055a9f804385f
    """
    with _open(redis_url, hash_key) as analytics:
        result = analytics.user(uid)
    if result is None:
        print_error(f"onceflow: {uid} has no counted event in {hash_key}")
        click.get_current_context().exit(1)
    if as_json:
        click.echo(json.dumps(asdict(result), ensure_ascii=False))
        return
    click.echo(counted(result.clicks, "click"))
    _print(result.sessions, None)


def _print(result: Sequence[Any], layout: str | None) -> None:
    """Print dataclasses of one kind: as JSON, CSV, or a table with readable times."""
    rows = [asdict(one) for one in result]
    with stdout_may_close():
        if layout == "json" or (layout is not None and rows):
            print_rows(rows, layout)
            return
        if not rows:
            print_line("nothing in this time range")
            return
        shown = [name for name in rows[0] if name != "users_exact" and any(row[name] is not None for row in rows)]
        headings = [name.removesuffix("_ms") for name in shown]
        table([headings, *([_cell(row, name) for name in shown] for row in rows)])


def _cell(row: Mapping[str, Any], name: str) -> object:
    value = row[name]
    if value is None:
        return None
    if name.endswith("_ms"):
        return datetime.fromtimestamp(value / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    if name == "users" and not row.get("users_exact", True):
        return f"~{value}"
    return f"{value:.1f}" if isinstance(value, float) else value
