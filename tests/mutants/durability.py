"""Forgotten syncs, and responses that come before them."""

from tests.mutants.mutant import Mutant

_FLUSH = "broker/storage/test_flush_policy.py::"
_TRANSACTION = "broker/transactions/test_transaction_durability.py::"
_ADMIN = "broker/test_admin_durability.py::"
_CUTS = "broker/test_durability.py::test_power_cuts_lose_nothing_acknowledged"

MUTANTS = (
    Mutant(
        "log/sync.py",
        "self._segments.end_offset - self.synced_offset >= self.config.flush_messages",
        "self._segments.end_offset - self.synced_offset >= 2 * self.config.flush_messages",
        _FLUSH + "test_flush_messages_bounds_a_power_cuts_loss",
    ),
    Mutant(
        "log/sync.py",
        "self._segments.end_offset - self.synced_offset >= self.config.flush_messages",
        "self._segments.end_offset - self.synced_offset > self.config.flush_messages",
        _FLUSH + "test_flush_messages_waits_for_its_sync",
    ),
    Mutant(
        "broker/storage/group_commit.py",
        "self._flush_later(partition, min(log.config.flush_ms / 1000, TIMER_MAX_S))",
        "self._flush_later(partition, min(20 * log.config.flush_ms / 1000, TIMER_MAX_S))",
        _FLUSH + "test_flush_ms_syncs_a_record_in_time",
    ),
    Mutant(
        "broker/storage/group_commit.py",
        "        self._timers.pop(partition, None)\n        self.flush(partition, self",
        "        self.flush(partition, self",
        _FLUSH + "test_flush_ms_syncs_the_next_record_too",
    ),
    Mutant(
        "broker/handlers/produce.py",
        "        node.group_commit.flush(partition, pending.requester)\n        if partition.replica",
        "        node.group_commit.request(partition, pending.requester)\n        if partition.replica",
        _TRANSACTION + "test_flush_policy_does_not_apply_to_transactions",
    ),
    Mutant(
        "broker/handlers/produce.py",
        "            partition.when_durable(pending.expect(partition, responses, at))",
        "            partition.when_synced(appended.last_offset + 1, pending.expect(partition, responses, at))",
        _TRANSACTION + "test_transactional_record_waits_for_sync",
    ),
    Mutant(
        "broker/handlers/metadata.py",
        "        request.in_slices(finding, lambda: node.metadata.when_shown(respond))",
        "        request.in_slices(finding, respond)",
        _ADMIN + "test_a_topic_is_visible_when_durable",
    ),
    Mutant(
        "broker/topics/operations.py",
        "        self._metadata.when_synced(reporting_failure(failed, lambda _error_code: respond()))",
        "        respond()",
        _ADMIN + "test_a_topic_is_visible_when_durable",
    ),
    Mutant(
        "broker/topics/operations.py",
        "                self._metadata.when_synced(reporting_failure(failed, synced))\n            else:",
        "                synced(ErrorCode.none)\n            else:",
        _ADMIN + "test_a_creation_is_acknowledged_after_its_sync",
    ),
    Mutant(
        "broker/topics/operations.py",
        "                self._respond_when_synced(lambda: respond(results), failed)\n            else:\n"
        "                self._metadata.when_synced(reporting_failure(failed, synced))\n\n"
        "        def synced(error_code: ErrorCode) -> None:\n            if not error_code:",
        "                self._respond_when_synced(lambda: respond(results), failed)\n            else:\n"
        "                synced(ErrorCode.none)\n\n"
        "        def synced(error_code: ErrorCode) -> None:\n            if not error_code:",
        _ADMIN + "test_responses_reveal_only_durable_state",
    ),
    Mutant(
        "broker/topics/metadata_log.py",
        "        self.when_synced(lambda code: respond(code, NO_PRODUCER_ID if code else producer_id))",
        "        respond(ErrorCode.none, producer_id)",
        "broker/test_durability.py::test_producer_ids_stay_unique_after_power_cuts",
    ),
    Mutant(
        "broker/storage/partitions.py",
        "        if offset_end <= self.log.high_watermark:",
        "        if offset_end <= self.log.high_watermark + 1:",
        _CUTS,
    ),
    Mutant(
        "broker/handlers/produce.py",
        "    if pending.acks == ACKS_ALL and appended.last_offset >= log.visible.high_watermark:",
        "    if pending.acks == ACKS_ALL and appended.last_offset > log.visible.high_watermark:",
        _CUTS,
    ),
    Mutant(
        "broker/handlers/produce.py",
        "    if pending.acks == ACKS_ALL and appended.last_offset >= log.visible.high_watermark:",
        "    if pending.acks == ACKS_ALL and not appended.duplicate:",
        "broker/test_durability.py::test_a_duplicate_waits_for_the_first_sync",
    ),
    Mutant(
        "broker/handlers/produce.py",
        "            if error_code != ErrorCode.none:\n                responses[at]",
        "            if False:\n                responses[at]",
        "broker/test_durability.py::test_a_failed_sync_is_final",
    ),
    Mutant(
        "broker/storage/group_commit.py",
        "        partition.log.durability.fail_sync(error)\n",
        "        partition.log.durability._syncing = None\n",
        "broker/test_durability.py::test_a_failed_sync_is_final",
    ),
    Mutant(
        "broker/storage/group_commit.py",
        "        elif partition.log.durability.synced_offset < point.offset_end:\n"
        "            self._retry_later(partition)\n        else:",
        "        else:",
        "broker/storage/test_group_commit.py::test_an_unstarted_sync_is_retried",
    ),
    Mutant(
        "broker/coordinators.py",
        "            self._metadata.sync()\n",
        "",
        "broker/test_durability.py::test_power_cut_during_the_first_start",
    ),
    Mutant(
        "broker/node.py",
        "            clean = are_whole and",
        "            clean = True and",
        "broker/test_durability.py::test_a_stop_with_an_unclosable_log",
    ),
    Mutant(
        "log/sync.py",
        "        for seal in self.seals:\n            _sync_file(seal.segment)\n",
        "",
        "log/test_crash.py::test_power_cuts",
    ),
    Mutant("log/sync.py", "        _sync_file(self.active)\n", "", _CUTS),
    Mutant(
        "log/sync.py",
        "    if file.is_removed():\n",
        "    if False:\n",
        "log/test_partition.py::test_a_deleted_segment_cannot_be_synced",
    ),
    Mutant(
        "log/sync.py",
        "        try:\n            self.disk.sync_directory(self.directory)\n",
        "        try:\n            pass\n",
        _CUTS,
    ),
    Mutant(
        "log/sync.py",
        "                self.disk.sync_directory(self.directory.parent)\n",
        "                pass\n",
        "log/test_crash.py::test_power_cuts",
    ),
    Mutant(
        "log/sync.py",
        "        error = _error_of(partial(points[numbers[0]].disk.sync_directory, parent), parent)\n",
        "        error = None\n",
        "broker/storage/test_fair_queue.py::test_new_logs_survive_a_power_cut",
    ),
    Mutant(
        "log/sync.py",
        "                self.problem = error\n                return number\n        return len(self.seals)",
        "                self.problem = error\n        return len(self.seals)",
        "log/test_partition.py::test_failed_index_write_is_retried",
    ),
    Mutant(
        "log/sync.py",
        "            size_bytes=active.size_bytes,\n            seals=tuple(self._seals),",
        "            size_bytes=active.size_bytes,\n            seals=(),",
        "log/test_crash.py::test_power_cuts",
    ),
    Mutant(
        "log/sync.py",
        "            self._disk.sync_directory(self._directory)\n        except SyncNotBegun as error:",
        "            pass\n        except SyncNotBegun as error:",
        "log/test_directory.py::test_roll_before_the_first_sync",
    ),
    Mutant(
        "log/segment.py",
        "                file.truncate(position)\n",
        "                pass\n",
        "log/test_partition.py::test_a_full_disk_refuses_and_recovers",
    ),
    Mutant(
        "log/partition.py",
        "            # After a kill its name may be in the page cache only.\n"
        "            disk.sync_directory(directory.parent)\n",
        "            pass\n",
        "log/test_crash.py::test_power_cuts",
    ),
    Mutant(
        "log/recovery.py",
        "                break\n            segment.file.sync_data()\n",
        "                break\n",
        "log/test_crash.py::test_power_cuts",
    ),
    Mutant(
        "log/recovery.py",
        "                segment.size_bytes = size_bytes\n                segment.file.sync_data()\n",
        "                segment.size_bytes = size_bytes\n",
        "log/test_recovery.py::test_batches_before_torn_write_are_durable",
    ),
    Mutant(
        "log/recovery.py",
        "        is_next = header.base_offset == offset or offset < header.base_offset < compaction_end",
        "        is_next = header.base_offset >= offset",
        "log/test_recovery.py::test_offsets_must_follow_each_other",
    ),
    Mutant(
        "log/directory.py",
        "                disk.remove(path / _CLEAN_FILE)\n                disk.sync_directory(path)\n",
        "                disk.remove(path / _CLEAN_FILE)\n",
        "log/test_directory.py::test_rule_4_clean_file_is_removed_first",
    ),
    Mutant(
        "log/directory.py",
        "        self._are_names_durable = False\n        self._sync_names()\n",
        "        self._are_names_durable = False\n",
        "log/test_directory.py::test_deletion_is_durable_after_failed_sync",
    ),
    Mutant(
        "log/swap.py",
        "    disk.sync_directory(directory)\n    swapped = ",
        "    swapped = ",
        "log/test_compaction_crash.py::test_power_cut_after_kill_and_restart",
    ),
    Mutant(
        "log/recovery.py",
        "        if below:\n",
        "        if below < 0:\n",
        "log/test_recovery.py::test_producers_survive_the_removal_of_segments",
    ),
    Mutant(
        "log/sync.py",
        "(self._seals or not point.is_durable)",
        "self._seals",
        "log/test_copies.py::test_close_refuses_a_postponed_round",
    ),
    Mutant(
        "log/directory.py",
        "            self._sync_names()\n            return\n",
        "            return\n",
        "log/test_directory.py::test_deletion_is_durable_after_failed_sync",
    ),
    Mutant(
        "log/truncation.py",
        "isdecimal() and not is_of_segment",
        "isdecimal() and name.endswith('.snapshot')",
        "log/test_copies.py::test_starting_over_removes_a_failed_compaction",
    ),
    Mutant(
        "log/truncation.py",
        "if any(name.endswith(SWAP_SUFFIX)",
        "if not any(name.endswith('')",
        "log/test_copies.py::test_no_truncation_beside_a_failed_compaction",
    ),
    Mutant(
        "broker/storage/housekeeping.py",
        "not self._is_served(partition) or partition.log.segments is not owner",
        "not self._is_served(partition)",
        "broker/storage/test_housekeeping.py::test_segments_left_before_starting_over",
    ),
    Mutant(
        "broker/storage/housekeeping.py",
        "if offset > partition.log.log_start_offset and not partition.log.is_truncating",
        "if offset > partition.log.log_start_offset",
        "broker/storage/test_housekeeping.py::test_a_log_start_waits_for_a_truncation",
    ),
    Mutant(
        "log/swap.py",
        "    offset_end = max(offset_end, read_compaction_end(disk, directory))\n",
        "    if offset_end <= read_compaction_end(disk, directory):\n        return\n",
        "log/test_copies.py::test_gaps_are_durable_after_failed_sync",
    ),
    Mutant(
        "log/swap.py",
        "    retired = []\n    disk.sync_directory(directory)\n",
        "    retired = []\n",
        "log/test_recovery.py::test_producer_survives_deletion_and_power_cut",
    ),
    Mutant(
        "log/offset_checkpoint.py",
        "offset > self._offsets.get(key, 0)}",
        "offset != self._offsets.get(key, 0)}",
        "log/test_retention.py::test_rule_11_checkpoint_offsets_never_decrease",
    ),
    Mutant(
        "log/offset_checkpoint.py",
        "            if known or not self._is_stored:\n",
        "            if known:\n",
        "log/test_offset_checkpoint.py::test_offsets_of_a_failed_write_are_forgotten",
    ),
    Mutant(
        "log/offset_checkpoint.py",
        "if changed != self._offsets or not self._is_stored:",
        "if changed != self._offsets:",
        "log/test_offset_checkpoint.py::test_offsets_of_a_failed_write_are_replaced",
    ),
    Mutant(
        "broker/storage/group_commit.py",
        "        self._flush_later(partition, SOON_S)",
        "        self._flush_later(partition, 86_400)",
        "broker/storage/test_group_commit.py::test_an_unawaited_sync_is_not_forgotten",
    ),
    Mutant(
        "broker/storage/housekeeping.py",
        "        if partition is self.cleaner.compacting or log.is_truncating:",
        "        if partition is self.cleaner.compacting:",
        "broker/storage/test_housekeeping.py::test_retiring_waits_for_a_truncation",
    ),
    Mutant(
        "broker/storage/group_commit.py",
        "        if timer is None or timer.when() > loop.time() + delay_s:",
        "        if timer is None:",
        _FLUSH + "test_a_lowered_flush_ms_applies_at_once",
    ),
    Mutant(
        "broker/storage/group_commit.py",
        "        self._queues.move_to_end(partition, last=False)\n",
        "",
        "broker/storage/test_fair_queue.py::test_what_must_be_first_overtakes",
    ),
    Mutant(
        "broker/topics/operations.py",
        "            self._group_commit.flush_put_off()\n",
        "",
        _TRANSACTION + "test_a_new_topic_gets_no_old_marker",
    ),
)
