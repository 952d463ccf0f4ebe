"""`onceflow sink show` and `reset`: markers compared with checkpoints, and their deletion, without Spark."""

import json
import os
import re
import shlex
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis
from click.testing import CliRunner, Result

from onceflow.cli import onceflow
from onceflow.cli.sinks import options as sink_options
from onceflow.cli.sinks.reset import NoSuchSink
from onceflow.client.admin import Admin
from onceflow.client.cluster import Cluster
from onceflow.client.transactional import TransactionalProducer
from onceflow.remedies import Remedy
from onceflow.spark.exactly_once.batch import Batch
from onceflow.spark.exactly_once.checkpoint import LocalCheckpoint
from onceflow.spark.kafka import marker as kafka_marker
from onceflow.spark.kafka.marker import kafka_reset, marker_location
from onceflow.spark.redis import marker as markers
from onceflow.spark.redis.marker import redis_reset
from tests import remedies
from tests.conftest import RedisProcess
from tests.spark.kafka_driver import MARKER_TOPIC, Driver, make_topics, visible

HOLD = """
import fcntl, sys
file = open(sys.argv[1], "a+")
fcntl.lockf(file, fcntl.LOCK_EX)
file.write("JVM with pid 7 on here")
file.flush()
print("held", flush=True)
sys.stdin.read()
"""


