"""The sources that the API asks: the read model, the archive and the log, each with threads of its own."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from onceflow.clicks.analytics import Analytics
from onceflow.clicks.archive_errors import ArchiveUnreadable
from onceflow.clicks.counted import Counted, NotCounted, Removed
from onceflow.clicks.latest import LatestEvent, latest_events
from onceflow.clicks.results import (
    DeadPointer,
    MarkerView,
    NoConsistentSnapshot,
    NothingCounted,
    RedisUnreachable,
    dead_records,
)
from onceflow.clicks.single_event import ArchivedFields
from onceflow.clicks.time_queries import Numbers
from onceflow.clicks.windows import TooMuch
from onceflow.client.cluster import Cluster
from onceflow.client.errors import ClientError
from onceflow.client.lag import log_ends
from onceflow.dashboard.api.table import BadParameter, Parsed
from onceflow.dashboard.api.workers import Cancellation, Workers
from onceflow.dashboard.feed import Feed
from onceflow.dashboard.sources import BROKER_TIMEOUT_MS, Addresses, NotOurs
from onceflow.errors import OnceflowError
from onceflow.remedies import Remedy
from onceflow.wire.batch import Record

if TYPE_CHECKING:
    from onceflow.clicks.archived_numbers import ArchivedNumbers

SETTLE_ATTEMPTS = 20
"""Attempts to read what belongs to one micro-batch, within two seconds."""
MEMORY = "1GB"
"""Memory of the database for all queries."""
ARCHIVE_TIMEOUT_MS = 10_000
LATEST_S = 0.25
"""Age up to which the newest events are shown again."""
LATEST_MAX = 200
VALUE_BYTES_MAX = 1_024
"""Bytes of a bad event that are shown."""

Result = TypeVar("Result")


class NoArchive(OnceflowError):
    """A query that needs an archive, to a server without one."""


class OtherArchive(OnceflowError):
    """An archive of other events than those that are counted."""


@dataclass(frozen=True, slots=True)
class BadRecord:
    """A bad event's place in the log, why it is bad, and its beginning; None for what the log no longer has."""

    partition: int
    offset: int
    reason: str
    timestamp_ms: int | None
    value: str | None


@dataclass(frozen=True, slots=True)
class ArchiveState:
    """Size of the archive, the records of the log that it does not have, and the time of its last file."""

    events: int
    files: int
    behind_messages: int
    as_of_ms: int | None


