"""`onceflow transaction`: what is open, since when, and how to end what a dead producer left."""

import json
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager

import click

from onceflow.cli.command_group import Commands
from onceflow.cli.options import bootstrap_option, json_option, states_option
from onceflow.cli.output import stdout_may_close, table
from onceflow.cli.refusals import in_words, require_yes
from onceflow.cli.security import open_cluster
from onceflow.remedies import Remedy
from onceflow.wire.errors import ErrorCode

ENDED = {
    "Ongoing": "what was open is aborted",
    "PrepareCommit": "it was being committed already, which is done",
    "PrepareAbort": "what was open is aborted",
}
"""What shutting the producer out did, by the state before. These are the states in which a transaction is open, and
holds readers of committed records back; in any other its start is history."""


@click.group(cls=Commands)
def transaction() -> None:
    """List, describe and abort transactions.

    \b
    Example:
      onceflow transaction list --state Ongoing
      onceflow transaction abort my-job
    """


@transaction.command("list")
@states_option(("Empty", *ENDED, "CompleteCommit", "CompleteAbort", "PrepareEpochFence", "Dead"), "Ongoing")
@bootstrap_option
@json_option
def list_transactions(states: Sequence[str], bootstrap: str, as_json: bool) -> None:
    """List the transactional ids with their state.

    \b
    Example:
      onceflow transaction list --state Ongoing --json
    """
    from onceflow.client.admin import Admin

    with open_cluster(bootstrap) as cluster:
        found = sorted(Admin(cluster).list_transactions(states=states), key=lambda each: each.transactional_id)
    with stdout_may_close():
        if as_json:
            shown = [
                {"transactional_id": each.transactional_id, "producer_id": each.producer_id, "state": each.state}
                for each in found
            ]
            click.echo(json.dumps(shown))
        else:
            rows = ((each.transactional_id, each.producer_id, each.state) for each in found)
            table([("TRANSACTIONAL ID", "PRODUCER ID", "STATE"), *rows])


@transaction.command()
@click.argument("name", metavar="TRANSACTIONAL_ID")
@bootstrap_option
@json_option
def describe(name: str, bootstrap: str, as_json: bool) -> None:
    """Show the transaction of one transactional id: its producer, its age, the partitions in it.

    \b
    Example:
      onceflow transaction describe my-job
    """
    from onceflow.client.admin import Admin

    with open_cluster(bootstrap) as cluster, _known(name, bootstrap):
        found = Admin(cluster).describe_transaction(name)
    is_open = found.state in ENDED and found.start_time_ms >= 0
    age_seconds = round(max(time.time() - found.start_time_ms / 1000, 0), 1) if is_open else None
    shown = {
        "transactional_id": name,
        "state": found.state,
        "producer_id": found.producer_id,
        "producer_epoch": found.producer_epoch,
        "timeout_ms": found.timeout_ms,
        "start_time_ms": found.start_time_ms if is_open else None,
        "age_seconds": age_seconds,
        "partitions": [{"topic": topic, "partition": partition} for topic, partition in found.partitions],
    }
    with stdout_may_close():
        if as_json:
            click.echo(json.dumps(shown))
            return
        since = f"open for {age_seconds} s" if is_open else "none open"
        click.echo(
            f"transactional id {name}   state {found.state}   producer {found.producer_id} epoch {found.producer_epoch}"
            f"   time-out {found.timeout_ms} ms   {since}"
        )
        table([("TOPIC", "PARTITION"), *found.partitions])


@transaction.command()
@click.argument("name", metavar="TRANSACTIONAL_ID")
@click.option("--yes", is_flag=True, help="Do not ask.")
@bootstrap_option
@json_option
def abort(name: str, yes: bool, bootstrap: str, as_json: bool) -> None:
    """Abort what the producer of a transactional id has open, and shut that producer out; asks first.

    Readers of committed records go on past it. A producer that is still alive gets an error and has to begin anew.

    \b
    Example:
      onceflow transaction abort my-job --yes
    """
    from onceflow.client.admin import Admin

    with open_cluster(bootstrap) as cluster, _known(name, bootstrap):
        admin = Admin(cluster)
        state = admin.describe_transaction(name).state
        if not yes:
            require_yes(f"Abort the transaction of {name} at {bootstrap} (it is {state})?", "aborted")
        producer_id, epoch = admin.fence_producer(name)
    if as_json:
        shown = {"transactional_id": name, "state_before": state, "producer_id": producer_id, "producer_epoch": epoch}
        click.echo(json.dumps(shown))
    else:
        done = ENDED.get(state, "nothing was open, so nothing was aborted")
        click.echo(
            f"{name} was {state}: {done}; producer {producer_id} is at epoch {epoch} now, older ones are shut out"
        )


def _known(name: str, bootstrap: str) -> AbstractContextManager[None]:
    unknown = f"there is no transactional id '{name}' at {bootstrap}: {Remedy.LIST_TRANSACTIONS}"
    return in_words({ErrorCode.transactional_id_not_found: unknown})
