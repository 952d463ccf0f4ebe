"""The members of one group with the counts that every JoinGroup asks for, and the memory that all members take."""

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence, ValuesView

from onceflow.broker.groups.member import JoinReply, Member

MEMBER_BYTES = 1500
"""A member without its names and data: objects, deadline, entries in dictionaries."""

Protocols = Sequence[tuple[str, bytes]]


class MemberMemory:
    """Memory that the members of all groups take. Loading counts without a bound; requests ask `has_room` first."""

    def __init__(self, bytes_max: int) -> None:
        self.used_bytes = 0
        self._bytes_max = bytes_max

    def has_room(self, growth_bytes: int) -> bool:
        """Whether there may be so much more; what does not grow always has room."""
        return growth_bytes <= 0 or self.used_bytes + growth_bytes <= self._bytes_max


def protocols_bytes(protocols: Protocols) -> int:
    """Memory of a member's protocol names and subscriptions."""
    return sum(sys.getsizeof(name) + sys.getsizeof(metadata) for name, metadata in protocols)


class Members:
    """Member id to member, the oldest first. What is counted changes by these methods alone."""

    def __init__(self, memory: MemberMemory) -> None:
        self._memory = memory
        self._by_id: dict[str, Member] = {}
        self._joined: set[str] = set()
        """Members whose JoinGroup waits for its response."""
        self._supporting: Counter[str] = Counter()
        """Protocol name to the number of members that know it (Kafka's ClassicGroup.supportedProtocols)."""

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
        """Keep these members alone."""
        for member in list(self._by_id):
            self.remove(member)
        for each in members:
            self.add(each)

    def subscribe(self, member: Member, protocols: tuple[tuple[str, bytes], ...]) -> None:
        """Give a member other protocols."""
        self._discount(member)
        member.protocols = protocols
        self._count(member)

    def assign(self, member: Member, assignment: bytes) -> None:
        """Give a member another assignment."""
        self._discount(member)
        member.assignment = assignment
        self._count(member)

    def await_join(self, member: Member, reply: JoinReply) -> None:
        """Let the member's JoinGroup wait for its response."""
        member.join_reply = reply
        self._joined.add(member.member_id)

    def take_join_reply(self, member: Member) -> JoinReply | None:
        """The way to answer the member's JoinGroup, which waits no longer; None if none waits."""
        reply, member.join_reply = member.join_reply, None
        self._joined.discard(member.member_id)
        return reply

    def common_protocols(self) -> set[str]:
        """Names of the protocols that all members know."""
        return {name for name, count in self._supporting.items() if count == len(self._by_id)}

    def all_know_one_of(self, protocols: Protocols) -> bool:
        """Whether there is a name among `protocols` that all members know."""
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
