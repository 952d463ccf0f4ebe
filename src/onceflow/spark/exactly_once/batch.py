"""A micro-batch, its digest, and the offsets after it."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from onceflow.spark.offsets import Loss, LossKind, OffsetRange
from onceflow.wire import TopicPartition

NO_BATCH = -1

PartitionOffsets = dict[str, dict[str, int]]
"""Topic → partition as text → offset."""


def canonical_json(document: Any) -> str:
    """Return the canonical text of a JSON document: equal documents have equal text."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class AcceptedLoss:
    """Offsets missing from a sink, or counted of a topic that was deleted: which, when, by which option."""

    kind: str
    """A LossKind."""
    topic: str
    partition: int
    begin: int
    end: int | None
    """None: not known; every offset of the former topic from `begin` on."""
    batch: int
    at_ms: int
    """The start of the run that accepted it, ms since 1970."""
    option: str

    def __str__(self) -> str:
        at = datetime.fromtimestamp(self.at_ms / 1000, UTC).isoformat(timespec="seconds")
        offsets = f"{self.topic}-{self.partition} [{self.begin}, {'…' if self.end is None else self.end})"
        return f"{offsets} {self.kind}, accepted in batch {self.batch} by {self.option} at {at}"


@dataclass(frozen=True, slots=True)
class Batch:
    """One micro-batch, as the checkpoint and the job's code define it: the same in every attempt."""

    query: str
    number: int
    ranges: Sequence[OffsetRange]
    plan: str
    plan_version: int
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    restarts: Sequence[Loss] = ()
    """Partitions where the batch does not continue the one before: another topic, an earlier end."""
    accepted: Sequence[AcceptedLoss] | None = None
    """Accepted losses of the batch; None if none was accepted."""

    @property
    def ranges_json(self) -> str:
        """Canonical JSON of the offsets: `{"topic": {"0": [begin, end]}}`, end exclusive."""
        document: dict[str, dict[str, list[int]]] = {}
        for part in self.ranges:
            document.setdefault(part.topic, {})[str(part.partition)] = [part.begin, part.end]
        return canonical_json(document)

    @property
    def digest(self) -> str:
        """Hex SHA-256. It covers the plan's version, so code changed within a batch cannot finish that batch."""
        document = [json.loads(self.ranges_json), dict(self.topic_ids), self.plan, self.plan_version]
        return hashlib.sha256(canonical_json(document).encode()).hexdigest()

    @property
    def recreated(self) -> frozenset[str]:
        """Topics that were deleted and created again before this batch."""
        return frozenset(loss.topic for loss in self.restarts if loss.kind is LossKind.RECREATED)

    @property
    def size_offsets(self) -> int:
        """Number of offsets; equal to the events if the log has neither transaction markers nor compaction."""
        return sum(part.size for part in self.ranges)


def offsets_after(offsets: PartitionOffsets, batch: Batch) -> PartitionOffsets:
    """Return `offsets` advanced to the end of `batch`; partitions outside the batch stay."""
    return _joined(offsets, {(part.topic, part.partition): part.end for part in batch.ranges})


def since_after(since: PartitionOffsets, batch: Batch) -> PartitionOffsets:
    """Return `since` with the partitions that are new in `batch`, each at its first offset there."""
    new = {
        (part.topic, part.partition): part.begin
        for part in batch.ranges
        if str(part.partition) not in since.get(part.topic, {})
    }
    return _joined(since, new)


def _joined(known: PartitionOffsets, more: Mapping[TopicPartition, int]) -> PartitionOffsets:
    result = {topic: dict(partitions) for topic, partitions in known.items()}
    for (topic, partition), offset in more.items():
        result.setdefault(topic, {})[str(partition)] = offset
    return result
