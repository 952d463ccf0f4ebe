"""Event ids: each counts once, whatever is repeated, killed and lost; on a real broker and a real Redis."""

import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from onceflow.cli import onceflow
from onceflow.clicks.event_ids import IdDecoder, IdSettings, OnceDecoder
from onceflow.clicks.events import DUPLICATE, id_of
from onceflow.clicks.live import Live
from onceflow.clicks.plan import Plan, parse_plan
from onceflow.clicks.recount import event_id
from onceflow.clicks.recount_ids import IdRecount
from onceflow.clicks.results import Results
from onceflow.clicks.verify import VerifyInconclusive
from onceflow.client.cluster import Cluster
from onceflow.client.producer import EventWriter
from onceflow.redis import pool as redis_pool
from onceflow.spark.errors import AttemptEnded, WrongOption
from onceflow.spark.redis import ids as redis_ids
from onceflow.spark.redis import scripts as redis_scripts
from onceflow.spark.redis.scripts import OwnerLost
from onceflow.spark.redis.targets import Ids
from onceflow.spark.redis_sink import RedisSink
from tests.clicks.counting_run import CountingRun
from tests.clicks.test_analytics import FIRST_MS, events, values
from tests.clicks.test_rebuild import Place
from tests.clicks.without_spark import without_spark
from tests.conftest import WITHIN_S, RedisProcess
from tests.spark.redis.chunking import DRIVER, TASKS, WHOLE, write_in
from tests.spark.redis_servers import RedisCluster

__all__ = ["without_spark"]
HOUR_MS = 3_600_000
WINDOW_MS = 4 * HOUR_MS
SENT_MS = FIRST_MS + 48 * HOUR_MS
"""Times of events are not in the future then."""

Record = tuple[int, bytes, int]
"""Partition, value, timestamp in ms."""


class IdPlace(Place):
    """One topic and its counts, each event id once."""

    def __init__(self, bootstrap: str, topic: str, url: str, *, window_ms: int = WINDOW_MS) -> None:
        super().__init__(bootstrap, topic, url)
        self.pipeline = replace(self.pipeline, event_ids_ms=window_ms)

    def send(self, records: Sequence[Record]) -> None:
        with Cluster(self.pipeline.bootstrap) as cluster:
            if self.topic not in cluster.topics(self.topic):
                cluster.create_topic(self.topic, 2)
        with EventWriter(self.pipeline.bootstrap, self.topic) as writer:
            for partition, value, at_ms in records:
                writer.write(None, value, at_ms, partition)

    def numbers(self) -> dict[bytes, Any]:
        """Return all counts, without ids and duplicates, by key without its prefix."""
        tag = self.keys.beside("").encode()
        left = (self.keys.marker, self.keys.beside("ids"), self.keys.dead, self.keys.beside("duplicates"))
        state = {
            name.removeprefix(tag).removeprefix(self.keys.count.encode()): value
            for name, value in self.state().items()
            if not name.startswith(tuple(key.encode() for key in left))
        }
        state[b"totals"].pop(b"duplicates", None)
        return state

    def buckets(self) -> dict[int, int]:
        """Return the number of ids by start of their bucket."""
        starts = [int(start) for start in self.client.zrange(self.keys.beside("ids"), 0, -1)]
        return {start: self.client.hlen(f"{self.keys.beside('ids')}:{start}") for start in starts}

    def duplicates(self) -> int:
        with Results(self.pipeline.redis_url, self.pipeline.hash_key) as results:
            return results.snapshot().duplicates


@pytest.fixture
def place(bootstrap: str, topic: str, redis_server: RedisProcess) -> Iterator[IdPlace]:
    yield IdPlace(bootstrap, topic, redis_server.url)
    redis_pool.close()


def with_ids(seed: int, count: int) -> list[bytes]:
    """Return events with ids, in any order; some have none."""
    made = values(events(seed, count))
    documents = [json.loads(value) | {"event_id": f"{seed}-{at}"} for at, value in enumerate(made) if value]
    return [json.dumps(one).encode() for one in documents]


