"""Session of a mirror: from one epoch of its producer to its end.

One transaction of the target holds the copied batches, the next source offset of each partition (`positions`) and the
map of their offsets (`offset_map`). All reading from the source happens before a transaction begins.
"""

import logging
import math
import re
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from onceflow.client.cluster import FETCH_BYTES, LATEST, Cluster
from onceflow.client.errors import OffsetOutOfRange, RequestRefused, UnknownTopic
from onceflow.client.records import next_offset
from onceflow.client.transactional import TRANSACTION_TIMEOUT_MS, TransactionalProducer
from onceflow.mirror.adoption import Adoption, ends_of
from onceflow.mirror.copying import Copy, copies
from onceflow.mirror.offset_log import OffsetLog
from onceflow.mirror.offset_map import Run, extend, map_records
from onceflow.mirror.positions import OWNER_KEY, Names, Position, owner_value, position_key, read_stored
from onceflow.mirror.progress import Progress
from onceflow.mirror.topics import Pair, Topics, id_of
from onceflow.remedies import Remedy
from onceflow.wire import TopicPartition
from onceflow.wire.codecs import Codec
from onceflow.wire.errors import ErrorCode

logger = logging.getLogger(__name__)

TRANSACTION_BYTES = 8 * 1024 * 1024
"""Copies that are collected for one transaction; the last fetch may exceed it."""
REQUEST_BYTES = 4 * 1024 * 1024
WAIT_MS = 500
"""Maximum wait for new records, and for the notice of a stop."""
REFRESH_S = 5.0
TRIM_S = 60.0
SHOWN_EVERY_S = 1.0
"""Interval of the commits to the group that shows the progress."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a mirror; `codec` None keeps the compression of each batch."""

    name: str
    topics: re.Pattern[str]
    read_committed: bool = True
    codec: Codec | None = None
    accepts_loss: bool = False
    appends: bool = False
    replication_factor: int | None = None
    interval_ms: int = 100
    retry_timeout_s: float = 300.0
    refresh_s: float = REFRESH_S
    trim_s: float = TRIM_S
    transaction_timeout_ms: int = TRANSACTION_TIMEOUT_MS


@dataclass(slots=True)
class _Work:
    """Content of a transaction."""

    copies: dict[TopicPartition, deque[Copy]] = field(default_factory=dict)
    offsets: dict[TopicPartition, int] = field(default_factory=dict)
    """Next source offset of the partitions that advance."""
    size_bytes: int = 0


@dataclass(slots=True)
class Context:
    """State that a mirror keeps from session to session."""

    source: Cluster
    target: Cluster
    settings: Settings
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    owner: str = field(default_factory=lambda: str(uuid.uuid4()))
    progress: Progress = field(default_factory=Progress)
    has_begun: bool = False
    """Whether a session has written the owner."""
    began_s: float = 0.0
    """Begin of the last transaction."""
    progressed_s: float = 0.0
    """Time of the last commit, of the last response without new records, and of the begin."""
    shows_progress: bool = True

    @property
    def names(self) -> Names:
        """Names of the mirror."""
        return Names(self.settings.name)

    @property
    def topics(self) -> Topics:
        """Rules of its topics."""
        return Topics(self.source, self.target, self.settings.topics, self.settings.replication_factor)

    @property
    def adoption(self) -> Adoption:
        """Rules for the start of its partitions."""
        return Adoption(self.settings.name, self.settings.accepts_loss, self.settings.appends)


class _TopicsChanged(Exception):
    """A topic was deleted, or deleted and created again."""


