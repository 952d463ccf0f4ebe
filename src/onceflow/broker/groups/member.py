"""One member of a classic group, and the responses that it waits for."""

from collections.abc import Callable
from dataclasses import dataclass

from onceflow.wire.errors import ErrorCode


@dataclass(frozen=True, slots=True)
class JoinResponse:
    """Response to a JoinGroup request; the leader's alone has the members: (member id, instance id, metadata) each."""

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
    """One consumer. `protocols` are (name, metadata) pairs, the preferred first; a static one has an instance id."""

    member_id: str
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    group_instance_id: str | None = None
    assignment: bytes = b""
    size_bytes: int = 0
    """Bytes that the member counts for in `MemberMemory`."""
    join_reply: JoinReply | None = None
    sync_reply: SyncReply | None = None
    is_new: bool = False
    """Has not been in any generation yet."""
    must_sync: bool = False
    """Has not asked for its assignment in the present generation yet."""

    @property
    def is_alive_by_waiting(self) -> bool:
        """Whether the broker owes it an answer: it cannot send a heartbeat meanwhile."""
        return not self.is_new and (self.join_reply is not None or self.sync_reply is not None)

    def metadata_for(self, protocol: str | None) -> bytes:
        """The member's subscription under `protocol`, empty if it has none."""
        return next((metadata for name, metadata in self.protocols if name == protocol), b"")
