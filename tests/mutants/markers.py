"""Decisions by the marker, its scripts and its repair, on which exactly once depends."""

from tests.mutants.mutant import Mutant

_DECISION = "spark/exactly_once/test_decision.py::"
_SCRIPTS = "spark/redis/test_scripts.py::"
_CLAIMS = "spark/redis/test_claims.py::"
_REPAIR = "spark/redis/test_repair.py::"
_CHECKPOINT = "spark/exactly_once/test_checkpoint.py::"
_KAFKA = "spark/kafka/test_transaction.py::"

MUTANTS = (
    Mutant(
        "spark/exactly_once/decision.py",
        "    if proof.batch == batch.number:\n        return _same_batch(proof, batch, wording)\n",
        "",
        _DECISION + "test_decision",
    ),
    Mutant(
        "spark/exactly_once/decision.py",
        "    if proof.complete and proof.ranges == ranges_digest(batch.ranges_json):",
        "    if proof.complete:",
        _DECISION + "test_decision",
    ),
    Mutant(
        "spark/exactly_once/decision.py",
        "    if not proof.complete and proof.digest == batch.digest:",
        "    if not proof.complete:",
        _DECISION + "test_decision",
    ),
    Mutant(
        "spark/exactly_once/decision.py",
        "    if proof.batch_done < batch.number - 1:",
        "    if proof.batch_done < batch.number - 2:",
        _DECISION + "test_decision",
    ),
    Mutant(
        "spark/exactly_once/decision.py",
        "        if written is not None and written != part.begin:",
        "        if written is not None and written < part.begin:",
        _DECISION + "test_decision",
    ),
    Mutant(
        "spark/exactly_once/decision.py",
        "        return Write(NO_BATCH) if batch.number == 0 else missing(batch.number - 1, wording)",
        "        return Write(NO_BATCH)",
        _DECISION + "test_decision",
    ),
    Mutant(
        "spark/exactly_once/decision.py",
        "    if proof.query != query:",
        "    if False:",
        _DECISION + "test_decision",
    ),
    Mutant(
        "spark/exactly_once/decision.py",
        "    if proof.sink != sink:",
        "    if False:",
        _DECISION + "test_proof_of_another_sink_is_refused",
    ),
    Mutant(
        "spark/exactly_once/decision.py",
        "    if refusal is None and proof.batch_done < committed:",
        "    if refusal is None and proof.batch < committed:",
        _DECISION + "test_start",
    ),
    Mutant(
        "spark/exactly_once/decision.py",
        "    if proof.batch > planned:",
        "    if proof.batch > planned + 1:",
        _DECISION + "test_start",
    ),
    Mutant(
        "spark/exactly_once/decision.py",
        "        return None if committed == NO_BATCH else missing(committed, wording)",
        "        return None",
        _DECISION + "test_start",
    ),
    Mutant(
        "spark/exactly_once/proof.py",
        "        return self.batch if self.complete else self.batch - 1",
        "        return self.batch",
        _DECISION + "test_decision",
    ),
    Mutant(
        "spark/exactly_once/batch.py",
        "dict(self.topic_ids), self.plan, self.plan_version]",
        "dict(self.topic_ids), self.plan]",
        "spark/exactly_once/test_batch.py::test_digest_does_not_depend_on_order",
    ),
    Mutant(
        "spark/redis/lua/fence.lua",
        "  if field('owner') ~= owner then return {'owner', field('owner')} end\n",
        "",
        _SCRIPTS + "test_older_owner_is_refused",
    ),
    Mutant(
        "spark/redis/lua/fence.lua",
        "  if field('query') ~= query then return {'query', field('query')} end\n  if field('owner')",
        "  if field('owner')",
        _SCRIPTS + "test_driver_from_before_a_reset_is_refused",
    ),
    Mutant(
        "spark/redis/lua/fence.lua",
        "  if field('batch') ~= previous or field('complete') ~= '1' then",
        "  if field('batch') ~= previous then",
        _SCRIPTS + "test_batch_after_an_unfinished_one_is_refused",
    ),
    Mutant(
        "spark/redis/lua/fence.lua",
        "    if exists(key) and field(written_field(key)) == '' then return {'data', key} end\n",
        "",
        _SCRIPTS + "test_data_before_the_first_batch_is_refused",
    ),
    Mutant(
        "spark/redis/lua/fence.lua",
        "local DIGITS_MAX = 18",
        "local DIGITS_MAX = 19",
        _SCRIPTS + "test_amount_beyond_18_digits_is_refused",
    ),
    Mutant(
        "spark/redis/lua/whole.lua",
        "if is_batch(batch, digest, '1') then return {'already'} end\n",
        "",
        _SCRIPTS + "test_every_script_sent_again_changes_nothing",
    ),
    Mutant(
        "spark/redis/lua/whole.lua",
        "set_fields(fields)\n",
        "",
        _SCRIPTS + "test_successive_batches",
    ),
    Mutant(
        "spark/redis/lua/whole.lua",
        "refusal_of_next(previous) or ",
        "",
        _SCRIPTS + "test_late_script_is_refused",
    ),
    Mutant(
        "spark/redis/lua/chunk.lua",
        "if field('chunk:' .. chunk) == '1' then return {'already'} end\n",
        "",
        _SCRIPTS + "test_every_script_sent_again_changes_nothing",
    ),
    Mutant(
        "spark/redis/lua/chunk.lua",
        "redis.call('HSET', MARKER, 'chunk:' .. chunk, '1')\n",
        "",
        _SCRIPTS + "test_complete_needs_every_chunk",
    ),
    Mutant(
        "spark/redis/lua/complete.lua",
        "for chunk = 0, chunks - 1 do\n  if field(",
        "for chunk = 0, chunks - 2 do\n  if field(",
        _SCRIPTS + "test_complete_needs_every_chunk",
    ),
    Mutant(
        "spark/redis/lua/acquire.lua",
        "    if claim and claim ~= MARKER then return {'claimed', key, claim} end\n",
        "",
        _CLAIMS + "test_second_sink_is_refused_at_batch_0",
    ),
    Mutant(
        "spark/redis/lua/fence.lua",
        "  return refusal_of_claims()\n",
        "",
        _CLAIMS + "test_every_script_checks_every_claim",
    ),
    Mutant(
        "spark/redis/lua/forget.lua",
        "  if claim_of(index) == MARKER then table.insert(own, index) end\n",
        "  table.insert(own, index)\n",
        _CLAIMS + "test_forget_leaves_foreign_keys",
    ),
    Mutant(
        "spark/redis/lua/acquire.lua",
        "    if not is_ours and exists(key) then return {'strange', key} end\n",
        "",
        _CLAIMS + "test_key_added_later_already_exists",
    ),
    Mutant(
        "spark/redis/lua/acquire.lua",
        "  if may_create ~= '1' then return {'marker', kind} end\n",
        "",
        _SCRIPTS + "test_lost_marker_is_not_created_again",
    ),
    Mutant(
        "spark/redis/lua/acquire.lua",
        "redis.call('HINCRBY', MARKER, 'owner', 1)",
        "redis.call('HINCRBY', MARKER, 'owner', 0)",
        _SCRIPTS + "test_older_owner_is_refused",
    ),
    Mutant(
        "spark/redis/repair.py",
        "    if not marker.complete and (marker.batch < target.number or is_bridge):",
        "    if not marker.complete and (marker.batch < target.number - 1 or is_bridge):",
        _REPAIR + "test_steps_of_a_repair",
    ),
    Mutant(
        "spark/redis/repair.py",
        "    number = target.number - 1\n    end = checkpoint.reached(number)",
        "    number = target.number\n    end = checkpoint.reached(number)",
        _REPAIR + "test_steps_of_a_repair",
    ),
    Mutant(
        "spark/redis/repair.py",
        "            if begin is None:\n                begin = _entered(",
        "            if begin is None:\n                begin = offset_end or _entered(",
        _REPAIR + "test_new_partition_is_read_from_its_start",
    ),
    Mutant(
        "spark/redis/repair.py",
        "    backwards = [part for part in ranges if part.size < 0]",
        "    backwards = [part for part in ranges if part.size < -9]",
        _REPAIR + "test_impossible_repair_is_refused",
    ),
    Mutant(
        "spark/redis/repair.py",
        "        if topic in end.topic_ids and end.topic_ids[topic] != counted_id:",
        "        if False:",
        _REPAIR + "test_another_topic_id_is_refused",
    ),
    Mutant(
        "spark/exactly_once/checkpoint.py",
        "        for directory in sorted(directories | self._sync_state(), reverse=True):\n"
        "            self._sync(directory)\n",
        "        self._sync_state()\n",
        _CHECKPOINT + "test_planned_batches_survive_power_cuts",
    ),
    Mutant(
        "spark/exactly_once/checkpoint.py",
        "            self._sync_file(path)\n",
        "",
        _CHECKPOINT + "test_planned_batches_survive_power_cuts",
    ),
    Mutant(
        "spark/exactly_once/checkpoint.py",
        "for file in (path, checksum) if checksum.exists() else (path,):",
        "for file in (path,):",
        _CHECKPOINT + "test_checksums_are_synced_too",
    ),
    Mutant(
        "spark/exactly_once/checkpoint.py",
        "        names += [commit] if (self.directory / commit).exists() else []\n",
        "",
        _CHECKPOINT + "test_planned_batches_survive_power_cuts",
    ),
    Mutant(
        "spark/sink.py",
        "            self._checkpoint.prepare(batch_id)\n",
        "",
        "spark/test_redis_sink.py::test_checkpoint_is_synced_before_writing",
    ),
    Mutant(
        "spark/sink.py",
        "        if isinstance(decision, Skip):\n            return was_read\n",
        "",
        "spark/test_sink.py::test_repeated_batch_is_written_once",
    ),
    Mutant(
        "spark/sink.py",
        "            sink.abort()\n        except Exception as error:",
        "            pass\n        except Exception as error:",
        "spark/test_sink.py::test_ended_attempt_is_aborted_and_repeated",
    ),
    Mutant(
        "spark/sink.py",
        "    for _ in range(ATTEMPTS_MAX):",
        "    for _ in range(ATTEMPTS_MAX + 1):",
        "spark/test_sink.py::test_attempts_are_bounded",
    ),
    Mutant(
        "spark/kafka/target.py",
        "        if acknowledged != expected:",
        "        if False:",
        _KAFKA + "test_lost_encoded_rows_are_detected",
    ),
    Mutant(
        "spark/kafka/target.py",
        "        if owner not in (self._first_owner, self._owner):",
        "        if False:",
        _KAFKA + "test_second_driver_fences_the_first",
    ),
    Mutant(
        "spark/kafka/target.py",
        "            wait_until_readable(self._cluster, self._location, self.settings)",
        "            pass",
        _KAFKA + "test_record_after_an_open_transaction_is_read",
    ),
    Mutant(
        "spark/kafka/marker.py",
        "    if in_group.shared != in_record.shared:",
        "    if in_group.batch < in_record.batch:",
        _KAFKA + "test_copies_that_differ_stop_the_query",
    ),
    Mutant(
        "spark/kafka/marker.py",
        "        if before != count and accepted.get(topic) != count:",
        "        if before > count and accepted.get(topic) != count:",
        _KAFKA + "test_more_partitions_are_refused_until_accepted",
    ),
)
