"""The remedies in messages of the Redis sink, carried out: each message stops the query, its remedy restarts it."""

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from click.testing import CliRunner

from onceflow.cli import onceflow
from onceflow.remedies import Remedy
from onceflow.spark.redis import chunks as redis_chunks
from onceflow.spark.redis import marker as redis_marker
from onceflow.spark.redis import rows as redis_rows
from onceflow.spark.redis import settings as redis_settings
from onceflow.spark.redis import target as redis_target
from onceflow.spark.redis.target import RedisTarget
from onceflow.spark.redis_sink import Append, IncompatibleData, Increment, MarkerRefused, RedisSink, UnsuitableRedis
from tests import remedies
from tests.conftest import RedisProcess
from tests.spark.exactly_once.test_checkpoint import SparkFiles
from tests.spark.redis_servers import wait_until
from tests.spark.test_redis_sink import Sinks, added, assert_counted, files, redis_client, sinks, small_chunks

__all__ = ["files", "redis_client", "sinks", "small_chunks"]


def reset(words: list[str]) -> None:
    """Run the command `onceflow sink reset` of a message."""
    done = CliRunner().invoke(onceflow, words[1:])
    assert done.exit_code == 0, done.output


def new_checkpoint(sinks: Sinks) -> SparkFiles:
    """Return the checkpoint of the next start after a reset."""
    sinks.files = SparkFiles(sinks.files.directory)
    sinks.files.plan(0, {"clicks": {"0": 0}})
    return sinks.files


def sink_with(sinks: Sinks, **changes: Any) -> RedisSink:
    """Start the same query with some options changed."""
    sinks.close()
    options: dict[str, Any] = {
        "hash_key": "counts",
        "increments": [Increment("count", "counts", "{counts}:top"), Increment("os", "{counts}:os")],
        "appends": [Append("dead", "{counts}:dead", 3)],
        "checkpoint": str(sinks.files.directory),
        "plan": "clicks",
        "plan_version": 1,
    }
    sinks.made.append(RedisSink(sinks.url, **options | changes))
    return sinks.made[-1]


def elsewhere(sinks: Sinks, directory: Path) -> RedisSink:
    """Return a sink with another hash key and with its checkpoint in `directory`."""
    sinks.files = SparkFiles(directory)
    sinks.files.plan(0, {"clicks": {"0": 0}})
    increments = [Increment("count", "more", "{more}:top"), Increment("os", "{more}:os")]
    return sink_with(sinks, hash_key="more", increments=increments, appends=[Append("dead", "{more}:dead", 3)])


def check_both(sinks: Sinks, redis_client: Any, own: SparkFiles, other: Path) -> None:
    """Run the batches into another target with its own checkpoint, and continue the sink with its checkpoint."""
    sinks.run(elsewhere(sinks, other), 0, 1)
    assert redis_client.hgetall("more") == redis_client.hgetall("counts")
    sinks.files = own
    sinks.run(sinks.start(), 2)
    assert_counted(redis_client, 3)


@pytest.mark.remedy(Remedy.USE_ITS_CHECKPOINT, Remedy.WRITE_ELSEWHERE)
@pytest.mark.parametrize("is_used", [False, True])
def test_counts_of_another_query(sinks: Sinks, redis_client: Any, tmp_path: Path, is_used: bool) -> None:
    """The checkpoint is new, or has counted elsewhere."""
    sinks.run(sinks.start(), 0, 1)
    own = sinks.files
    sinks.files = SparkFiles(tmp_path / "other")
    metadata = sinks.files.directory / "metadata"
    if is_used:
        metadata.write_text(metadata.read_text().replace("query-1", "query-2"))
        sinks.files.plan(0, {"clicks": {"0": 0}})
    else:
        metadata.unlink()
    with pytest.raises(MarkerRefused) as raised:
        sinks.start().open(sinks.spark)
    remedies.find(Remedy.WRITE_ELSEWHERE, raised.value)
    assert remedies.find(Remedy.USE_ITS_CHECKPOINT, raised.value) == {"data": "counts"}
    check_both(sinks, redis_client, own, tmp_path / "third")


@pytest.mark.remedy(Remedy.CHECKPOINT_PER_TARGET)
def test_checkpoint_with_another_target(sinks: Sinks, redis_client: Any, tmp_path: Path) -> None:
    sinks.run(sinks.start(), 0, 1)
    increments = [Increment("count", "more", "{more}:top")]
    with pytest.raises(MarkerRefused) as raised:
        sink_with(sinks, hash_key="more", increments=increments, appends=[]).open(sinks.spark)
    remedies.find(Remedy.CHECKPOINT_PER_TARGET, raised.value)
    check_both(sinks, redis_client, sinks.files, tmp_path / "own")