class Query:
    """Checkpoint of a query that reads ten offsets per batch, as Spark writes it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.id = str(uuid.uuid4())
        for folder in ("offsets", "commits", "state"):
            (directory / folder).mkdir(parents=True)
        (directory / "metadata").write_text(json.dumps({"id": self.id}))

    def plan(self, number: int) -> Batch:
        """Write the offsets of all batches up to this one, and return it."""
        for batch in range(number + 1):
            (self.directory / "offsets" / str(batch)).write_text(f'v1\n{{}}\n{{"in":{{"0":{10 * batch}}}}}')
        return LocalCheckpoint(self.directory).batch(number, plan="plan", plan_version=1)

    def commit(self, number: int) -> Batch:
        """Write the offsets and commits of all batches up to this one, and return it."""
        for batch in range(number + 1):
            (self.directory / "commits" / str(batch)).write_text("v1\n{}")
        return self.plan(number)


@pytest.fixture
def query(tmp_path: Path) -> Query:
    return Query(tmp_path / "a checkpoint")


@contextmanager
def a_driver_runs(query: Query) -> Iterator[None]:
    holder = [sys.executable, "-c", HOLD, str(query.directory / "onceflow.lock")]
    with subprocess.Popen(holder, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as driver:
        assert driver.stdout is not None and driver.stdout.readline() == b"held\n"
        yield
        driver.communicate()


def left_in(query: Query) -> list[str]:
    """Return the names in the checkpoint."""
    return sorted(path.name for path in query.directory.iterdir())


def run(*words: str) -> Result:
    return CliRunner().invoke(onceflow, ["sink", *words], standalone_mode=False)


def asked(*words: str) -> tuple[int, Any]:
    """Return the exit code and the JSON document."""
    done = run(*words, "--json")
    assert done.exception is None, done.exception
    return done.return_value or 0, json.loads(done.stdout)


# Redis


class Counts:
    """Keys of a Redis sink, as its scripts write them."""

    def __init__(self, server: RedisProcess, hash_key: str) -> None:
        self.hash_key, self.marker_key = hash_key, f"{{{hash_key}}}:onceflow"
        self.client = redis.Redis.from_url(server.url, decode_responses=True)
        self.words = ("redis", "--redis", server.url, "--hash-key", hash_key)

    def write(self, batch: Batch, *, chunks: int = 0, done: int | None = None) -> None:
        """Write a complete batch, or the first `done` of its `chunks`."""
        fields: dict[Any, Any] = markers.first_fields(batch) | markers.begun_fields(
            None, batch, chunks=chunks, started_ms=1
        )
        if done is None:
            fields |= markers.completed_fields(started_ms=1, finished_ms=2)
        self.client.delete(self.marker_key)
        self.client.hset(self.marker_key, mapping={**fields, **{f"chunk:{chunk}": "1" for chunk in range(done or 0)}})
        self.client.hset(self.hash_key, "ada", "1")
        history = f"{{{self.hash_key}}}:history"
        self.client.rpush(history, "{}")
        self.claim(self.marker_key, history, self.hash_key)

    def claim(self, *keys: str) -> None:
        for key in keys:
            self.client.hset(markers.claims_key(key), key, self.marker_key)


@pytest.fixture
def counts(redis_server: RedisProcess, topic: str) -> Iterator[Counts]:
    # The name contains a glob pattern.
    keys = Counts(redis_server, f"{topic}[a-z]*")
    yield keys
    keys.client.close()


@pytest.mark.parametrize(
    ("written", "planned", "committed", "fits", "reason"),
    [
        (2, 2, 2, True, "batch 2 is written: the next start continues with batch 3"),
        (2, 2, 1, True, "batch 2 is written, but not committed by Spark: the next start skips it and continues"),
        (1, 2, 1, True, "batch 1 is written: the next start writes batch 2"),
        (1, 3, 2, False, "Redis lost batches: "),
        (3, 2, 2, False, "the checkpoint is older than the counts"),
    ],
)
def test_redis_markers_are_compared_with_checkpoints(
    counts: Counts, query: Query, written: int, planned: int, committed: int, fits: bool, reason: str
) -> None:
    counts.write(query.plan(written))
    for file in (query.directory / "offsets").iterdir():
        file.unlink()
    query.commit(committed)
    query.plan(planned)
    code, shown = asked("show", *counts.words, "--checkpoint", str(query.directory))
    assert (code, shown["fits"]) == (0 if fits else 1, fits)
    assert reason in shown["reason"]
    if not fits:
        command = f"onceflow sink reset {' '.join(counts.words[:3])}"
        assert command in shown["reason"]
        assert "a checkpoint' --execute'" in shown["reason"]
    assert (shown["marker"]["batch"], shown["marker"]["offsets"]) == (written, {"in": {"0": 10 * written}})
    assert (shown["checkpoint"]["planned"], shown["checkpoint"]["committed"]) == (planned, committed)
    printed = run("show", *counts.words, "--checkpoint", str(query.directory)).stdout
    assert f"batch {written}   complete" in printed
    assert f"planned batch {planned}   committed batch {committed}   driver not running" in printed
    assert f"{'fits' if fits else 'does not fit'}: {shown['reason']}" in printed


def test_missing_chunks_are_shown(counts: Counts, query: Query) -> None:
    counts.write(query.plan(1), chunks=3, done=1)
    query.commit(0)
    code, shown = asked("show", *counts.words, "--checkpoint", str(query.directory))
    assert (code, shown["fits"]) == (0, True)
    assert shown["reason"] == "a part of batch 1 is written: the next start finishes it"
    assert shown["marker"]["chunks_missing"] == [1, 2]
    assert "partial: chunks 1, 2 of 3 are missing" in run("show", *counts.words).stdout


def test_foreign_and_missing_redis_markers(counts: Counts, query: Query, tmp_path: Path) -> None:
    other = Query(tmp_path / "other")
    counts.write(other.commit(1))
    query.commit(1)
    code, shown = asked("show", *counts.words, "--checkpoint", str(query.directory))
    assert (code, shown["fits"]) == (1, False)
    assert f"belongs to query {other.id} and the checkpoint to query {query.id}" in shown["reason"]
    counts.client.delete(counts.marker_key)
    code, shown = asked("show", *counts.words)
    assert (code, shown["marker"], shown["has_counts"], shown["fits"]) == (1, None, True, None)
    assert "there are counts without it" in run("show", *counts.words).stdout


def test_an_unavailable_redis_is_reported() -> None:
    url = "redis://127.0.0.1:1"
    for word in ("show", "reset"):
        away = str(run(word, "redis", "--redis", url).exception)
        assert "Connection refused" in away
        assert away.endswith("start Redis, or use the address of a running one")
        assert "query" not in away


def test_show_names_the_driver(counts: Counts, query: Query) -> None:
    counts.write(query.commit(1))
    with a_driver_runs(query):
        shown = asked("show", *counts.words, "--checkpoint", str(query.directory))[1]
    assert shown["checkpoint"]["driver"] == "JVM with pid 7 on here"


@pytest.mark.remedy(Remedy.ADD_EXECUTE)
def test_redis_reset_deletes_the_sinks_keys(counts: Counts, query: Query) -> None:
    counts.write(query.commit(1))
    beside, other = f"{{{counts.hash_key}}}:top", f"{counts.hash_key}-other"
    strange = f"{{{counts.hash_key.replace('[a-z]*', 'x')}}}:top"
    for key in (beside, other, strange):
        counts.client.set(key, "1")
    counts.claim(beside, other)
    words = ("reset", *counts.words, "--checkpoint", str(query.directory))
    dry = run(*words)
    assert dry.exception is None
    remedies.find(Remedy.ADD_EXECUTE, dry.stderr)
    assert dry.stdout.count("would be deleted: ") == 5
    assert counts.client.exists(counts.marker_key, counts.hash_key, beside) == 3 and query.directory.exists()
    code, done = asked(*words, "--key", other, "--execute")
    assert (code, done["executed"], len(done["deleted"])) == (0, True, 6)
    assert "starts at its starting offsets" in done["kept"][0]
    assert counts.client.exists(counts.marker_key, counts.hash_key, beside, other) == 0
    assert not counts.client.exists(markers.claims_key(counts.hash_key), markers.claims_key(other))
    assert counts.client.exists(strange) == 1
    assert left_in(query) == ["onceflow.lock"]


@pytest.mark.remedy(Remedy.LEAVE_CHECKPOINT_OUT, Remedy.CHECKPOINT_OF_COUNTS)
def test_redis_reset_warns_of_two_queries(counts: Counts, query: Query, tmp_path: Path) -> None:
    other = Query(tmp_path / "other")
    counts.write(other.commit(1))
    query.commit(1)
    words = ("reset", *counts.words, "--checkpoint")
    warning = f"the counts belong to query {other.id} and the checkpoint to query {query.id}; --execute deletes both"
    assert f"warning: {warning}" in run(*words, str(query.directory)).stdout
    assert warning in asked(*words, str(query.directory))[1]["other_query"]
    remedies.find(Remedy.CHECKPOINT_OF_COUNTS, run(*words, str(query.directory)).stdout)
    assert "warning" not in run(*words, str(other.directory)).stdout
    remedies.find(Remedy.LEAVE_CHECKPOINT_OUT, run(*words, str(query.directory)).stdout)
    assert asked(*words[:-1], "--execute")[1]["executed"] and (query.directory / "metadata").exists()
    counts.write(other.plan(1))
    # A damaged checkpoint does not name its query.
    (query.directory / "metadata").write_text("torn")
    assert asked(*words, str(query.directory), "--execute")[1]["other_query"] is None


def test_redis_reset_deletes_markers_of_other_types(counts: Counts, query: Query) -> None:
    query.commit(1)
    counts.client.set(counts.marker_key, "torn")
    counts.claim(counts.marker_key)
    code, done = asked("reset", *counts.words, "--checkpoint", str(query.directory), "--execute")
    assert (code, done["other_query"]) == (0, None)
    assert not counts.client.exists(counts.marker_key) and left_in(query) == ["onceflow.lock"]


def test_redis_reset_without_keys(counts: Counts) -> None:
    nothing = run("reset", *counts.words, "--missing-ok")
    assert (nothing.exception, nothing.stdout, nothing.stderr) == (None, "nothing to delete\n", "")


def test_redis_reset_is_refused_during_runs(counts: Counts, query: Query) -> None:
    counts.write(query.commit(1))
    words = ("reset", *counts.words, "--checkpoint", str(query.directory))
    with a_driver_runs(query):
        assert "refused while a driver is running: JVM with pid 7 on here" in run(*words).stdout
        refused = run(*words, "--execute")
    assert "is in use by JVM with pid 7 on here" in str(refused.exception)
    assert counts.client.exists(counts.marker_key, counts.hash_key) == 2 and query.directory.exists()


def test_reset_keeps_the_lock_file(counts: Counts, query: Query) -> None:
    counts.write(query.commit(1))
    with (query.directory / "onceflow.lock").open("a+") as waiting:
        assert run("reset", *counts.words, "--checkpoint", str(query.directory), "--execute").exception is None
        assert os.path.samestat(os.fstat(waiting.fileno()), (query.directory / "onceflow.lock").stat())


@pytest.mark.remedy(Remedy.NAME_SINK, Remedy.ADD_MISSING_OK)
def test_redis_reset_without_sink_keeps_checkpoints(counts: Counts, query: Query) -> None:
    query.commit(1)
    for more in ((), ("--execute",)):
        refused = run("reset", *counts.words, "--checkpoint", str(query.directory), *more)
        assert isinstance(refused.exception, NoSuchSink)
        assert f"no key of a sink with hash key {counts.hash_key} at " in str(refused.exception)
        remedies.find(Remedy.ADD_MISSING_OK, refused.exception)
        remedies.find(Remedy.NAME_SINK, refused.exception)
    assert (query.directory / "metadata").exists() and (query.directory / "commits" / "1").exists()
    lost = run("reset", *counts.words, "--checkpoint", str(query.directory), "--missing-ok", "--execute")
    assert lost.exception is None and left_in(query) == ["onceflow.lock"]
    (query.directory / "onceflow.lock").unlink()
    counts.write(Query(query.directory).commit(1))
    words = (*counts.words[:-1], "wrong", "--checkpoint", str(query.directory), "--execute")
    remedies.find(Remedy.NAME_SINK, run("reset", *words).exception)
    named = run("reset", *counts.words, "--checkpoint", str(query.directory), "--execute")
    assert named.exception is None and not counts.client.exists(counts.marker_key)


@pytest.mark.remedy(Remedy.NAME_KEYS)
def test_reset_without_hash_names_the_remedy(counts: Counts, query: Query) -> None:
    counts.write(query.commit(1))
    other = f"{counts.hash_key}-other"
    counts.client.rename(counts.hash_key, other)
    counts.claim(other)
    words = ("reset", *counts.words, "--checkpoint", str(query.directory))
    remedies.find(Remedy.NAME_KEYS, run(*words).stdout)
    assert run(*words, "--key", other, "--execute").exception is None
    assert not counts.client.exists(other, counts.marker_key)


def test_reset_keeps_keys_of_other_sinks(counts: Counts, query: Query, redis_server: RedisProcess) -> None:
    """One sink's name derives from the hash key; the other's key is given with --key."""
    counts.write(query.commit(1))
    derived = Counts(redis_server, f"{{{counts.hash_key}}}:clicks")
    derived.marker_key = f"{derived.hash_key}:onceflow"
    other = Counts(redis_server, f"{counts.hash_key}-other")
    for sink in (derived, other):
        sink.write(query.plan(1))
    before = {key: counts.client.dump(key) for sink in (derived, other) for key in (sink.marker_key, sink.hash_key)}
    words = ("reset", *counts.words, "--key", other.hash_key, "--checkpoint", str(query.directory), "--execute")
    done = run(*words)
    assert done.exception is None
    assert f"kept: {other.hash_key}: belongs to marker {other.marker_key}\n" in done.stdout
    assert f"kept: {derived.hash_key}, {derived.marker_key}: belongs to marker {derived.marker_key}\n" in done.stdout
    assert not counts.client.exists(counts.marker_key, counts.hash_key)
    assert {key: counts.client.dump(key) for key in before} == before
    for sink in (derived, other):
        assert run("reset", *sink.words, "--execute").exception is None
        assert not counts.client.exists(sink.marker_key, sink.hash_key, markers.claims_key(sink.hash_key))
        sink.client.close()


@pytest.mark.remedy(Remedy.DELETE_UNCLAIMED)
def test_reset_lists_unclaimed_keys(counts: Counts, query: Query) -> None:
    """A marker of an earlier version, without claims: the owner of its counts is unknown."""
    counts.write(query.commit(1))
    counts.client.delete(markers.claims_key(counts.hash_key))
    words = ("reset", *counts.words, "--checkpoint", str(query.directory))
    done = run(*words, "--execute")
    assert done.exception is None
    assert counts.client.exists(counts.marker_key, counts.hash_key) == 2
    assert left_in(query) == ["onceflow.lock"]
    (line,) = [line for line in done.stdout.splitlines() if "not claimed by a sink" in line]
    assert counts.client.execute_command(*remedies.command(Remedy.DELETE_UNCLAIMED, line, "command")) == 3
    assert not counts.client.exists(counts.marker_key, counts.hash_key)
    alone = run("reset", *counts.words, "--missing-ok")
    assert alone.stdout == "nothing to delete\n"


def test_reset_without_own_keys_lists_others(counts: Counts) -> None:
    counts.client.set(counts.hash_key, "1")
    alone = run("reset", *counts.words, "--missing-ok", "--execute")
    assert alone.stdout.startswith(f"nothing to delete\nkept: {counts.hash_key}: not claimed by a sink")
    assert counts.client.get(counts.hash_key) == "1"


def test_reset_deletes_checkpoints_without_commits(counts: Counts, query: Query) -> None:
    query.plan(0)
    assert run("reset", *counts.words, "--checkpoint", str(query.directory), "--execute").exception is None
    assert left_in(query) == ["onceflow.lock"]


@pytest.mark.remedy(Remedy.NAME_CHECKPOINT)
def test_reset_deletes_checkpoints_of_refused_starts(counts: Counts, query: Query, tmp_path: Path) -> None:
    """The refusal names this command: counts of another query, and a checkpoint with only the lock file."""
    counts.write(query.commit(1))
    refused = tmp_path / "refused"
    refused.mkdir()
    (refused / "onceflow.lock").touch()
    assert run("reset", *counts.words, "--checkpoint", str(refused), "--execute").exception is None
    assert counts.client.exists(counts.marker_key, counts.hash_key) == 0
    (refused / "data").touch()
    strange = run("reset", *counts.words, "--checkpoint", str(refused), "--execute")
    assert "refused is not a Spark checkpoint (no file 'metadata')" in str(strange.exception)
    remedies.find(Remedy.NAME_CHECKPOINT, strange.exception)
    assert (
        run("reset", *counts.words, "--checkpoint", str(query.directory), "--missing-ok", "--execute").exception is None
    )
    assert left_in(query) == ["onceflow.lock"]


def test_reset_without_checkpoint_lists_the_rest(counts: Counts, query: Query, tmp_path: Path) -> None:
    counts.write(query.commit(1))
    refused = run("reset", *counts.words, "--checkpoint", str(tmp_path / "missing"), "--execute")
    assert "missing does not exist; " in str(refused.exception)
    assert counts.client.exists(counts.marker_key) == 1
    done = asked("reset", *counts.words, "--execute")[1]
    assert "the query will not resume from it" in done["kept"][1]
    assert counts.client.exists(counts.marker_key) == 0 and query.directory.exists()


@pytest.mark.remedy(Remedy.FORGET_RUN)
def test_demo_reset_names_the_sink_reset(
    redis_server: RedisProcess, query: Query, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pipeline").mkdir()
    refused = CliRunner().invoke(onceflow, ["reset", "--data", str(tmp_path / "pipeline"), "--yes"])
    assert "is not a demo directory (no demo.json)" in str(refused.exception)
    remedies.find(Remedy.FORGET_RUN, refused.exception)
    monkeypatch.setenv("ONCEFLOW_REDIS", redis_server.url.removesuffix("1") + "7")
    counts = Counts(redis_server, "app::users::click")
    counts.client = redis.Redis.from_url(os.environ["ONCEFLOW_REDIS"], decode_responses=True)
    counts.write(query.commit(1))
    assert run("reset", "redis", "--execute").exception is None
    assert not counts.client.keys()
    counts.client.close()


# Kafka


class Output:
    """Kafka sink of one query, driven without Spark; its topic has the marker's name without the prefix."""

    def __init__(self, bootstrap: str, query: Query, owner: str = "owner-1") -> None:
        self.query, self.topic = query, f"{query.id}-kafka"
        self.name = f"onceflow-{self.topic}"
        self.words = ("kafka", "--bootstrap", bootstrap, "--marker-topic", MARKER_TOPIC)
        self.driver = Driver(bootstrap, self.topic, owner=owner)

    def write(self, up_to: int) -> None:
        for number in range(up_to + 1):
            self.driver.write(number, of=self.query.plan(number))


