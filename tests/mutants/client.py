"""The client: retries, offsets, transactions, committed reads."""

from tests.mutants.mutant import Mutant

_CLUSTER = "client/test_cluster.py::"
_TRANSACTIONAL = "client/test_transactional.py::"
_RECORDS = "client/test_records.py::"

MUTANTS = (
    Mutant(
        "client/routing.py",
        "                self._topics.clear()\n                self._coordinators.clear()\n",
        "                self._topics.clear()\n",
        _CLUSTER + "test_a_coordinator_that_moved_is_found_again",
    ),
    Mutant(
        "client/cluster.py",
        "            size_bytes_max = min(2 * size_bytes_max, self.batch_bytes_max)",
        "            size_bytes_max = 2 * size_bytes_max",
        _CLUSTER + "test_batch_above_the_maximum_is_refused",
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
        "client/routing.py",
        "        if connection is not None and connection.is_open():",
        "        if connection is not None:",
        _CLUSTER + "test_idle_connections_are_reopened",
    ),
    Mutant(
        "client/routing.py",
        "            return self._first_contact_ms\n",
        "            return self.timeout_ms\n",
        _CLUSTER + "test_first_contact_is_not_retried_by_default",
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
        "                self._state = State.FAILED",
        "                pass",
        _TRANSACTIONAL + "test_failed_transaction_can_only_abort",
    ),
    Mutant(
        "client/transactional.py",
        "            self._request_epoch()\n        self._added.clear()",
        "            pass\n        self._added.clear()",
        _TRANSACTIONAL + "test_failed_transaction_can_only_abort",
    ),
    Mutant(
        "client/transactional.py",
        "        if not self._is_resumed:\n            self.flush()\n        self._end(commit=True)",
        "        self._end(commit=True)",
        _TRANSACTIONAL + "test_only_committed_records_are_visible",
    ),
    Mutant(
        "client/transactional.py",
        "        self._added.clear()\n        self._groups.clear()\n        self._state = State.ENDED",
        "        self._groups.clear()\n        self._state = State.ENDED",
        _TRANSACTIONAL + "test_many_batches_keep_their_order",
    ),
    Mutant(
        "client/transactional.py",
        "            self._next_sequence[target] = (self._next_sequence.get(target, 0) + count) % SEQUENCE_COUNT",
        "            self._next_sequence[target] = self._next_sequence.get(target, 0) + count - 1",
        _TRANSACTIONAL + "test_many_batches_keep_their_order",
    ),
    Mutant(
        "client/lag.py",
        "                first = max(partitions[partition], start)",
        "                first = partitions[partition]",
        "client/test_lag.py::test_deleted_records_are_not_lag",
    ),
)
