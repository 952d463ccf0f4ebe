"""Data loss in the log: it stops the run, and counting continues after the remedies of its message."""

import contextlib
import re
import shlex
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from onceflow.cli import onceflow
from onceflow.clicks import results
from onceflow.clicks.job import StreamingJob
from onceflow.clicks.pipeline import ClickPipeline
from onceflow.client.admin import Admin
from onceflow.client.cluster import Cluster
from onceflow.errors import OnceflowError
from onceflow.remedies import Remedy
from onceflow.spark.offsets import LossKind
from onceflow.testing import Broker
from tests import remedies
from tests.clicks.counted import write
from tests.clicks.counting_run import CountingRun
from tests.conftest import RedisProcess

ACCEPT = "onceflow run --accept-data-loss"


@pytest.fixture
def run(bootstrap: str, topic: str, redis_server: RedisProcess, tmp_path: Any) -> CountingRun:
    return CountingRun(bootstrap, topic, redis_server, tmp_path)


def events(*uids: str) -> dict[int, list[bytes]]:
    return {0: [b'{"uid":"%s","click_count":1}' % uid.encode() for uid in uids]}


def trim(run: CountingRun, before: int) -> None:
    with Cluster(run.bootstrap) as cluster:
        Admin(cluster).delete_records(run.topic, {0: before})


def recreate(run: CountingRun, partitions: int = 2) -> None:
    with Cluster(run.bootstrap) as cluster:
        cluster.delete_topic(run.topic)
        cluster.create_topic(run.topic, partitions)


def refusal(run: CountingRun, spark: SparkSession, **options: Any) -> str:
    with pytest.raises(OnceflowError) as raised:
        run.count(spark, **options)
    return str(raised.value)