@pytest.fixture
def output(bootstrap: str, query: Query) -> Iterator[Output]:
    make_topics(bootstrap, f"{query.id}-kafka")
    sink = Output(bootstrap, query)
    yield sink
    sink.driver.close()


def forget_group(cluster: Cluster, name: str) -> None:
    Admin(cluster).delete_group(name)


def test_both_copies_of_kafka_markers_are_shown(output: Output, query: Query) -> None:
    output.write(2)
    query.commit(1)
    code, shown = asked("show", *output.words, "--checkpoint", str(query.directory))
    (sink,) = shown["sinks"]
    assert (code, sink["name"], sink["query"], sink["fits"]) == (0, "kafka", query.id, True)
    assert sink["in_group"]["batch"] == sink["in_record"]["batch"] == 2
    assert sink["in_record"]["offsets"] == {"in": {"0": 20}}
    assert sink["reason"].startswith("batch 2 is written, but not committed by Spark")
    printed = run("show", *output.words, "--query", query.id).stdout
    assert f"sink kafka   query {query.id}" in printed
    assert f"output topics (partitions) {output.topic} (3)" in printed
    everything = asked("show", *output.words)[1]["sinks"]
    assert query.id in [sink["query"] for sink in everything]


def test_one_copy_of_kafka_markers_suffices(bootstrap: str, output: Output, query: Query) -> None:
    output.write(1)
    query.commit(1)
    with Cluster(bootstrap) as cluster:
        forget_group(cluster, output.name)
    (sink,) = asked("show", *output.words, "--checkpoint", str(query.directory))[1]["sinks"]
    assert (sink["in_group"], sink["in_record"]["batch"], sink["fits"]) == (None, 1, True)
    other = ("--name", "another", "--checkpoint", str(query.directory))
    code, shown = asked("show", *output.words, *other)
    assert (code, shown["sinks"]) == (1, [])
    none_named = f"no Kafka sink named another of query {query.id} has a marker"
    assert none_named in run("show", *output.words, *other).stderr


