"""Buckets and intervals in Redis: retention, late rows, sets, merges, lost and deleted buckets."""

from tests.mutants.mutant import Mutant

_BUCKETS = "spark/redis/test_buckets.py::"
_INTERVALS = "spark/redis/test_intervals.py::"
_LUA = "spark/redis/lua/"
_FOLLOW = _BUCKETS + "test_buckets_follow_from_the_rows"
_SESSIONS = _INTERVALS + "test_intervals_follow_from_the_events"

MUTANTS = (
    Mutant(
        _LUA + "indexes.lua",
        "    index.floor = newest and index.retention and newest - index.retention or 0\n",
        "    index.floor = 0\n",
        _FOLLOW,
    ),
    Mutant(_LUA + "indexes.lua", "(index.late_name == '' or index.late_name == ARGV[at])", "true", _FOLLOW),
    Mutant(
        _LUA + "indexes.lua",
        "    if not exists(index.key) then redis.call('HDEL', MARKER, written_field(index.key)) end\n",
        "",
        _BUCKETS + "test_emptied_index_is_not_lost",
    ),
    Mutant(
        _LUA + "indexes.lua",
        "      left = left - #members\n",
        "",
        _BUCKETS + "test_one_script_removes_at_most_10000",
    ),
    Mutant(_LUA + "chunk.lua", "add_buckets(buckets, 'newest_next')", "add_buckets(buckets, 'newest_ms')", _FOLLOW),
    Mutant(_LUA + "complete.lua", "raise_to('newest_ms', tonumber(field('newest_next')) or -1)\n", "", _FOLLOW),
    Mutant(_LUA + "complete.lua", "remove_old(indexes)\n", "", _FOLLOW),
    Mutant(_LUA + "buckets.lua", "redis.call('SCARD', group.key) > index.limit", "false", _FOLLOW),
    Mutant(
        _LUA + "buckets.lua",
        "  if score and kind == 'none' then return refusal_of_loss(index.key, member) end\n",
        "",
        _BUCKETS + "test_lost_bucket_is_refused_and_recorded",
    ),
    Mutant(
        _LUA + "buckets.lua",
        "  if not score and kind ~= 'none' then return {'strange', key} end\n",
        "",
        _BUCKETS + "test_strange_bucket_is_refused",
    ),
    Mutant(
        _LUA + "buckets.lua",
        "  local reply = kind == 'string' and redis.pcall('PFADD', key)\n",
        "  local reply\n",
        _BUCKETS + "test_incompatible_bucket_stops_the_batch",
    ),
    Mutant(
        _LUA + "look.lua",
        "if not exists(key .. ':' .. reply[2][at]) then",
        "if false then",
        _BUCKETS + "test_look_finds_a_lost_bucket",
    ),
    Mutant(
        _LUA + "confirm.lua",
        " and not exists(key .. ':' .. member) then",
        " then",
        _BUCKETS + "test_bucket_that_exists_is_not_lost",
    ),
    Mutant(
        _LUA + "forget.lua", "then record_loss(KEYS[#KEYS]) end", "then end", _BUCKETS + "test_killed_reset_is_a_loss"
    ),
    Mutant(
        _LUA + "acquire.lua",
        "for _, index in ipairs(indexes) do table.insert(tried, {'HDEL', index.key .. ':probe', 'x'}) end\n",
        "",
        _BUCKETS + "test_user_with_the_index_alone_is_refused",
    ),
    Mutant(
        _LUA + "acquire.lua",
        "refusal_of_claiming(UNCLAIMED[format])",
        "refusal_of_claiming(is_earlier)",
        _BUCKETS + "test_format_3_does_not_own_unclaimed_keys",
    ),
    Mutant(
        _LUA + "intervals.lua",
        "last.ended <= gap then",
        "last.ended < gap then",
        _INTERVALS + "test_gap_itself_is_within",
    ),
    Mutant(
        _LUA + "intervals.lua",
        "digits(new.ended + index.limit)",
        "digits(new.ended)",
        _INTERVALS + "test_gap_itself_is_within",
    ),
    Mutant(_LUA + "intervals.lua", "      last.clicks = last.clicks + one.clicks\n", "", _SESSIONS),
    Mutant(
        _LUA + "intervals.lua",
        "  add_to_sums(index.sums, index.counted_by, group.before, -1)\n",
        "",
        _INTERVALS + "test_bridge_joins_two_intervals",
    ),
    Mutant(
        _LUA + "intervals.lua",
        "    if count.values.intervals == 0 then\n",
        "    if false then\n",
        _INTERVALS + "test_bridge_joins_two_intervals",
    ),
    Mutant(
        _LUA + "intervals.lua",
        "  remove_old_intervals(index, group.key)\n",
        "",
        _INTERVALS + "test_retained_sessions_in_order",
    ),
    Mutant(
        _LUA + "intervals.lua",
        "      if one.ended < new.started - index.limit then return nil end\n",
        "",
        _INTERVALS + "test_merge_does_not_depend_on_sessions_stored",
    ),
    Mutant(
        "spark/redis/scripts.py",
        "            if index.may_name(key) and key not in others:\n",
        "            if key not in others:\n",
        _BUCKETS + "test_reset_deletes_buckets_and_no_others",
    ),
    Mutant(
        "spark/redis/chunks.py",
        "F.when(_is_in([*keys.interval_targets, *entry_targets]), F.col(READ))",
        "F.when(_is_in(entry_targets), F.col(READ))",
        "spark/redis/test_buckets_in_spark.py::test_killed_repeated_and_repaired",
    ),
    Mutant(
        "spark/redis/chunks.py",
        "[cast(Row, tuple(row))] * times\n",
        "[cast(Row, tuple(row))]\n",
        "spark/redis/test_buckets_in_spark.py::test_killed_repeated_and_repaired",
    ),
    Mutant(
        "spark/redis/chunks.py",
        "        _require_written(chunk, writer.write(chunk, chunk_rows[chunk]), writer)\n",
        "        writer.write(chunk, chunk_rows[chunk])\n",
        "spark/test_redis_sink.py::test_amounts_that_overflow_stop_the_batch",
    ),
    Mutant(
        "spark/redis/chunks.py",
        "                rows = rows.take(np.repeat(np.arange(len(rows)), rows.field(TIMES)))\n",
        "",
        "spark/redis/test_buckets_in_spark.py::test_killed_repeated_and_repaired",
    ),
    Mutant(
        "spark/redis/batch.py",
        "for amount, field, times in newest for _ in range(times))",
        "for amount, field, times in newest)",
        "spark/redis/test_rows.py::test_equal_entries_and_intervals_are_kept",
    ),
    Mutant(
        "spark/redis/chunks.py",
        "    carried = high + F.shiftright(low, 32)\n",
        "    carried = high\n",
        "spark/redis/test_rows.py::test_sums_are_exact_in_any_order",
    ),
    Mutant(
        "spark/redis/chunks.py",
        "F.count_if(~_fits(keys))",
        "F.lit(0)",
        "spark/redis/test_rows.py::test_invalid_row_after_a_small_batch",
    ),
)
