"""State of a partition at its leader: how far each follower is, and which replicas are in sync.

A pure state machine; `cluster.replication` calls it and carries out what it returns. The rules are those of
kafka.cluster.Partition and Replica:

- The high watermark is the minimum of the ends of the in-sync replicas. A follower fetches from the end of what it has
  synced, so that this is what survives a power cut there (docs/decisions/replication.md). It waits for followers that
  are about to join, and does not move below `min.insync.replicas`.
- A replica leaves the in-sync set when it has not been at the leader's end for `replica.lag.time.max.ms`, or lacks more
  than `replica.lag.max.messages`. It joins when its end reaches the high watermark and the start of the leader's epoch.
- The controller decides about the set (AlterPartition). Until it responds, records wait for the replicas of both the
  old and the wanted set, and nothing else is asked.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

UNKNOWN_OFFSET = -1


class PartitionState(Protocol):
    """State of a partition in a LeaderAndIsr request."""

    @property
    def leader(self) -> int: ...
    @property
    def leader_epoch(self) -> int: ...
    @property
    def partition_epoch(self) -> int: ...
    @property
    def isr(self) -> Sequence[int]: ...
    @property
    def replicas(self) -> Sequence[int]: ...


class Lag(NamedTuple):
    """Limits of an in-sync replica."""

    time_max_ms: int = 30_000
    messages_max: int = 2**63 - 1


@dataclass(slots=True)
class Follower:
    """Progress of one follower, as its fetches report it."""

    caught_up_ms: float
    """When it was last at the leader's end."""
    end_offset: int = UNKNOWN_OFFSET
    fetched_ms: float = 0.0
    leader_end_offset: int = UNKNOWN_OFFSET
    """The leader's end at its last fetch."""

    def fetched(self, offset: int, leader_end_offset: int, now_ms: float) -> None:
        """Record a fetch from `offset` (Replica.updateFetchState).

        A fetch that reaches the leader's end of the previous fetch was caught up then: under steady load a follower is
        never at the present end.
        """
        if offset >= leader_end_offset:
            self.caught_up_ms = max(self.caught_up_ms, now_ms)
        elif offset >= self.leader_end_offset >= 0:
            self.caught_up_ms = max(self.caught_up_ms, self.fetched_ms)
        self.end_offset, self.leader_end_offset, self.fetched_ms = offset, leader_end_offset, now_ms

    def is_caught_up(self, leader_end_offset: int, now_ms: float, lag: Lag) -> bool:
        """Return whether it may be in sync (ReplicaState.isCaughtUp)."""
        if self.end_offset == leader_end_offset:
            return True
        lacks_too_much = leader_end_offset - max(self.end_offset, 0) > lag.messages_max
        return now_ms - self.caught_up_ms <= lag.time_max_ms and not lacks_too_much