def test_outdated_checkpoints_name_the_remedy(output: Output, query: Query) -> None:
    output.write(3)
    for number in (2, 3):
        (query.directory / "offsets" / str(number)).unlink()
    query.commit(1)
    code, shown = asked("show", *output.words, "--checkpoint", str(query.directory))
    (sink,) = shown["sinks"]
    assert (code, sink["fits"]) == (1, False)
    assert "is at batch 3 and the checkpoint is at batch 1" in sink["reason"]
    assert f"onceflow sink reset kafka {' '.join(output.words[1:3])} --name kafka" in sink["reason"]


def test_the_reset_command_can_be_copied(bootstrap: str, output: Output, query: Query) -> None:
    output.write(3)
    query.commit(1)
    for number in (2, 3):
        (query.directory / "offsets" / str(number)).unlink()
    (sink,) = asked("show", *output.words, "--checkpoint", str(query.directory))[1]["sinks"]
    command = re.search("'(onceflow sink reset kafka .*)' and write again", sink["reason"])
    assert command is not None
    with Cluster(bootstrap) as cluster:
        place = marker_location(cluster, "kafka", MARKER_TOPIC, f"file://{query.directory}", query.id)
    assert (place.name, place.reset) == (output.name, command[1])
    assert run(*shlex.split(command[1])[2:]).exception is None
    assert asked("show", *output.words, "--query", query.id)[1]["sinks"] == []
    assert left_in(query) == ["onceflow.lock"]