def event(uid: str, event_id: object, **fields: object) -> bytes:
    document = {"uid": uid, "click_count": 1, "event_time": FIRST_MS, "event_id": event_id} | fields
    return json.dumps(document).encode()


def repeated(chance: random.Random, some: Sequence[bytes]) -> list[Record]:
    """Return the events in any order and in any partition, some of them several times."""
    records = [
        (chance.randrange(2), value, SENT_MS + chance.randrange(HOUR_MS))
        for value in some
        for _ in range(chance.choice((1, 1, 2, 5)))
    ]
    chance.shuffle(records)
    return records


def snapshot(place: IdPlace) -> dict[bytes, bytes]:
    """Return everything of a hash key as Redis serializes it."""
    names = [place.keys.count.encode(), *place.client.scan_iter(f"{place.keys.beside('')}*", count=10_000)]
    dumps = {name: place.client.dump(name) for name in names}
    return {name: dump for name, dump in dumps.items() if dump is not None}


def roll_back(place: IdPlace, state: Mapping[bytes, bytes]) -> None:
    for name in snapshot(place):
        place.client.delete(name)
    for name, dump in state.items():
        place.client.restore(name, 0, dump)


class Killed(BaseException):
    """The end of the driver's process."""


class Calls:
    """Calls of the sink's scripts, with the state of Redis after each; the process ends after `left` calls."""

    def __init__(self, place: IdPlace, left: int) -> None:
        self._place, self._left = place, left
        self._run = redis_scripts._run
        self.states: list[dict[bytes, bytes]] = [snapshot(place)]

    def __call__(self, *arguments: Any) -> Any:
        reply = self._run(*arguments)
        self.states.append(snapshot(self._place))
        self._left -= 1
        if self._left < 0:
            raise Killed
        return reply


