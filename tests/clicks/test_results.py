"""The read model, read in Python and with `onceflow clicks` and `onceflow dead`."""

import base64
import csv
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable

import pytest
import redis
from click.testing import CliRunner, Result

from onceflow.cli import onceflow
from onceflow.clicks import results
from onceflow.clicks.results import (
    DeadPointer,
    HistoryEntry,
    NoConsistentSnapshot,
    NothingCounted,
    RedisUnreachable,
    Results,
)
from onceflow.client.cluster import Cluster
from onceflow.client.lag import Lag
from onceflow.redis.address import RedisAddressInvalid
from onceflow.remedies import Remedy
from tests import remedies
from tests.clicks.counted import GOOD_AND_BAD, count, write
from tests.conftest import RedisProcess


@pytest.fixture
def hash_key(topic: str) -> str:
    return f"test::{topic}"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(onceflow, arguments)


def test_a_snapshot_has_everything(redis_server: RedisProcess, hash_key: str) -> None:
    count(redis_server.url, hash_key, "t", GOOD_AND_BAD)
    snapshot = results.snapshot(redis_server.url, hash_key)
    assert (snapshot.events, snapshot.clicks, snapshot.bad, snapshot.users) == (9, 11, 4, 3)
    assert snapshot.top == [("bob", 8), ("ada", 3), ("eve", 0)]
    assert snapshot.by_os == {"Android": 6, "iOS": 3, "unknown": 2}
    assert list(snapshot.bad_by_reason) == ["no-value", "not-json", "not-utf8", "uid-empty"]
    assert snapshot.history == [HistoryEntry(1, 1_700_000_000_000, 9, {0: 4, 1: 5})]
    assert snapshot.marker is not None
    assert (snapshot.batch, snapshot.marker.complete, snapshot.marker.duration_ms) == (1, True, 1000)
    assert snapshot.marker.offsets == {"t": {0: 4, 1: 5}}
    assert json.loads(json.dumps(snapshot.as_json()))["top"][0] == {"uid": "bob", "clicks": 8}


@pytest.mark.remedy(Remedy.NAME_WHAT_RUNS)
def test_before_the_first_batch(redis_server: RedisProcess, hash_key: str) -> None:
    with Results(redis_server.url, hash_key) as reading:
        snapshot = reading.snapshot()
        assert (snapshot.events, snapshot.users, snapshot.top, snapshot.marker, snapshot.batch) == (0, 0, [], None, -1)
        assert reading.clicks_of("ada") is None
        assert reading.dead_pointers() == []
        with pytest.raises(NothingCounted) as raised:
            reading.require_marker()
    remedies.find(Remedy.NAME_WHAT_RUNS, raised.value)
    count(redis_server.url, f"{hash_key}-other", "t", GOOD_AND_BAD)
    with Results(redis_server.url, f"{hash_key}-other") as reading:
        assert reading.require_marker().batch == 1


@pytest.mark.parametrize(
    ("key", "names"),
    [
        ("app::users::click", ["{app::users::click}:onceflow", "{app::users::click}:top"]),
        ("app:{users}:click", ["app:{users}:click:onceflow", "app:{users}:click:top"]),
    ],
)
def test_all_keys_share_the_hashs_slot(key: str, names: list[str]) -> None:
    keys = results.Keys(key)
    assert [keys.marker, keys.top] == names


def test_unusable_redis_is_one_line(new_redis: Callable[..., RedisProcess], hash_key: str) -> None:
    with pytest.raises(RedisUnreachable, match="start Redis, or use the address of a running one"):
        results.snapshot("redis://127.0.0.1:1/1", hash_key)
    with pytest.raises(RedisAddressInvalid, match="'localhost:6379' is not valid"):
        results.snapshot("localhost:6379", hash_key)
    server = new_redis()
    with redis.Redis.from_url(server.url) as client:
        client.set(results.Keys(hash_key).totals, "text")
    with pytest.raises(RedisUnreachable, match="WRONGTYPE"):
        results.snapshot(server.url, hash_key)


@pytest.mark.parametrize("fields", [{"batch": "one"}, {"batch": "1", "offsets": "[]"}, {"batch": "1", "since": "{"}])
def test_invalid_markers(fields: dict[str, str]) -> None:
    with pytest.raises(RedisUnreachable, match="is not one of onceflow's"):
        results.parse_marker(fields)


