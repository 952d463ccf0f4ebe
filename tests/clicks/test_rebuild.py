"""Rebuild beside live counts, step by step, on a real broker and a real Redis; without Spark."""

import contextlib
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from onceflow.cli import onceflow
from onceflow.clicks import rebuild as rebuilding
from onceflow.clicks.analytics import Analytics
from onceflow.clicks.pipeline import ClickPipeline
from onceflow.clicks.rebuild import Rebuild, RebuildRefused, next_batch
from onceflow.clicks.results import Keys, NothingCounted, OtherJob, Results
from onceflow.clicks.verify import verify
from onceflow.clicks.windows import HOUR
from onceflow.client.admin import Admin
from onceflow.client.cluster import Cluster
from onceflow.errors import OnceflowError
from onceflow.redis import pool as redis_pool
from onceflow.remedies import Remedy
from onceflow.spark.redis.target import RedisTarget
from tests import remedies
from tests.clicks import counted
from tests.clicks.test_analytics import FIRST_MS, SETTINGS, events, values
from tests.clicks.without_spark import SPARK, Frame, Stream, failing_rows, rows_again, without_spark
from tests.conftest import RedisProcess
from tests.spark.redis_servers import RedisCluster

__all__ = ["without_spark"]
pytestmark = pytest.mark.usefixtures("without_spark")
ROOT = Path(__file__).parents[2]


class Place:
    """One topic and its live counts."""

    def __init__(self, bootstrap: str, topic: str, url: str) -> None:
        self.topic = topic
        self.pipeline = ClickPipeline(bootstrap, topic, "", redis_url=url, hash_key=f"test::{topic}", measures=SETTINGS)
        self.keys = Keys(self.pipeline.hash_key)
        self.client: Any = redis_pool.client(url, self.keys.marker)
        self.seed = 0

    def write(self, count: int = 30) -> None:
        self.seed += 1
        made = values(events(self.seed, count))
        counted.write(self.pipeline.bootstrap, self.topic, {0: [*made[::2], b"nonsense"], 1: made[1::2]})

    def stream(self, query: str = "live") -> Stream:
        return Stream(query, self.pipeline)

    def rebuild(self, **changes: Any) -> Rebuild:
        return Rebuild(self.pipeline.bootstrap, self.pipeline.redis_url, self.pipeline.hash_key, **changes)

    def run(self, **changes: Any) -> rebuilding.Outcome:
        rebuild = self.rebuild(**changes)
        return rebuild.run_in(SPARK, rebuild.live())

    def damage(self) -> None:
        """Change each kind of counts by hand."""
        keys = self.keys
        for target in ("minute", "hour-users", "day-top", "sessions", "sessions-day"):
            member = self.client.zrange(keys.beside(target), 0, 0)[0].decode()
            bucket = f"{keys.beside(target)}:{member}"
            if target == "day-top":
                self.client.zincrby(bucket, 5, "nobody")
            elif target == "hour-users":
                self.client.sadd(bucket, "nobody")
            elif target == "sessions":
                self.client.zadd(bucket, {"1,2,3,4": 1})
            else:
                self.client.hincrby(bucket, "events", 7)
        self.client.zadd(keys.beside("minute"), {"60000": 60000})
        self.client.hset(f"{keys.beside('minute')}:60000", "events", 7)
        self.client.hincrby(keys.count, "nobody", 1)
        self.client.hincrby(keys.totals, "clicks", 1)

    def is_exact(self) -> bool:
        pipeline = self.pipeline
        return verify(pipeline.bootstrap, self.topic, pipeline.redis_url, pipeline.hash_key).is_equal

    def state(self) -> dict[bytes, Any]:
        """Return everything under the hash key, without the history and the rebuild's own keys."""
        tag = self.keys.beside("")
        names = [self.keys.count.encode(), *self.client.scan_iter(f"{tag}*", count=10_000)]
        own = self.keys.beside("rebuild").encode()
        read = {b"hash": "hgetall", b"set": "smembers", b"zset": "zrange", b"list": "lrange"}
        others = {self.keys.history.encode(), claims(self).encode()}
        kept = [name for name in names if not name.startswith(own) and name not in others]
        pipe = self.client.pipeline()
        for name in kept:
            pipe.type(name)
        kinds = pipe.execute()
        for name, kind in zip(kept, kinds, strict=True):
            arguments = (0, -1, False, True) if kind == b"zset" else (0, -1) if kind == b"list" else ()
            getattr(pipe, read[kind])(name, *arguments)
        return dict(zip(kept, pipe.execute(), strict=True))

    def own_keys(self) -> list[bytes]:
        """Return the keys of an unfinished rebuild."""
        return list(self.client.scan_iter(f"{self.keys.beside('rebuild')}*", count=10_000))


