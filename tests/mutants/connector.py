"""The connector without offsets and markers: push-downs, and the writes of the Kafka and Redis sinks."""

from tests.mutants.mutant import Mutant

_AGGREGATE = "spark/pushdown/test_aggregate.py::"
_GROUPS = "spark/pushdown/test_groups.py::"
_KAFKA = "spark/kafka/test_transaction.py::"

MUTANTS = (
    Mutant(
        "spark/pushdown/groups.py",
        '"sum" if measure.function == "count" else measure.function)',
        "measure.function)",
        _AGGREGATE + "test_sums_equal_a_record_by_record_count",
    ),
    Mutant(
        "spark/pushdown/aggregate.py",
        "            decoded = decoded.filter(pc.invert(bad))\n",
        "",
        _AGGREGATE + "test_rejected_records_are_passed_through",
    ),
    Mutant(
        "spark/pushdown/groups.py",
        "    return pa.array(times - times % np.int64(width_us))",
        "    return pa.array(times + width_us - 1 - (times - 1) % np.int64(width_us))",
        _AGGREGATE + "test_windows_are_sparks_tumbling_ones",
    ),
    Mutant(
        "spark/pushdown/groups.py",
        "        parts, self._parts = self._parts, []\n",
        "        parts = self._parts\n",
        _AGGREGATE + "test_many_groups_are_emitted_early",
    ),
    Mutant(
        "spark/pushdown/aggregate.py",
        "            ends = pc.add(starts, key.width_us)",
        "            ends = pc.add(starts, key.width_us - 1)",
        _AGGREGATE + "test_windows_are_sparks_tumbling_ones",
    ),
    Mutant(
        "spark/pushdown/groups.py",
        "    begins[1:] = (groups[1:] != groups[:-1]) | (starts[1:] > latest[:-1])",
        "    begins[1:] = (groups[1:] != groups[:-1]) | (starts[1:] >= latest[:-1])",
        _GROUPS + "test_touching_sessions_are_one_group",
    ),
    Mutant(
        "spark/pushdown/groups.py",
        "key.width_us < wanted.width_us and wanted.width_us % key.width_us == 0",
        "key.width_us < wanted.width_us",
        _GROUPS + "test_each_set_equals_a_count_of_records",
    ),
    Mutant(
        "spark/kafka/sender.py",
        "            self._sequences[topic_partition] = (sequence + blob.record_count) % SEQUENCE_COUNT",
        "            self._sequences[topic_partition] = sequence + 1",
        _KAFKA + "test_batches_are_visible_whole_and_once",
    ),
    Mutant(
        "spark/kafka/sender.py",
        "or (is_first and queue.sent > queue.done):",
        "or False:",
        _KAFKA + "test_first_batch_of_partition_is_sent_alone",
    ),
    Mutant(
        "spark/kafka/sender.py",
        "        for queue in queues:\n            queue.sent = queue.done\n            queue.failed = False",
        "        for queue in queues:\n            queue.failed = False",
        _KAFKA + "test_batches_after_a_refused_one_are_resent",
    ),
    Mutant(
        "spark/kafka/sender.py",
        "        if queue.failed and not self._once:\n            return  # It is sent again",
        "        if False:\n            return  # It is sent again",
        _KAFKA + "test_batches_after_a_refused_one_are_resent",
    ),
    Mutant(
        "spark/exactly_once/batch.py",
        "        if str(part.partition) not in since.get(part.topic, {})",
        "        if True",
        "spark/exactly_once/test_batch.py::test_since_keeps_first_offsets",
    ),
    Mutant(
        "spark/exactly_once/batch.py",
        "    result = {topic: dict(partitions) for topic, partitions in known.items()}",
        "    result: dict[str, dict[str, int]] = {}",
        "spark/exactly_once/test_batch.py::test_partition_outside_the_batch_keeps_its_offset",
    ),
    Mutant(
        "spark/redis/marker.py",
        "        return tuple(number for number in range(self.chunks) if number not in self.chunks_done)",
        "        return tuple(range(len(self.chunks_done), self.chunks))",
        "spark/redis/test_marker.py::test_begun_batch_has_chunks_and_offsets",
    ),
)
