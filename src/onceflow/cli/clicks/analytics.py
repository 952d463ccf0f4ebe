"""`onceflow windows`, `top`, `sessions` and `user`: the numbers over time."""

import csv
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

import click

from onceflow.cli.options import redis_options
from onceflow.cli.output import stdout_may_close, table
from onceflow.cli.times import duration_ms, moment_ms

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


def _layout_options(command: _Command) -> _Command:
    command = click.option("--csv", "layout", flag_value="csv", help="Print CSV with a heading.")(command)
    return click.option("--json", "layout", flag_value="json", help="Print one JSON document: a list of objects.")(
        command
    )


def _open(redis_url: str, hash_key: str) -> "Analytics":
    from onceflow.clicks.analytics import Analytics

    return Analytics(redis_url, hash_key)


@click.command()
@click.option(
    "--length", "length_ms", required=True, callback=_duration, metavar="DURATION", help="Length of a window: 15m, 1h."
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
@_layout_options
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

    Windows begin at multiples of the slide since 1970-01-01T00:00Z; windows without events are left out. "~" marks an
    estimate of distinct users. The job must count over time ('onceflow run --measures FILE').

    \b
    Examples:
      onceflow windows --length 1h
      onceflow windows --length 1h --slide 15m --by os --from -6h --json
    """
    with _open(redis_url, hash_key) as analytics:
        result = analytics.windows(length_ms, slide_ms, by=by, begin_ms=begin_ms, end_ms=end_ms)
    _print(result, layout, times=("start_ms", "end_ms"))


@click.command()
@click.argument("dimension")
@click.option(
    "--per", type=click.Choice(["hour", "day"]), default="hour", show_default=True, help="Size of the bucket."
)
@click.option(
    "--at", "at_ms", callback=_moment, metavar="TIME", help="A time in the bucket.  [default: the newest event's]"
)
@click.option("--count", default=10, show_default=True, type=click.IntRange(1, 100_000), help="Number of values.")
@_layout_options
@redis_options
def top(
    dimension: str, per: str, at_ms: int | None, count: int, layout: str | None, redis_url: str, hash_key: str
) -> None:
    """Show the values of a dimension with most events in an hour or a day; for uid, the users with most clicks.

    \b
    Examples:
      onceflow top os --per day
      onceflow top uid --count 3
    """
    from onceflow.clicks.windows import DAY, HOUR

    with _open(redis_url, hash_key) as analytics:
        result = analytics.top(dimension, {"hour": HOUR, "day": DAY}[per], at_ms=at_ms, count=count)
    _print(result, layout, times=("start_ms", "end_ms"))


@click.command()
@click.option("--user", "uid", metavar="UID", help="Only the sessions of this user.")
@click.option("--summary", is_flag=True, help="Print number and means instead.")
@_range_options
@_layout_options
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
    """Show the sessions that started in a time: a user's events without a pause longer than the gap.

    \b
    Examples:
      onceflow sessions --user ada --from -7d
      onceflow sessions --summary
    """
    if summary and uid is not None:
        raise click.UsageError("--summary is of all users; leave --user out")
    with _open(redis_url, hash_key) as analytics:
        result: Sequence[Any]
        if summary:
            result = [analytics.sessions_summary(begin_ms=begin_ms, end_ms=end_ms)]
        else:
            result = analytics.sessions(uid, begin_ms=begin_ms, end_ms=end_ms)
    _print(result, layout, times=("started_ms", "ended_ms"))


@click.command()
@click.argument("uid")
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON document.")
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
        click.echo(f"onceflow: {uid} has no counted event in {hash_key}", err=True)
        click.get_current_context().exit(1)
    if as_json:
        click.echo(json.dumps(asdict(result), ensure_ascii=False))
        return
    click.echo(f"{result.clicks:,} clicks")
    _print(result.sessions, None, times=("started_ms", "ended_ms"))


def _print(result: Sequence[Any], layout: str | None, *, times: Sequence[str]) -> None:
    """Print dataclasses of one kind: as JSON, CSV, or a table with readable times."""
    with stdout_may_close():
        if layout == "json":
            click.echo(json.dumps([asdict(one) for one in result], ensure_ascii=False))
            return
        if not result:
            click.echo("none in this time", err=True)
            return
        names = [field.name for field in fields(result[0])]
        if layout == "csv":
            writer = csv.writer(sys.stdout, lineterminator="\n")
            writer.writerow(names)
            writer.writerows([getattr(one, name) for name in names] for one in result)
            return
        shown = [
            name for name in names if name != "users_exact" and any(getattr(one, name) is not None for one in result)
        ]
        table(
            [
                [name.removesuffix("_ms") for name in shown],
                *([_cell(one, name, times) for name in shown] for one in result),
            ]
        )


def _cell(one: Any, name: str, times: Sequence[str]) -> object:
    value = getattr(one, name)
    if value is None:
        return None
    if name in times:
        return datetime.fromtimestamp(value / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    if name == "users" and not getattr(one, "users_exact", True):
        return f"~{value}"
    return f"{value:.1f}" if isinstance(value, float) else value