def test_lag_in_messages_and_seconds(bootstrap: str, topic: str, redis_server: RedisProcess, hash_key: str) -> None:
    write(bootstrap, topic, GOOD_AND_BAD, partitions=3)
    count(redis_server.url, hash_key, topic, GOOD_AND_BAD)
    with Cluster(bootstrap) as cluster, Results(redis_server.url, hash_key) as reading:
        marker = reading.require_marker()
        assert results.lag(cluster, marker) == Lag(0, 0.0)
        write(bootstrap, topic, {0: [b"late"], 2: [b"new", b"partition"]})
        lag = results.lag(cluster, marker)
        assert lag.messages == 3
        assert 0 <= lag.seconds < 60
        later = results.lag(cluster, marker, now_ms=4_000_000_000_000)
        assert later.seconds > 1_000_000


def test_clicks_for_people_and_programs(redis_server: RedisProcess, hash_key: str) -> None:
    count(redis_server.url, hash_key, "t", GOOD_AND_BAD)
    where = ["--redis", redis_server.url, "--hash-key", hash_key]
    printed = run("clicks", *where, "--top", "2").stdout
    assert printed.splitlines()[0] == "9 events · 11 clicks · 3 users · 4 bad · micro-batch 1"
    assert [line.split() for line in printed.splitlines()[-2:]] == [["bob", "8"], ["ada", "3"]]
    assert json.loads(run("clicks", *where, "--json").stdout)["clicks"] == 11
    one = run("clicks", "eve", *where)
    assert (one.stdout, one.exit_code) == ("0\n", 0)
    unknown = run("clicks", "mallory", *where)
    assert (unknown.stdout, unknown.exit_code) == ("", 1)
    assert unknown.stderr == f"onceflow: mallory has no counted event in {hash_key}\n"
    assert json.loads(run("clicks", "mallory", "--json", *where).stdout) == {"uid": "mallory", "clicks": None}


def test_clicks_now_include_the_log(bootstrap: str, topic: str, redis_server: RedisProcess, hash_key: str) -> None:
    write(bootstrap, topic, GOOD_AND_BAD)
    count(redis_server.url, hash_key, topic, GOOD_AND_BAD)
    write(bootstrap, topic, {0: [b'{"uid":"ada","click_count":9}', b'{"uid":"new","click_count":1}']})
    where = ["--redis", redis_server.url, "--hash-key", hash_key, "--bootstrap", bootstrap]
    printed = run("clicks", "--now", *where).stdout.splitlines()
    assert printed[0] == "11 events · 21 clicks · 4 users · 4 bad · now, 2 events not counted yet"
    assert [line.split() for line in printed[-4:]] == [["ada", "12"], ["bob", "8"], ["new", "1"], ["eve", "0"]]
    document = json.loads(run("clicks", "--now", "--json", *where).stdout)
    assert (document["clicks"], document["now"]["live"], document["now"]["not_counted"]) == (21, True, 2)
    assert run("clicks", "--now", "ada", *where).stdout == "12\n"
    assert run("clicks", "ada", *where).stdout == "3\n"
    assert json.loads(run("clicks", "--now", "bob", "--json", *where).stdout) == {
        "uid": "bob",
        "clicks": 8,
        "live": True,
    }


def test_clicks_now_without_a_broker(redis_server: RedisProcess, hash_key: str) -> None:
    count(redis_server.url, hash_key, "t", GOOD_AND_BAD)
    where = ["--redis", redis_server.url, "--hash-key", hash_key, "--bootstrap", "127.0.0.1:1"]
    done = run("clicks", "--now", *where)
    assert done.stderr.startswith("onceflow: only counted numbers: no Kafka broker responds at 127.0.0.1:1")
    assert done.stdout.splitlines()[0] == "9 events · 11 clicks · 3 users · 4 bad · micro-batch 1"
    now = json.loads(run("clicks", "--now", "--json", *where).stdout)["now"]
    assert (now["live"], now["as_of_ms"]) == (False, None)
    assert json.loads(run("clicks", "--now", "ada", "--json", *where).stdout)["live"] is False
    with pytest.raises(NothingCounted):
        raise run("clicks", "--now", *where[:2], "--hash-key", "none", *where[4:]).exception or AssertionError


@pytest.mark.parametrize("words", [["clicks"], ["clicks", "--json"], ["clicks", "--export", "csv"], ["dead"]])
def test_missing_counts_are_a_failure(redis_server: RedisProcess, words: list[str]) -> None:
    done = run(*words, "--redis", redis_server.url, "--hash-key", "none")
    assert (done.stdout, done.exit_code, type(done.exception)) == ("", 1, NothingCounted)


