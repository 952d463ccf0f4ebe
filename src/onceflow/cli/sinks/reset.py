"""`onceflow sink reset`: forgetting what a sink has noted as written, so that its query can begin anew."""

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

execute_option = click.option("--execute", is_flag=True, help="Do it. Without this it is only shown.")


MISSING_OK = "--missing-ok"
missing_ok_option = click.option(
    MISSING_OK, is_flag=True, help="Take the checkpoint although nothing of its sink is left there."
)


class NoSuchSink(OnceflowError):
    """No sink of that name has noted anything there."""


class TransactionOpen(OnceflowError):
    """A sink's transaction is open: a driver writes, or one died a moment ago."""


@click.group(cls=Commands)
def reset() -> None:
    """Forget a sink's marker and its query's checkpoint; shows what would be done unless --execute.

    \b
    Example:
      onceflow sink reset redis --hash-key site::visits --checkpoint ./checkpoint --execute
    """


@reset.command("redis")
@redis_options
@click.option("--tags", is_flag=True, help="The sink is a TaggedRedisSink: forget what is there under its tags.")
@click.option("--key", "keys", multiple=True, metavar="KEY", help="Another key of the sink's data; may be repeated.")
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
    """Forget a Redis sink: its counts and its marker, and its query's checkpoint, so that the log is counted anew.

    Deletes the keys that are claimed for the sink's marker, beside the hash key and each --key, in one script of Redis
    (with --tags one for each tag), then the checkpoint. Other keys stay and are listed. Refused while a driver holds
    the checkpoint; without --checkpoint nothing is known of drivers, and one that runs stops at its next micro-batch.

    \b
    Examples:
      onceflow sink reset redis --hash-key site::visits --checkpoint ./checkpoint
      onceflow sink reset redis --hash-key site::visits --checkpoint ./checkpoint --execute
    """
    from onceflow.redis.address import shown
    from onceflow.spark.exactly_once.checkpoint_lock import without_driver
    from onceflow.spark.redis.marker import tagged_key
    from onceflow.spark.redis.sink_state import forget_redis_keys, marker_query, redis_keys, tags_there

    _require_checkpoint(checkpoint)
    # Looked for while the lock is held: a driver that ends just now has written its keys by then.
    with without_driver(checkpoint) if execute and checkpoint is not None else nullcontext():
        under = tags_there(redis_url, hash_key)
        groups = [[tagged_key(key, tag) for key in (hash_key, *keys)] for tag in under] if tags else [[hash_key, *keys]]
        there = [redis_keys(redis_url, own, others) for own, *others in groups]
        found = [key for sink in there for key in sink.own]
        queries = [] if checkpoint is None else [marker_query(redis_url, own) for own, *_ in groups]
        if not found and under and not tags:
            raise NoSuchSink(
                f"{hash_key} has {len(under)} tags of a TaggedRedisSink: {Remedy.ADD_TAGS}; nothing was removed"
            )
        has_marker = any(sink.marker in sink.present for sink in there)
        if not found and not has_marker and not missing_ok:
            _refuse_written(checkpoint, f"no key of a sink with hash key {hash_key} at {shown(redis_url)}")
        strange = None if checkpoint is None else _other_query(queries, checkpoint)
        if execute:
            for sink in there:
                forget_redis_keys(redis_url, sink)
            _remove(checkpoint)
    kept = ["the log and its groups' offsets: a query with an empty checkpoint counts from its starting offsets again"]
    if checkpoint is None:
        kept.append("the query's checkpoint: the query refuses to go on with it, and needs an empty one")
    if found and not any(own in sink.present for (own, *_), sink in zip(groups, there, strict=True)):
        kept.append(f"what else the sink may have written: there is no {groups[0][0]}; {Remedy.NAME_KEYS}")
    if under and not tags:
        kept.append(f"what a TaggedRedisSink has under tags of {hash_key}: --tags forgets that")
    forgotten = [f"{key} at {shown(redis_url)}" for key in found]
    _tell_reset(forgotten, kept, checkpoint, execute, as_json, strange, strays=_strays(there))


