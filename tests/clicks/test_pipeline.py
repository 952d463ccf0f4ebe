"""The pipeline in real Spark on seeded data that is as irregular as real logs."""

import contextlib
import csv
import json
import random
import re
import shlex
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from subprocess import PIPE

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from onceflow.cli import onceflow
from onceflow.cli.clicks.pipeline import checkpoint_of
from onceflow.clicks import results
from onceflow.clicks.measures import MeasureSettings
from onceflow.clicks.pipeline import ClickPipeline
from onceflow.clicks.rebuild import Rebuild
from onceflow.clicks.results import NothingCounted, Results
from onceflow.client.admin import Admin
from onceflow.client.cluster import Cluster
from onceflow.client.errors import UnknownTopic
from onceflow.remedies import Remedy
from onceflow.spark.offsets import OffsetRange
from onceflow.spark.redis_sink import IncompatibleData, MarkerRefused, MissingRanges, RedisSink, RepairFailed
from tests import remedies
from tests.clicks.counted import GOOD_AND_BAD, write
from tests.clicks.counting_run import CountingRun
from tests.conftest import RedisProcess

SEED = 2017
SYSTEMS = ("17", "2", "20", "12")
HOLDER = """
import sys
from pathlib import Path
from onceflow.spark.exactly_once.checkpoint_lock import without_driver
with without_driver(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def run(bootstrap: str, topic: str, redis_server: RedisProcess, tmp_path: Path) -> CountingRun:
    return CountingRun(bootstrap, topic, redis_server, tmp_path)


def write_sessions(path: Path, sessions: int) -> Counter[str]:
    """Write clicks grouped by session (unordered), with integer columns and duplicate rows; return clicks by user."""
    chance = random.Random(SEED)
    by_user: Counter[str] = Counter()
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["user_id", "session_start", "click_article_id", "click_timestamp", "click_os"])
        for _ in range(sessions):
            user, start = str(int(9_000 * chance.random() ** 2)), 1506825423000 + chance.randrange(10**9)
            for click in range(chance.randrange(1, 5)):
                row = [user, start, chance.randrange(10**6), start + 30_000 * click, chance.choice(SYSTEMS)]
                for _ in range(2 if chance.random() < 0.02 else 1):
                    writer.writerow(row)
                    by_user[user] += 1
    return by_user


def test_every_users_sum_is_exact_over_restarts(run: CountingRun, spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "clicks.csv"
    expected = write_sessions(path, sessions=12_000)
    assert len(expected) > 5_000  # More than one script call writes.
    mapping = ["--field", "uid=user_id", "--field", "event_time=click_timestamp", "--field", "os_type=click_os"]
    assert run.replay(path, *mapping, "--const", "click_count=1")["sent"] == expected.total()
    run.count(spark)
    assert run.by_user() == expected
    verdict = run.verify()
    assert (verdict["events"], verdict["clicks"], verdict["not_yet_counted"]) == (*[expected.total()] * 2, 0)

    write(run.bootstrap, run.topic, GOOD_AND_BAD)
    assert run.verify()["not_yet_counted"] == 9
    for _ in range(2):  # The second run has no new events.
        run.count(spark)
        verdict = run.verify()
        assert (verdict["events"], verdict["bad"]) == (expected.total() + 9, 4)
    assert {"ada": 3, "bob": 8, "eve": 0}.items() <= run.by_user().items()
    snapshot = results.snapshot(run.url, run.hash_key, top=3)
    assert snapshot.top == sorted(expected.items(), key=lambda entry: (-entry[1], entry[0]))[:3]
    assert snapshot.bad_by_reason == {"no-value": 1, "not-json": 1, "not-utf8": 1, "uid-empty": 1}

    with run.redis() as client:
        client.hincrby(run.hash_key, "bob", 1)
    assert [one["field"] for one in run.verify(code=1)["differences"]] == ["bob"]


def test_rows_of_good_and_bad_events(run: CountingRun, spark: SparkSession) -> None:
    write(run.bootstrap, run.topic, GOOD_AND_BAD)
    ranges = tuple(OffsetRange(run.topic, partition, 0, len(values)) for partition, values in GOOD_AND_BAD.items())
    rows = ClickPipeline(run.bootstrap, run.topic, "").rows_again(spark, MissingRanges(ranges, {}))
    assert dict(rows.dtypes) == {"target": "string", "field": "binary", "amount": "bigint"}
    sums: Counter[tuple[str, bytes]] = Counter()
    pointers = []
    for target, field, amount in rows.collect():
        if target == "dead":
            pointers.append(bytes(field))
            assert 0 < amount / 1_000_000 < time.time() + 60
        else:
            sums[target, bytes(field)] += amount
    assert sums == {
        ("count", b"ada"): 3,
        ("count", b"bob"): 8,
        ("count", b"eve"): 0,
        ("os", b"iOS"): 3,
        ("os", b"unknown"): 2,
        ("os", b"Android"): 6,
        ("totals", b"events"): 9,
        ("totals", b"clicks"): 11,
        ("totals", b"bad"): 4,
        ("bad", b"not-json"): 1,
        ("bad", b"uid-empty"): 1,
        ("bad", b"no-value"): 1,
        ("bad", b"not-utf8"): 1,
    }
    assert sorted(pointers) == [b"0:2:not-json", b"1:1:uid-empty", b"1:2:no-value", b"1:4:not-utf8"]


def test_only_bad_events(run: CountingRun, spark: SparkSession) -> None:
    write(run.bootstrap, run.topic, {0: [b"nonsense"] * 3})
    run.count(spark)
    with run.redis() as client:
        assert client.hgetall(run.keys.totals) == {b"events": b"3", b"clicks": b"0", b"bad": b"3"}
        assert client.lrange(run.keys.dead, 0, -1) == [b"0:%d:not-json" % offset for offset in (2, 1, 0)]
        assert not client.exists(run.hash_key)
    assert run.verify()["bad_by_reason"] == {"not-json": 3}


def assert_not_restarted(caplog: pytest.LogCaptureFixture) -> None:
    assert not [message for message in caplog.messages if "restart " in message]


def test_lost_counts_are_counted_again(run: CountingRun, spark: SparkSession, caplog: pytest.LogCaptureFixture) -> None:
    with run.redis() as client:
        write(run.bootstrap, run.topic, GOOD_AND_BAD)
        run.count(spark)
        past = {key: client.dump(key) for key in client.scan_iter(f"*{run.hash_key}*")}
        for number in range(2):
            write(run.bootstrap, run.topic, {number: [b'{"uid":"ada","click_count":5}', b"nonsense"]})
            run.count(spark)
        for key, value in past.items():
            client.restore(key, 0, value, replace=True)
        assert run.verify()["not_yet_counted"] == 4
        run.count(spark)
        verdict = run.verify()
        assert (verdict["events"], verdict["clicks"], verdict["bad"], verdict["not_yet_counted"]) == (13, 21, 6, 0)

        for key, value in past.items():
            client.restore(key, 0, value, replace=True)
        with Cluster(run.bootstrap) as cluster:
            Admin(cluster).delete_records(run.topic, {0: 5})
        with pytest.raises(RepairFailed, match=r"\[4, 5\) is missing from the log: the partition now starts at 5"):
            run.count(spark)
        assert run.by_user() == {"ada": 3, "bob": 8, "eve": 0}
    assert_not_restarted(caplog)


def test_rebuilt_counts_are_continued(run: CountingRun, spark: SparkSession) -> None:
    """A rebuild by real Spark, with measures, and the query continues from its own checkpoint."""
    settings = MeasureSettings(over_time=True, sessions=True)
    write(run.bootstrap, run.topic, GOOD_AND_BAD)
    run.count(spark, measures=settings)
    with run.redis() as client:
        client.hincrby(run.keys.totals, "clicks", 1)
    run.verify(code=1)
    rebuild = Rebuild(run.bootstrap, run.url, run.hash_key)
    outcome = rebuild.run_in(spark, rebuild.live())
    assert (outcome.before.clicks, outcome.after.clicks) == (12, 11)
    run.verify()
    write(run.bootstrap, run.topic, GOOD_AND_BAD)
    run.count(spark, measures=settings)
    verdict = run.verify()
    assert (verdict["events"], verdict["bad"]) == (18, 8)


def test_counts_events_by_any_field(run: CountingRun, spark: SparkSession) -> None:
    events = [b'{"page":"/a"}', b'{"page":"/b","n":"x"}', b'{"page":"/a","uid":3}', b'{"uid":"u"}']
    write(run.bootstrap, run.topic, {0: events})
    run.count(spark, key_field="page", value_field=None)
    assert run.by_user() == {"/a": 2, "/b": 1}
    assert run.verify()["bad_by_reason"] == {"no-uid": 1}


def stopped_as_it_failed(query: StreamingQuery, _: RedisSink, stop: threading.Event) -> None:
    """A Ctrl-C at the moment the query fails."""
    while query.isActive:
        time.sleep(0.02)
    stop.set()


@contextlib.contextmanager
def held_by_another_process(checkpoint: Path) -> Iterator[None]:
    """Hold the checkpoint's lock. This process would lose it where the message about the holder is read."""
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(checkpoint)], stdin=PIPE, stdout=PIPE, text=True)
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        yield
        # The end of its input ends it.


