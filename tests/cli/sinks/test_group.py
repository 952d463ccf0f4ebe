"""`onceflow sink show|reset`: what markers say beside a checkpoint, and forgetting them, without a Spark."""

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
from onceflow.services import free_port
from onceflow.spark.exactly_once.batch import Batch
from onceflow.spark.exactly_once.checkpoint import LocalCheckpoint
from onceflow.spark.kafka import marker as kafka_marker
from onceflow.spark.kafka.marker import place_of
from onceflow.spark.kafka.reset_command import kafka_reset
from onceflow.spark.redis import marker as markers
from onceflow.spark.redis.reset_command import redis_reset
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
    """A checkpoint as Spark leaves it, of a query that reads ten offsets a batch."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.id = str(uuid.uuid4())
        for folder in ("offsets", "commits", "state"):
            (directory / folder).mkdir(parents=True)
        (directory / "metadata").write_text(json.dumps({"id": self.id}))

    def plan(self, number: int) -> Batch:
        """Spark has planned batches up to this one; returns it."""
        for each in range(number + 1):
            (self.directory / "offsets" / str(each)).write_text(f'v1\n{{}}\n{{"in":{{"0":{10 * each}}}}}')
        return LocalCheckpoint(self.directory).batch(number, plan="plan", plan_version=1)

    def commit(self, number: int) -> Batch:
        """Spark has planned and finished batches up to this one; returns it."""
        for each in range(number + 1):
            (self.directory / "commits" / str(each)).write_text("v1\n{}")
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
    """What a reset has left of the checkpoint."""
    return sorted(path.name for path in query.directory.iterdir())


def run(*words: str) -> Result:
    return CliRunner().invoke(onceflow, ["sink", *words], standalone_mode=False)


def asked(*words: str) -> tuple[int, Any]:
    """Exit code and JSON."""
    done = run(*words, "--json")
    assert done.exception is None, done.exception
    return done.return_value or 0, json.loads(done.stdout)


# Redis


class Counts:
    """A Redis sink's keys, as its scripts leave them."""

    def __init__(self, server: RedisProcess, hash_key: str) -> None:
        self.hash_key, self.marker_key = hash_key, f"{{{hash_key}}}:onceflow"
        self.client = redis.Redis.from_url(server.url, decode_responses=True)
        self.words = ("redis", "--redis", server.url, "--hash-key", hash_key)

    def write(self, batch: Batch, *, chunks: int = 0, done: int | None = None) -> None:
        """The batch is there; or it was cut into `chunks`, of which the first `done` are."""
        fields = markers.first_fields(batch) | markers.begun_fields(None, batch, chunks=chunks, started_ms=1)
        if done is None:
            fields |= markers.completed_fields(started_ms=1, finished_ms=2)
        self.client.delete(self.marker_key)
        self.client.hset(self.marker_key, mapping={**fields, **{f"chunk:{each}": "1" for each in range(done or 0)}})
        self.client.hset(self.hash_key, "ada", "1")
        history = f"{{{self.hash_key}}}:history"
        self.client.rpush(history, "{}")
        self.claim(self.marker_key, history, self.hash_key)

    def claim(self, *keys: str) -> None:
        for key in keys:
            self.client.hset(markers.claims_key(key), key, self.marker_key)


@pytest.fixture
def counts(redis_server: RedisProcess, topic: str) -> Iterator[Counts]:
    # What a glob would take for a pattern is part of the name.
    found = Counts(redis_server, f"{topic}[a-z]*")
    yield found
    found.client.close()


