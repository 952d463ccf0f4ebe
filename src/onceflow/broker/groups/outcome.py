"""Group requests, and the outcome of a decision."""

from collections.abc import Callable
from dataclasses import dataclass, field

from onceflow.broker.groups.members import JoinReply, JoinResponse, SyncReply, SyncResponse
from onceflow.broker.groups.records import GroupRecord
from onceflow.wire.errors import ErrorCode

Send = Callable[[], None]


@dataclass(slots=True)
class Outcome:
    """Outcome of one request or timeout: `records` to append, then `responses` to send.

    If the append fails, `refusals` are sent instead, and `undo` returns another outcome.
    """

    records: list[GroupRecord] = field(default_factory=list)
    responses: list[Send] = field(default_factory=list)
    refusals: list[Callable[[ErrorCode], None]] = field(default_factory=list)
    undo: "Callable[[], Outcome] | None" = None

    def respond_to_join(self, reply: JoinReply, response: JoinResponse) -> None:
        self.responses.append(lambda: reply(response))
        self.refusals.append(lambda error_code: reply(JoinResponse(error_code, response.member_id)))

    def respond_to_sync(self, reply: SyncReply, response: SyncResponse) -> None:
        self.responses.append(lambda: reply(response))
        self.refusals.append(lambda error_code: reply(SyncResponse(error_code)))


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """A JoinGroup request of any version."""

    group_id: str
    member_id: str
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    requires_known_member_id: bool
    group_instance_id: str | None = None
    may_skip_assignment: bool = False


@dataclass(frozen=True, slots=True)
class SyncRequest:
    """A SyncGroup request; protocol type and name are None before version 5."""

    group_id: str
    generation: int
    member_id: str
    protocol_type: str | None
    protocol: str | None
    assignments: dict[str, bytes]
    group_instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class Leaving:
    """One member of a LeaveGroup request; without a member id, the instance id identifies it."""

    member_id: str
    group_instance_id: str | None = None
