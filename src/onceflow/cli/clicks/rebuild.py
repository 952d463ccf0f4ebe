"""`onceflow rebuild`: count everything again beside the live counts, then replace them."""

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from onceflow.cli.clicks.job_options import session_options, session_settings
from onceflow.cli.notes import progress_bar, quiet_option
from onceflow.cli.options import bootstrap_option, json_option, redis_options
from onceflow.cli.output import counted, stdout_may_close
from onceflow.cli.security import kafka_settings
from onceflow.cli.spark import ignore_pandas_warnings

if TYPE_CHECKING:
    from onceflow.clicks.rebuild import Outcome
    from onceflow.clicks.results import Snapshot

LOG = Path(".onceflow", "rebuild")


@click.command()
@bootstrap_option
@redis_options
@session_options
@click.option("--discard", is_flag=True, help="Delete the counts of an unfinished rebuild instead.")
@quiet_option
@json_option
def rebuild(bootstrap: str, redis_url: str, hash_key: str, discard: bool, as_json: bool, **session: Any) -> None:
    """Recount the log beside the live counts, verify the result, and replace the live counts in one step.

    The rebuild uses the plan and the first offsets of the live counts. Readers see the old counts until the replacement
    and the new counts after it. 'onceflow run' may continue; it keeps its checkpoint.

    After a kill, start it again; it resumes. It is refused if the log lacks a counted event.

    \b
    Examples:
      onceflow rebuild
      onceflow rebuild --hash-key site::visits --json
      onceflow rebuild --discard
    """
    from onceflow.clicks.rebuild import Rebuild

    ignore_pandas_warnings()
    running = Rebuild(
        bootstrap,
        redis_url,
        hash_key,
        kafka=kafka_settings(),
        session=session_settings(str(LOG.absolute()), session),
    )
    if discard:
        keys = running.discard()
        click.echo(json.dumps({"deleted": keys}) if as_json else f"deleted {counted(keys, 'key')} of {running.own_key}")
        return
    with progress_bar("events") as advance:
        outcome = replace(running, on_progress=lambda progress: advance(progress.counted, progress.total)).run()
    with stdout_may_close():
        _print(outcome, hash_key, as_json=as_json)


def _print(outcome: "Outcome", hash_key: str, *, as_json: bool) -> None:
    if as_json:
        document = {
            "hash_key": hash_key,
            "topic": outcome.topic,
            "resumed": outcome.resumed,
            "verified_events": outcome.verified.recount.events,
            "before": _totals(outcome.before),
            "after": _totals(outcome.after),
        }
        click.echo(json.dumps(document, ensure_ascii=False))
        return
    before, after = _totals(outcome.before), _totals(outcome.after)
    click.echo(f"replaced the counts of {hash_key} by those of {outcome.topic}")
    click.echo(f"verified {counted(outcome.verified.recount.events, 'event')} against the log")
    for name, number in after.items():
        click.echo(f"{name:<8}{number:>14,}   before {before[name]:>14,}")


def _totals(snapshot: "Snapshot") -> dict[str, int]:
    return {"events": snapshot.events, "clicks": snapshot.clicks, "users": snapshot.users, "bad": snapshot.bad}
