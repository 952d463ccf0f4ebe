"""One classic consumer group: its members, its generation and its state.

What survives a crash is what `replay` was given: the last stable generation with members and assignments, and the
committed offsets. Joins, pending answers and deadlines live in memory only; after a restart the members of a stable
group simply go on with heartbeats, as with Kafka (org.apache.kafka.coordinator.group.classic.ClassicGroup).
"""

from collections import Counter
from dataclasses import dataclass, field, replace

from onceflow.broker.groups.member import JoinResponse, Member, SyncResponse
from onceflow.broker.groups.members import Members
from onceflow.broker.groups.records import GroupMetadata, MemberMetadata, OffsetCommit
from onceflow.broker.groups.states import GroupState, may_follow
from onceflow.broker.groups.subscription import subscribed_topics
from onceflow.wire.errors import ErrorCode

CONSUMER_PROTOCOL_TYPE = "consumer"


@dataclass(slots=True)
class Group:
    """One group. Its deadlines are in `onceflow.broker.groups.deadlines`.

    `protocol_type` is empty while the group never had a member: then it only keeps offsets.
    """

    group_id: str
    members: Members
    state: GroupState = GroupState.EMPTY
    generation: int = 0
    protocol_type: str = ""
    protocol: str | None = None
    leader: str | None = None
    static_members: dict[str, str] = field(default_factory=dict)
    """Group instance id → member id."""
    pending_ids: dict[str, None] = field(default_factory=dict)
    """Member ids that were handed out and not used yet (KIP-394), the oldest first."""
    extension: "Extension | None" = None
    """While the first rebalance of an empty group waits for more members."""
    recorded_ms: int = -1
    """When the group entered its last recorded state, by the wall's clock."""
    subscribed: frozenset[str] | None = None
    """Topics of the present generation; None where the subscriptions cannot be read."""
    offsets: dict[tuple[str, int], OffsetCommit] = field(default_factory=dict)

    def move(self, state: GroupState) -> None:
        """Enter `state`."""
        assert may_follow(self.state, state), f"group {self.group_id}: {self.state.value} → {state.value}"
        self.state = state

    @property
    def rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    @property
    def everybody_joined(self) -> bool:
        """Whether a rebalance need not wait any longer for members to join."""
        return self.members.joined_count == len(self.members) and not self.pending_ids

    @property
    def is_void(self) -> bool:
        """Whether nothing ever came of this group: its only members never joined with the id that they were given."""
        is_used = self.members or self.pending_ids or self.offsets or self.recorded_ms >= 0
        return self.state is GroupState.EMPTY and not is_used

    @property
    def uses_consumer_protocol(self) -> bool:
        return self.protocol_type == CONSUMER_PROTOCOL_TYPE

    def is_subscribed(self, topic: str) -> bool:
        """Whether a member may read the topic; in doubt yes."""
        return self.uses_consumer_protocol if self.subscribed is None else topic in self.subscribed

    def member_error(self, member_id: str, group_instance_id: str | None) -> ErrorCode:
        """UNKNOWN_MEMBER_ID, or FENCED_INSTANCE_ID where another member has taken over the instance id."""
        if group_instance_id is not None:
            owner = self.static_members.get(group_instance_id)
            if owner is not None and owner != member_id:
                return ErrorCode.fenced_instance_id
            if owner is None:
                return ErrorCode.unknown_member_id
        return ErrorCode.none if member_id in self.members else ErrorCode.unknown_member_id

    def add(self, member: Member) -> None:
        """Take in a member; the first one leads and fixes the protocol type."""
        if not self.members:
            self.leader = member.member_id
        self.members.add(member)
        if member.group_instance_id is not None:
            self.static_members[member.group_instance_id] = member.member_id

    def remove(self, member_id: str) -> Member:
        """Take out a member; the oldest one left leads if it led."""
        member = self.members.remove(member_id)
        if member.group_instance_id is not None:
            del self.static_members[member.group_instance_id]
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)
        return member

    def replace_static(self, member: Member, member_id: str) -> Member:
        """The same static member under a new id; it keeps its assignment and its lead."""
        assert member.group_instance_id is not None
        self.members.remove(member.member_id)
        successor = replace(member, member_id=member_id, join_reply=None, sync_reply=None)
        self.members.add(successor)
        self.static_members[member.group_instance_id] = member_id
        if self.leader == member.member_id:
            self.leader = member_id
        return successor

    def elect_leader(self) -> bool:
        """Make sure that a member that has joined leads; False if none has."""
        if self.leader is not None and self.members[self.leader].join_reply is None:
            joined = (each.member_id for each in self.members.values() if each.join_reply is not None)
            leader = next(joined, None)
            if leader is None:
                return False
            self.leader = leader
        return True

    def accepts(self, protocol_type: str, protocols: tuple[tuple[str, bytes], ...]) -> bool:
        """Whether a member with these protocols can be in one generation with all that are there, itself included."""
        if not protocol_type or not protocols:
            return False
        if not self.members:
            return True
        return protocol_type == self.protocol_type and self.members.all_know_one_of(protocols)

    def vote(self) -> str:
        """The protocol that all members know and most of them prefer."""
        candidates = self.members.common_protocols()
        votes = Counter(
            next(name for name, _metadata in member.protocols if name in candidates) for member in self.members.values()
        )
        return votes.most_common(1)[0][0]

    def begin_generation(self) -> None:
        """The next generation with the members that there are."""
        self.generation += 1
        self.protocol = self.vote() if self.members else None
        self.note_subscriptions()

    def note_subscriptions(self) -> None:
        """Keep in mind which topics the members of this generation read (Kafka's computeSubscribedTopics)."""
        if not self.uses_consumer_protocol:
            self.subscribed = None
        else:
            self.subscribed = subscribed_topics(member.metadata_for(self.protocol) for member in self.members.values())

    def join_response(
        self, member: Member, *, leader: str | None = None, skip_assignment: bool = False
    ) -> JoinResponse:
        """The answer to a member of the present generation; `leader` where it is not to be told that it leads."""
        named = leader or self.leader or ""
        members: tuple[tuple[str, str | None, bytes], ...] = ()
        if member.member_id == named:
            members = tuple(
                (each.member_id, each.group_instance_id, each.metadata_for(self.protocol))
                for each in self.members.values()
            )
        return JoinResponse(
            ErrorCode.none,
            member.member_id,
            self.generation,
            self.protocol_type,
            self.protocol,
            named,
            members,
            skip_assignment,
        )

    def sync_response(self, member: Member) -> SyncResponse:
        """The answer to a member of the present, stable generation."""
        return SyncResponse(ErrorCode.none, self.protocol_type, self.protocol, member.assignment)

    def assignments(self) -> dict[str, bytes]:
        """Each member's assignment."""
        return {member.member_id: member.assignment for member in self.members.values()}

    def metadata(self, timestamp_ms: int, assignments: dict[str, bytes]) -> GroupMetadata:
        """The record of the present generation with the leader's `assignments`."""
        members = tuple(
            MemberMetadata(
                member.member_id,
                member.group_instance_id,
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

    def replay_metadata(self, record: GroupMetadata) -> None:
        """Take over a recorded generation; known members keep what only they know."""
        self.protocol_type, self.generation = record.protocol_type, record.generation
        self.protocol, self.leader = record.protocol, record.leader
        self.recorded_ms = record.timestamp_ms
        self.members.replace_all([self._replay_member(each, record) for each in record.members])
        self.static_members = {
            each.group_instance_id: each.member_id
            for each in self.members.values()
            if each.group_instance_id is not None
        }
        self.note_subscriptions()
        self.move(GroupState.STABLE if record.members else GroupState.EMPTY)

    def _replay_member(self, recorded: MemberMetadata, record: GroupMetadata) -> Member:
        member = self.members.get(recorded.member_id)
        if member is None:
            member = Member(
                recorded.member_id,
                recorded.client_id,
                recorded.client_host,
                recorded.session_timeout_ms,
                recorded.rebalance_timeout_ms,
                ((record.protocol or "", recorded.subscription),),
                recorded.group_instance_id,
            )
        member.assignment = recorded.assignment
        return member


@dataclass(slots=True)
class Extension:
    """How long the first rebalance of an empty group has waited last, and may wait still."""

    delay_ms: int
    left_ms: int
    has_new_member: bool = False