@pytest.fixture
def place(bootstrap: str, topic: str, redis_server: RedisProcess) -> Iterator[Place]:
    yield Place(bootstrap, topic, redis_server.url)
    redis_pool.close()


class Killed(BaseException):
    """The end of the rebuild's process."""


def kill_at(place: Place, step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a rebuild whose process ends before call number `step` of what changes Redis, or of verify."""
    left = step

    def dying(call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **options: Any) -> Any:
            nonlocal left
            if left == 0:
                raise Killed
            left -= 1
            return call(*arguments, **options)

        return run

    with monkeypatch.context() as patched:
        for name in ("prepare", "write", "commit", "replace"):
            patched.setattr(RedisTarget, name, dying(getattr(RedisTarget, name)))
        patched.setattr(rebuilding, "verify", dying(verify))
        with pytest.raises(Killed):
            place.run()


# Two batches of three calls each, then verify and replace.
STEPS = range(8)


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rebuilding, "EVENTS_PER_BATCH_MAX", 14)


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("step", STEPS)
def test_killed_rebuild_resumes(place: Place, step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    place.write(20)
    stream = place.stream()
    stream.count()
    right = place.state()
    place.damage()
    wrong = place.state()
    kill_at(place, step, monkeypatch)
    assert place.state() == wrong
    progress: list[rebuilding.Progress] = []
    outcome = place.run(on_progress=progress.append)
    assert outcome.resumed == (step > 0)
    assert len(progress) == 2 - min(step // 3, 2)
    assert not progress or progress[-1] == rebuilding.Progress(21, 21)
    right[place.keys.marker.encode()][b"rebuilt"] = place.client.hget(place.keys.marker, "rebuilt")
    right[place.keys.marker.encode()][b"settled"] = place.client.hget(place.keys.marker, "settled")
    assert place.state() == right
    assert not place.own_keys()
    assert not [key for key in place.client.hkeys(claims(place)) if b"}:rebuild" in key]
    assert place.is_exact()
    place.write()
    stream.count()  # The same start of the query continues.
    assert place.is_exact()


def claims(place: Place) -> str:
    return f"{{{place.pipeline.hash_key}}}:onceflow-claims"


def test_stream_counts_until_the_replacement(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.write()
    stream = place.stream()
    stream.count()
    place.damage()

    def verify_slowly(*arguments: Any) -> Any:
        result = verify(*arguments)
        place.write()
        stream.count()
        return result

    monkeypatch.setattr(rebuilding, "verify", verify_slowly)
    outcome = place.run()
    assert (outcome.verified.recount.events, outcome.before.events, outcome.after.events) == (31, 62, 62)
    assert outcome.before.clicks == outcome.after.clicks + 1
    assert place.is_exact()


@pytest.mark.remedy(Remedy.PAUSE_RUN)
def test_stream_that_is_always_ahead(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.write(4)
    stream = place.stream()
    stream.count()
    replace_counts = RedisTarget.replace

    def replaced_late(*arguments: Any) -> Any:
        place.write(2)
        stream.count()
        return replace_counts(*arguments)

    monkeypatch.setattr(rebuilding, "REPLACE_ATTEMPTS", 3)
    with monkeypatch.context() as patched:
        patched.setattr(RedisTarget, "replace", replaced_late)
        with pytest.raises(RebuildRefused) as refused:
            place.run()
    remedies.find(Remedy.PAUSE_RUN, refused.value)
    assert place.run().resumed
    assert place.is_exact()


def test_other_offsets_are_not_replaced(place: Place) -> None:
    place.write()
    stream = place.stream()
    stream.count()
    rebuild = place.rebuild()
    live = rebuild.live()
    target = rebuild.target(live, SPARK)
    target.open(SPARK, "q")
    rebuild.count(target, live)
    place.write()
    stream.count()
    newer, before = rebuild.live(), place.state()
    expected = {name: newer.fields.get(name, "") for name in rebuilding.COMPARED}
    other = place.stream().target.keys
    reason = target.replace(rebuilding._query_of(live), other, expected, "id")
    assert reason is not None and reason.startswith("offsets ")
    assert place.state() == before


def test_readers_see_one_state(place: Place) -> None:
    place.write()
    stream = place.stream()
    stream.count()
    place.damage()
    rebuild, reads = place.rebuild(), list[int]()
    live = rebuild.live()
    target = rebuild.target(live, SPARK)
    target.open(SPARK, "q")
    rebuild.count(target, live)

    with Results(rebuild.redis_url, rebuild.hash_key) as results:

        def read(_: object) -> tuple[int, int]:
            first = int(place.client.hget(place.keys.totals, "clicks"))
            if not reads:
                rebuild.replace(target)
            reads.append(first)
            return first, int(place.client.hget(place.keys.totals, "clicks"))

        before, after = results.at_one_batch(read)
    assert (len(reads), before) == (2, after)
    assert reads[0] == after + 1


def test_verify_does_not_mix_two_states(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    from onceflow.clicks import verify as verifying

    place.write()
    place.stream().count()
    place.damage()
    read, reads = verifying._counts, list[Any]()

    def read_while_replaced(*arguments: Any) -> Any:
        counts = read(*arguments)
        if not reads:
            reads.append(counts)
            place.run()
        return counts

    with monkeypatch.context() as patched:
        patched.setattr(rebuilding, "verify", lambda *_: None)
        patched.setattr(rebuilding.Rebuild, "verify", lambda *_: None)
        patched.setattr(verifying, "_counts", read_while_replaced)
        assert place.is_exact()
    assert reads


def test_read_model_after_a_rebuild(place: Place) -> None:
    place.write(200)
    place.stream().count()
    with Analytics(place.pipeline.redis_url, place.pipeline.hash_key) as analytics:
        times: Any = {"begin_ms": FIRST_MS, "end_ms": FIRST_MS + 48 * HOUR.ms}
        before = analytics.windows(HOUR.ms, by="page", **times), analytics.sessions(**times)
        place.run()
        assert (analytics.windows(HOUR.ms, by="page", **times), analytics.sessions(**times)) == before


def test_lost_bucket_of_the_rebuild(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.write()
    place.stream().count()
    place.damage()

    def verify_and_lose(*arguments: Any) -> Any:
        result = verify(*arguments)
        (minute, *_) = place.client.scan_iter(f"{place.keys.beside('rebuild')}:minute:[0-9]*", count=10_000)
        place.client.unlink(minute)
        return result

    monkeypatch.setattr(rebuilding, "verify", verify_and_lose)
    place.run()
    assert place.is_exact()


def test_count_that_was_started_over(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.write()
    place.stream().count()
    kill_at(place, 4, monkeypatch)
    reset = ["sink", "reset", "redis", "--redis", place.pipeline.redis_url, "--hash-key", place.pipeline.hash_key]
    shown = CliRunner().invoke(onceflow, [*reset, "--json"])
    kept = [line for line in json.loads(shown.stdout)["kept"] if "rebuild" in line]
    assert kept and not any(re.search(r"minute:\d", line) for line in kept)  # Not every bucket is listed.
    CliRunner().invoke(onceflow, [*reset, "--execute"])
    assert not place.client.exists(place.keys.marker) and place.own_keys()
    place.stream("another query").count()
    place.damage()
    place.run()
    assert place.is_exact()


@pytest.mark.remedy(Remedy.DISCARD_REBUILD)
def test_difference_prevents_the_replacement(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.write()
    place.stream().count()
    before = place.state()

    def wrong(*arguments: Any) -> Frame:
        return Frame([*rows_again(*arguments)._rows, ("totals", b"clicks", 1, None)])

    with monkeypatch.context() as patched:
        patched.setattr(ClickPipeline, "rows_again", wrong)
        with pytest.raises(RebuildRefused, match=r"in 1 fields .*:totals clicks") as refused:
            place.run()
    remedies.find(Remedy.DISCARD_REBUILD, refused.value)
    assert place.state() == before
    where = ["--redis", place.pipeline.redis_url, "--hash-key", place.pipeline.hash_key]
    done = CliRunner().invoke(onceflow, ["rebuild", "--discard", *where])
    assert done.output.startswith("deleted ") and not place.own_keys()
    assert place.state() == before
    assert not place.run().resumed


@pytest.mark.remedy(Remedy.REBUILD_AGAIN)
def test_failure_of_spark(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.write()
    place.stream().count()
    monkeypatch.setattr(ClickPipeline, "session", lambda _: contextlib.nullcontext(SPARK))
    with monkeypatch.context() as patched:
        patched.setattr(ClickPipeline, "rows_again", failing_rows)
        with pytest.raises(RebuildRefused, match="the disk") as refused:
            place.rebuild().run()
    remedies.find(Remedy.REBUILD_AGAIN, refused.value)
    where = ["--bootstrap", place.pipeline.bootstrap, "--redis", place.pipeline.redis_url]
    command = ["rebuild", *where, "--hash-key", place.pipeline.hash_key]
    document = json.loads(CliRunner().invoke(onceflow, [*command, "--json"]).stdout)
    totals = {"events": 31, "clicks": document["after"]["clicks"], "users": document["after"]["users"], "bad": 1}
    assert document == {
        "hash_key": place.pipeline.hash_key,
        "topic": place.topic,
        "resumed": True,
        "verified_events": 31,
        "before": totals,
        "after": totals,
    }
    done = CliRunner().invoke(onceflow, command)
    assert f"replaced the counts of {place.pipeline.hash_key} by those of {place.topic}" in done.stdout


def test_log_without_counted_events_is_refused(place: Place) -> None:
    place.write()
    place.stream().count()
    rebuild = place.rebuild()
    live = rebuild.live()
    with Cluster(place.pipeline.bootstrap) as cluster:
        Admin(cluster).delete_records(place.topic, {0: 5})
        with pytest.raises(RebuildRefused, match=r"-0 was counted from offset 0 and the log starts at 5; the counts"):
            rebuild.check_log(live)
        with pytest.raises(RebuildRefused, match="-7 was counted and no longer exists"):
            rebuild.check_log(replace(live, since={place.topic: {7: 0}}))
        cluster.delete_topic(place.topic)
        cluster.create_topic(place.topic, 2)
        with pytest.raises(RebuildRefused, match="was deleted and created again"):
            rebuild.check_log(live)


def test_other_live_counts_are_refused(place: Place) -> None:
    with pytest.raises(NothingCounted):
        place.rebuild().live()
    place.write(2)
    stream = place.stream()
    stream.count(at_most=lambda begin, _: begin)
    with pytest.raises(NothingCounted, match="nothing is counted yet"):
        place.rebuild().live()
    stream.count()
    marker = place.keys.marker
    fields = place.client.hgetall(marker)
    loss = {
        "kind": "trimmed",
        "topic": "t",
        "partition": 0,
        "begin": 0,
        "end": 5,
        "batch": 1,
        "at_ms": 1,
        "option": "o",
    }
    for change, error, message in (
        ({"format": "3"}, RebuildRefused, "of an earlier version"),
        ({"plan_version": "1"}, RebuildRefused, "by version 1 of the rules, and a rebuild counts by version 2; the"),
        ({"losses": json.dumps([loss])}, RebuildRefused, "an accepted loss removed"),
        ({"plan": "another"}, OtherJob, "a rebuild counts only by the plan"),
    ):
        place.client.hset(marker, mapping=change)
        with pytest.raises(error, match=message):
            place.rebuild().live()
        place.client.delete(marker)
        place.client.hset(marker, mapping=fields)


def test_begun_batch_is_finished_first(place: Place) -> None:
    place.write()
    place.stream().count()
    rebuild = place.rebuild()
    live = rebuild.live()
    target = rebuild.target(live, SPARK)
    target.open(SPARK, "q")
    first = next_batch(None, live)
    assert first is not None
    rebuild.step(target, live)
    own = target.marker()
    assert own is not None and next_batch(own, live) is None
    begun = next_batch(replace(own, complete=False), live)
    assert begun is not None and (begun.digest, begun.number, list(begun.ranges)) == (
        first.digest,
        0,
        list(first.ranges),
    )


COMMANDS = [
    name
    for names in re.findall(
        r"-@all (.*)$|with buckets or event ids also `([^`]*)`|rebuild` needs .*`(.*)`",
        (ROOT / "docs/redis.md").read_text(),
        re.M,
    )
    for name in " ".join(names).split()
]
"""Commands that docs/redis.md names for a rebuild's user: the sink's, a reader's, those for buckets, its own."""


@pytest.fixture
def user_url(place: Place) -> Iterator[Callable[[list[str]], str]]:
    """Return the address of Redis for a user with these commands on the place's keys."""
    name, key = f"user-{place.topic}", place.pipeline.hash_key

    def make(commands: list[str]) -> str:
        place.client.execute_command("ACL", "SETUSER", name, "reset", "on", ">secret", f"~{key}", f"~{{{key}}}:*")
        place.client.execute_command("ACL", "SETUSER", name, "-@all", *commands)
        return place.pipeline.redis_url.replace("redis://", f"redis://{name}:secret@")

    yield make
    place.client.execute_command("ACL", "DELUSER", name)


def test_documented_commands_suffice(place: Place, user_url: Callable[[list[str]], str]) -> None:
    place.write()
    place.stream().count()
    place.damage()
    rebuild = replace(place.rebuild(), redis_url=user_url(COMMANDS))
    rebuild.run_in(SPARK, rebuild.live())
    assert place.is_exact()


@pytest.mark.parametrize("missing", ["+rename", "+zcard", "+zrange"])
def test_missing_command_prevents_the_replacement(
    place: Place, user_url: Callable[[list[str]], str], missing: str
) -> None:
    place.write()
    place.stream().count()
    before = place.state()
    rebuild = replace(place.rebuild(), redis_url=user_url([command for command in COMMANDS if command != missing]))
    with pytest.raises(OnceflowError, match=f"(?i){missing[1:]}"):
        rebuild.run_in(SPARK, rebuild.live())
    assert place.state() == before


def test_rebuild_in_a_cluster(bootstrap: str, topic: str, new_redis: Callable[..., RedisProcess]) -> None:
    place = Place(bootstrap, topic, RedisCluster(new_redis, masters=2).url)
    place.write()
    stream = place.stream()
    stream.count()
    place.damage()
    assert not place.is_exact()
    assert place.run().verified.is_equal
    assert place.is_exact()
    place.write()
    stream.count()
    assert place.is_exact()
    redis_pool.close()
