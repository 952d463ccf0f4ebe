"""Members of a group, their responses, and the memory of the members of all groups."""

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence, ValuesView
from dataclasses import dataclass

from onceflow.wire.errors import ErrorCode

MEMBER_BYTES = 1500
"""Memory of a member without its names and data: objects, deadline, dictionary entries."""

Protocols = Sequence[tuple[str, bytes]]


@dataclass(frozen=True, slots=True)
class JoinResponse:
    """Response to a JoinGroup request; only the leader's has `members`: (member id, instance id, metadata)."""

    error_code: ErrorCode
    member_id: str = ""
    generation: int = -1
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    members: tuple[tuple[str, str | None, bytes], ...] = ()
    skip_assignment: bool = False


@dataclass(frozen=True, slots=True)
class SyncResponse:
    """Response to a SyncGroup request."""

    error_code: ErrorCode
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


JoinReply = Callable[[JoinResponse], None]
SyncReply = Callable[[SyncResponse], None]


@dataclass(slots=True)
class Member:
    """One consumer. `protocols` are (name, metadata), the preferred first; a static member has an instance id."""

    member_id: str
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    group_instance_id: str | None = None
    assignment: bytes = b""
    size_bytes: int = 0
    """Bytes of this member in `MemberMemory`."""
    join_reply: JoinReply | None = None
    sync_reply: SyncReply | None = None
    is_new: bool = False
    """Whether the member has not been in any generation yet."""
    must_sync: bool = False
    """Whether the member has not asked for its assignment in the current generation yet."""

    @property
    def is_alive_by_waiting(self) -> bool:
        """Whether the member waits for a response and so cannot send heartbeats."""
        return not self.is_new and (self.join_reply is not None or self.sync_reply is not None)

    def metadata_for(self, protocol: str | None) -> bytes:
        """Return the member's subscription for `protocol`, or empty bytes."""
        return next((metadata for name, metadata in self.protocols if name == protocol), b"")


class MemberMemory:
    """Memory used by the members of all groups. Loading is not limited; requests check `has_room` first."""

    def __init__(self, bytes_max: int) -> None:
        self.used_bytes = 0
        self._bytes_max = bytes_max

    def has_room(self, growth_bytes: int) -> bool:
        """Return whether the members may grow by this much; a decrease is always allowed."""
        return growth_bytes <= 0 or self.used_bytes + growth_bytes <= self._bytes_max


def protocols_bytes(protocols: Protocols) -> int:
    """Return the memory of a member's protocol names and subscriptions."""
    return sum(sys.getsizeof(name) + sys.getsizeof(metadata) for name, metadata in protocols)


class Members:
    """Members of a group by id, the oldest first. Only these methods may change what is counted."""

    def __init__(self, memory: MemberMemory) -> None:
        self._memory = memory
        self._by_id: dict[str, Member] = {}
        self._joined: set[str] = set()
        """Ids of members whose JoinGroup waits for its response."""
        self._supporting: Counter[str] = Counter()
        """Number of members by supported protocol (Kafka's ClassicGroup.supportedProtocols)."""

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_id)

    def __contains__(self, member_id: object) -> bool:
        return member_id in self._by_id

    def __getitem__(self, member_id: str) -> Member:
        return self._by_id[member_id]

    def get(self, member_id: str) -> Member | None:
        return self._by_id.get(member_id)

    def values(self) -> ValuesView[Member]:
        return self._by_id.values()

    @property
    def joined_count(self) -> int:
        return len(self._joined)

    def add(self, member: Member) -> None:
        self._by_id[member.member_id] = member
        self._count(member)
        if member.join_reply is not None:
            self._joined.add(member.member_id)

    def remove(self, member_id: str) -> Member:
        member = self._by_id.pop(member_id)
        self._discount(member)
        self._joined.discard(member_id)
        return member

    def replace_all(self, members: Iterable[Member]) -> None:
        """Replace all members."""
        for member_id in list(self._by_id):
            self.remove(member_id)
        for member in members:
            self.add(member)

    def subscribe(self, member: Member, protocols: tuple[tuple[str, bytes], ...]) -> None:
        """Set a member's protocols."""
        self._discount(member)
        member.protocols = protocols
        self._count(member)

    def assign(self, member: Member, assignment: bytes) -> None:
        """Set a member's assignment."""
        self._discount(member)
        member.assignment = assignment
        self._count(member)

    def await_join(self, member: Member, reply: JoinReply) -> None:
        """Set the reply of the member's waiting JoinGroup."""
        member.join_reply = reply
        self._joined.add(member.member_id)

    def take_join_reply(self, member: Member) -> JoinReply | None:
        """Remove and return the reply of the member's waiting JoinGroup; None if none waits."""
        reply, member.join_reply = member.join_reply, None
        self._joined.discard(member.member_id)
        return reply

    def common_protocols(self) -> set[str]:
        """Return the names of the protocols that all members support."""
        return {name for name, count in self._supporting.items() if count == len(self._by_id)}

    def all_support_one_of(self, protocols: Protocols) -> bool:
        """Return whether all members support one of `protocols`."""
        return any(self._supporting[name] == len(self._by_id) for name, _metadata in protocols)

    def _count(self, member: Member) -> None:
        self._supporting.update({name for name, _metadata in member.protocols})
        names = (member.member_id, member.client_id, member.client_host, member.group_instance_id)
        held = protocols_bytes(member.protocols) + sys.getsizeof(member.assignment) + sum(map(sys.getsizeof, names))
        member.size_bytes = MEMBER_BYTES + held
        self._memory.used_bytes += member.size_bytes

    def _discount(self, member: Member) -> None:
        for name in {name for name, _metadata in member.protocols}:
            self._supporting[name] -= 1
            if not self._supporting[name]:
                del self._supporting[name]
        self._memory.used_bytes -= member.size_bytes
        member.size_bytes = 0
