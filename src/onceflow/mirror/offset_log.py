"""The topic with the map of offsets, in the target: reading it, and deleting the part that no group can need."""

from collections.abc import Iterator

from onceflow.client.admin import Admin
from onceflow.client.cluster import EARLIEST, LATEST, Cluster
from onceflow.client.records import read_records
from onceflow.mirror.offset_map import Ids, MapRecord, read_map
from onceflow.mirror.positions import Names
from onceflow.mirror.topics import id_of

TRIMMED_MAX = 10_000
"""Records that one call of `trim` reads."""


class OffsetLog:
    """Topic of one mirror's map."""

    def __init__(self, target: Cluster, names: Names) -> None:
        self._target = target
        self._topic = names.offsets

    def exists(self) -> bool:
        """Return whether the mirror has created it."""
        return self._topic in self._target.topics(self._topic)

    def ends(self) -> tuple[int, int]:
        """Return the start and the end of its committed records."""
        start = self._target.list_offsets(self._topic, {0: EARLIEST})[0].offset
        return start, self._target.list_offsets(self._topic, {0: LATEST})[0].offset

    def read(self, begin: int, end: int) -> Iterator[tuple[int, MapRecord]]:
        """Yield (offset, content) of the records. Raises MirrorStopped."""
        for record in read_records(self._target, self._topic, 0, begin, end):
            yield record.offset, read_map(record.value, f"offset {record.offset} of {self._topic}")

    def trim(self, source: Cluster) -> int:
        """Delete the first records whose offsets the source no longer has; return the new start."""
        start, end = self.ends()
        topics = {name: id_of(topic) for name, topic in source.topics().items()}
        starts: dict[str, dict[int, int]] = {}
        needed = end = min(end, start + TRIMMED_MAX)
        for offset, entry in self.read(start, end):
            topic, number = entry.partition
            if topics.get(topic) == entry.ids.source and topic in topics:
                if number not in starts.setdefault(topic, {}):
                    starts[topic][number] = source.list_offsets(topic, {number: EARLIEST})[number].offset
                if entry.runs[-1].source_end > starts[topic][number]:
                    needed = offset
                    break
        if needed > start:
            Admin(self._target).delete_records(self._topic, {0: needed})
        return needed


def current_ids(source: Cluster, target: Cluster) -> dict[str, Ids]:
    """Return the ids of the topics that both clusters have."""
    sources, targets = source.topics(), target.topics()
    return {name: Ids(id_of(topic), id_of(targets[name])) for name, topic in sources.items() if name in targets}
