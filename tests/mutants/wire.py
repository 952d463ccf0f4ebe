"""The protocol: frames, batches, transactions in fetched batches, keys, codecs."""

from tests.mutants.mutant import Mutant

_BATCH = "wire/test_batch.py::"
_COLUMNS = "wire/test_columns.py::"
_KNOWN = "wire/test_known_produce.py::"

MUTANTS = (
    Mutant(
        "wire/batch.py",
        "        value = value & 0x7F | byte << 7\n",
        "        value = value & 0x7F | byte << 8\n",
        _BATCH + "test_there_and_back",
    ),
    Mutant(
        "wire/batch.py",
        "        return self.base_sequence + self.last_offset_delta & SEQUENCE_MAX",
        "        return self.base_sequence + self.last_offset_delta",
        "log/test_producers.py::test_rule_6_wrapped_sequences_survive_a_restart",
    ),
    Mutant(
        "wire/batch.py",
        "    if not 0 <= header.record_count <= header.last_offset_delta + 1:",
        "    if not 0 <= header.record_count:",
        _BATCH + "test_count_beyond_last_offset_is_corrupt",
    ),
    Mutant(
        "wire/batch.py",
        "    if crc != header.crc:\n        raise wrong_crc(",
        "    if False:\n        raise wrong_crc(",
        _BATCH + "test_flipped_bit_is_detected",
    ),
    Mutant(
        "wire/batch.py",
        "        if end > size_bytes:\n            return\n        yield position, header",
        "        yield position, header",
        _BATCH + "test_cut_last_batch_is_ignored",
    ),
    Mutant(
        "wire/columns.py",
        "        if header.last_offset < offset_begin:\n            continue\n",
        "        if header.last_offset <= offset_begin:\n            continue\n",
        _COLUMNS + "test_range_may_start_at_any_record",
    ),
    Mutant(
        "wire/columns.py",
        "        next_offset = header.last_offset + 1\n    records = _gather",
        "        next_offset = header.base_offset + header.record_count\n    records = _gather",
        _COLUMNS + "test_emptied_batch_advances_the_offset",
    ),
    Mutant(
        "wire/columns.py",
        "header.base_offset >= offset_end or unpacked_bytes >= size_bytes_max:",
        "header.base_offset >= offset_end:",
        _COLUMNS + "test_decompression_limit_continues_at_next_offset",
    ),
    Mutant(
        "wire/markers.py",
        "    return Marker(kind == COMMIT, coordinator_epoch)",
        "    return Marker(kind != ABORT or coordinator_epoch > 0, coordinator_epoch)",
        "wire/test_markers.py::test_marker_of_later_coordinator_round_trip",
    ),
    Mutant(
        "wire/known_produce.py",
        "        if not length or frame[end:] != _END:",
        "        if not length:",
        _KNOWN + "test_wrong_batch_length_is_parsed",
    ),
    Mutant(
        "wire/known_produce.py",
        "            self._old, self._young = self._young, {}",
        "            self._young = {}",
        _KNOWN + "test_requests_of_one_generation_are_known",
    ),
    Mutant(
        "wire/murmur2.py",
        "(murmur2(key) & 0x7FFFFFFF) % partition_count",
        "murmur2(key) % partition_count",
        "wire/test_murmur2.py::test_sign_bit_is_cleared_before_modulo",
    ),
    Mutant(
        "wire/message_sets.py",
        "    shift = header.offset - records[-1].offset if header.magic else 0",
        "    shift = header.offset if header.magic else 0",
        "wire/test_message_sets.py::test_round_trip_with_kafka_python",
    ),
    Mutant(
        "wire/down_conversion.py",
        "    check_batch(batch, 0, header)\n",
        "",
        "wire/test_down_conversion.py::test_damage_gets_no_new_checksum",
    ),
    Mutant(
        "wire/down_conversion.py",
        "            base_offset = record.offset if magic else 0",
        "            base_offset = record.offset",
        "wire/test_down_conversion.py::test_messages_are_those_of_kafka",
    ),
)
