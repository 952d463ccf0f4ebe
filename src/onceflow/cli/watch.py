"""`onceflow watch`: print a line when an alert begins or ends, and post it to a webhook."""

import json
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from datetime import UTC, datetime
from urllib.parse import urlsplit

import click

from onceflow.cli.alerts import Alerts, Change, Condition, duration_s, parse
from onceflow.cli.logs import print_error
from onceflow.cli.options import bootstrap_option, json_lines_option, redis_options
from onceflow.cli.output import stdout_may_close
from onceflow.cli.status import read_status

POST_ATTEMPTS = 3
POST_TIMEOUT_S = 5.0
POST_PAUSE_S = 1.0
"""Pause before the second attempt; it doubles with each further one."""


def _conditions(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> list[Condition]:
    try:
        return [parse(value) for value in values]
    except ValueError as error:
        raise click.BadParameter(str(error), context, parameter) from error


def _interval(context: click.Context, parameter: click.Parameter, value: str) -> float:
    seconds = duration_s(value)
    if seconds is None or seconds < 1:
        raise click.BadParameter(f"'{value}' is not a valid duration; expected 1s or more", context, parameter)
    return seconds


def _webhook(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    if value is not None and (urlsplit(value).scheme not in ("http", "https") or not urlsplit(value).hostname):
        reason = "it is not a valid address; expected http://HOST/… or https://HOST/…"
        raise click.BadParameter(reason, context, parameter)
    return value


@click.command()
@click.option(
    "--alert",
    "conditions",
    multiple=True,
    required=True,
    metavar="CONDITION",
    callback=_conditions,
    help="Condition, such as 'lag > 60s' or 'redis down'; may be repeated.",
)
@click.option(
    "--webhook",
    metavar="URL",
    envvar="ONCEFLOW_WEBHOOK",
    show_envvar=True,
    callback=_webhook,
    help="Also post each begin and end as JSON to this address.",
)
@click.option(
    "--interval",
    default="10s",
    show_default=True,
    metavar="DURATION",
    callback=_interval,
    help="Time between two readings, such as 10s or 5m; at least 1s.",
)
@click.option("--once", is_flag=True, help="Check once, and end with an exit code. Takes --interval for rate and bad.")
@bootstrap_option
@redis_options
@json_lines_option
@click.pass_context
def watch(
    context: click.Context,
    conditions: list[Condition],
    webhook: str | None,
    interval: float,
    once: bool,
    bootstrap: str,
    redis_url: str,
    hash_key: str,
    as_json: bool,
) -> None:
    """Print a line when an alert begins or ends, until Ctrl-C.

    A CONDITION is 'lag > 60s' (age of the oldest event that is not counted; s, m or h), 'lag > 1000' (number of such
    events), 'rate < 10' (counted events per second), 'bad > 0.5' (bad events per second), 'redis down' or 'broker
    down'. The comparisons are >, >=, < and <=. A value that is not known, such as the lag while the broker is down,
    begins and ends nothing.

    Exit codes with --once: 0 no condition holds; 1 one holds; 2 none holds, but one is not known.

    The JSON objects are those that are posted to the webhook: alert, state (begin or end), reading, at_ms and text. A
    post is tried three times; then it is reported on standard error.

    \b
    Examples:
      onceflow watch --alert 'lag > 60s' --alert 'redis down' --webhook https://hooks.example/onceflow
      onceflow watch --alert 'lag > 60s' --once
    """
    # Without this package every status would show Redis as down.
    import redis  # noqa: F401

    alerts = Alerts(conditions)
    readings = 1 + any(condition.needs_two for condition in conditions)
    with stdout_may_close():
        while True:
            changes = alerts.update(read_status(bootstrap, redis_url, hash_key))
            readings -= 1
            _report(changes, webhook, as_json)
            if once and readings <= 0:
                break
            time.sleep(interval)
    context.exit(1 if alerts.holding else 2 if alerts.unknown else 0)


def _report(changes: Sequence[Change], webhook: str | None, as_json: bool) -> None:
    for change in changes:
        document = json.dumps(change.as_json(), ensure_ascii=False)
        at = datetime.fromtimestamp(change.at_ms / 1_000, UTC).isoformat(timespec="seconds")
        click.echo(document if as_json else f"{at}  {change.state:<5}  {change.alert}: {change.reading}")
        if webhook is not None:
            _post(webhook, document)


def _post(webhook: str, document: str) -> None:
    """Post one document, in at most POST_ATTEMPTS attempts. The address may hold a secret and is not shown."""
    request = urllib.request.Request(webhook, document.encode(), {"Content-Type": "application/json"}, method="POST")
    reason: object = None
    for attempt in range(POST_ATTEMPTS):
        if attempt:
            time.sleep(POST_PAUSE_S * 2 ** (attempt - 1))
        try:
            with urllib.request.urlopen(request, timeout=POST_TIMEOUT_S):
                return
        except OSError as error:
            reason = error
            if isinstance(error, urllib.error.HTTPError):
                error.close()
    print_error(f"webhook at {urlsplit(webhook).hostname}: {POST_ATTEMPTS} attempts failed: {reason}")
