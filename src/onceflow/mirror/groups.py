"""Translation of committed offsets: groups of the source get the same positions in the target.

A round reads the offsets of the source's groups, translates those that have changed with the map of offsets, and
commits them in the target: never to a group with members, and never back.
"""

import bisect
import logging
import re
import threading
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from onceflow.client.admin import Admin
from onceflow.client.cluster import UNAVAILABLE, Cluster
from onceflow.client.errors import RequestRefused
from onceflow.mirror.offset_log import OffsetLog, current_ids
from onceflow.mirror.offset_map import Ids, Run
from onceflow.mirror.positions import PREFIX, Names
from onceflow.wire import TopicPartition
from onceflow.wire.errors import ErrorCode

logger = logging.getLogger(__name__)

RUNS_MAX = 500_000
"""Runs in memory, of all partitions: 12 MB. Older offsets are found by reading the topic of the map again."""
_ACTIVE_CODES = frozenset(
    {
        ErrorCode.unknown_member_id,
        ErrorCode.illegal_generation,
        ErrorCode.rebalance_in_progress,
        ErrorCode.stale_member_epoch,
    }
)
"""Codes with which a commit from outside is refused while a group has members."""


class Runs:
    """Latest runs of one partition in memory, in order."""

    def __init__(self) -> None:
        self._sources, self._targets, self._lengths = array("q"), array("q"), array("q")
        self.is_whole = True
        """Whether no run was dropped."""

    def __len__(self) -> int:
        return len(self._sources)

    def append(self, runs: Iterable[Run]) -> None:
        """Add runs after those before."""
        for run in runs:
            if self._sources and self._end() == (run.source, run.target):
                self._lengths[-1] += run.length
            else:
                self._sources.append(run.source)
                self._targets.append(run.target)
                self._lengths.append(run.length)

    def _end(self) -> tuple[int, int]:
        return self._sources[-1] + self._lengths[-1], self._targets[-1] + self._lengths[-1]

    def drop_half(self) -> None:
        """Forget the older half."""
        half = (len(self) + 1) // 2
        for values in (self._sources, self._targets, self._lengths):
            del values[:half]
        self.is_whole = False

    def has(self, offset: int) -> bool:
        """Return whether `translate` is exact for the offset."""
        return bool(self._sources) and (self.is_whole or offset >= self._sources[0])

    def translate(self, offset: int) -> int:
        """Return the target's offset, as `offset_map.translate` does."""
        index = max(0, bisect.bisect_right(self._sources, offset) - 1)
        passed = min(max(0, offset - self._sources[index]), self._lengths[index])
        return self._targets[index] + passed


@dataclass(slots=True)
class Translated:
    """Result of a round: offsets committed, and groups that were left alone because they have members."""

    committed: int = 0
    active: set[str] = field(default_factory=set)


class GroupOffsets:
    """Translator of one mirror; belongs to one thread, with clusters of its own."""

    def __init__(
        self, source: Cluster, target: Cluster, names: Names, groups: re.Pattern[str], *, runs_max: int = RUNS_MAX
    ) -> None:
        self._source = source
        self._target = target
        self._log = OffsetLog(target, names)
        self._pattern = groups
        self._runs_max = runs_max
        self._runs: dict[TopicPartition, Runs] = {}
        self._ids: dict[str, Ids] = {}
        self._next = 0
        self._end = 0
        self._scanned: dict[tuple[str, TopicPartition], tuple[int, int]] = {}
        """Group and partition → source offset that was searched in the whole map, and its translation."""

    def round(self) -> Translated:
        """Translate once. Raises the client's errors, MirrorStopped."""
        result = Translated()
        groups = {
            group.group_id
            for group in Admin(self._source).list_groups()
            if self._pattern.fullmatch(group.group_id) and not group.group_id.startswith(PREFIX)
        }
        self._scanned = {key: known for key, known in self._scanned.items() if key[0] in groups}
        if groups and self._log.exists():
            self._follow()
            for group in sorted(groups):
                self._translate(group, result)
        return result

    # The map

    def _follow(self) -> None:
        """Read the new records of the map."""
        ids = current_ids(self._source, self._target)
        changed = {name for name, known in self._ids.items() if ids.get(name) != known}
        self._runs = {partition: runs for partition, runs in self._runs.items() if partition[0] not in changed}
        self._scanned = {key: known for key, known in self._scanned.items() if key[1][0] not in changed}
        self._ids = ids
        start, self._end = self._log.ends()
        for _, entry in self._log.read(max(start, self._next), self._end):
            if ids.get(entry.partition[0]) == entry.ids:
                self._runs.setdefault(entry.partition, Runs()).append(entry.runs)
                if sum(map(len, self._runs.values())) > self._runs_max:
                    max(self._runs.values(), key=len).drop_half()
        self._next = self._end

    def _scan(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return the translations of offsets that are older than the runs in memory, from one read of the map."""
        start, _ = self._log.ends()
        translated: dict[TopicPartition, int] = {}
        for _, entry in self._log.read(start, self._end):
            offset = offsets.get(entry.partition)
            if offset is None or self._ids.get(entry.partition[0]) != entry.ids:
                continue
            for run in entry.runs:
                if run.source <= offset or entry.partition not in translated:
                    translated[entry.partition] = run.target + min(max(0, offset - run.source), run.length)
        return translated

    # Groups

    def _translate(self, group: str, result: Translated) -> None:
        translated: dict[TopicPartition, int] = {}
        old: dict[TopicPartition, int] = {}
        for partition, committed in Admin(self._source).group_offsets(group).items():
            runs, offset = self._runs.get(partition), committed.offset
            if runs is None or offset < 0:
                continue
            known = self._scanned.get((group, partition))
            if runs.has(offset):
                translated[partition] = runs.translate(offset)
            elif known is not None and known[0] == offset:
                translated[partition] = known[1]
            else:
                old[partition] = offset
        if old:
            for partition, target in self._scan(old).items():
                translated[partition] = target
                self._scanned[group, partition] = (old[partition], target)
        if translated:
            self._commit(group, translated, result)

    def _commit(self, group: str, translated: Mapping[TopicPartition, int], result: Translated) -> None:
        """Commit the offsets that are ahead of the group's in the target, unless it has members."""
        current = Admin(self._target).group_offsets(group)
        ahead: dict[str, dict[int, int]] = {}
        for (topic, number), offset in translated.items():
            committed = current.get((topic, number))
            if committed is None or committed.offset < offset:
                ahead.setdefault(topic, {})[number] = offset
        for topic, offsets in ahead.items():
            try:
                self._target.commit_offsets(group, topic, offsets)
            except RequestRefused as error:
                if error.error_code in _ACTIVE_CODES:
                    result.active.add(group)
                    return
                # A topic may have been deleted since the round began.
                if error.error_code != ErrorCode.unknown_topic_or_partition:
                    raise
            else:
                result.committed += len(offsets)


def follow_groups(offsets: GroupOffsets, ended: threading.Event, every_s: float) -> None:
    """Translate every `every_s` seconds until `ended`, and a last time then. Raises the errors of a round.

    A cluster that cannot be reached is tried again in the next round.
    """
    is_last = False
    while not is_last:
        is_last = ended.wait(every_s)
        try:
            result = offsets.round()
        except UNAVAILABLE as error:
            logger.warning("the offsets of groups were not translated: %s", error)
        else:
            if result.active:
                logger.info(
                    "groups with members in the target keep their offsets: %s", ", ".join(sorted(result.active))
                )