@pytest.mark.remedy(Remedy.FORMER_OPTIONS)
def test_changed_plan(sinks: Sinks, redis_client: Any) -> None:
    sinks.run(sinks.start(), 0, 1)
    with pytest.raises(MarkerRefused, match="is of plan 'clicks' and this job is 'visits'") as raised:
        sink_with(sinks, plan="visits").open(sinks.spark)
    remedies.find(Remedy.FORMER_OPTIONS, raised.value)
    sinks.run(sinks.start(), 2)
    assert_counted(redis_client, 3)


@pytest.mark.remedy(Remedy.FORMER_VERSION)
@pytest.mark.usefixtures("small_chunks")
def test_version_changed_within_a_batch(sinks: Sinks, redis_client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sinks.run(sinks.start(), 0)
    write = redis_chunks.write_chunks

    def two_chunks(sums: Any, writer: Any, **options: Any) -> None:
        write(sums, writer, chunks=options["chunks"], missing=[0, 1])
        raise InterruptedError

    with monkeypatch.context() as killed:
        killed.setattr(redis_chunks, "write_chunks", two_chunks)
        with pytest.raises(InterruptedError):
            sinks.batch(sinks.start(), 1)
    with pytest.raises(MarkerRefused, match="written by version 1") as raised:
        sinks.batch(sinks.start(plan_version=2), 1)
    remedies.find(Remedy.FORMER_VERSION, raised.value)
    sinks.run(sinks.start(), 1)
    sinks.run(sinks.start(plan_version=2), 2)
    assert_counted(redis_client, 3)


@pytest.mark.remedy(Remedy.WRITER_VERSION)
def test_marker_of_a_later_version(sinks: Sinks, redis_client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The patched version, which reads the format, stands for the version that wrote it."""
    sinks.run(sinks.start(), 0, 1)
    redis_client.hset("{counts}:onceflow", "format", "99")
    with pytest.raises(redis_marker.MarkerUnreadable) as raised:
        sinks.start().open(sinks.spark)
    remedies.find(Remedy.WRITER_VERSION, raised.value)
    monkeypatch.setattr(redis_marker, "FORMATS_READ", (*redis_marker.FORMATS_READ, "99"))
    sinks.run(sinks.start(), 2)
    assert_counted(redis_client, 3)


@pytest.fixture
def own_redis(sinks: Sinks, tmp_path: Path) -> Iterator[RedisProcess]:
    """Start a server for this test's sinks."""
    server = RedisProcess(tmp_path / "server").start()
    sinks.url = server.url
    yield server
    sinks.close()
    server.stop()


@pytest.mark.remedy(Remedy.RESTORE_TARGET)
def test_restored_redis(sinks: Sinks, own_redis: RedisProcess, tmp_path: Path) -> None:
    def keep(name: str) -> None:
        own_redis.stop()
        shutil.copytree(own_redis.directory, tmp_path / name)
        own_redis.start()

    def put_back(name: str) -> None:
        own_redis.stop()
        shutil.rmtree(own_redis.directory)
        shutil.copytree(tmp_path / name, own_redis.directory)
        own_redis.start()

    sinks.run(sinks.start(), 0, 1)
    keep("older")
    sinks.run(sinks.start(), 2)
    keep("newest")
    put_back("older")
    with pytest.raises(MarkerRefused, match="Redis lost batches") as raised:
        sinks.start().open(sinks.spark)
    assert remedies.find(Remedy.RESTORE_TARGET, raised.value) == {"target": "Redis"}
    put_back("newest")
    sinks.run(sinks.start(), 3)
    with redis.Redis.from_url(own_redis.url) as client:
        assert_counted(client, 4)


@pytest.mark.remedy(Remedy.DELETE_COUNTS, Remedy.OTHER_HASH_KEY)
def test_counts_that_appear_before_batch_0(
    sinks: Sinks, redis_client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare = RedisTarget.prepare

    def add_from_outside(target: RedisTarget, *arguments: Any) -> None:
        prepare(target, *arguments)
        redis_client.hset("counts", "user 1", 7)

    with monkeypatch.context() as added_to:
        added_to.setattr(RedisTarget, "prepare", add_from_outside)
        with pytest.raises(MarkerRefused, match="exists before the first batch") as raised:
            sinks.batch(sinks.start(), 0)
    sinks.close()
    remedies.find(Remedy.OTHER_HASH_KEY, raised.value)
    own = sinks.files
    sinks.run(elsewhere(sinks, tmp_path / "other"), 0, 1)
    assert redis_client.hget("more", "user 1") == b"2"
    sinks.close()
    sinks.files = own
    reset(remedies.command(Remedy.DELETE_COUNTS, raised.value, "reset"))
    new_checkpoint(sinks)
    sinks.run(sinks.start(), 0, 1)
    assert_counted(redis_client, 2)


@pytest.mark.remedy(Remedy.CORRECT_FIELD)
def test_non_integer_field(sinks: Sinks, redis_client: Any) -> None:
    sinks.run(sinks.start(), 0, 1)
    right = redis_client.hget("counts", "user 7")
    redis_client.hset("counts", "user 7", "seven")
    with pytest.raises(IncompatibleData) as raised:
        sinks.batch(sinks.start(), 2)
    remedies.find(Remedy.CORRECT_FIELD, raised.value)
    redis_client.hset("counts", "user 7", right)
    sinks.run(sinks.start(), 2)
    assert_counted(redis_client, 3)


@pytest.mark.remedy(Remedy.LEAVE_OUT_AMOUNTS, Remedy.COUNT_AGAIN)
def test_sum_too_large(sinks: Sinks, redis_client: Any) -> None:
    large = ("count", b"user 1", 9 * 10**17)
    sink = sinks.start()
    sinks.run(sink, 0)
    for number in (1, 2):
        sinks.batch(sink, number, [*added(number), large])
        sinks.files.commit(number)
    with pytest.raises(IncompatibleData, match="has reached") as raised:
        sinks.batch(sink, 3)
    sinks.close()
    remedies.find(Remedy.LEAVE_OUT_AMOUNTS, raised.value)
    reset(remedies.command(Remedy.COUNT_AGAIN, raised.value, "reset"))
    new_checkpoint(sinks)
    sinks.run(sinks.start(), 0, 1, 2, 3)
    assert_counted(redis_client, 4)


@pytest.mark.remedy(Remedy.REFUSE_AMOUNTS)
@pytest.mark.parametrize(
    ("in_chunks", "too_much"),
    [
        (False, [("count", b"user 1", 10**18)]),
        (True, [("count", b"user 1", 10**18)]),
        (True, [("count", b"user 1", 2**63 - 1)] * 2),
    ],
    ids=["19 digits", "19 digits in a chunk", "65 bits"],
)
def test_amount_too_large(
    sinks: Sinks, redis_client: Any, monkeypatch: pytest.MonkeyPatch, in_chunks: bool, too_much: Any
) -> None:
    if in_chunks:
        monkeypatch.setattr(redis_rows, "WHOLE_ROWS_MAX", 0)
        monkeypatch.setattr(redis_chunks, "ROWS_PER_CHUNK", 11)
    sinks.run(sinks.start(), 0)
    with pytest.raises(IncompatibleData) as raised:
        sinks.batch(sinks.start(), 1, [*added(1), *too_much])
    remedies.find(Remedy.REFUSE_AMOUNTS, raised.value)
    sinks.run(sinks.start(), 1, 2)
    assert_counted(redis_client, 3)


@pytest.mark.remedy(Remedy.SHORTER_FIELDS)
@pytest.mark.usefixtures("spark")
def test_field_too_long(sinks: Sinks, redis_client: Any) -> None:
    sinks.run(sinks.start(), 0)
    with pytest.raises(IncompatibleData) as raised:
        sinks.batch(sinks.start(), 1, [*added(1), ("count", b"x" * (redis_rows.FIELD_BYTES_MAX + 1), 1)])
    remedies.find(Remedy.SHORTER_FIELDS, raised.value)
    sinks.run(sinks.start(), 1, 2)
    assert_counted(redis_client, 3)


@pytest.mark.remedy(Remedy.FEWER_ENTRIES)
def test_entries_too_long(sinks: Sinks, redis_client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer entries fit, and so do shorter ones."""
    monkeypatch.setattr(redis_chunks, "CHUNK_BYTES_MAX", 2500)
    sinks.run(sinks.start(), 0)
    long = [("dead", b"%d" % number * 1000, number) for number in range(3)]
    with pytest.raises(IncompatibleData) as raised:
        sinks.batch(sinks.start(), 1, long)
    remedies.find(Remedy.FEWER_ENTRIES, raised.value)
    sinks.batch(sink_with(sinks, appends=[Append("dead", "{counts}:dead", 2)]), 1, long)
    assert redis_client.lrange("{counts}:dead", 0, -1) == [b"2" * 1000, b"1" * 1000]
    sinks.files.commit(1)
    sinks.run(sinks.start(), 2)


@pytest.mark.remedy(Remedy.REDIS_SYNC, Remedy.START_AGAIN)
def test_slow_sync(sinks: Sinks, own_redis: RedisProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """Redis, as configured, does not sync while it rewrites its file; INFO shows the rewrite."""
    sinks.run(sinks.start(), 0, 1)
    client: Any = redis.Redis.from_url(own_redis.url)
    client.config_set("no-appendfsync-on-rewrite", "yes")
    client.config_set("rdb-key-save-delay", 500_000)
    sink = sinks.start()
    sink.open(sinks.spark)
    client.bgrewriteaof()
    (rewriting,) = Path(f"/proc/{own_redis.pid}/task/{own_redis.pid}/children").read_text().split()
    os.kill(int(rewriting), signal.SIGSTOP)  # The rewrite cannot end before the batch.
    with monkeypatch.context() as hurried:
        hurried.setattr(redis_target, "SYNC_WAIT_MS", 50)
        with pytest.raises(UnsuitableRedis, match="did not sync batch 2") as raised:
            sinks.batch(sink, 2)
    remedies.find(Remedy.REDIS_SYNC, raised.value)
    assert client.info("persistence")["aof_rewrite_in_progress"] == 1
    os.kill(int(rewriting), signal.SIGCONT)
    wait_until(lambda: not client.info("persistence")["aof_rewrite_in_progress"], "a rewritten file")
    remedies.find(Remedy.START_AGAIN, raised.value)
    sinks.run(sinks.start(), 2)
    assert_counted(client, 3)
    client.close()


@pytest.mark.remedy(Remedy.REWRITE_AOF, Remedy.NEWER_VALKEY)
def test_server_that_keeps_torn_scripts(
    sinks: Sinks, redis_client: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The patched version number makes Valkey an older one at first."""
    version = redis_settings._version
    with monkeypatch.context() as older:
        older.setattr(redis_settings, "_version", lambda text: min(version(text), (9, 1, 1)))
        sinks.start().open(sinks.spark)
        message = caplog.text
        remedies.find(Remedy.REWRITE_AOF, message)
        caplog.clear()
        redis_client.bgrewriteaof()
        redis_client.config_set("aof-load-truncated", "no")
        try:
            sinks.start().open(sinks.spark)
            assert "torn" not in caplog.text and "tears" not in caplog.text
        finally:
            redis_client.config_set("aof-load-truncated", "yes")
    wanted = remedies.find(Remedy.NEWER_VALKEY, message)["version"]
    assert version(redis_client.info("server")["valkey_version"]) >= version(wanted)
    sinks.start().open(sinks.spark)
    assert "tears" not in caplog.text


@pytest.mark.remedy(Remedy.DELETE_KEY, Remedy.RENAME_KEY, Remedy.COUNT_AGAIN)
@pytest.mark.parametrize("remedy", ["delete", "rename", "count again"])
def test_key_of_another_type(sinks: Sinks, redis_client: Any, remedy: str) -> None:
    """Its counts are counted again, by `rebuild` or from the start of the log."""
    sinks.run(sinks.start(), 0, 1)
    redis_client.delete("{counts}:os")
    redis_client.set("{counts}:os", "text")
    with pytest.raises(IncompatibleData, match="of type string") as raised:
        sinks.batch(sinks.start(), 2)
    sinks.close()
    remedies.find(Remedy.RENAME_KEY, raised.value)
    unlink = remedies.command(Remedy.DELETE_KEY, raised.value, "command")
    words = remedies.command(Remedy.COUNT_AGAIN, raised.value, "reset")
    if remedy == "count again":
        reset(words)
        new_checkpoint(sinks)
        sinks.run(sinks.start(), 0, 1, 2)
        assert_counted(redis_client, 3)
        return
    if remedy == "delete":
        assert redis_client.execute_command(*unlink) == 1
    else:
        redis_client.rename("{counts}:os", "elsewhere")
    sinks.run(sinks.start(rebuild=sinks.rebuild), 2)
    assert_counted(redis_client, 3, repaired=True)


@pytest.mark.remedy(Remedy.DELETE_KEY)
def test_history_of_another_type(sinks: Sinks, redis_client: Any) -> None:
    """The history is not a count, so nothing is counted again."""
    sinks.run(sinks.start(), 0, 1)
    redis_client.delete("{counts}:history")
    redis_client.set("{counts}:history", "text")
    with pytest.raises(IncompatibleData) as raised:
        sinks.batch(sinks.start(), 2)
    assert "count the log again" not in str(raised.value)
    assert redis_client.execute_command(*remedies.command(Remedy.DELETE_KEY, raised.value, "command")) == 1
    sinks.run(sinks.start(), 2)
    assert redis_client.hget("counts", "user 1") == b"6"
