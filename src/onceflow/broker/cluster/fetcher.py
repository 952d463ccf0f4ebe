"""Fetchers: copy partitions from their leaders (kafka.server.ReplicaFetcherThread).

There are `num.replica.fetchers` fetchers for each leader, each a task with one connection. A round sends one Fetch for
all its partitions, appends what arrives, syncs it through the group commit, and only then sends the next one: the fetch
offset is the end of what is synced, since the leader counts it for the high watermark. The response is bounded by
`replica.fetch.response.max.bytes`, or is one batch.

Each Fetch has the epoch of the last record that the follower has. Where that is not in the leader's log, the response
says where the logs part (KIP-595), and the follower truncates its log there (KIP-101, KIP-279): to the smaller end of
that epoch in both logs, or starts over there if that is before its own start. The high watermark never decides. A
follower whose end is outside the leader's log starts over at the leader's start, or truncates to the leader's end
(AbstractFetcherThread.fetchOffsetAndTruncate).
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Executor
from typing import NamedTuple

from onceflow.broker.cluster.peer import Connect, Limits, Peer, connect_plaintext
from onceflow.broker.config import Endpoint
from onceflow.broker.storage.group_commit import GroupCommit
from onceflow.broker.storage.partitions import Partition, Place, Watchers
from onceflow.log.epochs import NO_EPOCH
from onceflow.log.errors import LogError
from onceflow.log.partition import PartitionLog
from onceflow.log.recovery import Loaded
from onceflow.log.truncation import Truncation
from onceflow.wire import apis, fetch
from onceflow.wire.errors import ErrorCode, WireError
from onceflow.wire.fetch import FetchedPartition, FetchPartition, FetchRequest
from onceflow.wire.frames import request_class
from onceflow.wire.inter_broker import NO_LEADER
from onceflow.wire.messages import message_of

logger = logging.getLogger(__name__)

FETCH_VERSION = 12
LIST_OFFSETS_VERSION = 7
EARLIEST, LATEST = -2, -1
FULL_SESSION = (0, -1)
BACKOFF_FIRST_MS = 50
"""First delay after an error: a leader often learns of its role just after its followers."""

AddressOf = Callable[[int], Endpoint | None]
"""Returns the address of a live broker for other brokers."""
AdvanceStart = Callable[[Mapping[Partition, int]], Awaitable[None]]
"""Moves log starts, durably. Raises OSError."""


class FetchLimits(NamedTuple):
    """Settings of the fetchers, with Kafka's names and defaults."""

    fetchers_per_leader: int = 1
    wait_max_ms: int = 500
    bytes_min: int = 1
    partition_bytes_max: int = 1024**2
    response_bytes_max: int = 10 * 1024**2
    backoff_ms: int = 1000
    socket_timeout_ms: int = 30_000


class Backoff:
    """Delays after errors in a row: each is twice the one before, up to `replica.fetch.backoff.ms`."""

    __slots__ = ("_failures", "_max_ms")

    def __init__(self, max_ms: int) -> None:
        self._max_ms = max_ms
        self._failures = 0

    def next_seconds(self) -> float:
        """Return the delay after one more error."""
        doublings = min(self._failures, self._max_ms.bit_length())
        self._failures += 1
        return min(BACKOFF_FIRST_MS << doublings, self._max_ms) / 1000

    def reset(self) -> None:
        """Begin again, since there was no error."""
        self._failures = 0


def fetch_position(log: PartitionLog) -> tuple[int, int]:
    """Return the offset that a follower fetches next, and the leader epoch of the record before it, -1 without one."""
    offset = log.durability.stored_offset
    return offset, log.epochs.epoch_at(offset - 1) if offset > 0 else NO_EPOCH


def common_end(log: PartitionLog, epoch: int, end_offset: int) -> int:
    """Return where a follower truncates its log after a response with a diverging epoch: the smaller end of that epoch,
    or of the last one before it, in both logs. It may be before the follower's start."""
    own = log.end_of_epoch(epoch)
    known_end = own.end_offset if own.end_offset >= 0 else log.log_end_offset
    return min(end_offset, known_end)


def may_lack_records(log: PartitionLog, leader_start: int) -> bool:
    """Return whether an empty log may lack records of its leader before its start: nothing in it shows that the leader
    has the records that were deleted here, and not others."""
    is_empty = log.log_start_offset == log.log_end_offset
    return is_empty and 0 <= leader_start < log.log_start_offset and fetch_position(log)[1] == NO_EPOCH