class Session:
    """One session of a mirror, with one epoch of its producer."""

    def __init__(self, context: Context, producer: TransactionalProducer) -> None:
        self._context = context
        self._producer = producer
        self._source = context.source
        self._target = context.target
        self._settings = context.settings
        self._positions: dict[TopicPartition, Position] = {}
        self._order: deque[TopicPartition] = deque()
        """Partitions that are read, rotated so that each is the first of a fetch in turn."""
        self._until: dict[TopicPartition, int] = {}
        self._refreshed_s = -math.inf
        self._trimmed_s = context.clock()
        self._shown_s = -math.inf
        self._shown: dict[TopicPartition, int] = {}

    def begin(self) -> None:
        """Read the stored positions and write the owner."""
        names = self._context.names
        stored = self._target.router.retry(lambda: read_stored(self._target, names))
        self._positions.update(stored.positions)
        with _Transaction(self._context, self._producer):
            self._producer.send(names.positions, owner_value(self._context.owner), OWNER_KEY, partition=0)
        if not self._context.has_begun:
            self._context.has_begun = True
            self._context.progressed_s = self._context.clock()

    def loop(self, is_stopping: Callable[[], bool], *, once: bool) -> None:
        """Mirror until a stop."""
        while not is_stopping():
            try:
                if self._context.clock() - self._refreshed_s >= self._settings.refresh_s:
                    self._refresh()
                    self._trim()
                if once and self._is_complete():
                    break
                work = self._collect(is_stopping)
                if work.offsets:
                    self._write(work)
            except (_TopicsChanged, UnknownTopic):
                self._refresh()
            except OffsetOutOfRange as error:
                logger.info("%s", error)
                self._order = deque(part for part in self._order if part != (error.topic, error.partition))
                self._refresh()
            self._show_progress()
        self._show_progress(at_end=True)

    def _trim(self) -> None:
        """Delete what no group can need from the map of offsets, from time to time."""
        if self._context.clock() - self._trimmed_s >= self._settings.trim_s:
            OffsetLog(self._target, self._context.names).trim(self._source)
            self._trimmed_s = self._context.clock()

    def _is_complete(self) -> bool:
        return all(self._positions[partition].source_offset >= self._until[partition] for partition in self._order)

    # Topics

    def _refresh(self) -> None:
        """Follow new, larger and deleted topics. Raises MirrorStopped for one that does not fit its positions."""
        pairs = self._context.topics.pairs()
        if not pairs and self._refreshed_s == -math.inf:
            pattern = self._settings.topics.pattern
            logger.warning("no topic at %s matches '%s'; %s", self._source.bootstrap, pattern, Remedy.LIST_TOPICS)
        current = {(name, number) for name, pair in pairs.items() for number in pair.source.partitions}
        deleted = {topic for topic, number in self._order if topic not in pairs}
        for topic in sorted(deleted):
            logger.warning("topic '%s' was deleted in the source; the target keeps what was mirrored", topic)
        read = {part for part in self._order if part in current and self._positions[part].ids == pairs[part[0]].ids}
        adopted: dict[TopicPartition, Position] = {}
        for name, pair in pairs.items():
            new = [number for number in pair.source.partitions if (name, number) not in read]
            if new:
                adopted |= self._adopt(pair, new)
        changed = {part: position for part, position in adopted.items() if self._positions.get(part) != position}
        if changed:
            # Before any record: an aborted first transaction must not look like records of someone else.
            with _Transaction(self._context, self._producer):
                self._send_positions(changed)
            self._positions |= changed
        self._order = deque([*(part for part in self._order if part in read), *adopted])
        self._context.progress.lag = {part: lag for part, lag in self._context.progress.lag.items() if part in current}
        self._refreshed_s = self._context.clock()

    def _adopt(self, pair: Pair, numbers: list[int]) -> dict[TopicPartition, Position]:
        name = pair.source.name
        self._context.topics.require_create_time(name)
        sources, targets = ends_of(self._source, name, numbers), ends_of(self._target, name, numbers)
        latest = self._source.list_offsets(
            name, dict.fromkeys(numbers, LATEST), read_committed=self._settings.read_committed
        )
        positions = {}
        for number in numbers:
            part = (name, number)
            positions[part] = self._context.adoption.start(
                f"{name}-{number}", self._positions.get(part), pair.ids, sources[number], targets[number]
            )
            self._until[part] = latest[number].offset
        return positions

    def _require_same(self, cluster: Cluster, topics: Iterable[str], *, in_source: bool) -> None:
        """Check that the topics are still those of the positions: an id belongs to one topic only."""
        names = set(topics)
        current = cluster.topics(*names)
        for (topic, _), position in self._positions.items():
            if topic in names:
                known = position.ids.source if in_source else position.ids.target
                if topic not in current or id_of(current[topic]) != known:
                    raise _TopicsChanged

    # Records

    def _collect(self, is_stopping: Callable[[], bool]) -> _Work:
        """Return the next records, collected until there are enough or the interval has passed."""
        work = _Work()
        deadline_s: float | None = None
        while not is_stopping():
            clock = self._context.clock
            wait_ms = WAIT_MS if deadline_s is None else max(0, round((deadline_s - clock()) * 1000))
            self._fetch(work, wait_ms)
            if work.offsets and deadline_s is None:
                deadline_s = clock() + self._settings.interval_ms / 1000
            if deadline_s is None or work.size_bytes >= TRANSACTION_BYTES or clock() >= deadline_s:
                break
        return work

    def _fetch(self, work: _Work, wait_ms: int) -> None:
        if not self._order:
            self._context.sleep(wait_ms / 1000)
            self._context.progressed_s = self._context.clock()
            return
        self._order.rotate(-1)
        offsets = {part: work.offsets.get(part, self._positions[part].source_offset) for part in self._order}
        fetched = self._source.fetch_topics(
            offsets, size_bytes_max=FETCH_BYTES, wait_ms=wait_ms, read_committed=self._settings.read_committed
        )
        lag = dict(self._context.progress.lag)
        for part, content in fetched.items():
            for copy in copies(content, offsets[part], self._settings.codec):
                work.copies.setdefault(part, deque()).append(copy)
                work.size_bytes += len(copy.batch)
            following = next_offset(content, offsets[part])
            if following > offsets[part]:
                work.offsets[part] = following
            end = content.last_stable_offset if self._settings.read_committed else content.high_watermark
            lag[part] = max(0, end - self._positions[part].source_offset)
        self._context.progress.lag = lag
        if not work.offsets:
            # Otherwise its commit is the progress: a target that refuses every transaction must end the mirror.
            self._context.progressed_s = self._context.clock()

    def _write(self, work: _Work) -> None:
        """Write the work in one transaction."""
        topics = {topic for topic, _ in work.offsets}
        self._require_same(self._source, topics, in_source=True)
        runs: dict[TopicPartition, list[Run]] = {}
        records, size_bytes = 0, work.size_bytes
        with _Transaction(self._context, self._producer):
            while work.copies:
                chosen = _choose(work.copies)
                bases = self._producer.send_batches({part: copy.batch for part, copy in chosen.items()})
                for part, copy in chosen.items():
                    records += _map(runs.setdefault(part, []), copy, bases[part])
            self._require_same(self._target, topics, in_source=False)
            positions = {
                part: self._advanced(part, offset, runs.get(part, [])) for part, offset in work.offsets.items()
            }
            self._send_positions(positions)
            for part, of_part in runs.items():
                for entry in map_records(part, positions[part].ids, of_part):
                    self._producer.send(self._context.names.offsets, entry.value(), partition=0)
        progress = self._context.progress
        lag = dict(progress.lag)
        for part, position in positions.items():
            lag[part] = max(0, lag[part] - (position.source_offset - self._positions[part].source_offset))
        progress.lag = lag
        self._positions |= positions
        self._context.progressed_s = self._context.clock()
        progress.records += records
        progress.size_bytes += size_bytes
        progress.transactions += 1

    def _advanced(self, part: TopicPartition, offset: int, runs: list[Run]) -> Position:
        position = self._positions[part]
        written = runs[-1].target_end if runs else position.target_offset
        return Position(position.ids, offset, written)

    def _send_positions(self, positions: Mapping[TopicPartition, Position]) -> None:
        for part, position in positions.items():
            self._producer.send(self._context.names.positions, position.value(), position_key(part), partition=0)

    # Progress

    def _show_progress(self, *, at_end: bool = False) -> None:
        """Commit the positions to the mirror's group in the source, whose lag is the mirror's."""
        is_due = at_end or self._context.clock() - self._shown_s >= SHOWN_EVERY_S
        if not self._context.shows_progress or not is_due:
            return
        reached = {part: self._positions[part].source_offset for part in self._order}
        new: dict[str, dict[int, int]] = {}
        for (topic, number), offset in reached.items():
            if self._shown.get((topic, number)) != offset:
                new.setdefault(topic, {})[number] = offset
        for topic, offsets in new.items():
            try:
                self._source.commit_offsets(self._context.names.transactional_id, topic, offsets)
            except RequestRefused as error:
                if error.error_code == ErrorCode.unknown_topic_or_partition:
                    # It was deleted, as the next refresh will notice.
                    reached = {part: offset for part, offset in reached.items() if part[0] != topic}
                    continue
                self._context.shows_progress = False
                logger.warning(
                    "the source does not show the mirror's progress, which itself is not affected: %s", error
                )
                break
        self._shown = reached
        self._shown_s = self._context.clock()


class _Transaction:
    """Context of one transaction: committed at its end, aborted if topics have changed."""

    def __init__(self, context: Context, producer: TransactionalProducer) -> None:
        self._context = context
        self._producer = producer

    def __enter__(self) -> None:
        self._context.began_s = self._context.clock()
        self._producer.begin()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is None:
            self._producer.commit()
        elif isinstance(error, _TopicsChanged | UnknownTopic):
            self._producer.abort()


def _choose(waiting: dict[TopicPartition, deque[Copy]]) -> dict[TopicPartition, Copy]:
    """Remove and return the next copy of each partition, up to the size of a request."""
    chosen: dict[TopicPartition, Copy] = {}
    size_bytes = 0
    for part in list(waiting):
        size_bytes += len(waiting[part][0].batch)
        if chosen and size_bytes > REQUEST_BYTES:
            break
        chosen[part] = waiting[part].popleft()
        if not waiting[part]:
            del waiting[part]
    return chosen


def _map(runs: list[Run], copy: Copy, base_offset: int) -> int:
    """Append a written copy to the runs of its partition; return the number of its records."""
    target = base_offset
    for part in copy.ranges:
        extend(runs, part.offset, target, part.length)
        target += part.length
    return target - base_offset
