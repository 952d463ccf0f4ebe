"""A query's position in the log: the offsets that Spark keeps in its checkpoint, and arithmetic on them.

This docstring defines the format. One line of `offsets/N` in the checkpoint, and each string that Spark passes to the
source, is one JSON object:

    {"clicks": {"0": 23, "1": 7}, "@ids": {"clicks": "5e1b2d3c-…"}}

- A topic's name maps partition number (a string, as JSON requires) to the offset of the next record to read. That is
  the exclusive end of the batch that wrote this line. The shape is that of Spark's own Kafka source.
- `@ids` maps topic to topic id, a UUID in its hyphenated text form. "@" is not allowed in a topic's name, so the key
  cannot collide with a topic. A topic whose broker sends no ids (Metadata below version 10) is not listed there.
- Topics are sorted by name, partitions by number; `@ids` comes last and only when it is not empty. Spark compares
  the text, so equal offsets must be equal text.

A topic that was deleted and recreated has another id and is another topic: offsets of one do not apply to the other.
Batch k covers `ranges(offsets/k-1, offsets/k)`. Batch 0 covers `ranges(None, offsets/0)`, which has no rows:
`offsets/0` is the query's start.
"""

import heapq
import itertools
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from onceflow.errors import OnceflowError

IDS_KEY = "@ids"


class MalformedOffsets(OnceflowError):
    """Text in a checkpoint or an option that does not hold offsets of this source."""


@dataclass(frozen=True, slots=True)
class Offsets:
    """Next offset per topic and partition, and the known topic ids."""

    by_topic: Mapping[str, Mapping[int, int]]
    topic_ids: Mapping[str, str] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Return the JSON object that the module's docstring defines, in its order."""
        document: dict[str, Any] = {
            topic: {str(partition): offset for partition, offset in sorted(self.by_topic[topic].items())}
            for topic in sorted(self.by_topic)
        }
        if self.topic_ids:
            document[IDS_KEY] = {topic: self.topic_ids[topic] for topic in sorted(self.topic_ids)}
        return document

    def same_topic(self, other: "Offsets", topic: str) -> bool:
        """Return False if both know the topic's id and the ids differ."""
        mine, theirs = self.topic_ids.get(topic), other.topic_ids.get(topic)
        return mine is None or theirs is None or mine == theirs


@dataclass(frozen=True, slots=True, order=True)
class OffsetRange:
    """Offsets `begin` to `end`, exclusive, of one partition; empty if they are equal."""

    topic: str
    partition: int
    begin: int
    end: int

    @property
    def size(self) -> int:
        """Number of offsets. There can be fewer records: markers and compaction leave gaps."""
        return self.end - self.begin

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} [{self.begin}, {self.end})"


def parse(document: str | Mapping[str, Any]) -> Offsets:
    """Parse offsets from JSON text or a JSON object. Raises MalformedOffsets."""
    if isinstance(document, str):
        try:
            document = json.loads(document)
        except json.JSONDecodeError as error:
            raise MalformedOffsets(f"offsets {document!r} are not JSON ({error}); expected {_EXAMPLE}") from error
    if not isinstance(document, Mapping):
        raise MalformedOffsets(f"offsets {document!r} are not a JSON object; expected {_EXAMPLE}")
    topic_ids = document.get(IDS_KEY, {})
    if not isinstance(topic_ids, Mapping) or not all(isinstance(value, str) for value in topic_ids.values()):
        raise MalformedOffsets(f"{IDS_KEY} {topic_ids!r} in offsets is not an object of topic ids")
    by_topic = {
        topic: _parse_partitions(topic, partitions) for topic, partitions in document.items() if topic != IDS_KEY
    }
    return Offsets(by_topic, dict(topic_ids))


_EXAMPLE = '{"topic": {"0": 23}}'


def _parse_partitions(topic: str, partitions: Any) -> dict[int, int]:
    if not isinstance(partitions, Mapping):
        raise MalformedOffsets(f"offsets of topic {topic} are {partitions!r}; expected {_EXAMPLE}")
    parsed = {}
    for partition, offset in partitions.items():
        if not (isinstance(partition, str) and partition.isascii() and partition.isdecimal()):
            raise MalformedOffsets(f"partition {partition!r} of topic {topic} in offsets is not a number")
        if not isinstance(offset, int) or isinstance(offset, bool):
            raise MalformedOffsets(f"offset {offset!r} of {topic}-{partition} is not a whole number")
        parsed[int(partition)] = offset
    return parsed


