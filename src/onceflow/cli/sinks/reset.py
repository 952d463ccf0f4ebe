"""`onceflow sink reset`: delete a sink's state and checkpoint, so that its query can start again."""

import json
import shlex
import shutil
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import click

from onceflow.cli.command_group import Commands
from onceflow.cli.options import bootstrap_option, json_option, redis_options
from onceflow.cli.output import stdout_may_close
from onceflow.cli.security import open_cluster, security
from onceflow.cli.sinks.options import checkpoint_option, kafka_options, query_of
from onceflow.errors import OnceflowError
from onceflow.remedies import Remedy

if TYPE_CHECKING:
    from onceflow.spark.kafka.sink_state import KafkaSinkState
    from onceflow.spark.redis.sink_state import SinkKeys

execute_option = click.option(
    "--execute", is_flag=True, help="Apply the change. Without it, only print what would change (dry run)."
)


MISSING_OK = "--missing-ok"
missing_ok_option = click.option(
    MISSING_OK, is_flag=True, help="Delete the checkpoint even if nothing of its sink is found."
)


class NoSuchSink(OnceflowError):
    """The sink has no state there."""


class TransactionOpen(OnceflowError):
    """A sink's transaction is open: a driver is writing, or died recently."""


@click.group(cls=Commands)
def reset() -> None:
    """Delete a sink's marker and its query's checkpoint. Without --execute, only print what would change.

    \b
    Example:
      onceflow sink reset redis --hash-key site::visits --checkpoint ./checkpoint --execute
    """


@reset.command("redis")
@redis_options
@click.option("--tags", is_flag=True, help="The sink is a TaggedRedisSink: delete the data under all its tags.")
@click.option("--key", "keys", multiple=True, metavar="KEY", help="Another key of the sink; may be repeated.")
@checkpoint_option
@missing_ok_option
@execute_option
@json_option
def reset_redis(
    redis_url: str,
    hash_key: str,
    tags: bool,
    keys: Sequence[str],
    checkpoint: Path | None,
    missing_ok: bool,
    execute: bool,
    as_json: bool,
) -> None:
    """Delete a Redis sink's counts and marker, and its query's checkpoint, to count the log again.

    One Redis script (with --tags one per tag) deletes the keys that the sink's marker has claimed in the slots of the
    hash key and of each --key, after their buckets, 1,000 at a time; then the checkpoint is deleted. Other keys are
    kept and listed. Refused while a driver holds the checkpoint. Without --checkpoint drivers are not checked: a
    running one fails at its next micro-batch.

    \b
    Examples:
      onceflow sink reset redis --hash-key site::visits --checkpoint ./checkpoint
      onceflow sink reset redis --hash-key site::visits --checkpoint ./checkpoint --execute
    """
    from onceflow.clicks.results import Keys
    from onceflow.redis.address import shown
    from onceflow.spark.exactly_once.checkpoint_lock import without_driver
    from onceflow.spark.redis.marker import tagged_key
    from onceflow.spark.redis.sink_state import existing_tags, forget_redis_keys, marker_query, redis_keys

    _require_checkpoint(checkpoint)
    # Read the keys while holding the lock: a driver that is ending has written its keys by then.
    with without_driver(checkpoint) if execute and checkpoint is not None else nullcontext():
        under = existing_tags(redis_url, hash_key)
        groups = [[tagged_key(key, tag) for key in (hash_key, *keys)] for tag in under] if tags else [[hash_key, *keys]]
        sinks = [redis_keys(redis_url, own, others) for own, *others in groups]
        own_keys = [key for sink in sinks for key in sink.own]
        queries = [] if checkpoint is None else [marker_query(redis_url, own) for own, *_ in groups]
        if not own_keys and under and not tags:
            raise NoSuchSink(
                f"nothing was deleted: {hash_key} has {len(under)} tags of a TaggedRedisSink; {Remedy.ADD_TAGS}"
            )
        # A job writes these before it counts anything.
        beside = {Keys(hash_key).announced, Keys(hash_key).verified}
        counts = [key for key in own_keys if key not in beside]
        has_marker = any(sink.marker in sink.present for sink in sinks)
        if not counts and not has_marker and not missing_ok:
            _refuse_written(checkpoint, f"no key of a sink with hash key {hash_key} at {shown(redis_url)}")
        warning = None if checkpoint is None else _other_query(queries, checkpoint)
        if execute:
            for sink in sinks:
                forget_redis_keys(redis_url, sink)
            _remove(checkpoint)
    kept = ["the log and the offsets of its groups: a query with an empty checkpoint starts at its starting offsets"]
    if checkpoint is None:
        kept.append("the query's checkpoint: the query will not resume from it and needs an empty one")
    if counts and not any(own in sink.present for (own, *_), sink in zip(groups, sinks, strict=True)):
        kept.append(f"other keys that the sink may have written: {groups[0][0]} does not exist; {Remedy.NAME_KEYS}")
    if under and not tags:
        kept.append(f"the data of a TaggedRedisSink under tags of {hash_key}: --tags deletes it")
    deleted = [f"{what} at {shown(redis_url)}" for what in (*own_keys, *_buckets(sinks))]
    _print_reset(deleted, kept, checkpoint, execute, as_json, warning, strays=_strays(sinks))