@pytest.mark.usefixtures("without_spark")
@pytest.mark.parametrize("seed", range(3))
def test_numbers_follow_from_the_events(
    place: IdPlace, bootstrap: str, redis_server: RedisProcess, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any order, repetition, batches, kills and lost writes give the numbers of each event once."""
    chance = random.Random(seed)
    some = with_ids(seed, 12)
    once = Place(bootstrap, f"{place.topic}-once", redis_server.url)
    plain = IdPlace(bootstrap, once.topic, redis_server.url)
    plain.pipeline = once.pipeline
    plain.send([(0, value, SENT_MS) for value in some])
    plain.stream().count()
    place.send(repeated(chance, some))
    for _ in range(6):
        calls = Calls(place, chance.randrange(9))
        with monkeypatch.context() as patched:
            patched.setattr(redis_scripts, "_run", calls)
            try:
                stream = place.stream()
                for _ in range(2):
                    stream.count(at_most=lambda begin, end: min(end, begin + chance.randrange(6)))
            except Killed:
                roll_back(place, chance.choice(calls.states[-6:]))
    place.stream().count()
    assert place.numbers() == plain.numbers()
    assert place.is_exact()
    place.send(repeated(chance, some))  # Repetitions of counted events.
    place.stream().count()
    assert place.numbers() == plain.numbers()
    assert place.is_exact()


@pytest.mark.usefixtures("without_spark")
def test_first_record_of_a_partition_counts(place: IdPlace) -> None:
    place.send([(0, event("ada", "a", click_count=clicks), FIRST_MS) for clicks in (3, 5, 7)])
    stream = place.stream()
    stream.count(at_most=lambda begin, end: min(end, begin + 2))
    stream.count()
    assert place.client.hgetall(place.keys.count) == {b"ada": b"3"}
    assert place.duplicates() == 2
    assert not place.client.exists(place.keys.beside("duplicates"))
    assert place.is_exact()
    place.client.hincrby(place.keys.totals, "duplicates", 1)
    assert not place.is_exact()


@pytest.mark.usefixtures("without_spark")
def test_unequal_events_in_two_partitions(place: IdPlace) -> None:
    place.send([(partition, event("ada", "a", click_count=3 + partition), FIRST_MS) for partition in (0, 1)])
    place.stream().count()
    assert place.duplicates() == 1 and place.is_exact()
    place.client.hset(place.keys.count, "ada", "4")  # As if the other partition had been read first.
    with pytest.raises(VerifyInconclusive, match="1 event ids are in several partitions"):
        place.is_exact()


@pytest.mark.usefixtures("without_spark")
def test_partitions_more_than_a_window_apart(place: IdPlace) -> None:
    """The ids that only the slower partition would reach are deleted, so that an idle one does not keep all."""
    place.send([(0, event("ada", "a"), FIRST_MS), (1, event("bob", "x"), FIRST_MS - 9 * WINDOW_MS)])
    stream = place.stream()
    for windows in (3, 6, 9):
        stream.count()
        place.send([(0, event("ada", windows), FIRST_MS + windows * WINDOW_MS)])
    stream.count()
    place.send([(1, event("ada", "a"), FIRST_MS)])
    stream.count()
    assert place.client.hgetall(place.keys.count) == {b"ada": b"5", b"bob": b"1"}
    with pytest.raises(VerifyInconclusive, match="than the window apart"):
        place.is_exact()


QUARTER_MS = WINDOW_MS // 4
# Distance from the first record, and whether the record is counted.
REPETITIONS = {0: True, QUARTER_MS: False, WINDOW_MS: False, 5 * QUARTER_MS: True, 9 * QUARTER_MS: False}


@pytest.mark.usefixtures("without_spark")
@pytest.mark.parametrize("batch", [1, 5])
def test_id_counts_again_after_the_window(place: IdPlace, batch: int) -> None:
    first_ms = FIRST_MS // QUARTER_MS * QUARTER_MS
    records = [(0, event("ada", "a"), first_ms + distance_ms) for distance_ms in REPETITIONS]
    records.insert(1, (0, event("bob", "b"), first_ms))
    place.send(records)
    for _ in records:
        place.stream().count(at_most=lambda begin, end: min(end, begin + batch))
    assert place.client.hgetall(place.keys.count) == {b"ada": b"%d" % sum(REPETITIONS.values()), b"bob": b"1"}
    assert place.is_exact()


@pytest.mark.usefixtures("without_spark")
def test_old_ids_are_removed(place: IdPlace) -> None:
    stream = place.stream()
    for quarter in range(20):
        at_ms = FIRST_MS + quarter * QUARTER_MS
        place.send([(0, event("ada", f"id {quarter}"), at_ms)] + [(1, event("bob", "one"), FIRST_MS)] * (not quarter))
        stream.count()
    # Those of the partition that stands still, and the window before the last batch but one.
    starts = sorted(place.buckets())
    first = FIRST_MS // QUARTER_MS * QUARTER_MS
    assert [(start - first) // QUARTER_MS for start in starts] == [0, *range(14, 20)]
    assert place.is_exact()


@pytest.mark.usefixtures("without_spark")
def test_older_timestamps_do_not_reopen_the_window(place: IdPlace) -> None:
    """The time of a partition never goes back, so a late producer's ids are kept as long as the others."""
    place.send([(0, event("ada", "new"), FIRST_MS + 10 * WINDOW_MS)])
    stream = place.stream()
    stream.count()
    place.send([(0, event("ada", "old"), FIRST_MS)] * 2)
    stream.count()
    place.send([(0, event("ada", "old"), FIRST_MS + 10 * WINDOW_MS)])
    stream.count()
    assert place.client.hgetall(place.keys.count) == {b"ada": b"2"}
    assert len(place.buckets()) == 1
    assert place.is_exact()


IDS: dict[str, tuple[object, str | None]] = {
    "text": ("a", "a"),
    "integer": (17, "17"),
    "escaped": ('"ü\\', '"ü\\'),
    "longest": ("x" * 256, "x" * 256),
    "too long": ("x" * 257, None),
    "empty": ("", None),
    "null": (None, None),
    "list": (["a"], None),
    "fraction": (1.5, None),
    "true": (True, None),
}


@pytest.mark.parametrize("name", IDS)
def test_both_implementations_read_ids(name: str) -> None:
    given, expected = IDS[name]
    assert id_of(json.dumps(given).encode()) == expected
    assert event_id(event("ada", given)) == expected


@pytest.mark.usefixtures("without_spark")
def test_bad_events_and_events_without_id(place: IdPlace) -> None:
    bad = event("ada", "a", click_count="six")
    place.send([(0, value, FIRST_MS) for value in (bad, event("ada", None), event("ada", 7), bad, event("ada", "7"))])
    place.send([(0, event("ada", None), FIRST_MS), (0, event("bob", "a"), FIRST_MS)])
    place.stream().count()
    assert place.client.hgetall(place.keys.count) == {b"ada": b"3", b"bob": b"1"}
    assert place.duplicates() == 1
    assert place.is_exact()


@pytest.mark.usefixtures("without_spark")
@pytest.mark.parametrize(("kept", "lost_at"), [("claim", "seal"), ("seal", "whole"), ("claim", "whole")])
def test_lost_claims_end_the_attempt(place: IdPlace, kept: str, lost_at: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Redis goes back to the state before script `kept`, just before script `lost_at`."""
    place.send([(0, event("ada", name), FIRST_MS) for name in "aba"])
    stream = place.stream()
    states: dict[str, dict[bytes, bytes]] = {}
    run = redis_scripts._run

    def lose(client: Any, name: str, *arguments: Any) -> Any:
        if name == lost_at:
            roll_back(place, states[kept])
        states[name] = snapshot(place)
        return run(client, name, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(redis_scripts, "_run", lose)
        with pytest.raises(AttemptEnded, match="no longer has the ids of the batch"):
            stream.count()
    stream.count()
    assert place.client.hgetall(place.keys.count) == {b"ada": b"2"} and place.is_exact()


@pytest.mark.usefixtures("without_spark")
def test_lost_claim_keeps_the_order_of_records(place: IdPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Redis loses the first claim of a partition just before the second one, and the task continues."""
    place.send([(0, event("ada", "a", click_count=clicks), FIRST_MS) for clicks in (3, 5)])
    stream = place.stream()
    run, states = redis_scripts._run, []

    def lose(client: Any, name: str, *arguments: Any) -> Any:
        if name == "claim":
            states.append(snapshot(place))
            if len(states) == 2:
                roll_back(place, states[0])
        return run(client, name, *arguments)

    monkeypatch.setattr(redis_ids, "IDS_PER_CLAIM", 1)
    with monkeypatch.context() as patched:
        patched.setattr(redis_scripts, "_run", lose)
        with pytest.raises(AttemptEnded, match="no longer has the ids of the batch"):
            stream.count()
    stream.count()
    assert place.client.hgetall(place.keys.count) == {b"ada": b"3"} and place.is_exact()


@pytest.mark.usefixtures("without_spark")
def test_claim_of_a_shorter_attempt(place: IdPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Redis keeps a killed attempt's claim, and loses the longer one of the next attempt from the same record."""
    place.send([(0, event("ada", name), FIRST_MS) for name in "abcc"])
    run = redis_scripts._run

    def kill(client: Any, name: str, *arguments: Any) -> Any:
        reply = run(client, name, *arguments)
        if name == "claim":
            raise Killed
        return reply

    def lose(client: Any, name: str, *arguments: Any) -> Any:
        if name == "claim":
            before = snapshot(place)
            reply = run(client, name, *arguments)
            roll_back(place, before)
            return reply
        return run(client, name, *arguments)

    for count, patch, failure in ((3, kill, Killed), (4, lose, AttemptEnded)):
        with monkeypatch.context() as patched:
            patched.setattr(redis_ids, "IDS_PER_CLAIM", count)
            patched.setattr(redis_scripts, "_run", patch)
            with pytest.raises(failure):
                place.stream().count()
    place.stream().count()
    assert place.client.hgetall(place.keys.count) == {b"ada": b"3"} and place.is_exact()


@pytest.mark.usefixtures("without_spark")
def test_start_whose_epoch_is_lost_is_fenced(place: IdPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Redis loses a start's epoch and claims while it computes its rows; they must not pass for the next start's."""
    place.send([(0, event("ada", "first"), FIRST_MS)])
    place.stream().count()
    place.send([(0, event("ada", "a"), FIRST_MS)] * 2)
    before, later, run = snapshot(place), place.stream(), redis_scripts._run
    held: list[tuple[Any, ...]] = []
    replies: list[Any] = []

    def lose(*call: Any) -> Any:
        _, name, *_ = call
        if name == "whole" and not held:
            held.append(call)
            later.count()
            return replies[0]
        if name == "whole":
            replies.append(run(*held[0]))  # The later start has claimed the ids, and has not counted them.
        reply = run(*call)
        if name == "seal" and not held:
            roll_back(place, before)
        return reply

    monkeypatch.setattr(redis_scripts, "_run", lose)
    with pytest.raises(OwnerLost):
        place.stream().count()
    assert place.client.hgetall(place.keys.count) == {b"ada": b"2"} and place.is_exact()


@pytest.mark.usefixtures("without_spark")
def test_lost_bucket_of_ids_counts_everything_again(place: IdPlace) -> None:
    place.send([(0, event("ada", "a"), FIRST_MS)] * 2)
    place.stream().count()
    (start,) = place.buckets()
    place.client.delete(f"{place.keys.beside('ids')}:{start}")
    place.send([(0, event("ada", "a"), FIRST_MS)])
    stream = place.stream()
    with pytest.raises(AttemptEnded, match="no longer exists"):
        stream.count()
    for _ in range(2):
        stream.count()
    assert place.client.hgetall(place.keys.count) == {b"ada": b"1"} and place.is_exact()


@pytest.mark.usefixtures("without_spark")
def test_rebuild_decides_as_the_live_counts(place: IdPlace) -> None:
    chance = random.Random(5)
    some = with_ids(5, 15)
    place.send(repeated(chance, some))
    stream = place.stream()
    stream.count(at_most=lambda begin, end: min(end, begin + 7))
    stream.count()
    right = place.state()
    place.damage()
    place.run()
    after = place.state()
    for state in (right, after):
        del state[place.keys.marker.encode()]
    assert after == right
    place.send(repeated(chance, some))
    stream.count()
    assert place.numbers()[b""] == right[place.keys.count.encode()]
    assert place.is_exact()


@pytest.mark.usefixtures("without_spark")
@pytest.mark.parametrize("script", ["seal", "whole"])
def test_rebuild_while_a_batch_is_written(place: IdPlace, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The replacement removes the claims of a batch that is being written, which claims them again."""
    place.send([(0, event("ada", "a"), FIRST_MS)])
    stream = place.stream()
    stream.count()
    place.send([(0, event("ada", "b"), FIRST_MS)] * 2)
    run = redis_scripts._run

    def replace_before(client: Any, name: str, keys: Any, *arguments: Any) -> Any:
        if name == script and keys[0] == place.keys.marker:
            monkeypatch.setattr(redis_scripts, "_run", run)
            place.run()
        return run(client, name, keys, *arguments)

    monkeypatch.setattr(redis_scripts, "_run", replace_before)
    with pytest.raises(AttemptEnded):
        stream.count()
    stream.count()
    place.send([(0, event("ada", "b"), FIRST_MS)])
    stream.count()
    assert place.client.hgetall(place.keys.count) == {b"ada": b"2"} and place.is_exact()


@pytest.mark.usefixtures("without_spark")
def test_ids_in_a_cluster(bootstrap: str, topic: str, new_redis: Callable[..., RedisProcess]) -> None:
    place = IdPlace(bootstrap, topic, RedisCluster(new_redis, masters=2).url)
    place.send(repeated(random.Random(1), with_ids(1, 10)))
    place.stream().count()
    assert place.is_exact()
    place.run()
    assert place.is_exact()
    redis_pool.close()


def test_decoders_find_ids_and_leave_out_duplicates(redis_server: RedisProcess, topic: str) -> None:
    ids = Ids(f"{{{topic}}}:ids", f"{{{topic}}}:duplicates", WINDOW_MS)
    place = IdPlace("unused:1", topic, redis_server.url)
    settings = IdSettings(place.pipeline._fields, redis_server.url, ids)
    batch = pa.RecordBatch.from_pydict(
        {
            "value": pa.array([event("ada", "a"), b"nonsense", event("ada", 7), event("ada", None)], pa.binary()),
            "partition": pa.array([3] * 4, pa.int32()),
            "offset": pa.array([5, 6, 8, 9], pa.int64()),
            "timestamp": pa.array([FIRST_MS * 1000] * 4, pa.timestamp("us", "UTC")),
        }
    )
    (digests,), reasons = IdDecoder(settings.claiming_options()["decoderOptions"]).decode(batch)
    assert [digest is not None for digest in digests.to_pylist()] == [True, False, True, False]
    assert reasons.to_pylist() == [None, "not-json", None, None]
    place.client.zadd(ids.duplicates_key, {"3:8": 8, "3:10": 10, "30:9": 9, "13:5": 5})
    _, reasons = OnceDecoder(settings.counting_options()["decoderOptions"]).decode(batch)
    assert reasons.to_pylist() == [None, "not-json", DUPLICATE, None]
    redis_pool.close()


@pytest.mark.usefixtures("without_spark")
def test_live_numbers_are_the_counted_ones(place: IdPlace) -> None:
    place.send([(0, event("ada", "a"), FIRST_MS)])
    place.stream().count()
    live = Live(Results(place.pipeline.redis_url, place.pipeline.hash_key), place.pipeline.bootstrap, place.topic)
    live.start()
    try:
        view = live.wait_until_live(WITHIN_S)
        assert view.snapshot is None and "only a micro-batch knows which events are duplicates" in str(view.reason)
        assert (live.counted().clicks, live.clicks_of("ada").is_live) == (1, False)
    finally:
        live.close()


def test_plan_has_the_window() -> None:
    plan = Plan("h", "uid", None, event_ids_ms=WINDOW_MS)
    assert parse_plan(plan.text) == plan
    unchanged = {"counts": "clicks", "hash_key": "h", "key_field": "uid", "value_field": None}
    assert json.loads(Plan("h", "uid", None).text) == unchanged


@pytest.mark.parametrize("given", ["24", "59s", "32d", ""])
def test_window_that_is_refused(given: str) -> None:
    done = CliRunner().invoke(onceflow, ["run", "--event-ids", given])
    assert done.exit_code == 2 and "expected 1m to 31d" in done.output


def test_wrong_options_of_the_sink() -> None:
    with pytest.raises(WrongOption, match="must be at least 4"):
        Ids("{h}:ids", "{h}:duplicates", 3)
    with pytest.raises(WrongOption, match="needs both ids and id_records"):
        RedisSink("redis://127.0.0.1:1", hash_key="h", checkpoint="c", ids=Ids("{h}:ids", "{h}:d", WINDOW_MS))


def test_recount_of_many_ids() -> None:
    """The sorted recount agrees with a plain set, for any order of the partitions."""
    chance = random.Random(9)
    recount, seen, expected = IdRecount("uid", None, WINDOW_MS), set(), set()
    for offset in range(2_000):
        name = f"id {chance.randrange(500)}"
        recount.add(1, offset, event("ada", name), FIRST_MS)
        if name in seen:
            expected.add((1, offset))
        seen.add(name)
    assert recount.duplicates() == expected
    assert recount.spread() == 0


@pytest.mark.parametrize("way", [WHOLE, DRIVER, TASKS])
def test_pipeline_in_spark(
    spark: SparkSession,
    bootstrap: str,
    topic: str,
    redis_server: RedisProcess,
    tmp_path: Path,
    way: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write_in(way, 150, monkeypatch)
    place = IdPlace(bootstrap, topic, redis_server.url)
    run = CountingRun(bootstrap, topic, redis_server, tmp_path)
    chance = random.Random(3)
    some = with_ids(3, 60)
    options = {"event_ids_ms": WINDOW_MS, "measures": place.pipeline.measures}
    for _ in range(2):
        place.send(repeated(chance, some))
        run.count(spark, **options)
    verdict = run.verify()
    assert (verdict["events"], verdict["differences"]) == (len(some), [])
    assert verdict["duplicates"] == place.duplicates() > 0
    shown = CliRunner().invoke(onceflow, ["clicks", "--redis", run.url, "--hash-key", run.hash_key])
    assert f"{len(some)} events" in shown.stdout and f" {verdict['duplicates']} duplicates" in shown.stdout
