-- Claims the ids of some records of one partition, in the order of their offsets, for a batch that is not begun.
-- KEYS: further ones are the buckets at most a window from the records.
-- ARGV: query, owner, batch, digest, number of the batch before, indexes, number of the ids' index, partition, name of the
-- claim before this one in the partition or '', name of this one, groups.
local query, owner, _, digest, previous = take(), take(), take(), take(), take()
local indexes = take_indexes()
local ids = indexes[take_number()]
local partition, before, claim = take(), take(), take()
local groups = take_id_groups()

local refusal = refusal_of_owner(query, owner)
if refusal then return refusal end
if field('sealed') == digest then return {'already'} end
refusal = refusal_of_next(previous) or refusal_of_ids(ids, groups)
if refusal then return refusal end
-- Without the claim before, the first record of an id would no longer be the one that counts.
if before ~= '' and not is_claimed(ids, before) then return {'unsealed'} end

for _, group in ipairs(groups) do claim_ids(ids, partition, group) end
redis.call('ZADD', ids.late, -1, claim_member(claim))
mark_written()
return {'done'}
