"""The Redis sink's target: one script makes a batch's counts and its marker visible.

The sink's steps are those of the marker: `recover` takes the owner epoch, `write` writes the chunks of a large batch,
`commit` runs the script that completes it (the only one of a small batch) and waits for Redis's disk. Readers may see
a large batch half applied, never twice.
"""

import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import redis
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from onceflow.errors import OnceflowError
from onceflow.redis import errors as redis_errors
from onceflow.redis import pool as redis_pool
from onceflow.redis.address import shown
from onceflow.remedies import Remedy
from onceflow.spark import failure
from onceflow.spark.errors import AttemptEnded, MarkerRefused, SinkStopped
from onceflow.spark.exactly_once import decision
from onceflow.spark.exactly_once.batch import NO_BATCH, Batch
from onceflow.spark.exactly_once.checkpoint import Checkpoint
from onceflow.spark.exactly_once.decision import Refuse, TargetRolledBack, Wording
from onceflow.spark.exactly_once.proof import Proof
from onceflow.spark.redis import marker as markers
from onceflow.spark.redis import repair
from onceflow.spark.redis import scripts as redis_scripts
from onceflow.spark.redis import settings as redis_settings
from onceflow.spark.redis.batch import BatchWriter
from onceflow.spark.redis.buckets import Argument
from onceflow.spark.redis.marker import Marker
from onceflow.spark.redis.repair import MissingRanges, Step
from onceflow.spark.redis.rows import columns_of
from onceflow.spark.redis.scripts import BucketLost, Keys, OwnerLost
from onceflow.spark.redis.targets import Append
from onceflow.spark.sink import Sink, consume

_log = logging.getLogger(__name__)

HISTORY_LENGTH = 600
SYNC_WAIT_MS = 10_000
REPAIR_STEPS = 3
LOOKS = 100
"""Scripts of one check of buckets, each for some 1,000 of them."""

Rebuild = Callable[[MissingRanges], DataFrame]
"""Returns the sink's rows of these offsets, and of no others, by the same code as the query."""


class UnsuitableRedis(OnceflowError):
    """This Redis does not keep writes as the sink requires: a setting is unsuitable, or a sync failed."""


class RepairFailed(MarkerRefused):
    """The batches that Redis lost could not be counted again."""


