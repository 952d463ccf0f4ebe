"""Event ids: claims, their window and removal, the seal, and the recount."""

from tests.mutants.mutant import Mutant

_LUA = "spark/redis/lua/"
_TESTS = "clicks/test_event_ids.py::"
_FOLLOW = _TESTS + "test_numbers_follow_from_the_events"
_WINDOW = _TESTS + "test_id_counts_again_after_the_window"
_TIMES = _TESTS + "test_older_timestamps_do_not_reopen_the_window"
_REBUILD = _TESTS + "test_rebuild_while_a_batch_is_written"

MUTANTS = (
    Mutant(_LUA + "ids.lua", "elseif held[id] ~= position then", "else", _FOLLOW),
    Mutant(_LUA + "ids.lua", "        held[id] = position\n", "", _TESTS + "test_first_record_of_a_partition_counts"),
    Mutant(_LUA + "ids.lua", "local span = ids.limit * ids.width", "local span = ids.width", _WINDOW),
    Mutant(
        _LUA + "ids.lua",
        "if index.kind == 'ids' and field('sealed') ~= digest",
        "if false",
        _TESTS + "test_lost_claims_end_the_attempt",
    ),
    Mutant(
        _LUA + "ids.lua",
        "      redis.call('UNLINK', index.late)\n",
        "",
        _TESTS + "test_first_record_of_a_partition_counts",
    ),
    Mutant(
        _LUA + "ids.lua", "      if times ~= '' then redis.call('HSET', MARKER, 'ids_times', times) end\n", "", _TIMES
    ),
    Mutant(_LUA + "seal.lua", "if #old > 0 then remove(ids, old) end\n", "", _TESTS + "test_old_ids_are_removed"),
    Mutant(
        _LUA + "seal.lua",
        "if not is_claimed(ids, claim) then return {'unsealed'} end",
        "",
        _TESTS + "test_lost_claims_end_the_attempt",
    ),
    Mutant(
        _LUA + "claim.lua",
        "if before ~= '' and not is_claimed(ids, before)",
        "if false",
        _TESTS + "test_lost_claim_keeps_the_order_of_records",
    ),
    Mutant(
        _LUA + "acquire.lua",
        "redis.call('HINCRBY', MARKER, 'owner', 1) < now_ms",
        "redis.call('HINCRBY', MARKER, 'owner', 1) < 0",
        _TESTS + "test_start_whose_epoch_is_lost_is_fenced",
    ),
    Mutant(
        "spark/redis/ids.py",
        "{offsets[0]}:{offsets[-1]}",
        "{offsets[0]}",
        _TESTS + "test_claim_of_a_shorter_attempt",
    ),
    Mutant(
        _LUA + "replace.lua",
        "for _, name in ipairs({'sealed', 'ids_next'}) do",
        "for _, name in ipairs({}) do",
        _REBUILD,
    ),
    Mutant(
        "spark/redis/ids.py",
        "np.maximum(np.maximum.accumulate(timestamps_ms), max(before, 0))",
        "timestamps_ms",
        _TIMES,
    ),
    Mutant(
        "clicks/recount_ids.py",
        "abs(quarter - known) <= PARTS",
        "abs(quarter - known) < PARTS",
        _WINDOW,
    ),
    Mutant(
        "clicks/event_ids.py",
        "pc.if_else(is_other, DUPLICATE, reasons)",
        "reasons",
        _TESTS + "test_decoders_find_ids_and_leave_out_duplicates",
    ),
    Mutant(
        "clicks/live.py",
        "if self._plan.event_ids_ms is not None:",
        "if False:",
        _TESTS + "test_live_numbers_are_the_counted_ones",
    ),
)
