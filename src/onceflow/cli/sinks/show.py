"""`onceflow sink show`: a sink's marker, and whether it fits its query's checkpoint."""

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from onceflow.cli.command_group import Commands
from onceflow.cli.logs import print_line
from onceflow.cli.options import bootstrap_option, json_option, redis_options
from onceflow.cli.output import stdout_may_close, table
from onceflow.cli.security import open_cluster
from onceflow.cli.sinks.options import checkpoint_option, kafka_options, query_of
from onceflow.errors import OnceflowError
from onceflow.remedies import Remedy

if TYPE_CHECKING:
    from onceflow.spark.exactly_once.sink_state import CheckpointState, Verdict
    from onceflow.spark.kafka.marker import KafkaMarker
    from onceflow.spark.kafka.sink_state import KafkaSinkState
    from onceflow.spark.redis.sink_state import RedisSinkState


@click.group(cls=Commands)
def show() -> None:
    """Show a sink's marker, and whether it fits its query's checkpoint.

    \b
    Example:
      onceflow sink show redis --hash-key site::visits --checkpoint ./checkpoint
    """


@show.command("redis")
@redis_options
@checkpoint_option
@json_option
def show_redis(redis_url: str, hash_key: str, checkpoint: Path | None, as_json: bool) -> None:
    """Show the marker of a Redis sink, and whether it fits its checkpoint.

    With --checkpoint the exit code is 0 if marker and checkpoint fit, and 1 if the query would fail; the message then
    gives the reason and what to do. Without --checkpoint, 1 means that there is no marker.

    \b
    Example:
      onceflow sink show redis --hash-key site::visits --checkpoint ./checkpoint
    """
    from onceflow.spark.exactly_once.sink_state import judge, read_checkpoint
    from onceflow.spark.redis.marker import redis_reset, tagged_key, wording
    from onceflow.spark.redis.sink_state import existing_tags, read_redis_sink

    reset = redis_reset(redis_url, hash_key, None if checkpoint is None else str(checkpoint))
    state = read_redis_sink(redis_url, hash_key, reset)
    tags = existing_tags(redis_url, hash_key) if state.marker is None else []
    if tags:
        raise OnceflowError(
            f"{hash_key} has no marker of its own but {len(tags)} tags of a TaggedRedisSink; "
            f"{Remedy.NAME_TAG.format(key=shlex.quote(tagged_key(hash_key, tags[0])))}"
        )
    at = None if checkpoint is None else read_checkpoint(checkpoint)
    verdict = None if at is None else judge(state.proof, at, state.key, wording(state.key, reset))
    document = {**_redis_document(state), "checkpoint": _checkpoint_document(at), **_verdict_document(verdict)}
    with stdout_may_close():
        if as_json:
            click.echo(json.dumps(document, ensure_ascii=False))
        else:
            _print_redis(state)
            _print_checkpoint(at)
            _print_verdict(verdict)
    fits = state.marker is not None if verdict is None else verdict.fits
    click.get_current_context().exit(0 if fits else 1)


def _redis_document(state: "RedisSinkState") -> dict[str, Any]:
    marker = state.marker
    shown = marker and {
        "query": marker.query,
        "batch": marker.batch,
        "complete": marker.complete,
        "chunks": marker.chunks,
        "chunks_missing": list(marker.chunks_missing),
        "digest": marker.digest,
        "plan": marker.plan,
        "plan_version": marker.plan_version,
        "offsets": marker.offsets,
        "since": marker.since,
        "lost_keys": list(marker.lost),
        "newest_ms": marker.newest_ms,
        "buckets": state.buckets,
    }
    return {"sink": "redis", "key": state.key, "has_counts": state.has_counts, "marker": shown}


def _print_redis(state: "RedisSinkState") -> None:
    marker = state.marker
    if marker is None:
        counts = "there are counts without it" if state.has_counts else "there are no counts either"
        click.echo(f"no marker {state.key}; {counts}")
        return
    missing = ", ".join(map(str, marker.chunks_missing))
    partial = f"partial: chunks {missing} of {marker.chunks} are missing" if missing else "partial"
    click.echo(f"marker {state.key}   query {marker.query}")
    click.echo(f"batch {marker.batch}   {'complete' if marker.complete else partial}   digest {marker.digest[:12]}")
    click.echo(f"plan {marker.plan}   version {marker.plan_version}")
    if marker.lost:
        click.echo(f"written and lost: {', '.join(marker.lost)}")
    if state.buckets:
        table([("INDEX", "BUCKETS"), *state.buckets.items()])
        click.echo(f"newest time in them: {marker.newest_ms}")
    _print_offsets(marker.since, marker.offsets)


