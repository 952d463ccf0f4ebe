"""The exactly-once Redis sink: `foreachBatch(RedisSink(...))`.

A batch's counts and the marker that says so become visible in the same script, so a batch that Spark repeats after
any crash changes nothing. `onceflow.spark.marker` has the marker's format and the decisions, `scripts/` what is
checked and written atomically, `docs/exactly-once.md` the protocol as a whole.

Input rows have the columns `target string, field binary, amount long`, and `value binary` where the sink sets values.
A target is the name of an Increment (add the amount to that field of its hash), of an Append or a StreamAppend (the
field is an entry of its list or stream, the amount its order) or of a SetIfNewer (set that field of its hash to the
value, the amount being its version).
"""

import contextlib
import logging
import shlex
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import redis
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from onceflow.errors import OnceflowError
from onceflow.spark import failure, redis_answers, redis_pool, redis_scripts, repair
from onceflow.spark import marker as markers
from onceflow.spark.checkpoint import Checkpoint, LocalCheckpoint, checkpoint_at, other_query
from onceflow.spark.checkpoint_lock import CheckpointLock, take_lock
from onceflow.spark.marker import Batch, Decision, Marker, Refuse, Skip, WentBack, anew
from onceflow.spark.redis_address import shown
from onceflow.spark.redis_batch import COLUMNS, VALUE, BatchWriter
from onceflow.spark.redis_scripts import (
    Append,
    DataMisfit,
    Increment,
    Keys,
    MarkerMoved,
    MarkerRefused,
    OwnerLost,
    SetIfNewer,
    StreamAppend,
)
from onceflow.spark.repair import MissingRanges, Step

_log = logging.getLogger(__name__)

HISTORY_LENGTH = 600
SYNC_WAIT_MS = 10_000
ATTEMPTS = 3
"""At a batch, while Redis goes back each time."""
REPAIR_STEPS = 3

Rebuild = Callable[[MissingRanges], DataFrame]
"""Makes the sink's rows of these offsets, and of nothing else, by the same code as the query."""

__all__ = [
    "Append",
    "DataMisfit",
    "Increment",
    "MissingRanges",
    "RedisSink",
    "RedisUnfit",
    "RepairFailed",
    "SetIfNewer",
    "StreamAppend",
]


class RedisUnfit(OnceflowError):
    """This Redis cannot keep the promise as it is configured, or did not keep it."""


class RepairFailed(MarkerRefused):
    """What Redis lost could not be counted again."""