class Following:
    """A partition that this broker follows (`storage.partitions.Replica`)."""

    def __init__(self, partition: Partition, leader: int, leader_epoch: int, backoff: Backoff) -> None:
        self.partition = partition
        self.leader = leader
        self.leader_epoch = leader_epoch
        self.backoff = backoff
        self.retry_at = 0.0
        """Time of the loop before which it is not fetched, after an error."""
        self.watchers: Watchers = {}
        """None: a follower serves no others."""
        self._stored: asyncio.Future[None] | None = None

    @property
    def log(self) -> PartitionLog:
        return self.partition.log

    @property
    def place(self) -> Place:
        return self.partition.topic, self.partition.index

    @property
    def is_stored(self) -> bool:
        """Whether everything is synced, or nothing more will be."""
        log = self.log
        return log.durability.stored_offset == log.log_end_offset or log.durability.failure is not None

    def on_stored(self) -> None:
        """Continue what waits for the end of a sync; it checks whether that was enough."""
        if self._stored is not None:
            self._stored.set_result(None)
            self._stored = None

    on_failed = on_stored

    def on_appended(self) -> None:
        """Do nothing: followers of followers do not exist."""

    def refusal(self) -> ErrorCode:
        """Return the error of records that are sent to a follower."""
        return ErrorCode.not_leader_or_follower

    result = refusal
    is_end_known = False

    def fetched(self, broker_id: int, offset: int) -> bool:
        """Return that no broker copies from a follower."""
        return False

    async def settled(self) -> None:
        """Wait for the next end of a sync."""
        if self._stored is None:
            self._stored = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._stored)


