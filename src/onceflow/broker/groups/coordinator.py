"""Decides what each group request changes: `decide` methods give records and answers, `replay` applies the records.

Rules of Kafka's classic groups (org.apache.kafka.coordinator.group.GroupMetadataManager), without static members.
A rebalance: the members' JoinGroup requests wait until everybody has joined or the rebalance time-out is over, the
leader's SyncGroup brings the assignments, these are recorded, and then all SyncGroup requests are answered. The
caller appends an outcome's records, replays them, and sends its answers when they are synced.
"""

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from onceflow.broker.groups.group import Group, GroupState, JoinAnswer, JoinReply, Member, SyncAnswer, SyncReply
from onceflow.broker.groups.records import GroupRecord, OffsetCommit
from onceflow.log.clock import Clock
from onceflow.wire.errors import ErrorCode

SESSION_TIMEOUT_MS_MIN = 6_000
SESSION_TIMEOUT_MS_MAX = 1_800_000
METADATA_CHARACTERS_MAX = 4096
NAME_BYTES_MAX = 1000
"""Bound of group ids, protocol names and the client id's share of a member id: a record's strings end at 32,767."""

Send = Callable[[], None]


@dataclass(slots=True)
class Outcome:
    """What one request or time-out leads to: `records` to append, then `answers` to send; `refuse` if that fails."""

    records: list[GroupRecord] = field(default_factory=list)
    answers: list[Send] = field(default_factory=list)
    refusals: list[Callable[[ErrorCode], None]] = field(default_factory=list)

    def answer_join(self, reply: JoinReply, answer: JoinAnswer) -> None:
        self.answers.append(lambda: reply(answer))
        self.refusals.append(lambda error_code: reply(JoinAnswer(error_code, answer.member_id)))

    def answer_sync(self, reply: SyncReply, answer: SyncAnswer) -> None:
        self.answers.append(lambda: reply(answer))
        self.refusals.append(lambda error_code: reply(SyncAnswer(error_code)))


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


@dataclass(frozen=True, slots=True)
class SyncRequest:
    """A SyncGroup request; protocol type and name are None before version 5."""

    group_id: str
    generation: int
    member_id: str
    protocol_type: str | None
    protocol: str | None
    assignments: dict[str, bytes]


