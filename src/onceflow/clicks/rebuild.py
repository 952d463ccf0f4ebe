"""Rebuild of all counts from the log, beside the live ones, and their replacement in one step.

The rebuild of hash key H counts under the hash key `{H}:rebuild`, with its own marker and the scripts of the sink, up
to the offsets of the live marker. Its progress is only in Redis, so a killed rebuild resumes. No key of H changes
before the replacement. `docs/decisions/rebuild-beside-the-live-counts.md` has the reasons.

Each step is a method: `live`, `step`, `verify`, `replace`.
"""

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from onceflow.clicks.job import EVENTS_PER_BATCH_MAX
from onceflow.clicks.pipeline import PLAN_VERSION, ClickPipeline
from onceflow.clicks.plan import parse_plan
from onceflow.clicks.results import Keys, MarkerView, NothingCounted, Results, Snapshot, refuse_other_job
from onceflow.clicks.verify import Verdict, verify
from onceflow.client.cluster import EARLIEST, Cluster
from onceflow.client.security import read_security
from onceflow.errors import OnceflowError
from onceflow.remedies import Remedy
from onceflow.spark.exactly_once.batch import NO_BATCH, Batch
from onceflow.spark.exactly_once.proof import proof_of
from onceflow.spark.failure import describe
from onceflow.spark.offsets import OffsetRange
from onceflow.spark.redis.marker import FORMAT, Marker, redis_reset
from onceflow.spark.redis.repair import Step
from onceflow.spark.redis.sink_state import forget_redis_keys, redis_keys
from onceflow.spark.redis.target import RedisTarget
from onceflow.spark.sink import within_attempts

REPLACE_ATTEMPTS = 100
"""Attempts to count what a running stream has counted meanwhile and to replace its counts before its next batch."""
COMPARED = ("format", "query", "batch", "complete", "digest", "lost", "plan", "rebuilt")
"""Fields of the live marker that a replacement requires to be unchanged; its script compares the offsets, too."""


class RebuildRefused(OnceflowError):
    """Counts that cannot be rebuilt or replaced; the live ones are unchanged."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Offsets that the rebuild has counted, and those that the live marker has."""

    counted: int
    total: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """A finished rebuild: the counts before and after the replacement."""

    topic: str
    resumed: bool
    before: Snapshot
    after: Snapshot
    verified: Verdict