class Fetchers:
    """All fetchers of a broker."""

    def __init__(
        self,
        broker_id: int,
        limits: FetchLimits,
        *,
        group_commit: GroupCommit,
        thread: Executor,
        address_of: AddressOf,
        advance_start: AdvanceStart,
        is_busy: Callable[[Partition], bool],
        lower_offsets: Callable[[str, int, int], None],
        connect: Connect = connect_plaintext,
    ) -> None:
        """`thread` truncates logs; not those for which `is_busy`, which are compacted at the moment.

        `lower_offsets` lowers the stored offsets of (topic, partition) before records from an offset on are removed.
        Raises OSError.
        """
        self.lower_offsets = lower_offsets
        self.broker_id = broker_id
        self.limits = limits
        self.group_commit = group_commit
        self.thread = thread
        self.address_of = address_of
        self.connect = connect
        self.advance_start = advance_start
        self.is_busy = is_busy
        self._followings: dict[Place, Following] = {}
        self._fetchers: dict[tuple[int, int], Fetcher] = {}
        self._truncating: dict[Place, list[Callable[[], None]]] = {}
        """Partitions whose logs are truncated at the moment, and what waits for the end, in order."""

    def follow(self, partition: Partition, leader: int, leader_epoch: int) -> Following:
        """Copy a partition from its leader in this epoch, instead of from an earlier one."""
        place = partition.topic, partition.index
        before = self._followings.get(place)
        if before is not None and (before.partition, before.leader, before.leader_epoch) == (
            partition,
            leader,
            leader_epoch,
        ):
            return before
        following = self._followings[place] = Following(
            partition, leader, leader_epoch, Backoff(self.limits.backoff_ms)
        )
        partition.replica = following
        self._release(place, before, lambda: self._start(following))
        return following

    def _start(self, following: Following) -> None:
        if self._followings.get(following.place) is not following or following.leader == NO_LEADER:
            return
        key = following.leader, hash(following.place) % self.limits.fetchers_per_leader
        fetcher = self._fetchers.get(key)
        if fetcher is None:
            fetcher = self._fetchers[key] = Fetcher(self, following.leader)
        fetcher.add(following)

    def remove(self, place: Place, removed: Callable[[], None]) -> None:
        """Copy a partition no more; call `removed` once its log is not used."""
        self._release(place, self._followings.pop(place, None), removed)

    def _release(self, place: Place, following: Following | None, released: Callable[[], None]) -> None:
        if following is not None:
            self._discard(following)
        waiting = self._truncating.get(place)
        if waiting is None:
            released()
        else:
            waiting.append(released)

    def _discard(self, following: Following) -> None:
        for key, fetcher in list(self._fetchers.items()):
            if fetcher.discard(following):
                fetcher.close()
                del self._fetchers[key]
        # A fetcher that waits for its sync continues with its other partitions.
        following.on_stored()

    def truncate(self, following: Following, truncation: Truncation) -> asyncio.Task[None]:
        """Run a truncation in the thread, after what the thread does already."""
        loop = asyncio.get_running_loop()
        self._truncating[following.place] = []
        cut = loop.run_in_executor(self.thread, self._cut, following.place, truncation)
        return loop.create_task(self._end_truncation(following, truncation, cut))

    def _cut(self, place: Place, truncation: Truncation) -> Loaded:
        self.lower_offsets(*place, truncation.offset)
        return truncation.run()

    async def _end_truncation(self, following: Following, truncation: Truncation, cut: asyncio.Future[Loaded]) -> None:
        log = following.log
        visible = log.high_watermark
        try:
            loaded = await cut
        except OSError as error:
            logger.error("%s could not be truncated: %s", following.partition, error)
            log.fail_truncation(error)
        else:
            log.end_truncation(loaded)
            if log.log_end_offset < visible and not truncation.starts_over:
                logger.warning(
                    "%s: the records from %d to %d are lost: broker %d, which was not in sync, leads without them",
                    following.partition,
                    log.log_end_offset,
                    visible - 1,
                    following.leader,
                )
        finally:
            for released in self._truncating.pop(following.place):
                released()

    def following(self, place: Place) -> Following | None:
        """Return the state of a partition that is followed."""
        return self._followings.get(place)

    def is_current(self, following: Following) -> bool:
        """Return whether a partition is still followed in that epoch."""
        is_served = following.partition.replica is following
        return is_served and self._followings.get(following.place) is following

    async def close(self) -> None:
        """Stop all fetchers, and wait for truncations."""
        tasks = [fetcher.task for fetcher in self._fetchers.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._fetchers.clear()


class Fetcher:
    """One task that copies partitions of one leader."""

    def __init__(self, fetchers: Fetchers, leader: int) -> None:
        self._all = fetchers
        self._leader = leader
        self._followings: dict[Place, Following] = {}
        self._wake = asyncio.Event()
        self._backoff = Backoff(fetchers.limits.backoff_ms)
        # One batch may be larger than the limit, and a response has names and numbers beside the records.
        limits = Limits(fetchers.limits.socket_timeout_ms / 1000, 2**31 - 1)
        client_id = f"broker-{fetchers.broker_id}-fetcher-{leader}"
        self._peer = Peer(lambda: fetchers.address_of(leader), client_id, connect=fetchers.connect, limits=limits)
        self.task = asyncio.get_running_loop().create_task(self._run(), name=f"fetcher-{leader}")

    def add(self, following: Following) -> None:
        """Copy one more partition."""
        self._followings[following.place] = following
        self._wake.set()

    def discard(self, following: Following) -> bool:
        """Copy a partition no more; return whether it was the last one."""
        if self._followings.get(following.place) is following:
            del self._followings[following.place]
            return not self._followings
        return False

    def close(self) -> None:
        """Stop."""
        self.task.cancel()

    async def _run(self) -> None:
        try:
            while True:
                try:
                    await self._round()
                except (OSError, EOFError, WireError) as error:
                    logger.warning("fetching from broker %d failed, retrying: %r", self._leader, error)
                    self._peer.close()
                    await self._pause()
                except Exception:
                    # What it copies must not fall behind for good because of one unforeseen response.
                    logger.exception("fetching from broker %d failed, retrying", self._leader)
                    self._peer.close()
                    await self._pause()
        finally:
            self._peer.close()

    async def _pause(self) -> None:
        await asyncio.sleep(self._backoff.next_seconds())

    async def _round(self) -> None:
        now = asyncio.get_running_loop().time()
        followings = list(self._followings.values())
        for deleted in [following for following in followings if not self._all.is_current(following)]:
            self.discard(deleted)
        due = [
            following for following in self._followings.values() if following.retry_at <= now and following.is_stored
        ]
        if not due:
            self._wake.clear()
            retries_s = [following.retry_at - now for following in followings if following.retry_at > now]
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min([*retries_s, self._all.limits.backoff_ms / 1000])):
                    await self._wake.wait()
            return
        asked = {following.place: following for following in due}
        response = await self._fetch(asked)
        appended: list[tuple[Following, FetchedPartition]] = []
        for fetched in response.partitions:
            following = asked.get((fetched.topic, fetched.partition))
            if following is None or not self._all.is_current(following):
                continue
            if await self._take(following, fetched):
                appended.append((following, fetched))
        for following, fetched in appended:
            await self._end(following, fetched)
        self._backoff.reset()

    async def _fetch(self, asked: Mapping[Place, Following]) -> fetch.FetchResponse:
        limits = self._all.limits
        topics: dict[str, list[FetchPartition]] = {}
        for (topic, index), following in asked.items():
            log = following.log
            offset, last_epoch = fetch_position(log)
            topics.setdefault(topic, []).append(
                FetchPartition(
                    index,
                    following.leader_epoch,
                    offset,
                    log.log_start_offset,
                    limits.partition_bytes_max,
                    last_epoch,
                )
            )
        request = FetchRequest(
            self._all.broker_id,
            limits.wait_max_ms,
            limits.bytes_min,
            limits.response_bytes_max,
            fetch.READ_UNCOMMITTED,
            *FULL_SESSION,
            list(topics.items()),
        )

        def encode(correlation_id: int, client_id: str) -> bytes:
            return fetch.encode_request(FETCH_VERSION, correlation_id, client_id, request)

        response = fetch.parse_response(FETCH_VERSION, await self._peer.exchange_frames(encode))
        if response.error_code:
            raise OSError(f"the response has error {ErrorCode(response.error_code).name}")
        return response

    def _delay(self, following: Following) -> None:
        following.retry_at = asyncio.get_running_loop().time() + following.backoff.next_seconds()

    async def _take(self, following: Following, fetched: FetchedPartition) -> bool:
        """Append what was fetched, or react to an error; return whether the partition was fetched."""
        if fetched.error_code == ErrorCode.offset_out_of_range:
            await self._reenter(following)
            return False
        if fetched.error_code:
            name = ErrorCode(fetched.error_code).name
            logger.info("%s cannot be fetched from broker %d: %s", following.partition, self._leader, name)
            self._delay(following)
            return False
        try:
            if fetched.diverging_epoch is not None:
                end = common_end(following.log, *fetched.diverging_epoch)
                # Records before the start were deleted, so nothing is in common (UnifiedLog.truncateTo).
                await self._truncate(following, end, starts_over=end < following.log.log_start_offset)
                return False
            if may_lack_records(following.log, fetched.log_start_offset):
                await self._truncate(following, fetched.log_start_offset, starts_over=True)
                return False
            if fetched.records:
                try:
                    following.log.append_copy(fetched.records)
                finally:
                    # After an error too: the batches before it are in the log.
                    self._all.group_commit.request(following.partition, self)
        except LogError as error:
            logger.error("%s could not be copied from broker %d: %s", following.partition, self._leader, error)
            self._delay(following)
            return False
        following.backoff.reset()
        return True

    async def _end(self, following: Following, fetched: FetchedPartition) -> None:
        """Wait until what was fetched is synced, then follow the leader's high watermark and log start."""
        while not following.is_stored and self._all.is_current(following):
            await following.settled()
        if not self._all.is_current(following):
            return
        log = following.log
        visible = log.high_watermark
        log.advance_high_watermark(min(fetched.high_watermark, log.durability.stored_offset))
        if log.high_watermark > visible and following.partition.watchers:
            following.partition.wake()
        if log.log_start_offset < fetched.log_start_offset <= log.high_watermark:
            await self._all.advance_start({following.partition: fetched.log_start_offset})

    async def _truncate(self, following: Following, offset: int, *, starts_over: bool) -> None:
        """Truncate the log, once no round of syncs and no compaction uses it. Raises LogError."""
        log = following.log
        while log.durability.is_syncing and self._all.is_current(following):
            await following.settled()
        if not self._all.is_current(following):
            return
        if self._all.is_busy(following.partition):
            self._delay(following)
            return
        truncation = log.begin_truncation(offset, starts_over=starts_over)
        if truncation is None:
            # Only epochs at the end were removed: a response that stays the same must not keep this task busy.
            self._delay(following)
            return
        logger.info("%s: truncating from %d to %d", following.partition, log.log_end_offset, offset)
        await asyncio.shield(self._all.truncate(following, truncation))

    async def _reenter(self, following: Following) -> None:
        """Find a place in the leader's log again, after the end of this one was outside of it. Raises OSError."""
        leader_end = await self._leader_offset(following, LATEST)
        leader_start = await self._leader_offset(following, EARLIEST)
        log = following.log
        if leader_end is None or leader_start is None or not self._all.is_current(following):
            self._delay(following)
            return
        try:
            if log.log_start_offset <= leader_end < log.log_end_offset and leader_start <= leader_end:
                await self._truncate(following, leader_end, starts_over=False)
            else:
                logger.warning("%s: starting over at the leader's start %d", following.partition, leader_start)
                await self._truncate(following, leader_start, starts_over=True)
        except LogError as error:
            logger.error("%s cannot follow broker %d: %s", following.partition, self._leader, error)
            self._delay(following)

    async def _leader_offset(self, following: Following, timestamp: int) -> int | None:
        """Return the leader's first offset or its end, None if it refuses the request."""
        topic, index = following.place
        asked = {"partition_index": index, "current_leader_epoch": following.leader_epoch, "timestamp": timestamp}
        message = message_of(
            request_class(apis.LIST_OFFSETS, LIST_OFFSETS_VERSION),
            {
                "replica_id": self._all.broker_id,
                "isolation_level": fetch.READ_UNCOMMITTED,
                "topics": [{"name": topic, "partitions": [asked]}],
            },
        )
        response = await self._peer.exchange(message)
        (partition,) = response.topics[0].partitions
        return None if partition.error_code else int(partition.offset)