def _strays(groups: "Iterable[SinkKeys]") -> list[str]:
    """Return a line for the keys beside a sink that it does not own."""
    lines = []
    for keys in groups:
        lines += [f"{', '.join(names)}: belongs to marker {marker}" for marker, names in keys.foreign.items()]
        if keys.unclaimed:
            lines.append(
                f"{', '.join(keys.unclaimed)}: claimed by no sink (written by an earlier version or by another "
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
    """Forget Kafka sinks of one query: both copies of their markers, and the query's checkpoint.

    What they wrote stays in the output topics: a query that begins anew reads its input again and writes it once more,
    so give it another topic, or delete that one and create it anew. Refused while a driver holds the checkpoint or has
    a transaction open; 'onceflow transaction abort' ends one that a dead driver left.

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
        raise click.UsageError("say of which query: --checkpoint DIRECTORY, or --query ID; 'onceflow sink show kafka'")
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
    forgotten = [f"the marker of sink {each.sink}, in group {each.place.name} and {marker_topic}" for each in states]
    _tell_reset(forgotten, _kept_of_kafka(states, name, checkpoint), checkpoint, execute, as_json)


def _refuse_without_marker(
    query: str, name: str | None, marker_topic: str, bootstrap: str, checkpoint: Path | None
) -> None:
    sink = "Kafka sink" if name is None else f"Kafka sink {name!r}"
    if checkpoint is None:
        raise NoSuchSink(
            f"no {sink} of query {query} has a marker in {marker_topic} at {bootstrap}: {Remedy.LIST_KAFKA_SINKS}"
        )
    _refuse_written(checkpoint, f"no marker of a {sink} of query {query} in {marker_topic} at {bootstrap}")


def _refuse_open(state: "KafkaSinkState", bootstrap: str) -> None:
    if state.is_open and state.transaction is not None:
        abort = shlex.join(["onceflow", "transaction", "abort", state.place.name, "--bootstrap", bootstrap])
        raise TransactionOpen(
            f"sink {state.sink} of query {state.query} has a transaction open ({state.transaction.state}): "
            f"{Remedy.STOP_DRIVER}, and {Remedy.ABORT_DEAD.format(command=abort)}; nothing was forgotten"
        )


def _kept_of_kafka(states: "Sequence[KafkaSinkState]", name: str | None, checkpoint: Path | None) -> list[str]:
    newest = [found for state in states if (found := state.in_record or state.in_group) is not None]
    topics = sorted({topic for found in newest for topic in found.partitions})
    written = f"what was written to {', '.join(topics)}" if topics else "what was written to the output topics"
    kept = [f"{written}: a query that begins anew reads its input again and writes it once more"]
    if checkpoint is None:
        kept.append("the query's checkpoint: the query refuses to go on with it, and needs an empty one")
    elif name is not None:
        kept.append("markers of other sinks of this query, which are of no use without its checkpoint")
    return kept


def _require_checkpoint(checkpoint: Path | None) -> None:
    if checkpoint is not None and not (checkpoint / "metadata").is_file() and not _is_unused(checkpoint):
        what = "is no Spark checkpoint (no file 'metadata' in it)" if checkpoint.exists() else "does not exist here"
        raise OnceflowError(f"{checkpoint} {what}: nothing was removed; {Remedy.NAME_CHECKPOINT}")


def _is_unused(checkpoint: Path) -> bool:
    """Whether it holds the lock's file alone, as after a start that was refused, whose sentence names this command."""
    from onceflow.spark.exactly_once.checkpoint_lock import FILE_NAME

    return checkpoint.is_dir() and [path.name for path in checkpoint.iterdir()] == [FILE_NAME]


def _other_query(of_markers: Sequence[str | None], checkpoint: Path) -> str | None:
    """What is to be known where counts are of another query than the checkpoint, which a refusal may ask to forget."""
    from onceflow.spark.exactly_once.checkpoint import CheckpointUnreadable, LocalCheckpoint

    try:
        of_checkpoint = LocalCheckpoint(checkpoint).query_id()
    except CheckpointUnreadable:
        return None  # Damage is a reason to forget it.
    others = sorted({query for query in of_markers if query is not None} - {of_checkpoint})
    if of_checkpoint is None or not others:
        return None
    return (
        f"the counts are of query {', '.join(others)} and the checkpoint is of query {of_checkpoint}: with --execute "
        f"both go; {Remedy.LEAVE_CHECKPOINT_OUT}, or {Remedy.CHECKPOINT_OF_COUNTS}"
    )


def _refuse_written(checkpoint: Path | None, missing: str) -> None:
    """Raises NoSuchSink where the query has finished batches: their sink must be elsewhere, or is lost."""
    if checkpoint is not None and any((checkpoint / "commits").glob("[0-9]*")):
        raise NoSuchSink(
            f"there is {missing}, and the query of checkpoint {checkpoint} has finished batches: nothing was removed; "
            f"{Remedy.NAME_SINK}, or {Remedy.ADD_MISSING_OK}"
        )


def _remove(checkpoint: Path | None) -> None:
    """Empties the checkpoint but for the lock's file.

    A driver that waits for the lock has that file open, and would hold a lock on nothing if it were another one. What
    makes the folder a checkpoint goes last, so that the command can be repeated.
    """
    from onceflow.spark.exactly_once.checkpoint_lock import FILE_NAME

    if checkpoint is None:
        return
    for path in sorted(checkpoint.iterdir(), key=lambda path: (path.name == "metadata", path.name)):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name != FILE_NAME:
            path.unlink()


def _tell_reset(
    forgotten: Sequence[str],
    kept: Sequence[str],
    checkpoint: Path | None,
    execute: bool,
    as_json: bool,
    strange: str | None = None,
    strays: Sequence[str] = (),
) -> None:
    from onceflow.spark.exactly_once.checkpoint_lock import holder_of

    gone = [*forgotten, *([] if checkpoint is None else [f"checkpoint {checkpoint}: offsets, commits and state"])]
    driver = None if execute or checkpoint is None else holder_of(checkpoint)
    with stdout_may_close():
        if as_json:
            document = {
                "executed": execute,
                "forgotten": gone,
                "kept": [*kept, *strays],
                "driver": driver,
                "other_query": strange,
            }
            click.echo(json.dumps(document))
            return
        if not gone:
            click.echo("there is nothing to forget")
            _tell_kept(strays)
            return
        for each in gone:
            click.echo(f"{'forgotten' if execute else 'would be forgotten'}: {each}")
        _tell_kept([*kept, *strays])
        if driver is not None:
            click.echo(f"refused while a driver runs: {driver}")
            return
        if strange is not None:
            click.echo(f"take care: {strange}")
        click.echo("done" if execute else f"nothing was changed: {Remedy.ADD_EXECUTE}", err=not execute)


def _tell_kept(kept: Iterable[str]) -> None:
    for each in kept:
        click.echo(f"stays: {each}")