def test_stop_ends_wait_for_other_driver(run: CountingRun, spark: SparkSession, tmp_path: Path) -> None:
    write(run.bootstrap, run.topic, GOOD_AND_BAD)
    stop = threading.Event()
    threading.Timer(0.3, stop.set).start()
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    with held_by_another_process(checkpoint):
        ClickPipeline(run.bootstrap, run.topic, str(checkpoint), redis_url=run.url, hash_key=run.hash_key).stream(
            spark, stop
        )
    assert stop.is_set()
    assert run.by_user() == {}


def test_query_failure_is_one_line(
    run: CountingRun, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(UnknownTopic):
        run.count(spark)
    write(run.bootstrap, run.topic, GOOD_AND_BAD)
    run.count(spark)
    with run.redis() as client:
        client.hset(run.hash_key, "bob", "8.0")
    write(run.bootstrap, run.topic, {0: [b'{"uid":"ada","click_count":1}', b'{"uid":"bob","click_count":1}']})
    with pytest.raises(IncompatibleData, match=r"field 'bob'.*is '8\.0'"):
        run.count(spark)
    with monkeypatch.context() as patch:
        patch.setattr(ClickPipeline, "_watch", staticmethod(stopped_as_it_failed))
        with pytest.raises(IncompatibleData, match=r"field 'bob'.*is '8\.0'"):
            run.count(spark)
    with run.redis() as client:
        assert client.hget(run.hash_key, "ada") == b"3"
        client.hset(run.hash_key, "bob", "8")
    run.count(spark)
    assert run.verify()["clicks"] == 13
    assert_not_restarted(caplog)


@pytest.mark.remedy(Remedy.START_RUN)
def test_hash_key_without_counts(run: CountingRun, spark: SparkSession) -> None:
    write(run.bootstrap, run.topic, GOOD_AND_BAD)
    with Results(run.url, run.hash_key) as results:
        with pytest.raises(NothingCounted) as raised:
            results.require_marker()
        remedies.find(Remedy.START_RUN, raised.value)
        run.count(spark)
        assert results.require_marker().complete


def run_reset(message: str) -> None:
    """Run the reset command in a message."""
    remedy = re.search(r"'(onceflow sink reset redis .*?)' and count", message)
    assert remedy is not None, message
    done = CliRunner().invoke(onceflow, shlex.split(remedy[1])[1:])
    assert done.exit_code == 0, done.output


def test_remedy_for_lost_counts_works(run: CountingRun, spark: SparkSession, caplog: pytest.LogCaptureFixture) -> None:
    write(run.bootstrap, run.topic, GOOD_AND_BAD)
    run.count(spark)
    with run.redis() as client:
        client.delete(*client.keys(f"*{run.hash_key}*"))
    with pytest.raises(MarkerRefused, match="another hash key") as raised:
        run.count(spark)
    run_reset(str(raised.value))
    assert_not_restarted(caplog)
    run.count(spark)
    assert run.verify()["events"] == 9


def test_a_full_sum_names_offsets_and_remedy(run: CountingRun, spark: SparkSession) -> None:
    """112 events of 2^53, valid in a former version, have a sum of 19 digits."""
    write(run.bootstrap, run.topic, {0: [b'{"uid":"u","click_count":9007199254740992}'] * 112})
    run.count(spark)
    assert run.verify()["bad_by_reason"] == {"count-too-large": 112}
    with run.redis() as client:
        client.hset(run.keys.totals, "clicks", 2**53 * 112)
    write(run.bootstrap, run.topic, {0: [b'{"uid":"u","click_count":6}']})
    with pytest.raises(IncompatibleData, match=r"'clicks' of .* has reached 1008806316530991104") as raised:
        run.count(spark)
    assert f"{run.topic}-0 offsets 112 to 113" in str(raised.value)
    run_reset(str(raised.value))
    run.count(spark)
    assert (run.verify()["events"], run.verify()["clicks"]) == (113, 6)


def test_plan_names_the_counted_fields() -> None:
    plan = ClickPipeline("b:1", "t", "c", key_field="page", value_field=None).plan.text
    assert json.loads(plan) == {
        "counts": "clicks",
        "hash_key": "app::users::click",
        "key_field": "page",
        "value_field": None,
    }


def test_default_checkpoint_per_topic_and_key() -> None:
    keys = ["app::users::click", "app/users/click", "", "ü" * 300]
    paths = [checkpoint_of("user_events", key) for key in keys]
    assert paths[0] == Path(".onceflow/checkpoints/user_events.app-users-click.651a8a8b")
    assert len({*paths, checkpoint_of("visits", keys[0])}) == 5
    assert all(path.parent == paths[0].parent and len(path.name) < 100 for path in paths)
