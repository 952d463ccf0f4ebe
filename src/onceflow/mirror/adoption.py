"""Check of a partition before it is mirrored: whether its position still belongs to both logs."""

import logging
from dataclasses import dataclass
from typing import NamedTuple

from onceflow.client.cluster import EARLIEST, LATEST, Cluster
from onceflow.mirror.errors import MirrorStopped
from onceflow.mirror.offset_map import Ids
from onceflow.mirror.positions import NO_TARGET_OFFSET, Position
from onceflow.remedies import Remedy

logger = logging.getLogger(__name__)


class Ends(NamedTuple):
    """Start and end of a log, uncommitted records included."""

    start: int
    end: int


def ends_of(cluster: Cluster, topic: str, partitions: list[int]) -> dict[int, Ends]:
    """Return the current ends of partitions."""
    starts = cluster.list_offsets(topic, dict.fromkeys(partitions, EARLIEST), read_committed=False)
    ends = cluster.list_offsets(topic, dict.fromkeys(partitions, LATEST), read_committed=False)
    return {partition: Ends(starts[partition].offset, ends[partition].offset) for partition in partitions}


@dataclass(frozen=True, slots=True)
class Adoption:
    """Rules for the start of a partition.

    `accepts_loss` starts as near to the position as the logs allow, instead of stopping. `appends` accepts records in
    the target that are not the mirror's.
    """

    mirror: str
    accepts_loss: bool = False
    appends: bool = False

    def start(self, partition: str, position: Position | None, ids: Ids, source: Ends, target: Ends) -> Position:
        """Return the position to start at. Raises MirrorStopped."""
        if position is None:
            if target.end > 0 and not self.appends:
                raise MirrorStopped(
                    f"{partition} of the target has records up to offset {target.end} that mirror '{self.mirror}' did "
                    f"not write; {Remedy.DELETE_TARGET_TOPIC}, or {Remedy.APPEND_TO_TARGET}"
                )
            return Position(ids, source.start)
        if _differ(position.ids.source, ids.source):
            self._lose(
                f"{partition} of the source has topic id {ids.source}, and mirror '{self.mirror}' has read "
                f"{position.ids.source}: the topic was deleted and created again, or this is another cluster"
            )
            return Position(ids, source.start)
        if _differ(position.ids.target, ids.target):
            self._lose(
                f"{partition} of the target has topic id {ids.target}, and mirror '{self.mirror}' has written to "
                f"{position.ids.target}: the topic was deleted and created again"
            )
            return Position(ids, source.start)
        return self._in_range(partition, position, ids, source, target)

    def _in_range(self, partition: str, position: Position, ids: Ids, source: Ends, target: Ends) -> Position:
        offset, written = position.source_offset, position.target_offset
        if target.end < written:
            self._lose(
                f"{partition} of the target ends at offset {target.end}, and mirror '{self.mirror}' has written up to "
                f"{written}: the target has lost records"
            )
            written = NO_TARGET_OFFSET
        if offset < source.start:
            self._lose(
                f"{partition} of the source starts at offset {source.start}, and mirror '{self.mirror}' has read up to "
                f"{offset}: records were deleted before they were mirrored"
            )
            offset = source.start
        if offset > source.end:
            self._lose(
                f"{partition} of the source ends at offset {source.end}, and mirror '{self.mirror}' has read up to "
                f"{offset}: the source has lost records"
            )
            offset = source.end
        return Position(ids, offset, written)

    def _lose(self, reason: str) -> None:
        if not self.accepts_loss:
            raise MirrorStopped(f"{reason}; {Remedy.ACCEPT_MIRROR_LOSS}")
        logger.warning("%s; continuing, as --accept-data-loss allows", reason)


def _differ(known: str | None, current: str | None) -> bool:
    """Return whether ids differ; clusters before Kafka 2.8 have none."""
    return known is not None and current is not None and known != current