@pytest.mark.parametrize(
    ("written", "planned", "committed", "fits", "sentence"),
    [
        (2, 2, 2, True, "batch 2 is written: the next start goes on with batch 3"),
        (2, 2, 1, True, "batch 2 is written, Spark has not noted that: the next start skips it and goes on with batch"),
        (1, 2, 1, True, "batch 1 is written: the next start writes batch 2"),
        (1, 3, 2, False, "Redis lost batches: "),
        (3, 2, 2, False, "the checkpoint is older than the counts"),
    ],
)
def test_a_marker_of_redis_beside_its_checkpoint(
    counts: Counts, query: Query, written: int, planned: int, committed: int, fits: bool, sentence: str
) -> None:
    counts.write(query.plan(written))
    for file in (query.directory / "offsets").iterdir():
        file.unlink()
    query.commit(committed)
    query.plan(planned)
    code, shown = asked("show", *counts.words, "--checkpoint", str(query.directory))
    assert (code, shown["fits"]) == (0 if fits else 1, fits)
    assert sentence in shown["sentence"]
    if not fits:
        command = f"onceflow sink reset {' '.join(counts.words[:3])}"
        assert command in shown["sentence"]
        assert "a checkpoint' --execute'" in shown["sentence"]
    assert (shown["marker"]["batch"], shown["marker"]["offsets"]) == (written, {"in": {"0": 10 * written}})
    assert (shown["checkpoint"]["planned"], shown["checkpoint"]["committed"]) == (planned, committed)
    told = run("show", *counts.words, "--checkpoint", str(query.directory)).stdout
    assert f"batch {written}   complete" in told
    assert f"planned batch {planned}   committed batch {committed}   driver none runs" in told
    assert f"{'fits' if fits else 'does not fit'}: {shown['sentence']}" in told


def test_a_batch_of_which_chunks_are_missing(counts: Counts, query: Query) -> None:
    counts.write(query.plan(1), chunks=3, done=1)
    query.commit(0)
    code, shown = asked("show", *counts.words, "--checkpoint", str(query.directory))
    assert (code, shown["fits"]) == (0, True)
    assert shown["sentence"] == "a part of batch 1 is written: the next start finishes it"
    assert shown["marker"]["chunks_missing"] == [1, 2]
    assert "partial: chunks 1, 2 of 3 are missing" in run("show", *counts.words).stdout


def test_a_marker_of_another_query_and_one_that_is_not_there(counts: Counts, query: Query, tmp_path: Path) -> None:
    other = Query(tmp_path / "other")
    counts.write(other.commit(1))
    query.commit(1)
    code, shown = asked("show", *counts.words, "--checkpoint", str(query.directory))
    assert (code, shown["fits"]) == (1, False)
    assert f"belongs to query {other.id} and the checkpoint to query {query.id}" in shown["sentence"]
    counts.client.delete(counts.marker_key)
    code, shown = asked("show", *counts.words)
    assert (code, shown["marker"], shown["counts_there"], shown["fits"]) == (1, None, True, None)
    assert "there are counts beside it" in run("show", *counts.words).stdout


def test_a_redis_that_is_away_is_not_told_as_a_query_that_stopped() -> None:
    url = f"redis://127.0.0.1:{free_port()}"
    for word in ("show", "reset"):
        away = str(run(word, "redis", "--redis", url).exception)
        assert "Connection refused" in away
        assert away.endswith("start Redis, or use the address of a running one")
        assert "query" not in away


def test_show_tells_who_drives_and_takes_nothing_from_him(counts: Counts, query: Query) -> None:
    counts.write(query.commit(1))
    with a_driver_runs(query):
        shown = asked("show", *counts.words, "--checkpoint", str(query.directory))[1]
    assert shown["checkpoint"]["driver"] == "JVM with pid 7 on here"


@pytest.mark.remedy(Remedy.ADD_EXECUTE)
def test_reset_of_redis_shows_first_and_then_takes_all_that_is_the_sinks(counts: Counts, query: Query) -> None:
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
    assert dry.stdout.count("would be forgotten: ") == 5
    assert counts.client.exists(counts.marker_key, counts.hash_key, beside) == 3 and query.directory.exists()
    code, done = asked(*words, "--key", other, "--execute")
    assert (code, done["executed"], len(done["forgotten"])) == (0, True, 6)
    assert "starting offsets again" in done["kept"][0]
    assert counts.client.exists(counts.marker_key, counts.hash_key, beside, other) == 0
    assert not counts.client.exists(markers.claims_key(counts.hash_key), markers.claims_key(other))
    assert counts.client.exists(strange) == 1
    assert left_in(query) == ["onceflow.lock"]


