"""verify against a real broker and Redis: equal, different in every way, and inconclusive."""

import copy
import itertools
import json
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
import redis
from click.testing import CliRunner, Result

from onceflow.cli import onceflow
from onceflow.clicks import results
from onceflow.clicks import verify as verifying
from onceflow.clicks.results import Keys
from onceflow.client.cluster import Cluster
from onceflow.errors import installed_from
from onceflow.remedies import Remedy
from tests import remedies
from tests.clicks.counted import GOOD_AND_BAD, count, write
from tests.conftest import RedisProcess


class Place:
    """One test's topic and hash key, with counted events."""

    def __init__(self, bootstrap: str, topic: str, server: RedisProcess) -> None:
        self.bootstrap, self.topic, self.url = bootstrap, topic, server.url
        self.hash_key = f"test::{topic}"
        self.keys = Keys(self.hash_key)
        write(bootstrap, topic, GOOD_AND_BAD)
        self.count()

    def count(self, **marker: Any) -> None:
        count(self.url, self.hash_key, self.topic, GOOD_AND_BAD, **marker)

    def redis(self) -> redis.Redis:
        return redis.Redis.from_url(self.url)

    def verify(self) -> Any:
        return verifying.verify(self.bootstrap, self.topic, self.url, self.hash_key)

    def command(self, *options: str) -> Result:
        where = ["--bootstrap", self.bootstrap, "--redis", self.url, "--hash-key", self.hash_key]
        return CliRunner().invoke(onceflow, ["verify", *where, *options], standalone_mode=False)


@pytest.fixture(scope="module")
def written(bootstrap: str, redis_server: RedisProcess) -> Place:
    return Place(bootstrap, f"verify-{os.getpid()}", redis_server)


@pytest.fixture
def place(written: Place) -> Place:
    """One topic for all tests that do not change it; Redis is reset before each."""
    written.count()
    return copy.copy(written)


@pytest.fixture
def own_place(bootstrap: str, topic: str, redis_server: RedisProcess) -> Place:
    return Place(bootstrap, topic, redis_server)


def test_equal(own_place: Place) -> None:
    write(own_place.bootstrap, own_place.topic, {0: [b"later"], 1: [b"later", b"still later"]})
    done = own_place.command("--json")
    document = json.loads(done.stdout)
    assert (done.return_value, document["equal"], document["differences"]) == (0, True, [])
    assert {name: document[name] for name in ("events", "clicks", "users", "bad", "not_yet_counted")} == {
        "events": 9,
        "clicks": 11,
        "users": 3,
        "bad": 4,
        "not_yet_counted": 3,
    }
    progress: list[tuple[int, int]] = []
    where = (own_place.bootstrap, own_place.topic, own_place.url, own_place.hash_key)
    verifying.verify(*where, on_progress=lambda *both: progress.append(both))
    assert progress[-1] == (9, 9)
    printed = own_place.command().stdout
    assert "differences                   0" in printed
    assert "not yet counted               3" in printed


CHANGES: list[tuple[str, Callable[[Any, Keys], Any], str]] = [
    ("count", lambda r, keys: r.hincrby(keys.count, "ada", 1), "ada: 3 in the log, 4 in Redis"),
    ("count", lambda r, keys: r.hset(keys.count, "ada", "3.0"), "ada: 3 in the log, 3.0 in Redis"),
    ("count", lambda r, keys: r.hdel(keys.count, "eve"), "eve: 0 in the log, nothing in Redis"),
    ("count", lambda r, keys: r.hset(keys.count, "mallory", 1), "mallory: nothing in the log, 1 in Redis"),
    ("top", lambda r, keys: r.zincrby(keys.top, 1, "bob"), "bob: 8 in the log, 9 in Redis"),
    ("top", lambda r, keys: r.zrem(keys.top, "eve"), "eve: 0 in the log, nothing in Redis"),
    ("os", lambda r, keys: r.hincrby(keys.os, "iOS", -1), "iOS: 3 in the log, 2 in Redis"),
    ("totals", lambda r, keys: r.hincrby(keys.totals, "events", 1), "events: 9 in the log, 10 in Redis"),
    ("bad", lambda r, keys: r.hincrby(keys.bad, "not-json", 1), "not-json: 1 in the log, 2 in Redis"),
    ("dead", lambda r, keys: r.lpop(keys.dead), "length: 4 in the log, 3 in Redis"),
    ("dead", lambda r, keys: r.lset(keys.dead, 0, "0:0:not-json"), "0:0:not-json: nothing in the log"),
]


@pytest.mark.parametrize(("key", "change", "difference"), CHANGES, ids=[difference for _, _, difference in CHANGES])
def test_one_thing_changed_by_hand_is_found(
    place: Place, key: str, change: Callable[[Any, Keys], Any], difference: str
) -> None:
    with place.redis() as client:
        change(client, place.keys)
    done = place.command()
    assert done.return_value == 1
    assert "differences                   1" in done.stdout
    assert f"{getattr(place.keys, key)} {difference}" in done.stdout


def test_duplicate_pointer_is_a_difference(place: Place) -> None:
    with place.redis() as client:
        first = client.lindex(place.keys.dead, 0)
        assert isinstance(first, bytes)
        client.lset(place.keys.dead, 1, first)
    done = place.command()
    assert done.return_value == 1
    assert f"{place.keys.dead} {first.decode()}: once in the log, 2 times in Redis" in done.stdout


