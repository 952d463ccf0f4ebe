"""Consumer groups: members, generations, rebalances, and committed offsets."""

from tests.mutants.mutant import Mutant

_COORDINATOR = "broker/groups/test_coordinator.py::"
_STATIC = "broker/groups/test_static_members.py::"
_RESPONSES = "broker/handlers/test_groups.py::"
_REQUESTS = "broker/groups/test_requests.py::"
_TRANSACTIONAL = "broker/groups/test_transactional_offsets.py::"
_DURABILITY = "broker/groups/test_group_durability.py::"
_LARGE = "broker/handlers/test_large_requests.py::"

MUTANTS = (
    Mutant(
        "broker/groups/coordinator.py",
        "        if error_code == ErrorCode.none and generation != group.generation:",
        "        if error_code == ErrorCode.none and generation > group.generation:",
        _RESPONSES + "test_members_that_may_commit_and_heartbeat",
    ),
    Mutant(
        "broker/groups/coordinator.py",
        "        self.deadlines.restart_session(group, group.members[member_id])\n        if group.state",
        "        if group.state",
        _COORDINATOR + "test_a_silent_leader_is_replaced",
    ),
    Mutant(
        "broker/groups/coordinator.py",
        "            self.deadlines.restart_session(group, group.members[member_id])\n        return error_code",
        "            pass\n        return error_code",
        _COORDINATOR + "test_a_commit_keeps_a_member_alive",
    ),
    Mutant(
        "broker/groups/coordinator.py",
        "error_code == ErrorCode.none and group.state is GroupState.COMPLETING_REBALANCE:",
        "error_code == ErrorCode.none and group.state is GroupState.PREPARING_REBALANCE:",
        _RESPONSES + "test_a_generation_before_and_after_its_sync",
    ),
    Mutant(
        "broker/groups/coordinator.py",
        "if generation < 0 and group.state is GroupState.EMPTY:\n            return ErrorCode.none\n"
        "        error_code = self._member_error(",
        "if generation < 0:\n            return ErrorCode.none\n        error_code = self._member_error(",
        _RESPONSES + "test_members_that_may_commit_and_heartbeat",
    ),
    Mutant(
        "broker/groups/coordinator.py",
        "commit and (current is None or current.record_offset < pending.record_offset):",
        "commit:",
        _TRANSACTIONAL + "test_later_plain_commit_wins",
    ),
    Mutant(
        "broker/groups/coordinator.py",
        "            if commit and (current is None",
        "            if (current is None",
        _TRANSACTIONAL + "test_offsets_apply_after_commit",
    ),
    Mutant(
        "broker/groups/coordinator.py",
        "            for member in group.members.values():\n"
        "                self.deadlines.restart_session(group, member)\n",
        "            pass\n",
        _REQUESTS + "test_sessions_begin_when_the_groups_are_loaded",
    ),
    Mutant(
        "broker/groups/coordinator.py",
        "            return not has_joined and group.members.joined_count >= self.config.group_members_max",
        "            return not has_joined and group.members.joined_count > self.config.group_members_max",
        _COORDINATOR + "test_new_group_respects_its_maximum_size",
    ),
    Mutant(
        "broker/groups/coordinator.py",
        "        elif unused:\n            self._on_pending_id_removed(group, outcome)\n",
        "",
        _COORDINATOR + "test_rebalance_waits_for_pending_member_id",
    ),
    Mutant(
        "broker/groups/coordinator.py",
        "            if not member.is_alive_by_waiting:\n",
        "            if True:\n",
        _COORDINATOR + "test_waiting_member_outlives_its_session",
    ),
    Mutant(
        "broker/groups/coordinator.py",
        "        self._rebalance.refuse_waiting(group, member, ErrorCode.fenced_instance_id, outcome)\n",
        "        self._rebalance.refuse_waiting(group, member, ErrorCode.unknown_member_id, outcome)\n",
        _STATIC + "test_second_join_fences_waiting_static_member",
    ),
    Mutant(
        "broker/groups/coordinator.py",
        "        self._rebalance.persist_static(group, outcome)\n",
        "",
        _STATIC + "test_restart_restores_static_members",
    ),
    Mutant(
        "broker/groups/coordinator.py",
        "group.state is not GroupState.STABLE or group.vote() != group.protocol:",
        "group.state is not GroupState.STABLE:",
        _STATIC + "test_changed_assignor_starts_rebalance",
    ),
    Mutant(
        "broker/groups/coordinator.py",
        "        lost = group.state is GroupState.STABLE and unchanged and not is_leader",
        "        lost = group.state is GroupState.STABLE and unchanged",
        _COORDINATOR + "test_join_of_leader_starts_rebalance",
    ),
    Mutant(
        "broker/groups/coordinator.py",
        "is_used = group.state is not GroupState.EMPTY or group.pending_ids or pending",
        "is_used = group.state is not GroupState.EMPTY or group.pending_ids",
        _COORDINATOR + "test_group_with_pending_offset_is_kept",
    ),
    Mutant(
        "broker/groups/group.py",
        "            if owner is not None and owner != member_id:\n                return ErrorCode.fenced_instance_id",
        "            if owner is not None and owner != member_id:\n                return ErrorCode.unknown_member_id",
        _STATIC + "test_old_id_of_static_member_is_fenced",
    ),
    Mutant(
        "broker/groups/group.py",
        "len(self.members) and not self.pending_ids",
        "len(self.members)",
        _COORDINATOR + "test_rebalance_waits_for_pending_member_id",
    ),
    Mutant(
        "broker/groups/group.py",
        "        self.generation += 1\n",
        "        self.generation += 1 if self.members else 0\n",
        _COORDINATOR + "test_unused_member_ids_leave_groups_empty",
    ),
    Mutant(
        "broker/groups/group.py",
        "        if self.leader == member_id:\n            self.leader = next(iter(self.members), None)\n",
        "",
        _COORDINATOR + "test_a_silent_leader_is_replaced",
    ),
    Mutant(
        "broker/groups/group.py",
        "        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)",
        "        return min((member.rebalance_timeout_ms for member in self.members.values()), default=0)",
        _COORDINATOR + "test_longest_rebalance_timeout_applies",
    ),
    Mutant(
        "broker/groups/rebalance.py",
        "                outcome.respond_to_sync(member.sync_reply, SyncResponse(ErrorCode.rebalance_in_progress))",
        "                pass",
        _COORDINATOR + "test_a_rebalance_refuses_who_waits_for_assignments",
    ),
    Mutant(
        "broker/groups/rebalance.py",
        "            if group.state is GroupState.COMPLETING_REBALANCE:\n"
        '                group.members.assign(member, b"")\n',
        "",
        _RESPONSES + "test_a_rebalance_before_the_assignment",
    ),
    Mutant(
        "broker/groups/rebalance.py",
        "        for member in missing:\n            if member.group_instance_id is None:\n",
        "        for member in missing:\n            if member:\n",
        _STATIC + "test_missing_static_members_alone_make_no_generation",
    ),
    Mutant(
        "broker/groups/rebalance.py",
        "        member.must_sync = True\n",
        "",
        _COORDINATOR + "test_member_that_syncs_late_is_removed",
    ),
    Mutant(
        "broker/groups/rebalance.py",
        "            if late:\n                self.begin(group, outcome)\n",
        "",
        _COORDINATOR + "test_member_that_syncs_late_is_removed",
    ),
    Mutant(
        "broker/groups/rebalance.py",
        "            outcome.records.append(group.metadata(self._clock.now_ms(), {}))\n            return",
        "            return",
        _COORDINATOR + "test_empty_group_accepts_commits_without_member",
    ),
    Mutant(
        "broker/groups/rebalance.py",
        "        outcome.undo = lambda: self._restart(group)\n        for member in group.members.values():",
        "        for member in group.members.values():",
        _COORDINATOR + "test_unrecorded_generation_starts_rebalance",
    ),
    Mutant(
        "broker/groups/requests.py",
        "refused if error_code else outcome.responses",
        "outcome.responses",
        _DURABILITY + "test_acknowledged_state_survives_power_cut",
    ),
    Mutant(
        "broker/groups/requests.py",
        "        if error_code:\n            settled(error_code)\n        else:\n"
        "            self.settle_in_time(settled)\n\n"
        "    def append_in_batches",
        "        settled(error_code)\n\n    def append_in_batches",
        _DURABILITY + "test_acknowledged_state_survives_power_cut",
    ),
    Mutant(
        "broker/groups/requests.py",
        "            self._state_log.append_marker(\n"
        "                producer_id, producer_epoch, commit=commit, coordinator_epoch=coordinator_epoch\n"
        "            )\n",
        "",
        _TRANSACTIONAL + "test_offsets_apply_after_commit",
    ),
    Mutant(
        "broker/groups/requests.py",
        "            self.when_loaded(\n                lambda: self._complete_late(",
        "            (\n                lambda: self._complete_late(",
        _TRANSACTIONAL + "test_transaction_end_waits_for_loading",
    ),
    Mutant(
        "broker/network/connection.py",
        "            yield from self._do_rest(reply, reply.rest)\n        self._handle_later()\n",
        "            self._handle_later()\n            yield from self._do_rest(reply, reply.rest)\n"
        "            return\n        self._handle_later()\n",
        _LARGE + "test_a_later_commit_does_not_overtake",
    ),
    Mutant(
        "broker/network/connection.py",
        "        reply.is_long_wait = True\n        try:\n            yield from rest\n",
        "        try:\n            yield from rest\n",
        _LARGE + "test_a_stop_does_not_wait_for_it",
    ),
    Mutant(
        "broker/network/connection.py",
        "            yield from rest\n        except WireError as error:\n            self.close(str(error))\n",
        '            yield from rest\n        except WireError as error:\n            logger.warning("%s", error)\n',
        _LARGE + "test_a_failure_closes_only_its_connection",
    ),
    Mutant(
        "testing/interception.py",
        "            deque(inner.rest, maxlen=0)\n",
        "            pass\n",
        "testing/test_faults.py::test_large_requests_meet_faults",
    ),
    Mutant(
        "broker/handlers/group_offsets.py",
        "bytes_max=0 if refusal else groups.batch_bytes_max",
        "bytes_max=groups.batch_bytes_max",
        _LARGE + "test_a_refused_commit_is_not_encoded[False]",
    ),
    Mutant(
        "broker/handlers/transactions.py",
        "bytes_max=0 if refusal else groups.batch_bytes_max",
        "bytes_max=groups.batch_bytes_max",
        _LARGE + "test_a_refused_commit_is_not_encoded[True]",
    ),
    Mutant(
        "broker/handlers/group_offsets.py",
        "        if self._batch.encoded.size_bytes >= self._bytes_max:\n            return\n",
        "        if not self._bytes_max:\n            return\n",
        _LARGE + "test_a_batch_too_large_is_not_encoded",
    ),
    Mutant(
        "broker/handlers/group_offsets.py",
        "        if error_code:\n            offsets.refuse(error_code)\n",
        "",
        _LARGE + "test_a_member_that_left_commits_nothing",
    ),
    Mutant(
        "broker/handlers/group_offsets.py",
        "        if not deleted:\n            return batch\n",
        "        return batch\n",
        _LARGE + "test_a_deleted_topic_gets_no_offset",
    ),
    Mutant(
        "broker/handlers/group_offsets.py",
        "if self._topic_id(name) != topic_id}",
        "if self._topic_id(name) is None}",
        _LARGE + "test_a_topic_created_again_gets_no_offset",
    ),
    Mutant(
        "broker/handlers/group_admin.py",
        "            error_codes[group_id] = groups.delete_error(group_id)\n            records",
        "            records",
        _LARGE + "test_a_group_with_a_new_member_remains",
    ),
    Mutant(
        "broker/handlers/transactions.py",
        "body.producer_epoch, offsets.take(), respond)",
        "body.producer_epoch, offsets._batch, respond)",
        _LARGE + "test_a_deleted_topic_gets_no_transactional_offset",
    ),
    Mutant(
        "broker/handlers/group_offsets.py",
        "    respond(ErrorCode.none, once_durable(partial(node.group_shards.settle_in_time, shards), refuse))",
        "    respond(ErrorCode.none, at_once)",
        _DURABILITY + "test_no_response_reveals_unsynced_state",
    ),
    Mutant(
        "broker/handlers/group_offsets.py",
        "        if (topic, index) in unstable:",
        "        if (topic, index) in offsets and (topic, index) in unstable:",
        "broker/transactions/test_traps.py::test_trap_05_offsets_must_be_added_first",
    ),
    Mutant(
        "broker/groups/offsets.py",
        "        if place not in pending and not group.is_subscribed(commit.topic) and is_over(commit)",
        "        if place not in pending and is_over(commit)",
        _REQUESTS + "test_offsets_of_unsubscribed_topics_expire",
    ),
    Mutant(
        "broker/groups/offsets.py",
        "        return lambda commit: empty_since_ms if empty_since_ms >= 0 else commit.commit_timestamp_ms",
        "        return lambda commit: commit.commit_timestamp_ms",
        _REQUESTS + "test_offsets_expire_after_last_member_left",
    ),
    Mutant(
        "broker/groups/offsets.py",
        "        for producer_id in list(self._producers.get(place, ())):",
        "        for producer_id in list(self._producers.get(place, ()))[:1]:",
        _TRANSACTIONAL + "test_deleted_group_drops_pending_offsets",
    ),
)
