"""The protocol: frames, batches, transactions in fetched batches, keys, codecs."""

from tests.mutants.mutant import Mutant

_BATCH = "wire/test_batch.py::"
_COLUMNS = "wire/test_columns.py::"
_KNOWN = "wire/test_known_produce.py::"

MUTANTS = (
    Mutant(
        "wire/batch.py",
        "        return (self.base_sequence + self.last_offset_delta) % _SEQUENCE_MODULUS",
        "        return self.base_sequence + self.last_offset_delta",
        "log/test_producers.py::test_rule_6_wrapped_sequences_survive_a_restart",
    ),
    Mutant(
        "wire/batch.py",
        "    if not 0 <= header.record_count <= header.last_offset_delta + 1:",
        "    if not 0 <= header.record_count:",
        _BATCH + "test_a_count_beyond_the_last_offset_is_corrupt_though_its_crc_is_right",
    ),
    Mutant(
        "wire/batch.py",
        "    if crc != header.crc:\n        raise wrong_crc(",
        "    if False:\n        raise wrong_crc(",
        _BATCH + "test_a_flipped_bit_is_found_wherever_the_crc_or_a_length_covers_it",
    ),
    Mutant(
        "wire/batch.py",
        "        if end > size_bytes:\n            return\n        yield position, header",
        "        yield position, header",
        _BATCH + "test_a_cut_last_batch_is_ignored_and_a_header_needs_61_bytes",
    ),
    Mutant(
        "wire/columns.py",
        "        if header.last_offset < offset_begin:\n            continue\n",
        "        if header.last_offset <= offset_begin:\n            continue\n",
        _COLUMNS + "test_a_range_may_begin_at_any_record_of_a_batch",
    ),
    Mutant(
        "wire/columns.py",
        "        next_offset = header.last_offset + 1\n    records = _gather",
        "        next_offset = header.base_offset + header.record_count\n    records = _gather",
        _COLUMNS + "test_a_batch_that_compaction_emptied_moves_the_offset_on",
    ),
    Mutant(
        "wire/columns.py",
        "header.base_offset >= offset_end or unpacked_bytes >= size_bytes_max:",
        "header.base_offset >= offset_end:",
        _COLUMNS + "test_unpacking_stops_at_the_limit_and_goes_on_from_next_offset",
    ),
    Mutant(
        "wire/markers.py",
        "    return Marker(kind == COMMIT, coordinator_epoch)",
        "    return Marker(kind != ABORT or coordinator_epoch > 0, coordinator_epoch)",
        "wire/test_markers.py::test_a_marker_of_a_later_coordinator_comes_back",
    ),
    Mutant(
        "wire/known_produce.py",
        "        if not length or frame[end:] != _END:",
        "        if not length:",
        _KNOWN + "test_a_batch_without_a_right_length_is_left_to_the_parser",
    ),
    Mutant(
        "wire/known_produce.py",
        "            self._old, self._young = self._young, {}",
        "            self._young = {}",
        _KNOWN + "test_a_generation_that_comes_in_turn_is_known",
    ),
    Mutant(
        "wire/murmur2.py",
        "(murmur2(key) & 0x7FFFFFFF) % partition_count",
        "murmur2(key) % partition_count",
        "wire/test_murmur2.py::test_the_sign_bit_is_cleared_before_the_remainder",
    ),
    Mutant(
        "wire/message_sets.py",
        "    shift = header.offset - records[-1].offset if header.magic else 0",
        "    shift = header.offset if header.magic else 0",
        "wire/test_message_sets.py::test_kafka_python_reads_what_we_write_and_we_what_it_writes",
    ),
)
