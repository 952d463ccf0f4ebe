"""What a marker that went back lacks, step by step, up to the last batch that Spark has committed or is past.

A step is a batch for the same scripts, so a driver killed in the middle of a repair leaves a marker like any other:

1. A batch of which a part is there is finished with its own ranges, told by the marker.
2. From a complete batch j to batch b-1, where b is the last one: one step, whose ranges are all that lie between.
3. Batch b with the ranges that the checkpoint has for it. It is the one that Spark may repeat, its commit being the
   only one that may not be on disk yet, and a repeated batch must find its own ranges in the marker.

Ranges are what the log is asked for again, so each must be known for certain: nothing here guesses an offset.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from onceflow.remedies import Remedy
from onceflow.spark.exactly_once import decision
from onceflow.spark.exactly_once.batch import NO_BATCH, Batch
from onceflow.spark.exactly_once.checkpoint import STATE, Checkpoint
from onceflow.spark.exactly_once.decision import Refuse, Skip, Wording
from onceflow.spark.offsets import LossKind, OffsetRange, Offsets
from onceflow.spark.redis.marker import Marker

_COUNTED_IS_GONE = (LossKind.RECREATED, LossKind.TRUNCATED)
"""Accepted losses after which the log has other records than those that were counted."""


@dataclass(frozen=True, slots=True)
class MissingRanges:
    """Offsets that are to be counted again; what `rebuild` is called with."""

    ranges: tuple[OffsetRange, ...]
    """At least one; none is empty, and no partition has two."""
    topic_ids: Mapping[str, str]
    """The ids of their topics, as far as the broker tells them: another id, other records."""


@dataclass(frozen=True, slots=True)
class Step:
    """One batch to write, or to finish where the marker holds a part of it."""

    batch: Batch

    @property
    def missing(self) -> MissingRanges | None:
        """What is to be read again; None where the step has no offsets."""
        ranges = tuple(part for part in self.batch.ranges if part.size)
        topics = {part.topic for part in ranges}
        ids = {topic: topic_id for topic, topic_id in self.batch.topic_ids.items() if topic in topics}
        return MissingRanges(ranges, ids) if ranges else None


def _way_out(words: Wording) -> str:
    return f"{Remedy.RESTORE_TARGET.format(target=words.target)}, or {words.anew}"


def refusal_of_state(checkpoint: Checkpoint, words: Wording) -> Refuse | None:
    """Why a stateful query cannot be repaired: what it adds for an event depends on all events before."""
    if not checkpoint.is_stateful:
        return None
    return Refuse(
        f"Redis lost batches of a stateful query ({checkpoint.location}/{STATE}), whose rows cannot be made again from "
        f"their offsets alone: {_way_out(words)}"
    )


def next_step(marker: Marker, target: Batch, checkpoint: Checkpoint, words: Wording) -> Step | Refuse | None:
    """What to write next, so that the marker comes to `target` complete; None when it is there."""
    refusal = decision.other_plan(marker, target.plan, words) or _refusal_of_losses(marker, words)
    if refusal is not None:
        return refusal
    if marker.batch < target.number and not marker.complete:
        return _finish(marker, target, words)
    if marker.batch < target.number - 1:
        return _bridge(marker, target, checkpoint, words)
    decided = decision.decide(marker, target, marker.sink, words)
    if isinstance(decided, Skip):
        return None
    return decided if isinstance(decided, Refuse) else Step(target)


def _refusal_of_losses(marker: Marker, words: Wording) -> Refuse | None:
    """Return why counts of which a key is lost cannot be counted again: an accepted loss took what they counted."""
    gone = [loss for loss in marker.losses if loss.kind in _COUNTED_IS_GONE]
    if not marker.lost or not gone:
        return None
    return Refuse(
        f"{words.marker} {marker.shown_state} and what was counted before an accepted loss is not in the log any more "
        f"({gone[0]}): {_way_out(words)}"
    )


def _finish(marker: Marker, target: Batch, words: Wording) -> Step | Refuse:
    batch = Batch(target.query, marker.batch, marker.parts, target.plan, target.plan_version, marker.topic_ids)
    if batch.digest == marker.digest:
        return Step(batch)
    if marker.plan_version != target.plan_version:
        return decision.other_version(marker, target.plan_version, words)
    return Refuse(
        f"{words.marker} holds a part of batch {marker.batch} as {marker.ranges_json}, which does not make its digest "
        f"{marker.digest[:12]}: {_way_out(words)}"
    )


def _bridge(marker: Marker, target: Batch, checkpoint: Checkpoint, words: Wording) -> Step | Refuse:
    """All that lies between the complete batch of the marker and the begin of `target`."""
    number = target.number - 1
    end = checkpoint.reached(number)
    lost = f"Redis lost batches {marker.batch + 1} to {number}"
    ranges = []
    for topic, partitions in end.by_topic.items():
        for partition, offset_end in partitions.items():
            begin = marker.end_of(topic, partition)
            if begin is None:
                begin = _entered(marker, topic, partition, number, checkpoint)
            if begin is None:
                return Refuse(
                    f"{lost}, and {checkpoint.location} does not say any more where {topic}-{partition} came in: "
                    f"{_way_out(words)}"
                )
            ranges.append(OffsetRange(topic, partition, begin, offset_end))
    sentence = _why_uncertain(marker, target, end, ranges)
    if sentence is not None:
        return Refuse(f"{lost}, and {sentence}: {_way_out(words)}")
    batch = Batch(target.query, number, tuple(sorted(ranges)), target.plan, target.plan_version, end.topic_ids)
    return Step(batch)


def _entered(marker: Marker, topic: str, partition: int, last: int, checkpoint: Checkpoint) -> int | None:
    """The first offset of a partition that the marker does not know; None where a file on the way is gone."""
    present = set(checkpoint.names("offsets"))
    for number in range(marker.batch + 1, last + 1):
        if str(number) not in present:
            return None
        found = checkpoint.reached(number).by_topic.get(topic, {}).get(partition)
        if found is not None:
            return found
    return None


def _entered_with(target: Batch) -> set[tuple[str, int]]:
    """Return the partitions of `target`: a marker before the first batch knows those, too, that came in with it."""
    return {(part.topic, part.partition) for part in target.ranges}


def _why_uncertain(marker: Marker, target: Batch, end: Offsets, ranges: list[OffsetRange]) -> str | None:
    """Return why these ranges may not be what was counted; None where they are."""
    entered = _entered_with(target) if marker.batch == NO_BATCH else set()
    for topic, found in marker.topic_ids.items():
        if topic in end.topic_ids and end.topic_ids[topic] != found:
            return f"topic {topic} was deleted and made again since: id {found} is now {end.topic_ids[topic]}"
    for topic, partitions in (marker.offsets or {}).items():
        known = end.by_topic.get(topic, {})
        gone = [number for number in partitions if int(number) not in known and (topic, int(number)) not in entered]
        if gone:
            return f"the query does not read {topic}-{gone[0]} any more"
    backwards = [part for part in ranges if part.size < 0]
    if backwards:
        part = backwards[0]
        return f"the marker has counted {part.topic}-{part.partition} up to {part.begin}, Spark only up to {part.end}"
    return None