def follow(run: CountingRun, spark: SparkSession, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Call the command that `message` names, in the test's Spark session."""
    remedies.find(Remedy.ACCEPT_DATA_LOSS, message)
    (command,) = re.findall(r"'(onceflow run [^']*)'", message)
    monkeypatch.setattr(StreamingJob, "session", lambda _job: contextlib.nullcontext(spark))
    arguments = shlex.split(command)[1:]
    where = ["--bootstrap", run.bootstrap, "--topic", run.topic, "--redis", run.url, "--hash-key", run.hash_key]
    place = ["--checkpoint", str(run.directory / "checkpoint"), "--trigger", "available-now"]
    done = CliRunner().invoke(onceflow, [*arguments, *where, *place], standalone_mode=False)
    assert done.exception is None, done.output


def losses(run: CountingRun, code: int = 0) -> list[tuple[Any, ...]]:
    losses = run.verify(code)["accepted_losses"]
    return [(loss["kind"], loss["partition"], loss["begin"], loss["end"], loss["option"]) for loss in losses]


def inconclusive(run: CountingRun) -> str:
    where = ["--bootstrap", run.bootstrap, "--topic", run.topic, "--redis", run.url, "--hash-key", run.hash_key]
    done = CliRunner().invoke(onceflow, ["verify", *where], standalone_mode=False)
    assert done.return_value == 2
    return done.stderr


def test_trimmed_before_the_first_batch(run: CountingRun, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest can be recounted, so verify compares it and reports the loss."""
    with Cluster(run.bootstrap) as cluster:
        cluster.create_topic(run.topic, 1)
    run.count(spark)
    write(run.bootstrap, run.topic, events("old", "old"))
    trim(run, -1)
    write(run.bootstrap, run.topic, events("new"))
    message = refusal(run, spark)
    assert "[0, 2) is missing from the log: the partition now starts at 2" in message
    assert "it was deleted before the query read it" in message
    follow(run, spark, message, monkeypatch)
    assert run.by_user() == {"new": 1}
    assert losses(run) == [("trimmed", 0, 0, 2, "accept_data_loss")]
    write(run.bootstrap, run.topic, events("new"))
    run.count(spark)  # The option applies to one run.
    assert run.by_user() == {"new": 2}
    assert len(losses(run)) == 1


@pytest.mark.remedy(Remedy.ACCEPT_DATA_LOSS)
def test_trimmed_while_stopped(run: CountingRun, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    write(run.bootstrap, run.topic, events("a"))
    run.count(spark)
    write(run.bootstrap, run.topic, events("lost", "lost", "b"))
    trim(run, 3)
    message = refusal(run, spark)
    assert f"{run.topic}-0 [1, 3) is missing from the log: the partition now starts at 3" in message
    follow(run, spark, message, monkeypatch)
    assert run.by_user() == {"a": 1, "b": 1}
    # The events counted before are no longer in the log.
    reason = inconclusive(run)
    assert f"{run.topic}-0 [1, 3) trimmed, accepted in batch" in reason


@pytest.mark.remedy(Remedy.ACCEPT_DATA_LOSS)
def test_recreated_topic_beside_old_counts(
    run: CountingRun, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(run.bootstrap, run.topic, events("a", "a"))
    run.count(spark)
    recreate(run)
    write(run.bootstrap, run.topic, events("a", "b", "c"))
    message = refusal(run, spark)
    assert "it was deleted and created again" in message and "deleted before" not in message
    follow(run, spark, message, monkeypatch)
    assert run.by_user() == {"a": 3, "b": 1, "c": 1}
    assert f"{run.topic}-0 [2, …) recreated, accepted in batch" in inconclusive(run)
    write(run.bootstrap, run.topic, events("b"))
    run.count(spark)
    assert run.by_user() == {"a": 3, "b": 2, "c": 1}


@pytest.mark.remedy(Remedy.BEGIN_NEW_CHECKPOINT)
def test_recreated_topic_alone(run: CountingRun, spark: SparkSession) -> None:
    """The other remedy: the counts of the old topic are deleted."""
    write(run.bootstrap, run.topic, events("a", "a"))
    run.count(spark)
    recreate(run)
    write(run.bootstrap, run.topic, events("b"))
    message = refusal(run, spark)
    remedies.find(Remedy.BEGIN_NEW_CHECKPOINT, message)
    (command,) = re.findall(r"'(onceflow sink reset … --execute)'", message)
    where = ["--redis", run.url, "--hash-key", run.hash_key, "--checkpoint", str(run.directory / "checkpoint")]
    done = CliRunner().invoke(onceflow, shlex.split(command.replace("…", shlex.join(["redis", *where])))[1:])
    assert done.exception is None, done.output
    run.count(spark)
    assert run.by_user() == {"b": 1}
    assert losses(run) == []


def test_planned_batch_of_a_recreated_topic(
    run: CountingRun, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch was planned with the old topic, and none of it was read."""
    write(run.bootstrap, run.topic, events("a"))
    run.count(spark)
    write(run.bootstrap, run.topic, events("lost"))
    with run.redis() as client:
        client.hset(run.hash_key, "lost", "x")  # Stops the batch after its planning.
        with pytest.raises(Exception, match="field 'lost'"):
            run.count(spark)
        client.hdel(run.hash_key, "lost")
    recreate(run)
    write(run.bootstrap, run.topic, events("b"))
    follow(run, spark, refusal(run, spark), monkeypatch)
    assert run.by_user() == {"a": 1, "b": 1}
    reason = inconclusive(run)
    assert f"{run.topic}-0 [1, 2) recreated" in reason and f"{run.topic}-0 [2, …) recreated" in reason


def missing(run: CountingRun) -> None:
    with Cluster(run.bootstrap) as cluster:
        cluster.delete_topic(run.topic)


def truncated(run: CountingRun) -> None:
    """Set checkpoint and marker as after a loss of the log's last five records."""
    folder = run.directory / "checkpoint" / "offsets"
    for path in folder.iterdir():
        if path.name.isdecimal():
            (folder / f".{path.name}.crc").unlink(missing_ok=True)
            path.write_text(path.read_text().replace('"0":1', '"0":6').replace('"0": 1', '"0": 6'))
    with run.redis() as client:
        marker = results.Keys(run.hash_key).marker
        offsets: Any = client.hget(marker, "offsets")
        client.hset(marker, "offsets", offsets.decode().replace('"0":1', '"0":6'))


LOSSES: dict[LossKind, Callable[[CountingRun], None]] = {LossKind.TRUNCATED: truncated, LossKind.MISSING: missing}
TESTED_ABOVE = {LossKind.TRIMMED, LossKind.RECREATED}


@pytest.mark.remedy(Remedy.ACCEPT_DATA_LOSS)
@pytest.mark.parametrize("kind", [kind for kind in LossKind if kind not in TESTED_ABOVE])
def test_remedy_of_each_loss(
    run: CountingRun, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, kind: LossKind
) -> None:
    """Each kind of loss has a remedy that works."""
    write(run.bootstrap, run.topic, events("a"))
    run.count(spark)
    LOSSES[kind](run)
    with monkeypatch.context() as unchecked:
        unchecked.setattr(ClickPipeline, "check", lambda self: None)  # It would notice the missing topic earlier.
        message = refusal(run, spark)
    assert "is missing from the log" in message
    if kind is LossKind.MISSING:
        assert "or create the topic and accept" in message
        with Cluster(run.bootstrap) as cluster:
            cluster.create_topic(run.topic, 1)
    write(run.bootstrap, run.topic, events("b"))
    follow(run, spark, message, monkeypatch)
    # The truncation offset is unknown, so records written since then are not counted either.
    left = {"a": 1} if kind is LossKind.TRUNCATED else {"a": 1, "b": 1}
    assert run.by_user() == left
    assert "accepted in batch" in inconclusive(run)
    write(run.bootstrap, run.topic, events("c"))
    run.count(spark)
    assert run.by_user() == {**left, "c": 1}


@pytest.mark.remedy(Remedy.NAME_OTHER_BROKERS, Remedy.CREATE_TOPIC, Remedy.ACCEPT_DATA_LOSS)
@pytest.mark.parametrize("remedy", ["brokers", "topic"])
def test_brokers_that_lack_the_topic(
    run: CountingRun, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, tmp_path: Any, remedy: str
) -> None:
    """Remedies: name the right brokers, or create the topic."""
    write(run.bootstrap, run.topic, events("a"))
    run.count(spark)
    right = run.bootstrap
    with Broker(tmp_path / "broker") as other:
        run.bootstrap = other.bootstrap_servers
        with monkeypatch.context() as unchecked:
            unchecked.setattr(ClickPipeline, "check", lambda self: None)
            message = refusal(run, spark)
        remedies.find(Remedy.NAME_OTHER_BROKERS, message)
        remedies.find(Remedy.CREATE_TOPIC, message)
        remedies.find(Remedy.ACCEPT_DATA_LOSS, message)
        if remedy == "topic":
            with Cluster(run.bootstrap) as cluster:
                cluster.create_topic(run.topic, 1)
            write(run.bootstrap, run.topic, events("b"))
            follow(run, spark, message, monkeypatch)
            assert run.by_user() == {"a": 1, "b": 1}
            return
    run.bootstrap = right
    write(run.bootstrap, run.topic, events("b"))
    run.count(spark)
    assert run.by_user() == {"a": 1, "b": 1}