@pytest.mark.parametrize("words", [["dead"], ["dead", "--json"], ["dead", "--format", "text"]])
def test_no_bad_events_is_success(redis_server: RedisProcess, hash_key: str, words: list[str]) -> None:
    count(redis_server.url, hash_key, "t", {0: GOOD_AND_BAD[0][:1]})
    done = run(*words, "--redis", redis_server.url, "--hash-key", hash_key)
    assert (done.stdout, done.stderr, done.exit_code) == ("", "no bad events so far\n", 0)


def test_counts_of_another_job_are_refused(redis_server: RedisProcess, hash_key: str) -> None:
    with redis.Redis.from_url(redis_server.url) as client:
        client.hset(hash_key, mapping={"a": 1, "b": 2})
        client.hset(f"{{{hash_key}}}:onceflow", mapping={"plan": "visits", "batch": "3", "complete": "1"})
    printed = run("clicks", "--redis", redis_server.url, "--hash-key", hash_key).output
    assert printed.startswith(
        f"2 fields in {hash_key}, but the marker {{{hash_key}}}:onceflow was written by another job"
    )
    assert "(its plan is 'visits')" in printed
    dead = run("dead", "--redis", redis_server.url, "--hash-key", hash_key)
    assert "'dead' knows only the events that 'onceflow run' refuses" in str(dead.exception)


def test_clicks_into_a_closed_pipe(redis_server: RedisProcess, hash_key: str) -> None:
    count(redis_server.url, hash_key, "t", GOOD_AND_BAD)
    with redis.Redis.from_url(redis_server.url) as client:
        client.hset(hash_key, mapping={f"user {number:0100d}": 1 for number in range(5_000)})
    where = ["--redis", redis_server.url, "--hash-key", hash_key, "--export", "csv"]
    command = [sys.executable, "-m", "onceflow", "clicks", *where]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as exporting:
        assert exporting.stdout is not None and exporting.stderr is not None
        assert exporting.stdout.readline() == "uid,clicks\n"
        exporting.stdout.close()
        (note,) = exporting.stderr.read().splitlines()
        assert note.startswith("5,003 users as of micro-batch 1")
    assert exporting.returncode == 0
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "wb") as closed:
        totals = subprocess.run(command[:-2], stdout=closed, stderr=subprocess.PIPE, check=False)
    assert (totals.returncode, totals.stderr) == (0, b"")


def test_export_of_every_user(redis_server: RedisProcess, hash_key: str) -> None:
    """Export for offline statistics (mission A7)."""
    count(redis_server.url, hash_key, "t", GOOD_AND_BAD)
    where = ["--redis", redis_server.url, "--hash-key", hash_key]
    with redis.Redis.from_url(redis_server.url) as client:
        client.hset(hash_key, 'comma, "quote"\nand é', "5")
    as_csv = run("clicks", *where, "--export", "csv")
    expected = [("bob", 8), ('comma, "quote"\nand é', 5), ("ada", 3), ("eve", 0)]
    rows = list(csv.reader(io.StringIO(as_csv.stdout)))
    assert rows == [["uid", "clicks"], *([uid, str(clicks)] for uid, clicks in expected)]
    assert as_csv.stderr == "4 users as of micro-batch 1, offsets " + '{"t": {"0": 4, "1": 5}}\n'
    lines = run("clicks", *where, "--export", "jsonl").stdout.splitlines()
    assert [(row["uid"], row["clicks"]) for row in map(json.loads, lines)] == expected
    for more in (["ada"], ["--top", "10"], ["--json"]):
        assert run("clicks", *where, "--export", "csv", *more).exit_code == 2
    empty = run("clicks", "--redis", redis_server.url, "--hash-key", "none", "--export", "csv")
    assert (empty.stdout, type(empty.exception)) == ("", NothingCounted)


def test_a_file_is_of_one_micro_batch(
    redis_server: RedisProcess, hash_key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "SNAPSHOT_PAUSE_S", 0)
    count(redis_server.url, hash_key, "t", GOOD_AND_BAD, complete="0")
    with Results(redis_server.url, hash_key) as reading, redis.Redis.from_url(redis_server.url) as client:
        with pytest.raises(NoConsistentSnapshot, match=r"micro-batch 1 of .* is being written") as raised:
            reading.users()
        remedies.find(Remedy.TRY_AGAIN, raised.value)
        remedies.find(Remedy.START_STREAM, raised.value)
        looks = iter([(2, "0"), (3, "1"), (4, "1"), (4, "1"), (4, "1")])
        look = reading.require_marker

        def moving() -> results.MarkerView:
            batch, complete = next(looks)
            client.hset(reading.keys.marker, mapping={"batch": batch, "complete": complete})
            client.hset(hash_key, "ada", batch)
            return look()

        monkeypatch.setattr(reading, "require_marker", moving)
        marker, users = reading.users()
        assert (marker.batch, users["ada"], next(looks, None)) == (4, 4, None)
        looks = iter([(number, "1") for number in range(1_000)])
        with pytest.raises(NoConsistentSnapshot, match="no micro-batch was complete") as raised:
            reading.users()
        remedies.find(Remedy.LONGER_TRIGGER, raised.value)


