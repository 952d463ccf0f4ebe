"""From one generation of a group to the next (org.apache.kafka.coordinator.group.GroupMetadataManager).

The members' JoinGroup requests wait until everybody has joined or the rebalance time-out is over, the leader's
SyncGroup brings the assignments, these are recorded, and then all SyncGroup requests are answered. Static members
(KIP-345) that have not joined in time stay in, until their session or the time for SyncGroup is over.
"""

from onceflow.broker.config import BrokerConfig
from onceflow.broker.groups.deadlines import PHASE, Deadlines
from onceflow.broker.groups.group import Extension, Group
from onceflow.broker.groups.member import JoinResponse, Member, SyncResponse
from onceflow.broker.groups.outcome import Outcome
from onceflow.broker.groups.states import GroupState
from onceflow.log.clock import Clock
from onceflow.wire.errors import ErrorCode

RECORD_AGAIN_MS = 1000
"""Until an empty generation whose record could not be appended is tried again."""


class Rebalance:
    """Moves groups on; what is decided goes into the outcome that the caller passes."""

    def __init__(self, config: BrokerConfig, clock: Clock, deadlines: Deadlines) -> None:
        self._config = config
        self._clock = clock
        self._deadlines = deadlines

    def begin(self, group: Group, outcome: Outcome) -> None:
        """Begin a rebalance unless one is under way, and complete it if nobody is missing."""
        if group.state is not GroupState.PREPARING_REBALANCE:
            self._refuse_waiting_syncs(group, outcome)
            self._await_members(group)
        if group.extension is None:
            if group.everybody_joined:
                self.complete_join(group, outcome)
        elif not self._config.group_initial_rebalance_delay_ms:
            self.complete_join(group, outcome)

    def _refuse_waiting_syncs(self, group: Group, outcome: Outcome) -> None:
        for member in group.members.values():
            member.must_sync = False
            if group.state is GroupState.COMPLETING_REBALANCE:
                group.members.assign(member, b"")
            if member.sync_reply is not None:
                outcome.respond_to_sync(member.sync_reply, SyncResponse(ErrorCode.rebalance_in_progress))
                member.sync_reply = None
                self._deadlines.restart_session(group, member)

    def _await_members(self, group: Group) -> None:
        """An empty group's first rebalance waits for more members, and longer while there come any."""
        wait_ms = group.rebalance_timeout_ms
        if group.state is GroupState.EMPTY:
            delay_ms = self._config.group_initial_rebalance_delay_ms
            group.extension = Extension(delay_ms, max(wait_ms - delay_ms, 0))
            wait_ms = delay_ms
        group.move(GroupState.PREPARING_REBALANCE)
        self._deadlines.start(group.group_id, PHASE, wait_ms)

    def go_on(self, group: Group, outcome: Outcome) -> None:
        """The time for the present phase is over."""
        if group.state is GroupState.PREPARING_REBALANCE:
            self._end_waiting(group, outcome)
        elif group.state in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE):
            # Who joined must also sync in time: one member that only sends heartbeats would block all others.
            late = [member.member_id for member in group.members.values() if member.must_sync]
            for member_id in late:
                self.take_out(group, member_id, outcome)
            if late:
                self.begin(group, outcome)

    def _end_waiting(self, group: Group, outcome: Outcome) -> None:
        extension = group.extension
        if extension is None or not extension.has_new_member or not extension.left_ms:
            self.complete_join(group, outcome)
            return
        delay_ms = min(self._config.group_initial_rebalance_delay_ms, extension.left_ms)
        group.extension = Extension(delay_ms, max(extension.left_ms - extension.delay_ms, 0))
        self._deadlines.start(group.group_id, PHASE, delay_ms)

    def complete_join(self, group: Group, outcome: Outcome) -> None:
        """Begin the next generation with the members that have joined, and the static ones that have not."""
        missing = [each for each in group.members.values() if each.join_reply is None]
        for member in missing:
            if member.group_instance_id is None:
                group.remove(member.member_id)
                self._deadlines.cancel(group.group_id, member.member_id)
        if group.members and not group.elect_leader():
            # Static members alone, none of them here: until they come or their sessions are over.
            self._deadlines.start(group.group_id, PHASE, group.rebalance_timeout_ms)
            return
        group.extension = None
        group.begin_generation()
        if not group.members:
            self._deadlines.start(group.group_id, PHASE, RECORD_AGAIN_MS)
            outcome.records.append(group.metadata(self._clock.now_ms(), {}))
            return
        group.move(GroupState.COMPLETING_REBALANCE)
        self._deadlines.start(group.group_id, PHASE, group.rebalance_timeout_ms)
        for member in group.members.values():
            self._respond_to_join(group, member, outcome)

    def _respond_to_join(self, group: Group, member: Member, outcome: Outcome) -> None:
        reply = group.members.take_join_reply(member)
        if reply is not None:
            outcome.respond_to_join(reply, group.join_response(member))
        member.is_new = False
        member.must_sync = True
        self._deadlines.restart_session(group, member)

    def complete_sync(self, group: Group, assignments: dict[str, bytes], outcome: Outcome) -> None:
        """Record the leader's assignments; then whoever waits for its own gets it."""
        outcome.records.append(group.metadata(self._clock.now_ms(), assignments))
        outcome.undo = lambda: self._begin_anew(group)
        for member in group.members.values():
            if member.sync_reply is not None:
                assignment = assignments.get(member.member_id, b"")
                answer = SyncResponse(ErrorCode.none, group.protocol_type, group.protocol, assignment)
                outcome.respond_to_sync(member.sync_reply, answer)
                member.sync_reply = None
                self._deadlines.restart_session(group, member)

    def _begin_anew(self, group: Group) -> Outcome:
        """What could not be recorded is not so: the members are to join again."""
        outcome = Outcome()
        self.begin(group, outcome)
        return outcome

    def persist_static(self, group: Group, outcome: Outcome) -> None:
        """Record the present generation again, since a static member of it has a new id."""
        outcome.records.append(group.metadata(self._clock.now_ms(), group.assignments()))
        outcome.undo = lambda: self._begin_anew(group)

    def take_out(self, group: Group, member_id: str, outcome: Outcome) -> None:
        """Remove a member and answer what it waits for; the caller goes on with `begin`."""
        self._deadlines.cancel(group.group_id, member_id)
        self.refuse_waiting(group, group.remove(member_id), ErrorCode.unknown_member_id, outcome)

    @staticmethod
    def refuse_waiting(group: Group, member: Member, error_code: ErrorCode, outcome: Outcome) -> None:
        """Answer the requests of a member that is one no longer."""
        reply = group.members.take_join_reply(member)
        if reply is not None:
            outcome.respond_to_join(reply, JoinResponse(error_code, member.member_id))
        if member.sync_reply is not None:
            outcome.respond_to_sync(member.sync_reply, SyncResponse(error_code))
            member.sync_reply = None
