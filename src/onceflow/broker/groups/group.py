"""One classic consumer group: its members, its generation and its state.

What survives a crash is what `replay` was given: the last stable generation with members and assignments, and the
committed offsets. Joins, pending answers and deadlines live in memory only; after a restart the members of a stable
group simply go on with heartbeats, as with Kafka (org.apache.kafka.coordinator.group.classic.ClassicGroup).
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from onceflow.broker.groups.records import GroupMetadata, MemberMetadata, OffsetCommit
from onceflow.wire.errors import ErrorCode


class GroupState(Enum):
    """Where a group is between two generations."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"


NEXT_STATES = {
    GroupState.EMPTY: {GroupState.PREPARING_REBALANCE, GroupState.EMPTY, GroupState.STABLE},
    GroupState.PREPARING_REBALANCE: {GroupState.COMPLETING_REBALANCE, GroupState.EMPTY},
    GroupState.COMPLETING_REBALANCE: {GroupState.STABLE, GroupState.PREPARING_REBALANCE},
    GroupState.STABLE: {GroupState.PREPARING_REBALANCE, GroupState.STABLE, GroupState.EMPTY},
}
"""Each state's possible next ones. From EMPTY and STABLE straight to EMPTY or STABLE is replay at start-up alone."""


@dataclass(frozen=True, slots=True)
class JoinAnswer:
    """What a JoinGroup request gets; only the leader is told the members."""

    error_code: ErrorCode
    member_id: str = ""
    generation: int = -1
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    members: tuple[tuple[str, bytes], ...] = ()


@dataclass(frozen=True, slots=True)
class SyncAnswer:
    """What a SyncGroup request gets."""

    error_code: ErrorCode
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


JoinReply = Callable[[JoinAnswer], None]
SyncReply = Callable[[SyncAnswer], None]


@dataclass(slots=True)
class Member:
    """One consumer. `protocols` are (name, metadata) pairs, the preferred first."""

    member_id: str
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    deadline_seconds: float
    assignment: bytes = b""
    join_reply: JoinReply | None = None
    sync_reply: SyncReply | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether the broker owes this member an answer: it cannot send a heartbeat meanwhile."""
        return self.join_reply is not None or self.sync_reply is not None

    def heard(self, now_seconds: float) -> None:
        """Start the session time-out again."""
        self.deadline_seconds = now_seconds + self.session_timeout_ms / 1000

    def metadata_for(self, protocol: str | None) -> bytes:
        """The member's subscription under `protocol`, empty if it has none."""
        return next((metadata for name, metadata in self.protocols if name == protocol), b"")


@dataclass(slots=True)
class Group:
    """One group. `deadline_seconds` ends the present phase of a rebalance on the monotonic clock."""

    group_id: str
    state: GroupState = GroupState.EMPTY
    generation: int = 0
    protocol_type: str = ""
    protocol: str | None = None
    leader: str | None = None
    members: dict[str, Member] = field(default_factory=dict)
    pending_deadlines: dict[str, float] = field(default_factory=dict)
    deadline_seconds: float = 0.0
    offsets: dict[tuple[str, int], OffsetCommit] = field(default_factory=dict)

    def move(self, state: GroupState) -> None:
        """Enter `state`."""
        assert state in NEXT_STATES[self.state], f"group {self.group_id}: {self.state.value} → {state.value}"
        self.state = state

    @property
    def rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    @property
    def everybody_joined(self) -> bool:
        """Whether a rebalance need not wait any longer for members to join."""
        joined = all(member.join_reply is not None for member in self.members.values())
        return joined and not self.pending_deadlines

    @property
    def is_void(self) -> bool:
        """Whether nothing ever came of this group: its only members never joined with the id that they were given."""
        return not (self.members or self.pending_deadlines or self.offsets or self.generation)

    def accepts(self, member_id: str, protocol_type: str, protocols: tuple[tuple[str, bytes], ...]) -> bool:
        """Whether a member with these protocols can be in one generation with all the others."""
        if not protocol_type or not protocols:
            return False
        others = [member for member in self.members.values() if member.member_id != member_id]
        if not self.members:
            return True
        if protocol_type != self.protocol_type:
            return False
        return not others or bool(_common_protocols(others) & {name for name, _metadata in protocols})

    def vote(self) -> str:
        """The protocol that all members know and most of them prefer."""
        candidates = _common_protocols(list(self.members.values()))
        votes = Counter(
            next(name for name, _metadata in member.protocols if name in candidates) for member in self.members.values()
        )
        return votes.most_common(1)[0][0]

    def join_answer(self, member: Member) -> JoinAnswer:
        """The answer to a member of the present generation."""
        members: tuple[tuple[str, bytes], ...] = ()
        if member.member_id == self.leader:
            members = tuple((each.member_id, each.metadata_for(self.protocol)) for each in self.members.values())
        return JoinAnswer(
            ErrorCode.none,
            member.member_id,
            self.generation,
            self.protocol_type,
            self.protocol,
            self.leader or "",
            members,
        )

    def sync_answer(self, member: Member) -> SyncAnswer:
        """The answer to a member of the present, stable generation."""
        return SyncAnswer(ErrorCode.none, self.protocol_type, self.protocol, member.assignment)

    def metadata(self, timestamp_ms: int, assignments: dict[str, bytes]) -> GroupMetadata:
        """The record of the present generation with the leader's `assignments`."""
        members = tuple(
            MemberMetadata(
                member.member_id,
                member.client_id,
                member.client_host,
                member.rebalance_timeout_ms,
                member.session_timeout_ms,
                member.metadata_for(self.protocol),
                assignments.get(member.member_id, b""),
            )
            for member in self.members.values()
        )
        return GroupMetadata(
            self.group_id, self.protocol_type, self.generation, self.protocol, self.leader, timestamp_ms, members
        )

    def replay_metadata(self, record: GroupMetadata, now_seconds: float) -> None:
        """Take over a recorded generation; known members keep what only they know."""
        self.protocol_type, self.generation = record.protocol_type, record.generation
        self.protocol, self.leader = record.protocol, record.leader
        self.members = {each.member_id: self._replay_member(each, record, now_seconds) for each in record.members}
        self.move(GroupState.STABLE if record.members else GroupState.EMPTY)

    def _replay_member(self, recorded: MemberMetadata, record: GroupMetadata, now_seconds: float) -> Member:
        member = self.members.get(recorded.member_id)
        if member is None:
            member = Member(
                recorded.member_id,
                recorded.client_id,
                recorded.client_host,
                recorded.session_timeout_ms,
                recorded.rebalance_timeout_ms,
                ((record.protocol or "", recorded.subscription),),
                0.0,
            )
        member.assignment = recorded.assignment
        member.heard(now_seconds)
        return member

    def replay_offset(self, record: OffsetCommit) -> None:
        """Take over one committed offset, or its removal."""
        if record.offset is None:
            self.offsets.pop((record.topic, record.partition), None)
        else:
            self.offsets[(record.topic, record.partition)] = record


def _common_protocols(members: list[Member]) -> set[str]:
    names = [{name for name, _metadata in member.protocols} for member in members]
    return set.intersection(*names)
