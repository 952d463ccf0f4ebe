"""Where a query stands in the log: the offsets that Spark keeps in its checkpoint, and arithmetic on them.

This docstring is the format. One line of `offsets/N` in the checkpoint, and the strings that Spark hands to the
source, are one JSON object:

    {"clicks": {"0": 23, "1": 7}, "@ids": {"clicks": "5e1b2d3c-…"}}

- A key that is a topic's name maps partition number (a string, as JSON wants it) to the offset of the next record
  to be read: the end, exclusive, of the batch that wrote this line. It is the shape of Spark's own Kafka source.
- `@ids` maps topic to topic id, a UUID in its hyphened text form. "@" is not allowed in a topic's name, so the key
  cannot meet a topic. A topic of a broker that tells no ids (Metadata below version 10) is not listed there.
- Topics are written sorted, partitions in the order of their numbers, `@ids` last and only when it is not empty.
  Spark compares the text, so equal offsets must be equal text.

A topic that was deleted and made again has another id and is another topic: offsets of one say nothing about the
other. Batch k covers `ranges(offsets/k-1, offsets/k)`; batch 0 covers `ranges(None, offsets/0)`, which has no rows
in it: `offsets/0` says where the query starts.
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
    """Text that should be offsets of this source, from a checkpoint or from an option, is not."""


@dataclass(frozen=True, slots=True)
class Offsets:
    """Next offset per topic and partition, and the id of each topic that has one."""

    by_topic: Mapping[str, Mapping[int, int]]
    topic_ids: Mapping[str, str] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """The JSON object of the module's docstring, in its one order."""
        document: dict[str, Any] = {
            topic: {str(partition): offset for partition, offset in sorted(self.by_topic[topic].items())}
            for topic in sorted(self.by_topic)
        }
        if self.topic_ids:
            document[IDS_KEY] = {topic: self.topic_ids[topic] for topic in sorted(self.topic_ids)}
        return document

    def same_topic(self, other: "Offsets", topic: str) -> bool:
        """False where both know the topic's id and the ids differ."""
        mine, theirs = self.topic_ids.get(topic), other.topic_ids.get(topic)
        return mine is None or theirs is None or mine == theirs


@dataclass(frozen=True, slots=True, order=True)
class OffsetRange:
    """Records `begin` to `end`, exclusive, of one partition; `begin == end` holds none."""

    topic: str
    partition: int
    begin: int
    end: int

    @property
    def size(self) -> int:
        """Number of offsets; the records can be fewer, for markers and compaction leave gaps."""
        return self.end - self.begin

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} [{self.begin}, {self.end})"


def parse(document: str | Mapping[str, Any]) -> Offsets:
    """Offsets from their JSON text or from the object it holds. Raises MalformedOffsets."""
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
    """What lies between two offsets: one range for each partition of `end`, sorted, empty ones too.

    A partition that `start` does not have, or has under another topic id, enters at its offset in `end` without
    rows. So does one whose start lies behind its end: Spark asks for that when it repeats batch 0, because it asks
    the source again where a fresh query would begin.
    """
    result = []
    for topic in sorted(end.by_topic):
        known = start.by_topic.get(topic, {}) if start is not None and end.same_topic(start, topic) else {}
        for partition, offset_end in sorted(end.by_topic[topic].items()):
            offset_begin = min(known.get(partition, offset_end), offset_end)
            result.append(OffsetRange(topic, partition, offset_begin, offset_end))
    return result


def entering(start: Offsets, ends: Offsets) -> dict[str, list[int]]:
    """Partitions that `start` does not know: new ones, and all of a topic that was deleted and made again."""
    found = {}
    for topic, partitions in ends.by_topic.items():
        known = start.by_topic.get(topic, {}) if ends.same_topic(start, topic) else {}
        unknown = sorted(set(partitions) - set(known))
        if unknown:
            found[topic] = unknown
    return found