def ranges(start: Offsets | None, end: Offsets) -> list[OffsetRange]:
    """Return the ranges between two offsets: one for each partition of `end`, sorted, empty ones included.

    A partition that `start` lacks, or has under another topic id, enters at its offset in `end` without rows. So does
    one whose start is after its end: when Spark repeats batch 0, it asks the source again where a fresh query starts.
    """
    result = []
    for topic in sorted(end.by_topic):
        known = start.by_topic.get(topic, {}) if start is not None and end.same_topic(start, topic) else {}
        for partition, offset_end in sorted(end.by_topic[topic].items()):
            offset_begin = min(known.get(partition, offset_end), offset_end)
            result.append(OffsetRange(topic, partition, offset_begin, offset_end))
    return result


def entering(start: Offsets, ends: Offsets) -> dict[str, list[int]]:
    """Return the partitions that `start` lacks: new ones, and all of a recreated topic."""
    entering = {}
    for topic, partitions in ends.by_topic.items():
        known = start.by_topic.get(topic, {}) if ends.same_topic(start, topic) else {}
        unknown = sorted(set(partitions) - set(known))
        if unknown:
            entering[topic] = unknown
    return entering


def following(start: Offsets, ends: Offsets, begins: Mapping[str, Mapping[int, int]]) -> Offsets:
    """Return where a batch after `start` may end: the log's ends, and the start of each entering partition.

    `begins` has the first offset of each of `entering(start, ends)`. A partition or topic that `ends` lacks keeps its
    offset in `start`, so that nothing is read twice if it reappears. An end that moved back is taken as it is.
    """
    by_topic = {topic: dict(partitions) for topic, partitions in start.by_topic.items()}
    for topic, partitions in ends.by_topic.items():
        if not ends.same_topic(start, topic):
            by_topic[topic] = {}
        by_topic.setdefault(topic, {}).update(partitions)
        for partition, begin in begins.get(topic, {}).items():
            by_topic[topic][partition] = min(begin, partitions[partition])
    return Offsets(by_topic, {**start.topic_ids, **ends.topic_ids})


class LossKind(StrEnum):
    """Reason why the log lacks offsets that a query had to read."""

    TRIMMED = "trimmed"
    """Deleted by retention or on request: the partition starts later."""
    TRUNCATED = "truncated"
    """The partition ends earlier: offsets that were read are assigned again, to other records."""
    RECREATED = "recreated"
    """The topic was deleted and created again."""
    MISSING = "missing"
    """There is no such topic or partition."""


@dataclass(frozen=True, slots=True)
class Loss:
    """Offsets `begin` to `end`, exclusive, that a query had to read and that the log no longer has.

    Without a partition it is the whole topic; without an end everything after `begin`.
    """

    kind: LossKind
    topic: str
    partition: int | None = None
    begin: int | None = None
    end: int | None = None
    reason: str = field(default="", compare=False)

    @property
    def place(self) -> str:
        """The lost topic, partition or offsets, for a message."""
        if self.partition is None:
            return f"topic {self.topic}"
        partition = f"{self.topic}-{self.partition}"
        if self.begin is None:
            return partition
        return f"{partition} [{self.begin}, {'…' if self.end is None else self.end})"


def losses(start: Offsets, ends: Offsets) -> list[Loss]:
    """Return what a query at `start` can no longer read, as far as the log's ends show."""
    lost = []
    for topic, partitions in start.by_topic.items():
        if topic not in ends.by_topic:
            lost.append(Loss(LossKind.MISSING, topic, reason="the topic does not exist"))
        elif not ends.same_topic(start, topic):
            reason = f"it was deleted and created again, id {start.topic_ids[topic]} is now {ends.topic_ids[topic]}"
            lost.append(Loss(LossKind.RECREATED, topic, reason=reason))
        else:
            lost += _losses_in(topic, partitions, ends.by_topic[topic])
    return lost


def lacking(start: Offsets, ends: Offsets) -> bool:
    """Return whether the ends lack a topic or a partition that `start` has."""
    return any(set(partitions) - set(ends.by_topic.get(topic, {})) for topic, partitions in start.by_topic.items())


def _losses_in(topic: str, partitions: Mapping[int, int], ends: Mapping[int, int]) -> list[Loss]:
    lost = []
    for partition, offset in partitions.items():
        if partition not in ends:
            reason = f"the topic now has {len(ends)} partitions"
            lost.append(Loss(LossKind.MISSING, topic, partition, reason=reason))
        elif ends[partition] < offset:
            reason = f"the partition now ends at {ends[partition]}, before the next offset to read, {offset}"
            lost.append(Loss(LossKind.TRUNCATED, topic, partition, ends[partition], offset, reason))
    return lost


