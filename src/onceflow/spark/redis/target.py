"""Where the Redis sink writes: a batch's counts and the marker that says so become visible in the same script.

The base's steps are those of the marker: `recover` takes the owner epoch, `write` does the chunks of a large batch,
`commit` runs the script that completes it, which is the only one of a small batch, and waits for Redis's disk.
A large batch may be seen half applied by readers, never twice.
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
from onceflow.redis import errors as redis_answers
from onceflow.redis import pool as redis_pool
from onceflow.redis.address import shown
from onceflow.remedies import Remedy
from onceflow.spark.exactly_once import decision, failure
from onceflow.spark.exactly_once.batch import NO_BATCH, Batch
from onceflow.spark.exactly_once.checkpoint import Checkpoint
from onceflow.spark.exactly_once.decision import Refuse, WentBack, Wording
from onceflow.spark.exactly_once.proof import Proof
from onceflow.spark.exactly_once.sink_errors import AttemptEnded, MarkerRefused, SinkStopped
from onceflow.spark.redis import marker as markers
from onceflow.spark.redis import repair
from onceflow.spark.redis import scripts as redis_scripts
from onceflow.spark.redis import settings as redis_settings
from onceflow.spark.redis.batch import BatchWriter
from onceflow.spark.redis.marker import Marker
from onceflow.spark.redis.repair import MissingRanges, Step
from onceflow.spark.redis.rows import COLUMNS, VALUE
from onceflow.spark.redis.scripts import Append, Argument, Keys, OwnerLost
from onceflow.spark.sink import Sink, consume

_log = logging.getLogger(__name__)

HISTORY_LENGTH = 600
SYNC_WAIT_MS = 10_000
REPAIR_STEPS = 3
WHOLE_TAILS_SINCE = (9, 1, 2)
"""The first Valkey that takes the begin of a torn script off its append-only file (valkey-io/valkey#4342)."""
WAITAOF_SINCE = (7, 2)
"""The first Redis that can say when a write is on disk."""

Rebuild = Callable[[MissingRanges], DataFrame]
"""Makes the sink's rows of these offsets, and of nothing else, by the same code as the query."""


class RedisUnfit(OnceflowError):
    """This Redis cannot keep the promise as it is configured, or did not keep it."""


class RepairFailed(MarkerRefused):
    """What Redis lost could not be counted again."""


class RedisTarget(Sink):
    """One start of one query's sink."""

    def __init__(
        self,
        url: str,
        keys: Keys,
        *,
        name: str,
        rebuild: Rebuild | None = None,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self.name = name
        self.batch_done = NO_BATCH
        """The last batch that Redis is known to have had whole."""
        self.moment = "before the first batch"
        """When something fails, for its sentence."""
        self._url = url
        self._keys = keys
        self._history = Append("history", keys.history, HISTORY_LENGTH)
        self._rebuild = rebuild
        self._now_ms = now_ms
        self._session: Any = None
        self._owner: str | None = None
        self._settled = NO_BATCH
        self._waits_for_sync = True
        self._reads_settings = True
        self._rows_before: int | None = None
        self.is_stateful = False
        """Whether a batch's rows may come of offsets before it."""

    @property
    def wording(self) -> Wording:
        return markers.wording(self._keys.marker, self._keys.reset)

    def open(self, session: Any, query: str | None) -> None:
        """Refuses a Redis that may drop keys, and counts that belong to another query than a new one.

        Raises MarkerRefused, RedisUnfit, RedisFailed.
        """
        redis_pool.enter(self._url, self)
        self._session = session
        self.moment = "before the first batch"
        with self._told():
            self._check_redis()
            found = self.read() if query is None else None
        if found is not None:
            raise MarkerRefused(decision.used_already(found, self.wording).sentence)

    def recover(self, query: str) -> Marker | None:
        """Takes the owner epoch, so that whatever carries an older one is refused, and reads the marker."""
        with self._told():
            self._check_settings()
            found = self.read()
            if found is None or found.query != query:
                return found
            if self._owner is None:
                self._acquire(query, {}, may_make=False)
                found = self.read()
                assert found is not None
            if found.complete:
                self._settle(query, found.batch)
        self.batch_done = max(self.batch_done, found.batch_done)
        return found

    def prepare(self, batch: Batch, found: Proof | None) -> None:
        """Makes the marker where there is none."""
        assert found is None or isinstance(found, Marker)
        self.moment = f"in batch {batch.number}"
        with self._told():
            if found is None:
                self._acquire(batch.query, markers.first_fields(batch, self.name), may_make=batch.number == 0)
            elif found.lost:
                self._delete_counts(batch.query)  # Batch 0, whose rows come from Spark.
        rows_before = None if self.is_stateful else self._rows_before
        self._writer = replace(self._writer_of(batch, found), rows_before=rows_before)

    def write(self, rows: DataFrame) -> None:
        """The chunks of a large batch, each in one script."""
        self._rows_before = None  # What fails here is measured when it comes again.
        with self._told():
            self._writer.write(rows)
        self._rows_before = self._writer.rows_before

    def commit(self, proof: Proof) -> None:
        """The script that completes the batch."""
        with self._told():
            self._writer.commit()
            self._settle(proof.query, proof.batch)
        self.batch_done = proof.batch

    def close(self) -> None:
        redis_pool.leave(self._url, self)

    def lost_since(self, expected: int) -> WentBack | None:
        """Return what is wrong where Redis does not hold batch `expected` any more.

        Raises MarkerRefused, RedisUnfit, RedisFailed.
        """
        if expected == NO_BATCH:
            return None
        with self._told():
            self._check_settings()
        found = self.marker()
        if found is None:
            raise MarkerRefused(decision.missing(expected, self.wording).sentence)
        return decision.went_back(found, expected, self.wording) if found.batch_done < expected else None

    def repair(self, lost: WentBack, target: Batch, checkpoint: Checkpoint) -> None:
        """Brings marker and counts back to batch `target`, complete, by counting what is missing again.

        Raises MarkerRefused where that cannot be done rightly.
        """
        if self._rebuild is None:
            raise MarkerRefused(lost.sentence)
        refusal = repair.refusal_of_state(checkpoint, self.wording)
        if refusal is not None:
            raise MarkerRefused(refusal.sentence)
        _log.warning("%s; what is missing is counted again from the log", lost.sentence)
        with self._told():
            self._acquire(target.query, {}, may_make=False)  # An epoch taken before may have gone back too.
            for _ in range(REPAIR_STEPS):
                found = self.read()
                if found is None:
                    raise MarkerRefused(lost.sentence)
                step = repair.next_step(found, target, checkpoint, self.wording)
                if step is None:
                    break
                if isinstance(step, Refuse):
                    raise MarkerRefused(step.sentence)
                if found.lost:
                    self._rewind(found, {step.batch.number: step, target.number: Step(target)}.values())
                self._write_again(step, found)
            self._settled = NO_BATCH
            self._settle(target.query, target.number)
        self.batch_done = max(self.batch_done, target.number)
        _log.warning("marker %s is repaired up to batch %d", self._keys.marker, target.number)

    def marker(self) -> Marker | None:
        """The marker as it is now; nothing is taken over. Raises MarkerRefused, RedisFailed."""
        with self._told():
            return self.read()

    def read(self) -> Marker | None:
        """Return the marker; the one before the first batch where a written key is lost: all is to be counted again.

        Raises MarkerRefused where there are counts without one, read at the same instant.
        """
        keys = self._keys
        fields, absent = redis_scripts.marker_fields(self._client(), keys.marker, keys.data)
        found = markers.parse(keys.marker, fields, sink=self.name, reset=keys.reset, absent=absent)
        if found is not None:
            return found.rewound() if found.lost else found
        present = [key for key in keys.data if key not in absent]
        if present:
            raise MarkerRefused(self._why_without_marker(present))
        return None

    def _why_without_marker(self, present: list[str]) -> str:
        """Return why data keys that exist without a marker are refused."""
        marker = self._keys.marker
        claims = redis_scripts.claims_of(self._client(), present)
        for key in present:
            claim = claims.get(key)
            if claim is None:
                return redis_scripts.claimed_by_none(key)
            if claim != marker:
                return redis_scripts.claimed_by_other(key, claim, marker)
        return f"there is no marker {marker} but there are counts beside it that belong to it: {self.wording.anew}"

    def _client(self) -> Any:
        return redis_pool.client(self._url, self._keys.marker)

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """Redis's errors as sentences; what Redis took back while this start ran ends the attempt."""
        try:
            yield
        except redis.RedisError as error:
            raise redis_answers.failed(self._url, self.moment, error) from error
        except AttemptEnded:
            # What is left of this attempt in an executor carries the epoch of before, and is refused from now on.
            self._owner = None
            raise
        except OwnerLost as lost:
            if not self._owner_went_back():
                raise
            self._owner = None
            raise AttemptEnded(str(lost)) from lost

    def _owner_went_back(self) -> bool:
        """Whether the marker's owner is an earlier start than this one: Redis lost that this one had taken over."""
        try:
            found = self._client().hget(self._keys.marker, "owner")
        except redis.RedisError as error:
            raise redis_answers.failed(self._url, self.moment, error) from error
        return found is not None and self._owner is not None and int(found) < int(self._owner)

    def _acquire(self, query: str, first_fields: Mapping[str, str], *, may_make: bool) -> None:
        """Takes the next owner epoch: from now on earlier starts are refused."""
        arguments = redis_scripts.acquire_arguments(self._keys, query, first_fields, may_make=may_make)
        answer = redis_scripts.run(self._client(), "acquire", self._keys, arguments)
        redis_scripts.raise_refusal(self._keys, answer)
        self._owner = answer[1]

    def _delete_counts(self, query: str) -> None:
        """Delete what is left of counts of which a key is lost; the marker is that before the first batch then."""
        assert self._owner is not None
        answer = redis_scripts.run(self._client(), "rewind", self._keys, [query, self._owner])
        redis_scripts.raise_refusal(self._keys, answer)

    def _check_settings(self) -> None:
        """Refuse settings that were changed since the query started, and with which a write could be lost."""
        if not self._reads_settings:
            return
        found = redis_settings.read(self._client())
        refusal = redis_settings.why_unfit(found, is_synced=self._waits_for_sync)
        if refusal is not None:
            raise RedisUnfit(f"Redis at {shown(self._url)} was changed while the query runs: {refusal}")

    def _writer_of(self, batch: Batch, found: Marker | None) -> BatchWriter:
        assert self._owner is not None
        return BatchWriter(self._url, self._keys, self._history, self._owner, batch, found, self._now_ms)

    def _rewind(self, found: Marker, steps: Iterable[Step]) -> None:
        """Delete what is left of the counts, after the log has shown that it still has all that they were made of."""
        with self._counting_again(found):
            for step in steps:
                if step.missing is not None:
                    consume(self._rows_again(step.missing))
        self._delete_counts(found.query)

    def _write_again(self, step: Step, found: Marker) -> None:
        writer = self._writer_of(step.batch, found)
        with self._counting_again(found):
            writer.write(self._rows_again(step.missing))
            writer.commit()

    @contextlib.contextmanager
    def _counting_again(self, found: Marker) -> Iterator[None]:
        try:
            yield
        except (SinkStopped, AttemptEnded):
            raise
        except (PySparkException, OnceflowError) as error:
            raise RepairFailed(
                f"Redis lost batches: {self.wording.marker} {found.shown_state} and they cannot be counted again "
                f"({failure.sentence(error)}): {Remedy.RESTORE_TARGET.format(target='Redis')}, or {self.wording.anew}"
            ) from error

    def _rows_again(self, missing: MissingRanges | None) -> DataFrame:
        assert self._rebuild is not None
        if missing is not None:
            return self._rebuild(missing)
        columns = COLUMNS | VALUE if self._keys.sets else COLUMNS
        empty: DataFrame = self._session.createDataFrame([], ", ".join(map(" ".join, columns.items())))
        return empty

    def _settle(self, query: str, batch: int) -> None:
        """Waits until Redis has synced the batch to its AOF: what Spark commits next can then not go back."""
        if not self._waits_for_sync or batch == self._settled or batch == NO_BATCH:
            return
        assert self._owner is not None
        arguments: tuple[Argument, ...] = (query, self._owner, batch)
        if not redis_scripts.settle(self._client(), self._keys, arguments, wait_ms=SYNC_WAIT_MS):
            raise RedisUnfit(
                f"Redis at {shown(self._url)} did not sync batch {batch} to its append-only file within "
                f"{SYNC_WAIT_MS / 1000:g} s: {Remedy.REDIS_SYNC}, then {Remedy.START_AGAIN}, which goes on without loss"
            )
        self._settled = batch

    def _check_redis(self) -> None:
        """Refuses a Redis that may drop keys, and finds out whether it can say when a write is on disk."""
        client = self._client()
        try:
            info = redis_answers.patiently(client.info, pool=client.connection_pool)
        except redis.ResponseError as error:
            if not redis_answers.is_absent(error):
                raise
            _log.warning(
                "Redis at %s has no INFO for us (%s): %s, unchecked",
                shown(self._url),
                error,
                Remedy.KEEP_ALL_KEYS,
            )
            self._waits_for_sync = self._reads_settings = False
            return
        policy = str(info.get("maxmemory_policy", "noeviction"))
        if policy != "noeviction":
            raise RedisUnfit(
                f"Redis at {shown(self._url)} has maxmemory-policy {policy!r} and may drop counts: "
                f"{Remedy.CONFIG_SET.format(name='maxmemory-policy', value='noeviction')}"
            )
        version = info.get("valkey_version") or info.get("redis_version")
        unsynced = _why_unsynced(client, info)
        self._waits_for_sync = unsynced is None
        if unsynced is not None:
            _log.warning(
                "Redis %s at %s cannot say when a write is on disk (%s): after a crash of Redis batches can be "
                "missing, which %s",
                version,
                shown(self._url),
                unsynced,
                "stops the query" if self._rebuild is None else "are then counted again from the log",
            )
        if _leaves_torn_scripts(client, info):
            _log.warning(
                "Redis %s at %s has aof-load-truncated 'yes': where a power cut tears a script at the end of its "
                "append-only file, it may leave the script's begin there and apply it at its next start but one; %s, "
                "or %s",
                version,
                shown(self._url),
                Remedy.REWRITE_AOF,
                Remedy.NEWER_VALKEY.format(version=".".join(map(str, WHOLE_TAILS_SINCE))),
            )


def _leaves_torn_scripts(client: Any, info: Mapping[str, Any]) -> bool:
    """Whether a file that ends within a script keeps the begin of it; False where the server cannot be asked."""
    if not info.get("aof_enabled") or _version(info.get("valkey_version")) >= WHOLE_TAILS_SINCE:
        return False
    # Whoever runs a hosted Redis decides what becomes of its files.
    return _setting(client, "aof-load-truncated") == "yes"


def _setting(client: Any, name: str) -> str | None:
    """None where it cannot be asked: a hosted Redis may forbid CONFIG."""
    try:
        found: str | None = client.config_get(name).get(name)
    except redis.ResponseError:
        return None
    return found


def _version(text: Any) -> tuple[int, ...]:
    """() where there is none, or one that is not numbers."""
    parts = str(text or "").split(".")
    return tuple(map(int, parts)) if all(part.isdecimal() for part in parts) else ()


def _why_unsynced(client: Any, info: Mapping[str, Any]) -> str | None:
    """Why there is no use in waiting for Redis to sync; None where there is."""
    if not info.get("aof_enabled"):
        return "its append-only file is off"
    try:
        client.execute_command("WAITAOF", 0, 0, 1)
    except redis.exceptions.NoPermissionError:
        return "its user may not call WAITAOF"
    except redis.ResponseError as error:
        if not redis_answers.is_absent(error):
            raise
        # Valkey names the Redis that it is compatible with, too.
        is_old = _version(info.get("redis_version")) < WAITAOF_SINCE
        return "WAITAOF came with Redis 7.2" if is_old else "its configuration renames or disables WAITAOF"
    # With `no` it would wait for the whole time-out at each batch, and then for nothing; where that cannot be asked,
    # waiting is right or fails with a sentence.
    return "appendfsync is 'no'" if _setting(client, "appendfsync") == "no" else None
