"""The client: retries, offsets, transactions, committed reads."""

from tests.mutants.mutant import Mutant

_CLUSTER = "client/test_cluster.py::"
_TRANSACTIONAL = "client/test_transactional.py::"
_RECORDS = "client/test_records.py::"

MUTANTS = (
    Mutant(
        "client/cluster.py",
        "                self._topics.clear()\n                self._coordinators.clear()\n",
        "                self._topics.clear()\n",
        _CLUSTER + "test_a_coordinator_that_moved_is_found_again",
    ),
    Mutant(
        "client/cluster.py",
        "            size_bytes_max = min(2 * size_bytes_max, self.batch_bytes_max)",
        "            size_bytes_max = 2 * size_bytes_max",
        _CLUSTER + "test_a_batch_above_the_configured_maximum_is_refused",
    ),
    Mutant(
        "client/cluster.py",
        "                if entry.committed_offset >= 0:",
        "                if entry.committed_offset > 0:",
        _CLUSTER + "test_group_offsets_survive_another_cluster_object",
    ),
    Mutant(
        "client/cluster.py",
        "wire_fetch.READ_COMMITTED if read_committed else wire_fetch.READ_UNCOMMITTED,",
        "wire_fetch.READ_UNCOMMITTED,",
        _CLUSTER + "test_the_isolation_level_is_asked_for",
    ),
    Mutant(
        "client/cluster.py",
        "        if connection is not None and connection.is_open():",
        "        if connection is not None:",
        _CLUSTER + "test_connections_that_idled_out_are_opened_anew",
    ),
    Mutant(
        "client/cluster.py",
        "allowed_ms = self._first_contact_ms if new else self.timeout_ms",
        "allowed_ms = self.timeout_ms",
        _CLUSTER + "test_the_first_contact_is_not_tried_again_unless_asked",
    ),
    Mutant(
        "client/records.py",
        "        while waiting and waiting[0][1] <= header.last_offset:",
        "        while waiting and waiting[0][1] < header.last_offset:",
        _RECORDS + "test_what_read_committed_shows",
    ),
    Mutant(
        "client/records.py",
        "                aborting.discard(header.producer_id)\n",
        "                pass\n",
        _RECORDS + "test_what_read_committed_shows",
    ),
    Mutant(
        "client/records.py",
        "                if offset_begin <= record.offset < offset_end:",
        "                if offset_begin <= record.offset <= offset_end:",
        _RECORDS + "test_a_range_is_read_exactly",
    ),
    Mutant(
        "client/transactional.py",
        "            self._producer._state = State.FAILED",
        "            pass",
        _TRANSACTIONAL + "test_after_a_failure_only_an_abort_is_possible_and_then_all_is_well",
    ),
    Mutant(
        "client/transactional.py",
        "            self._take_epoch()\n        self._added.clear()",
        "            pass\n        self._added.clear()",
        _TRANSACTIONAL + "test_after_a_failure_only_an_abort_is_possible_and_then_all_is_well",
    ),
    Mutant(
        "client/transactional.py",
        "        if not self._is_resumed:\n            self.flush()\n        self._end(commit=True)",
        "        self._end(commit=True)",
        _TRANSACTIONAL + "test_nothing_is_seen_before_the_commit_and_nothing_of_an_abort",
    ),
    Mutant(
        "client/transactional.py",
        "        self._added.clear()\n        self._groups.clear()\n        self._state = State.ENDED",
        "        self._groups.clear()\n        self._state = State.ENDED",
        _TRANSACTIONAL + "test_many_batches_over_several_partitions_and_transactions_keep_their_order",
    ),
    Mutant(
        "client/transactional.py",
        "        self._next_sequence[chosen] = (first + len(records)) % SEQUENCE_COUNT",
        "        self._next_sequence[chosen] = first + len(records) - 1",
        _TRANSACTIONAL + "test_many_batches_over_several_partitions_and_transactions_keep_their_order",
    ),
    Mutant(
        "client/lag.py",
        "            first = max(partitions[partition], begin)",
        "            first = partitions[partition]",
        "client/test_lag.py::test_what_the_log_deleted_unread_is_no_lag",
    ),
)