def restarts(start: Offsets, end: Offsets) -> list[Loss]:
    """Return, for each partition, where a batch from `start` to `end` does not continue the previous one."""
    lost: list[Loss] = []
    for loss in losses(start, end):
        if loss.kind is LossKind.RECREATED:
            known = start.by_topic[loss.topic]
            lost += [Loss(loss.kind, loss.topic, partition, known[partition]) for partition in sorted(known)]
        elif loss.kind is LossKind.TRUNCATED:
            lost.append(loss)
    return lost


def losses_of_range(part: OffsetRange, log: OffsetRange) -> list[Loss]:
    """Return the offsets of `part` that lie outside the partition's log."""
    lost = []
    if part.begin < log.begin:
        lost.append(Loss(LossKind.TRIMMED, part.topic, part.partition, part.begin, min(log.begin, part.end)))
    if log.end < part.end:
        lost.append(Loss(LossKind.TRUNCATED, part.topic, part.partition, max(part.begin, log.end), part.end))
    return lost


def limit(start: Offsets, end: Offsets, offsets_max: int) -> Offsets:
    """Return `end`, or about `offsets_max` offsets after `start` if that is less, in proportion to each backlog.

    As in Spark's Kafka source, a partition with a backlog gets at least one offset, so that a small one beside a large
    one advances. The sum can therefore exceed `offsets_max` by less than the number of partitions.
    """
    backlog = ranges(start, end)
    total = sum(part.size for part in backlog)
    if total <= offsets_max:
        return end
    limited: dict[str, dict[int, int]] = {topic: {} for topic in end.by_topic}
    for part in backlog:
        share = max(1, offsets_max * part.size // total) if part.size else 0
        limited[part.topic][part.partition] = part.begin + share
    return Offsets(limited, end.topic_ids)


def share_out(
    parts: Iterable[OffsetRange],
    offsets_per_task_min: int,
    *,
    tasks_min: int | None = None,
    tasks_max: int | None = None,
    offsets_per_task_max: int | None = None,
) -> list[list[OffsetRange]]:
    """Return one list of ranges per read task, without the empty ranges.

    Large ranges get a task each, or share at most `tasks_max`. Small ones share a task, since a task costs some 30 ms
    however little it reads. Ranges are split in proportion to their size to reach `tasks_min` tasks, and so that no
    task has more than `offsets_per_task_max` offsets; `tasks_max` does not matter then.
    """
    present = [part for part in parts if part.size]
    pieces = _cut(present, tasks_min or 1, offsets_per_task_max)
    if len(pieces) > len(present):
        cap = min(offsets_per_task_min, offsets_per_task_max or offsets_per_task_min)
        return _in_order(pieces, tasks_min or 1, cap)
    present.sort(key=lambda part: part.size, reverse=True)
    total = sum(part.size for part in present)
    task_count = min(len(present), max(1, total // offsets_per_task_min, tasks_min or 1), tasks_max or len(present))
    tasks: list[list[OffsetRange]] = [[] for _ in range(task_count)]
    smallest = [(0, number) for number in range(task_count)]
    for part in present:
        size, number = smallest[0]
        if offsets_per_task_max is not None and size + part.size > max(offsets_per_task_max, part.size):
            number = len(tasks)
            tasks.append([part])
            heapq.heappush(smallest, (part.size, number))
        else:
            tasks[number].append(part)
            heapq.heapreplace(smallest, (size + part.size, number))
    return tasks


def _in_order(pieces: list[OffsetRange], tasks_min: int, offsets_max: int) -> list[list[OffsetRange]]:
    """Return one task for each piece, or for several small neighbours.

    Read in the order of the tasks, a partition's rows are in offset order although the partition was split.
    """
    tasks: list[list[OffsetRange]] = []
    joins_left = len(pieces) - tasks_min
    size = 0
    for piece in sorted(pieces):
        if tasks and joins_left > 0 and size + piece.size <= offsets_max:
            tasks[-1].append(piece)
            joins_left -= 1
        else:
            tasks.append([piece])
            size = 0
        size += piece.size
    return tasks


def _cut(present: list[OffsetRange], tasks_min: int, offsets_max: int | None) -> list[OffsetRange]:
    total = sum(part.size for part in present)
    pieces = []
    for part in present:
        count = 1
        if tasks_min > len(present):
            count = min(part.size, -(-tasks_min * part.size // total))
        if offsets_max is not None:
            count = max(count, -(-part.size // offsets_max))
        cuts = [part.begin + part.size * number // count for number in range(count + 1)]
        pieces += [OffsetRange(part.topic, part.partition, *ends) for ends in itertools.pairwise(cuts)]
    return pieces
