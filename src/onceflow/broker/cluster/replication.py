"""Replication of the partitions of one broker: those that it leads, and those that it follows.

`cluster.replicas` decides for a partition that is led, `cluster.fetcher` copies from the leaders of the others. This
module connects both with logs, group commit and controller. All methods belong to the event loop's thread.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, Protocol
from uuid import UUID

from onceflow.broker.cluster.fetcher import Fetchers, Following
from onceflow.broker.cluster.replicas import Lag, LeaderState, PartitionState
from onceflow.broker.loop.deferred import DeferredCalls
from onceflow.broker.storage.partitions import Partition, Place, Watchers
from onceflow.log.clock import Clock
from onceflow.wire.errors import ErrorCode

logger = logging.getLogger(__name__)

LAG_CHECKS = 2
"""Checks of lag in `replica.lag.time.max.ms`, as in ReplicaManager."""


RETRY_S = 1.0
NOT_APPLIED = ErrorCode.ineligible_replica
"""Error of a request that no controller has carried out, nor will."""
OUTDATED = frozenset(
    {
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.unknown_topic_id,
        ErrorCode.fenced_leader_epoch,
        ErrorCode.invalid_update_version,
        ErrorCode.invalid_request,
        ErrorCode.new_leader_elected,
    }
)
"""Errors after which the controller sends this broker the partition's state."""


class IsrRequest(NamedTuple):
    """Wish of a leader for other in-sync replicas."""

    topic_id: UUID
    partition: int
    leader_epoch: int
    partition_epoch: int
    isr: Sequence[int]


class Committed(NamedTuple):
    """State of a partition that the controller has written."""

    isr: Sequence[int]
    leader_epoch: int
    partition_epoch: int


Altered = Callable[[Committed | ErrorCode], None]
"""Called with the controller's response to an IsrRequest."""


class ControllerRequests(Protocol):
    """Interface of the requests to the controller (`cluster.controller_client`)."""

    def alter_partition(self, request: IsrRequest, altered: Altered) -> None:
        """Ask for other in-sync replicas; `altered` is called once."""

    async def close(self) -> None:
        """Send nothing more."""


