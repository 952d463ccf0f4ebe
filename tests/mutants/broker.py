"""The broker's handlers and its log: reads, waits, retention and deletion."""

from tests.mutants.mutant import Mutant

_PARTITION = "log/test_partition.py::"
_COMMITTED = "broker/handlers/test_read_committed.py::"
_HOUSEKEEPING = "broker/storage/test_housekeeping.py::"

_OLD_FETCH = "broker/handlers/test_old_fetch.py::"

MUTANTS = (
    Mutant(
        "broker/handlers/old_fetch.py",
        "        self._skip({part.place: part.offset for part in self._parts})\n",
        "",
        _OLD_FETCH + "test_reading_continues_after_control_batches",
    ),
    Mutant(
        "broker/handlers/old_fetch.py",
        "            is_wanted=lambda: self._result is result and self._timer is not None,",
        "            is_wanted=lambda: True,",
        _OLD_FETCH + "test_closed_connection_ends_its_conversion",
    ),
    Mutant(
        "broker/loop/sliced_thread.py",
        "        work = self._queue.popleft()\n        self._run()\n        if work.is_wanted():",
        "        work = self._queue[0]\n        if work.is_wanted():",
        _OLD_FETCH + "test_requests_are_converted_in_turn",
    ),
    Mutant(
        "broker/storage/partitions.py",
        "high_watermark:\n            self._call(self._waiting.popleft()[1], error_code)\n        self.wake()\n",
        "high_watermark:\n            self._call(self._waiting.popleft()[1], error_code)\n",
        _COMMITTED + "test_rule_15_a_marker_wakes_a_fetch",
    ),
    Mutant(
        "broker/handlers/fetch.py",
        "        end = last_stable_offset if is_committed else high_watermark",
        "        end = high_watermark",
        "broker/transactions/test_clients.py::test_librdkafka_does_not_see_an_open_transaction",
    ),
    Mutant(
        "broker/handlers/fetch.py",
        "            aborted = visible.aborted_in(wanted.fetch_offset, piece) if is_committed else None",
        "            aborted = [] if is_committed else None",
        _COMMITTED + "test_rule_8_committed_fetches_list_aborted_transactions",
    ),
    Mutant(
        "broker/handlers/fetch.py",
        "        if wanted.current_leader_epoch > partition.leader_epoch:",
        "        if wanted.current_leader_epoch > partition.leader_epoch + 1:",
        "broker/handlers/test_client_apis.py::test_a_later_leader_epoch_is_refused",
    ),
    Mutant(
        "broker/handlers/fetch.py",
        "            at_least_one = not result.size_bytes\n",
        "            at_least_one = True\n",
        "broker/handlers/test_client_apis.py::test_rule_14_fetch_limits_are_soft",
    ),
    Mutant(
        "broker/handlers/fetch.py",
        "        if piece.is_cut if piece is not None else wanted.fetch_offset < end:\n"
        "            result.is_final = True\n",
        "",
        "broker/handlers/test_client_apis.py::test_rule_15_segment_end_responds_at_once",
    ),
    Mutant(
        "broker/handlers/list_offsets.py",
        "visible.last_stable_offset if is_committed else visible.high_watermark",
        "visible.high_watermark",
        _COMMITTED + "test_list_offsets_like_kafka",
    ),
    Mutant(
        "broker/handlers/list_offsets.py",
        "if 0 <= offset < search.offset_end else NOT_FOUND",
        "if 0 <= offset else NOT_FOUND",
        _COMMITTED + "test_time_search_ends_at_last_stable_offset",
    ),
    Mutant(
        "broker/handlers/produce.py",
        "            if current is not partition:",
        "            if partition is None:",
        "broker/storage/test_housekeeping.py::test_topic_deletion_during_a_batch_check",
    ),
    Mutant(
        "broker/handlers/produce.py",
        "            self._reply.close_connection(reason)",
        "            self._reply.send([])",
        _HOUSEKEEPING + "test_batches_checked_in_a_thread_keep_order",
    ),
    Mutant(
        "broker/topics/operations.py",
        "        self._topics.being_deleted.add(topic.name)\n",
        "",
        "broker/test_admin_durability.py::test_an_unremovable_directory_keeps_its_name",
    ),
    Mutant(
        "broker/topics/operations.py",
        "        if self._is_deciding:\n            self._undecided",
        "        if False:\n            self._undecided",
        "broker/topics/test_operations.py::test_concurrent_operations",
    ),
    Mutant(
        "broker/topics/operations.py",
        "        if self._topics.by_id.get(topic.topic_id) is not topic:",
        "        if False:",
        "broker/test_hostile_requests.py::test_a_topic_deleted_during_its_creation",
    ),
    Mutant(
        "broker/topics/operations.py",
        "        if self._logs.config_of(topic) != opening.config:\n            self._logs.reconfigure(topic)\n",
        "",
        "broker/test_admin_durability.py::test_config_change_while_partitions_open",
    ),
    Mutant(
        "log/directory.py",
        "        for offsets in (self.log_start_offsets, self.cleaner_offsets, self.high_watermarks):\n"
        "            offsets.forget([(topic, partition)])\n",
        "",
        _HOUSEKEEPING + "test_a_recreated_topic_starts_at_zero",
    ),
    Mutant(
        "log/retention.py",
        "    expired = [segment for segment in segments[:number] if segment.offset_end <= high_watermark]",
        "    expired = [segment for segment in segments[:number] if segment.base_offset <= high_watermark]",
        "log/test_retention.py::test_rule_11_retention_stops_at_high_watermark",
    ),
    Mutant(
        "log/retention.py",
        "segments[number].size_bytes <= excess_bytes:",
        "excess_bytes > 0:",
        _HOUSEKEEPING + "test_the_oldest_segments_exceeding_retention_bytes",
    ),
    Mutant(
        "log/partition.py",
        "            or last_offset - segment.base_offset > _RELATIVE_OFFSET_MAX",
        "            or last_offset - segment.base_offset > _RELATIVE_OFFSET_MAX + 1",
        _PARTITION + "test_rule_1_relative_offsets_fit_into_int32",
    ),
    Mutant(
        "log/visible.py",
        "            return self._bytes_of_active\n",
        "            return segment.size_bytes\n",
        _PARTITION + "test_nothing_is_visible_before_its_sync",
    ),
    Mutant(
        "log/visible.py",
        "        self._waited_at = _NO_WAITING_READER\n",
        "        self._waited_at = getattr(self, '_waited_at', _NO_WAITING_READER)\n",
        "log/test_compaction.py::test_waiting_reader_survives_a_compaction",
    ),
    Mutant(
        "log/recovery.py",
        "        while below and not self._load_snapshot(bases[below]):\n            below -= 1\n",
        "",
        "log/test_recovery.py::test_segment_with_only_producer_state_stays",
    ),
    Mutant(
        "log/swap.py",
        "            doomed = [offset for offset in offsets_of(names, suffix) if base <= offset < end]",
        "            doomed = [offset for offset in offsets_of(names, suffix) if base <= offset <= end]",
        "log/test_compaction_crash.py::test_rule_10_merge_replaces_all_or_none",
    ),
    Mutant(
        "broker/storage/housekeeping.py",
        "            self._group_commit.flush(partition, self)",
        "            self._group_commit.flush(partition)",
        "broker/storage/test_fair_queue.py::test_expired_logs_let_a_neighbour_pass",
    ),
)