class GroupCoordinator:
    """All groups of this broker. Single-threaded: the event loop is its lock."""

    def __init__(self, clock: Clock, make_uuid: Callable[[], uuid.UUID] = uuid.uuid4) -> None:
        self.clock = clock
        self.make_uuid = make_uuid
        self.groups: dict[str, Group] = {}

    def replay(self, record: GroupRecord) -> None:
        """Apply one record: after its append, and for each record of the log at start-up."""
        group = self.groups.get(record.group)
        if group is None:
            group = self.groups[record.group] = Group(record.group)
        if isinstance(record, OffsetCommit):
            group.replay_offset(record)
        else:
            group.replay_metadata(record, self.clock.monotonic())

    def join(self, request: JoinRequest, reply: JoinReply) -> Outcome:
        """Decide a JoinGroup; its answer may come with a later outcome."""
        outcome = Outcome()
        error_code = self._join_error(request)
        if error_code != ErrorCode.none:
            outcome.answer_join(reply, JoinAnswer(error_code, request.member_id))
            return outcome
        group = self.groups.setdefault(request.group_id, Group(request.group_id))
        if request.member_id == "":
            self._join_new(group, request, reply, outcome)
        elif request.member_id in group.pending_deadlines:
            del group.pending_deadlines[request.member_id]
            self._add_member(group, request.member_id, request, reply, outcome)
        else:
            self._rejoin(group, group.members[request.member_id], request, reply, outcome)
        return outcome

    def _join_error(self, request: JoinRequest) -> ErrorCode:
        names = (request.group_id, request.protocol_type, *(name for name, _metadata in request.protocols))
        if not request.group_id or any(len(name.encode()) > NAME_BYTES_MAX for name in names):
            return ErrorCode.invalid_group_id
        if not SESSION_TIMEOUT_MS_MIN <= request.session_timeout_ms <= SESSION_TIMEOUT_MS_MAX:
            return ErrorCode.invalid_session_timeout
        group = self.groups.get(request.group_id)
        known = group is not None and (
            request.member_id in group.members or request.member_id in group.pending_deadlines
        )
        if group is None:
            group = Group(request.group_id)
        if request.member_id and not known:
            return ErrorCode.unknown_member_id
        if not group.accepts(request.member_id, request.protocol_type, request.protocols):
            return ErrorCode.inconsistent_group_protocol
        return ErrorCode.none

    def _join_new(self, group: Group, request: JoinRequest, reply: JoinReply, outcome: Outcome) -> None:
        member_id = f"{request.client_id[: NAME_BYTES_MAX // 4]}-{self.make_uuid()}"
        if request.requires_known_member_id:
            # KIP-394: a client that never sees its first answer must not leave a ghost member behind.
            deadline_seconds = self.clock.monotonic() + request.session_timeout_ms / 1000
            group.pending_deadlines[member_id] = deadline_seconds
            outcome.answer_join(reply, JoinAnswer(ErrorCode.member_id_required, member_id))
        else:
            self._add_member(group, member_id, request, reply, outcome)

    def _add_member(
        self, group: Group, member_id: str, request: JoinRequest, reply: JoinReply, outcome: Outcome
    ) -> None:
        member = Member(
            member_id,
            request.client_id,
            request.client_host,
            request.session_timeout_ms,
            request.rebalance_timeout_ms,
            request.protocols,
            0.0,
        )
        member.heard(self.clock.monotonic())
        if not group.members:
            group.protocol_type = request.protocol_type
            group.leader = member_id
        group.members[member_id] = member
        member.join_reply = reply
        self._rebalance(group, outcome)

    def _rejoin(self, group: Group, member: Member, request: JoinRequest, reply: JoinReply, outcome: Outcome) -> None:
        unchanged = member.protocols == request.protocols
        is_leader = member.member_id == group.leader
        again = group.state is GroupState.COMPLETING_REBALANCE and unchanged
        # A follower that joins a stable group lost its answer; a leader that does wants a rebalance.
        lost = group.state is GroupState.STABLE and unchanged and not is_leader
        member.heard(self.clock.monotonic())
        if again or lost:
            outcome.answer_join(reply, group.join_answer(member))
            return
        member.protocols = request.protocols
        member.session_timeout_ms = request.session_timeout_ms
        member.rebalance_timeout_ms = request.rebalance_timeout_ms
        if member.join_reply is not None:
            outcome.answer_join(member.join_reply, JoinAnswer(ErrorCode.unknown_member_id, member.member_id))
        member.join_reply = reply
        self._rebalance(group, outcome)

    def _rebalance(self, group: Group, outcome: Outcome) -> None:
        """Begin a rebalance unless one is under way, and complete it if nobody is missing.

        The first member of an empty group waits for nobody, as with Kafka's group.initial.rebalance.delay.ms=0.
        """
        is_first = group.state is GroupState.EMPTY
        if group.state is not GroupState.PREPARING_REBALANCE:
            self._refuse_waiting_syncs(group, outcome)
            group.move(GroupState.PREPARING_REBALANCE)
            group.deadline_seconds = self.clock.monotonic() + group.rebalance_timeout_ms / 1000
        if is_first or group.everybody_joined:
            self._complete_join(group, outcome)

    def _refuse_waiting_syncs(self, group: Group, outcome: Outcome) -> None:
        for member in group.members.values():
            member.assignment = b""
            if member.sync_reply is not None:
                outcome.answer_sync(member.sync_reply, SyncAnswer(ErrorCode.rebalance_in_progress))
                member.sync_reply = None
                member.heard(self.clock.monotonic())

    def _complete_join(self, group: Group, outcome: Outcome) -> None:
        """Begin the next generation with the members that have joined."""
        for member in [each for each in group.members.values() if each.join_reply is None]:
            del group.members[member.member_id]
        group.generation += 1
        if not group.members:
            group.protocol = group.leader = None
            outcome.records.append(group.metadata(self.clock.now_ms(), {}))
            return
        if group.leader not in group.members:
            group.leader = next(iter(group.members))
        group.protocol = group.vote()
        group.move(GroupState.COMPLETING_REBALANCE)
        now_seconds = self.clock.monotonic()
        group.deadline_seconds = now_seconds + group.rebalance_timeout_ms / 1000
        for member in group.members.values():
            assert member.join_reply is not None
            outcome.answer_join(member.join_reply, group.join_answer(member))
            member.join_reply = None
            member.heard(now_seconds)

    def sync(self, request: SyncRequest, reply: SyncReply) -> Outcome:
        """Decide a SyncGroup; a follower's answer comes with the leader's outcome."""
        outcome = Outcome()
        error_code = self._sync_error(request)
        if error_code != ErrorCode.none:
            outcome.answer_sync(reply, SyncAnswer(error_code))
            return outcome
        group = self.groups[request.group_id]
        member = group.members[request.member_id]
        member.heard(self.clock.monotonic())
        if group.state is GroupState.STABLE:
            outcome.answer_sync(reply, group.sync_answer(member))
            return outcome
        if member.sync_reply is not None:
            outcome.answer_sync(member.sync_reply, SyncAnswer(ErrorCode.unknown_member_id))
        member.sync_reply = reply
        if member.member_id == group.leader:
            self._complete_sync(group, request.assignments, outcome)
        return outcome

    def _sync_error(self, request: SyncRequest) -> ErrorCode:
        error_code = self._member_error(request.group_id, request.member_id, request.generation)
        if error_code != ErrorCode.none:
            return error_code
        group = self.groups[request.group_id]
        if group.state is GroupState.PREPARING_REBALANCE:
            return ErrorCode.rebalance_in_progress
        for given, chosen in ((request.protocol_type, group.protocol_type), (request.protocol, group.protocol)):
            if given is not None and given != chosen:
                return ErrorCode.inconsistent_group_protocol
        return ErrorCode.none

    def _complete_sync(self, group: Group, assignments: dict[str, bytes], outcome: Outcome) -> None:
        outcome.records.append(group.metadata(self.clock.now_ms(), assignments))
        for member in group.members.values():
            if member.sync_reply is not None:
                answer = SyncAnswer(
                    ErrorCode.none, group.protocol_type, group.protocol, assignments.get(member.member_id, b"")
                )
                outcome.answer_sync(member.sync_reply, answer)
                member.sync_reply = None

    def _member_error(self, group_id: str, member_id: str, generation: int) -> ErrorCode:
        group = self.groups.get(group_id)
        if group is None or member_id not in group.members:
            return ErrorCode.unknown_member_id
        if generation != group.generation:
            return ErrorCode.illegal_generation
        return ErrorCode.none

    def heartbeat(self, group_id: str, member_id: str, generation: int) -> ErrorCode:
        """Keep a member's session alive; says whether it must join again."""
        error_code = self._member_error(group_id, member_id, generation)
        if error_code != ErrorCode.none:
            return error_code
        group = self.groups[group_id]
        group.members[member_id].heard(self.clock.monotonic())
        if group.state is GroupState.PREPARING_REBALANCE:
            return ErrorCode.rebalance_in_progress
        return ErrorCode.none

    def leave(self, group_id: str, member_ids: Sequence[str]) -> tuple[list[ErrorCode], Outcome]:
        """Take members out of a group; one error code for each of `member_ids`."""
        outcome = Outcome()
        group = self.groups.get(group_id)
        if group is None:
            return [ErrorCode.unknown_member_id] * len(member_ids), outcome
        error_codes = [self._leave_one(group, member_id, outcome) for member_id in member_ids]
        return error_codes, outcome

    def _leave_one(self, group: Group, member_id: str, outcome: Outcome) -> ErrorCode:
        if group.pending_deadlines.pop(member_id, None) is not None:
            if group.state is GroupState.PREPARING_REBALANCE and group.everybody_joined:
                self._complete_join(group, outcome)
            return ErrorCode.none
        member = group.members.pop(member_id, None)
        if member is None:
            return ErrorCode.unknown_member_id
        if member.join_reply is not None:
            outcome.answer_join(member.join_reply, JoinAnswer(ErrorCode.unknown_member_id, member_id))
        if member.sync_reply is not None:
            outcome.answer_sync(member.sync_reply, SyncAnswer(ErrorCode.unknown_member_id))
        if group.leader == member_id:
            group.leader = next(iter(group.members), None)
        self._rebalance(group, outcome)
        return ErrorCode.none

    def expire(self) -> list[Outcome]:
        """Act on every time-out that is over by now."""
        now_seconds = self.clock.monotonic()
        alive = [group for group in self.groups.values() if group.members or group.pending_deadlines]
        outcomes = [self._expire_group(group, now_seconds) for group in alive]
        for group in alive:
            if group.is_void:
                del self.groups[group.group_id]
        return outcomes

    def _expire_group(self, group: Group, now_seconds: float) -> Outcome:
        outcome = Outcome()
        silent = [
            member.member_id
            for member in group.members.values()
            if not member.is_waiting and member.deadline_seconds <= now_seconds
        ]
        silent += [each for each, deadline in group.pending_deadlines.items() if deadline <= now_seconds]
        for member_id in silent:
            self._leave_one(group, member_id, outcome)
        if group.deadline_seconds > now_seconds:
            return outcome
        if group.state is GroupState.PREPARING_REBALANCE:
            self._complete_join(group, outcome)
        elif group.state is GroupState.COMPLETING_REBALANCE:
            # Who joined must also sync in time: one member that only sends heartbeats would block all others.
            for member in [each for each in group.members.values() if each.sync_reply is None]:
                self._leave_one(group, member.member_id, outcome)
        return outcome

    def commit_error(self, group_id: str, member_id: str, generation: int) -> ErrorCode:
        """Whether this member, or with generation -1 a consumer outside the group protocol, may commit offsets.

        A member that may has been heard of: a commit is as good as a heartbeat.
        """
        if not group_id or len(group_id.encode()) > NAME_BYTES_MAX:
            return ErrorCode.invalid_group_id
        group = self.groups.get(group_id)
        if group is None:
            return ErrorCode.none if generation < 0 else ErrorCode.illegal_generation
        if generation < 0 and group.state is GroupState.EMPTY:
            return ErrorCode.none
        if generation < 0 and not member_id:
            return ErrorCode.unknown_member_id
        error_code = self._member_error(group_id, member_id, generation)
        if error_code == ErrorCode.none and group.state is GroupState.COMPLETING_REBALANCE:
            return ErrorCode.rebalance_in_progress
        if error_code == ErrorCode.none:
            group.members[member_id].heard(self.clock.monotonic())
        return error_code

    def decide_forget(self, is_gone: Callable[[str], bool]) -> list[GroupRecord]:
        """Records that take away every group's offsets in the topics that are gone."""
        return [
            OffsetCommit(group.group_id, topic, partition, None)
            for group in self.groups.values()
            for topic, partition in group.offsets
            if is_gone(topic)
        ]