class Led:
    """The other replicas of a partition that this broker leads (`storage.partitions.Replica`)."""

    def __init__(self, replication: "Replication", partition: Partition, topic_id: UUID, state: LeaderState) -> None:
        self.state = state
        self.partition = partition
        self.topic_id = topic_id
        self.watchers: Watchers = {}
        """Fetches of followers that wait for more records."""
        self._replication = replication
        self._is_waking = False
        self._ask_from_ms = 0.0

    @property
    def is_current(self) -> bool:
        """Whether this broker still leads the partition in this epoch."""
        return self.partition.replica is self

    def on_stored(self) -> None:
        """Advance the high watermark, as far as the in-sync replicas allow it."""
        log = self.partition.log
        offset = self.state.high_watermark(
            log.durability.stored_offset,
            log.log_end_offset,
            log.config.min_insync_replicas,
            self._replication.now_ms(),
            self._replication.is_alive,
        )
        log.advance_high_watermark(offset)

    def on_appended(self) -> None:
        """Wake the followers at the end of this turn."""
        if self.watchers and not self._is_waking:
            self._is_waking = True
            self._replication.deferred.add(self._wake)

    def _wake(self) -> None:
        self._is_waking = False
        for watcher in list(self.watchers):
            watcher(self.partition)

    def on_failed(self) -> None:
        """Let the followers find out."""
        self.on_appended()

    def refusal(self) -> ErrorCode:
        """Return NOT_ENOUGH_REPLICAS if fewer replicas are in sync than a record needs."""
        is_enough = len(self.state.isr) >= self.state.required(self.partition.log.config.min_insync_replicas)
        return ErrorCode.none if is_enough else ErrorCode.not_enough_replicas

    def result(self) -> ErrorCode:
        """Return NOT_ENOUGH_REPLICAS_AFTER_APPEND if replicas left the set after a record was appended."""
        is_enough = len(self.state.maximal_isr) >= self.state.required(self.partition.log.config.min_insync_replicas)
        return ErrorCode.none if is_enough else ErrorCode.not_enough_replicas_after_append

    @property
    def is_end_known(self) -> bool:
        """Whether the high watermark has reached the start of the epoch: before, it may be lower than the former
        leader's."""
        return self.partition.log.high_watermark >= self.state.epoch_start_offset

    def preferred_replica(self, rack: str, offset: int, racks: Mapping[int, str | None]) -> int | None:
        """Return the in-sync follower in a rack that has the records before an offset and is the most advanced one
        (RackAwareReplicaSelector); None if this broker is in the rack. `racks` has the brokers that clients reach."""
        if racks.get(self._replication.broker_id) == rack:
            return None
        ready = {
            broker_id: (follower.end_offset, follower.caught_up_ms, broker_id)
            for broker_id, follower in self.state.followers.items()
            if broker_id in self.state.isr and racks.get(broker_id) == rack and follower.end_offset >= offset
        }
        return max(ready, key=ready.__getitem__, default=None)

    def fetched(self, broker_id: int, offset: int) -> bool:
        """Record a follower's fetch; return whether the broker is a replica."""
        log, now_ms = self.partition.log, self._replication.now_ms()
        if not self.state.fetched(broker_id, offset, log.log_end_offset, now_ms):
            return False
        before = log.high_watermark
        self.on_stored()
        if log.high_watermark > before:
            self.partition.settle()
        self._check(removes=False)
        return True

    def check(self) -> None:
        """Ask the controller for other in-sync replicas, if there should be; called from time to time."""
        self._check(removes=True)

    def _check(self, *, removes: bool) -> None:
        log, state, now_ms = self.partition.log, self.state, self._replication.now_ms()
        if now_ms < self._ask_from_ms:
            return
        wanted = state.want(log.log_end_offset, log.high_watermark, now_ms, self._replication.is_alive, removes=removes)
        if wanted is not None:
            logger.info("%s: in-sync replicas %s, asking for %s", self.partition, sorted(state.isr), sorted(wanted))
            self._ask(wanted)

    def _ask(self, wanted: frozenset[int]) -> None:
        state = self.state
        if not self.is_current or state.wanted != wanted:
            return
        request = IsrRequest(
            self.topic_id, self.partition.index, state.leader_epoch, state.partition_epoch, sorted(wanted)
        )
        self._replication.alter(request, partial(self._on_altered, request))

    def _on_altered(self, request: IsrRequest, response: Committed | ErrorCode) -> None:
        """Adopt the response (Partition.handleAlterPartitionError).

        A controller that responds with an error, such as NOT_CONTROLLER, may have changed the in-sync replicas before,
        and so may its predecessor: records wait for the replicas of both sets until the outcome is known.
        """
        if not self.is_current:
            return
        wanted = frozenset(request.isr)
        if not isinstance(response, ErrorCode):
            self.state.altered(*response)
            if self.state.isr == wanted:
                # Another follower may have caught up meanwhile, and wait for records now.
                self._check(removes=False)
        elif (wanted, request.partition_epoch) == (self.state.wanted, self.state.partition_epoch):
            logger.warning("%s: the controller did not change the in-sync replicas: %s", self.partition, response.name)
            if response is NOT_APPLIED:
                self._ask_from_ms = self._replication.now_ms() + RETRY_S * 1000
                self.state.refused()
            elif response not in OUTDATED:
                asyncio.get_running_loop().call_later(RETRY_S, self._ask, wanted)
        self.partition.settle()