@dataclass(frozen=True)
class Rebuild:
    """Rebuild of the counts of `onceflow run` under one hash key, by the plan in its marker."""

    bootstrap: str
    redis_url: str
    hash_key: str
    kafka: Mapping[str, str] = field(default_factory=dict, repr=False)
    session: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the Spark session, as those of a StreamingJob."""
    on_progress: Callable[[Progress], None] = lambda _: None

    @property
    def own_key(self) -> str:
        """Hash key of the rebuilt counts, in the slot of the live ones."""
        return Keys(self.hash_key).beside("rebuild")

    def run(self) -> Outcome:
        """Rebuild, verify and replace. Raises RebuildRefused, and the errors of sink, results and verify."""
        live = self.live()
        self.check_log(live)
        try:
            with self._pipeline(live, self.own_key).session() as spark:
                return self.run_in(spark, live)
        except (PySparkException, Py4JError, OSError) as error:
            raise RebuildRefused(
                f"the counts of '{self.hash_key}' could not be rebuilt ({describe(error)}); they are unchanged: "
                f"{Remedy.REBUILD_AGAIN}"
            ) from error

    def run_in(self, spark: SparkSession, live: MarkerView) -> Outcome:
        """Run in an existing session."""
        target = self.target(live, spark)
        target.open(spark, _query_of(live))
        try:
            is_resumed = target.marker() is not None
            self.count(target, live)
            verified = self.verify(live)
            with Results(self.redis_url, self.hash_key) as results:
                before = results.snapshot()
                self.replace(target)
                return Outcome(_topic_of(live), is_resumed, before, results.snapshot(), verified)
        finally:
            target.close()

    # Steps

    def live(self) -> MarkerView:
        """Return the live marker at a complete batch. Raises RebuildRefused and the errors of Results."""
        with Results(self.redis_url, self.hash_key) as results:
            refuse_other_job(self.hash_key, results.marker(), "a rebuild counts only by the plan of 'onceflow run'")
            live: MarkerView = results.at_one_batch(lambda marker: marker)
        if not _size(live, live.offsets):
            raise NothingCounted(f"nothing is counted yet under '{self.hash_key}': {Remedy.START_RUN}")
        if live.fields["format"] != FORMAT:
            raise RebuildRefused(f"the marker of '{self.hash_key}' is of an earlier version: {Remedy.START_RUN}")
        if live.fields["plan_version"] != str(PLAN_VERSION):
            raise RebuildRefused(
                f"the counts of '{self.hash_key}' are by version {live.fields['plan_version']} of the rules, and a "
                f"rebuild counts by version {PLAN_VERSION}{self._kept()}"
            )
        if live.losses:
            raise RebuildRefused(
                f"an accepted loss removed counted events from the log: {live.losses[0]}{self._kept()}"
            )
        return live

    def check_log(self, live: MarkerView) -> None:
        """Raise RebuildRefused unless the log still has every counted offset of the same topic."""
        topic = _topic_of(live)
        with Cluster(self.bootstrap, security=read_security(self.kafka)) as cluster:
            metadata = cluster.require_topic(topic)
            starts = cluster.list_offsets(topic, dict.fromkeys(metadata.partitions, EARLIEST))
        counted_id = live.topic_ids.get(topic)
        if counted_id is not None and metadata.topic_id is not None and counted_id != str(metadata.topic_id):
            raise RebuildRefused(f"topic {topic} was deleted and created again since it was counted{self._kept()}")
        for number, begin in sorted(live.since[topic].items()):
            if number not in starts:
                raise RebuildRefused(f"{topic}-{number} was counted and no longer exists{self._kept()}")
            if begin < starts[number].offset and begin < live.offsets[topic][number]:
                raise RebuildRefused(
                    f"{topic}-{number} was counted from offset {begin} and the log starts at "
                    f"{starts[number].offset}{self._kept()}"
                )

    def target(self, live: MarkerView, spark: SparkSession) -> RedisTarget:
        """Return the sink's target of the rebuilt counts."""
        target = self._pipeline(live, self.own_key).sink(spark).target
        target.keys = replace(target.keys, reset="onceflow rebuild --discard")
        return target

    def count(self, target: RedisTarget, live: MarkerView) -> None:
        """Count up to the live marker's offsets."""
        while within_attempts(f"the rebuild of '{self.hash_key}' failed", lambda: self.step(target, live)):
            pass

    def step(self, target: RedisTarget, live: MarkerView) -> bool:
        """Count one batch; return false if the rebuild has reached the live marker. Raises AttemptEnded."""
        query = _query_of(live)
        own = target.recover(query)
        if own is not None and is_stale(own, live):
            self.discard()
            own = target.recover(query)
        batch = next_batch(own, live)
        if batch is None:
            return False
        target.prepare(batch, own)
        target.write(target.rows_again(Step(batch).missing))
        proof = proof_of(batch, target.name, own)
        target.commit(proof)
        assert proof.offsets is not None
        self.on_progress(Progress(_size(live, proof.offsets), _size(live, live.offsets)))
        return True

    def verify(self, live: MarkerView) -> Verdict:
        """Recount the log and compare it with the rebuilt counts. Raises RebuildRefused if they differ."""
        verdict = verify(self.bootstrap, _topic_of(live), self.redis_url, self.own_key, read_security(self.kafka))
        if not verdict.is_equal:
            raise RebuildRefused(
                f"the rebuilt counts differ from the log in {len(verdict.differences)} fields ("
                f"{verdict.differences[0]}), so those of '{self.hash_key}' are unchanged: {Remedy.DISCARD_REBUILD}"
            )
        return verdict

    def replace(self, target: RedisTarget) -> None:
        """Replace the live counts, after counting what a running stream has counted meanwhile."""
        identity = uuid.uuid4().hex
        for _ in range(REPLACE_ATTEMPTS):
            if within_attempts(
                f"the counts of '{self.hash_key}' were not replaced", lambda: self._replaced(target, identity)
            ):
                return
        raise RebuildRefused(
            f"'onceflow run' counts faster than the rebuild of '{self.hash_key}' follows, in {REPLACE_ATTEMPTS} "
            f"attempts; its counts are unchanged: {Remedy.PAUSE_RUN}"
        )

    def _replaced(self, target: RedisTarget, identity: str) -> bool:
        live = self.live()
        if live.fields.get("rebuilt") == identity:  # An earlier attempt has done it, and its reply was lost.
            return True
        self.count(target, live)
        expected = {name: live.fields.get(name, "") for name in COMPARED}
        keys = self._pipeline(live, self.hash_key).sink(None).target.keys
        return target.replace(_query_of(live), keys, expected, identity) is None

    def discard(self) -> int:
        """Delete the rebuilt counts; return the number of keys. Raises RedisFailed."""
        keys = redis_keys(self.redis_url, self.own_key, [])
        forget_redis_keys(self.redis_url, keys)
        return len(keys.own) + sum(map(len, keys.buckets.values()))

    def _pipeline(self, live: MarkerView, hash_key: str) -> ClickPipeline:
        plan = parse_plan(live.plan)
        assert plan is not None
        return ClickPipeline(
            bootstrap=self.bootstrap,
            topic=_topic_of(live),
            checkpoint="",
            redis_url=self.redis_url,
            hash_key=hash_key,
            key_field=plan.key_field,
            value_field=plan.value_field,
            time_field=plan.time_field,
            measures=plan.measures,
            event_ids_ms=plan.event_ids_ms,
            kafka=self.kafka,
            **self.session,
        )

    def _kept(self) -> str:
        """Return the end of a message about events that the log no longer has."""
        reset = redis_reset(self.redis_url, self.hash_key, None)
        return f"; the counts are unchanged: to count what the log still has, {Remedy.COUNT_AGAIN.format(reset=reset)}"