@pytest.mark.parametrize(
    ("checkpoint", "where"),
    [
        ("/a b", "--checkpoint '/a b'"),
        ("file:/c", "--checkpoint /c"),
        ("file:///c", "--checkpoint /c"),
        ("s3a://bucket/c", "--query q"),
    ],
)
def test_remote_checkpoints_are_named_by_query(checkpoint: str, where: str) -> None:
    command = kafka_reset("h:1", "kafka", checkpoint, query="q", marker_topic="m")
    assert command == f"onceflow sink reset kafka --bootstrap h:1 --name kafka --marker-topic m {where} --execute"


def test_reset_commands_name_other_keys() -> None:
    keys = ["app::clicks", "{app::clicks}:top", "elsewhere"]
    command = redis_reset("redis://ada:secret@h:1", "app::clicks", "hdfs://h/c", keys)
    assert command == "onceflow sink reset redis --redis redis://h:1/0 --hash-key app::clicks --key elsewhere --execute"
    assert redis_reset("redis://h:1/1", "{a}", "/c", ["{a}:top"]).endswith("--hash-key '{a}' --checkpoint /c --execute")


def test_the_marker_topic_is_the_sinks() -> None:
    assert kafka_marker.MARKER_TOPIC == sink_options.MARKER_TOPIC  # type: ignore[attr-defined]


