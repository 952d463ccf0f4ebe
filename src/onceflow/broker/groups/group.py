"""Classic consumer group: members, generation and state.

The replayed records survive a crash: the last stable generation with members and assignments, and the committed
offsets. Joins, pending responses and deadlines are in memory only. After a restart the members of a stable group
continue to send heartbeats, as with Kafka (org.apache.kafka.coordinator.group.classic.ClassicGroup).
"""

import struct
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from onceflow.broker.groups.members import JoinResponse, Member, Members, SyncResponse
from onceflow.broker.groups.records import GroupMetadata, MemberMetadata, OffsetCommit
from onceflow.broker.groups.states import GroupState, may_follow
from onceflow.wire import TopicPartition
from onceflow.wire.errors import ErrorCode

CONSUMER_PROTOCOL_TYPE = "consumer"
SUBSCRIPTIONS_BYTES_MAX = 256 * 1024
"""Maximum size of a group's distinct subscriptions: some tens of milliseconds to decode."""


@dataclass(slots=True)
class Group:
    """One group. Its deadlines are in `onceflow.broker.groups.deadlines`.

    `protocol_type` is empty if the group never had a member: then it only stores offsets.
    """

    group_id: str
    members: Members
    state: GroupState = GroupState.EMPTY
    generation: int = 0
    protocol_type: str = ""
    protocol: str | None = None
    leader: str | None = None
    static_members: dict[str, str] = field(default_factory=dict)
    """Member ids by group instance id."""
    pending_ids: dict[str, None] = field(default_factory=dict)
    """Member ids that were assigned but not used yet (KIP-394), the oldest first."""
    extension: "Extension | None" = None
    """Set while the first rebalance of an empty group waits for more members."""
    recorded_ms: int = -1
    """Wall-clock time of the group's last recorded state."""
    subscribed: frozenset[str] | None = None
    """Subscribed topics of the current generation; None if the subscriptions cannot be decoded."""
    offsets: dict[TopicPartition, OffsetCommit] = field(default_factory=dict)

    def move(self, state: GroupState) -> None:
        """Enter `state`."""
        assert may_follow(self.state, state), f"group {self.group_id}: {self.state.value} → {state.value}"
        self.state = state

    @property
    def rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    @property
    def all_joined(self) -> bool:
        """Whether all members have joined and no member id is pending."""
        return self.members.joined_count == len(self.members) and not self.pending_ids

    @property
    def is_unused(self) -> bool:
        """Whether the group never had members or offsets: no client joined with its pending member id."""
        is_used = self.members or self.pending_ids or self.offsets or self.recorded_ms >= 0
        return self.state is GroupState.EMPTY and not is_used

    @property
    def uses_consumer_protocol(self) -> bool:
        return self.protocol_type == CONSUMER_PROTOCOL_TYPE

    def is_subscribed(self, topic: str) -> bool:
        """Return whether a member may read the topic; True if that is unknown."""
        return self.uses_consumer_protocol if self.subscribed is None else topic in self.subscribed

    def member_error(self, member_id: str, group_instance_id: str | None) -> ErrorCode:
        """Return UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID if another member now has the instance id, or no error."""
        if group_instance_id is not None:
            owner = self.static_members.get(group_instance_id)
            if owner is not None and owner != member_id:
                return ErrorCode.fenced_instance_id
            if owner is None:
                return ErrorCode.unknown_member_id
        return ErrorCode.none if member_id in self.members else ErrorCode.unknown_member_id

    def add(self, member: Member) -> None:
        """Add a member; the first one becomes the leader."""
        if not self.members:
            self.leader = member.member_id
        self.members.add(member)
        if member.group_instance_id is not None:
            self.static_members[member.group_instance_id] = member.member_id

    def remove(self, member_id: str) -> Member:
        """Remove a member; if it was the leader, the oldest other member becomes leader."""
        member = self.members.remove(member_id)
        if member.group_instance_id is not None:
            del self.static_members[member.group_instance_id]
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)
        return member

    def replace_static(self, member: Member, member_id: str) -> Member:
        """Give a static member a new id; it keeps its assignment and leadership."""
        assert member.group_instance_id is not None
        self.members.remove(member.member_id)
        successor = replace(member, member_id=member_id, join_reply=None, sync_reply=None)
        self.members.add(successor)
        self.static_members[member.group_instance_id] = member_id
        if self.leader == member.member_id:
            self.leader = member_id
        return successor

    def elect_leader(self) -> bool:
        """Make a member that has joined the leader, if the leader has not; return False if none has."""
        if self.leader is not None and self.members[self.leader].join_reply is None:
            joined = (member.member_id for member in self.members.values() if member.join_reply is not None)
            leader = next(joined, None)
            if leader is None:
                return False
            self.leader = leader
        return True

    def accepts(self, protocol_type: str, protocols: tuple[tuple[str, bytes], ...]) -> bool:
        """Return whether a member with these protocols is compatible with all members, itself included."""
        if not protocol_type or not protocols:
            return False
        if not self.members:
            return True
        return protocol_type == self.protocol_type and self.members.all_support_one_of(protocols)

    def vote(self) -> str:
        """Return the protocol that all members support and most of them prefer."""
        candidates = self.members.common_protocols()
        votes = Counter(
            next(name for name, _metadata in member.protocols if name in candidates) for member in self.members.values()
        )
        return votes.most_common(1)[0][0]

    def begin_generation(self) -> None:
        """Start the next generation with the current members."""
        self.generation += 1
        self.protocol = self.vote() if self.members else None
        self.update_subscribed_topics()

    def update_subscribed_topics(self) -> None:
        """Set the topics that this generation reads (Kafka's computeSubscribedTopics)."""
        if not self.uses_consumer_protocol:
            self.subscribed = None
        else:
            self.subscribed = subscribed_topics(member.metadata_for(self.protocol) for member in self.members.values())

    def join_response(
        self, member: Member, *, leader: str | None = None, skip_assignment: bool = False
    ) -> JoinResponse:
        """Return the response to a member of the current generation; `leader` overrides the leader's id in it."""
        named = leader or self.leader or ""
        members: tuple[tuple[str, str | None, bytes], ...] = ()
        if member.member_id == named:
            members = tuple(
                (other.member_id, other.group_instance_id, other.metadata_for(self.protocol))
                for other in self.members.values()
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
        """Return the response to a member of the current, stable generation."""
        return SyncResponse(ErrorCode.none, self.protocol_type, self.protocol, member.assignment)

    def assignments(self) -> dict[str, bytes]:
        """Return the assignments by member id."""
        return {member.member_id: member.assignment for member in self.members.values()}

    def metadata(self, timestamp_ms: int, assignments: dict[str, bytes]) -> GroupMetadata:
        """Return the record of the current generation with the leader's `assignments`."""
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
        """Apply a recorded generation; existing members keep their unrecorded state."""
        self.protocol_type, self.generation = record.protocol_type, record.generation
        self.protocol, self.leader = record.protocol, record.leader
        self.recorded_ms = record.timestamp_ms
        self.members.replace_all([self._replay_member(member, record) for member in record.members])
        self.static_members = {
            member.group_instance_id: member.member_id
            for member in self.members.values()
            if member.group_instance_id is not None
        }
        self.update_subscribed_topics()
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
    """The last delay of an empty group's first rebalance, and the time that remains."""

    delay_ms: int
    left_ms: int
    has_new_member: bool = False


def subscribed_topics(subscriptions: Iterable[bytes]) -> frozenset[str] | None:
    """Return the topics of all subscriptions; None if they are invalid or too large to decode in one turn.

    A subscription of the protocol type `consumer` starts with an int16 version and an array of topic names, in every
    version (kafka-clients, `common/message/ConsumerProtocolSubscription.json`). The assignors own all the rest.
    """
    distinct = set(subscriptions)
    if sum(map(len, distinct)) > SUBSCRIPTIONS_BYTES_MAX:
        return None
    try:
        return frozenset(topic for subscription in distinct for topic in _topics(subscription))
    except (struct.error, ValueError):
        return None


def _topics(subscription: bytes) -> list[str]:
    _version, count = struct.unpack_from(">hi", subscription)
    position = 6
    topics = []
    for _ in range(count):
        (size_bytes,) = struct.unpack_from(">h", subscription, position)
        if size_bytes < 0:
            raise ValueError(f"byte {position}: a topic name of {size_bytes} bytes")
        (name,) = struct.unpack_from(f"{size_bytes}s", subscription, position + 2)
        topics.append(name.decode())
        position += 2 + size_bytes
    return topics
