"""Coordinator of the groups: `decide` methods return records and responses, `replay` applies the records.

It implements the rules of Kafka's classic groups (org.apache.kafka.coordinator.group.GroupMetadataManager): which
members may join, sync, send heartbeats, leave and commit. `rebalance` moves a group to its next generation. The caller
appends an outcome's records, replays them, and sends its responses once they are synced.
"""

import logging
import uuid
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Sequence

from onceflow.broker.config import BrokerConfig
from onceflow.broker.groups.deadlines import PHASE, Deadlines
from onceflow.broker.groups.group import Group
from onceflow.broker.groups.members import (
    MEMBER_BYTES,
    JoinReply,
    JoinResponse,
    Member,
    MemberMemory,
    Members,
    SyncReply,
    SyncResponse,
    protocols_bytes,
)
from onceflow.broker.groups.offsets import PendingOffsets, expired
from onceflow.broker.groups.outcome import JoinRequest, Leaving, Outcome, SyncRequest
from onceflow.broker.groups.pending_ids import AllPendingIds, PendingIds
from onceflow.broker.groups.rebalance import Rebalance
from onceflow.broker.groups.records import GroupRecord, GroupRemoval, OffsetCommit
from onceflow.broker.groups.states import GroupState
from onceflow.log.clock import Clock
from onceflow.wire import TopicPartition
from onceflow.wire.errors import ErrorCode

logger = logging.getLogger(__name__)

CLIENT_ID_CHARACTERS_MAX = 250
"""Maximum length of the client id in a member id: a record's strings have at most 32,767 bytes."""
DUE_AT_ONCE = 5000
"""Timeouts handled in one turn of the event loop; the rest is due in the next one."""
OFFSETS_DELETED_AT_ONCE = 1000
OFFSETS_SEEN_AT_ONCE = 10_000
"""Offsets checked in one turn of the event loop when those of deleted topics are deleted."""


class SharedLimits:
    """Memory and pending ids of all coordinators of a broker, within the broker's limits."""

    def __init__(self, config: BrokerConfig) -> None:
        self.memory = MemberMemory(config.groups_memory_bytes_max)
        self.pending_ids: AllPendingIds = OrderedDict()