def test_differing_copies_do_not_fit(bootstrap: str, output: Output, query: Query) -> None:
    output.write(1)
    with TransactionalProducer(bootstrap, "a stranger") as stranger:
        stranger.begin()
        text = json.dumps({**_record(bootstrap, output), "batch": 7})
        stranger.send(MARKER_TOPIC, text.encode(), key=output.name.encode(), partition=0)
        stranger.commit()
    code, shown = asked("show", *output.words, "--query", query.id)
    (sink,) = shown["sinks"]
    assert (code, sink["fits"]) == (1, False)
    assert "differ: the group's offset is of batch 1" in sink["reason"]


def _record(bootstrap: str, output: Output) -> dict[str, Any]:
    records = [json.loads(value) for value in visible(bootstrap, MARKER_TOPIC, 1)[0] if value is not None]
    return next(record for record in reversed(records) if record["query"] == output.query.id)


def test_kafka_reset_deletes_markers_and_checkpoint(bootstrap: str, output: Output, query: Query) -> None:
    output.write(2)
    query.commit(2)
    words = ("reset", *output.words, "--checkpoint", str(query.directory))
    before = visible(bootstrap, output.topic)
    dry = run(*words)
    assert f"nothing was changed: {Remedy.ADD_EXECUTE}" in dry.stderr
    assert f"would be deleted: the marker of sink kafka, in group {output.name} and {MARKER_TOPIC}" in dry.stdout
    assert f"kept: the records in {output.topic}: " in dry.stdout
    assert asked("show", *output.words, "--checkpoint", str(query.directory))[0] == 0
    done = asked(*words, "--execute")[1]
    assert (done["executed"], len(done["deleted"])) == (True, 2)
    assert left_in(query) == ["onceflow.lock"]
    assert asked("show", *output.words, "--query", query.id) == (1, {"checkpoint": None, "sinks": []})
    assert visible(bootstrap, output.topic) == before
    again = run("reset", *output.words, "--query", query.id, "--execute")
    assert f"no Kafka sink of query {query.id} has a marker" in str(again.exception)


