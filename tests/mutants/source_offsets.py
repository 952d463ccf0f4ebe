"""The Spark source: which offsets a batch covers, and what is read of them."""

from tests.mutants.mutant import Mutant

_OFFSETS = "spark/test_offsets.py::"
_PLANNING = "spark/reader/test_stream.py::"
_POSITIONS = "spark/reader/test_positions.py::"
_READING = "spark/reader/test_read_task.py::"
_ALIGNMENT = "spark/reader/test_alignment.py::"

MUTANTS = (
    Mutant(
        "spark/offsets.py",
        "            offset_begin = min(known.get(partition, offset_end), offset_end)",
        "            offset_begin = min(known.get(partition, 0), offset_end)",
        _OFFSETS + "test_ranges",
    ),
    Mutant(
        "spark/offsets.py",
        "            offset_begin = min(known.get(partition, offset_end), offset_end)",
        "            offset_begin = known.get(partition, offset_end)",
        _OFFSETS + "test_ranges",
    ),
    Mutant(
        "spark/offsets.py",
        "known = start.by_topic.get(topic, {}) if start is not None and end.same_topic(start, topic) else {}",
        "known = start.by_topic.get(topic, {}) if start is not None else {}",
        _OFFSETS + "test_recreated_topic_enters_without_rows",
    ),
    Mutant(
        "spark/offsets.py",
        "known = start.by_topic.get(topic, {}) if ends.same_topic(start, topic) else {}",
        "known = start.by_topic.get(topic, {})",
        _OFFSETS + "test_recreated_topic_enters_in_all_partitions",
    ),
    Mutant(
        "spark/offsets.py",
        "        if not ends.same_topic(start, topic):\n            by_topic[topic] = {}\n",
        "",
        _OFFSETS + "test_recreated_topic_with_fewer_partitions",
    ),
    Mutant(
        "spark/offsets.py",
        "            by_topic[topic][partition] = min(begin, partitions[partition])",
        "            by_topic[topic][partition] = partitions[partition]",
        _OFFSETS + "test_following_starts_new_partitions_at_begin",
    ),
    Mutant(
        "spark/offsets.py",
        "            by_topic[topic][partition] = min(begin, partitions[partition])",
        "            by_topic[topic][partition] = begin",
        _OFFSETS + "test_start_does_not_pass_fixed_end",
    ),
    Mutant(
        "spark/offsets.py",
        "        elif ends[partition] < offset:",
        "        elif ends[partition] < offset - 1:",
        _OFFSETS + "test_losses",
    ),
    Mutant(
        "spark/offsets.py",
        "        share = max(1, offsets_max * part.size // total) if part.size else 0",
        "        share = offsets_max * part.size // total",
        _OFFSETS + "test_limited_small_partition_advances",
    ),
    Mutant(
        "spark/offsets.py",
        "part.begin + part.size * number // count for number in range(count + 1)]",
        "part.begin + part.size // count * number for number in range(count + 1)]",
        _OFFSETS + "test_each_offset_has_exactly_one_task",
    ),
    Mutant(
        "spark/offsets.py",
        "    return mine is None or theirs is None or mine == theirs",
        "    return mine == theirs",
        _OFFSETS + "test_unknown_topic_id_matches",
    ),
    Mutant(
        "spark/reader/stream.py",
        "        if self._armed:\n            # A repeated batch 0 is already planned",
        "        if False:\n            # A repeated batch 0 is already planned",
        _PLANNING + "test_call_order_of_batch_0",
    ),
    Mutant(
        "spark/reader/stream.py",
        "            self._armed = False\n            return []",
        "            self._armed = False",
        _PLANNING + "test_batch_0_is_empty_despite_group_commit",
    ),
    Mutant(
        "spark/reader/stream.py",
        "        self._target = self._log.ends(fresh=True)",
        "        self._target = None",
        _PLANNING + "test_available_now_reads_to_initial_ends",
    ),
    Mutant(
        "spark/reader/stream.py",
        "        self._report(offsets.losses(batch_end, now))\n",
        "",
        _PLANNING + "test_planned_batch_skips_recreated_topic",
    ),
    Mutant(
        "spark/reader/stream.py",
        "        self._report(offsets.losses(known, ends))\n        return ends",
        "        return ends",
        _PLANNING + "test_deleted_topic_fails_or_keeps_offsets",
    ),
    Mutant(
        "spark/reader/stream.py",
        " if part.topic in now.by_topic and now.same_topic(batch_end, part.topic)]",
        " if part.topic in now.by_topic]",
        _PLANNING + "test_planned_batch_skips_recreated_topic",
    ),
    Mutant(
        "spark/reader/stream.py",
        "            if not offsets.lacking(planned, ends):\n                break\n",
        "            break\n",
        _PLANNING + "test_topic_missing_once_is_requested_again",
    ),
    Mutant(
        "spark/reader/stream.py",
        "        self._require_subscribed(known)\n",
        "",
        _PLANNING + "test_unsubscribed_topic_stops_the_query",
    ),
    Mutant(
        "spark/reader/stream.py",
        "        self._commit(known)\n",
        "        self._commit(self._log.ends())\n",
        _PLANNING + "test_group_commits_follow_complete_batches",
    ),
    Mutant(
        "spark/reader/stream.py",
        "        if waiting < least and self._monotonic() < self._batch_due_at:",
        "        if waiting < least:",
        _PLANNING + "test_batch_waits_for_min_offsets",
    ),
    Mutant(
        "spark/reader/positions.py",
        "        return max(offset, begin)",
        "        return offset",
        _POSITIONS + "test_deleted_start_follows_fail_on_data_loss",
    ),
    Mutant(
        "spark/reader/positions.py",
        "        if offset > end:",
        "        if offset > end + 1:",
        _POSITIONS + "test_offsets_outside_the_topic_are_refused",
    ),
    Mutant(
        "spark/reader/positions.py",
        "if offset == _NO_OFFSET else min(offset, partitions[partition])",
        "if offset == _NO_OFFSET else offset",
        _POSITIONS + "test_timestamp_after_fixed_end_resolves_to_end",
    ),
    Mutant(
        "spark/reader/positions.py",
        "            if not ends.same_topic(given, topic):",
        "            if False:",
        _POSITIONS + "test_offsets_of_recreated_topic_are_refused",
    ),
    Mutant(
        "spark/reader/read_task.py",
        "            offset_end=part.end,\n            aborted=fetched.aborted,",
        "            offset_end=part.end + 1,\n            aborted=fetched.aborted,",
        _READING + "test_range_across_batches_is_read_exactly",
    ),
    Mutant(
        "spark/reader/read_task.py",
        "            aborted=fetched.aborted,\n            include_headers",
        "            aborted=(),\n            include_headers",
        "spark/reader/test_data_loss.py::test_visible_records_of_transactions",
    ),
    Mutant(
        "spark/reader/read_task.py",
        "    deleted_end = min(error.log_start_offset, part.end) if error.offset < ",
        "    deleted_end = part.end if error.offset < ",
        _READING + "test_reading_continues_after_deleted_offsets",
    ),
    Mutant(
        "spark/reader/read_task.py",
        "    data_loss.report([loss], fail=options.fail_on_data_loss)\n",
        "",
        _READING + "test_trimmed_records_fail_or_are_skipped",
    ),
    Mutant(
        "spark/reader/read_task.py",
        "    _require_same_topics(cluster, task)\n",
        "",
        _READING + "test_recreated_topic_ends_the_task",
    ),
    Mutant(
        "spark/reader/alignment.py",
        "            elif is_searching or following.time_ms > until_ms:",
        "            elif following.time_ms > until_ms:",
        _ALIGNMENT + "test_search_in_one_partition_delays_others",
    ),
    Mutant(
        "spark/reader/alignment.py",
        "        until_ms = min(times, default=0) + self._skew_ms",
        "        until_ms = max(times, default=0) + self._skew_ms",
        _ALIGNMENT + "test_partitions_are_read_side_by_side",
    ),
)