class Service:
    """Sources of the API. All coroutines belong to the event loop of the feed."""

    def __init__(
        self,
        feed: Feed,
        addresses: Addresses,
        archive: Path | None = None,
        *,
        links: Sequence[tuple[str, str]] = (),
    ) -> None:
        self.login = "none"
        """How users log in: none, token or header."""
        self.links = links
        """Names and addresses of other pages, such as Spark's."""
        self.feed = feed
        self.addresses = addresses
        self.archive = archive
        self.analytics = Analytics(addresses.redis_url, addresses.hash_key, attempts=SETTLE_ATTEMPTS)
        self._of_counts = Workers("api counts", threads=2, waiting_max=64, seconds_max=20.0)
        self._of_archive = Workers("api archive", threads=2, waiting_max=16, seconds_max=20.0)
        self._of_log = Workers("api log", threads=1, waiting_max=32, seconds_max=20.0)
        self._archive_log, self._log = self._cluster(ARCHIVE_TIMEOUT_MS), self._cluster(BROKER_TIMEOUT_MS)
        self._latest: tuple[float, list[LatestEvent]] = (-LATEST_S, [])
        feed.when_ended(self._of_archive.end)
        if archive is not None:
            from onceflow.clicks.queries import ArchiveReader

            self._reader = ArchiveReader(archive, memory=MEMORY)

    async def close(self) -> None:
        """Wait for running calls, and close the connections."""
        for workers in (self._of_counts, self._of_archive, self._of_log):
            await asyncio.to_thread(workers.shutdown)
        if self.archive is not None:
            self._reader.close()
        self.analytics.close()
        self._archive_log.close()
        self._log.close()

    # Either of two sources

    async def numbers(self, given: Parsed, ask: Callable[[Numbers], Result]) -> tuple[Result, str]:
        """Return what `ask` returns for the numbers that the parameters `source` and `where` choose, and their source.

        By default those are the counts. The archive has the numbers that the counts do not have, or cannot be read.
        """
        source, where = given["source"], given["where"]
        if source == "counts" and where:
            raise BadParameter("where", "source=counts has no filters; leave out 'source' or 'where'")
        if source == "archive" or where:
            return await self.of_archive(ask, where), "archive"
        try:
            return await self.of_counts(ask), "counts"
        except (NotCounted, NothingCounted, NoConsistentSnapshot, RedisUnreachable, Removed, TooMuch) as error:
            if source == "counts" or self.archive is None:
                raise
            refused = error
        try:
            return await self.of_archive(ask, where), "archive"
        except (ArchiveUnreadable, TooMuch):
            raise refused from None

    async def of_counts(self, ask: Callable[[Analytics], Result]) -> Result:
        """Return what `ask` returns for the read model."""

        def call(_: Cancellation) -> Result:
            try:
                return ask(self.analytics)
            except (ValueError, KeyError, AttributeError, TypeError) as error:
                raise NotOurs(
                    f"onceflow did not write the data under '{self.addresses.hash_key}' in Redis at "
                    f"{self.addresses.redis_shown} ({error}): {Remedy.OTHER_COUNTS}"
                ) from error

        return await self._of_counts.run(call)

    async def of_archive(
        self, ask: Callable[["ArchivedNumbers"], Result], where: Sequence[tuple[str, str]] = ()
    ) -> Result:
        """Return what `ask` returns for the archive and the log behind it."""
        if self.archive is None:
            raise NoArchive(
                f"filters, timelines and what the counts do not have need an archive: {Remedy.SHOW_ARCHIVE}"
            )
        from onceflow.clicks.archived_numbers import ArchivedNumbers

        def call(cancellation: Cancellation) -> Result:
            version = self._reader.version()
            field = self._archived_name(version.topic, version.fields)
            with self._reader.events(self._archive_log, cancellation) as events:
                cancellation.interrupt = events.interrupt
                try:
                    return ask(ArchivedNumbers(events, where, field))
                finally:
                    cancellation.interrupt = None

        return await self._of_archive.run(call)

    def _last_marker(self) -> MarkerView | None:
        """Return the last marker that the feed has read; None if it has read none."""
        return None if self.feed.counts is None else self.feed.counts.marker

    def _archived_name(self, topic: str, fields: ArchivedFields) -> Callable[[str], str]:
        """Return a function from a dimension of the job to its name in the archive of `topic`.

        While Redis is away, the job's dimensions are those that were last read. Raises OtherArchive for an archive of
        other events. The function raises RedisUnreachable if no marker has been read yet.
        """
        try:
            marker = self.analytics.marker()
        except RedisUnreachable as error:
            marker, away = self._last_marker(), error
            if marker is None:

                def unknown(_: str) -> str:
                    raise away

                return unknown
        counted = None if marker is None or marker.counted_fields is None else Counted(marker)
        topics = [self.addresses.topic] if counted is None or marker is None else self._topics(marker)
        if topic not in topics:
            raise OtherArchive(
                f"{self.archive} has the events of topic {topic}, and the counts are those of {', '.join(topics)}: "
                f"{Remedy.MATCHING_ARCHIVE}"
            )
        if counted is None or marker is None:
            return str
        if marker.counted_fields != (fields.key, fields.value):
            raise OtherArchive(
                f"{self.archive} has the fields {fields.key!r} and {fields.value!r} of events, and "
                f"{' and '.join(map(repr, marker.counted_fields or ()))} are counted: {Remedy.MATCHING_ARCHIVE}"
            )
        own = fields.dimensions
        names = {name: own.get(field, field) for name, field in counted.measures.dimensions.items()}
        return lambda dimension: names.get(dimension, dimension)

    def _topics(self, marker: MarkerView) -> list[str]:
        """Return the topics of the counts. A query that has just started has no offsets yet, but names its topic."""
        announced = None if marker.offsets else self.analytics.announced()
        return list(marker.offsets) or [self.addresses.topic if announced is None else announced[1]]

    def shown(self, error: Exception) -> str:
        """Return an error's message without the password of Redis."""
        return str(error).replace(self.addresses.redis_url, self.addresses.redis_shown)

    # The log

    async def of_log(self, ask: Callable[[Cluster], Result]) -> Result:
        """Return what `ask` returns for the cluster."""

        def call(_: Cancellation) -> Result:
            try:
                return ask(self._log)
            except ClientError:
                self._log.close()  # The next call opens new connections.
                raise

        return await self._of_log.run(call)

    async def archive_state(self) -> ArchiveState:
        """Return the size of the archive, and the records of the log that it does not have."""
        from onceflow.clicks.archive import Archive

        assert self.archive is not None
        directory = Archive(self.archive)

        def ask(cluster: Cluster) -> ArchiveState:
            version = directory.require()
            ends = log_ends(cluster, version.topic, cluster.require_topic(version.topic).partitions)
            archived = version.ends
            behind = sum(max(0, end - archived.get(partition, start)) for partition, (start, end) in ends.items())
            as_of_ms = max((file.at_ms for file in version.files), default=None)
            return ArchiveState(version.rows, len(version.files), behind, as_of_ms)

        return await self.of_log(ask)

    async def latest(self, count: int) -> list[LatestEvent]:
        """Return the newest records of the topic, at most a quarter of a second old."""
        topic, fields = self._counted_events()

        def ask(cluster: Cluster) -> list[LatestEvent]:
            read_s, events = self._latest
            if time.monotonic() - read_s >= LATEST_S:
                events = latest_events(cluster, topic, fields, LATEST_MAX)
                self._latest = (time.monotonic(), events)
            return events[:count]

        return await self.of_log(ask)

    async def bad_records(self, count: int) -> list[BadRecord]:
        """Return the newest bad events that were counted, newest first."""
        topic, _ = self._counted_events()
        pointers = await self.of_counts(lambda analytics: analytics.dead_pointers(count))
        if not pointers:
            return []
        records = await self.of_log(lambda cluster: list(dead_records(cluster, topic, pointers)))
        return [_bad_record(pointer, record) for pointer, record in records]

    def _counted_events(self) -> tuple[str, ArchivedFields]:
        """Return topic and fields of the counted events, or the defaults before the first micro-batch."""
        marker = self._last_marker()
        if marker is None or marker.counted_fields is None:
            return self.addresses.topic, ArchivedFields()
        key, value = marker.counted_fields
        counted = Counted(marker)
        return counted.topic or self.addresses.topic, ArchivedFields(key, value, counted.time_field)

    def _cluster(self, timeout_ms: int) -> Cluster:
        where = self.addresses
        return Cluster(where.bootstrap, timeout_ms=timeout_ms, security=where.security)


def _bad_record(pointer: DeadPointer, record: Record | None) -> BadRecord:
    place = (pointer.partition, pointer.offset, pointer.reason)
    if record is None:
        return BadRecord(*place, None, None)
    value = None if record.value is None else record.value[:VALUE_BYTES_MAX].decode(errors="replace")
    return BadRecord(*place, record.timestamp_ms, value)
