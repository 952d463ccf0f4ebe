"""Map of offsets from source to target, as runs of consecutive offsets on both sides.

A run is (source offset, target offset, number of records). Between two runs there is a gap on at least one side: a
marker, an aborted transaction, or records that compaction removed. The map of a transaction is in records of the
mirror's topic `onceflow-mirror.NAME.offsets`, whose values are JSON:

    {"version": 1, "topic": "visits", "source_id": "…", "target_id": "…", "partition": 0, "runs": [[0, 0, 500], …]}

The ids are those of the topics, so that the map of a deleted topic is not used for one that has its name.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from onceflow.mirror.values import decode, encode
from onceflow.wire import TopicPartition

RUNS_MAX = 10_000
"""Runs in one record: at most some 400 KB."""


class Run(NamedTuple):
    """`length` records at consecutive offsets on both sides."""

    source: int
    target: int
    length: int

    @property
    def source_end(self) -> int:
        """Offset after the last record in the source."""
        return self.source + self.length

    @property
    def target_end(self) -> int:
        """Offset after the last record in the target."""
        return self.target + self.length


class Ids(NamedTuple):
    """Ids of a topic in the source and in the target; None if a cluster has none (before Kafka 2.8)."""

    source: str | None
    target: str | None


@dataclass(frozen=True, slots=True)
class MapRecord:
    """Runs of one partition from one transaction, in order."""

    partition: TopicPartition
    ids: Ids
    runs: tuple[Run, ...]

    def value(self) -> bytes:
        """Return the record's value."""
        topic, partition = self.partition
        return encode(
            topic=topic,
            partition=partition,
            source_id=self.ids.source,
            target_id=self.ids.target,
            runs=self.runs,
        )


def map_records(partition: TopicPartition, ids: Ids, runs: Sequence[Run]) -> Iterator[MapRecord]:
    """Yield the records of a transaction's runs in one partition."""
    for first in range(0, len(runs), RUNS_MAX):
        yield MapRecord(partition, ids, tuple(runs[first : first + RUNS_MAX]))


def read_map(value: bytes | None, place: str) -> MapRecord:
    """Parse the value of a record; `place` names it. Raises MirrorStopped."""
    return decode(value, place, _map_record)


def _map_record(content: dict[str, Any]) -> MapRecord:
    return MapRecord(
        (content["topic"], int(content["partition"])),
        Ids(content["source_id"], content["target_id"]),
        tuple(Run(*map(int, run)) for run in content["runs"]),
    )


def extend(runs: list[Run], source: int, target: int, count: int) -> None:
    """Append `count` records to the runs; join them with the last run if both sides continue."""
    if runs:
        last = runs[-1]
        if (last.source_end, last.target_end) == (source, target):
            runs[-1] = Run(last.source, last.target, last.length + count)
            return
    runs.append(Run(source, target, count))