@pytest.mark.remedy(Remedy.LEAVE_CHECKPOINT_OUT, Remedy.CHECKPOINT_OF_COUNTS)
def test_reset_of_redis_says_that_counts_and_checkpoint_are_of_two_queries(
    counts: Counts, query: Query, tmp_path: Path
) -> None:
    other = Query(tmp_path / "other")
    counts.write(other.commit(1))
    query.commit(1)
    words = ("reset", *counts.words, "--checkpoint")
    said = f"the counts are of query {other.id} and the checkpoint is of query {query.id}: with --execute both go"
    assert f"take care: {said}" in run(*words, str(query.directory)).stdout
    assert said in asked(*words, str(query.directory))[1]["other_query"]
    remedies.find(Remedy.CHECKPOINT_OF_COUNTS, run(*words, str(query.directory)).stdout)
    assert "take care" not in run(*words, str(other.directory)).stdout
    remedies.find(Remedy.LEAVE_CHECKPOINT_OUT, run(*words, str(query.directory)).stdout)
    assert asked(*words[:-1], "--execute")[1]["executed"] and (query.directory / "metadata").exists()
    counts.write(other.plan(1))
    # Damage is what a reset is for, and says nothing about whose it is.
    (query.directory / "metadata").write_text("torn")
    assert asked(*words, str(query.directory), "--execute")[1]["other_query"] is None


def test_reset_of_redis_forgets_a_marker_of_another_type(counts: Counts, query: Query) -> None:
    query.commit(1)
    counts.client.set(counts.marker_key, "torn")
    counts.claim(counts.marker_key)
    code, done = asked("reset", *counts.words, "--checkpoint", str(query.directory), "--execute")
    assert (code, done["other_query"]) == (0, None)
    assert not counts.client.exists(counts.marker_key) and left_in(query) == ["onceflow.lock"]


def test_reset_of_redis_where_nothing_is_does_not_ask_to_be_executed(counts: Counts) -> None:
    nothing = run("reset", *counts.words, "--missing-ok")
    assert (nothing.exception, nothing.stdout, nothing.stderr) == (None, "there is nothing to forget\n", "")


def test_reset_of_redis_is_refused_while_a_driver_runs(counts: Counts, query: Query) -> None:
    counts.write(query.commit(1))
    words = ("reset", *counts.words, "--checkpoint", str(query.directory))
    with a_driver_runs(query):
        assert "refused while a driver runs: JVM with pid 7 on here" in run(*words).stdout
        refused = run(*words, "--execute")
    assert "is in use by JVM with pid 7 on here: end that process first" in str(refused.exception)
    assert counts.client.exists(counts.marker_key, counts.hash_key) == 2 and query.directory.exists()


def test_a_driver_that_waits_during_a_reset_gets_the_lock_that_later_ones_ask_for(counts: Counts, query: Query) -> None:
    counts.write(query.commit(1))
    with (query.directory / "onceflow.lock").open("a+") as waiting:
        assert run("reset", *counts.words, "--checkpoint", str(query.directory), "--execute").exception is None
        assert os.path.samestat(os.fstat(waiting.fileno()), (query.directory / "onceflow.lock").stat())


@pytest.mark.remedy(Remedy.NAME_SINK, Remedy.ADD_MISSING_OK)
def test_reset_of_redis_keeps_a_checkpoint_whose_sink_is_not_there(counts: Counts, query: Query) -> None:
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
def test_reset_of_a_sink_whose_hash_is_gone(counts: Counts, query: Query) -> None:
    counts.write(query.commit(1))
    other = f"{counts.hash_key}-other"
    counts.client.rename(counts.hash_key, other)
    counts.claim(other)
    words = ("reset", *counts.words, "--checkpoint", str(query.directory))
    remedies.find(Remedy.NAME_KEYS, run(*words).stdout)
    assert run(*words, "--key", other, "--execute").exception is None
    assert not counts.client.exists(other, counts.marker_key)


