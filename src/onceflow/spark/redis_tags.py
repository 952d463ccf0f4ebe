"""One Redis sink over several hash tags: the counts of a pipeline spread over the masters of a Redis Cluster.

A script is atomic in one slot, so each tag has its own sink with its own marker. The CRC-32 of a row's field determines
its tag. Every micro-batch advances all markers, also those of tags without rows, and is complete when all have
advanced. Each sink decides by its own marker, so a batch interrupted by a crash is finished tag by tag, each once.

The number of tags is part of every tag's plan: it stays as it was at batch 0, and another one is refused. A batch that
only some tags have is finished by the version of the job that began it: another version may put an event into a field
of another tag, where it would be counted again, or not at all.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from pyspark.sql import DataFrame

from onceflow.spark.errors import MarkerRefused, WrongOption
from onceflow.spark.exactly_once.decision import other_plan, other_version
from onceflow.spark.redis.marker import TAGS_MAX, hash_tag, redis_reset, tag_of, tagged_key
from onceflow.spark.redis.repair import MissingRanges
from onceflow.spark.redis.rows import require_columns
from onceflow.spark.redis.scripts import Keys
from onceflow.spark.redis.target import Rebuild
from onceflow.spark.redis.targets import Append, Increment, SetIfNewer, StreamAppend
from onceflow.spark.redis_sink import RedisSink
from onceflow.spark.sink import RecordsFailure, consume, write_each

__all__ = ["TAGS_MAX", "TaggedRedisSink", "tag_of", "tagged_key"]


class TaggedRedisSink(RecordsFailure):
    """A RedisSink over `tags` hash tags; pass it to `foreachBatch`, or to `sinks`.

    Its options are those of RedisSink. Keys are named as without tags, all after the hash key: `counts` and
    `{counts}:top` are `{counts/3}` and `{counts/3}:top` in tag 3; `tag_of` returns the tag of a field. Each tag has its
    own lists and streams. Every micro-batch costs each tag what it costs a RedisSink: at least a Spark job, a script, a
    sync.

    The fields of a batch's rows must be the same whenever Spark repeats it. Raises WrongOption if a key is not named
    after the hash key, and for an invalid number of tags.
    """

    def __init__(
        self,
        url: str,
        *,
        tags: int,
        hash_key: str,
        increments: Sequence[Increment] = (),
        appends: Sequence[Append] = (),
        sets: Sequence[SetIfNewer] = (),
        streams: Sequence[StreamAppend] = (),
        checkpoint: str,
        plan: str = "",
        plan_version: int = 1,
        rebuild: Rebuild | None = None,
        accept_data_loss: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__()
        keys = Keys(hash_key, hash_key, tuple(increments), tuple(appends), sets=tuple(sets), streams=tuple(streams))
        _validate(keys, tags)
        reset = redis_reset(url, hash_key, checkpoint, keys.data, tagged=True)
        self._keys = keys
        self._plans = [f"{plan} tag {tag} of {tags}".lstrip() for tag in range(tags)]
        self._plan_version = plan_version
        self.sinks = [
            RedisSink(
                url,
                **_options(keys, tag),
                checkpoint=checkpoint,
                plan=own_plan,
                plan_version=plan_version,
                rebuild=None if rebuild is None else partial(_rebuilt, rebuild, tag, tags),
                reset=reset,
                accept_data_loss=accept_data_loss,
            )
            for tag, own_plan in enumerate(self._plans)
        ]
        """One sink per tag."""
        self._is_open = False

    def open(self, session: Any, *, sleep: Callable[[float], None] = time.sleep) -> None:
        """Open every tag's RedisSink; refuse counts of another plan or another number of tags."""
        if self._is_open:
            return
        with self._record_failure():
            for sink, plan in zip(self.sinks, self._plans, strict=True):
                marker = sink.target.marker()
                refusal = None if marker is None else other_plan(marker, plan, sink.target.wording)
                if refusal is not None:
                    raise MarkerRefused(refusal.reason)
            try:
                for sink in self.sinks:
                    sink.open(session, sleep=sleep)
            except BaseException:
                for sink in self.sinks:
                    sink.release()
                raise
        self._is_open = True

    def close(self) -> None:
        """Close every tag's sink, even if one fails; the query must have ended."""
        self._is_open = False
        _close(self.sinks)

    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        """Write one micro-batch unless it is already written. Raises an OnceflowError, kept in `failure`."""
        if not self.process(rows, batch_id):
            consume(rows)

    def process(self, rows: DataFrame, batch_id: int) -> bool:
        """Write one micro-batch; return false if its rows need not be written, so that the caller reads them."""
        tags = len(self.sinks)
        self.open(rows.sparkSession)
        with self._record_failure():
            require_columns(rows, self._keys)
            self._refuse_other_version(batch_id)
            return write_each(
                rows, batch_id, [(sink, partial(_of_tag, tag=tag, tags=tags)) for tag, sink in enumerate(self.sinks)]
            )

    def _refuse_other_version(self, batch_id: int) -> None:
        """Raise MarkerRefused if some tags have the batch, others do not, and another version wrote it."""
        markers = [(sink.target, sink.target.marker()) for sink in self.sinks]
        if all(marker is not None and marker.batch == batch_id and marker.complete for _, marker in markers):
            return
        for target, marker in markers:
            if marker is not None and marker.batch == batch_id and marker.plan_version != self._plan_version:
                raise MarkerRefused(other_version(marker, self._plan_version, target.wording).reason)

    def check(self) -> None:
        """Check every tag's RedisSink."""
        with self._record_failure():
            for sink in self.sinks:
                sink.check()


def _options(keys: Keys, tag: int) -> dict[str, Any]:
    """Return the options of one tag's RedisSink."""

    def key(name: str) -> str:
        return tagged_key(name, tag)

    return {
        "hash_key": key(keys.marker),
        "increments": [
            replace(increment, key=key(increment.key), ranking_key=increment.ranking_key and key(increment.ranking_key))
            for increment in keys.increments
        ],
        "appends": [replace(append, key=key(append.key)) for append in keys.appends],
        "sets": [
            replace(setting, key=key(setting.key), versions_key=key(setting.versions_key)) for setting in keys.sets
        ],
        "streams": [replace(stream, key=key(stream.key)) for stream in keys.streams],
    }


def _of_tag(rows: DataFrame, *, tag: int, tags: int) -> DataFrame:
    # A row without a field has no tag; the first one refuses it.
    return rows.where(f"coalesce(crc32(field) % {tags}, 0) = {tag}")


def _rebuilt(rebuild: Callable[[MissingRanges], DataFrame], tag: int, tags: int, missing: MissingRanges) -> DataFrame:
    return _of_tag(rebuild(missing), tag=tag, tags=tags)


def _close(sinks: Sequence[RedisSink]) -> None:
    if sinks:
        try:
            sinks[0].close()
        finally:
            _close(sinks[1:])


def _validate(keys: Keys, tags: int) -> None:
    if not 2 <= tags <= TAGS_MAX:
        raise WrongOption(f"tags {tags}: must be 2 to {TAGS_MAX}, several per master; for one tag use RedisSink")
    tag = hash_tag(keys.marker)
    for key in keys.data:
        if hash_tag(key) != tag:
            raise WrongOption(f"key {key!r} is not named after hash key {keys.marker!r}: name it '{{{tag}}}:{key}'")