@pytest.mark.remedy(Remedy.NAME_SINK, Remedy.LIST_KAFKA_SINKS)
def test_kafka_reset_without_sink_keeps_checkpoints(output: Output, query: Query) -> None:
    output.write(1)
    query.commit(1)
    words = ("reset", *output.words, "--name", "kafak", "--checkpoint", str(query.directory), "--execute")
    refused = run(*words)
    assert isinstance(refused.exception, NoSuchSink)
    assert f"no marker of a Kafka sink 'kafak' of query {query.id} in " in str(refused.exception)
    assert (query.directory / "metadata").exists() and (query.directory / "commits" / "1").exists()
    remedies.find(Remedy.NAME_SINK, refused.exception)
    unknown = run("reset", *output.words, "--name", "kafak", "--query", query.id, "--execute")
    remedies.find(Remedy.LIST_KAFKA_SINKS, unknown.exception)
    assert query.id in [sink["query"] for sink in asked("show", *output.words)[1]["sinks"]]
    named = run("reset", *output.words, "--name", "kafka", "--checkpoint", str(query.directory), "--execute")
    assert named.exception is None


def test_drivers_fail_after_a_reset(output: Output, query: Query) -> None:
    output.write(2)
    assert run("reset", *output.words, "--query", query.id, "--execute").exception is None
    with pytest.raises(Exception, match="there is no marker"):
        output.driver.write(3, of=query.plan(3))