class RedisSink:
    """Writes each micro-batch to Redis exactly once; pass it to `foreachBatch`.

    `checkpoint` is the query's own checkpointLocation. `plan` names what is counted (with it every option that
    changes a count), `plan_version` the code that counts it. One sink serves one start of one query: call `open`
    before `start()` so that a marker that does not fit stops the query at once, and `close` when it has ended.

    `rebuild` makes the rows of given offsets again (`onceflow.spark.read_again` reads them), so that batches which
    Redis lost are counted again instead of stopping the query. It must not be given where a row depends on more than
    its event; a stateful query is refused.
    """

    def __init__(
        self,
        url: str,
        *,
        hash_key: str,
        increments: Sequence[Increment] = (),
        appends: Sequence[Append] = (),
        sets: Sequence[SetIfNewer] = (),
        streams: Sequence[StreamAppend] = (),
        checkpoint: str,
        plan: str,
        plan_version: int,
        rebuild: Rebuild | None = None,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self.failure: OnceflowError | None = None
        """Why the query stopped, if this sink stopped it: one sentence, where Spark's own error is many lines."""
        self._url = url
        self._keys = Keys(
            marker=markers.same_slot(hash_key, "onceflow"),
            history=markers.same_slot(hash_key, "history"),
            increments=tuple(increments),
            appends=tuple(appends),
            sets=tuple(sets),
            streams=tuple(streams),
            reset=shlex.join(
                [*markers.RESET.split(), "--redis", shown(url), "--hash-key", hash_key, "--checkpoint", checkpoint]
            ),
        )
        self._history = Append("history", self._keys.history, HISTORY_LENGTH)
        self._location = checkpoint
        self._plan = plan
        self._plan_version = plan_version
        self._rebuild = rebuild
        self._now_ms = now_ms
        self._session: Any = None
        # A check may come from another thread than the batches, and must not repair what a batch is writing.
        self._writing = threading.RLock()
        self._checkpoint: Checkpoint | None = None
        self._lock: CheckpointLock | None = None
        self._owner: str | None = None
        self._batch_done = markers.NO_BATCH
        self._waits_for_sync = True

    def open(self, session: Any, *, sleep: Callable[[float], None] = time.sleep) -> None:
        """Locks the checkpoint and checks Redis and the marker against it, before the query starts.

        `sleep` may raise to end the wait for another driver's lock. Called by the first batch where nobody has called
        it. Raises CheckpointInUse, MarkerRefused, RedisUnfit, RedisFailed.
        """
        if self._checkpoint is not None:
            return
        checkpoint = checkpoint_at(session, self._location)
        if isinstance(checkpoint, LocalCheckpoint):
            if self._lock is None:
                self._lock = take_lock(session, checkpoint.directory, sleep=sleep)
            checkpoint.drop_torn()
        self._session = session
        with self._redis_failures("before the first batch"):
            self._check_redis()
            self._check_start(checkpoint)
        self._checkpoint = checkpoint

    def close(self) -> None:
        """Gives the checkpoint and the connections back; the query must have ended."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None
        self._checkpoint = None
        redis_pool.close(self._url)

    def check(self) -> None:
        """Checks that Redis still holds the last batch that this sink wrote, and repairs it; safe while the query runs.

        Raises MarkerRefused, RedisFailed.
        """
        # Taken first: the query may finish another batch while the marker is being read.
        expected = self._batch_done
        if self._lost_since(expected) is None:
            return
        with self._writing:
            expected = self._batch_done
            lost = self._lost_since(expected)
            if lost is not None:
                assert self._checkpoint is not None
                with self._redis_failures(f"after batch {expected}"):
                    self._repair(self._checkpoint, expected, lost)

    def _lost_since(self, expected: int) -> WentBack | None:
        with self._redis_failures(f"after batch {expected}"):
            found, _ = self._read_marker()
        done = markers.NO_BATCH if found is None else found.batch_done
        return markers.went_back(self._keys.marker, done, expected, self._keys.reset) if done < expected else None

    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        """Writes one micro-batch, or finds that it is written. Raises an OnceflowError, kept in `failure`."""
        try:
            with self._writing:
                self.open(rows.sparkSession)
                with self._redis_failures(f"in batch {batch_id}"):
                    self._process_until_done(rows, batch_id)
        except OnceflowError as error:
            self.failure = error
            raise

    @contextlib.contextmanager
    def _redis_failures(self, when: str) -> Iterator[None]:
        try:
            yield
        except redis.RedisError as error:
            raise redis_answers.failed(self._url, when, error) from error

    def _process_until_done(self, rows: DataFrame, batch_id: int) -> None:
        for _ in range(ATTEMPTS - 1):
            try:
                return self._process(rows, batch_id)
            except MarkerMoved as error:
                _log.warning("batch %d is decided again: %s", batch_id, error)
            except OwnerLost:
                if not self._owner_went_back():
                    raise
            # What is left of this attempt in an executor carries the epoch of before, and is refused from now on.
            self._owner = None
        return self._process(rows, batch_id)

    def _owner_went_back(self) -> bool:
        """Whether the marker's owner is an earlier start than this one: Redis lost that this one had taken over."""
        found = self._client().hget(self._keys.marker, "owner")
        return found is not None and self._owner is not None and int(found) < int(self._owner)

    def _process(self, rows: DataFrame, batch_id: int) -> None:
        assert self._checkpoint is not None
        batch = self._checkpoint.batch(batch_id, plan=self._plan, plan_version=self._plan_version)
        strange = other_query(rows.sparkSession, batch, self._location)
        if strange is not None:
            raise MarkerRefused(strange)
        found, decision = self._decide(batch)
        if isinstance(decision, WentBack):
            self._repair(self._checkpoint, batch_id - 1, decision)
            found, decision = self._decide(batch)
        if isinstance(decision, Refuse):
            raise MarkerRefused(decision.sentence)
        self._checkpoint.prepare(batch_id)
        if isinstance(decision, Skip):
            # Returning without reading the rows would make a stateful query's checkpoint unusable.
            rows.write.format("noop").mode("append").save()
        else:
            self._writer(batch).write(rows, decision, found)
        self._settle(batch)
        self._batch_done = batch.number

    def _decide(self, batch: Batch) -> tuple[Marker | None, Decision]:
        found, data_present = self._read_marker()
        key, reset = self._keys.marker, self._keys.reset
        return found, markers.decide(found, batch, key=key, data_present=data_present, reset=reset)

    def _writer(self, batch: Batch) -> BatchWriter:
        return BatchWriter(self._url, self._keys, self._history, self._owner_epoch(batch), batch, self._now_ms)

    def _repair(self, checkpoint: Checkpoint, number: int, lost: WentBack) -> None:
        """Brings marker and counts back to batch `number`, complete, by counting what is missing again.

        Raises MarkerRefused where that cannot be done rightly.
        """
        refusal = lost if self._rebuild is None else repair.refusal_of_state(checkpoint, self._keys.reset)
        if refusal is not None:
            raise MarkerRefused(refusal.sentence)
        _log.warning("%s; what is missing is counted again from the log", lost.sentence)
        target = checkpoint.batch(number, plan=self._plan, plan_version=self._plan_version)
        self._owner = None  # An epoch taken before may have gone back too.
        for _ in range(REPAIR_STEPS):
            found = self._read_marker()[0]
            if found is None:
                raise MarkerRefused(lost.sentence)
            step = repair.next_step(found, target, checkpoint, key=self._keys.marker, reset=self._keys.reset)
            if step is None:
                break
            if isinstance(step, Refuse):
                raise MarkerRefused(step.sentence)
            self._write_again(step, found)
        self._settle(target)
        _log.warning("marker %s is repaired up to batch %d", self._keys.marker, number)

    def _write_again(self, step: Step, found: Marker) -> None:
        try:
            rows = self._rows_again(step.missing)
            self._writer(step.batch).write(rows, step.decision, found)
        except (MarkerRefused, OwnerLost, DataMisfit):
            raise
        except (PySparkException, OnceflowError) as error:
            raise RepairFailed(
                f"Redis lost batches after batch {found.batch_done} of marker {self._keys.marker}, and they cannot be "
                f"counted again ({failure.sentence(error)}): restore Redis, or {anew(self._keys.reset)}"
            ) from error

    def _rows_again(self, missing: MissingRanges | None) -> DataFrame:
        assert self._rebuild is not None
        if missing is not None:
            return self._rebuild(missing)
        columns = COLUMNS | VALUE if self._keys.sets else COLUMNS
        empty: DataFrame = self._session.createDataFrame([], ", ".join(map(" ".join, columns.items())))
        return empty

    def _owner_epoch(self, batch: Batch) -> str:
        """This start's owner epoch, taken with its first batch: from then on earlier starts are refused."""
        if self._owner is None:
            arguments = redis_scripts.acquire_arguments(
                self._keys, batch.query, markers.first_fields(batch), may_make=batch.number == 0
            )
            answer = redis_scripts.run(self._client(), "acquire", self._keys, arguments)
            redis_scripts.raise_refusal(self._keys, answer)
            self._owner = answer[1]
        return self._owner

    def _settle(self, batch: Batch) -> None:
        """Waits until Redis has synced the batch to its AOF: what Spark commits next can then not go back."""
        if not self._waits_for_sync:
            return
        arguments = (batch.query, self._owner_epoch(batch), batch.number)
        if not redis_scripts.settle(self._client(), self._keys, arguments, wait_ms=SYNC_WAIT_MS):
            raise RedisUnfit(
                f"Redis at {shown(self._url)} did not sync batch {batch.number} to its append-only file within "
                f"{SYNC_WAIT_MS / 1000:g} s: look at its disk, then start the query again, which goes on without loss"
            )

    def _client(self) -> Any:
        return redis_pool.client(self._url, self._keys.marker)

    def _read_marker(self) -> tuple[Marker | None, bool]:
        """The marker, and whether any data key exists, at one instant."""

        client = self._client()

        def read() -> Any:
            pipeline = client.pipeline(transaction=True)
            pipeline.hgetall(self._keys.marker)
            pipeline.exists(*self._keys.data)
            return pipeline.execute()

        fields, present = redis_answers.patiently(read, pool=client.connection_pool)
        texts = {name.decode(): value.decode() for name, value in fields.items()}
        return markers.parse(self._keys.marker, texts, reset=self._keys.reset), present > 0

    def _check_start(self, checkpoint: Checkpoint) -> None:
        found, data_present = self._read_marker()
        committed = checkpoint.newest_batch("commits")
        refusal = markers.refusal_at_start(
            found,
            query=checkpoint.query_id(),
            committed=committed,
            planned=checkpoint.newest_batch("offsets"),
            key=self._keys.marker,
            data_present=data_present,
            reset=self._keys.reset,
        )
        if isinstance(refusal, WentBack):
            self._repair(checkpoint, committed, refusal)
        elif refusal is not None:
            raise MarkerRefused(refusal.sentence)
        self._batch_done = max(committed, markers.NO_BATCH if found is None else found.batch_done)

    def _check_redis(self) -> None:
        """Refuses a Redis that may drop keys, and finds out whether it can say when a write is on disk."""
        client = self._client()
        try:
            info = redis_answers.patiently(client.info, pool=client.connection_pool)
        except redis.exceptions.NoPermissionError:
            _log.warning(
                "Redis at %s forbids INFO: its maxmemory-policy must be noeviction, unchecked", shown(self._url)
            )
            self._waits_for_sync = False
            return
        policy = str(info.get("maxmemory_policy", "noeviction"))
        if policy != "noeviction":
            raise RedisUnfit(
                f"Redis at {shown(self._url)} has maxmemory-policy {policy!r} and may drop counts: set it to "
                "'noeviction'"
            )
        unsynced = _why_unsynced(client, info)
        self._waits_for_sync = unsynced is None
        if unsynced is not None:
            _log.warning(
                "Redis %s at %s cannot say when a write is on disk (%s): after a crash of Redis batches can be "
                "missing, which %s",
                info.get("redis_version"),
                shown(self._url),
                unsynced,
                "stops the query" if self._rebuild is None else "are then counted again from the log",
            )


def _why_unsynced(client: Any, info: Mapping[str, Any]) -> str | None:
    """Why there is no use in waiting for Redis to sync; None where there is."""
    if not info.get("aof_enabled"):
        return "its append-only file is off"
    try:
        client.execute_command("WAITAOF", 0, 0, 1)
    except redis.exceptions.NoPermissionError:
        return "its user may not call WAITAOF"
    except redis.ResponseError:
        return "it has no WAITAOF, which came with Redis 7.2"
    try:
        # With `no` it would wait for the whole time-out at each batch, and then for nothing.
        return "appendfsync is 'no'" if client.config_get("appendfsync").get("appendfsync") == "no" else None
    except redis.ResponseError:
        return None  # A hosted Redis may forbid CONFIG; waiting is right or fails with a sentence.