class Replication:
    """The replicas of this broker."""

    def __init__(
        self,
        broker_id: int,
        fetchers: Fetchers,
        *,
        lag: Lag,
        clock: Clock,
        deferred: DeferredCalls,
        is_alive: Callable[[int], bool],
        controller: ControllerRequests,
        stored_high_watermark: Callable[[str, int], int],
    ) -> None:
        """`is_alive`: whether a broker may join the in-sync replicas.

        `stored_high_watermark`: the high watermark of a partition before the start.
        """
        self._stored_high_watermark = stored_high_watermark
        self.deferred = deferred
        self.is_alive = is_alive
        self.alter = controller.alter_partition
        self._controller = controller
        self.broker_id = broker_id
        self._fetchers = fetchers
        self._lag = lag
        self._clock = clock
        self._led: dict[Place, Led] = {}
        self._timer: asyncio.TimerHandle | None = None

    def now_ms(self) -> float:
        """Return the time of the clock that measures lag."""
        return self._clock.monotonic() * 1000

    def start(self) -> None:
        """Check the lag of followers from now on."""
        self._timer = asyncio.get_running_loop().call_later(self._lag.time_max_ms / LAG_CHECKS / 1000, self._check_all)

    def _check_all(self) -> None:
        for place, led in list(self._led.items()):
            if led.is_current:
                led.check()
            else:
                del self._led[place]
        self.start()

    def lead(self, partition: Partition, topic_id: UUID, state: PartitionState, leading: Callable[[], None]) -> None:
        """Lead a partition in the epoch of `state`; `leading` is called once that has begun.

        A truncation that is running ends before.
        """
        place = partition.topic, partition.index
        led = self._led.get(place)
        if led is not None and led.partition is partition and led.state.leader_epoch == state.leader_epoch:
            led.state.update(state, self.now_ms())
            partition.settle()
            leading()
            return
        self._fetchers.remove(place, lambda: self._begin(partition, topic_id, state, leading))

    def _begin(self, partition: Partition, topic_id: UUID, state: PartitionState, leading: Callable[[], None]) -> None:
        log = partition.log
        self._wait_for_replicas(partition)
        leader_state = LeaderState(
            self.broker_id, state, self._lag, epoch_start_offset=log.log_end_offset, now_ms=self.now_ms()
        )
        log.begin_epoch(state.leader_epoch)
        partition.leader_epoch = state.leader_epoch
        led = Led(self, partition, topic_id, leader_state)
        partition.replica = self._led[partition.topic, partition.index] = led
        leading()
        partition.settle()

    def follow(self, partition: Partition, state: PartitionState) -> None:
        """Copy a partition from its leader, which may be unknown (-1)."""
        place = partition.topic, partition.index
        self._led.pop(place, None)
        self._wait_for_replicas(partition)
        partition.leader_epoch = state.leader_epoch
        self._fetchers.follow(partition, state.leader, state.leader_epoch)

    def _wait_for_replicas(self, partition: Partition) -> None:
        """Begin after a start: what the other replicas have beyond the stored high watermark is unknown."""
        if not partition.log.durability.waits_for_replicas:
            stored = self._stored_high_watermark(partition.topic, partition.index)
            partition.log.wait_for_replicas(stored)

    def stop(self, place: Place, stopped: Callable[[], None]) -> None:
        """Neither lead nor follow a partition; `stopped` is called once its log is not used any more."""
        self._led.pop(place, None)
        self._fetchers.remove(place, stopped)

    def led(self, partition: Partition) -> Led | None:
        """Return the other replicas of a partition that this broker leads."""
        replica = partition.replica
        return replica if isinstance(replica, Led) else None

    def following(self, place: Place) -> Following | None:
        """Return the state of a partition that this broker follows."""
        return self._fetchers.following(place)

    def states(self) -> Mapping[Place, LeaderState]:
        """Return the state of each partition that is led."""
        return {place: led.state for place, led in self._led.items()}

    async def close(self) -> None:
        """Stop fetching."""
        if self._timer is not None:
            self._timer.cancel()
        await self._fetchers.close()
        await self._controller.close()
        # Let the closed connections end.
        await asyncio.sleep(0)