@pytest.mark.remedy(Remedy.STOP_DRIVER, Remedy.ABORT_DEAD)
def test_kafka_reset_is_refused_during_transactions(bootstrap: str, output: Output, query: Query) -> None:
    output.write(1)
    query.commit(1)
    words = ("reset", *output.words, "--checkpoint", str(query.directory), "--execute")
    with a_driver_runs(query):
        assert "is in use by JVM with pid 7" in str(run(*words).exception)
    with TransactionalProducer(bootstrap, output.name) as writing:
        writing.begin()
        writing.send(output.topic, b"half", partition=0)
        writing.flush()
        refused = str(run(*words).exception)
        remedies.find(Remedy.STOP_DRIVER, refused)
    assert "has an open transaction (Ongoing)" in refused
    assert query.directory.exists()
    assert asked("show", *output.words, "--query", query.id)[0] == 0
    dead = TransactionalProducer(bootstrap, output.name)
    dead.begin()
    dead.send(output.topic, b"half", partition=0)
    dead.flush()
    command = remedies.command(Remedy.ABORT_DEAD, str(run(*words).exception), "command")
    done = CliRunner().invoke(onceflow, command[1:], input="y\n")
    assert done.exit_code == 0, done.output
    dead.close()
    assert run(*words).exception is None


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("reset", "kafka"), "specify the query"),
        (("reset", "kafka", "--checkpoint", "s3a://bucket/x"), "is not a local path"),
        (("show", "kafka", "--marker-topic", "nothing"), "there is no topic nothing at"),
        (("show", "redis", "--checkpoint", "/nowhere"), "/nowhere does not exist here"),
        (("shwo",), "Did you mean 'show'?"),
        (("show", "kafak"), "Did you mean 'kafka'?"),
    ],
)
def test_invalid_sink_usage_is_refused(
    bootstrap: str, redis_server: RedisProcess, words: tuple[str, ...], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONCEFLOW_BOOTSTRAP", bootstrap)
    monkeypatch.setenv("ONCEFLOW_REDIS", redis_server.url)
    assert message in str(run(*words).exception)