def test_dead_reads_the_events_from_the_log(
    bootstrap: str, topic: str, redis_server: RedisProcess, hash_key: str
) -> None:
    write(bootstrap, topic, GOOD_AND_BAD)
    count(redis_server.url, hash_key, topic, GOOD_AND_BAD)
    where = ["--redis", redis_server.url, "--hash-key", hash_key, "--bootstrap", bootstrap]
    rows = [json.loads(line) for line in run("dead", *where, "--json").stdout.splitlines()]
    assert [(row["partition"], row["offset"], row["reason"]) for row in rows] == [
        (1, 4, "not-utf8"),
        (1, 2, "no-value"),
        (1, 1, "uid-empty"),
        (0, 2, "not-json"),
    ]
    assert (base64.b64decode(rows[0]["value"]), rows[0]["value_base64"]) == (b"\xff", True)
    assert (rows[1]["value"], rows[3]["value"]) == (None, "nonsense")
    printed = run("dead", *where, "--count", "4").stdout.splitlines()
    assert printed[3] == f'{topic}-0 offset 2  not-json  "nonsense"'
    assert len(run("dead", *where, "--count", "1").stdout.splitlines()) == 1


def test_dead_prints_records_as_they_are(bootstrap: str, topic: str, redis_server: RedisProcess, hash_key: str) -> None:
    """A value of 201 characters and more is not cut."""
    long = b"[" * 300
    events = {0: [b"\xff\x00", long]}
    write(bootstrap, topic, events, partitions=1)
    count(redis_server.url, hash_key, topic, events)
    with redis.Redis.from_url(redis_server.url) as client:
        client.lpush(results.Keys(hash_key).dead, "0:7:not-json")
    where = ["--redis", redis_server.url, "--hash-key", hash_key, "--bootstrap", bootstrap]
    as_text = run("dead", *where, "--format", "text")
    assert (as_text.stdout_bytes, as_text.exit_code) == (long + b"\n\xff\x00\n", 0)
    assert as_text.stderr == f"{topic}-0 offset 7  not-json  (the log no longer has it)\n"
    assert run("dead", *where, "--format", "%p/%o ").stdout == "0/1 0/0 "
    assert run("dead", *where, "--format", "text", "--json").exit_code == 2


def test_dead_of_deleted_records(bootstrap: str, topic: str, redis_server: RedisProcess, hash_key: str) -> None:
    write(bootstrap, topic, {0: [b"only"]}, partitions=1)
    count(redis_server.url, hash_key, topic, {0: [b"only"]})
    with redis.Redis.from_url(redis_server.url) as client:
        client.lpush(results.Keys(hash_key).dead, "0:7:not-json", "5:0:not-json")
    with Results(redis_server.url, hash_key) as reading:
        assert reading.dead_pointers(1) == [DeadPointer(5, 0, "not-json")]
    printed = run("dead", "--redis", redis_server.url, "--hash-key", hash_key, "--bootstrap", bootstrap).stdout
    assert [line.endswith("(the log no longer has it)") for line in printed.splitlines()] == [True, True, False]


def test_invalid_redis_address_is_wrong_usage() -> None:
    for command in (["clicks"], ["verify"], ["run"], ["dead"], ["sink", "reset", "redis"]):
        done = CliRunner().invoke(onceflow, [*command, "--redis", "http://127.0.0.1:6379/1"])
        assert (done.exit_code, "must start with one of redis://" in done.output) == (2, True), command


def test_command_list_shows_complete_help() -> None:
    words = " ".join(run("sink", "reset", "--help").output.split())
    assert "redis Delete a Redis sink's counts and marker, and its query's checkpoint, to count the log again." in words


def test_mistyped_command_suggests_the_nearest() -> None:
    done = CliRunner().invoke(onceflow, ["clikcs"])
    assert (done.exit_code, "No such command 'clikcs'. Did you mean 'clicks'?" in done.output) == (2, True)
    assert "Commands: broker, topic, " in CliRunner().invoke(onceflow, ["xyz"]).output