def next_batch(own: Marker | None, live: MarkerView) -> Batch | None:
    """Return the batch to finish, or the next one up to the live offsets; None when they are reached."""
    if own is not None and not own.complete:
        return Batch(own.query, own.batch, own.parts, own.plan, own.plan_version, own.topic_ids)
    topic = _topic_of(live)
    ends = live.offsets[topic]
    begins = {number: _end_of(own, topic, number, live.since[topic][number]) for number in ends}
    is_known = own is not None and all(own.end_of(topic, number) is not None for number in ends)
    size = sum(ends[number] - begins[number] for number in ends)
    if size == 0 and is_known:
        return None
    share = min(1.0, EVENTS_PER_BATCH_MAX / size) if size else 0.0
    ranges = [
        OffsetRange(topic, number, begin, min(ends[number], begin + int((ends[number] - begin) * share) + 1))
        for number, begin in sorted(begins.items())
    ]
    number = NO_BATCH if own is None else own.batch
    return Batch(_query_of(live), number + 1, ranges, live.plan, PLAN_VERSION, live.topic_ids)


def is_stale(own: Marker, live: MarkerView) -> bool:
    """Return whether a begun rebuild is of other counts than the live ones, or was begun by another version."""
    if (own.query, own.plan, own.plan_version) != (_query_of(live), live.plan, PLAN_VERSION):
        return True
    topic = _topic_of(live)
    since, offsets, ids = own.since or {}, own.offsets or {}, dict(own.topic_ids)
    return (
        bool({*since, *offsets} - {topic})
        or any(live.since[topic].get(int(number)) != begin for number, begin in since.get(topic, {}).items())
        or any(live.offsets[topic].get(int(number), -1) < end for number, end in offsets.get(topic, {}).items())
        or ids.get(topic, live.topic_ids.get(topic)) != live.topic_ids.get(topic)
    )


def _end_of(own: Marker | None, topic: str, number: int, begin: int) -> int:
    end = None if own is None else own.end_of(topic, number)
    return begin if end is None else end


def _size(live: MarkerView, offsets: Mapping[str, Mapping[Any, int]]) -> int:
    """Return the number of offsets from the live marker's first ones up to these."""
    ranges = ((end, live.since[topic][int(number)]) for topic, ends in offsets.items() for number, end in ends.items())
    return sum(end - begin for end, begin in ranges)


def _topic_of(live: MarkerView) -> str:
    (topic,) = live.offsets
    return topic


def _query_of(live: MarkerView) -> str:
    """Return the query of the rebuild's marker, which differs after the live counts were started over."""
    return f"rebuild of {live.query}"
