"""`onceflow sink show`: what a sink's marker says, and whether it fits its query's checkpoint."""

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from onceflow.cli.command_group import Commands
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
    """Show what the marker of a Redis sink says, and whether it fits its checkpoint.

    With --checkpoint the exit code is 0 where marker and checkpoint belong together, and 1 where the query would stop:
    then the sentence says why, and the way out. Without it, 1 means that there is no marker.

    \b
    Example:
      onceflow sink show redis --hash-key site::visits --checkpoint ./checkpoint
    """
    from onceflow.spark.exactly_once.sink_state import judge, read_checkpoint
    from onceflow.spark.redis.marker import tagged_key, wording
    from onceflow.spark.redis.reset_command import redis_reset
    from onceflow.spark.redis.sink_state import read_redis_sink, tags_there

    reset = redis_reset(redis_url, hash_key, None if checkpoint is None else str(checkpoint))
    state = read_redis_sink(redis_url, hash_key, reset)
    tags = tags_there(redis_url, hash_key) if state.marker is None else []
    if tags:
        raise OnceflowError(
            f"{hash_key} has no marker of its own and {len(tags)} tags of a TaggedRedisSink: "
            f"{Remedy.NAME_TAG.format(key=shlex.quote(tagged_key(hash_key, tags[0])))}"
        )
    at = None if checkpoint is None else read_checkpoint(checkpoint)
    verdict = None if at is None else judge(state.proof, at, state.key, wording(state.key, reset))
    document = {**_redis_document(state), "checkpoint": _checkpoint_document(at), **_verdict_document(verdict)}
    with stdout_may_close():
        if as_json:
            click.echo(json.dumps(document, ensure_ascii=False))
        else:
            _tell_redis(state)
            _tell_checkpoint(at)
            _tell_verdict(verdict)
    fits = state.marker is not None if verdict is None else verdict.fits
    click.get_current_context().exit(0 if fits else 1)


def _redis_document(state: "RedisSinkState") -> dict[str, Any]:
    found = state.marker
    marker = found and {
        "query": found.query,
        "batch": found.batch,
        "complete": found.complete,
        "chunks": found.chunks,
        "chunks_missing": list(found.chunks_missing),
        "digest": found.digest,
        "plan": found.plan,
        "plan_version": found.plan_version,
        "offsets": found.offsets,
        "since": found.since,
        "lost_keys": list(found.lost),
    }
    return {"sink": "redis", "key": state.key, "counts_there": state.counts_there, "marker": marker}


def _tell_redis(state: "RedisSinkState") -> None:
    found = state.marker
    if found is None:
        beside = "there are counts beside it" if state.counts_there else "there are no counts either"
        click.echo(f"no marker {state.key}; {beside}")
        return
    missing = ", ".join(map(str, found.chunks_missing))
    part = f"partial: chunks {missing} of {found.chunks} are missing" if missing else "partial"
    click.echo(f"marker {state.key}   query {found.query}")
    click.echo(f"batch {found.batch}   {'complete' if found.complete else part}   digest {found.digest[:12]}")
    click.echo(f"plan {found.plan}   version {found.plan_version}")
    if found.lost:
        click.echo(f"written and lost: {', '.join(found.lost)}")
    _tell_offsets(found.since, found.offsets)


@show.command("kafka")
@kafka_options
@checkpoint_option
@bootstrap_option
@json_option
def show_kafka(
    name: str | None, query: str | None, marker_topic: str, checkpoint: Path | None, bootstrap: str, as_json: bool
) -> None:
    """Show both copies of the markers of Kafka sinks, in group and marker topic, and whether they fit a checkpoint.

    Without --checkpoint and --query the sinks of all queries. With --checkpoint the exit code is 0 where all belong
    to it, and 1 where the query would stop: then the sentence says why, and the way out. Without it, 1 means that
    there is no sink.

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
                _tell_kafka(state)
                _tell_verdict(verdict)
            _tell_checkpoint(at)
    if not states:
        _tell_none(at, name, bootstrap, marker_topic)
    is_right = all(verdict is None or verdict.fits for _, verdict in judged)
    click.get_current_context().exit(0 if states and is_right else 1)


def _judge_kafka(state: "KafkaSinkState", at: "CheckpointState | None") -> "Verdict | None":
    from onceflow.spark.exactly_once.sink_state import Verdict, judge

    if state.conflict is not None:
        return Verdict(False, state.conflict)
    return None if at is None else judge(state.marker, at, state.sink, state.place.wording)


def _kafka_document(state: "KafkaSinkState") -> dict[str, Any]:
    transaction = state.transaction
    return {
        "sink": "kafka",
        "name": state.sink,
        "query": state.query,
        "transactional_id": state.place.name,
        "marker_topic": state.place.topic,
        "marker_partition": state.place.partition,
        "in_group": _copy(state.in_group),
        "in_record": _copy(state.in_record),
        "record_offset": state.record_offset,
        "transaction": None if transaction is None else transaction.state,
    }


def _copy(found: "KafkaMarker | None") -> dict[str, Any] | None:
    return None if found is None else {**found.shared, "offsets": found.offsets, "since": found.since}


def _tell_kafka(state: "KafkaSinkState") -> None:
    transaction = state.transaction
    doing = "unknown" if transaction is None else transaction.state
    click.echo(f"sink {state.sink}   query {state.query}   transaction {doing}")
    record = "-" if state.record_offset is None else state.record_offset
    places = (
        (f"group {state.place.name}, record {record}", state.in_group),
        (f"record in {state.place.topic}-{state.place.partition}", state.in_record),
    )
    copies = [(where, *((found.batch, found.digest[:12]) if found else (None, None))) for where, found in places]
    table([("COPY", "BATCH", "DIGEST"), *copies])
    newest = state.in_record or state.in_group
    if newest is not None:
        outputs = ", ".join(f"{topic} ({count})" for topic, count in sorted(newest.partitions.items()))
        click.echo(f"plan {newest.plan}   version {newest.plan_version}   output topics (partitions) {outputs or '-'}")
        _tell_offsets(newest.since, newest.offsets)


def _tell_none(at: "CheckpointState | None", name: str | None, bootstrap: str, marker_topic: str) -> None:
    whose = ("" if name is None else f" named {name}") + ("" if at is None else f" of query {at.query}")
    click.echo(f"no Kafka sink{whose} has a marker in {marker_topic} at {bootstrap}", err=True)


# What both kinds have


def _tell_offsets(since: Any, offsets: Any) -> None:
    from onceflow.spark.exactly_once.sink_state import parts

    begins = {(topic, partition): offset for topic, partition, offset in parts(since)}
    rows = [(topic, partition, begins.get((topic, partition)), end) for topic, partition, end in parts(offsets)]
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


def _tell_checkpoint(at: "CheckpointState | None") -> None:
    if at is not None:
        click.echo(f"checkpoint {at.checkpoint.location}   query {at.query}")
        driver = "none runs" if at.driver is None else f"runs: {at.driver}"
        click.echo(f"planned batch {at.planned}   committed batch {at.committed}   driver {driver}")


def _verdict_document(verdict: "Verdict | None") -> dict[str, Any]:
    if verdict is None:
        return {"fits": None, "sentence": None}
    return {"fits": verdict.fits, "sentence": verdict.sentence}


def _tell_verdict(verdict: "Verdict | None") -> None:
    if verdict is not None:
        click.echo(f"{'fits' if verdict.fits else 'does not fit'}: {verdict.sentence}")
