"""Click analytics: the rules of counting, and the recount that must find every difference."""

from tests.mutants.mutant import Mutant

_EVENTS = "clicks/test_events.py::"
_COLUMNS = "clicks/test_columns.py::"
_LIVE = "clicks/test_live.py::"
_NOW = "clicks/test_now.py::"
_VERIFY = "clicks/test_verify.py::"
_INGEST = "clicks/ingest/"

MUTANTS = (
    Mutant(
        "clicks/events.py",
        "            known = type(os_type) is str and 0 < len(os_type) <= 256",
        "            known = type(os_type) is str and len(os_type) <= 256",
        _EVENTS + "test_each_rule",
    ),
    Mutant(
        "clicks/events.py",
        "    return Reason.COUNT_TOO_LARGE if count > COUNT_MAX else count",
        "    return Reason.COUNT_TOO_LARGE if count >= COUNT_MAX else count",
        _EVENTS + "test_each_rule",
    ),
    Mutant(
        "clicks/events.py",
        "type(clicks) is int and 0 <= clicks <= COUNT_MAX:",
        "type(clicks) is int and clicks <= COUNT_MAX:",
        _EVENTS + "test_each_rule",
    ),
    Mutant(
        "clicks/events.py",
        "    if number.negative:\n        return Reason.COUNT_NEGATIVE\n    if number.power < 0:",
        "    if number.power < 0:",
        _EVENTS + "test_numbers_are_judged_alike",
    ),
    Mutant(
        "clicks/recount.py",
        '    if exact != exact.to_integral_value():\n        return 0, "count-fractional"\n',
        "",
        _EVENTS + "test_each_rule_in_the_recount",
    ),
    Mutant(
        "clicks/columns.py",
        "(pc.binary_length(uids).to_numpy() == 0) | (clicks < 0)",
        "pc.binary_length(uids).to_numpy() == 0",
        _COLUMNS + "test_each_rule_on_columns",
    ),
    Mutant(
        "clicks/columns.py",
        "has_time & (given_ms - timestamps_ms > FUTURE_MS)",
        "has_time & (given_ms - timestamps_ms >= FUTURE_MS)",
        _COLUMNS + "test_times_on_columns_and_in_the_recount",
    ),
    Mutant(
        "clicks/recount.py",
        'shift if parts["sign"] == "-" else -shift',
        'shift if parts["sign"] == "+" else -shift',
        _COLUMNS + "test_times_on_columns_and_in_the_recount",
    ),
    Mutant(
        "clicks/verify.py",
        " + [Difference(key, _text(field), None, _text(stored)) for field, stored in left.items()]",
        "",
        _VERIFY + "test_one_thing_changed_by_hand_is_found",
    ),
    Mutant(
        "clicks/verify.py",
        "    differences += _compare_ranking(keys.top, recount.by_user, counts.ranking)\n",
        "",
        _VERIFY + "test_one_thing_changed_by_hand_is_found",
    ),
    Mutant(
        "clicks/results.py",
        "            if after.identity == before.identity:\n                return result",
        "            return result",
        _VERIFY + "test_batch_written_while_redis_is_read",
    ),
    Mutant(
        "clicks/ingest/appender.py",
        "Unwritten.TOO_LARGE if too_large else Unwritten.NOT_ACKNOWLEDGED",
        "Unwritten.TOO_LARGE if too_large else None",
        _INGEST + "test_endpoint.py::test_events_without_acknowledgement",
    ),
    Mutant(
        "clicks/ingest/body.py",
        "self._inflate.decompress(chunk, self._bytes_max + 1 - len(self._content))",
        "self._inflate.decompress(chunk)",
        _INGEST + "test_body.py::test_a_bomb_is_not_expanded",
    ),
    Mutant(
        "clicks/ingest/access.py",
        "            return not self.origins\n",
        "            return True\n",
        _INGEST + "test_access.py::test_origins",
    ),
    Mutant(
        "clicks/ingest/limits.py",
        "        return min(burst, left + (self._clock_s() - at_s) * self._per_second)",
        "        return left + (self._clock_s() - at_s) * self._per_second",
        _INGEST + "test_limits.py::test_burst_then_steady_rate",
    ),
    Mutant(
        "clicks/ingest/visits.py",
        "        if day != self._day:",
        "        if self._day < 0:",
        _INGEST + "test_visits.py::test_address_hash_changes_every_day",
    ),
    Mutant(
        "clicks/ingest/endpoint.py",
        "            memory.give_back()\n",
        "            pass\n",
        _INGEST + "test_endpoint.py::test_refused_bodies",
    ),
    Mutant(
        "clicks/ingest/endpoint.py",
        "        if wait_s > 0:",
        "        if False:",
        _INGEST + "test_endpoint.py::test_rate_limits",
    ),
    Mutant(
        "http_server.py",
        "                self._timer = self.loop.call_later(head_seconds, self.transport.abort)",
        "                pass",
        _INGEST + "test_endpoint.py::test_slow_heads_are_closed",
    ),
    Mutant(
        "clicks/live.py",
        " if ends.get(number) == begins[number]}\n",
        "}\n",
        "clicks/test_live_ranges.py::test_users_are_counted_once_between_batches",
    ),
    Mutant(
        "clicks/now.py",
        "            yield record.offset, counts\n            counts = Counts()\n",
        "            yield record.offset, counts\n",
        _NOW + "test_many_records_are_summed_in_ranges",
    ),
    Mutant(
        "clicks/now.py",
        "            low |= {int(partition): begin for partition, (begin, _) in ranges.items()}",
        "            pass",
        _NOW + "test_position_within_a_micro_batch",
    ),
    Mutant(
        "clicks/now.py",
        "        return is_ahead and all(ends.get(partition, -1) >= offset for partition, offset in at.high.items())",
        "        return is_ahead",
        _NOW + "test_lookup_beyond_read_records_is_refused",
    ),
    Mutant(
        "clicks/now.py",
        "        while self.advance(begins):\n            pass\n",
        "",
        _NOW + "test_sums_in_any_order",
    ),
    Mutant(
        "clicks/now.py",
        "not known_stay and (is_skipping or",
        "not known_stay and (",
        _NOW + "test_users_of_skipped_records_are_looked_up",
    ),
    Mutant(
        "clicks/now.py",
        "        new_users = 0\n",
        "        new_users = 1\n",
        _NOW + "test_ranges_are_added_one_at_a_time",
    ),
    Mutant(
        "clicks/now.py",
        "            known_from = self._known_from\n",
        "            known_from: Offsets = {}\n",
        _NOW + "test_ranges_are_added_one_at_a_time",
    ),
    Mutant(
        "clicks/now.py",
        "            self._known_from = dict(begins)\n",
        "            pass\n",
        _NOW + "test_sums_in_any_order",
    ),
    Mutant(
        "clicks/now.py",
        "(at.query, at.rebuild) != (here.query, here.rebuild)",
        "at.query != here.query",
        _NOW + "test_lookup_before_a_rebuild_is_refused",
    ),
    Mutant(
        "clicks/now.py",
        "        if self.pending.missing(begins) != missing or (",
        "        if self.pending.missing(begins).keys() != missing.keys() or (",
        _NOW + "test_sums_in_any_order",
    ),
    Mutant(
        "clicks/now.py",
        "        if known_stay and len(",
        "        if len(",
        _NOW + "test_sums_in_any_order",
    ),
    Mutant(
        "clicks/now.py",
        "        return counted == expected",
        "        return counted.events == expected.events",
        _NOW + "test_other_counts_are_looked_up",
    ),
    Mutant(
        "clicks/now.py",
        "        may_differ = not known_stay and (",
        "        may_differ = (",
        _NOW + "test_offsets_without_records_are_skipped",
    ),
    Mutant(
        "clicks/now.py",
        "here.query is not None and (at",
        "(at",
        _NOW + "test_first_micro_batch_is_no_rebuild",
    ),
    Mutant(
        "clicks/now.py",
        "        ends = self.starts | self.pending.ends",
        "        ends = dict(begins) | self.pending.ends",
        _NOW + "test_users_of_unread_partition_are_looked_up",
    ),
    Mutant(
        "clicks/now.py",
        "        lows = self.starts | at.low",
        "        lows = self._known_from | at.low",
        _NOW + "test_lookup_without_a_lost_partition_is_refused",
    ),
    Mutant(
        "clicks/now.py",
        "        if not known_stay:\n",
        "        if False:\n",
        _NOW + "test_top_users_follow_a_rebuild",
    ),
    Mutant(
        "clicks/live.py",
        "            starts = {} if self._now is None else self._now.starts",
        "            starts = {} if self._now is None else self._now.pending.ends",
        _LIVE + "test_redis_loses_micro_batches",
    ),
    Mutant(
        "clicks/live.py",
        "if base.marker is None and (base.events or base.users):",
        "if False:",
        _LIVE + "test_counts_without_a_marker_are_refused",
    ),
    Mutant(
        "clicks/live.py",
        "            self._plan, topic = announced\n",
        "            self._plan, topic = announced\n        else:\n            self._plan = DEFAULT_PLAN\n",
        _LIVE + "test_other_fields_outlive_the_marker",
    ),
    Mutant(
        "clicks/results.py",
        "plan is None or plan.hash_key != self.hash_key",
        "plan is None",
        "clicks/test_beside.py::test_the_last_job_is_announced",
    ),
    Mutant(
        "cli/sinks/reset.py",
        "counts = [key for key in own_keys if key not in beside]",
        "counts = own_keys",
        "clicks/test_beside.py::test_an_announced_job_has_no_counts",
    ),
    Mutant(
        "clicks/live.py",
        "now is None or now.is_advanced or",
        "now is None or",
        _LIVE + "test_counts_lost_while_they_are_taken_over",
    ),
    Mutant(
        "clicks/now.py",
        "            if partition in pieces:",
        "            if partition in pieces and not ranges:",
        _NOW + "test_sums_in_any_order",
    ),
    Mutant(
        "spark/redis/lua/replace.lua",
        "    if field(name) ~= other_field(name) then return {'other', name, other_field(name)} end\n",
        "",
        "clicks/test_rebuild.py::test_other_offsets_are_not_replaced",
    ),
    Mutant(
        "spark/redis/lua/replace.lua",
        "    if redis.call('EXISTS', unpack(names)) == #names then return nil end\n",
        "    if true then return nil end\n",
        "clicks/test_rebuild.py::test_lost_bucket_of_the_rebuild",
    ),
    Mutant(
        "spark/redis/lua/replace.lua",
        "redis.call('UNLINK', unpack(others))",
        "local _ = others",
        "clicks/test_rebuild.py::test_killed_rebuild_resumes[0]",
    ),
    Mutant(
        "clicks/rebuild.py",
        "        if own is not None and is_stale(own, live):",
        "        if False:",
        "clicks/test_rebuild.py::test_count_that_was_started_over",
    ),
    Mutant(
        "clicks/results.py",
        ', str(self.complete), fields.get("rebuilt", ""))',
        ", str(self.complete))",
        "clicks/test_rebuild.py::test_readers_see_one_state",
    ),
)