def test_twenty_of_many_differences_are_shown(place: Place) -> None:
    with place.redis() as client:
        client.hset(place.keys.count, mapping={f"user-{number}": 1 for number in range(30)})
    printed = place.command().stdout
    assert "differences                  30" in printed
    assert "and 10 more" in printed
    assert len(json.loads(place.command("--json").stdout)["differences"]) == 30


def inconclusive(place: Place, *options: str) -> str:
    done = place.command(*options)
    assert done.return_value == 2
    assert done.stdout == ""
    return done.stderr


def test_no_marker(place: Place) -> None:
    with place.redis() as client:
        client.delete(place.keys.marker)
    assert "inconclusive: there is no marker" in inconclusive(place)


def test_marker_without_offsets(place: Place) -> None:
    with place.redis() as client:
        client.hset(place.keys.marker, mapping={"offsets": "{}", "since": "{}"})
    assert inconclusive(place).rstrip().endswith("has no offsets: no events are counted yet")


@pytest.mark.remedy(Remedy.NAME_COUNTED_TOPIC)
def test_another_topic(place: Place) -> None:
    message = inconclusive(place, "--topic", "another")
    assert f"has no topic 'another' (it has {place.topic})" in message
    remedies.find(Remedy.NAME_COUNTED_TOPIC, message)
    assert place.command("--topic", place.topic).return_value == 0
    assert place.command().return_value == 0, "without --topic it is the marker's"


def test_another_jobs_plan(place: Place) -> None:
    place.count(plan="sums of something")
    assert "was written by another job" in inconclusive(place)


def test_deleted_topic(own_place: Place) -> None:
    with Cluster(own_place.bootstrap) as cluster:
        cluster.delete_topic(own_place.topic)
    assert "has no topic" in inconclusive(own_place)


def test_recreated_topic(own_place: Place) -> None:
    with Cluster(own_place.bootstrap) as cluster:
        cluster.delete_topic(own_place.topic)
        cluster.create_topic(own_place.topic, 2)
    assert "was counted up to offset 4 and the log ends at 0" in inconclusive(own_place)


def test_redis_or_broker_down(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    url, place.url = place.url, "redis://127.0.0.1:1/1"
    assert "failed to read" in inconclusive(place)
    place.url, place.bootstrap = url, "127.0.0.1:1"
    assert f"no Kafka broker responds at 127.0.0.1:1: Connection refused; {Remedy.START_BROKER}" in inconclusive(place)
    monkeypatch.setattr("onceflow.clicks.verify.RESPONSE_WAIT_S", 0.5)
    monkeypatch.setattr("onceflow.clicks.verify._check_brokers", lambda *_: None)
    assert "from the broker" in inconclusive(place), "the broker that responded may end"


@pytest.mark.parametrize("option", ["decode_responses=true", "foo=bar"])
def test_redis_url_with_invalid_options(place: Place, option: str) -> None:
    place.url += f"?{option}"
    assert "is not one of db, password" in str(place.command().exception)


def test_redis_url_with_invalid_database(place: Place) -> None:
    place.url += "?db=x"
    assert "Invalid value for 'db'" in str(place.command().exception)


def test_an_unexpected_failure_is_no_difference(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise KeyError("surprise")

    monkeypatch.setattr(verifying, "compare", fail)
    assert "inconclusive: verify itself failed (KeyError: 'surprise')" in inconclusive(place)


def test_missing_packages_name_the_extra(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onceflow.clicks.verify", None)
    monkeypatch.delattr("onceflow.clicks.verify")
    assert f"pip install '{installed_from()}[client,dashboard]'" in inconclusive(place)


@pytest.mark.remedy(Remedy.START_STREAM, Remedy.LONGER_TRIGGER)
def test_a_batch_that_stays_half_written(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onceflow.clicks.results.SNAPSHOT_PAUSE_S", 0.001)
    place.count(complete="0")
    message = inconclusive(place)
    assert "micro-batch 1 of " in message
    remedies.find(Remedy.START_STREAM, message)
    place.count()
    assert place.verify().is_equal
    counted = verifying._counts
    batches = itertools.count(2)

    def written_meanwhile(client: Any, keys: Keys, marker: Any) -> Any:
        counts = counted(client, keys, marker)
        number = next(batches)
        if number < 2 + results.SNAPSHOT_ATTEMPTS:
            client.hset(keys.marker, "batch", number)
        return counts

    monkeypatch.setattr(verifying, "_counts", written_meanwhile)
    remedies.find(Remedy.LONGER_TRIGGER, inconclusive(place))
    assert place.verify().is_equal  # No batch is written between the two reads any more.


def test_a_batch_that_is_completed_meanwhile(place: Place) -> None:
    place.count(complete="0")
    timer = threading.Timer(0.5, place.count)
    timer.start()
    assert place.verify().is_equal
    timer.join()


def test_batch_written_while_redis_is_read(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    read = verifying._counts

    def read_torn(client: Any, keys: Keys, marker: Any) -> Any:
        monkeypatch.setattr(verifying, "_counts", read)
        client.hincrby(keys.count, "ada", 5)
        torn = read(client, keys, marker)
        place.count(batch="2")
        return torn

    monkeypatch.setattr(verifying, "_counts", read_torn)
    verdict = place.verify()
    assert (verdict.is_equal, verdict.marker.batch) == (True, 2)


def test_counts_only_from_since(place: Place) -> None:
    place.count(since=json.dumps({place.topic: {"0": 1, "1": 0}}))
    differences = [str(one) for one in place.verify().differences]
    assert f"{place.keys.count} ada: 0 in the log, 3 in Redis" in differences
    assert place.verify().recount.events == 8
