"""`onceflow transaction`: list, describe and abort transactions."""

import json
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from operator import attrgetter

import click

from onceflow.cli.command_group import Commands
from onceflow.cli.options import bootstrap_option, json_option, states_option
from onceflow.cli.output import stdout_may_close, table
from onceflow.cli.refusals import confirm, explaining
from onceflow.cli.security import open_cluster
from onceflow.remedies import Remedy
from onceflow.wire.errors import ErrorCode

ENDED = {
    "Ongoing": "the open transaction was aborted",
    "PrepareCommit": "the transaction was already being committed; the commit was completed",
    "PrepareAbort": "the open transaction was aborted",
}
"""Effect of fencing the producer, by the state before.

In these states a transaction is open and blocks readers of committed records; in others its start time is outdated.
"""


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
        transactions = sorted(Admin(cluster).list_transactions(states=states), key=attrgetter("transactional_id"))
    with stdout_may_close():
        if as_json:
            names = ("transactional_id", "producer_id", "state")
            click.echo(json.dumps([{name: getattr(shown, name) for name in names} for shown in transactions]))
        else:
            rows = ((shown.transactional_id, shown.producer_id, shown.state) for shown in transactions)
            table([("TRANSACTIONAL ID", "PRODUCER ID", "STATE"), *rows])


@transaction.command()
@click.argument("name", metavar="TRANSACTIONAL_ID")
@bootstrap_option
@json_option
def describe(name: str, bootstrap: str, as_json: bool) -> None:
    """Show the transaction of a transactional id: state, producer, age and partitions.

    \b
    Example:
      onceflow transaction describe my-job
    """
    from onceflow.client.admin import Admin

    with open_cluster(bootstrap) as cluster, _known(name, bootstrap):
        transaction = Admin(cluster).describe_transaction(name)
    is_open = transaction.state in ENDED and transaction.start_time_ms >= 0
    age_seconds = round(max(time.time() - transaction.start_time_ms / 1000, 0), 1) if is_open else None
    shown = {
        "transactional_id": name,
        "state": transaction.state,
        "producer_id": transaction.producer_id,
        "producer_epoch": transaction.producer_epoch,
        "timeout_ms": transaction.timeout_ms,
        "start_time_ms": transaction.start_time_ms if is_open else None,
        "age_seconds": age_seconds,
        "partitions": [{"topic": topic, "partition": partition} for topic, partition in transaction.partitions],
    }
    with stdout_may_close():
        if as_json:
            click.echo(json.dumps(shown))
            return
        since = f"open for {age_seconds} s" if is_open else "not open"
        click.echo(
            f"transactional id {name}   state {transaction.state}   producer {transaction.producer_id} "
            f"epoch {transaction.producer_epoch}   timeout {transaction.timeout_ms} ms   {since}"
        )
        table([("TOPIC", "PARTITION"), *transaction.partitions])


@transaction.command()
@click.argument("name", metavar="TRANSACTIONAL_ID")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@bootstrap_option
@json_option
def abort(name: str, yes: bool, bootstrap: str, as_json: bool) -> None:
    """Abort the open transaction of a transactional id and fence its producer. Asks for confirmation.

    Readers of committed records are no longer blocked. A producer that is still running gets an error and must restart.

    \b
    Example:
      onceflow transaction abort my-job --yes
    """
    from onceflow.client.admin import Admin

    with open_cluster(bootstrap) as cluster, _known(name, bootstrap):
        admin = Admin(cluster)
        state = admin.describe_transaction(name).state
        if not yes:
            confirm(f"Abort the transaction of {name} at {bootstrap} (it is {state})?", "aborted")
        producer_id, epoch = admin.fence_producer(name)
    if as_json:
        shown = {"transactional_id": name, "state_before": state, "producer_id": producer_id, "producer_epoch": epoch}
        click.echo(json.dumps(shown))
    else:
        effect = ENDED.get(state, "there was no open transaction to abort")
        click.echo(
            f"{name} was {state}: {effect}; producer {producer_id} is now at epoch {epoch}, older epochs are fenced"
        )


def _known(name: str, bootstrap: str) -> AbstractContextManager[None]:
    unknown = f"transactional id '{name}' does not exist at {bootstrap}; {Remedy.LIST_TRANSACTIONS}"
    return explaining({ErrorCode.transactional_id_not_found: unknown})