def test_reset_leaves_keys_of_another_sink(counts: Counts, query: Query, redis_server: RedisProcess) -> None:
    """One is named after the hash key; the other's key is named with --key."""
    counts.write(query.commit(1))
    beside = Counts(redis_server, f"{{{counts.hash_key}}}:clicks")
    beside.marker_key = f"{beside.hash_key}:onceflow"
    other = Counts(redis_server, f"{counts.hash_key}-other")
    for sink in (beside, other):
        sink.write(query.plan(1))
    before = {key: counts.client.dump(key) for sink in (beside, other) for key in (sink.marker_key, sink.hash_key)}
    words = ("reset", *counts.words, "--key", other.hash_key, "--checkpoint", str(query.directory), "--execute")
    done = run(*words)
    assert done.exception is None
    assert f"stays: {other.hash_key}: belongs to marker {other.marker_key}\n" in done.stdout
    assert f"stays: {beside.hash_key}, {beside.marker_key}: belongs to marker {beside.marker_key}\n" in done.stdout
    assert not counts.client.exists(counts.marker_key, counts.hash_key)
    assert {key: counts.client.dump(key) for key in before} == before
    for sink in (beside, other):
        assert run("reset", *sink.words, "--execute").exception is None
        assert not counts.client.exists(sink.marker_key, sink.hash_key, markers.claims_key(sink.hash_key))
        sink.client.close()


@pytest.mark.remedy(Remedy.DELETE_UNCLAIMED)
def test_reset_names_keys_that_no_sink_claims(counts: Counts, query: Query) -> None:
    """A marker of an earlier version: nothing says whether its counts are its own."""
    counts.write(query.commit(1))
    counts.client.delete(markers.claims_key(counts.hash_key))
    words = ("reset", *counts.words, "--checkpoint", str(query.directory))
    done = run(*words, "--execute")
    assert done.exception is None
    assert counts.client.exists(counts.marker_key, counts.hash_key) == 2
    assert left_in(query) == ["onceflow.lock"]
    (line,) = [each for each in done.stdout.splitlines() if "claimed by no sink" in each]
    assert counts.client.execute_command(*remedies.command(Remedy.DELETE_UNCLAIMED, line, "command")) == 3
    assert not counts.client.exists(counts.marker_key, counts.hash_key)
    alone = run("reset", *counts.words, "--missing-ok")
    assert alone.stdout == "there is nothing to forget\n"


def test_reset_without_own_keys_lists_the_others(counts: Counts) -> None:
    counts.client.set(counts.hash_key, "1")
    alone = run("reset", *counts.words, "--missing-ok", "--execute")
    assert alone.stdout.startswith(f"there is nothing to forget\nstays: {counts.hash_key}: claimed by no sink")
    assert counts.client.get(counts.hash_key) == "1"


def test_reset_takes_a_checkpoint_that_has_finished_nothing(counts: Counts, query: Query) -> None:
    query.plan(0)
    assert run("reset", *counts.words, "--checkpoint", str(query.directory), "--execute").exception is None
    assert left_in(query) == ["onceflow.lock"]


@pytest.mark.remedy(Remedy.NAME_CHECKPOINT)
def test_reset_takes_the_checkpoint_of_a_start_that_was_refused(counts: Counts, query: Query, tmp_path: Path) -> None:
    """Its sentence names this command: counts of another query, and a checkpoint in which only the lock is yet."""
    counts.write(query.commit(1))
    refused = tmp_path / "refused"
    refused.mkdir()
    (refused / "onceflow.lock").touch()
    assert run("reset", *counts.words, "--checkpoint", str(refused), "--execute").exception is None
    assert counts.client.exists(counts.marker_key, counts.hash_key) == 0
    (refused / "data").touch()
    strange = run("reset", *counts.words, "--checkpoint", str(refused), "--execute")
    assert "refused is no Spark checkpoint (no file 'metadata' in it)" in str(strange.exception)
    remedies.find(Remedy.NAME_CHECKPOINT, strange.exception)
    assert (
        run("reset", *counts.words, "--checkpoint", str(query.directory), "--missing-ok", "--execute").exception is None
    )
    assert left_in(query) == ["onceflow.lock"]


def test_reset_without_a_checkpoint_says_what_that_leaves(counts: Counts, query: Query, tmp_path: Path) -> None:
    counts.write(query.commit(1))
    refused = run("reset", *counts.words, "--checkpoint", str(tmp_path / "missing"), "--execute")
    assert "missing does not exist here: nothing was removed" in str(refused.exception)
    assert counts.client.exists(counts.marker_key) == 1
    done = asked("reset", *counts.words, "--execute")[1]
    assert "the query refuses to go on with it" in done["kept"][1]
    assert counts.client.exists(counts.marker_key) == 0 and query.directory.exists()