def _buckets(groups: "Iterable[SinkKeys]") -> list[str]:
    """Return the number of buckets of each index that has some."""
    pairs = (pair for keys in groups for pair in keys.buckets.items())
    return [f"{len(names)} buckets of {key}" for key, names in pairs if names]


def _strays(groups: "Iterable[SinkKeys]") -> list[str]:
    """Return lines about neighbouring keys that the sink does not own."""
    lines = []
    for keys in groups:
        lines += [f"{', '.join(names)}: belongs to marker {marker}" for marker, names in keys.foreign.items()]
        if keys.unclaimed:
            lines.append(
                f"{', '.join(keys.unclaimed)}: not claimed by a sink (written by an earlier version or by another "
                f"program); {Remedy.DELETE_UNCLAIMED.format(command=shlex.join(['UNLINK', *keys.unclaimed]))}"
            )
    return lines


@reset.command("kafka")
@kafka_options
@checkpoint_option
@missing_ok_option
@execute_option
@bootstrap_option
@json_option
def reset_kafka(
    name: str | None,
    query: str | None,
    marker_topic: str,
    checkpoint: Path | None,
    missing_ok: bool,
    execute: bool,
    bootstrap: str,
    as_json: bool,
) -> None:
    """Delete the markers (both copies) of one query's Kafka sinks, and the query's checkpoint.

    The output topics keep their records. A query that starts again writes all of them a second time: give it another
    topic, or delete and create that one. Refused while a driver holds the checkpoint or has a transaction open;
    'onceflow transaction abort' ends the transaction of a dead driver.

    \b
    Examples:
      onceflow sink reset kafka --checkpoint ./checkpoint
      onceflow sink reset kafka --checkpoint ./checkpoint --execute
    """
    from onceflow.spark.exactly_once.checkpoint_lock import without_driver
    from onceflow.spark.exactly_once.sink_state import read_checkpoint
    from onceflow.spark.kafka.sink_state import forget_kafka_sink, kafka_sinks

    at = None if checkpoint is None else read_checkpoint(checkpoint)
    wanted = query_of(at, query)
    if wanted is None:
        raise click.UsageError(
            "specify the query: --checkpoint DIRECTORY or --query ID ('onceflow sink show kafka' lists them)"
        )
    locked = without_driver(checkpoint) if execute and checkpoint is not None else nullcontext()
    with open_cluster(bootstrap) as cluster, locked:
        states = kafka_sinks(cluster, marker_topic, wanted, name, None if checkpoint is None else str(checkpoint))
        if not states and not missing_ok:
            _refuse_without_marker(wanted, name, marker_topic, bootstrap, checkpoint)
        if execute:
            for state in states:
                _refuse_open(state, bootstrap)
            for state in states:
                forget_kafka_sink(cluster, state, security())
            _remove(checkpoint)
    deleted = [
        f"the marker of sink {state.sink}, in group {state.location.name} and {marker_topic}" for state in states
    ]
    _print_reset(deleted, _kept_of_kafka(states, name, checkpoint), checkpoint, execute, as_json)


def _refuse_without_marker(
    query: str, name: str | None, marker_topic: str, bootstrap: str, checkpoint: Path | None
) -> None:
    sink = "Kafka sink" if name is None else f"Kafka sink {name!r}"
    if checkpoint is None:
        raise NoSuchSink(
            f"no {sink} of query {query} has a marker in {marker_topic} at {bootstrap}; {Remedy.LIST_KAFKA_SINKS}"
        )
    _refuse_written(checkpoint, f"no marker of a {sink} of query {query} in {marker_topic} at {bootstrap}")


def _refuse_open(state: "KafkaSinkState", bootstrap: str) -> None:
    if state.is_open and state.transaction is not None:
        abort = shlex.join(["onceflow", "transaction", "abort", state.location.name, "--bootstrap", bootstrap])
        raise TransactionOpen(
            f"nothing was deleted: sink {state.sink} of query {state.query} has an open transaction "
            f"({state.transaction.state}); {Remedy.STOP_DRIVER}, and {Remedy.ABORT_DEAD.format(command=abort)}"
        )


