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
        _OFFSETS + "test_a_topic_made_again_has_no_rows_in_the_batch_where_it_enters",
    ),
    Mutant(
        "spark/offsets.py",
        "known = start.by_topic.get(topic, {}) if ends.same_topic(start, topic) else {}",
        "known = start.by_topic.get(topic, {})",
        _OFFSETS + "test_a_topic_made_again_enters_anew_in_all_partitions",
    ),
    Mutant(
        "spark/offsets.py",
        "        if not ends.same_topic(start, topic):\n            by_topic[topic] = {}\n",
        "",
        _OFFSETS + "test_a_topic_made_again_with_fewer_partitions_keeps_none_of_the_others",
    ),
    Mutant(
        "spark/offsets.py",
        "            by_topic[topic][partition] = min(begin, partitions[partition])",
        "            by_topic[topic][partition] = partitions[partition]",
        _OFFSETS + "test_following_goes_to_the_ends_and_lets_new_partitions_enter_at_their_begin",
    ),
    Mutant(
        "spark/offsets.py",
        "            by_topic[topic][partition] = min(begin, partitions[partition])",
        "            by_topic[topic][partition] = begin",
        _OFFSETS + "test_an_end_that_an_available_now_run_has_fixed_is_not_passed_by_a_begin_that_moved",
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
        _OFFSETS + "test_under_a_limit_a_small_partition_moves_on_beside_a_large_one",
    ),
    Mutant(
        "spark/offsets.py",
        "part.begin + part.size * number // count for number in range(count + 1)]",
        "part.begin + part.size // count * number for number in range(count + 1)]",
        _OFFSETS + "test_every_offset_is_read_by_exactly_one_task",
    ),
    Mutant(
        "spark/offsets.py",
        "    return mine is None or theirs is None or mine == theirs",
        "    return mine == theirs",
        _OFFSETS + "test_a_topic_whose_id_one_side_does_not_know_is_the_same",
    ),
    Mutant(
        "spark/reader/stream.py",
        "        if self._armed:\n            # Batch 0 repeated is planned",
        "        if False:\n            # Batch 0 repeated is planned",
        _PLANNING + "test_the_order_of_sparks_calls_for_a_fresh_query_and_for_batch_0_repeated",
    ),
    Mutant(
        "spark/reader/stream.py",
        "            self._armed = False\n            return []",
        "            self._armed = False",
        _PLANNING + "test_batch_0_has_no_rows_although_a_group_commits_between_its_two_questions",
    ),
    Mutant(
        "spark/reader/stream.py",
        "        self._target = self._log.ends(fresh=True)",
        "        self._target = None",
        _PLANNING + "test_an_available_now_run_reads_to_the_ends_of_its_first_moment",
    ),
    Mutant(
        "spark/reader/stream.py",
        "        self._report(offsets.losses(batch_end, now))\n",
        "",
        _PLANNING + "test_a_batch_of_a_topic_that_was_made_again_since_is_not_read_from_the_new_one",
    ),
    Mutant(
        "spark/reader/stream.py",
        "        self._report(offsets.losses(known, ends))\n        return ends",
        "        return ends",
        _PLANNING + "test_a_topic_that_is_gone_stops_the_query_or_stays_where_it_was",
    ),
    Mutant(
        "spark/reader/stream.py",
        " if part.topic in now.by_topic and now.same_topic(batch_end, part.topic)]",
        " if part.topic in now.by_topic]",
        _PLANNING + "test_a_batch_of_a_topic_that_was_made_again_since_is_not_read_from_the_new_one",
    ),
    Mutant(
        "spark/reader/stream.py",
        "            if not offsets.lacking(planned, ends):\n                break\n",
        "            break\n",
        _PLANNING + "test_a_topic_that_one_answer_lacks_is_not_gone",
    ),
    Mutant(
        "spark/reader/stream.py",
        "        self._require_subscribed(known)\n",
        "",
        _PLANNING + "test_a_topic_that_is_no_longer_subscribed_stops_the_query",
    ),
    Mutant(
        "spark/reader/stream.py",
        "        self._commit(known)\n",
        "        self._commit(self._log.ends())\n",
        _PLANNING + "test_a_group_follows_the_query_and_shows_what_is_complete",
    ),
    Mutant(
        "spark/reader/stream.py",
        "        if waiting < least and self._monotonic() < self._batch_due_at:",
        "        if waiting < least:",
        _PLANNING + "test_a_batch_waits_for_enough_offsets_but_not_for_ever",
    ),
    Mutant(
        "spark/reader/positions.py",
        "        return max(offset, begin)",
        "        return offset",
        _POSITIONS + "test_a_start_that_is_gone_from_the_log_follows_fail_on_data_loss",
    ),
    Mutant(
        "spark/reader/positions.py",
        "        if offset > end:",
        "        if offset > end + 1:",
        _POSITIONS + "test_offsets_that_the_topic_does_not_have_are_refused",
    ),
    Mutant(
        "spark/reader/positions.py",
        "if offset == _NO_OFFSET else min(offset, partitions[partition])",
        "if offset == _NO_OFFSET else offset",
        _POSITIONS + "test_a_time_beyond_a_fixed_end_is_that_end",
    ),
    Mutant(
        "spark/reader/positions.py",
        "            if not ends.same_topic(given, topic):",
        "            if False:",
        _POSITIONS + "test_offsets_of_another_topic_of_that_name_are_refused",
    ),
    Mutant(
        "spark/reader/read_task.py",
        "            offset_end=part.end,\n            aborted=fetched.aborted,",
        "            offset_end=part.end + 1,\n            aborted=fetched.aborted,",
        _READING + "test_a_range_is_read_exactly_whatever_batches_it_cuts",
    ),
    Mutant(
        "spark/reader/read_task.py",
        "            aborted=fetched.aborted,\n            include_headers",
        "            aborted=(),\n            include_headers",
        "spark/reader/test_data_loss.py::test_what_a_query_sees_of_transactions",
    ),
    Mutant(
        "spark/reader/read_task.py",
        "    gone_end = min(error.log_start_offset, part.end) if error.offset < error.log_start_offset else part.end",
        "    gone_end = part.end",
        _READING + "test_reading_goes_on_after_what_is_gone",
    ),
    Mutant(
        "spark/reader/read_task.py",
        "    data_loss.report([loss], fail=options.fail_on_data_loss)\n",
        "",
        _READING + "test_records_that_were_trimmed_are_data_loss_or_skipped",
    ),
    Mutant(
        "spark/reader/read_task.py",
        "    _require_same_topics(cluster, task)\n",
        "",
        _READING + "test_a_topic_made_again_while_it_is_read_ends_the_task",
    ),
    Mutant(
        "spark/reader/alignment.py",
        "            elif is_searching or following.time_ms > until_ms:",
        "            elif following.time_ms > until_ms:",
        _ALIGNMENT + "test_a_partition_that_has_shown_no_record_yet_holds_the_others_back",
    ),
    Mutant(
        "spark/reader/alignment.py",
        "        until_ms = min(times, default=0) + self._skew_ms",
        "        until_ms = max(times, default=0) + self._skew_ms",
        _ALIGNMENT + "test_no_partition_runs_ahead_and_an_idle_one_holds_nobody_back",
    ),
)
