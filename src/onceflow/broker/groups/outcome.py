"""What group requests ask for, and what a decision about one leads to."""

from collections.abc import Callable
from dataclasses import dataclass, field

from onceflow.broker.groups.member import JoinReply, JoinResponse, SyncReply, SyncResponse
from onceflow.broker.groups.records import GroupRecord
from onceflow.wire.errors import ErrorCode

Send = Callable[[], None]


@dataclass(slots=True)
class Outcome:
    """Of one request or time-out: `records` to append, then `answers` to send.

    If the append fails, `refusals` are sent instead and `undo` leads to another outcome.
    """

    records: list[GroupRecord] = field(default_factory=list)
    answers: list[Send] = field(default_factory=list)
    refusals: list[Callable[[ErrorCode], None]] = field(default_factory=list)
    undo: "Callable[[], Outcome] | None" = None

    def respond_to_join(self, reply: JoinReply, answer: JoinResponse) -> None:
        self.answers.append(lambda: reply(answer))
        self.refusals.append(lambda error_code: reply(JoinResponse(error_code, answer.member_id)))

    def respond_to_sync(self, reply: SyncReply, answer: SyncResponse) -> None:
        self.answers.append(lambda: reply(answer))
        self.refusals.append(lambda error_code: reply(SyncResponse(error_code)))


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """A JoinGroup request, whatever its version."""

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
    """One member of a LeaveGroup request; without a member id the instance id alone names it."""

    member_id: str
    group_instance_id: str | None = None