class GroupCoordinator:
    """The groups of one partition of `__consumer_offsets`. Single-threaded: the event loop is its lock."""

    def __init__(
        self,
        clock: Clock,
        config: BrokerConfig,
        make_uuid: Callable[[], uuid.UUID] = uuid.uuid4,
        *,
        limits: SharedLimits | None = None,
    ) -> None:
        """`limits` are those of the broker's other coordinators too."""
        limits = limits or SharedLimits(config)
        self.clock = clock
        self.config = config
        self.make_uuid = make_uuid
        self.groups: dict[str, Group] = {}
        self.memory = limits.memory
        self.pending = PendingOffsets()
        self.deadlines = Deadlines(clock)
        self.pending_ids = PendingIds(config, self.deadlines, limits.pending_ids)
        self._had_room = True
        self._rebalance = Rebalance(config, clock, self.deadlines)

    # Replay

    def replay(self, record: GroupRecord) -> None:
        """Apply one record, after its append or at start."""
        if isinstance(record, GroupRemoval):
            group = self.groups.get(record.group)
            if group is not None:
                self._remove(group)
        elif isinstance(record, OffsetCommit):
            self._replay_offset(record)
        else:
            self._group(record.group).replay_metadata(record)

    def _remove(self, group: Group) -> None:
        for member_id in list(group.pending_ids):
            self.pending_ids.remove(group, member_id)
        group.members.replace_all(())
        del self.groups[group.group_id]
        group.move(GroupState.DEAD)

    def _replay_offset(self, record: OffsetCommit) -> None:
        if record.offset is not None:
            self._group(record.group).offsets[(record.topic, record.partition)] = record
            return
        self.pending.remove(record)
        group = self.groups.get(record.group)
        if group is not None:
            group.offsets.pop((record.topic, record.partition), None)

    def replay_transactional(self, producer_id: int, record: OffsetCommit) -> None:
        """Apply a record that counts only if the producer's transaction commits."""
        if record.offset is None:
            self._replay_offset(record)
        else:
            self._group(record.group)
            self.pending.add(producer_id, record)

    def replay_marker(self, producer_id: int, *, commit: bool) -> None:
        """Apply the end of a transaction: commit its pending offsets, unless a later record set them, or drop them."""
        for pending in self.pending.end(producer_id):
            offsets = self._group(pending.group).offsets
            current = offsets.get((pending.topic, pending.partition))
            if commit and (current is None or current.record_offset < pending.record_offset):
                offsets[(pending.topic, pending.partition)] = pending

    def _group(self, group_id: str) -> Group:
        group = self.groups.get(group_id)
        if group is None:
            group = self.groups[group_id] = Group(group_id, Members(self.memory))
        return group

    def begin(self) -> None:
        """Start the members' sessions, after the log has been replayed."""
        for group in self.groups.values():
            for member in group.members.values():
                self.deadlines.restart_session(group, member)

    def resign(self) -> Outcome:
        """Forget all groups: another broker coordinates them. Their waiting members ask for it (onGroupUnloaded)."""
        outcome = Outcome()
        for group in self.groups.values():
            for member in group.members.values():
                join_reply = group.members.take_join_reply(member)
                if join_reply is not None:
                    outcome.respond_to_join(join_reply, JoinResponse(ErrorCode.not_coordinator, member.member_id))
                if member.sync_reply is not None:
                    outcome.respond_to_sync(member.sync_reply, SyncResponse(ErrorCode.not_coordinator))
                    member.sync_reply = None
            for member_id in list(group.pending_ids):
                self.pending_ids.remove(group, member_id)
            group.members.replace_all(())
        self.groups.clear()
        return outcome

    # JoinGroup

    def join(self, request: JoinRequest, reply: JoinReply) -> Outcome:
        """Decide a JoinGroup; its response may come with a later outcome."""
        outcome = Outcome()
        group = self.groups.get(request.group_id)
        error_code = self._join_error(group, request)
        if error_code != ErrorCode.none:
            member_id = "" if error_code == ErrorCode.group_max_size_reached else request.member_id
            outcome.respond_to_join(reply, JoinResponse(error_code, member_id))
            return outcome
        group = self._group(request.group_id)
        if request.member_id == "":
            self._join_new(group, request, reply, outcome)
        elif self.pending_ids.remove(group, request.member_id):
            self._add_member(group, request.member_id, request, reply, outcome)
        else:
            self._rejoin(group, group.members[request.member_id], request, reply, outcome)
        return outcome

    def _join_error(self, group: Group | None, request: JoinRequest) -> ErrorCode:
        names = (
            request.group_id,
            request.protocol_type,
            request.group_instance_id or "",
            *(name for name, _metadata in request.protocols),
        )
        if not request.group_id or any(map(self._is_long, names)):
            return ErrorCode.invalid_group_id
        shortest_ms, longest_ms = self.config.group_session_timeout_min_ms, self.config.group_session_timeout_max_ms
        if not shortest_ms <= request.session_timeout_ms <= longest_ms:
            return ErrorCode.invalid_session_timeout
        if group is None:
            group = Group(request.group_id, Members(self.memory))
            if request.member_id:
                return ErrorCode.unknown_member_id
        if self._is_full(group, request.member_id):
            self.pending_ids.remove(group, request.member_id)
            return ErrorCode.group_max_size_reached
        if not group.accepts(request.protocol_type, request.protocols):
            return ErrorCode.inconsistent_group_protocol
        error_code = ErrorCode.none
        if request.member_id in group.pending_ids:
            # A member with an instance id never gets a pending member id; Kafka returns the same error.
            error_code = ErrorCode.none if request.group_instance_id is None else ErrorCode.unknown_server_error
        elif request.member_id:
            error_code = group.member_error(request.member_id, request.group_instance_id)
        return error_code or self._memory_error(group, request)

    def _memory_error(self, group: Group, request: JoinRequest) -> ErrorCode:
        """Return an error if the subscription takes too much memory; one that does not grow is accepted."""
        size_bytes = protocols_bytes(request.protocols)
        if size_bytes > self.config.group_subscription_bytes_max:
            return ErrorCode.message_too_large
        member_id = request.member_id or group.static_members.get(request.group_instance_id or "", "")
        member = group.members.get(member_id)
        current_bytes = 0 if member is None else protocols_bytes(member.protocols)
        growth_bytes = size_bytes - current_bytes + (MEMBER_BYTES if member is None else 0)
        return ErrorCode.none if self._has_room(growth_bytes) else ErrorCode.coordinator_not_available

    def _has_room(self, growth_bytes: int) -> bool:
        has_room = self.memory.has_room(growth_bytes)
        if self._had_room and not has_room:
            logger.warning(
                "the members of all groups use %d bytes; further members must wait (groups.memory.max.bytes=%d)",
                self.memory.used_bytes,
                self.config.groups_memory_bytes_max,
            )
        self._had_room = has_room
        return has_room

    def _is_long(self, name: str) -> bool:
        return len(name.encode()) > self.config.group_name_bytes_max

    def _unknown_group_error(self, group_id: str, generation: int) -> ErrorCode:
        """Return the error of a commit to an unknown group: only a consumer outside the protocol may create one."""
        if self._is_long(group_id):
            return ErrorCode.invalid_group_id
        return ErrorCode.none if generation < 0 else ErrorCode.illegal_generation

    def _is_full(self, group: Group, member_id: str) -> bool:
        """Return whether `group.max.size` is reached (Kafka's acceptJoiningMember); members that joined first stay."""
        if group.state is GroupState.EMPTY:
            return False
        member = group.members.get(member_id)
        if group.state is GroupState.PREPARING_REBALANCE:
            has_joined = member is not None and member.join_reply is not None
            return not has_joined and group.members.joined_count >= self.config.group_members_max
        return member is None and len(group.members) >= self.config.group_members_max

    def _join_new(self, group: Group, request: JoinRequest, reply: JoinReply, outcome: Outcome) -> None:
        instance_id = request.group_instance_id
        prefix = request.client_id[:CLIENT_ID_CHARACTERS_MAX] if instance_id is None else instance_id
        member_id = f"{prefix}-{self.make_uuid()}"
        if instance_id is not None and instance_id in group.static_members:
            self._replace_static_member(
                group, group.members[group.static_members[instance_id]], member_id, request, reply, outcome
            )
        elif instance_id is None and request.requires_known_member_id:
            # KIP-394: a client that never receives its first response must not leave an unused member behind.
            self.pending_ids.add(group, member_id, request.session_timeout_ms)
            self._withdraw_surplus(group, outcome)
            outcome.respond_to_join(reply, JoinResponse(ErrorCode.member_id_required, member_id))
        else:
            self._add_member(group, member_id, request, reply, outcome)

    def _withdraw_surplus(self, group: Group, outcome: Outcome) -> None:
        """Remove the oldest pending id if there are too many; its group stops waiting for it."""
        surplus = self.pending_ids.surplus(group)
        if surplus is not None:
            owner, group, member_id = surplus
            owner.remove(group, member_id)
            if owner is self.pending_ids:
                self._on_pending_id_removed(group, outcome)
            else:
                owner.on_withdrawn(group)

    def pending_id_withdrawn(self, group: Group) -> Outcome:
        """Decide what follows the withdrawal of a pending id by another coordinator."""
        outcome = Outcome()
        self._on_pending_id_removed(group, outcome)
        return outcome

    def _on_pending_id_removed(self, group: Group, outcome: Outcome) -> None:
        """Complete a rebalance that waited only for a removed pending id, or remove the unused group."""
        if group.state is GroupState.PREPARING_REBALANCE:
            self._rebalance.begin(group, outcome)
        elif group.is_unused and not self.pending.of_group(group.group_id):
            self._remove(group)

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
            request.group_instance_id,
            join_reply=reply,
            is_new=True,
        )
        if not group.members:
            group.protocol_type = request.protocol_type
        if group.extension is not None:
            group.extension.has_new_member = True
        group.add(member)
        self.deadlines.start(group.group_id, member_id, self.config.group_new_member_timeout_ms)
        self._rebalance.begin(group, outcome)

    def _replace_static_member(
        self,
        group: Group,
        member: Member,
        member_id: str,
        request: JoinRequest,
        reply: JoinReply,
        outcome: Outcome,
    ) -> None:
        """Give a returning static member a new id; in a stable group it keeps its assignment (KIP-345)."""
        leader = group.leader
        self._rebalance.refuse_waiting(group, member, ErrorCode.fenced_instance_id, outcome)
        self.deadlines.cancel(group.group_id, member.member_id)
        successor = group.replace_static(member, member_id)
        self._update(group, successor, request)
        if group.state is not GroupState.STABLE or group.vote() != group.protocol:
            group.members.await_join(successor, reply)
            self._rebalance.begin(group, outcome)
            return
        self._rebalance.persist_static(group, outcome)
        leads = group.leader == member_id
        if leads and not request.may_skip_assignment:
            # A leader of an old version cannot skip the assignment, so the response names the old leader id.
            response = group.join_response(successor, leader=leader)
        else:
            response = group.join_response(successor, skip_assignment=leads)
        outcome.respond_to_join(reply, response)

    def _update(self, group: Group, member: Member, request: JoinRequest) -> None:
        member.client_id, member.client_host = request.client_id, request.client_host
        group.members.subscribe(member, request.protocols)
        member.session_timeout_ms = request.session_timeout_ms
        member.rebalance_timeout_ms = request.rebalance_timeout_ms
        self.deadlines.restart_session(group, member)

    def _rejoin(self, group: Group, member: Member, request: JoinRequest, reply: JoinReply, outcome: Outcome) -> None:
        unchanged = member.protocols == request.protocols
        is_leader = member.member_id == group.leader
        repeated = group.state is GroupState.COMPLETING_REBALANCE and unchanged
        # A follower that joins a stable group has lost its response; a leader that does requests a rebalance.
        lost = group.state is GroupState.STABLE and unchanged and not is_leader
        if repeated or lost:
            self.deadlines.restart_session(group, member)
            outcome.respond_to_join(reply, group.join_response(member))
            return
        self._update(group, member, request)
        self._rebalance.refuse_waiting(group, member, ErrorCode.unknown_member_id, outcome)
        group.members.await_join(member, reply)
        self._rebalance.begin(group, outcome)

    # SyncGroup, Heartbeat, LeaveGroup

    def sync(self, request: SyncRequest, reply: SyncReply) -> Outcome:
        """Decide a SyncGroup; a follower's response comes with the leader's outcome."""
        outcome = Outcome()
        error_code = self._sync_error(request)
        if error_code != ErrorCode.none:
            outcome.respond_to_sync(reply, SyncResponse(error_code))
            return outcome
        group = self.groups[request.group_id]
        member = group.members[request.member_id]
        member.must_sync = False
        self.deadlines.restart_session(group, member)
        if group.state is GroupState.STABLE:
            outcome.respond_to_sync(reply, group.sync_response(member))
            return outcome
        if member.sync_reply is not None:
            outcome.respond_to_sync(member.sync_reply, SyncResponse(ErrorCode.unknown_member_id))
        member.sync_reply = reply
        if member.member_id == group.leader:
            self._rebalance.complete_sync(group, request.assignments, outcome)
        return outcome

    def _sync_error(self, request: SyncRequest) -> ErrorCode:
        if not request.group_id:
            return ErrorCode.invalid_group_id
        error_code = self._member_error(
            request.group_id, request.member_id, request.group_instance_id, request.generation
        )
        if error_code != ErrorCode.none:
            return error_code
        group = self.groups[request.group_id]
        if request.member_id == group.leader and group.state is GroupState.COMPLETING_REBALANCE:
            growth_bytes = sum(map(len, request.assignments.values())) - sum(map(len, group.assignments().values()))
            if not self._has_room(growth_bytes):
                return ErrorCode.coordinator_not_available
        for given, chosen in ((request.protocol_type, group.protocol_type), (request.protocol, group.protocol)):
            if given is not None and given != chosen:
                return ErrorCode.inconsistent_group_protocol
        if group.state is GroupState.PREPARING_REBALANCE:
            return ErrorCode.rebalance_in_progress
        return ErrorCode.none

    def _member_error(self, group_id: str, member_id: str, group_instance_id: str | None, generation: int) -> ErrorCode:
        group = self.groups.get(group_id)
        if group is None:
            return ErrorCode.unknown_member_id
        error_code = group.member_error(member_id, group_instance_id)
        if error_code == ErrorCode.none and generation != group.generation:
            return ErrorCode.illegal_generation
        return error_code

    def heartbeat(
        self, group_id: str, member_id: str, generation: int, group_instance_id: str | None = None
    ) -> ErrorCode:
        """Restart a member's session; the error code may ask it to join again."""
        if not group_id:
            return ErrorCode.invalid_group_id
        error_code = self._member_error(group_id, member_id, group_instance_id, generation)
        if error_code != ErrorCode.none:
            return error_code
        group = self.groups[group_id]
        self.deadlines.restart_session(group, group.members[member_id])
        if group.state is GroupState.PREPARING_REBALANCE:
            return ErrorCode.rebalance_in_progress
        return ErrorCode.none

    def leave(self, group_id: str, leaving: Sequence[Leaving]) -> tuple[list[ErrorCode], Outcome]:
        """Remove members from a group; return one error code for each of `leaving`, and the outcome."""
        outcome = Outcome()
        group = self.groups.get(group_id)
        if group is None:
            return [ErrorCode.unknown_member_id] * len(leaving), outcome
        error_codes = [self._leave_one(group, member, outcome) for member in leaving]
        if ErrorCode.none in error_codes and group.state is not GroupState.EMPTY:
            self._rebalance.begin(group, outcome)
        elif group.is_unused and not self.pending.of_group(group_id):
            self._remove(group)
        return error_codes, outcome

    def _leave_one(self, group: Group, leaving: Leaving, outcome: Outcome) -> ErrorCode:
        member_id = leaving.member_id
        if self.pending_ids.remove(group, member_id):
            return ErrorCode.none
        if not member_id and leaving.group_instance_id is not None:
            # An administrator removes a static member by its instance id alone.
            member_id = group.static_members.get(leaving.group_instance_id, "")
        error_code = group.member_error(member_id, leaving.group_instance_id)
        if error_code == ErrorCode.none:
            self._rebalance.remove_member(group, member_id, outcome)
        return error_code

    # Time

    def expire(self, due_max: int = DUE_AT_ONCE) -> list[Outcome]:
        """Act on at most `due_max` expired timeouts."""
        due = self.deadlines.take_due(due_max)
        return [self._expire(self.groups[group_id], due[group_id]) for group_id in due if group_id in self.groups]

    def _expire(self, group: Group, due: Sequence[str]) -> Outcome:
        """Act on the due timeouts of a group: member ids, and PHASE for the group's current phase."""
        outcome = Outcome()
        unused = [member_id for member_id in due if self.pending_ids.remove(group, member_id)]
        silent = [group.members[member_id] for member_id in due if member_id in group.members]
        alive = [member for member in silent if member.is_alive_by_waiting]
        for member in alive:
            self.deadlines.restart_session(group, member)
        for member in silent:
            if not member.is_alive_by_waiting:
                self._rebalance.remove_member(group, member.member_id, outcome)
        if len(alive) < len(silent):
            self._rebalance.begin(group, outcome)
        elif unused:
            self._on_pending_id_removed(group, outcome)
        if PHASE in due and not self.deadlines.is_set(group.group_id, PHASE):
            self._rebalance.on_phase_timeout(group, outcome)
        return outcome

    # Offsets

    def commit_error(
        self, group_id: str, member_id: str, generation: int, group_instance_id: str | None = None
    ) -> ErrorCode:
        """Return whether this member, or with generation -1 a consumer outside the group protocol, may commit offsets.

        A commit restarts the member's session, like a heartbeat.
        """
        group = self.groups.get(group_id)
        if group is None or self._is_long(group_id):
            return self._unknown_group_error(group_id, generation)
        if generation < 0 and group.state is GroupState.EMPTY:
            return ErrorCode.none
        error_code = self._member_error(group_id, member_id, group_instance_id, generation)
        if error_code == ErrorCode.none and group.state is GroupState.COMPLETING_REBALANCE:
            return ErrorCode.rebalance_in_progress
        if error_code == ErrorCode.none:
            assert group is not None
            self.deadlines.restart_session(group, group.members[member_id])
        return error_code

    def transactional_commit_error(
        self, group_id: str, member_id: str, generation: int, group_instance_id: str | None
    ) -> ErrorCode:
        """Return whether a transaction may commit offsets for the group, with or without a member (KIP-447).

        Unlike `commit_error` it accepts a request without member and generation in any state: versions before 3 have
        neither.
        """
        group = self.groups.get(group_id)
        if group is None or self._is_long(group_id):
            return self._unknown_group_error(group_id, generation)
        if generation < 0 and not member_id and group_instance_id is None:
            return ErrorCode.none
        if generation < 0 and group.state is GroupState.EMPTY:
            return ErrorCode.none
        return self._member_error(group_id, member_id, group_instance_id, generation)

    def decide_expire(self, group: Group) -> list[GroupRecord]:
        """Return the records that delete the group's expired offsets, and the group if nothing is left."""
        pending = self.pending.of_group(group.group_id)
        commits = expired(group, pending, self.clock.now_ms(), self.config.offsets_retention_ms)
        records: list[GroupRecord] = [
            OffsetCommit(commit.group, commit.topic, commit.partition, None) for commit in commits
        ]
        is_used = group.state is not GroupState.EMPTY or group.pending_ids or pending
        if not is_used and len(commits) == len(group.offsets):
            records.append(GroupRemoval(group.group_id))
        return records

    def delete_error(self, group_id: str) -> ErrorCode:
        """Return an error unless the group exists and has no members."""
        group = self.groups.get(group_id)
        if group is None:
            return ErrorCode.group_id_not_found
        return ErrorCode.none if group.state is GroupState.EMPTY else ErrorCode.non_empty_group

    def decide_delete(self, group_id: str) -> list[GroupRecord]:
        """Return the records that delete a group, with its pending offsets."""
        places = dict.fromkeys((*self.groups[group_id].offsets, *self.pending.of_group(group_id)))
        return [*(OffsetCommit(group_id, *place, None) for place in places), GroupRemoval(group_id)]

    def offset_delete_error(self, group_id: str) -> ErrorCode:
        """Return an error unless single offsets can be deleted: members other than consumers may use any of them."""
        if not group_id:
            return ErrorCode.invalid_group_id
        group = self.groups.get(group_id)
        if group is None:
            return ErrorCode.group_id_not_found
        is_safe = group.state is GroupState.EMPTY or group.uses_consumer_protocol
        return ErrorCode.none if is_safe else ErrorCode.non_empty_group

    def decide_delete_offsets(
        self, group_id: str, places: Sequence[TopicPartition], known: Collection[TopicPartition]
    ) -> tuple[list[GroupRecord], dict[TopicPartition, ErrorCode]]:
        """Return the records that delete the offsets at `places`, and their errors; `known` are the open partitions."""
        group = self.groups[group_id]
        existing = {*group.offsets, *self.pending.of_group(group_id)}
        error_codes = {place: _offset_delete_error(group, place, known) for place in places}
        deleted = [place for place, code in error_codes.items() if not code and place in existing]
        return [OffsetCommit(group_id, *place, None) for place in deleted], error_codes

    def decide_delete_topic_offsets(self, is_deleted: Callable[[str], bool]) -> Iterator[list[GroupRecord]]:
        """Yield the records that delete every group's offsets of deleted topics, pending ones first.

        Each list must be replayed before the next is requested. The offsets checked for each are bounded.
        """
        yield [OffsetCommit(*place, None) for place in self.pending if is_deleted(place[1])]
        records: list[GroupRecord] = []
        seen = 0
        for group in list(self.groups.values()):
            records += [OffsetCommit(group.group_id, *place, None) for place in group.offsets if is_deleted(place[0])]
            seen += 1 + len(group.offsets)
            if len(records) >= OFFSETS_DELETED_AT_ONCE or seen >= OFFSETS_SEEN_AT_ONCE:
                yield records
                records, seen = [], 0
        yield records


def _offset_delete_error(group: Group, place: TopicPartition, known: Collection[TopicPartition]) -> ErrorCode:
    if place not in known:
        return ErrorCode.unknown_topic_or_partition
    return ErrorCode.group_subscribed_to_topic if group.is_subscribed(place[0]) else ErrorCode.none
