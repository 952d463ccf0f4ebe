"""Repair of a target that lost batches, step by step, up to the last batch b that Spark has committed.

A step is a batch for the same scripts, so a driver killed in the middle of a repair leaves a valid marker:

1. A partly written batch is finished with its own ranges, which the marker has.
2. From a complete batch j to batch b-1: one step with all ranges in between.
3. Batch b with its ranges from the checkpoint. Spark may repeat it, since its commit is the only one that may not be on
   disk yet, and a repeated batch must find its own ranges in the marker.

If a power cut takes the commit of b between steps 2 and 3, the next start repairs up to b-1, which step 2 has begun or
written with the ranges of all batches: it finishes that.

The ranges are read from the log again, so each must be certain: no offset is guessed.
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
from onceflow.wire import TopicPartition

_COUNTED_IS_LOST = (LossKind.RECREATED, LossKind.TRUNCATED)
"""Kinds of accepted losses after which the log has other records than the counted ones."""


@dataclass(frozen=True, slots=True)
class MissingRanges:
    """Offsets to count again, the argument of `rebuild`."""

    ranges: tuple[OffsetRange, ...]
    """One or more ranges; none is empty, and no partition has two."""
    topic_ids: Mapping[str, str]
    """Ids of their topics, as far as the broker reports them. Another id means other records."""


@dataclass(frozen=True, slots=True)
class Step:
    """One batch to write, or to finish if the marker holds a part of it."""

    batch: Batch

    @property
    def missing(self) -> MissingRanges | None:
        """Offsets to read again; None if the step has no offsets."""
        ranges = tuple(part for part in self.batch.ranges if part.size)
        topics = {part.topic for part in ranges}
        ids = {topic: topic_id for topic, topic_id in self.batch.topic_ids.items() if topic in topics}
        return MissingRanges(ranges, ids) if ranges else None


def _remedy(words: Wording) -> str:
    return f"{Remedy.RESTORE_TARGET.format(target=words.target)}, or {words.remedy}"


def refusal_of_state(checkpoint: Checkpoint, words: Wording) -> Refuse | None:
    """Return why a stateful query cannot be repaired: its rows depend on all earlier events."""
    if not checkpoint.is_stateful:
        return None
    return Refuse(
        f"Redis lost batches of a stateful query ({checkpoint.location}/{STATE}), whose rows cannot be computed again "
        f"from their offsets alone: {_remedy(words)}"
    )


def next_step(marker: Marker, target: Batch, checkpoint: Checkpoint, words: Wording) -> Step | Refuse | None:
    """Return the next step towards a complete batch `target`; None when it is complete."""
    refusal = decision.other_plan(marker, target.plan, words) or _refusal_of_losses(marker, words)
    if refusal is not None:
        return refusal
    is_bridge = _is_bridge(marker, target)
    if not marker.complete and (marker.batch < target.number or is_bridge):
        return _finish(marker, target, words)
    if is_bridge:
        return None
    if marker.batch < target.number - 1:
        return _bridge(marker, target, checkpoint, words)
    decided = decision.decide(marker, target, marker.sink, words)
    if isinstance(decided, Skip):
        return None
    return decided if isinstance(decided, Refuse) else Step(target)


def _refusal_of_losses(marker: Marker, words: Wording) -> Refuse | None:
    """Return why counts with a lost key cannot be counted again: an accepted loss removed counted records."""
    losses = [loss for loss in marker.losses if loss.kind in _COUNTED_IS_LOST]
    if not marker.lost or not losses:
        return None
    return Refuse(
        f"{words.marker} {marker.shown_state} and the log no longer has what was counted before an accepted loss "
        f"({losses[0]}): {_remedy(words)}"
    )


def _is_bridge(marker: Marker, target: Batch) -> bool:
    """Return whether the marker holds `target` as the end of step 2 of a repair up to the batch after it.

    Spark had committed that batch, and a power cut took the commit. Its own commit was on disk before, so Spark does
    not repeat `target`.
    """
    held = {(part.topic, part.partition): part for part in marker.parts}
    wanted = {(part.topic, part.partition): part for part in target.ranges}
    if marker.batch != target.number or held.keys() != wanted.keys():
        return False
    pairs = [(held[name], wanted[name]) for name in wanted]
    is_longer = any(one.begin < two.begin for one, two in pairs)
    return is_longer and all(one.begin <= two.begin and one.end == two.end for one, two in pairs)


def _finish(marker: Marker, target: Batch, words: Wording) -> Step | Refuse:
    batch = Batch(target.query, marker.batch, marker.parts, target.plan, target.plan_version, marker.topic_ids)
    if batch.digest == marker.digest:
        return Step(batch)
    if marker.plan_version != target.plan_version:
        return decision.other_version(marker, target.plan_version, words)
    return Refuse(
        f"{words.marker} holds a part of batch {marker.batch} as {marker.ranges_json}, which does not match its digest "
        f"{marker.digest[:12]}: {_remedy(words)}"
    )


def _bridge(marker: Marker, target: Batch, checkpoint: Checkpoint, words: Wording) -> Step | Refuse:
    """Return one step for everything between the marker's complete batch and the start of `target`."""
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
                    f"{lost}, and {checkpoint.location} no longer has the first offset of {topic}-{partition}: "
                    f"{_remedy(words)}"
                )
            ranges.append(OffsetRange(topic, partition, begin, offset_end))
    reason = _why_uncertain(marker, target, end, ranges)
    if reason is not None:
        return Refuse(f"{lost}, and {reason}: {_remedy(words)}")
    batch = Batch(target.query, number, tuple(sorted(ranges)), target.plan, target.plan_version, end.topic_ids)
    return Step(batch)


def _entered(marker: Marker, topic: str, partition: int, last: int, checkpoint: Checkpoint) -> int | None:
    """Return the first offset of a partition that the marker does not know; None if the checkpoint lacks a file."""
    present = set(checkpoint.names("offsets"))
    for number in range(marker.batch + 1, last + 1):
        if str(number) not in present:
            return None
        offset = checkpoint.reached(number).by_topic.get(topic, {}).get(partition)
        if offset is not None:
            return offset
    return None


def _entered_with(target: Batch) -> set[TopicPartition]:
    """Return the partitions of `target`, which a rewound marker has, too, even if they entered with that batch."""
    return {(part.topic, part.partition) for part in target.ranges}


def _why_uncertain(marker: Marker, target: Batch, end: Offsets, ranges: list[OffsetRange]) -> str | None:
    """Return why these ranges may differ from the counted ones; None if they are certain."""
    entered = _entered_with(target) if marker.batch == NO_BATCH else set()
    for topic, counted_id in marker.topic_ids.items():
        if topic in end.topic_ids and end.topic_ids[topic] != counted_id:
            return f"topic {topic} was deleted and created again since: id {counted_id} is now {end.topic_ids[topic]}"
    for topic, partitions in (marker.offsets or {}).items():
        known = end.by_topic.get(topic, {})
        dropped = [number for number in partitions if int(number) not in known and (topic, int(number)) not in entered]
        if dropped:
            return f"the query no longer reads {topic}-{dropped[0]}"
    backwards = [part for part in ranges if part.size < 0]
    if backwards:
        part = backwards[0]
        return f"the marker has counted {part.topic}-{part.partition} up to {part.begin}, Spark only up to {part.end}"
    return None