def _kept_of_kafka(states: "Sequence[KafkaSinkState]", name: str | None, checkpoint: Path | None) -> list[str]:
    newest = [marker for state in states if (marker := state.in_record or state.in_group) is not None]
    topics = sorted({topic for marker in newest for topic in marker.partitions})
    written = f"the records in {', '.join(topics)}" if topics else "the records in the output topics"
    kept = [f"{written}: a query that starts again writes all of them a second time"]
    if checkpoint is None:
        kept.append("the query's checkpoint: the query will not resume from it and needs an empty one")
    elif name is not None:
        kept.append("the markers of the query's other sinks, which are useless without its checkpoint")
    return kept


def _require_checkpoint(checkpoint: Path | None) -> None:
    if checkpoint is not None and not (checkpoint / "metadata").is_file() and not _is_unused(checkpoint):
        problem = "is not a Spark checkpoint (no file 'metadata')" if checkpoint.exists() else "does not exist"
        raise OnceflowError(f"nothing was deleted: {checkpoint} {problem}; {Remedy.NAME_CHECKPOINT}")


def _is_unused(checkpoint: Path) -> bool:
    """Whether it holds only the lock file, as after a refused start whose message names this command."""
    from onceflow.spark.exactly_once.checkpoint_lock import FILE_NAME

    return checkpoint.is_dir() and [path.name for path in checkpoint.iterdir()] == [FILE_NAME]


def _other_query(marker_queries: Sequence[str | None], checkpoint: Path) -> str | None:
    """Return a warning if the counts belong to another query than the checkpoint."""
    from onceflow.spark.exactly_once.checkpoint import CheckpointUnreadable, LocalCheckpoint

    try:
        of_checkpoint = LocalCheckpoint(checkpoint).query_id()
    except CheckpointUnreadable:
        return None  # A damaged checkpoint is a reason to delete it.
    others = sorted({query for query in marker_queries if query is not None} - {of_checkpoint})
    if of_checkpoint is None or not others:
        return None
    return (
        f"the counts belong to query {', '.join(others)} and the checkpoint to query {of_checkpoint}; "
        f"--execute deletes both; {Remedy.LEAVE_CHECKPOINT_OUT}, or {Remedy.CHECKPOINT_OF_COUNTS}"
    )


def _refuse_written(checkpoint: Path | None, missing: str) -> None:
    """Raise NoSuchSink if the query has completed batches: their sink is elsewhere, or lost."""
    if checkpoint is not None and any((checkpoint / "commits").glob("[0-9]*")):
        raise NoSuchSink(
            f"nothing was deleted: there is {missing}, but the query of checkpoint {checkpoint} has completed batches; "
            f"{Remedy.NAME_SINK}, or {Remedy.ADD_MISSING_OK}"
        )


def _remove(checkpoint: Path | None) -> None:
    """Delete the checkpoint's content except the lock file.

    A driver that waits for the lock has that file open; in a new file its lock would protect nothing. `metadata`, which
    makes the folder a checkpoint, is deleted last, so that the command can be repeated.
    """
    from onceflow.spark.exactly_once.checkpoint_lock import FILE_NAME

    if checkpoint is None:
        return
    for path in sorted(checkpoint.iterdir(), key=lambda path: (path.name == "metadata", path.name)):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name != FILE_NAME:
            path.unlink()


def _print_reset(
    deleted: Sequence[str],
    kept: Sequence[str],
    checkpoint: Path | None,
    execute: bool,
    as_json: bool,
    warning: str | None = None,
    strays: Sequence[str] = (),
) -> None:
    from onceflow.spark.exactly_once.checkpoint_lock import holder_of

    deleted = [*deleted, *([] if checkpoint is None else [f"checkpoint {checkpoint}: offsets, commits and state"])]
    driver = None if execute or checkpoint is None else holder_of(checkpoint)
    with stdout_may_close():
        if as_json:
            document = {
                "executed": execute,
                "deleted": deleted,
                "kept": [*kept, *strays],
                "driver": driver,
                "other_query": warning,
            }
            click.echo(json.dumps(document))
            return
        if not deleted:
            click.echo("nothing to delete")
            _print_kept(strays)
            return
        for line in deleted:
            click.echo(f"{'deleted' if execute else 'would be deleted'}: {line}")
        _print_kept([*kept, *strays])
        if driver is not None:
            click.echo(f"refused while a driver is running: {driver}")
            return
        if warning is not None:
            click.echo(f"warning: {warning}")
        click.echo("done" if execute else f"nothing was changed: {Remedy.ADD_EXECUTE}", err=not execute)


def _print_kept(kept: Iterable[str]) -> None:
    for line in kept:
        click.echo(f"kept: {line}")