def following(start: Offsets, ends: Offsets, begins: Mapping[str, Mapping[int, int]]) -> Offsets:
    """Where a batch after `start` may end: the ends of the log, and the begin of each partition that enters.

    `begins` has the first offset of each `entering(start, ends)`. A partition or topic that `ends` lacks stays where
    `start` has it, so that nothing is read twice should it come back. One whose end went back follows it.
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
    """How a log came to lack what a query was to read."""

    TRIMMED = "trimmed"
    """Deleted by retention or on request: the partition begins later."""
    TRUNCATED = "truncated"
    """The partition ends earlier: offsets that were read come again, with other records."""
    RECREATED = "recreated"
    """The topic was deleted and created again."""
    MISSING = "missing"
    """There is no such topic or partition."""


@dataclass(frozen=True, slots=True)
class Loss:
    """Offsets `begin` to `end`, exclusive, that a query was to read and that the log no longer has.

    Without partition the whole topic; without end all that came after `begin`.
    """

    kind: LossKind
    topic: str
    partition: int | None = None
    begin: int | None = None
    end: int | None = None
    reason: str = field(default="", compare=False)

    @property
    def gone(self) -> str:
        """What is gone, for a message."""
        if self.partition is None:
            return f"topic {self.topic}"
        place = f"{self.topic}-{self.partition}"
        if self.begin is None:
            return place
        return f"{place} [{self.begin}, {'…' if self.end is None else self.end})"


def losses(start: Offsets, ends: Offsets) -> list[Loss]:
    """What a query that stands at `start` can no longer read, as far as the ends of the log tell."""
    found = []
    for topic, partitions in start.by_topic.items():
        if topic not in ends.by_topic:
            found.append(Loss(LossKind.MISSING, topic, reason="no such topic is there now"))
        elif not ends.same_topic(start, topic):
            reason = f"it was deleted and created again, id {start.topic_ids[topic]} is now {ends.topic_ids[topic]}"
            found.append(Loss(LossKind.RECREATED, topic, reason=reason))
        else:
            found += _losses_in(topic, partitions, ends.by_topic[topic])
    return found


def lacking(start: Offsets, ends: Offsets) -> bool:
    """Whether the ends lack a topic or a partition that `start` has."""
    return any(set(partitions) - set(ends.by_topic.get(topic, {})) for topic, partitions in start.by_topic.items())


def _losses_in(topic: str, partitions: Mapping[int, int], ends: Mapping[int, int]) -> list[Loss]:
    found = []
    for partition, offset in partitions.items():
        if partition not in ends:
            reason = f"the topic has {len(ends)} partitions now"
            found.append(Loss(LossKind.MISSING, topic, partition, reason=reason))
        elif ends[partition] < offset:
            reason = f"the partition now ends at {ends[partition]}, before offset {offset}, which comes next"
            found.append(Loss(LossKind.TRUNCATED, topic, partition, ends[partition], offset, reason))
    return found


def restarts(start: Offsets, end: Offsets) -> list[Loss]:
    """Return where a batch from `start` to `end` does not continue what was read before, for each partition."""
    found: list[Loss] = []
    for loss in losses(start, end):
        if loss.kind is LossKind.RECREATED:
            known = start.by_topic[loss.topic]
            found += [Loss(loss.kind, loss.topic, partition, known[partition]) for partition in sorted(known)]
        elif loss.kind is LossKind.TRUNCATED:
            found.append(loss)
    return found


def losses_of_range(part: OffsetRange, log: OffsetRange) -> list[Loss]:
    """Return what of `part` lies outside of what the log has of the partition."""
    found = []
    if part.begin < log.begin:
        found.append(Loss(LossKind.TRIMMED, part.topic, part.partition, part.begin, min(log.begin, part.end)))
    if log.end < part.end:
        found.append(Loss(LossKind.TRUNCATED, part.topic, part.partition, max(part.begin, log.end), part.end))
    return found


def limit(start: Offsets, end: Offsets, offsets_max: int) -> Offsets:
    """`end`, or less: about `offsets_max` offsets beyond `start`, shared out in proportion to what each has.

    As in Spark's Kafka source a partition that has something gets at least one, so that a small one beside a large
    one moves on; the sum can therefore exceed `offsets_max` by less than the number of partitions.
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
    offsets_per_task_max: int | None = None,
) -> list[list[OffsetRange]]:
    """One list of ranges per read task. Empty ranges get none.

    As many tasks as ranges where each has much to read; where there is little, one task reads several, since a
    task costs some 30 ms however little it does. A range is cut where there shall be at least `tasks_min` tasks, in
    proportion to what each has, or no task may have more than `offsets_per_task_max` offsets.
    """
    present = [part for part in parts if part.size]
    pieces = _cut(present, tasks_min or 1, offsets_per_task_max)
    if len(pieces) > len(present):
        cap = min(offsets_per_task_min, offsets_per_task_max or offsets_per_task_min)
        return _in_order(pieces, tasks_min or 1, cap)
    present.sort(key=lambda part: part.size, reverse=True)
    total = sum(part.size for part in present)
    task_count = min(len(present), max(1, total // offsets_per_task_min, tasks_min or 1))
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
    """One task for each piece, or for several small neighbours: whoever takes the tasks' rows in the order of the tasks
    has those of a partition in the order of their offsets, although it was cut."""
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