@pytest.mark.remedy(Remedy.FORGET_RUN)
def test_reset_of_a_demo_names_the_reset_of_a_pipeline(
    redis_server: RedisProcess, query: Query, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pipeline").mkdir()
    refused = CliRunner().invoke(onceflow, ["reset", "--data", str(tmp_path / "pipeline"), "--yes"])
    assert "holds no demo (no demo.json in it)" in str(refused.exception)
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
    """A Kafka sink of one query, driven without Spark; its topic has the marker's name but for the beginning."""

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
    made = Output(bootstrap, query)
    yield made
    made.driver.close()


def forget_group(cluster: Cluster, name: str) -> None:
    Admin(cluster).delete_group(name)


def test_both_copies_of_a_marker_of_kafka_beside_a_checkpoint(output: Output, query: Query) -> None:
    output.write(2)
    query.commit(1)
    code, shown = asked("show", *output.words, "--checkpoint", str(query.directory))
    (found,) = shown["sinks"]
    assert (code, found["name"], found["query"], found["fits"]) == (0, "kafka", query.id, True)
    assert found["in_group"]["batch"] == found["in_record"]["batch"] == 2
    assert found["in_record"]["offsets"] == {"in": {"0": 20}}
    assert found["sentence"].startswith("batch 2 is written, Spark has not noted that")
    told = run("show", *output.words, "--query", query.id).stdout
    assert f"sink kafka   query {query.id}" in told
    assert f"output topics (partitions) {output.topic} (3)" in told
    everything = asked("show", *output.words)[1]["sinks"]
    assert query.id in [each["query"] for each in everything]


def test_one_copy_is_enough_and_none_is_told(bootstrap: str, output: Output, query: Query) -> None:
    output.write(1)
    query.commit(1)
    with Cluster(bootstrap) as cluster:
        forget_group(cluster, output.name)
    (found,) = asked("show", *output.words, "--checkpoint", str(query.directory))[1]["sinks"]
    assert (found["in_group"], found["in_record"]["batch"], found["fits"]) == (None, 1, True)
    other = ("--name", "another", "--checkpoint", str(query.directory))
    code, shown = asked("show", *output.words, *other)
    assert (code, shown["sinks"]) == (1, [])
    none_named = f"no Kafka sink named another of query {query.id} has a marker"
    assert none_named in run("show", *output.words, *other).stderr


def test_a_checkpoint_older_than_the_output_is_told_with_the_way_out(output: Output, query: Query) -> None:
    output.write(3)
    for number in (2, 3):
        (query.directory / "offsets" / str(number)).unlink()
    query.commit(1)
    code, shown = asked("show", *output.words, "--checkpoint", str(query.directory))
    (found,) = shown["sinks"]
    assert (code, found["fits"]) == (1, False)
    assert "is at batch 3 and the checkpoint is at batch 1" in found["sentence"]
    assert f"onceflow sink reset kafka {' '.join(output.words[1:3])} --name kafka" in found["sentence"]


def test_the_way_out_can_be_copied(bootstrap: str, output: Output, query: Query) -> None:
    output.write(3)
    query.commit(1)
    for number in (2, 3):
        (query.directory / "offsets" / str(number)).unlink()
    (found,) = asked("show", *output.words, "--checkpoint", str(query.directory))[1]["sinks"]
    command = re.search("'(onceflow sink reset kafka .*)' and write again", found["sentence"])
    assert command is not None
    with Cluster(bootstrap) as cluster:
        place = place_of(cluster, "kafka", MARKER_TOPIC, f"file://{query.directory}", query.id)
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
def test_a_checkpoint_elsewhere_is_named_by_its_query(checkpoint: str, where: str) -> None:
    said = kafka_reset("h:1", "kafka", checkpoint, query="q", marker_topic="m")
    assert said == f"onceflow sink reset kafka --bootstrap h:1 --name kafka --marker-topic m {where} --execute"


def test_keys_that_are_not_named_after_the_hash_are_named_in_the_command() -> None:
    keys = ["app::clicks", "{app::clicks}:top", "elsewhere"]
    said = redis_reset("redis://ada:secret@h:1", "app::clicks", "hdfs://h/c", keys)
    assert said == "onceflow sink reset redis --redis redis://h:1/0 --hash-key app::clicks --key elsewhere --execute"
    assert redis_reset("redis://h:1/1", "{a}", "/c", ["{a}:top"]).endswith("--hash-key '{a}' --checkpoint /c --execute")


def test_the_option_has_the_sinks_own_marker_topic() -> None:
    assert kafka_marker.MARKER_TOPIC == sink_options.MARKER_TOPIC


def test_copies_that_differ_are_told(bootstrap: str, output: Output, query: Query) -> None:
    output.write(1)
    with TransactionalProducer(bootstrap, "a stranger") as stranger:
        stranger.begin()
        text = json.dumps({**_record(bootstrap, output), "batch": 7})
        stranger.send(MARKER_TOPIC, text.encode(), key=output.name.encode(), partition=0)
        stranger.commit()
    code, shown = asked("show", *output.words, "--query", query.id)
    (found,) = shown["sinks"]
    assert (code, found["fits"]) == (1, False)
    assert "differ: the group's offset tells of batch 1" in found["sentence"]


def _record(bootstrap: str, output: Output) -> dict[str, Any]:
    records = [json.loads(value) for value in visible(bootstrap, MARKER_TOPIC, 1)[0] if value is not None]
    return next(each for each in reversed(records) if each["query"] == output.query.id)


def test_reset_of_kafka_forgets_both_copies_and_the_checkpoint_and_no_record(
    bootstrap: str, output: Output, query: Query
) -> None:
    output.write(2)
    query.commit(2)
    words = ("reset", *output.words, "--checkpoint", str(query.directory))
    before = visible(bootstrap, output.topic)
    dry = run(*words)
    assert "nothing was changed: add --execute" in dry.stderr
    assert f"would be forgotten: the marker of sink kafka, in group {output.name} and {MARKER_TOPIC}" in dry.stdout
    assert f"stays: what was written to {output.topic}: " in dry.stdout
    assert asked("show", *output.words, "--checkpoint", str(query.directory))[0] == 0
    done = asked(*words, "--execute")[1]
    assert (done["executed"], len(done["forgotten"])) == (True, 2)
    assert left_in(query) == ["onceflow.lock"]
    assert asked("show", *output.words, "--query", query.id) == (1, {"checkpoint": None, "sinks": []})
    assert visible(bootstrap, output.topic) == before
    again = run("reset", *output.words, "--query", query.id, "--execute")
    assert f"no Kafka sink of query {query.id} has a marker" in str(again.exception)


@pytest.mark.remedy(Remedy.NAME_SINK, Remedy.LIST_KAFKA_SINKS)
def test_reset_of_kafka_keeps_a_checkpoint_whose_sink_is_not_there(output: Output, query: Query) -> None:
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
    assert query.id in [found["query"] for found in asked("show", *output.words)[1]["sinks"]]
    named = run("reset", *output.words, "--name", "kafka", "--checkpoint", str(query.directory), "--execute")
    assert named.exception is None


def test_a_driver_left_over_from_before_a_reset_stops(output: Output, query: Query) -> None:
    output.write(2)
    assert run("reset", *output.words, "--query", query.id, "--execute").exception is None
    with pytest.raises(Exception, match="there is no marker"):
        output.driver.write(3, of=query.plan(3))


@pytest.mark.remedy(Remedy.STOP_DRIVER, Remedy.ABORT_DEAD)
def test_reset_of_kafka_is_refused_while_a_driver_runs_or_has_a_transaction_open(
    bootstrap: str, output: Output, query: Query
) -> None:
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
    assert "has a transaction open (Ongoing)" in refused
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
    ("words", "sentence"),
    [
        (("reset", "kafka"), "say of which query"),
        (("reset", "kafka", "--checkpoint", "s3a://bucket/x"), "is on no file system of this machine"),
        (("show", "kafka", "--marker-topic", "nothing"), "there is no topic nothing at"),
        (("show", "redis", "--checkpoint", "/nowhere"), "/nowhere does not exist here"),
        (("shwo",), "Did you mean 'show'?"),
        (("show", "kafak"), "Did you mean 'kafka'?"),
    ],
)
def test_what_cannot_be_meant(
    bootstrap: str, redis_server: RedisProcess, words: tuple[str, ...], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONCEFLOW_BOOTSTRAP", bootstrap)
    monkeypatch.setenv("ONCEFLOW_REDIS", redis_server.url)
    assert sentence in str(run(*words).exception)