@show.command("kafka")
@kafka_options
@checkpoint_option
@bootstrap_option
@json_option
def show_kafka(
    name: str | None, query: str | None, marker_topic: str, checkpoint: Path | None, bootstrap: str, as_json: bool
) -> None:
    """Show both copies of Kafka sinks' markers (group and marker topic), and whether they fit a checkpoint.

    Without --checkpoint and --query, the sinks of all queries are shown. With --checkpoint the exit code is 0 if all
    fit, and 1 if the query would fail; the message then gives the reason and what to do. Without --checkpoint, 1 means
    that there is no sink.

    \b
    Example:
      onceflow sink show kafka --checkpoint ./checkpoint
    """
    from onceflow.spark.exactly_once.sink_state import read_checkpoint
    from onceflow.spark.kafka.sink_state import kafka_sinks

    at = None if checkpoint is None else read_checkpoint(checkpoint)
    with open_cluster(bootstrap) as cluster:
        location = None if checkpoint is None else str(checkpoint)
        states = kafka_sinks(cluster, marker_topic, query_of(at, query), name, location)
    judged = [(state, _judge_kafka(state, at)) for state in states]
    with stdout_may_close():
        if as_json:
            shown = [{**_kafka_document(state), **_verdict_document(verdict)} for state, verdict in judged]
            click.echo(json.dumps({"checkpoint": _checkpoint_document(at), "sinks": shown}, ensure_ascii=False))
        else:
            for state, verdict in judged:
                _print_kafka(state)
                _print_verdict(verdict)
            _print_checkpoint(at)
    if not states:
        _print_none(at, name, bootstrap, marker_topic)
    all_fit = all(verdict is None or verdict.fits for _, verdict in judged)
    click.get_current_context().exit(0 if states and all_fit else 1)


def _judge_kafka(state: "KafkaSinkState", at: "CheckpointState | None") -> "Verdict | None":
    from onceflow.spark.exactly_once.sink_state import Verdict, judge

    if state.conflict is not None:
        return Verdict(False, state.conflict)
    return None if at is None else judge(state.marker, at, state.sink, state.location.wording)


def _kafka_document(state: "KafkaSinkState") -> dict[str, Any]:
    transaction = state.transaction
    return {
        "sink": "kafka",
        "name": state.sink,
        "query": state.query,
        "transactional_id": state.location.name,
        "marker_topic": state.location.topic,
        "marker_partition": state.location.partition,
        "in_group": _copy(state.in_group),
        "in_record": _copy(state.in_record),
        "record_offset": state.record_offset,
        "transaction": None if transaction is None else transaction.state,
    }


def _copy(marker: "KafkaMarker | None") -> dict[str, Any] | None:
    return None if marker is None else {**marker.shared, "offsets": marker.offsets, "since": marker.since}


def _print_kafka(state: "KafkaSinkState") -> None:
    transaction = state.transaction
    transaction_state = "unknown" if transaction is None else transaction.state
    click.echo(f"sink {state.sink}   query {state.query}   transaction {transaction_state}")
    record = "-" if state.record_offset is None else state.record_offset
    copies = (
        (f"group {state.location.name}, record {record}", state.in_group),
        (f"record in {state.location.topic}-{state.location.partition}", state.in_record),
    )
    rows = [(where, *((marker.batch, marker.digest[:12]) if marker else (None, None))) for where, marker in copies]
    table([("COPY", "BATCH", "DIGEST"), *rows])
    newest = state.in_record or state.in_group
    if newest is not None:
        outputs = ", ".join(f"{topic} ({count})" for topic, count in sorted(newest.partitions.items()))
        click.echo(f"plan {newest.plan}   version {newest.plan_version}   output topics (partitions) {outputs or '-'}")
        _print_offsets(newest.since, newest.offsets)


def _print_none(at: "CheckpointState | None", name: str | None, bootstrap: str, marker_topic: str) -> None:
    which = ("" if name is None else f" named {name}") + ("" if at is None else f" of query {at.query}")
    print_line(f"no Kafka sink{which} has a marker in {marker_topic} at {bootstrap}")


# Shared by both kinds


def _print_offsets(since: Any, offsets: Any) -> None:
    from onceflow.spark.exactly_once.sink_state import parts

    starts = {(topic, partition): offset for topic, partition, offset in parts(since)}
    rows = [(topic, partition, starts.get((topic, partition)), end) for topic, partition, end in parts(offsets)]
    if rows:
        table([("TOPIC", "PARTITION", "SINCE", "WRITTEN UP TO"), *rows])


def _checkpoint_document(at: "CheckpointState | None") -> dict[str, Any] | None:
    if at is None:
        return None
    return {
        "location": at.checkpoint.location,
        "query": at.query,
        "planned": at.planned,
        "committed": at.committed,
        "driver": at.driver,
    }


def _print_checkpoint(at: "CheckpointState | None") -> None:
    if at is not None:
        click.echo(f"checkpoint {at.checkpoint.location}   query {at.query}")
        driver = "not running" if at.driver is None else f"running: {at.driver}"
        click.echo(f"planned batch {at.planned}   committed batch {at.committed}   driver {driver}")


def _verdict_document(verdict: "Verdict | None") -> dict[str, Any]:
    if verdict is None:
        return {"fits": None, "reason": None}
    return {"fits": verdict.fits, "reason": verdict.reason}


def _print_verdict(verdict: "Verdict | None") -> None:
    if verdict is not None:
        click.echo(f"{'fits' if verdict.fits else 'does not fit'}: {verdict.reason}")
