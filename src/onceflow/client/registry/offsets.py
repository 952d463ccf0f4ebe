"""A group's offsets in ZooKeeper: `/consumers/G/offsets/T/P`, persistent, the next offset to read as text."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

from onceflow.client.registry import nodes
from onceflow.wire import TopicPartition
from onceflow.zookeeper.nodes import damaged
from onceflow.zookeeper.session import Check, Conflict, OutcomeUnknown, Put, Session

WRITES_AT_ONCE = 500
"""ZooKeeper refuses requests over 1 MB."""
ATTEMPTS = 5
"""A node that another program creates or deletes at the same moment makes a write fail."""


class ZooKeeperOffsets:
    """Offsets of one group."""

    def __init__(self, session: Session, group: str) -> None:
        self._session = session
        self._group = group

    def read(self, places: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the offset of each partition that has one. Raises DamagedNode, OutcomeUnknown."""
        paths = [nodes.offset_path(self._group, place) for place in places]
        offsets = {}
        for place, path, node in zip(places, paths, self._session.read_all(paths), strict=True):
            if node is not None:
                offsets[place] = _offset(path, node.value)
        return offsets

    def commit(self, ends: Mapping[TopicPartition, int], conditions: Sequence[Check] = ()) -> None:
        """Write the next offset to read of each partition, unless a condition is not met.

        Raises Conflict with the position of the condition, OutcomeUnknown.
        """
        for attempt in range(1, ATTEMPTS + 1):
            for topic in sorted({topic for topic, _ in ends}):
                self._session.ensure(nodes.offsets_path(self._group, topic))
            try:
                self._write(ends, conditions)
            except Conflict as conflict:
                if conflict.position < len(conditions):
                    raise
                if attempt == ATTEMPTS:
                    raise OutcomeUnknown(f"{conflict}, {ATTEMPTS} times") from conflict
            else:
                return

    def _write(self, ends: Mapping[TopicPartition, int], conditions: Sequence[Check]) -> None:
        writes = iter(Put(nodes.offset_path(self._group, place), b"%d" % end) for place, end in ends.items())
        while some := _some(writes):
            self._session.commit([*conditions, *some])


def _some(writes: Iterable[Put]) -> list[Put]:
    return list(islice(writes, WRITES_AT_ONCE))


def _offset(path: str, value: bytes) -> int:
    try:
        offset = int(value)
    except ValueError:
        offset = -1
    if offset < 0:
        raise damaged(path, value, "it is not an offset")
    return offset
