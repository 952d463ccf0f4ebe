"""One Redis sink over several hash tags: the counts of a pipeline spread over the masters of a Redis Cluster.

A script is atomic in one slot, so there is a sink of its own for each tag, with a marker of its own. A row belongs to
the tag that its field's CRC-32 says. Every micro-batch moves all markers, those of tags without rows too, and is done
when all have moved; each sink decides by its own marker, so what a crash left undone is done tag by tag, each once.

The number of tags stands in every tag's plan: it stays as it was at batch 0, and another one is refused. A batch that
some tags have and others not is finished by the version of the job that began it: another one may put an event into a
field of another tag, where it would be counted once more, or not at all.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from pyspark.sql import DataFrame

from onceflow.spark.exactly_once.decision import other_plan, other_version
from onceflow.spark.exactly_once.sink_errors import MarkerRefused
from onceflow.spark.redis.marker import TAGS_MAX, hash_tag, tag_of, tagged_key
from onceflow.spark.redis.repair import MissingRanges
from onceflow.spark.redis.reset_command import redis_reset
from onceflow.spark.redis.rows import require_columns
from onceflow.spark.redis.scripts import Append, Increment, Keys, SetIfNewer, StreamAppend
from onceflow.spark.redis.target import Rebuild
from onceflow.spark.redis_sink import RedisSink
from onceflow.spark.sink import FailureKept, consume, write_each
from onceflow.spark.wrong_option import WrongOption

__all__ = ["TAGS_MAX", "TaggedRedisSink", "tag_of", "tagged_key"]


class TaggedRedisSink(FailureKept):
    """A RedisSink over `tags` hash tags; pass it to `foreachBatch`, or to `sinks`.

    Its options are the same ones of RedisSink. Keys are named as without tags, all after the hash key: `counts` and
    `{counts}:top` are `{counts/3}` and `{counts/3}:top` in tag 3, and `tag_of` says in which tag a field is. Each tag
    has lists and streams of its own. For each tag every micro-batch costs what it costs a RedisSink: a job of Spark at
    least, a script, a sync.

    The fields of a batch's rows must be the same ones whenever Spark repeats it. Raises WrongOption where a key is not
    named after the hash key, and for a number of tags that cannot be meant.
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
        _refuse_what_cannot_be_meant(keys, tags)
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
        """One for each tag."""
        self._is_open = False

    def open(self, session: Any, *, sleep: Callable[[float], None] = time.sleep) -> None:
        """As RedisSink's, for each tag; refuses counts of another plan or another number of tags, too."""
        if self._is_open:
            return
        with self._failure_kept():
            for sink, plan in zip(self.sinks, self._plans, strict=True):
                found = sink.target.marker()
                refusal = None if found is None else other_plan(found, plan, sink.target.wording)
                if refusal is not None:
                    raise MarkerRefused(refusal.sentence)
            try:
                for sink in self.sinks:
                    sink.open(session, sleep=sleep)
            except BaseException:
                for sink in self.sinks:
                    sink.release()
                raise
        self._is_open = True

    def close(self) -> None:
        """Gives everything back, whatever fails on the way; the query must have ended."""
        self._is_open = False
        _close(self.sinks)

    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        """Writes one micro-batch, or finds that it is written. Raises an OnceflowError, kept in `failure`."""
        if not self.process(rows, batch_id):
            consume(rows)

    def process(self, rows: DataFrame, batch_id: int) -> bool:
        """As a call, but rows that need not be written are left for the caller to read: false."""
        tags = len(self.sinks)
        self.open(rows.sparkSession)
        with self._failure_kept():
            require_columns(rows, self._keys)
            self._refuse_version_in_between(batch_id)
            return write_each(
                rows, batch_id, [(sink, partial(_of_tag, tag=tag, tags=tags)) for tag, sink in enumerate(self.sinks)]
            )

    def _refuse_version_in_between(self, batch_id: int) -> None:
        """Where some tags have the batch and others not, those that have it must be of this version."""
        found = [(sink.target, sink.target.marker()) for sink in self.sinks]
        if all(marker is not None and marker.batch == batch_id and marker.complete for _, marker in found):
            return
        for target, marker in found:
            if marker is not None and marker.batch == batch_id and marker.plan_version != self._plan_version:
                raise MarkerRefused(other_version(marker, self._plan_version, target.wording).sentence)

    def check(self) -> None:
        """As RedisSink's, for each tag."""
        with self._failure_kept():
            for sink in self.sinks:
                sink.check()


def _options(keys: Keys, tag: int) -> dict[str, Any]:
    """What is written in one tag, as RedisSink is told."""

    def key(name: str) -> str:
        return tagged_key(name, tag)

    return {
        "hash_key": key(keys.marker),
        "increments": [
            replace(each, key=key(each.key), ranking_key=each.ranking_key and key(each.ranking_key))
            for each in keys.increments
        ],
        "appends": [replace(each, key=key(each.key)) for each in keys.appends],
        "sets": [replace(each, key=key(each.key), versions_key=key(each.versions_key)) for each in keys.sets],
        "streams": [replace(each, key=key(each.key)) for each in keys.streams],
    }


def _of_tag(rows: DataFrame, *, tag: int, tags: int) -> DataFrame:
    # A row without a field belongs to no tag; the first one refuses it.
    return rows.where(f"coalesce(crc32(field) % {tags}, 0) = {tag}")


def _rebuilt(rebuild: Callable[[MissingRanges], DataFrame], tag: int, tags: int, missing: MissingRanges) -> DataFrame:
    return _of_tag(rebuild(missing), tag=tag, tags=tags)


def _close(sinks: Sequence[RedisSink]) -> None:
    if sinks:
        try:
            sinks[0].close()
        finally:
            _close(sinks[1:])


def _refuse_what_cannot_be_meant(keys: Keys, tags: int) -> None:
    if not 2 <= tags <= TAGS_MAX:
        raise WrongOption(f"tags {tags}: give from 2 to {TAGS_MAX}, some for each master; one tag is a RedisSink")
    tag = hash_tag(keys.marker)
    for key in keys.data:
        if hash_tag(key) != tag:
            raise WrongOption(
                f"key {key!r} is not named after hash key {keys.marker!r}, so it has no tags: call it '{{{tag}}}:{key}'"
            )
