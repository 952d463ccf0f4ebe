"""What one micro-batch is, and where it leaves the offsets."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from onceflow.spark.offsets import Loss, LossKind, OffsetRange

NO_BATCH = -1

PartitionOffsets = dict[str, dict[str, int]]
"""Topic → partition as text → offset."""


def canonical_json(document: Any) -> str:
    """The one text of a JSON document, so that equal documents are equal text."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class AcceptedLoss:
    """Offsets that are missing from a sink, or were counted of a topic that is gone: which, when, by which option."""

    kind: str
    """A LossKind."""
    topic: str
    partition: int
    begin: int
    end: int | None
    """None: not known; all that the former topic had after `begin`."""
    batch: int
    at_ms: int
    """The start of the run that accepted it, ms since 1970."""
    option: str

    def __str__(self) -> str:
        at = datetime.fromtimestamp(self.at_ms / 1000, UTC).isoformat(timespec="seconds")
        gone = f"{self.topic}-{self.partition} [{self.begin}, {'…' if self.end is None else self.end})"
        return f"{gone} {self.kind}, accepted in batch {self.batch} by {self.option} at {at}"


@dataclass(frozen=True, slots=True)
class Batch:
    """What one micro-batch is: told by the checkpoint and the job's code, the same at every attempt."""

    query: str
    number: int
    ranges: Sequence[OffsetRange]
    plan: str
    plan_version: int
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    restarts: Sequence[Loss] = ()
    """Where the batch does not continue the one before, as the checkpoint shows: another topic, an earlier end."""
    accepted: Sequence[AcceptedLoss] | None = None
    """What of it is missing; None where no loss was accepted."""

    @property
    def ranges_json(self) -> str:
        """The offsets as the one text that they have: `{"topic": {"0": [begin, end]}}`, end exclusive."""
        document: dict[str, dict[str, list[int]]] = {}
        for part in self.ranges:
            document.setdefault(part.topic, {})[str(part.partition)] = [part.begin, part.end]
        return canonical_json(document)

    @property
    def digest(self) -> str:
        """Hex SHA-256: a job whose code changed in the middle of a batch must not finish it with the new code."""
        document = [json.loads(self.ranges_json), dict(self.topic_ids), self.plan, self.plan_version]
        return hashlib.sha256(canonical_json(document).encode()).hexdigest()

    @property
    def recreated(self) -> frozenset[str]:
        """Topics that were deleted and created again before this batch."""
        return frozenset(loss.topic for loss in self.restarts if loss.kind is LossKind.RECREATED)

    @property
    def size_offsets(self) -> int:
        """Number of offsets; events where the log has neither transaction markers nor compaction."""
        return sum(part.size for part in self.ranges)


def offsets_after(offsets: PartitionOffsets, batch: Batch) -> PartitionOffsets:
    """`offsets` moved on to where `batch` ends; partitions that the batch does not name stay."""
    return _joined(offsets, {(part.topic, part.partition): part.end for part in batch.ranges})


def since_after(since: PartitionOffsets, batch: Batch) -> PartitionOffsets:
    """`since` with the partitions that `batch` is the first to name, each where it begins there."""
    new = {
        (part.topic, part.partition): part.begin
        for part in batch.ranges
        if str(part.partition) not in since.get(part.topic, {})
    }
    return _joined(since, new)


def _joined(known: PartitionOffsets, more: Mapping[tuple[str, int], int]) -> PartitionOffsets:
    result = {topic: dict(partitions) for topic, partitions in known.items()}
    for (topic, partition), offset in more.items():
        result.setdefault(topic, {})[str(partition)] = offset
    return result
