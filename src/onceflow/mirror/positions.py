"""Positions of a mirror: records of its compacted topic in the target, written in the transactions of the data.

`onceflow-mirror.NAME.positions` has one partition. Keys and values are JSON:

    ["visits", 0]   {"version": 1, "source_id": "…", "source_offset": 812, "target_id": "…", "target_offset": 640}
    ["owner"]       {"version": 1, "owner": "…"}

`source_offset` is the next offset to read, `target_offset` follows the last record that was written (-1: none). `owner`
is the random id of the mirror process that started last: it separates a fenced producer from a timed-out one.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from onceflow.client.cluster import EARLIEST, LATEST, Cluster
from onceflow.client.errors import LeaderUnavailable, TopicExists
from onceflow.client.records import read_records
from onceflow.mirror.offset_map import Ids
from onceflow.mirror.values import decode, encode
from onceflow.remedies import Remedy
from onceflow.wire import TopicPartition

PREFIX = "onceflow-mirror."
"""Prefix of the mirrors' own topics, groups and transactional ids."""
POSITIONS_CONFIGS = {"cleanup.policy": "compact", "segment.bytes": "16777216", "min.cleanable.dirty.ratio": "0.1"}
OFFSETS_CONFIGS = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
OWNER_KEY = b'["owner"]'
NO_TARGET_OFFSET = -1


@dataclass(frozen=True, slots=True)
class Names:
    """Names of one mirror in the target."""

    mirror: str

    @property
    def positions(self) -> str:
        """Topic of the positions."""
        return f"{PREFIX}{self.mirror}.positions"

    @property
    def offsets(self) -> str:
        """Topic of the offset map."""
        return f"{PREFIX}{self.mirror}.offsets"

    @property
    def transactional_id(self) -> str:
        """Transactional id, and the group in the source that shows the progress."""
        return f"{PREFIX}{self.mirror}"


@dataclass(frozen=True, slots=True)
class Position:
    """Position of one partition."""

    ids: Ids
    source_offset: int
    target_offset: int = NO_TARGET_OFFSET

    def value(self) -> bytes:
        """Return the record's value."""
        return encode(
            source_id=self.ids.source,
            source_offset=self.source_offset,
            target_id=self.ids.target,
            target_offset=self.target_offset,
        )


@dataclass(frozen=True, slots=True)
class Stored:
    """Content of the topic."""

    positions: Mapping[TopicPartition, Position] = field(default_factory=dict)
    owner: str | None = None


def position_key(partition: TopicPartition) -> bytes:
    """Return the key of a partition's record."""
    return json.dumps(partition, separators=(",", ":"), ensure_ascii=False).encode()


def owner_value(owner: str) -> bytes:
    """Return the value of the owner's record."""
    return encode(owner=owner)


def create_topics(target: Cluster, names: Names, replication_factor: int) -> None:
    """Create the mirror's two topics unless they exist."""
    existing = target.topics(names.positions, names.offsets)
    for name, configs in ((names.positions, POSITIONS_CONFIGS), (names.offsets, OFFSETS_CONFIGS)):
        if name in existing:
            continue
        try:
            target.create_topic(name, 1, replication_factor=replication_factor, configs=configs)
        except TopicExists:
            target.require_topic(name)  # By another mirror of this name that starts now.


def read_stored(target: Cluster, names: Names, *, all_committed: bool = True) -> Stored:
    """Return the last committed records.

    With `all_committed` no transaction may be open: raises LeaderUnavailable while the end of one is not readable yet.
    """
    start = target.list_offsets(names.positions, {0: EARLIEST})[0].offset
    end = target.list_offsets(names.positions, {0: LATEST})[0].offset
    if all_committed and end < target.list_offsets(names.positions, {0: LATEST}, read_committed=False)[0].offset:
        raise LeaderUnavailable(f"{names.positions} has records of an open transaction; {Remedy.TRY_AGAIN}")
    positions: dict[TopicPartition, Position] = {}
    owner = None
    for record in read_records(target, names.positions, 0, start, end):
        place = f"offset {record.offset} of {names.positions}"
        if record.key == OWNER_KEY:
            owner = decode(record.value, place, lambda content: str(content["owner"]))
        else:
            partition, position = decode(record.value, place, partial(_position, record.key))
            positions[partition] = position
    return Stored(positions, owner)


def _position(key: bytes | None, content: dict[str, Any]) -> tuple[TopicPartition, Position]:
    topic, number = json.loads(key or b"")
    ids = Ids(content["source_id"], content["target_id"])
    return (str(topic), int(number)), Position(ids, int(content["source_offset"]), int(content["target_offset"]))
