"""Transactions: states, epochs, markers, and the order of syncs, decisions and responses."""

from tests.mutants.mutant import Mutant

_REQUESTS = "broker/transactions/test_requests.py::"
_COORDINATOR = "broker/transactions/test_coordinator.py::"
_TRAPS = "broker/transactions/test_traps.py::"
_LOG = "log/test_transactions.py::"
_SHARDS = "broker/transactions/test_shards.py::"
_VERIFICATION = "broker/cluster/test_verification.py::"

MUTANTS = (
    Mutant(
        "broker/transactions/participants.py",
        "                self._group_commit.flush(partition, transaction.transactional_id)\n"
        "                syncs.wait_for(partition)\n",
        "                self._group_commit.flush(partition, transaction.transactional_id)\n",
        _REQUESTS + "test_order_of_a_commit",
    ),
    Mutant(
        "broker/transactions/participants.py",
        "                self._group_commit.flush(partition, transaction.transactional_id)\n"
        "                syncs.wait_for(partition)\n",
        "                syncs.wait_for(partition)\n",
        _REQUESTS + "test_unawaited_record_is_committed",
    ),
    Mutant(
        "broker/transactions/requests.py",
        "        self.when_synced(decided)\n\n    def _decide",
        "        decided(ErrorCode.none)\n\n    def _decide",
        _REQUESTS + "test_order_of_a_commit",
    ),
    Mutant(
        "broker/transactions/requests.py",
        "        self._being_added.update((request.transactional_id, *place) for place in added)\n",
        "",
        _REQUESTS + "test_write_needs_durably_added_partition",
    ),
    Mutant(
        "broker/transactions/requests.py",
        "                self._being_added.difference_update((request.transactional_id, *place) for place in added)\n",
        "                pass\n",
        _REQUESTS + "test_write_needs_durably_added_partition",
    ),
    Mutant(
        "broker/transactions/requests.py",
        "        self.coordinator.ending.add(transaction.transactional_id)\n",
        "",
        _REQUESTS + "test_requests_during_commit_change_nothing",
    ),
    Mutant(
        "broker/transactions/requests.py",
        "            self.coordinator.ending.discard(transaction.transactional_id)\n",
        "            pass\n",
        _TRAPS + "test_trap_14_next_transaction_starts_immediately",
    ),
    Mutant(
        "broker/transactions/requests.py",
        " "
        '               logger.error("transaction of %s: a partition cannot be synced", transaction.transactional_id)\n'
        "                respond(error_code)\n            else:\n                self._prepare(",
        " "
        '               logger.error("transaction of %s: a partition cannot be synced", transaction.transactional_id)\n'
        "            if True:\n                self._prepare(",
        _REQUESTS + "test_failed_partition_sync_prevents_commit",
    ),
    Mutant(
        "broker/transactions/requests.py",
        "        for transactional_id in self._await_decisions():\n            self._decide(",
        "        for transactional_id in ():\n            self._decide(",
        _REQUESTS + "test_trap_16_restart_completes_prepared_commit",
    ),
    Mutant(
        "broker/transactions/requests.py",
        "            if completion.unmarked != completion.being_marked or not completion.being_marked:\n"
        "                self._complete(transactional_id)\n",
        "",
        _REQUESTS + "test_marker_is_retried_on_full_disk",
    ),
    Mutant(
        "broker/transactions/requests.py",
        "        if not completion.unmarked:\n            completed =",
        "        if True:\n            completed =",
        _REQUESTS + "test_failed_partition_sync_prevents_commit",
    ),
    Mutant(
        "broker/transactions/requests.py",
        "        self._prepare(transaction.fenced(self.coordinator.clock.now_ms()), respond)",
        "        self._prepare(transaction.after(Event.ABORT, self.coordinator.clock.now_ms()), respond)",
        _TRAPS + "test_trap_09_timeout_fences_the_epoch",
    ),
    Mutant(
        "broker/transactions/participants.py",
        "            self._group_commit.flush(partition, marker)\n"
        "            if partition.replica is not None:\n"
        "                partition.replica.on_appended()\n"
        "            partition.when_durable(synced)",
        "            self._group_commit.request(partition)\n            synced(ErrorCode.none)",
        "broker/transactions/test_transaction_durability.py::test_flush_policy_does_not_apply_to_transactions",
    ),
    Mutant(
        "broker/transactions/participants.py",
        "        self._when_topics_synced(lambda error_code: marked(not error_code))",
        "        marked(True)",
        "broker/transactions/test_transaction_durability.py::test_restored_topic_has_no_open_transaction",
    ),
    Mutant(
        "broker/transactions/requests.py",
        "marker.producer_epoch > transaction.producer_epoch:",
        "marker.producer_epoch > transaction.producer_epoch + 1:",
        _REQUESTS + "test_admin_marker_cannot_fence_one_partition",
    ),
    Mutant(
        "broker/transactions/coordinator.py",
        "        if transaction.producer_epoch != request.producer_epoch or transaction.is_permanently_fenced:",
        "        if transaction.producer_epoch > request.producer_epoch or transaction.is_permanently_fenced:",
        _COORDINATOR + "test_trap_08_end_needs_current_epoch",
    ),
    Mutant(
        "broker/transactions/coordinator.py",
        " or transaction.is_permanently_fenced:\n            return ErrorCode.producer_fenced",
        ":\n            return ErrorCode.producer_fenced",
        _COORDINATOR + "test_trap_10_reserved_epoch_is_refused",
    ),
    Mutant(
        "broker/transactions/coordinator.py",
        "        if transaction.producer_epoch != producer_epoch:\n            return ErrorCode.invalid_producer_epoch",
        "        if transaction.producer_epoch < producer_epoch:\n            return ErrorCode.invalid_producer_epoch",
        _TRAPS + "test_trap_09_timeout_fences_the_epoch",
    ),
    Mutant(
        "broker/transactions/coordinator.py",
        "            return ErrorCode.not_enough_replicas\n        if partition not in",
        "            return ErrorCode.concurrent_transactions\n        if partition not in",
        _COORDINATOR + "test_trap_15_temporary_errors_are_retriable",
    ),
    Mutant(
        "broker/transactions/coordinator.py",
        "        if partition not in transaction.partitions:\n            return ErrorCode.invalid_txn_state\n",
        "",
        _TRAPS + "test_trap_05_offsets_must_be_added_first",
    ),
    Mutant(
        "broker/transactions/coordinator.py",
        "transaction.state is TransactionState.ONGOING and partitions <= transaction.partitions:",
        "transaction.state is TransactionState.ONGOING:",
        _TRAPS + "test_trap_05_offsets_must_be_added_first",
    ),
    Mutant(
        "broker/transactions/coordinator.py",
        "transaction.started_ms + transaction.timeout_ms < now_ms",
        "transaction.updated_ms + transaction.timeout_ms < now_ms",
        _COORDINATOR + "test_timeout_counts_from_first_partition",
    ),
    Mutant(
        "broker/transactions/coordinator.py",
        "                and transactional_id not in self.ending\n",
        "",
        _COORDINATOR + "test_other_requests_wait_for_syncing_commit",
    ),
    Mutant(
        "broker/transactions/coordinator.py",
        "        producer_epoch=transaction.producer_epoch + 1,\n        last_producer_epoch=last_epoch,",
        "        producer_epoch=transaction.producer_epoch + 1,",
        _COORDINATOR + "test_retried_bump_survives_restart",
    ),
    Mutant(
        "broker/transactions/coordinator.py",
        "            self._ids_of_producers.pop(before.producer_id, None)\n",
        "            pass\n",
        _COORDINATOR + "test_trap_10_exhaustion_assigns_new_id",
    ),
    Mutant(
        "broker/transactions/transaction.py",
        "        return self.producer_epoch >= PRODUCER_EPOCH_MAX\n",
        "        return self.producer_epoch > PRODUCER_EPOCH_MAX\n",
        _COORDINATOR + "test_trap_10_exhaustion_assigns_new_id",
    ),
    Mutant(
        "broker/transactions/transaction.py",
        "        started_ms = self.started_ms if self.state is TransactionState.ONGOING else now_ms",
        "        started_ms = now_ms",
        _COORDINATOR + "test_timeout_counts_from_first_partition",
    ),
    Mutant(
        "broker/transactions/transaction.py",
        "        TransactionState.COMPLETE_ABORT: {Event.COMMIT: _WRONG, Event.ABORT: ErrorCode.none},",
        "        TransactionState.COMPLETE_ABORT: {Event.COMMIT: ErrorCode.none, Event.ABORT: ErrorCode.none},",
        _COORDINATOR + "test_trap_08_repeated_end_gets_same_response",
    ),
    Mutant(
        "log/transactions.py",
        "[ended for ended in self._ended if ended[1] >= high_watermark]",
        "[ended for ended in self._ended if ended[1] > high_watermark]",
        _LOG + "test_rule_7_marker_at_high_watermark",
    ),
    Mutant(
        "log/transactions.py",
        "        stable = next(iter(self._open.values()), marker_offset + 1)",
        "        stable = marker_offset + 1",
        _LOG + "test_rule_7_index_has_later_stable_offset",
    ),
    Mutant(
        "log/transactions.py",
        "            if aborted.first_offset < offset_end:",
        "            if offset_begin <= aborted.first_offset < offset_end:",
        _LOG + "test_rule_8_aborted_index_of_marker_segment",
    ),
    Mutant(
        "log/transactions.py",
        "            if aborted.last_stable_offset >= offset_end:\n                return transactions",
        "            if aborted.last_offset >= offset_end:\n                return transactions",
        _LOG + "test_rule_8_search_ends_at_stable_offset",
    ),
    Mutant(
        "log/visible.py",
        "        return min(max(unstable, self._segments.start_offset), self.high_watermark)",
        "        return min(unstable, self.high_watermark)",
        "broker/transactions/test_open_transactions.py::test_deleted_records_do_not_hold_readers",
    ),
    Mutant(
        "log/partition.py",
        "        if aborted is not None:\n            self.segments.active.transaction_index.append(aborted)\n",
        "",
        _LOG + "test_rule_8_aborted_index_of_marker_segment",
    ),
    Mutant(
        "log/producers.py",
        "        if header.attributes & _TRANSACTIONAL and header.producer_epoch == epoch:\n            return",
        "        if header.attributes & _TRANSACTIONAL:\n            return",
        _LOG + "test_trap_12_newer_epoch_waits_for_end",
    ),
    Mutant(
        "log/producers.py",
        "        if marker.coordinator_epoch < last.coordinator_epoch:",
        "        if marker.coordinator_epoch <= last.coordinator_epoch - 2:",
        _LOG + "test_rule_9_older_coordinator_epoch_is_refused",
    ),
    Mutant(
        "log/producers.py",
        "            if producer_id not in self.transactions:\n                inactive.append(producer_id)",
        "            inactive.append(producer_id)",
        _LOG + "test_rule_6_producer_in_transaction_never_expires",
    ),
    Mutant(
        "log/producers.py",
        "            self._first_sequences.check(header, now_ms)\n            self.require_capacity",
        "            self.require_capacity",
        "log/test_first_sequences.py::test_earlier_batches_come_first",
    ),
    Mutant(
        "log/producers.py",
        "            elif sequence != 0:\n",
        "            elif False:\n",
        "log/test_first_sequences.py::test_a_transaction_is_aborted_meanwhile",
    ),
    Mutant(
        "log/first_sequences.py",
        "other - sequence & SEQUENCE_MAX <= SEQUENCE_MAX // 2",
        "other - sequence",
        "log/test_first_sequences.py::test_sequences_wrap_while_they_wait",
    ),
    Mutant(
        "log/first_sequences.py",
        "if now_ms - waiting.since_ms >= WAIT_MS:",
        "if now_ms >= waiting.since_ms:",
        "log/test_first_sequences.py::test_earlier_batches_come_first",
    ),
    Mutant(
        "log/first_sequences.py",
        "elif now_ms - waiting.seen_ms >= ABANDONED_MS:",
        "elif now_ms >= waiting.seen_ms:",
        "log/test_first_sequences.py::test_the_lowest_of_several_batches_begins",
    ),
    Mutant(
        "log/producers.py",
        "                expected = newest_sequence + 1 & SEQUENCE_MAX",
        "                expected = newest_sequence + 1",
        "log/test_producers.py::test_rule_6_sequences_wrap",
    ),
    Mutant(
        "log/producers.py",
        "if last == last_sequence and last - delta & SEQUENCE_MAX == sequence and last_offset >= 0:",
        "if last >= last_sequence and last - delta & SEQUENCE_MAX <= sequence and last_offset >= 0:",
        _LOG + "test_trap_02_duplicates_among_last_five_batches",
    ),
    Mutant(
        "log/producers.py",
        "        return entries if epoch == producer_epoch and last_sequence >= 0 else",
        "        return entries if last_sequence >= 0 else",
        "log/test_producers.py::test_rule_6_new_epoch_starts_at_zero",
    ),
    Mutant(
        "log/transactions.py",
        "        self._guards.pop(producer_id, None)\n        first_offset",
        "        first_offset",
        _VERIFICATION + "test_marker_voids_a_verification",
    ),
    Mutant(
        "broker/cluster/verification.py",
        "        if (partition, producer_id) in self._waiting:\n            return True\n",
        "",
        _VERIFICATION + "test_waiting_batches_keep_their_order",
    ),
    Mutant(
        "broker/topics/shards.py",
        "        if self._is_closed or self._state_log.is_elsewhere:\n            return ErrorCode.not_coordinator\n",
        "",
        _SHARDS + "test_prepared_transaction_is_completed_elsewhere",
    ),
    # A new leader completes what it has decided itself, before that is durable.
    Mutant(
        "broker/transactions/requests.py",
        "() if self.error_code else replayed:",
        "() if self.error_code else self._await_decisions():",
        _REQUESTS + "test_a_new_leader_awaits_each_decision",
    ),
    # An admin's marker hurries the decision.
    Mutant(
        "broker/transactions/requests.py",
        "            self._await_own_marker(transaction.transactional_id, respond)",
        "            self._decide(transaction.transactional_id)",
        _REQUESTS + "test_an_admins_marker_awaits_the_decision",
    ),
    Mutant(
        "broker/transactions/shards.py",
        "        shard.when_loaded(shard.resume_when_synced)\n",
        "",
        _SHARDS + "test_prepared_transaction_is_completed_elsewhere",
    ),
)