class RedisTarget(Sink):
    """The target of one start of one query's sink."""

    def __init__(
        self,
        url: str,
        keys: Keys,
        *,
        name: str,
        rebuild: Rebuild | None = None,
        records: Rebuild | None = None,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self.name = name
        self.batch_done = NO_BATCH
        """Last batch that Redis is known to have had complete."""
        self.moment = "before the first batch"
        """The current step, for messages of failures."""
        self._url = url
        self.keys = keys
        self._history = Append("history", keys.history, HISTORY_LENGTH)
        self._rebuild = rebuild
        self._records = records
        self._now_ms = now_ms
        self._session: Any = None
        self._owner: str | None = None
        self._settled = NO_BATCH
        self._waits_for_sync = True
        self._reads_settings = True
        self._looked = (0, 0)
        """Index and cursor where the check of buckets continues."""
        self._rows_before: int | None = None
        self.is_stateful = False
        """Whether a batch's rows may depend on earlier offsets."""

    @property
    def wording(self) -> Wording:
        return markers.wording(self.keys.marker, self.keys.reset)

    def open(self, session: Any, query: str | None) -> None:
        """Refuse a Redis that may drop keys, and for a new query, counts of another one.

        Raises MarkerRefused, UnsuitableRedis, RedisFailed.
        """
        redis_pool.enter(self._url, self)
        self._session = session
        self.moment = "before the first batch"
        with self._translate_redis_errors():
            self._check_redis()
            marker = self.read() if query is None else None
        if marker is not None:
            raise MarkerRefused(decision.used_already(marker, self.wording).reason)

    def recover(self, query: str) -> Marker | None:
        """Take the owner epoch, so that writes with an older one are refused, and read the marker."""
        with self._translate_redis_errors():
            self._check_settings()
            marker = self.read()
            if marker is None or marker.query != query:
                return marker
            if self._owner is None:
                self._acquire(query, {}, may_create=False)
                marker = self.read()
                assert marker is not None
            if marker.complete:
                self._settle(query, marker.batch)
        self.batch_done = max(self.batch_done, marker.batch_done)
        return marker

    def prepare(self, batch: Batch, previous: Proof | None) -> None:
        """Create the marker if there is none."""
        assert previous is None or isinstance(previous, Marker)
        self.moment = f"in batch {batch.number}"
        with self._translate_redis_errors():
            if previous is None:
                self._acquire(batch.query, markers.first_fields(batch, self.name), may_create=batch.number == 0)
            elif previous.lost:
                self._delete_counts(batch.query)  # Batch 0, whose rows come from Spark.
        rows_before = None if self.is_stateful else self._rows_before
        self._writer = replace(self._writer_of(batch, previous), rows_before=rows_before)

    def write(self, rows: DataFrame) -> None:
        """Write the chunks of a large batch, each by one script."""
        self._rows_before = None  # After a failure the batch is measured again.
        with self._translate_redis_errors():
            self._writer.write(rows)
        self._rows_before = self._writer.rows_before

    def commit(self, proof: Proof) -> None:
        """Run the script that completes the batch."""
        with self._translate_redis_errors():
            self._writer.commit()
            self._settle(proof.query, proof.batch)
        self.batch_done = proof.batch

    def close(self) -> None:
        redis_pool.leave(self._url, self)

    def lost_since(self, expected: int) -> TargetRolledBack | None:
        """Return the refusal if Redis no longer holds batch `expected`; None if it does.

        Raises MarkerRefused, UnsuitableRedis, RedisFailed.
        """
        if expected == NO_BATCH:
            return None
        with self._translate_redis_errors():
            self._check_settings()
            self._check_buckets()
        marker = self.marker()
        if marker is None:
            raise MarkerRefused(decision.missing(expected, self.wording).reason)
        return decision.rolled_back(marker, expected, self.wording) if marker.batch_done < expected else None

    def repair(self, lost: TargetRolledBack, target: Batch, checkpoint: Checkpoint) -> None:
        """Bring marker and counts to a complete batch `target` by counting the missing offsets again.

        Raises MarkerRefused if that cannot be done correctly.
        """
        if self._rebuild is None:
            raise MarkerRefused(lost.reason)
        refusal = repair.refusal_of_state(checkpoint, self.wording)
        if refusal is not None:
            raise MarkerRefused(refusal.reason)
        _log.warning("%s; counting the missing offsets again from the log", lost.reason)
        with self._translate_redis_errors():
            self._acquire(target.query, {}, may_create=False)  # Redis may have lost an epoch taken before, too.
            for _ in range(REPAIR_STEPS):
                marker = self.read()
                if marker is None:
                    raise MarkerRefused(lost.reason)
                step = repair.next_step(marker, target, checkpoint, self.wording)
                if step is None:
                    break
                if isinstance(step, Refuse):
                    raise MarkerRefused(step.reason)
                if marker.lost:
                    self._rewind(marker, {step.batch.number: step, target.number: Step(target)}.values())
                self._write_again(step, marker)
            self._settled = NO_BATCH
            self._settle(target.query, target.number)
        self.batch_done = max(self.batch_done, target.number)
        _log.warning("marker %s is repaired up to batch %d", self.keys.marker, target.number)

    def replace(self, query: str, other: Keys, expected: Mapping[str, str], identity: str) -> str | None:
        """Make these counts those of the sink `other` in one step, after which this sink no longer exists.

        Both have counted the same offsets, and the other's marker has the `expected` fields. The keys of the two are in
        the same order and slot. `identity` names the replacement in the marker, so it can be repeated. Return None, or
        what is otherwise about the other sink, in which case nothing has changed.
        """
        assert self._owner is not None
        pairs = [text for pair in expected.items() for text in pair]
        arguments: list[Argument] = [query, self._owner, identity, len(expected), *pairs]
        with self._translate_redis_errors():
            wait_ms = SYNC_WAIT_MS if self._waits_for_sync else None
            reply, is_synced = redis_scripts.replace_counts(
                self._client(), self.keys, other, arguments, wait_ms=wait_ms
            )
            if reply[0] == "other":
                return f"{reply[1]} {reply[2]!r}"
            redis_scripts.raise_refusal(self.keys, reply)
        if not is_synced:
            raise self._unsynced("the rebuilt counts")
        return None

    def marker(self) -> Marker | None:
        """Return the present marker without taking over. Raises MarkerRefused, RedisFailed."""
        with self._translate_redis_errors():
            return self.read()

    def read(self) -> Marker | None:
        """Return the marker; a rewound one if a written key is lost, since everything must be counted again.

        Raises MarkerRefused if there are counts without a marker, read at the same instant.
        """
        keys = self.keys
        fields, absent = redis_scripts.marker_fields(self._client(), keys.marker, keys.data)
        marker = markers.parse(keys.marker, fields, sink=self.name, reset=keys.reset, absent=absent)
        if marker is not None:
            return marker.rewound() if marker.lost else marker
        present = [key for key in keys.data if key not in absent]
        if present:
            raise MarkerRefused(self._why_without_marker(present))
        return None

    def _why_without_marker(self, present: list[str]) -> str:
        """Return why data keys that exist without a marker are refused."""
        marker = self.keys.marker
        claims = redis_scripts.claims_of(self._client(), present)
        for key in present:
            claim = claims.get(key)
            if claim is None:
                return redis_scripts.claimed_by_none(key)
            if claim != marker:
                return redis_scripts.claimed_by_other(key, claim, marker)
        return f"there is no marker {marker}, but there are counts that belong to it: {self.wording.remedy}"

    def _client(self) -> Any:
        return redis_pool.client(self._url, self.keys.marker)

    @contextlib.contextmanager
    def _translate_redis_errors(self) -> Iterator[None]:
        """Translate Redis's errors; if Redis rolled back the owner epoch while this start ran, end the attempt."""
        try:
            yield
        except redis.RedisError as error:
            raise redis_errors.failed(self._url, self.moment, error) from error
        except AttemptEnded as ended:
            if isinstance(ended, BucketLost):
                self._confirm_loss(ended)
            # Remains of this attempt in an executor carry the former epoch, and are refused from now on.
            self._owner = None
            raise
        except OwnerLost as lost:
            if not self._is_owner_rolled_back():
                raise
            self._owner = None
            raise AttemptEnded(str(lost)) from lost

    def _is_owner_rolled_back(self) -> bool:
        """Return whether the marker's owner is an earlier start than this one: Redis lost this one's epoch."""
        try:
            owner = self._client().hget(self.keys.marker, "owner")
        except redis.RedisError as error:
            raise redis_errors.failed(self._url, self.moment, error) from error
        return owner is not None and self._owner is not None and int(owner) < int(self._owner)

    def _acquire(self, query: str, first_fields: Mapping[str, str], *, may_create: bool) -> None:
        """Take the next owner epoch: from now on earlier starts are refused."""
        now_ms = self._now_ms()
        arguments = redis_scripts.acquire_arguments(
            self.keys, query, first_fields, may_create=may_create, now_ms=now_ms
        )
        reply = redis_scripts.run(self._client(), "acquire", self.keys, arguments)
        redis_scripts.raise_refusal(self.keys, reply)
        self._owner = reply[1]

    def _delete_counts(self, query: str) -> None:
        """Delete the rest of counts with a lost key, and rewind the marker to before the first batch."""
        assert self._owner is not None
        client, keys = self._client(), self.keys
        # Another key may be named like a bucket.
        besides = redis_scripts.claimed(client, keys.claims) if keys.indexes else {}
        for touched in (*redis_scripts.buckets_in(client, keys.indexes, besides=besides), []):
            reply = redis_scripts.run(client, "rewind", keys, [query, self._owner], touched)
            redis_scripts.raise_refusal(keys, reply)

    def _check_settings(self) -> None:
        """Refuse settings that were changed since the query started and could lose a write."""
        if not self._reads_settings:
            return
        settings = redis_settings.read(self._client())
        reason = redis_settings.why_unsuitable(settings, is_synced=self._waits_for_sync)
        if reason is not None:
            raise UnsuitableRedis(
                f"settings of Redis at {shown(self._url)} were changed while the query runs: {reason}"
            )

    def _confirm_loss(self, lost: BucketLost) -> None:
        assert self._owner is not None
        try:
            redis_scripts.confirm_loss(self._client(), self.keys, self._owner, lost)
        except redis.RedisError as error:
            raise redis_errors.failed(self._url, self.moment, error) from error

    def _check_buckets(self) -> None:
        """Record in the marker if a bucket is lost; of many buckets, each call checks the next ones."""
        if self._owner is None or not self.keys.indexes:
            return
        client = self._client()
        for _ in range(LOOKS):
            number, cursor = self._looked
            try:
                cursor = redis_scripts.look(client, self.keys, self._owner, self.keys.indexes[number], cursor)
            except BucketLost as lost:
                redis_scripts.confirm_loss(client, self.keys, self._owner, lost)
                return
            self._looked = (number, cursor) if cursor else ((number + 1) % len(self.keys.indexes), 0)
            if self._looked == (0, 0):
                return

    def _writer_of(self, batch: Batch, marker: Marker | None) -> BatchWriter:
        assert self._owner is not None
        return BatchWriter(self._url, self.keys, self._history, self._owner, batch, marker, self._now_ms, self._records)

    def _rewind(self, marker: Marker, steps: Iterable[Step]) -> None:
        """Delete the rest of the counts, after reading from the log everything that they were counted from."""
        with self._counting_again(marker):
            for step in steps:
                if step.missing is not None:
                    consume(self.rows_again(step.missing))
        self._delete_counts(marker.query)

    def _write_again(self, step: Step, marker: Marker) -> None:
        writer = self._writer_of(step.batch, marker)
        with self._counting_again(marker):
            writer.write(self.rows_again(step.missing))
            writer.commit()

    @contextlib.contextmanager
    def _counting_again(self, marker: Marker) -> Iterator[None]:
        try:
            yield
        except (SinkStopped, AttemptEnded):
            raise
        except (PySparkException, OnceflowError) as error:
            raise RepairFailed(
                f"Redis lost batches: {self.wording.marker} {marker.shown_state} and they cannot be counted again "
                f"({failure.describe(error)}): {Remedy.RESTORE_TARGET.format(target='Redis')}, or {self.wording.remedy}"
            ) from error

    def rows_again(self, missing: MissingRanges | None) -> DataFrame:
        """Return the sink's rows of these offsets, by the job's function; None: no rows."""
        assert self._rebuild is not None
        if missing is not None:
            return self._rebuild(missing)
        columns = columns_of(self.keys).items()
        empty: DataFrame = self._session.createDataFrame([], ", ".join(map(" ".join, columns)))
        return empty

    def _settle(self, query: str, batch: int) -> None:
        """Wait until Redis has synced the batch to its AOF, so that it cannot lose a batch that Spark commits."""
        if not self._waits_for_sync or batch == self._settled or batch == NO_BATCH:
            return
        assert self._owner is not None
        arguments: tuple[Argument, ...] = (query, self._owner, batch)
        if not redis_scripts.settle(self._client(), self.keys, arguments, wait_ms=SYNC_WAIT_MS):
            raise self._unsynced(f"batch {batch}")
        self._settled = batch

    def _unsynced(self, what: str) -> UnsuitableRedis:
        return UnsuitableRedis(
            f"Redis at {shown(self._url)} did not sync {what} to its append-only file within "
            f"{SYNC_WAIT_MS / 1000:g} s: {Remedy.REDIS_SYNC}, then {Remedy.START_AGAIN}; no data was lost"
        )

    def _check_redis(self) -> None:
        """Refuse a Redis that may drop keys, and check whether it can report when a write is on disk."""
        client = self._client()

        def ask() -> Any:
            reply = client.info()
            redis_settings.require_loaded(reply)
            return reply

        try:
            info = redis_errors.patiently(ask, pool=client.connection_pool)
        except redis.ResponseError as error:
            if not redis_errors.is_absent(error):
                raise
            _log.warning(
                "Redis at %s refuses INFO (%s), so its settings are not checked; %s",
                shown(self._url),
                error,
                Remedy.KEEP_ALL_KEYS,
            )
            self._waits_for_sync = self._reads_settings = False
            return
        policy = str(info.get("maxmemory_policy", "noeviction"))
        if policy != "noeviction":
            raise UnsuitableRedis(
                f"Redis at {shown(self._url)} has maxmemory-policy {policy!r} and may drop counts: "
                f"{Remedy.CONFIG_SET.format(name='maxmemory-policy', value='noeviction')}"
            )
        version = info.get("valkey_version") or info.get("redis_version")
        unsynced = redis_settings.why_unsynced(client, info)
        self._waits_for_sync = unsynced is None
        if unsynced is not None:
            _log.warning(
                "Redis %s at %s cannot report when a write is on disk (%s): after a crash of Redis batches can be "
                "missing, which %s",
                version,
                shown(self._url),
                unsynced.reason,
                "stops the query" if self._rebuild is None else "are then counted again from the log",
            )
        if redis_settings.leaves_torn_scripts(client, info):
            _log.warning(
                "Redis %s at %s has aof-load-truncated 'yes': if a power cut tears a script at the end of its "
                "append-only file, it may keep the script's start there and apply it at its second next start; %s, "
                "or %s",
                version,
                shown(self._url),
                Remedy.REWRITE_AOF,
                Remedy.NEWER_VALKEY.format(version=".".join(map(str, redis_settings.WHOLE_TAILS_SINCE))),
            )
