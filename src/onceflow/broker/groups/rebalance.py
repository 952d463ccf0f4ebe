"""Rebalances: the way from one generation of a group to the next (Kafka's GroupMetadataManager).

JoinGroup requests wait until all members have joined or the rebalance timeout expires. The leader's SyncGroup brings
the assignments, these are recorded, and then all SyncGroup requests get their responses. Static members (KIP-345) that
have not joined in time stay in the group until their session or the time for SyncGroup expires.
"""

from onceflow.broker.config import BrokerConfig
from onceflow.broker.groups.deadlines import PHASE, Deadlines
from onceflow.broker.groups.group import Extension, Group
from onceflow.broker.groups.members import JoinResponse, Member, SyncResponse
from onceflow.broker.groups.outcome import Outcome
from onceflow.broker.groups.states import GroupState
from onceflow.log.clock import Clock
from onceflow.wire.errors import ErrorCode

RECORD_RETRY_MS = 1000
"""Delay before the record of an empty generation is appended again after a failure."""


class Rebalance:
    """Moves groups to their next state; records and responses go into the caller's outcome."""

    def __init__(self, config: BrokerConfig, clock: Clock, deadlines: Deadlines) -> None:
        self._config = config
        self._clock = clock
        self._deadlines = deadlines

    def begin(self, group: Group, outcome: Outcome) -> None:
        """Start a rebalance unless one is in progress, and complete it if all members have joined."""
        if group.state is not GroupState.PREPARING_REBALANCE:
            self._refuse_waiting_syncs(group, outcome)
            self._await_members(group)
        if group.extension is None:
            if group.all_joined:
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
        """Wait for members to join; an empty group's first rebalance waits longer while new members join."""
        wait_ms = group.rebalance_timeout_ms
        if group.state is GroupState.EMPTY:
            delay_ms = self._config.group_initial_rebalance_delay_ms
            group.extension = Extension(delay_ms, max(wait_ms - delay_ms, 0))
            wait_ms = delay_ms
        group.move(GroupState.PREPARING_REBALANCE)
        self._deadlines.start(group.group_id, PHASE, wait_ms)

    def on_phase_timeout(self, group: Group, outcome: Outcome) -> None:
        """Act on the end of the time for the group's current phase."""
        if group.state is GroupState.PREPARING_REBALANCE:
            self._end_waiting(group, outcome)
        elif group.state in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE):
            # Members must also sync in time: one that only sends heartbeats would block all others.
            late = [member.member_id for member in group.members.values() if member.must_sync]
            for member_id in late:
                self.remove_member(group, member_id, outcome)
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
        """Start the next generation with the members that have joined, and all static members."""
        missing = [member for member in group.members.values() if member.join_reply is None]
        for member in missing:
            if member.group_instance_id is None:
                group.remove(member.member_id)
                self._deadlines.cancel(group.group_id, member.member_id)
        if group.members and not group.elect_leader():
            # Only static members are left and none has joined: wait until one does or their sessions expire.
            self._deadlines.start(group.group_id, PHASE, group.rebalance_timeout_ms)
            return
        group.extension = None
        group.begin_generation()
        if not group.members:
            self._deadlines.start(group.group_id, PHASE, RECORD_RETRY_MS)
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
        """Record the leader's assignments; then respond to the waiting members."""
        outcome.records.append(group.metadata(self._clock.now_ms(), assignments))
        outcome.undo = lambda: self._restart(group)
        for member in group.members.values():
            if member.sync_reply is not None:
                assignment = assignments.get(member.member_id, b"")
                response = SyncResponse(ErrorCode.none, group.protocol_type, group.protocol, assignment)
                outcome.respond_to_sync(member.sync_reply, response)
                member.sync_reply = None
                self._deadlines.restart_session(group, member)

    def _restart(self, group: Group) -> Outcome:
        """Start a new rebalance after a generation could not be recorded."""
        outcome = Outcome()
        self.begin(group, outcome)
        return outcome

    def persist_static(self, group: Group, outcome: Outcome) -> None:
        """Record the current generation again, since a static member has a new id."""
        outcome.records.append(group.metadata(self._clock.now_ms(), group.assignments()))
        outcome.undo = lambda: self._restart(group)

    def remove_member(self, group: Group, member_id: str, outcome: Outcome) -> None:
        """Remove a member and refuse its waiting requests; the caller then calls `begin`."""
        self._deadlines.cancel(group.group_id, member_id)
        self.refuse_waiting(group, group.remove(member_id), ErrorCode.unknown_member_id, outcome)

    @staticmethod
    def refuse_waiting(group: Group, member: Member, error_code: ErrorCode, outcome: Outcome) -> None:
        """Refuse the waiting requests of a former member."""
        reply = group.members.take_join_reply(member)
        if reply is not None:
            outcome.respond_to_join(reply, JoinResponse(error_code, member.member_id))
        if member.sync_reply is not None:
            outcome.respond_to_sync(member.sync_reply, SyncResponse(error_code))
            member.sync_reply = None