class LeaderState:
    """One partition that this broker leads in one epoch."""

    __slots__ = (
        "_broker_id",
        "_lag",
        "epoch_start_offset",
        "followers",
        "isr",
        "leader_epoch",
        "partition_epoch",
        "wanted",
    )

    def __init__(
        self, broker_id: int, state: PartitionState, lag: Lag, *, epoch_start_offset: int, now_ms: float
    ) -> None:
        """Begin an epoch. `epoch_start_offset` is the log's end now."""
        self._broker_id = broker_id
        self._lag = lag
        self.leader_epoch = state.leader_epoch
        self.partition_epoch = state.partition_epoch
        self.epoch_start_offset = epoch_start_offset
        self.isr = frozenset(state.isr)
        """Replicas in sync, this broker among them, as the controller has committed them."""
        self.wanted: frozenset[int] | None = None
        """Replicas in sync that the controller was asked for."""
        self.followers: dict[int, Follower] = {}
        self._follow(state.replicas, now_ms)

    def _follow(self, replicas: Sequence[int], now_ms: float) -> None:
        """Keep the followers among `replicas`. A new one counts as caught up now if it is in sync."""
        before = self.followers
        self.followers = {
            broker: before.get(broker) or Follower(now_ms if broker in self.isr else -self._lag.time_max_ms - 1)
            for broker in replicas
            if broker != self._broker_id
        }

    def update(self, state: PartitionState, now_ms: float) -> None:
        """Adopt another state of the same epoch, unless it is older.

        The present state may come again, from the next controller: what was asked for may still be carried out then.
        """
        if state.partition_epoch >= self.partition_epoch:
            self._adopt(state.isr, state.partition_epoch)
            self._follow(state.replicas, now_ms)

    def _adopt(self, isr: Sequence[int], partition_epoch: int) -> None:
        """Adopt in-sync replicas. No controller changes them any more as asked for in an older state.

        One that has left returns after its next fetch: what it had before may be enough for a high watermark that
        stands still, but it would be removed again.
        """
        if partition_epoch > self.partition_epoch:
            for broker_id in self.isr.difference(isr):
                if broker_id in self.followers:
                    self.followers[broker_id].end_offset = UNKNOWN_OFFSET
            self.isr, self.partition_epoch, self.wanted = frozenset(isr), partition_epoch, None

    @property
    def maximal_isr(self) -> frozenset[int]:
        """Replicas that may be in sync, whatever the controller responds."""
        return self.isr if self.wanted is None else self.isr | self.wanted

    def required(self, min_isr: int) -> int:
        """Return how many replicas must be in sync: `min_isr`, or all."""
        return min(min_isr, len(self.followers) + 1)

    def fetched(self, broker_id: int, offset: int, leader_end_offset: int, now_ms: float) -> bool:
        """Record a follower's fetch; return whether the broker is one of the replicas."""
        follower = self.followers.get(broker_id)
        if follower is None:
            return False
        follower.fetched(offset, leader_end_offset, now_ms)
        return True

    def high_watermark(
        self,
        stored_offset: int,
        leader_end_offset: int,
        min_isr: int,
        now_ms: float,
        is_eligible: Callable[[int], bool],
    ) -> int:
        """Return the end of what all in-sync replicas have, -1 if it may not move (Partition.maybeIncrementLeaderHW).

        `stored_offset` is the end of what this broker has synced; `is_eligible`: whether a broker is alive, and so may
        be about to join.
        """
        if len(self.isr) < self.required(min_isr):
            return UNKNOWN_OFFSET
        offset = stored_offset
        maximal_isr = self.maximal_isr
        for broker_id, follower in self.followers.items():
            if follower.end_offset < offset and (
                broker_id in maximal_isr
                or (follower.is_caught_up(leader_end_offset, now_ms, self._lag) and is_eligible(broker_id))
            ):
                offset = follower.end_offset
        return offset

    def want(
        self,
        leader_end_offset: int,
        high_watermark: int,
        now_ms: float,
        is_eligible: Callable[[int], bool],
        *,
        removes: bool,
    ) -> frozenset[int] | None:
        """Return the in-sync replicas to ask the controller for; None if there is nothing to change or it was asked.

        `is_eligible`: whether a broker is alive. `removes`: whether replicas may leave, which Kafka's leader decides
        from time to time, not at each fetch: one that catches up would leave and join with each.
        """
        if self.wanted is not None:
            return None
        for broker_id, follower in self.followers.items():
            if broker_id not in self.isr and not is_eligible(broker_id):
                # It may return with an empty disk: only a fetch shows what it has then.
                follower.end_offset = UNKNOWN_OFFSET
        reached = max(high_watermark, self.epoch_start_offset)
        wanted = {
            broker_id
            for broker_id, follower in self.followers.items()
            if (
                not removes or follower.is_caught_up(leader_end_offset, now_ms, self._lag)
                if broker_id in self.isr
                else follower.end_offset >= reached and is_eligible(broker_id)
            )
        }
        wanted.add(self._broker_id)
        if wanted == self.isr:
            return None
        self.wanted = frozenset(wanted)
        return self.wanted

    def altered(self, isr: Sequence[int], leader_epoch: int, partition_epoch: int) -> None:
        """Adopt the controller's response, unless it is older than what is known."""
        if leader_epoch == self.leader_epoch:
            self._adopt(isr, partition_epoch)

    def refused(self) -> None:
        """Forget a request that the controller refused; the next `want` may ask again."""
        self.wanted = None
